# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Triage
#
# One incident in depth: the verdict with what speaks against it, what each rank did, the culprit's metrics around the failure,
# and the lines of the logs. For a job on a running site set `job` (and have a `workbench.toml`); nothing else changes.

# %% tags=["parameters"]
# a name of `workbench examples`, a folder or archive, or inbox:ID
incident = "gpu-memory"
# instead of it: a job of the running site that workbench.toml describes
job = ""
# the window in which it is looked for: 6h (ago), or 2026-05-04T10:00Z
since = ""
until = ""
config = ""

# %%
import pandas as pd

from workbench import lab

lab.start()
case = lab.case(incident, job=job, since=since, until=until, config=config)
verdict = case.verdict

# %% [markdown]
# ## Verdict

# %%
from workbench.report import view

culprit = verdict["culprit"]
pd.Series(
    {
        "class": f"{verdict['class']} ({view.confidence(verdict) or 'not sure'})",
        "summary": verdict["summary"],
        "where": view.where(verdict),
        "at fault": view.at_fault(verdict) or "nothing can be blamed",
        "when": view.when(verdict),
        "retry": verdict["retry"],
        "repair": verdict["remediation"],
    },
    name="verdict",
).to_frame()

# %%
for number, step in enumerate(view.todo(verdict), 1):
    print(f"{number}. {step}")

# %% [markdown]
# ## What each rank did
#
# One row a rank, coloured by its state; diamonds are the evidence. Drag to zoom.

# %%
from workbench.plots.rank_map import rank_map

rank_map(case.activity, case.ranks, events=case.events)

# %%
case.ranks.fleet.count(by="node")

# %% [markdown]
# ## Timeline
#
# From the thing blamed outwards: culprit, its node, victims, platform.

# %%
case.events.fleet.timeline()

# %%
evidence = case.events[case.events["evidence"].notna()].sort_values("evidence")
evidence.set_index("evidence")[["time", "role", "signature", "node", "rank", "file", "line", "text"]]

# %% [markdown]
# ## The culprit's metrics
#
# The line is the GPU that is blamed, the band its peers.

# %%
from bokeh.layouts import gridplot

from workbench.report.timeline import seconds

gpu = culprit["gpu"] or {}
known = len(case.metrics) and culprit["node"]
figures = case.metrics.fleet.panels(culprit["node"], gpu.get("index"), around=seconds(verdict["time"])) if known else []
if not figures:
    print("no metrics came with it, or no node is blamed")
gridplot(figures, ncols=3, width=400, height=170, toolbar_location=None) if figures else None

# %% [markdown]
# ## Lines in context

# %%
for event in verdict["evidence"][:2]:
    print(f"\n{event['role']}: {event['signature']}  {event['file']}:{event['line']}")
    for row in case.logs.window(event["file"], event["line"] or 1, before=2, after=3).lines:
        print(f"{'→' if row.no == event['line'] else ' '} {row.no:6}  {row.text[:150]}")

# %% [markdown]
# ## What speaks against it, and what was ruled out

# %%
for event in verdict["counter_evidence"]:
    print(f"{event['signature']}  {event['file']}:{event['line']}  {event['text'][:120]}")
print(f"{len(verdict['counter_evidence']) or 'no'} observations speak against it")

# %%
rows = [
    {"class": row["class"], "confidence": row["confidence"], "why not": row["why_not"], "where": view.place(row)}
    for row in verdict["hypotheses"]
]
pd.DataFrame(rows, columns=["class", "confidence", "why not", "where"])

# %% [markdown]
# ## What could not be seen

# %%
pd.DataFrame(verdict["coverage"])

# %% [markdown]
# ## What it cost

# %%
why = case.impact.get("why", {})
impact = [{"what": key, "how much": value, "why not": why.get(key, "")} for key, value in case.impact.items() if key != "why"]
pd.DataFrame(impact).set_index("what")

# %% [markdown]
# ## Everything, linked
#
# Rank → GPU → metrics → log, with search. It is the dashboard's page.

# %%
from workbench.views.incident import IncidentView

IncidentView(case)

# %% [markdown]
# ## For the next shift

# %%
from workbench.report import handoff

print(handoff.text([handoff.handoff(verdict, job={"id": case.job.get("id"), "name": case.job.get("name")})]))
