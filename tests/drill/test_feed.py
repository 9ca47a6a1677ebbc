"""A feed writes what happened in order, each thing at its moment, nothing with a stamp of the future, and says what went wrong."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.drill.recording import Recording
from workbench.drill.documents import documents
from workbench.drill.feed import LEAD, Clock, Feed
from workbench.gameday import draw
from workbench.simulation import Spec
from workbench.simulation.dirt import draw_dirt, write_evidence
from workbench.simulation.metrics import span

SPEC = Spec.read().with_(nodes__count=16)
SPEED = 200.0


def fed(cls: str, folder: Path, target: Recording | None = None, **more: Any) -> Feed:
    failure = draw(1, cls, SPEC, random.Random(3), 32)
    clock, fault = Clock.of(span(failure), time.time(), SPEED)
    failure = replace(failure, job="gd-1", time=fault)
    feed = Feed(target or Recording(), failure, write_evidence(failure, folder), clock, **more)  # type: ignore[arg-type]
    feed.start()
    end = time.monotonic() + 60
    while not feed.over and time.monotonic() < end:
        time.sleep(0.02)
    return feed


def stamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("speed", [1.0, 60.0])
def test_the_last_moment_is_fed_when_it_is(speed: float) -> None:
    """And at no speed is anything of the future."""
    began = 1_800_000_000.25
    clock, fault = Clock.of(120.0, began, speed)

    assert fault == int(fault)
    assert clock.wall(fault) == pytest.approx(began + LEAD / speed)
    for moment in (clock.begin - 500, clock.begin, fault, fault + 50, clock.end):
        assert moment <= clock.wall(moment) + 1e-6
        assert clock.now(clock.wall(max(moment, clock.begin))) == pytest.approx(max(moment, clock.begin))
    assert clock.wall(clock.end) - clock.end < 1.0, "it comes to the present with its last moment"
    if speed == 1.0:
        assert clock.wall(fault) - fault < 1.0


def test_a_crash_is_fed_whole_and_in_order(tmp_path: Path) -> None:
    feed = fed("hardware/gpu-memory", tmp_path / "inc")
    target, failure = feed.target, feed.failure
    assert isinstance(target, Recording)

    assert feed.error is None
    assert feed.counts["lines"] == len(target.lines) > 500
    files = [*(tmp_path / "inc" / "logs").iterdir(), *(tmp_path / "inc" / "kernel").iterdir()]
    assert len(target.lines) == sum(len(path.read_text().splitlines()) for path in files)
    assert all(stamp(str(row["@timestamp"])) <= at + 0.01 for at, row in target.lines)
    assert all(one.time <= at + 0.01 for at, one in target.samples)
    culprit = next(at for at, row in target.lines if "Xid" in row["message"])
    assert culprit >= feed.clock.wall(failure.time) - 0.01
    ends = {path: body for _, path, body in target.objects if body.get("status", {}).get("phase") == "Failed"}
    assert len(ends) == len(failure.nodes)
    assert feed.sign == 3.0
    assert feed.first_sign is not None


def test_a_silent_node_says_nothing_any_more(tmp_path: Path) -> None:
    feed = fed("platform/node-lost", tmp_path / "inc")
    target, failure = feed.target, feed.failure
    assert isinstance(target, Recording)
    of = [body["status"] for _, path, body in target.objects if path.endswith(f"/nodes/{failure.node}")]
    pod = f"gd-1-worker-{failure.nodes.index(str(failure.node))}"

    assert of[-1]["conditions"][0]["status"] == "Unknown"
    assert [path for _, path, _ in target.objects if path.endswith("/events")]
    assert not [1 for _, path, body in target.objects if path.endswith(pod) and body.get("status", {}).get("phase") == "Failed"]
    last = max(one.time for _, one in target.samples if dict(one.labels)["Hostname"] == failure.node)
    assert last < failure.time
    assert max(one.time for _, one in target.samples) > failure.time + 60


def test_no_metrics_are_fed_where_none_were_kept(tmp_path: Path) -> None:
    feed = fed("user/exception", tmp_path / "inc", metrics=False)

    assert feed.counts["samples"] == 0
    assert feed.counts["lines"] > 0


def test_what_a_server_refuses_ends_the_feed_and_is_kept(tmp_path: Path) -> None:
    feed = fed("user/exception", tmp_path / "inc", Recording(broken=True))

    assert "the disk is full" in str(feed.error)
    assert feed.over


def test_dirty_evidence_is_fed_as_dirty_as_it_is(tmp_path: Path) -> None:
    """No kernel logs: no lines of them; a log that is cut: its half of a line as well; a clock that is off: stamps of its own."""
    spec = SPEC.clean().with_(dirt__no_kernel=1.0, dirt__truncated=1.0, dirt__clock_skew=1.0)
    failure = draw(1, "user/exception", spec, random.Random(3), 32)
    dirt = draw_dirt(failure, spec, "1 1")
    folder = write_evidence(failure, tmp_path / "dirty", dirt)
    pods = {node: f"p{index}" for index, node in enumerate(failure.nodes)}

    found = list(documents(folder, pods, "train"))
    whole = list(documents(write_evidence(failure, tmp_path / "clean"), pods, "train"))

    assert all("host" not in row for _, row in found)
    assert any("host" in row for _, row in whole)
    files = {path.stem: path.read_text() for path in (folder / "logs").glob("*.log")}
    assert any(not text.endswith("\n") for text in files.values())
    by_pod: dict[str, list[tuple[float, Any]]] = {}
    for time_, row in found:
        by_pod.setdefault(row["kubernetes"]["pod"]["name"], []).append((time_, row))
    for node, pod in pods.items():
        assert [row["message"] for _, row in by_pod[pod]] == files[node].splitlines()
        first = min(time_ for time_, row in whole if row.get("kubernetes", {}).get("pod", {}).get("name") == pod)
        assert by_pod[pod][0][0] - first == pytest.approx(dirt.skew.get(node, 0.0), abs=1.1)
