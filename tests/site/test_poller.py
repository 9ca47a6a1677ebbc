"""Turn sources that fail, hang and come back into what sessions see of them: never a wait, never an exception, never stale as if it were new."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from workbench.errors import SourceUnavailable
from workbench.site.frames import no_snapshot
from workbench.site.model import Heard, Snapshot
from workbench.site.poller import Poller, shared


def told(number: int = 1) -> Snapshot:
    return no_snapshot(
        f"answer {number}",
        1000.0 + number,
        heard=(Heard("prometheus", "ok", 1000.0 + number), Heard("slurm", "failed", None, "away")),
    )


class Site:
    """A site whose answers are what a test makes them."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hang: threading.Event | None = None
        self.calls = 0
        self.watched: tuple[str, ...] = ()

    def __call__(self) -> Snapshot:
        self.calls += 1
        if self.hang is not None:
            self.hang.wait(20)
        if self.error is not None:
            raise self.error
        return told(self.calls)

    def watch(self, nodes: Iterable[str]) -> None:
        self.watched = tuple(nodes)


def test_before_the_first_answer_there_is_a_snapshot_that_says_so() -> None:
    poller = Poller(Site(), 10)
    assert poller.version == 0
    assert len(poller.snapshot.nodes) == 0
    assert [(one.status, one.time) for one in poller.snapshot.heard] == [("missing", None)]


def test_a_thread_asks_again_and_again() -> None:
    site = Site()
    with Poller(site, 0.05) as poller:
        assert poller.wait(2, 10)
        version, snapshot = poller.state
        assert snapshot.name.startswith("answer")
        assert version >= 3
    calls = site.calls
    time.sleep(0.2)
    assert site.calls == calls  # stopped is stopped


def test_a_site_that_fails_keeps_its_last_answer_marked_stale_with_the_reason() -> None:
    site = Site()
    poller = Poller(site, 10)
    assert poller.poll()
    site.error = SourceUnavailable("the API server refuses", hint="look at its certificate")
    assert not poller.poll()
    heard = {one.source: one for one in poller.snapshot.heard}
    assert heard["prometheus"].status == "stale"
    assert heard["prometheus"].time == 1001.0  # as old as it is
    assert heard["slurm"].status == "failed"  # what had failed is no stale answer
    assert "the API server refuses" in heard["poller"].detail
    assert heard["poller"].hint == "look at its certificate"
    assert poller.snapshot.time == 1001.0
    assert not poller.poll()
    assert [one.source for one in poller.snapshot.heard].count("poller") == 1
    assert poller.failures == 2
    site.error = None
    assert poller.poll()
    assert {one.status for one in poller.snapshot.heard} == {"ok", "failed"}
    assert poller.failures == 0


def test_a_defect_in_a_source_is_told_and_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.error = KeyError("metadata")
    poller = Poller(site, 10)
    assert not poller.poll()
    assert "KeyError" in poller.snapshot.heard[-1].detail
    assert "a poll of the site failed" in caplog.text


def test_failures_are_tried_later_and_later_but_never_given_up() -> None:
    waits: list[float] = []
    site = Site()
    site.error = SourceUnavailable("away")
    poller = Poller(site, 30)

    class Wake(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            if len(waits) == 12:
                poller._over.set()
            return False

    poller._wake = Wake()
    poller._run()
    assert [round(wait) for wait in waits[:4]] == [60, 120, 240, 300]
    assert round(max(waits)) == 300


def test_a_poll_that_hangs_is_left_behind_and_never_begun_twice() -> None:
    site = Site()
    site.hang = threading.Event()
    poller = Poller(site, 10, limit=0.5)  # a loaded machine needs so long to begin a thread
    assert not poller.poll()
    assert "no answer within" in poller.snapshot.heard[-1].detail
    assert not poller.poll()
    assert not poller.poll()
    assert site.calls == 1
    site.hang.set()
    site.hang = None
    deadline = time.monotonic() + 10
    while not poller.poll() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert poller.failures == 0


def test_reading_never_waits_for_a_poll_that_hangs() -> None:
    site = Site()
    site.hang = threading.Event()
    with Poller(site, 10, limit=30) as poller:
        deadline = time.monotonic() + 5
        while not site.calls and time.monotonic() < deadline:
            time.sleep(0.01)
        began = time.monotonic()
        for _ in range(1000):
            assert poller.snapshot is not None
            poller.watch("gpu-1")
        assert time.monotonic() - began < 2
        site.hang.set()


def test_a_node_that_somebody_looks_at_is_told_to_the_site_and_forgotten_after_a_while() -> None:
    now = [0.0]
    site = Site()
    poller = Poller(site, 10, steady=lambda: now[0])
    poller.watch("gpu-1")
    poller.poll()
    assert site.watched == ("gpu-1",)
    now[0] = 599
    poller.watch("gpu-2")
    poller.poll()
    assert site.watched == ("gpu-1", "gpu-2")
    now[0] = 700
    poller.poll()
    assert site.watched == ("gpu-2",)


def test_a_snapshot_is_stale_after_two_periods() -> None:
    snapshot = told()
    assert not snapshot.stale(snapshot.time + 60)
    assert snapshot.stale(snapshot.time + 61)
    assert snapshot.age(snapshot.time - 5) == 0


def test_a_process_has_one_poller_of_a_name() -> None:
    made = []

    def make() -> Poller:
        made.append(Poller(Site(), 60))
        return made[-1]

    one = shared("test", make)
    try:
        assert shared("test", make) is one
        assert len(made) == 1
    finally:
        one.stop()


def test_a_period_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Poller(Site(), 0)
