"""
The matrix of breakage: every check × every way in which what it asks can be broken; never ok, never late, nothing left behind.

It is made from the registry: a new check is in it by itself. What the readings ask for is recorded, not listed.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests.health.breakage import FORMS, UNDYING, Asked, Node, left_behind, recording, without_rights
from workbench.config import SETTINGS as CONFIG
from workbench.health import Finding, checks, fitness, run, runner
from workbench.sources.contract import Deadline
from workbench.sources.node.readers import all_readers
from workbench.sources.node.world import Reader, Reading, Unread, Way

_SECONDS = 2.5
_LATE = 1.0  # seconds after the deadline at which a run must be over, whatever hangs


@dataclass
class Ended:
    """One run on a broken node: what was found, how long it took, what was asked, what was left behind and how much could not be ended."""

    findings: list[Finding]
    seconds: float
    asked: Asked
    left: list[str] = field(default_factory=list)
    stuck: int = 0

    def of(self, check: str) -> list[Finding]:
        return [one for one in self.findings if one.check == check]


def _settings() -> Mapping[str, Any]:
    """The healthy node's, and something for every switch that it does not know: a new check must not hide behind its switch."""
    kinds: dict[str, Any] = {"words": ["there"], "number": 1, "flag": True}
    known = {setting.key: setting for setting in CONFIG}
    switches = {one.switch for one in checks().values() if one.switch}
    return {key.removeprefix("health."): kinds.get(known[key].kind if key in known else "", "there") for key in sorted(switches)}


def _run(node: Node, form: str, only: list[str]) -> Ended:
    for key, value in _settings().items():
        node.world.settings.setdefault(key, value)  # type: ignore[attr-defined]

    def work() -> Ended:
        begun = time.monotonic()
        findings = run(only=only, world=node.world, seconds=_SECONDS)
        return Ended(findings, time.monotonic() - begun, node.asked)

    if form == UNDYING:
        node.asked.undying = set()
    try:
        ended = without_rights(work) if form == "permission denied" else work()
        if form == UNDYING:  # nobody can end them until they are let go
            ended.stuck = len(node.asked.undying or ())
            node.mend()
        ended.left = left_behind(node.token)
    finally:
        node.mend()
    return ended


def _everything(folder: Path, form: str, known: Asked, reader_too: bool) -> Ended:
    """Break everything until nothing is asked for that is not broken."""
    for attempt in range(4):
        node = Node(folder / f"{form}-{reader_too}-{attempt}")
        node.everything(form, known, reader_too=reader_too)
        ended = _run(node, form, sorted(checks()))
        shutil.rmtree(node.root, ignore_errors=True)
        if not known.add(ended.asked) and ended.seconds <= _SECONDS + _LATE:
            break
    return ended


@pytest.fixture(scope="module")
def escaped() -> Iterator[list[str]]:
    with recording() as found:
        yield found


@pytest.fixture(scope="module")
def healthy_run(escaped: list[str], tmp_path_factory: pytest.TempPathFactory) -> Ended:
    for _ in range(4):
        ended = _run(Node(tmp_path_factory.mktemp("healthy") / "node"), "", sorted(checks()))
        # a machine that is busy with other tests may need more than the seconds that all checks together have here
        if not any(finding.code == "unread-time-out" for finding in ended.findings):
            break
    return ended


@pytest.fixture(scope="module")
def strict(healthy_run: Ended, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Ended]:
    """Everything broken in every form, with the program that reads NVML broken itself, and with the library under it."""
    folder = tmp_path_factory.mktemp("strict")
    known = Asked()
    known.add(healthy_run.asked)
    for form in ("exit 1", "garbage"):  # what is asked next depends on what the last answer was
        _everything(folder / "first", form, known, False)
    cells = [(form, reader_too) for form in FORMS for reader_too in (False, True)]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(cells, pool.map(lambda cell: _everything(folder, cell[0], known, cell[1]), cells), strict=True))


def test_the_healthy_node_is_healthy(healthy_run: Ended) -> None:
    """Or the matrix would show nothing: what is never ok is no test of what must not be."""
    said = {one.id: {finding.status for finding in healthy_run.of(one.id)} for one in checks().values()}
    for check in ("driver", "gpu-count", "gpu-memory", "mounts", "xid"):
        assert said[check] == {"ok"}, healthy_run.of(check)
    bad = [finding for finding in healthy_run.findings if finding.status not in ("ok", "not-applicable")]
    assert not bad, bad
    assert not [finding for finding in healthy_run.findings if finding.code == "check-failed"]


def test_nothing_is_ok_when_all_its_evidence_is_broken(
    healthy_run: Ended, strict: dict[tuple[str, bool], Ended], capsys: pytest.CaptureFixture[str]
) -> None:
    there = {one.check for one in healthy_run.findings if one.status == "ok"}
    wrong, absent = [], []
    for (form, reader_too), ended in strict.items():
        for check in checks():
            statuses = {finding.status for finding in ended.of(check)}
            cell = f"{check} × {form}{' (and the reader itself)' if reader_too else ''}"
            if not statuses or "ok" in statuses:
                wrong.append(
                    f"{cell}: {[finding.summary for finding in ended.of(check) if finding.status == 'ok'][:2] or 'nothing'}"
                )
            elif statuses == {"not-applicable"} and check in there:
                absent.append(f"{cell}: {ended.of(check)[0].summary}")
    cells = len(strict) * len(checks())
    with capsys.disabled():
        share = 100 * (cells - len(wrong)) / cells
        print(f"\nbreakage: {len(checks())} checks × {len(strict)} breakages = {cells} cells, {share:.1f} % not ok")
        print("".join(f"  looks as if it were not there: {cell}\n" for cell in absent), end="")
        print(
            f"  never ok on the healthy node of the tests, so tested less: {', '.join(sorted(set(checks()) - there)) or 'none'}"
        )
    assert not wrong, "\n".join(wrong)
    # only where all is missing may hardware look as if it had never been there
    assert [cell for cell in absent if "× missing" not in cell] == []


def test_a_node_of_which_all_is_broken_is_unfit(strict: dict[tuple[str, bool], Ended]) -> None:
    fit = {cell: fitness(ended.findings) for cell, ended in strict.items()}
    assert set(fit.values()) <= {"unknown", "critical"}, fit


def test_no_judge_stumbles_over_broken_evidence(strict: dict[tuple[str, bool], Ended]) -> None:
    stumbled = {
        f"{one.check}: {one.summary}" for ended in strict.values() for one in ended.findings if one.code == "check-failed"
    }
    assert stumbled == set()


def test_every_run_ends_in_time(strict: dict[tuple[str, bool], Ended]) -> None:
    late = {cell: round(ended.seconds, 2) for cell, ended in strict.items() if ended.seconds > _SECONDS + _LATE}
    assert late == {}


def test_what_no_signal_ends_is_left_and_said(strict: dict[tuple[str, bool], Ended]) -> None:
    """Or the cells of that form would be those of any other hang."""
    for (form, _), ended in strict.items():
        said = [one for one in ended.findings if "SIGKILL did not end it" in f"{one.summary} {one.tried}"]
        assert bool(said) == (form == UNDYING), form
        assert bool(ended.stuck) == (form == UNDYING), form


def test_no_process_is_left_behind(strict: dict[tuple[str, bool], Ended]) -> None:
    assert {cell: ended.left for cell, ended in strict.items() if ended.left} == {}


def test_no_program_is_looked_for_outside_of_the_node(strict: dict[tuple[str, bool], Ended], escaped: list[str]) -> None:
    """A reading that gives no environment to its programs reads the machine that runs the test: so nothing is known of it when broken."""
    assert strict
    assert escaped == []


def test_programs_are_run_by_the_one_door_that_has_a_deadline() -> None:
    root = Path(workbench.__file__).parent
    for file in (*root.glob("health/**/*.py"), *root.glob("sources/node/**/*.py")):
        found = re.search(r"^\s*(?:import subprocess|from subprocess|.*\bos\.(?:system|popen|spawn))", file.read_text(), re.M)
        assert not found, f"{file.name}: {found[0]}"


# ---- one way at a time: ok only by another way


@dataclass(frozen=True)
class Evidence:
    """What one way of a reading asks for on a healthy node."""

    reader: Reader
    way: Way
    programs: frozenset[str]
    files: frozenset[str]


def _evidence(folder: Path) -> tuple[list[Evidence], dict[str, Reading], list[str]]:
    """For each way that works on the healthy node what it asks for; every reading as it is there; the ways that do not work there."""
    needed = {name for one in checks().values() for name in (*one.needs, *one.wants)}
    found, readings, unseen = [], {}, []
    for name, reader in sorted(all_readers().items()):
        if name not in needed:
            continue
        node = Node(folder / name)
        readings[name] = reader.read(node.world, Deadline(20))
        for at, way in enumerate(reader.ways):
            mine = Node(folder / f"{name}-{at}")
            try:
                way.read(mine.world, Deadline(20))
            except Unread as error:
                unseen.append(f"{name} by {way.name}: {error}")
                continue
            files = frozenset(one for one in mine.asked.files.copy() if (mine.root / one.lstrip("/")).is_file())
            found.append(Evidence(reader, way, frozenset(mine.asked.programs), files))
    return found, readings, unseen


_READ = threading.local()


def _given(readings: Mapping[str, Reading], but: str) -> dict[str, Reader]:
    """All readings as they are on the healthy node, but one."""

    def constant(reading: Reading) -> Reader:
        def read(world: object, deadline: object) -> Any:
            if not reading.usable:
                raise Unread(reading.ending, reading.detail, reading.hint)
            return reading.value

        return Reader(reading.name, (Way(reading.path or "none", read, reading.blind),), 20.0, "")

    return {
        name: reader if name == but else constant(readings[name]) for name, reader in all_readers().items() if name in readings
    }


def _sound(found: list[Finding], evidence: Evidence, first: str) -> bool:
    """Whether a check says that all is well, and by the way of which something is broken."""
    statuses = {finding.status for finding in found}
    by = {finding.path for finding in found if finding.status == "ok"}
    return "ok" in statuses and statuses <= {"ok", "not-applicable"} and first == evidence.reader.name and evidence.way.name in by


def _one_way(folder: Path, evidence: Evidence, what: str, form: str, readings: Mapping[str, Reading]) -> tuple[int, list[str]]:
    """Break the programs or the files of one way; return how many cells that were, and those that are ok by what was broken."""
    name = evidence.reader.name
    mine = [one.id for one in checks().values() if name in one.needs]
    if not mine:
        return 0, []
    where = folder / re.sub(r"\W", "-", f"{name}-{evidence.way.name}-{what}-{form}")
    files, programs = set(evidence.files), set(evidence.programs)
    for attempt in range(4):  # until all is broken that this way asks for in the place of what is broken
        node = Node(where / str(attempt))
        if what == "files":
            node.files(form, files)
        elif what == "library":
            node.library(form)
        else:
            node.programs(form, programs)
        _READ.readers = _given(readings, name)
        try:
            ended = _run(node, form, mine)
        finally:
            _READ.readers = None
        there = {one for one in ended.asked.files.copy() if (node.root / one.lstrip("/")).is_file()}
        shutil.rmtree(node.root, ignore_errors=True)
        wrong = [f"{check} × {what} of {name} by {evidence.way.name} × {form}: {ended.of(check)[0].summary}" for check in mine
                 if _sound(ended.of(check), evidence, checks()[check].needs[0])]  # fmt: skip
        if not wrong or what != "files" or len(evidence.reader.ways) > 1 or there <= files:
            break
        files |= there
    if ended.left:
        wrong.append(f"{name} by {evidence.way.name} × {form} left {ended.left}")
    return len(mine), wrong


# forms in which nobody can see that something is wrong: reading, kind and form → why
_LOOKS_WHOLE = {
    ("kernel", "files", "half"): "half a log is a log",
    (
        "network",
        "programs",
        "half",
    ): "what grep printed until it was cut is true, and what is left out is said not to have been read",
    ("containers", "programs", "missing"): "a node without the toolkit is one that gives its GPUs in another way",
    ("containers", "files", "missing"): "the same of CDI specifications",
}
# evidence that a way uses beside its main one, and without which what it says stays true: reading, way, kind → why
_SPARE = {
    ("nvml", "NVML", "files"): "the PCI bus is looked at only to tell a node without GPUs from one without a driver",
    ("gpus", "NVML", "files"): "the same",
    ("gpus", "nvidia-smi", "files"): "the same",
    ("kernel", "kernel log", "files"): "/proc/stat tells when the node booted; else the log is judged by how far back it goes",
    ("disks", "smartctl", "files"): "the kernel's word on a disk stands beside the disk's own, which decides",
    ("dcgm-diag", "dcgmi diag", "files"): "a probe asks NVML which GPUs there are, and the PCI bus only as NVML's reading does",
    ("matmul", "matrix products", "files"): "the same",
    ("nccl-tests", "all_reduce_perf", "files"): "the same",
    ("nvbandwidth", "nvbandwidth", "files"): "the same",
    ("services", "systemctl", "files"): "systemctl itself tells whether systemd runs, and the uptime only how long it has had",
}


def test_ok_is_only_what_another_way_saw(
    healthy_run: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ways, readings, unseen = _evidence(tmp_path / "healthy")
    monkeypatch.setattr(runner, "all_readers", lambda: getattr(_READ, "readers", None) or all_readers())
    cells = [
        (evidence, what, form)
        for evidence in ways
        for what, there in (("programs", evidence.programs), ("files", evidence.files), ("library", evidence.way.name == "NVML"))
        for form in FORMS
        if there
        and (evidence.reader.name, evidence.way.name, what) not in _SPARE
        and (evidence.reader.name, what, form) not in _LOOKS_WHOLE
    ]
    with ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(lambda cell: _one_way(tmp_path, *cell, readings), cells))
    wrong = [one for _, found in ended for one in found]
    with capsys.disabled():
        count = sum(number for number, _ in ended)
        print(f"\none way at a time: {len(ways)} ways, {count} cells, {len(wrong)} ok by what was broken")
        print("".join(f"  not on the healthy node: {one[:160]}\n" for one in unseen), end="")
    assert not wrong, "\n".join(wrong)
