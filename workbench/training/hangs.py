"""
Turn signs of progress (lines of a log, calls of `workbench.training.progress`) into the news that a job hangs: since when, after which
step, and which ranks lag.

Pure but for `ProgressFile`: the caller says what time it is, by a clock that never jumps (`time.monotonic`).
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from workbench.training.progress import PAUSES

__all__ = ["Hang", "Progress", "ProgressFile", "Watch", "read_line"]

_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# [rank3]: … | [Rank 0] … | 3: … of srun -l | [default3]: … of torchrun --log-line-prefix (a local rank, which tells speakers apart)
_SPEAKER = re.compile(r"^\s*(?:\[(?:rank|Rank |default|trainer)(\d+)\]:?|(\d{1,6}): )|\[[Rr]ank[ =:]?(\d+)\]")
# Saving checkpoint at step 100 | saving checkpoint at iteration 500 to /ckpt | ***** Running Evaluation ***** | Validation started …
_PAUSE = re.compile(
    r"(?i)\b(?:(?P<save>sav(?:e|ing)\s+(?:\w+\s+){0,3}?(?:checkpoint|model|state)|checkpointing\b)"
    r"|(?P<eval>running (?:evaluation|validation|prediction)|(?:start(?:ing|ed)?|begin(?:ning)?) (?:evaluation|validation|eval\b)"
    r"|evaluating\b|validating\b|(?:evaluation|validation) (?:started|begins|loop)))"
)
_PAUSE_WORDS = ("aving", "ave ", "heckpointing", "valuati", "alidati", "unning ")
_SAME = 0.01  # s: lines that came together, as those of a buffered pipe do, are one sign
_LONGEST = 1 << 16  # bytes without an end of line, after which what was held is one line


class Progress(NamedTuple):
    """One sign of progress; `time` is seconds since the epoch where a rank told it, None where a line did not."""

    step: float
    time: float | None = None
    rank: int | None = None
    samples: int | None = None
    phase: str | None = None
    seconds: float | None = None  # what the rank itself worked on the step
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """
    A job that makes no progress any more.

    `since` and `now` are on the caller's clock (s); `seconds` is how long it has been silent, without time in which the watcher itself
    was stopped; `usual` is the usual time between two signs of progress and `limit` what was waited for.
    """

    since: float
    now: float
    seconds: float
    phase: str  # start | training | eval, save, … (an announced pause) | end (after the last step)
    last_step: float | None
    usual: float | None
    limit: float
    behind: tuple[
        int, ...
    ] = ()  # ranks whose last step is before the others'; empty when all stand at the same one, or none is told
    ahead: tuple[int, ...] = ()
    reason: str = ""

    @property
    def certain(self) -> bool:
        """Whether progress was seen before: of a job that never told any it is not known whether it only does not tell."""
        return self.last_step is not None


class ProgressFile:
    """
    What `workbench.training.progress` wrote, read as it grows.

    A file that is not there yet, is cut or is replaced is read from its beginning when it comes; half a line waits for its rest.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.problem = ""  # why nothing can be read; empty where it can, or where the file is not there yet
        self._at = 0
        self._node = 0
        self._half = b""

    def read(self, most: int = 4 << 20) -> list[Progress]:
        """Return what was written since the last call, at most `most` bytes of it; never raises for what the file is or holds."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                state = os.fstat(file.fileno())
                if state.st_ino != self._node or state.st_size < self._at:
                    self._node, self._at, self._half = state.st_ino, 0, b""
                file.seek(self._at)
                data = file.read(most) or b""
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror or error}"
            return []
        self.problem = ""
        self._at += len(data)
        lines = (self._half + data).split(b"\n")
        self._half = lines.pop()[-_LONGEST:]
        return [found for line in lines if (found := read_line(line.decode("ascii", "replace"))) is not None]


def read_line(line: str) -> Progress | None:
    """Return what one line of a progress file says; None for one that `workbench.training.progress` did not write."""
    fields = line.split()
    try:
        # five fields until 2026-11, seven since: a job may bring an older `workbench.training.progress` of its own
        if len(fields) not in (5, 7) or not (fields[4] == "-" or fields[4] in PAUSES):
            return None
        rank, samples = (None if text == "-" else int(text) for text in (fields[1], fields[3]))
        time = float(fields[2])
        own, node = (*fields[5:], "-", "-")[:2]
        worked = None if own == "-" else float(own)
        return Progress(
            int(fields[0]),
            time if math.isfinite(time) else None,
            rank,
            samples,
            None if fields[4] == "-" else fields[4],
            worked if worked is not None and math.isfinite(worked) and worked > 0 else None,
            None if node == "-" else node,
        )
    except ValueError:
        return None


class Watch:
    """
    Watches one attempt of one job.

    Parameters
    ----------
    factor : float
        A hang is silence for the usual time between two signs of progress (the median of the last `window`) and, on top, for so many
        usual steps, …
    floor : float
        … but no less than so many seconds, …
    pause : float
        … nor than so many of the longest pause that the job came back from: a checkpoint or an evaluation that takes ten steps is
        learned the first time.
    start_limit : float or None
        Seconds before the first step (rendezvous, loading, compiling), and at most in the first few, whose times say little. None: never.
    pause_limit : float
        Seconds for an evaluation or a save that the job announced, by a line or by ``progress(step, phase=...)``, and after the last step.
    warm_up : float
        Seconds at least while fewer than `enough` times are known: the second step may compile again.
    window : int
        How many times between signs of progress "usual" is made of.

    Notes
    -----
    `pause` and `start_limit` follow NVIDIA's resiliency extension, which takes the longest interval seen times a safety factor, and 60
    minutes to the first heartbeat (https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/index.html); `warm_up` is PyTorch's own
    time-out of a collective (torch.distributed, `default_pg_nccl_timeout`, 10 minutes): before this much, the job would not fail of itself.

    A gap between two calls of `tick` far longer than usual is time in which the watcher did not run (a suspended laptop, a frozen
    container, a stopped process tree). It says nothing about the job and does not count.
    """

    enough = 8

    def __init__(
        self,
        *,
        factor: float = 10.0,
        floor: float = 300.0,
        pause: float = 3.0,
        start_limit: float | None = 3600.0,
        pause_limit: float = 1800.0,
        warm_up: float = 600.0,
        window: int = 128,
        stopped: float = 60.0,
        progress: str | os.PathLike[str] | None = None,
    ) -> None:
        self.factor, self.floor, self.pause = factor, floor, pause
        self.start_limit, self.pause_limit, self.warm_up, self.stopped = start_limit, pause_limit, warm_up, stopped
        self.file = ProgressFile(progress) if progress is not None else None
        self.last_step: float | None = None
        self.false_alarms = 0  # hangs that were told and after which the job went on
        self._gaps: deque[tuple[float, float]] = deque(maxlen=window)  # seconds, and steps made in them
        self._pauses: deque[float] = deque(maxlen=32)  # long ones, which the job came back from
        self._announced = 0.0  # the longest pause that was announced
        self._values: dict[tuple[int | None, str, float | None], float] = {}  # speaker and kind of sign → its last value
        self._front: dict[tuple[str, float | None], float] = {}  # kind of sign → the value that the first rank has reached
        self._ranks: dict[int, float] = {}
        self._phase = "start"
        # on the caller's clock without what was lost, and as it was
        self._began: float | None = None
        self._began_at: float | None = None
        self._led: float | None = None
        self._moved: float | None = None
        self._moved_at: float | None = None
        self._called: float | None = None
        self._lost = 0.0
        self._told = False
        self._silence = 0.0  # when it was told
        self._half = b""
        self._usual: float | None = None  # both are of the present gaps, once somebody asked
        self._waits: float | None = None

    # what comes in

    def feed(self, line: str, now: float) -> Progress | None:
        """
        Take a line of the job's output; a progress bar's many states in one line count as its last.

        Returns
        -------
        Progress or None
            What the line told.
        """
        from workbench.parse.progress import step_of

        if "\x1b" in line:
            line = _ANSI.sub("", line)
        step = step_of(line)
        if step is not None:
            value = step.step if step.step is not None else step.epoch
            if value is None:
                return None
            found = _SPEAKER.search(line[:200])
            rank = int(next(group for group in found.groups() if group is not None)) if found else None
            last = step.total is not None and step.step is not None and value >= step.total
            told = Progress(value, None, rank, None, "end" if last else None)
            self._note(told, now, (rank, step.kind, step.total))
            return told
        if self.last_step is not None and any(word in line for word in _PAUSE_WORDS) and (match := _PAUSE.search(line)):
            self._phase = match.lastgroup or "save"
        return None

    def feed_bytes(self, data: bytes, now: float) -> None:
        """Take output as it comes: lines end with a line feed or, as a progress bar's do, with a carriage return."""
        data = self._half + data
        lines = data.replace(b"\r", b"\n").split(b"\n")
        self._half = lines.pop()
        if len(self._half) > _LONGEST:
            lines.append(self._half)
            self._half = b""
        for line in lines:
            if line:
                self.feed(line.decode("utf-8", "replace"), now)

    def note(self, told: Progress, now: float) -> None:
        """Take what a rank told by `workbench.training.progress`."""
        self._note(told, now, (told.rank, "call", None))

    def _note(self, told: Progress, now: float, key: tuple[int | None, str, float | None]) -> None:
        moment = self._clock(now)
        before, front = self._values.get(key), self._front.get(key[1:])
        self._values[key] = told.step
        if told.rank is not None:
            self._ranks[told.rank] = told.step
        paused = self._phase in PAUSES
        if told.phase is not None:
            self._phase = told.phase
        elif before != told.step:
            self._phase = "training"
        if before == told.step:
            if told.phase is not None and key[1] == "call":
                self._moved, self._moved_at = moment, now  # the step is over: an announced pause begins
            return  # the same step again: a bar redrawn, a rank that says it twice
        back = before is not None and told.step < before  # a new epoch counts from its own beginning
        if front is None or told.step > front or back:  # the first rank at this step; the others' calls are no steps of their own
            self._front[key[1:]] = told.step
            if paused and self._led is not None:
                self._announced = max(self._announced, moment - self._led)  # it will be announced the next time, too
            elif self._led is not None and moment - self._led > _SAME:
                self._add(moment - self._led, told.step - front if front is not None else 1.0)
            self._led = moment
        self.last_step = told.step if back or self.last_step is None else max(told.step, self.last_step)
        if self._moved is not None and self._told:
            self._told = False
            self.false_alarms += 1
        self._moved, self._moved_at = moment, now

    def _add(self, gap: float, steps: float) -> None:
        if len(self._gaps) >= self.enough and gap > 3.0 * self.usual_or(0.0):
            self._pauses.append(gap)
        self._gaps.append((gap, max(steps, 1.0)))
        self._usual = self._waits = None

    def again(self) -> Watch:
        """
        Return a watch for the next attempt of the same job: it knows already how long the job's pauses are.

        A hang that was told counts as one: should it have been an evaluation that nobody announced, the next attempt waits longer for it and
        gets past it, instead of being ended there each time.
        """
        other = Watch(
            factor=self.factor, floor=self.floor, pause=self.pause, start_limit=self.start_limit, pause_limit=self.pause_limit,
            warm_up=self.warm_up, window=self._gaps.maxlen or 128, stopped=self.stopped,
            progress=self.file.path if self.file is not None else None,
        )  # fmt: skip
        other._pauses.extend(self._pauses)
        other._announced = self._announced
        if self._told and self.last_step is not None:
            other._pauses.append(self._silence)
        return other

    # what comes out

    @property
    def usual(self) -> float | None:
        """Usual time (s) between two signs of progress, None before one is known."""
        if self._usual is None and self._gaps:
            self._usual = median(gap for gap, _ in self._gaps)
        return self._usual

    def usual_or(self, other: float) -> float:
        """`usual`, or `other` where nothing is usual yet."""
        usual = self.usual
        return other if usual is None else usual

    @property
    def limit(self) -> float | None:
        """How much silence (s) is a hang at present; None when none is."""
        if self.last_step is None:
            return self.start_limit
        if self._waits is None:
            self._waits = self._learned()
        found = self._waits
        if self._phase in PAUSES:
            found = max(found, self.pause_limit, 1.5 * self._announced)
        return found

    def _learned(self) -> float:
        if not self._gaps:
            return max(self.start_limit or self.pause_limit, self.warm_up)
        usual = self.usual_or(0.0)
        spread = _MAD_TO_SIGMA * median(abs(gap - usual) for gap, _ in self._gaps)
        step = median(gap / steps for gap, steps in self._gaps)
        longest = max(self._pauses) if self._pauses else max(gap for gap, _ in self._gaps)
        # a job that became twice as slow does not hang, also where a line comes every hundred steps only
        learned = min(self.pause * longest, max(self.pause_limit, 1.5 * longest, 2.5 * usual)) - usual
        found = usual + max(self.floor, self.factor * step, 6.0 * spread, learned)
        return found if len(self._gaps) >= self.enough else max(found, self.warm_up)

    def tick(self, now: float) -> Hang | None:
        """
        Say what time it is; to be called every second or so, `stopped` seconds apart at most.

        Returns
        -------
        Hang or None
            A hang is told once; when the job goes on all the same, `false_alarms` counts it and the watch begins anew.
        """
        if self.file is not None:
            for told in self.file.read():
                self.note(told, now)
        moment = self._clock(now)
        since = self._moved if self._moved is not None else self._began
        at = self._moved_at if self._moved is not None else self._began_at
        limit = self.limit
        if since is None or at is None or limit is None or self._told or moment - since < limit:
            return None
        self._told = True
        seconds = self._silence = moment - since
        most = max(self._ranks.values(), default=0.0)
        behind = tuple(sorted(rank for rank, step in self._ranks.items() if step < most))
        ahead = tuple(sorted(set(self._ranks) - set(behind))) if behind else ()
        phase = self._phase if self.last_step is not None else "start"
        return Hang(
            at, now, seconds, phase, self.last_step, self.usual, limit, behind, ahead, self._reason(seconds, limit, phase, behind)
        )

    def _reason(self, seconds: float, limit: float, phase: str, behind: tuple[int, ...]) -> str:
        if self.last_step is None:
            return f"no step in {_span(seconds)} since the start, and {_span(limit)} were allowed for the first"
        usual = f", where one is usual every {_span(self.usual)}" if self.usual is not None else ""
        where = {"training": "", "end": ", which was the last"}.get(phase, f" ({phase} was announced)")
        who = f"; behind the others: rank{'s' if len(behind) > 1 else ''} {_some(behind)}" if behind else ""
        return f"no progress for {_span(seconds)} after step {self.last_step:g}{where}{usual}; the limit is {_span(limit)}{who}"

    def _clock(self, now: float) -> float:
        """The caller's clock without time in which nobody watched; one that goes back stands still."""
        if self._called is None:
            self._called = self._began_at = self._began = now
        elif now - self._called > self.stopped:
            self._lost += now - self._called
        self._called = max(now, self._called)
        return self._called - self._lost


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


def _some(ranks: tuple[int, ...], most: int = 16) -> str:
    return ", ".join(map(str, ranks[:most])) + (f" and {len(ranks) - most} more" if len(ranks) > most else "")
