"""What is published of a node: little, when it changes, and never what is not ours; what is refused is said and tried again."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.health.canned_node import CannedNode
from tests.sources.canned_kubernetes import kubeconfig
from workbench.errors import SourceError
from workbench.health.conditions import FIT
from workbench.health.finding import Finding
from workbench.health.publish import LABEL, OWNER, KubernetesEvents, KubernetesNode, Textfile
from workbench.health.watch import Watch
from workbench.model import Gpu
from workbench.report.findings import FORMATS
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.write import NodeWriter
from workbench.testing.faults import FaultServer

pytest.importorskip("kubernetes")

NOW = 1.8e9
BAD = Finding("gpu-memory", "critical", "uncorrected errors", "smi-ecc-uncorrectable", "gpu-7", Gpu(3), cls="hardware/gpu-memory")
GOOD = Finding("gpu-memory", "ok", "no errors", "", "gpu-7", Gpu(3))
BLIND = Finding("driver", "unknown", "no answer", "unread-time-out", "gpu-7", cls="driver/other")
WARM = Finding("thermal-power", "warning", "84 C", "smi-throttle-sw-thermal", "gpu-7", Gpu(0))


@pytest.fixture
def canned() -> CannedNode:
    """The cluster."""
    return CannedNode()


@pytest.fixture
def server(canned: CannedNode) -> Iterator[FaultServer]:
    """Its server, without a fault at first."""
    with FaultServer(canned) as server:
        yield server


@pytest.fixture
def writer(server: FaultServer, tmp_path: Path) -> NodeWriter:
    """What writes to it."""
    return NodeWriter(Api(str(kubeconfig(tmp_path, server.url))), "gpu-7")


@pytest.fixture
def said() -> list[str]:
    """What a person was told."""
    return []


@pytest.fixture
def node(writer: NodeWriter, said: list[str]) -> KubernetesNode:
    """The publisher of conditions."""
    return KubernetesNode(writer, lambda message, hint: said.append(f"{message} | {hint}"), seconds=5.0)


# ---- conditions and label


@pytest.mark.parametrize(
    ("finding", "label", "status"), [(BAD, "false", "True"), (GOOD, "true", "False"), (BLIND, "unknown", "Unknown")]
)
def test_the_label_says_what_the_condition_says(
    node: KubernetesNode, canned: CannedNode, finding: Finding, label: str, status: str
) -> None:
    node.publish([finding], NOW)
    assert canned.condition(FIT)["status"] == status
    assert canned.node["metadata"]["labels"] == {"zone": "a", LABEL: label}
    assert canned.node["metadata"]["annotations"] == {OWNER: "workbench check"}
    assert canned.condition("Ready")["reason"] == "KubeletReady"
    assert canned.writes == ["PATCH status"]


def test_a_node_that_stays_as_it_is_costs_a_read_and_a_write_in_five_minutes(node: KubernetesNode, canned: CannedNode) -> None:
    for minute in range(61):
        node.publish([GOOD], NOW + 60 * minute)
    assert len(canned.asked) <= 2 * 13
    assert len(canned.writes) == 13


def test_a_change_is_written_at_once(node: KubernetesNode, canned: CannedNode) -> None:
    node.publish([GOOD], NOW)
    node.publish([BAD], NOW + 60)
    assert canned.condition(FIT)["lastTransitionTime"] == "2027-01-15T08:01:00Z"
    assert canned.node["metadata"]["labels"][LABEL] == "false"


def test_hostile_words_are_written_once(node: KubernetesNode, canned: CannedNode) -> None:
    """What the server would keep in another form would differ from what we want for ever."""
    for minute in range(4):
        node.publish([replace(BAD, summary="\x1b[2J\u202eevil\udc80 \x00" + "x" * 3000)], NOW + 60 * minute)
    assert canned.writes == ["PATCH status"]
    assert not set(canned.condition(FIT)["message"]) & set("\x1b\u202e\x00\udc80")


def test_a_label_of_somebody_else_is_left_and_said_once(node: KubernetesNode, canned: CannedNode, said: list[str]) -> None:
    canned.node["metadata"]["labels"][LABEL] = "mine"
    for minute in range(3):
        node.publish([BAD], NOW + 60 * minute)
    node.stop(NOW + 300)
    assert canned.node["metadata"]["labels"][LABEL] == "mine"
    assert OWNER not in canned.node["metadata"]["annotations"]
    assert canned.condition(FIT)["reason"] == "CheckerStopped"
    assert len(said) == 1


def test_stopping_vouches_for_nothing_and_keeps_others(node: KubernetesNode, canned: CannedNode) -> None:
    node.publish([BAD, BLIND], NOW)
    node.stop(NOW + 60)
    mine = [one for one in canned.node["status"]["conditions"] if one["type"].startswith("Workbench")]
    assert len(mine) == 3
    assert {(one["status"], one["reason"]) for one in mine} == {("Unknown", "CheckerStopped")}
    # what was not known before is not known since then
    assert canned.condition("WorkbenchDriverProblem")["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert canned.condition("Ready")["status"] == "True"
    assert canned.node["metadata"]["labels"][LABEL] == "unknown"


def test_stopping_on_a_node_without_conditions_of_ours_writes_nothing(node: KubernetesNode, canned: CannedNode) -> None:
    node.stop(NOW)
    assert canned.writes == []


@pytest.mark.parametrize("fault", ["401", "403", "500", "hang", "cut", "reset", "html", "login-page"])
def test_a_write_that_failed_is_an_error_and_the_next_one_starts_from_what_is_there(
    writer: NodeWriter, server: FaultServer, canned: CannedNode, said: list[str], fault: str
) -> None:
    node = KubernetesNode(writer, lambda message, hint: said.append(message), seconds=1.5)
    node.publish([GOOD], NOW)
    server.fault = fault
    with pytest.raises(SourceError) as error:
        node.publish([BAD], NOW + 90)
    assert str(error.value)
    server.fault = None
    node.publish([BAD], NOW + 120)
    assert canned.condition(FIT)["status"] == "True"


def test_what_is_not_granted_names_the_manifest(node: KubernetesNode, canned: CannedNode) -> None:
    canned.forbidden = {"status"}
    with pytest.raises(SourceError, match="patch nodes/status") as error:
        node.publish([BAD], NOW)
    assert error.value.hint == "workbench config rbac --writer | kubectl apply -f -"


# ---- events


def test_warnings_are_one_event_a_kind_with_a_count(writer: NodeWriter, canned: CannedNode) -> None:
    events = KubernetesEvents(writer)
    for minute in range(31):
        events.publish([WARM, replace(WARM, gpu=Gpu(1)), BAD, GOOD, replace(BAD, required=False)], NOW + 60 * minute)
    assert sorted((one["reason"], one["count"]) for one in canned.events.values()) == [
        ("SmiEccUncorrectable", 31),
        ("SmiThrottleSwThermal", 31),
    ]
    assert len(canned.writes) == 2 * 4


def test_a_checker_that_starts_anew_counts_on_and_does_not_tell_again_at_once(writer: NodeWriter, canned: CannedNode) -> None:
    KubernetesEvents(writer).publish([WARM], NOW)
    KubernetesEvents(writer).publish([WARM], NOW + 60)
    (one,) = canned.events.values()
    assert (one["count"], len(canned.writes)) == (1, 1)
    KubernetesEvents(writer).publish([WARM], NOW + 700)
    assert (one["count"], one["lastTimestamp"] > one["firstTimestamp"]) == (2, True)


def test_an_event_that_the_server_dropped_is_made_anew(writer: NodeWriter, canned: CannedNode) -> None:
    events = KubernetesEvents(writer)
    events.publish([WARM], NOW)
    canned.events.clear()  # after an hour
    events.publish([WARM], NOW + 3700)
    assert len(canned.events) == 1


# ---- textfile


def test_the_file_is_whole_readable_and_not_named_like_one_while_it_is_written(tmp_path: Path) -> None:
    target = tmp_path / "workbench.prom"
    place = Textfile(target, lambda findings: FORMATS["prom"](findings, verbose=False))
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.update(file.read_text() for file in tmp_path.glob("*.prom"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for turn in range(50):
            place.publish([BAD] if turn % 2 else [GOOD], NOW)
    finally:
        stop.set()
        thread.join()
    assert seen
    assert all(text.endswith(("} 0\n", "} 1\n")) for text in seen)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    place.stop(NOW)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written"):
        Textfile(tmp_path / "no" / "x.prom", lambda findings: "").publish([], NOW)
    with pytest.raises(ValueError, match="render"):
        Textfile(tmp_path / "x.prom", _broken).publish([], NOW)
    assert list(tmp_path.iterdir()) == []


def _broken(findings: Sequence[Finding]) -> str:
    raise ValueError("render")


# ---- the loop


class Shelf:
    """A publisher that fails as often as it is told."""

    name = "shelf"

    def __init__(self, fails: int = 0) -> None:
        self.fails, self.shown, self.stopped = fails, [], 0
        self.asked = 0

    def publish(self, findings: Sequence[Finding], now: float) -> None:
        self.asked += 1
        if self.asked <= self.fails:
            raise SourceError("the shelf is full", hint="wait")
        self.shown.append(list(findings))  # type: ignore[attr-defined]

    def stop(self, now: float) -> None:
        self.stopped += 1


def _until(question: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < end
        time.sleep(0.01)


def _loop(look: Callable[[], Sequence[Finding]], shelf: Shelf, done: Callable[[], object], **more: object) -> list[str]:
    said: list[str] = []
    loop = Watch(
        look, [shelf], say=lambda message, hint: said.append(message), **{"seconds": 0.05, "chance": lambda: 0.0, **more}
    )  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        _until(done)
    finally:
        loop.stop()
        thread.join(10)
    assert not thread.is_alive()
    return said


def test_the_loop_looks_again_and_again_and_takes_back_at_the_end() -> None:
    shelf = Shelf()
    said = _loop(lambda: [GOOD], shelf, lambda: len(shelf.shown) >= 3)  # type: ignore[arg-type]
    assert (said, shelf.stopped) == ([], 1)


def test_a_write_that_failed_is_tried_again_later_each_time_with_what_holds_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.health.watch._FIRST", 0.2)
    shelf, turns = Shelf(fails=3), iter(range(1000))
    said = _loop(lambda: [replace(WARM, summary=str(next(turns)))], shelf, lambda: shelf.shown)
    assert len(said) == 3
    assert all("the shelf is full; tried again in" in line for line in said)
    assert int(shelf.shown[0][0].summary) > 3  # not the finding of the first try


def test_a_look_that_raises_is_published_as_not_known() -> None:
    def look() -> Sequence[Finding]:
        raise RuntimeError("a defect")

    shelf = Shelf()
    said = _loop(look, shelf, lambda: shelf.shown)
    assert [(one.status, one.unfit) for one in shelf.shown[0]] == [("unknown", True)]
    assert "a defect" in said[0]


def test_a_stop_does_not_wait_for_a_look_that_hangs() -> None:
    gate, shelf = threading.Event(), Shelf()
    begun = time.monotonic()

    def look() -> Sequence[Finding]:
        gate.wait(30)
        return []

    try:
        _loop(look, shelf, lambda: True)
    finally:
        gate.set()
    assert time.monotonic() - begun < 15
    assert shelf.stopped == 1


def test_first_looks_are_spread() -> None:
    """2,000 nodes that are switched on together do not write in the same second."""
    starts = []
    for chance in (0.0, 0.5, 1.0):
        seen: list[float] = []

        def look(seen: list[float] = seen) -> Sequence[Finding]:
            seen.append(time.monotonic())
            return [GOOD]

        begun = time.monotonic()
        _loop(look, Shelf(), lambda seen=seen: seen, seconds=0.8, chance=lambda chance=chance: chance)  # type: ignore[misc]
        starts.append(seen[0] - begun)
    assert starts[1] >= 0.4
    assert starts[2] >= 0.8
