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
# # Start here
#
# The whole way on an incident that ships with the package, offline: from its evidence to a verdict, and back to the line that decided.
# Run all cells; then change `incident`.

# %% tags=["parameters"]
# a name of the list below, a folder or archive of your own, or inbox:ID
incident = "nvlink-switch"

# %%
import workbench
from workbench import lab

lab.start()

# %% [markdown]
# ## What ships with the package

# %%
import pandas as pd

pd.Series(dict(workbench.examples()), name="what happened").to_frame()

# %% [markdown]
# ## One verdict
#
# What failed first, where, why, who is only a victim, what to do. What could not be seen is part of the answer.

# %%
case = lab.case(incident)
case.verdict["summary"]

# %%
from workbench.views.incident import IncidentView

view = IncidentView(case)
view

# %% [markdown]
# The parts of this view are linked: a click on a rank leads to its GPU, its metrics and its log. In an exported page it stands still.
#
# ## The evidence as frames
#
# Everything that is shown is a pandas frame. All times are UTC; missing is `NA`, never an invented zero. `.fleet` answers the usual questions.

# %%
case.ranks.fleet.count()

# %%
case.events[case.events["evidence"].notna()][["time", "role", "signature", "node", "rank", "file", "line", "text"]].head(8)

# %%
case.ranks.fleet.worst(5)[["rank", "node", "state", "by", "first_error", "file"]]

# %% [markdown]
# ## Back to the line

# %%
first = case.verdict["evidence"][0] if case.verdict["evidence"] else None
if first:
    window = case.logs.window(first["file"], first["line"] or 1, before=2, after=2)
    for row in window.lines:
        print(f"{'→' if row.no == first['line'] else ' '} {row.no:6}  {row.text[:160]}")

# %% [markdown]
# ## What could not be seen

# %%
pd.DataFrame(case.verdict["coverage"])

# %% [markdown]
# ## Where to go on
#
# | notebook | answers |
# |---|---|
# | `triage` | one incident in depth, also of a running site |
# | `fleet_health` | which nodes and GPUs are not well, and whom to look at first |
# | `node_health` | what the checks say of one node |
# | `remediation_plan` | what would be done about it, and what is refused |
# | `postmortem` | the facts, filled in as far as they are known |
#
# Each has one cell of parameters. `workbench notebook triage --param incident=PATH -o out.html` runs one without a browser.
