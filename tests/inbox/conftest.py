"""Turn a clock, a scheduler and receivers that tests drive into a watch that can die at any point and begin again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from workbench.casefile import CaseFile
from workbench.inbox.collecting import Found
from workbench.inbox.notify import Note
from workbench.inbox.post import NotTold
from workbench.inbox.sightings import Failure, Seen, Sighting
from workbench.inbox.store import Inbox
from workbench.inbox.storms import Settings
from workbench.inbox.tell import Teller
from workbench.inbox.watch import Watch
from workbench.report.verdict_json import failed
from workbench.testing import Crash

__all__ = ["Bell", "Scheduler", "World", "sign", "verdict_of"]

START = 1_800_000_000.0


def verdict_of(cls: str = "hardware/gpu-memory", node: str | None = "gpu-1", gpu: int | None = 3, **more: Any) -> dict[str, Any]:
    """Return a verdict in the schema."""
    return {
        **failed("x", "y"), "cause": cls.split("/")[0], "class": cls, "confidence": 0.9, "summary": f"{cls} it was",
        "culprit": {"node": node, "gpu": None if gpu is None else {"index": gpu, "uuid": None, "pci": None}, "rank": None, "at_fault": "gpu"},
        "next_steps": ["look at it"], **more,
    }  # fmt: skip


def sign(job: str = "train", item: str = "", *, time: float | None = START, source: str = "kubernetes", **more: Any) -> Sighting:
    """Return one sign of a failure."""
    return Sighting(
        item or f"{source}/{job}-0",
        f"{source}/ml/Job/{job}",
        source,
        job,
        "ml",
        time=time,
        reason=f"pod {job}-0: exit code 1",
        **more,
    )


class Scheduler:
    """Shows the signs that it is given, until they are taken away."""

    name = "kubernetes"

    def __init__(self) -> None:
        self.signs: dict[str, Sighting] = {}
        self.down = ""
        self.since: list[float] = []

    def show(self, *signs: Sighting) -> None:
        """Show these too."""
        self.signs |= {one.item: one for one in signs}

    def look(self, since: float, now: float, deadline: object) -> Seen:
        """As a follower does."""
        self.since.append(since)
        return Seen(problems=[f"kubernetes: {self.down}"]) if self.down else Seen(list(self.signs.values()))


class Bell:
    """A way to people that can be out of order."""

    name = "bell"

    def __init__(self) -> None:
        self.rung: list[Note] = []
        self.down = 0  # so many of the next messages are not taken
        self.error = NotTold("the bell is broken")

    def send(self, note: Note) -> None:
        """Ring."""
        if self.down:
            self.down -= 1
            raise self.error
        self.rung.append(note)


@dataclass
class World:
    """A folder, a time, a scheduler, a receiver; `watch` begins a watch on them."""

    root: Path
    now: float = START
    scheduler: Scheduler = field(default_factory=Scheduler)
    bell: Bell = field(default_factory=Bell)
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)  # job → what triage says
    broken: int = 0  # so many of the next collections fail
    lacking: tuple[str, ...] = ()
    found_nodes: tuple[str, ...] = ()  # where sources say that jobs ran
    collections: list[str] = field(default_factory=list)
    step: Callable[[str], None] = lambda _: None
    states: bool = False  # whether people are told of states, too
    settings: Settings = field(default_factory=lambda: Settings(settle=20.0))

    @property
    def inbox(self) -> Inbox:
        """The inbox as somebody else opens it."""
        return Inbox(self.root, clock=lambda: self.now)

    def collect(self, failure: Failure, place: Path, now: float) -> Found:
        """Collect as a site does, at once."""
        self.collections.append(failure.job)
        if self.broken:
            self.broken -= 1
            raise OSError(28, "No space left on device")
        (place / "log.txt").write_text(failure.job, encoding="utf-8")
        return Found(
            a_case(self.verdicts.get(failure.job, verdict_of())), self.lacking, "", self.found_nodes if failure.job else ()
        )

    def watch(self) -> Watch:
        """Return a new watch, as after a restart."""
        inbox = self.inbox
        teller = Teller(
            inbox, [self.bell], link="https://wb.example", states=self.states, clock=lambda: self.now, step=lambda word: self.step(word)
        )  # fmt: skip
        return Watch(
            inbox, [self.scheduler], self.collect, teller, self.settings,
            clock=lambda: self.now, steady=lambda: self.now, threads=False, step=lambda word: self.step(word),
        )  # fmt: skip

    def run(self, seconds: float = 0.0, *, pause: float = 30.0) -> None:
        """Let a watch look and work for so long; with 0 once."""
        with self.watch() as watch:
            end = self.now + seconds
            while True:
                watch.look()
                watch.work()
                if self.now >= end:
                    return
                self.now += pause


@lru_cache(maxsize=1)
def _empty() -> CaseFile:
    from workbench.casefile import case_file
    from workbench.incident import from_documents

    return case_file(from_documents([]))


def a_case(verdict: dict[str, Any]) -> CaseFile:
    """Return a small case file with a verdict."""
    return replace(_empty(), verdict=verdict)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world in which nothing failed yet, and that the watch has seen once."""
    made = World(tmp_path / "inbox")
    made.run()
    made.now += 30
    return made


def crash_at(count: int) -> Callable[[str], None]:
    """Return a step that dies at the so-manieth point."""
    left = [count]

    def step(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash

    return step


def lines(notes: Sequence[Note]) -> list[str]:
    """Return the first lines of messages."""
    return [note.lines[0] for note in notes]
