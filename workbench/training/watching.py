"""
Turn a running job's output and progress calls into its first and last step, and silence that is too long into evidence and the word ``hang``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.training.hangs import Hang, Progress, ProgressFile, Watch
from workbench.training.looking import Looks

if TYPE_CHECKING:
    from workbench.training.together import Together

__all__ = ["Watching"]

FLOOR = 1800.0  # seconds of silence that are never a hang unless the user says less: an evaluation that nobody announced may take this long
_STACKS = 45.0  # seconds that dumps of stacks may take before the job is ended
_FLIGHTS = 15.0  # and those of the flight recorders, meanwhile
_LONGEST = 1 << 16  # bytes without an end of line that are kept
_FLOOD = 8 << 20  # bytes a second that are looked at whole
_TAIL = 1 << 14  # of each piece beyond that, the end
_LINES = 64  # lines of one piece of output (256 KiB at most) that are looked at
# a line without any of these is neither a step nor an announced pause: see `workbench.parse.progress` and `workbench.training.hangs`
_WORDS = (
    b"step",
    b"Step",
    b"iter",
    b"Iter",
    b"oss",
    b"poch",
    b"it/s",
    b"s/it",
    b"atch",
    b"ving",
    b"ave ",
    b"heckpoint",
    b"aluati",
    b"alidati",
    b"unning ",
)
_STEPS = 4096  # steps whose time is kept, to tell what a restart costs


class Watching:
    """
    What is known of a running attempt's progress.

    Parameters
    ----------
    folder : Path
        The attempt's: evidence of a hang lands there.
    pid : int
        The launcher.
    max_hang : float, optional
        Seconds without progress that are a hang, whatever was usual; 0 switches hangs off. Default: ten usual steps, at least 30 minutes, and
        never before a first step was seen.
    dumps : Path, optional
        Where the job's processes announced that they dump their stacks when they are asked by a signal.
    say : callable
        Told what a person should know while the job runs.
    together : Together, optional
        The supervisors of the job's other nodes.

    Attributes
    ----------
    first, last : int or None
        First and last step seen.
    times : dict of int to float
        When (epoch seconds) the last few thousand steps were first seen.
    hang : Hang or None
        Why the attempt was ended.
    looks : Looks
        Who is slower than the other ranks.
    """

    def __init__(
        self,
        folder: Path,
        pid: int,
        *,
        max_hang: float | None,
        dumps: Path | None,
        say: Callable[[str], object],
        together: Together | None = None,
    ) -> None:
        self.folder, self.pid, self._dumps, self._say, self._together = folder, pid, dumps, say, together
        self.first: int | None = None
        self.last: int | None = None
        self.times: dict[int, float] = {}
        self.hang: Hang | None = None
        self._asked = max_hang
        if max_hang:
            # what the job announces (a save, an evaluation, its end) may take longer: the default of a pause holds for it
            most = max(FLOOR, max_hang)
            self._watch = Watch(
                factor=0.0, floor=max_hang, pause=0.0, start_limit=max(3600.0, max_hang), pause_limit=most, warm_up=max_hang
            )
        else:
            self._watch = Watch(floor=FLOOR)
        self._file = ProgressFile(folder / "progress")
        self.looks = Looks(folder, say)
        self._half = b""
        self._second, self._read = 0.0, 0
        self._dumping: threading.Thread | None = None
        self._until = 0.0

    def feed(self, data: bytes) -> None:
        """Take output as it comes."""
        now = time.monotonic()
        if now - self._second > 1:
            self._second, self._read = now, 0
        self._read += len(data)
        if self._read > _FLOOD and len(data) > _TAIL:  # looking at all of it would slow the job: the end tells where it is
            data, self._half = data[-_TAIL:], b""
        data = self._half + data
        ends = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._half = data[ends:][-_LONGEST:]
        words = [word for word in _WORDS if word in data]
        if not words or not ends:
            return
        lines = [line for line in data[:ends].replace(b"\r", b"\n").split(b"\n") if any(word in line for word in words)]
        # of a flood the end is enough to know where the job is; its beginning tells the first step
        for line in lines if len(lines) <= _LINES else lines[:8] + lines[-_LINES:]:
            if (told := self._watch.feed(line.decode("utf-8", "replace"), now)) is not None:
                self._note(told)

    def _note(self, told: Progress) -> None:
        step = int(told.step)
        if self.first is None:
            self.first = step
        self.last = step if self.last is None else max(self.last, step)
        if step not in self.times:
            self.times[step] = told.time or time.time()
            if len(self.times) > _STEPS:
                del self.times[next(iter(self.times))]

    def look(self, now: float) -> None:
        """Read what ranks told by `workbench.training.progress`."""
        for told in self._file.read():
            self._watch.note(told, now)
            self._note(told)
            self.looks.note(told)

    def tick(self, now: float) -> str | None:
        """Return ``hang`` when the job hangs and all evidence of it is taken."""
        self.look(now)
        self.looks.tick(now)
        if self._dumping is not None:
            if self._dumping.is_alive() and now < self._until:
                return None
            if self.hang is not None:
                return "hang"
        if self._together is not None:
            self._together.step = self.last
            if self.last is None and (step := self._together.heard) is not None:
                self._watch.note(Progress(float(step)), now)
            self._heard(self._together)
        if self._dumping is not None and self._dumping.is_alive():
            return None  # for another node's sake; a hang of ours is told by the look after it
        hang = self._watch.tick(now)
        if hang is None or self._asked == 0:
            return None
        if not hang.certain and not self._asked:
            self._say(
                f"{hang.reason}: nothing that it prints is a step, so a hang would not be seen; it can call workbench.training.progress(step)"
            )
            return None
        self.hang = hang
        if self._together is not None:
            self._together.declare(hang.reason)
        self._say(f"{hang.reason}; stacks are taken, then the job is ended")
        self._note_hang(hang.reason)
        self._until = now + _STACKS
        self._begin_dump()
        return None

    def _heard(self, together: Together) -> None:
        """Take the stacks of our ranks when another node's supervisor says that the job hangs; ending it is for that one to do."""
        told = together.hang
        if told is None or self._dumping is not None or self.hang is not None:
            return
        self._say(f"{told['node']} says that the job hangs ({told['reason']}): the stacks of this node are taken for it")
        self._note_hang(f"{told['reason']} (told by {told['node']})")
        self._begin_dump()

    def _begin_dump(self) -> None:
        self._dumping = threading.Thread(target=self._dump, name="workbench-stacks", daemon=True)
        self._dumping.start()

    def _note_hang(self, reason: str) -> None:
        """Let triage know, in words that its catalog has (`run-hang`): the job's own output ends in the middle of nothing."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            with (self.folder / "logs" / "workbench.log").open("a", encoding="utf-8") as stream:
                stream.write(f"{stamp} workbench run: hang: {reason}\n")
        except OSError:  # the disk is full: the job has to end all the same
            pass

    def _dump(self) -> None:
        end = time.monotonic() + _STACKS
        folder = self.folder / "stacks"
        try:
            folder.mkdir(exist_ok=True)
            from workbench.training.flight import collect_flight
            from workbench.training.stacks import collect_stacks, grouped

            flights = threading.Thread(
                target=collect_flight, args=(self.folder / "flight",), kwargs={"deadline": _FLIGHTS}, daemon=True
            )
            flights.start()
            found = collect_stacks(self.pid, folder, deadline=_STACKS - 10, dumps=self._dumps)
            for sentence in grouped(found)[:4]:
                self._say(sentence)
            flights.join(_FLIGHTS)
            if self._together is not None:
                self._together.give(folder)
                if came := self._together.take(folder, end - 2.0):
                    self._say(f"{came} stacks came from the job's other nodes")
        except Exception as error:  # whatever fails here, the job still hangs and must end
            self._say(f"no stacks: {type(error).__name__}: {error}")

    def done(self) -> dict[str, object]:
        """Return what was seen, for the attempt's record."""
        self.look(time.monotonic())
        self.looks.stop()
        self.looks.read()
        hang = self.hang
        return {
            "first_step": self.first,
            "last_step": self.last,
            "usual_seconds": self._watch.usual,
            "stragglers": self.looks.found["told"] if self.looks.found else [],
            "hang": None
            if hang is None
            else json.loads(json.dumps({"reason": hang.reason, "seconds": hang.seconds, "phase": hang.phase})),
        }
