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
# # Node health
#
# What the checks say of a node: from kept evidence (kernel logs, outputs of `nvidia-smi` and `dcgmi`), or of this machine. A check that
# could not look is `unknown`, and a required one that is unknown makes the node unfit.

# %% tags=["parameters"]
# a folder, an archive or a name of `workbench examples`; empty: this machine, by the checks that only look
kept = "gpu-memory"
# only this node; all without it
node = ""
# the fleet of the last page: demo, or live for the site that workbench.toml describes
source = "demo"
config = ""

# %%
import pandas as pd

from workbench import lab

lab.start()
findings = lab.findings(kept, node=node, config=config)
f"{len(findings):,} findings of {findings['node'].nunique()} nodes"

# %% [markdown]
# ## Which nodes are fit

# %%
findings.fleet.count(by="node")

# %% [markdown]
# ## What is wrong
#
# The worst first. A log alone leaves most checks without what they need; those are left out here and counted below.

# %%
unread = findings["code"].astype("string").str.startswith("unread").fillna(False)
wrong = findings[~unread].fleet.unwell()
wrong[["node", "gpu_index", "part", "status", "check", "summary", "class", "action", "required", "since", "hint"]]

# %%
for row in wrong.head(3).itertuples():
    print(f"\n{row.node} {row.check}: {row.summary}")
    for line in row.evidence[:3]:
        print(f"    {line[:150]}")

# %% [markdown]
# ## What could not be checked

# %%
findings[unread].groupby("check", as_index=False).agg(nodes=("node", "nunique"), why=("summary", "first"), hint=("hint", "first"))

# %% [markdown]
# ## Checks side by side

# %%
wrong.pivot_table(index="check", columns="node", values="status", aggfunc="first").fillna("")

# %% [markdown]
# ## What the actions mean

# %%
from workbench.remediation.words import VERBS

pd.Series(VERBS, name="what it is").to_frame()

# %% [markdown]
# ## A node, as the dashboard shows it
#
# Its GPUs, conditions, history and last hour: of the node named above where the fleet has it, else of the worst one there is.

# %%
from workbench.views.node import NodeView

fleet = lab.snapshot(source, config=config, gpus=128)
shown = node if node in set(fleet.nodes["node"]) else next(iter(fleet.nodes.fleet.worst(1)["node"]), node)
page = NodeView(lab.still(lab.snapshot(source, config=config, gpus=128, node=shown)))
page.node = shown
page
