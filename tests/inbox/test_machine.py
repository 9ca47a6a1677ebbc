"""Whatever happens in whatever order (failures, crashes at any point, dead receivers, full disks), nothing is lost and nothing told for nothing."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.inbox.conftest import World, crash_at, sign, verdict_of
from workbench.inbox.alerts import receive
from workbench.inbox.notify import signature_of
from workbench.testing import Crash

JOBS = ("train", "infer", "eval")
VERDICTS = (verdict_of(), verdict_of("platform/network", None, None), verdict_of("user/exception", None, None))


class Watching(RuleBasedStateMachine):
    """Jobs fail, watches die and begin again; at any time a quiet hour must bring everything to its end."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wb-machine-"))
        self.world = World(self.folder / "inbox")
        self.world.run()
        self.world.now += 30
        self.failed: set[tuple[str, int]] = set()
        self.crashes = 0
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.settle()
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule(job=st.sampled_from(JOBS), attempt=st.integers(1, 2), late=st.integers(0, 60))
    def fails(self, job: str, attempt: int, late: int) -> None:
        self.number += 1
        self.failed.add((job, attempt))
        self.world.scheduler.show(sign(job, f"kubernetes/{self.number}", time=self.world.now - late, attempt=attempt))

    @rule(job=st.sampled_from(JOBS), verdict=st.sampled_from(VERDICTS))
    def is_judged_otherwise(self, job: str, verdict: dict[str, Any]) -> None:
        self.world.verdicts[job] = verdict

    @rule(count=st.integers(1, 3))
    def receiver_is_down(self, count: int) -> None:
        self.world.bell.down = count

    @rule(count=st.integers(1, 2))
    def collections_fail(self, count: int) -> None:
        self.world.broken = count

    @rule(down=st.booleans())
    def scheduler_is_down(self, down: bool) -> None:
        self.world.scheduler.down = "refused" if down else ""

    @rule()
    def what_failed_is_deleted(self) -> None:
        """Pods are removed minutes after they failed: what a watch saw must not hang on them."""
        self.world.run()
        if not self.world.scheduler.down:
            self.world.scheduler.signs.clear()

    @rule(job=st.sampled_from(JOBS), firing=st.booleans())
    def alert_rings(self, job: str, firing: bool) -> None:
        status = "firing" if firing else "resolved"
        alert = {
            "labels": {"alertname": "JobFailed", "job_name": job, "namespace": "ml"},
            "status": status,
            "startsAt": self.world.now - 5,
        }
        receive(self.world.inbox, {"version": "4", "alerts": [alert]})

    @rule(seconds=st.integers(0, 240))
    def time_passes_with_a_watch(self, seconds: int) -> None:
        self.world.run(seconds)

    @rule(point=st.integers(1, 25))
    def watch_dies(self, point: int) -> None:
        self.world.step = crash_at(point)
        try:
            self.world.run(60)
        except Crash:
            self.crashes += 1
        finally:
            self.world.step = lambda _: None

    @rule(seconds=st.integers(1, 600))
    def no_watch_runs(self, seconds: int) -> None:
        self.world.now += seconds

    def settle(self) -> None:
        """An hour in which nothing more goes wrong."""
        self.world.bell.down = self.world.broken = 0
        self.world.scheduler.down = ""
        self.world.run(4000, pause=200)
        entries = self.world.inbox.entries()
        assert self.world.inbox.problems == []
        found = [(entry.job, entry.attempt) for entry in entries if entry.source == "kubernetes"]
        assert self.failed <= set(found), "a failure was lost"
        assert len(found) == len(set(found)), "a failure is there twice"
        for entry in entries:
            if into := entry.data.get("folded"):
                assert set(entry.alerts) <= set(self.world.inbox.get(into).alerts)
                assert entry.state == "closed"
                continue
            assert entry.data["watch"]["stage"] == "collected", entry
            assert not entry.problem
            notes = [note for note in self.world.bell.rung if note.id == entry.id]
            assert notes, "nobody was told"
            assert entry.data["tell"]["bell"]["signature"] == signature_of(entry), "what people know is not what is known"
            firsts = [note for note in notes if not note.again]
            assert len([note for note in firsts if note.kind == "incident"]) <= 1, "told twice as new, and not said to be again"
            keys = [note.key for note in firsts]
            assert all(one != other for one, other in itertools.pairwise(keys)), "the same was told twice in a row"

    @invariant()
    def repetitions_need_a_crash(self) -> None:
        if hasattr(self, "world"):
            assert sum(note.again for note in self.world.bell.rung) <= self.crashes


TestWatching = Watching.TestCase
TestWatching.settings = settings(max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
