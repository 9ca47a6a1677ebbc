"""A path becomes a case once; the cache is used only while the evidence is what it was."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import pytest

from workbench.casefile import open_path, opening
from workbench.errors import SourceUnavailable
from workbench.shipped import example_path

XID = "2026-05-04T11:02:03.120000+00:00 gpu-1 kernel: [12345.6] NVRM: Xid (PCI:0000:4b:00): {code}, pid=1, name=python, {text}\n"
LOST = XID.format(code=79, text="GPU has fallen off the bus.")


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """A folder with one kernel log, an hour old."""
    place = tmp_path / "evidence"
    (place / "kernel").mkdir(parents=True)
    (place / "kernel" / "gpu-1.log").write_text(LOST)
    _age(place)
    return place


def _age(place: Path) -> None:
    then = time.time() - 3600
    for path in [place, *place.rglob("*")]:
        os.utime(path, (then, then))


@pytest.fixture
def triaged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were triaged, rather than opened from the cache."""
    import workbench.incident

    seen: list[str] = []
    load = workbench.incident.load

    def noted(path: str, **more: object) -> object:
        seen.append(path)
        return load(path, **more)

    monkeypatch.setattr(workbench.incident, "load", noted)
    return seen


def test_the_same_evidence_is_triaged_once(evidence, tmp_path, triaged):
    first = open_path(evidence, cache=tmp_path / "cache")
    second = open_path(evidence, cache=tmp_path / "cache")
    assert len(triaged) == 1
    assert (first.id, first.verdict) == (second.id, second.verdict)
    assert second.logs.window("kernel/gpu-1.log", 1).lines[0].evidence == 0


@pytest.mark.parametrize("change", ["content", "added", "removed", "renamed"])
def test_a_stale_case_is_never_used(change, evidence, tmp_path, triaged):
    open_path(evidence, cache=tmp_path / "cache")
    log = evidence / "kernel" / "gpu-1.log"
    if change == "content":  # as long as before, with the time that it had
        log.write_text(LOST.replace("79,", "48,"))
    elif change == "added":
        (evidence / "kernel" / "gpu-2.log").write_text(LOST)
    elif change == "removed":
        log.unlink()
    else:
        log.rename(evidence / "kernel" / "gpu-9.log")
    _age(evidence)
    case = open_path(evidence, cache=tmp_path / "cache")
    assert len(triaged) == 2
    assert change != "content" or case.verdict["class"] != "hardware/gpu-lost"


def test_evidence_that_changed_a_moment_ago_is_not_kept(evidence, tmp_path, triaged):
    (evidence / "kernel" / "gpu-1.log").write_text(LOST)
    open_path(evidence, cache=tmp_path / "cache")
    open_path(evidence, cache=tmp_path / "cache")
    assert len(triaged) == 2


def test_evidence_that_changes_while_it_is_read_is_not_kept(evidence, tmp_path, monkeypatch):
    import workbench.incident

    load = workbench.incident.load

    def meanwhile(path: str) -> object:
        incident = load(path)
        (evidence / "kernel" / "gpu-2.log").write_text(LOST)
        _age(evidence)
        return incident

    monkeypatch.setattr(workbench.incident, "load", meanwhile)
    open_path(evidence, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_another_catalog_is_another_case(evidence, tmp_path, triaged, monkeypatch):
    open_path(evidence, cache=tmp_path / "cache")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "signatures_site.csv").write_text("")
    monkeypatch.setenv("WORKBENCH_CATALOG", str(tmp_path / "site"))
    assert opening._key(str(evidence))[0] not in {path.name for path in (tmp_path / "cache").iterdir()}


def test_a_damaged_cache_is_made_again(evidence, tmp_path, triaged):
    open_path(evidence, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    (kept / "frames.zip").write_bytes(b"PK")
    case = open_path(evidence, cache=tmp_path / "cache")
    assert case.verdict["class"] == "hardware/gpu-lost"
    assert len(triaged) == 2
    open_path(evidence, cache=tmp_path / "cache")
    assert len(triaged) == 2


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(evidence, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert open_path(evidence, cache=tmp_path / "cache").verdict["class"] == "hardware/gpu-lost"


def test_the_cache_is_below_the_users_cache_folder(evidence, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    open_path(evidence)
    assert len(list((tmp_path / "xdg" / "workbench" / "cases").iterdir())) == 1


def test_the_cases_that_nobody_opened_for_longest_go_first(evidence, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_KEPT", 2)
    for number in range(3):
        (evidence / "kernel" / "gpu-1.log").write_text(LOST * (number + 1))
        _age(evidence)
        open_path(evidence, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert (tmp_path / "cache" / opening._key(str(evidence))[0]).exists()


def test_a_saved_case_is_a_path_too(evidence, tmp_path):
    from workbench.casefile.store import save

    case = open_path(evidence, cache=tmp_path / "cache")
    save(case, tmp_path / "saved")
    assert open_path(tmp_path / "saved").id == case.id


def test_the_same_evidence_has_the_same_id_wherever_and_however_packed_it_lies(tmp_path):
    with tarfile.open(example_path("gpu-memory")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    packed = open_path(example_path("gpu-memory"), cache=tmp_path / "cache")
    assert open_path(tmp_path / "unpacked", cache=tmp_path / "cache").id == packed.id


def test_a_path_that_is_not_there_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(SourceUnavailable, match="no such file"):
        open_path(tmp_path / "nothing")
