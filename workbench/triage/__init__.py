"""Turn signals of all sources into one verdict: placement, timeline, hypotheses, verdict."""
