"""Turn a hypothesis and its rivals into a calibrated confidence: of the verdicts given with 0.9, nine in ten are right."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model import Hypothesis

__all__ = ["calibrate"]


def calibrate(best: Hypothesis, rivals: Sequence[Hypothesis]) -> float:
    """
    Return the confidence (0..1) in the class of the best hypothesis.

    Strength counts for most; a rival of another class that is nearly as strong takes some of it away. The line was fitted on
    the development cases of `benchmarks/attribution` (see docs/how-it-judges.md).
    """
    other = max((h.score for h in rivals if h.cls != best.cls), default=0.0)
    margin = max(0.0, min(1.0, best.score - other))
    value = 0.45 + 0.45 * best.score + 0.12 * margin
    return round(max(0.3, min(0.98, value)), 2)
