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
# # Postmortem
#
# The facts of an incident in one place, and as a document. What nobody could tell from the evidence stays *to be filled*: fill it in below,
# or in the file. Nobody is named, secrets are blanked.

# %% tags=["parameters"]
# a name of `workbench examples`, a folder or archive, or inbox:ID
incident = "nvlink-switch"
# instead of it: a job of the running site that workbench.toml describes
job = ""
# the window in which it is looked for: 6h (ago), or 2026-05-04T10:00Z
since = ""
until = ""
# google, atlassian, pagerduty, or the path of your own site.md.j2
template = "google"
# price of a GPU-hour, for all products; the site's prices (report.prices) without it
price_of_gpu_hour = ""
currency = ""
# the remediation journal, when there is one
journal = ""
# write the document there as well
out = ""
config = ""

# %%
import pandas as pd
from IPython.display import HTML

from workbench import lab

lab.start()
case = lab.case(incident, job=job, since=since, until=until, config=config)
prices = {"default": str(price_of_gpu_hour), "currency": currency} if price_of_gpu_hour else None
facts = lab.facts(case, prices=prices, journal=journal, config=config)
facts.title

# %% [markdown]
# ## Impact

# %%
pd.DataFrame(facts.impact)[["what", "value", "note"]].fillna("to be filled")

# %% [markdown]
# ## Detection

# %%
pd.DataFrame(facts.detection)[["what", "value", "note", "ref"]].fillna("")

# %% [markdown]
# ## Timeline
#
# UTC; each line with a file and a line to look at.

# %%
pd.DataFrame(facts.timeline)[["time", "kind", "what", "where", "ref"]].fillna("")

# %%
case.events.fleet.timeline()

# %% [markdown]
# ## What was ruled out, and what could not be seen

# %%
pd.DataFrame(facts.ruled_out, columns=["failure", "meaning", "confidence", "where", "why"]).fillna("")

# %%
pd.DataFrame(facts.unseen, columns=["source", "status", "detail", "blind"]).fillna("")

# %% [markdown]
# ## Suggestions
#
# Strike out what does not help; give the rest an owner and a day.

# %%
pd.DataFrame(facts.actions, columns=["action", "type", "owner", "due"]).fillna("to be filled")

# %% [markdown]
# ## The document

# %%
from workbench.report.markdown_html import to_html
from workbench.report.postmortem import markdown

text = markdown(facts, template)
# our own renderer: no text of a log becomes a link, a picture or a script
HTML(to_html(text))

# %% [markdown]
# ## Take it away

# %%
from pathlib import Path

if out:
    Path(out).write_text(text, encoding="utf-8")
print(f"{len(text.splitlines())} lines{f', written to {out}' if out else ''}; to be filled: {text.count('to be filled')} places")

# %% [markdown]
# As a file: `workbench postmortem INCIDENT --out postmortem.md` (or `.html`, `.ipynb`). For the next shift: `workbench handoff INCIDENT`.
