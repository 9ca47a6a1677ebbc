"""
Folders of evidence, each of one trouble or of none: logs in the stamps of every tool, outputs of drivers 470 to 580.

`tests/data/health/expected.csv` says of each what is right: classes, actions, the GPU's address and the node, several between bars; a row
without a class is of a healthy node. A new folder with a row is a new test.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from workbench.health.folder import check_folder

DATA = Path(__file__).resolve().parents[1] / "data" / "health"
with (DATA / "expected.csv").open(encoding="utf-8", newline="") as _file:
    ROWS = {row["name"]: row for row in csv.DictReader(_file)}
HEALTHY = sorted(name for name, row in ROWS.items() if not row["class"])
TROUBLED = sorted(set(ROWS) - set(HEALTHY))


def test_every_folder_has_its_row() -> None:
    assert {path.name for path in DATA.iterdir() if path.is_dir()} == set(ROWS)


@pytest.mark.parametrize("name", HEALTHY)
def test_no_node_is_condemned_for_nothing(name: str) -> None:
    findings = check_folder(DATA / name)
    assert findings
    assert [(one.code, one.summary) for one in findings if one.status == "critical" or one.code == "check-failed"] == []


@pytest.mark.parametrize("name", TROUBLED)
def test_the_trouble_is_found_where_it_is_and_nothing_else_is_blamed(name: str) -> None:
    row = ROWS[name]
    findings = check_folder(DATA / name)
    bad = [one for one in findings if one.status in ("critical", "warning")]
    right = [one for one in bad if one.cls in row["class"].split("|") and one.action in row["action"].split("|")]
    assert right
    assert not [one.summary for one in findings if one.code == "check-failed"]
    if row["node"]:
        assert row["node"] in {one.node for one in right}
    if row["gpu"]:
        critical = [one for one in bad if one.status == "critical" and one.gpu is not None and one.gpu.pci]
        assert [one for one in right if one.gpu is not None and str(one.gpu.pci).startswith(row["gpu"])]
        assert {one.gpu.pci for one in critical if one.gpu} <= {one.gpu.pci for one in right if one.gpu}
