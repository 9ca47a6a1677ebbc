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
# # Remediation plan
#
# What would be done about a verdict: the rung of the ladder, each step, what it takes away, what it costs, and what a guard refuses.
# **Nothing is done here.** On a site `workbench plan --save plan.json` makes the plan (it asks the scheduler for boots and running work),
# `plan_file` shows it, and `workbench apply plan.json --yes` does exactly that.

# %% tags=["parameters"]
# a name of `workbench examples`, a folder or archive, or inbox:ID
incident = "gpu-memory"
# instead of it: a job of the running site that workbench.toml describes
job = ""
# the window in which it is looked for: 6h (ago), or 2026-05-04T10:00Z
since = ""
until = ""
# a plan that was saved; then the incident is not needed
plan_file = ""
# the site's policy: what may be done without a person
policy_file = ""
# the fleet on which it would be done: demo, or live for the site that workbench.toml describes
source = "demo"
config = ""

# %%
import json
from pathlib import Path

import pandas as pd

from workbench import lab
from workbench.remediation.model import Plan

lab.start(views=False)

# %% [markdown]
# ## What is wrong

# %%
from workbench.remediation.troubles import of_verdict

case = lab.case(incident, job=job, since=since, until=until, config=config) if not plan_file else None
trouble = of_verdict(case.verdict) if case else None
pd.Series(trouble.to_dict(), name="trouble").to_frame() if trouble else "no node is to blame: the plan leaves all nodes alone"

# %% [markdown]
# ## The plan
#
# On the fleet that `source` names; the invented one has the nodes of the shipped incidents. The time is that of the failure, since old evidence
# calls for nothing.

# %%
from dataclasses import replace

from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Policy, load_policy

if plan_file:
    plan = Plan.from_dict(json.loads(Path(plan_file).read_text(encoding="utf-8")))
else:
    fleet = lab.fleet_of(lab.snapshot(source, config=config))
    now = (trouble.newest + 60.0) if trouble and trouble.newest else fleet.time
    nodes = dict(fleet.nodes)
    if trouble and trouble.node not in nodes:  # an incident of elsewhere: its node beside those of the fleet
        nodes[trouble.node] = replace(next(iter(nodes.values())), name=trouble.node, uid=trouble.node)
    policy = load_policy(policy_file) if policy_file else Policy()
    plan = make_plan([trouble] if trouble else [], replace(fleet, nodes=nodes, time=now), past=[], policy=policy)

# %%
from workbench.report.plan import FORMATS

print(FORMATS["table"](plan))

# %% [markdown]
# ## Steps
#
# In the order in which they are done. What cannot be taken back is marked.

# %%
steps = pd.DataFrame(
    [
        {
            "node": one.node,
            "rung": one.rung,
            "verb": one.verb,
            "waits for": one.waits,
            "cannot be undone": one.destructive,
            "undo": one.undo,
            "approval": one.approval,
            "deadline, s": one.deadline,
            "why": one.why,
        }
        for one in plan.actions
    ],
    columns=["node", "rung", "verb", "waits for", "cannot be undone", "undo", "approval", "deadline, s", "why"],
)
steps

# %% [markdown]
# ## What it takes away, and what waiting costs

# %%
pd.DataFrame(
    [
        {
            "node": one.node,
            "verb": one.verb,
            "work": len(one.blast.work),
            "jobs": ", ".join(one.blast.jobs),
            "ranks": one.blast.ranks,
            "GPU-hours lost": one.blast.gpu_hours,
            "GPU-hours now": one.cost.now,
            "GPU-hours for each hour of waiting": one.cost.wait,
        }
        for one in plan.actions
    ]
)

# %% [markdown]
# ## What is refused, and until when

# %%
rows = [{"guard": one.guard, "node": one.node, "rung": one.rung, "why": one.why, "until": one.until} for one in plan.refused]
pd.DataFrame(rows, columns=["guard", "node", "rung", "why", "until"])

# %% [markdown]
# ## The ladder
#
# What comes next when this does not help.

# %%
from workbench.remediation.words import RUNGS

pd.DataFrame(
    {"rung": RUNGS, "height": range(len(RUNGS)), "planned": [sum(one.rung == rung for one in plan.actions) for rung in RUNGS]}
)

# %% [markdown]
# ## The plan as a document
#
# A person approves exactly this: its seal breaks when a word of it changes.

# %%
document = plan.to_dict()
{key: document[key] for key in ("schema", "id", "seal", "policy", "breaker", "notes")}
