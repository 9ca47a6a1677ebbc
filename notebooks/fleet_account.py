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
# # The fleet's account
#
# Whether objectives were kept, where GPU time went, what failed and why, which nodes fail more often than chance, and what all of it cost, over
# weeks. `demo` is a simulated fleet of 64 nodes; any other text is the path of a ledger, and empty the one of the settings (`fleet.ledger`).
# What nobody told is absent, never zero.

# %% tags=["parameters"]
# demo, the path of a ledger, or empty for that of the settings
ledger = "demo"
# 8w: the last eight weeks; or by their days, 2026-01-05/2026-03-02
window = "8w"
# only this cluster; all without it
cluster = ""
# team, pool, sku or size
by = "team"
# scorecard.json of a game day (workbench gameday), to show it, too
scorecard = ""

# %%
import pandas as pd

from workbench import lab
from workbench.plots import account as plots

lab.start()
account = lab.account(ledger, window=window, cluster=cluster)
span = [pd.Timestamp(one, unit="s", tz="UTC").strftime("%Y-%m-%d %H:%M") for one in (account.since, account.until)]
f"{'simulated: nothing of it is real. ' if ledger == 'demo' else ''}{span[0]} to {span[1]} UTC, {len(account.weeks)} weeks"

# %% [markdown]
# ## Objectives
#
# Each figure with its numerator, denominator and bounds, and what each cause took of it.

# %%
from workbench.fleet.figures import figures_frame

columns = ["name", "value", "low", "high", "numerator", "denominator", "unit"]
figures_frame(account.whole)[columns].round(4)

# %%
figures_frame(account.objectives((by,), causes=False))[[by, *columns]].round(4)

# %%
plots.objective_weeks([one for one in account.weekly if one.name == "job success"])

# %%
plots.objective_weeks([one for one in account.weekly if one.name == "availability"], target=0.97)

# %% [markdown]
# ## Where allocated GPU time went
#
# All parts add up to 100 % exactly.

# %%
(fall,) = account.falls("allocated")
plots.waterfall(fall)

# %%
pd.DataFrame(fall.rows())[["kind", "meaning", "amount", "unit", "share"]].round(4)

# %% [markdown]
# ## What failed

# %%
plots.failures_by_week(account.failures_by_week)

# %%
shown = ["ended", "job", "attempt", "team", "cause", "cls", "node", "gpus", "idle_hours", "lost_hours", "incident"]
account.failed[shown].head(15)

# %% [markdown]
# ## Who fails more often than chance
#
# By the thirteen weeks that end with the window. Who is not listed is not cleared.

# %%
plots.lemons(account.lemons)

# %%
listed = account.lemons.units[account.lemons.units["listed"]]
listed[["unit", "kind", "hours", "blames", "expected", "times", "chance", "why"]]

# %%
f"--exclude={account.lemons.exclude}" if account.lemons.exclude else "nothing to exclude"

# %% [markdown]
# ## What it cost, and what this tool is worth
#
# Every number that is not measured is an assumption with a range; `workbench fleet cost --pays --assume FILE` takes your own.

# %%
account.costs.groupby(["cause", "currency"])[["idle_hours", "lost_hours", "people_hours", "cost"]].sum(min_count=1).round(1)

# %%
plots.tornado(account.pays, currency=account.price.currency if account.price else "")

# %% [markdown]
# ## A game day

# %%
import json
from pathlib import Path

from workbench.plots.score_card import score_card

score_card(json.loads(Path(scorecard).read_text(encoding="utf-8")) if scorecard else None)

# %% [markdown]
# ## Everything, linked
#
# The dashboard's page.

# %%
lab.account_view(ledger, window=window, cluster=cluster, by=by)
