"""
`workbench check` and `workbench triage` say the same of the same line: one class and one action, or a reason why not.

`tests/data/health/check_and_triage.csv` lists the differences that are meant. A row that is no difference any more fails, too.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import workbench
from workbench.catalog import Signature, signatures, table
from workbench.catalog.findings import findings_table
from workbench.catalog.xid_facts import facts_of
from workbench.catalog.xid_rules import XidContext, rule_for
from workbench.health.folder import check_folder
from workbench.model import Event, Gpu

HERE = Path(__file__).resolve().parents[1]
CASES = HERE.parent / "benchmarks" / "attribution" / "cases"
with (HERE / "data" / "health" / "check_and_triage.csv").open(encoding="utf-8", newline="") as _file:
    MEANT = {row["code"]: (row["check"], row["triage"]) for row in csv.DictReader(_file)}
USUAL = {row["class"]: row["remediation"] for row in table("classes")}


def _triage(row: Signature) -> str:
    return f"{row.cls} {row.remediation or USUAL.get(row.cls, '')}"


def _findings() -> dict[str, tuple[str, str]]:
    out = {}
    for code, row in findings_table().items():
        mine = signatures().get(code.removeprefix("host-"))
        # context is never what a verdict stands on, so nobody takes its advice
        if mine is None or mine.role in ("context", "counter") or row.status not in ("critical", "warning"):
            continue
        if row.action == "none" and row.cls == mine.cls:
            continue  # worth a warning, and nothing to do for a node by itself
        out[code] = (f"{row.cls} {row.action}", _triage(mine))
    return out


def _xids() -> dict[str, tuple[str, str]]:
    out = {}
    for row in table("xid"):
        code = int(row["code"])
        mine = signatures().get(f"xid-{code}")
        event = Event(f"xid-{code}", "kernel", gpu=Gpu(pci="0000:3b:00.0"), code=code)
        rule = rule_for(XidContext(code, facts=facts_of(event)))
        if mine is None or mine.role == "context" or rule.action == "none" or rule.status not in ("critical", "warning"):
            continue
        out[f"xid-{code}"] = (f"{rule.cls or mine.cls} {rule.action}", _triage(mine))
    return out


def test_a_line_has_one_class_and_one_action_or_a_reason_for_two() -> None:
    both = _findings() | _xids()
    assert len(both) > 100
    assert {code: pair for code, pair in both.items() if pair[0] != pair[1]} == MEANT


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir() if (path / "truth.json").is_file()))
def test_of_a_case_both_say_the_same(name: str) -> None:
    """Where triage blames a node's hardware or driver by a line that a check looks at, too, a finding has the same class and action."""
    verdict = workbench.load(CASES / name / "input").triage().to_dict()
    if not str(verdict["class"]).startswith(("hardware/", "driver/")) or not verdict["evidence"]:
        return
    bad = [one for one in check_folder(CASES / name / "input") if one.status in ("critical", "warning")]
    mine = [one for one in bad if one.cls == verdict["class"] and one.node == (verdict["culprit"]["node"] or "")]
    assert not mine or verdict["remediation"] in {one.action for one in mine}, json.dumps(verdict["evidence"])[:500]
