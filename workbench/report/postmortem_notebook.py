"""Turn a postmortem into a notebook that runs anywhere: facts as a dictionary, sections as text to write on in, tables to compute with."""

from __future__ import annotations

import json
import pprint
from collections.abc import Mapping
from typing import Any

from workbench.report.facts import Facts
from workbench.report.postmortem import markdown
from workbench.report.text import clean

__all__ = ["notebook"]

_FACTS = """# All that the text below says, as data; `None` is what nobody knows. Written by workbench, needs nothing but Python and pandas.
facts = {facts}
"""
_TIMELINE = """import pandas as pd

timeline = pd.DataFrame(facts["timeline"])
timeline["time"] = pd.to_datetime(timeline["time"].str.removesuffix(" UTC"), utc=True)
timeline.set_index("time")[["kind", "what", "where", "ref"]]
"""
_PARAMETERS = """# What the site knows and the evidence does not
price_of_gpu_hour = None  # such as 2.50
currency = ""
gpu_hours_lost = None  # of work since the last checkpoint, over all GPUs of the job
"""
_COST = """known = {row["what"]: row["number"] for row in facts["impact"] if row["number"] is not None}
if gpu_hours_lost is not None:
    known["GPU-hours of work lost since the last checkpoint"] = gpu_hours_lost
hours = sum(known.values())
if price_of_gpu_hour is None:
    print(f"{hours:.3g} GPU-hours are known; set price_of_gpu_hour above for what they cost")
else:
    print(f"{hours:.3g} GPU-hours, {hours * price_of_gpu_hour:,.2f} {currency}")
"""


def notebook(facts: Facts, template: str = "google") -> str:
    """
    Return a postmortem as a notebook (nbformat 4.5) without outputs.

    Parameters
    ----------
    facts, template
        As of `workbench.report.postmortem.markdown`.
    """
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str, *tags: str) -> None:
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{len(cells):02d}",
            "metadata": {"tags": list(tags)} if tags else {},
        }
        cell["source"] = text.rstrip("\n").splitlines(keepends=True)
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))

    sections = _sections(markdown(facts, template))
    add("markdown", sections[0])
    # repr of a text is itself again for Python, whatever was in a log
    add("code", _FACTS.format(facts=_ascii(pprint.pformat(_clean(facts.to_dict()), width=118, sort_dicts=False))), "facts")
    for section in sections[1:]:
        add("markdown", section)
        title = section.split("\n", 1)[0].lstrip("# ").lower()
        if title == "timeline" and facts.timeline:
            add("code", _TIMELINE)
        elif title == "impact":
            add("code", _PARAMETERS, "parameters")
            add("code", _COST)
    document = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "title": facts.title,
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _clean(value: Any) -> Any:
    """Write control characters and torn code points out: pandas takes no text that is no Unicode."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")


def _sections(text: str) -> list[str]:
    """Return the text before the first heading of the second level, then each section; a fence may hold lines that look like one."""
    found: list[list[str]] = [[]]
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        if line.startswith("## ") and not fenced:
            found.append([])
        found[-1].append(line)
    return ["\n".join(lines).strip() for lines in found if "".join(lines).strip()]
