"""Turn the folder of a run into what people and programs read of it: its attempts, its decisions, what could not be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.report.text import clean, clock, duration, iso, shorten
from workbench.training.after import decisions_of
from workbench.training.attempts import RunLedger, describe
from workbench.training.lines import LinesError

__all__ = ["SCHEMA", "page", "shown"]

SCHEMA = "workbench.run/1"


def shown(folder: Path) -> dict[str, Any]:
    """
    Return a run as plain values of schema ``workbench.run/1``: ``attempts`` (rows of `workbench.training.attempts.describe`), ``decisions``,
    ``running`` (numbers of attempts that are not in the ledger: they run, ended well at once, or lost their supervisor), ``problems``.
    """
    problems: list[str] = []
    rows: list[dict[str, Any]] = []
    made: list[dict[str, Any]] = []
    ledger = RunLedger(folder / "attempts.jsonl")
    try:
        rows = describe(ledger.attempts())
        problems += ledger.problems
        made = decisions_of(folder)
    except LinesError as error:
        problems.append(str(error))
    known = {row["attempt"] for row in rows}
    for path in sorted(folder.glob("attempt-*.json"), key=lambda one: len(one.name)):
        number = path.name.removeprefix("attempt-").removesuffix(".json")
        if number.isdigit() and int(number) not in known:
            rows.append(_unrecorded(int(number), path, problems))
    rows.sort(key=lambda row: int(row["attempt"]))
    return {"schema": SCHEMA, "run": str(folder), "attempts": rows, "decisions": made, "problems": problems}


def _unrecorded(number: int, path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        about = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        problems.append(f"{path.name}: {error}")
        about = {}
    began, ended = about.get("started"), about.get("ended")
    last = about.get("last_step")
    return {
        "attempt": number,
        "started": began,
        "ended": ended,
        "seconds": None if began is None or ended is None else round(ended - began, 3),
        "state": about.get("state") or "running",
        "exit": about.get("code"),
        "class": None,
        "confidence": None,
        "blamed": None,
        "steps": None if last is None else f"{about.get('first_step')}-{last}",
        "progress": None,
        "checkpoint": None,
        "excluded": " ".join(about.get("excluded") or ()),
        "summary": "" if about.get("state") else "it runs, or whoever ran it was killed",
    }


def page(found: dict[str, Any]) -> str:
    """Return it as text for a terminal."""
    lines = [f"run {clean(found['run'])}: {len(found['attempts'])} attempts, {len(found['decisions'])} decisions", ""]
    for row in found["attempts"]:
        took = duration(row["seconds"]) if row["seconds"] is not None else "?"
        named = row["confidence"] is not None and row["class"] not in ("unknown", "none")
        sure = f" {row['confidence']:.0%}" if named else ""
        facts = [
            f"exit {row['exit']}" if row["exit"] is not None else "",
            f"{row['class']}{sure}" if row["class"] else "",
            f"at fault: {row['blamed']}" if row["blamed"] else "",
            f"steps {row['steps']}" if row["steps"] else "",
            f"checkpoint of step {row['checkpoint']}" if row["checkpoint"] is not None else "",
            f"without {row['excluded']}" if row["excluded"] else "",
        ]
        begun = clock(iso(row["started"])) if row["started"] is not None else "?"
        lines.append(clean(f"attempt {row['attempt']}  {begun}  {took}  {row['state']}  " + "; ".join(filter(None, facts))))
        if row["summary"]:
            lines.append("    " + shorten(clean(str(row["summary"])), 200))
        for one in found["decisions"]:
            if one.get("attempt") == row["attempt"]:
                budget = ", ".join(f"{name} {used[0]} of {used[1]}" for name, used in dict(one.get("budget") or {}).items())
                lines.append("    → " + clean(f"{one.get('action')}: {one.get('reason')}" + (f" [{budget}]" if budget else "")))
                lines += [f"      {one['who']}: {shorten(clean(str(step)), 180)}" for step in one.get("todo") or ()]
    lines += ["", *(f"! {clean(problem)}" for problem in found["problems"])] if found["problems"] else []
    return "\n".join(lines) + "\n"
