"""Turn the name of one of our JSON documents into its schema (JSON Schema 2020-12), as it is published beside this file."""

from __future__ import annotations

import difflib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from workbench.errors import ParseError

__all__ = ["SCHEMAS", "schema", "text"]

# name → which command prints such a document
SCHEMAS: dict[str, str] = {
    "verdict": "workbench triage -o json",
    "finding": "one finding of workbench check -o json",
    "findings": "workbench check -o json",
    "plan": "workbench plan -o json, --save",
    "journal": "one line of the remediation journal; workbench journal -o json",
    "attempt": "one line of attempts.jsonl of a workbench run",
    "postmortem": "workbench postmortem -o json",
    "handoff": "workbench handoff -o json",
    "fault-report": "workbench ticket -o json",
}


def text(name: str) -> str:
    """
    Return a schema as it is published.

    Raises
    ------
    ParseError
        There is none of that name.
    """
    if name not in SCHEMAS:
        near = difflib.get_close_matches(name, SCHEMAS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(SCHEMAS)}"
        raise ParseError(f"there is no schema {name!r}", hint=hint)
    return (files("workbench.report.schemas") / f"{name}.json").read_text("utf-8")


@lru_cache(maxsize=16)
def schema(name: str) -> dict[str, Any]:
    """Return a schema as a dictionary; raises as `text` does."""
    made: dict[str, Any] = json.loads(text(name))
    return made
