"""A folder that was packed is read as the folder is."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench
from workbench.errors import ConfigError
from workbench.report.verdict_json import to_json
from workbench.sources.bundle import SUFFIXES, pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "incident" / "logs").mkdir(parents=True)
    (tmp_path / "incident" / "logs" / "rank-0.log").write_text(
        "2026-05-04 10:00:05,000 - trainer - INFO - step 1 loss 2.0\n[rank0]: Traceback (most recent call last):\n"
        "[rank0]:   File \"/w/train.py\", line 7, in step\n[rank0]: KeyError: 'labels'\n",
        encoding="utf-8",
    )
    (tmp_path / "incident" / "logs" / "torn.log.partial").write_text("half", encoding="utf-8")
    return tmp_path / "incident"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_verdict_is_the_same(folder: Path, tmp_path: Path, suffix: str) -> None:
    out = pack(folder, tmp_path / f"incident{suffix}")
    packed, plain = (to_json(workbench.load(path).triage()) for path in (out, folder))
    for document in (packed, plain):
        for row in document["evidence"]:
            row["file"] = row["file"].rsplit("!", 1)[-1]
    assert packed["class"] == "user/exception"
    assert packed["evidence"] == plain["evidence"]
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_name_without_a_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tells no kind of archive"):
        pack(folder, tmp_path / "incident.rar")
