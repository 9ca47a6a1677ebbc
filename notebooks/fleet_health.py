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
# # Fleet health
#
# Which nodes and GPUs are not well, who says so, and whom to look at first. `demo` is an invented fleet; `live` asks the site that
# `workbench.toml` describes. What a source did not tell is `unknown`, never healthy.

# %% tags=["parameters"]
# demo or live
source = "demo"
config = ""
# size of the demo
gpus = 1024
# only this pool; all without it
pool = ""

# %%
import pandas as pd

from workbench import lab

lab.start()
fleet = lab.snapshot(source, config=config, gpus=gpus)
nodes = fleet.nodes[fleet.nodes["pool"].eq(pool)] if pool else fleet.nodes
of_pool = set(nodes["node"])
cards = fleet.gpus[fleet.gpus["node"].isin(of_pool)]
f"{fleet.name}: {len(nodes):,} nodes, {len(cards):,} GPUs, as of {pd.Timestamp(fleet.time, unit='s', tz='UTC'):%Y-%m-%d %H:%M} UTC"

# %% [markdown]
# ## Who answered

# %%
pd.DataFrame([{"source": one.source, "status": one.status, "detail": one.detail, "hint": one.hint} for one in fleet.heard])

# %% [markdown]
# ## How well

# %%
cards.fleet.count(by="pool")

# %%
nodes.fleet.count(by="sku")

# %% [markdown]
# ## The map
#
# One cell a GPU, nodes in columns. Thousands are pooled to the pixels there are; the worst of them is drawn.

# %%
cards.fleet.map()

# %% [markdown]
# ## Not well

# %%
nodes.fleet.unwell()[["node", "health", "why", "cause", "pool", "gpus_ready", "gpus", "job", "held_by", "since"]].head(20)

# %%
found = fleet.findings[fleet.findings["node"].isin(of_pool)]
found.fleet.unwell()[["node", "gpu_index", "status", "check", "message", "action", "since", "source"]].head(20)

# %% [markdown]
# ## Whom to look at first

# %%
fleet.suspects[fleet.suspects["node"].isin(of_pool)].fleet.worst(10)

# %% [markdown]
# ## Jobs on nodes that are not well

# %%
ill = set(nodes.fleet.unwell()["node"])
jobs = fleet.jobs.assign(ill=[sum(name in ill for name in names or ()) for names in fleet.jobs["node_names"]])
jobs[jobs["ill"] > 0].sort_values("ill", ascending=False)[["job", "namespace", "state", "nodes", "gpus", "ill", "start"]]

# %% [markdown]
# ## By cause

# %%
from workbench.plots.hypotheses import cause_counts

incidents = fleet.incidents if fleet.incidents is not None else []
cause_counts(incidents)

# %% [markdown]
# ## Everything, linked
#
# The dashboard's page: click a cell for its node, a count to filter.

# %%
from workbench.views.fleet import FleetView

FleetView(lab.still(fleet))
