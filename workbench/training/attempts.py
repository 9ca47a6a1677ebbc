"""Turn the starts of a job into records on the disk that survive a crash, and the restarts of a whole cluster into one count."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.remediation.records import plain, record
from workbench.training.lines import Lines, LinesError

if TYPE_CHECKING:
    from workbench.model import Verdict

__all__ = ["SCHEMA", "Attempt", "History", "RunLedger", "Storm", "Told", "describe", "told"]

SCHEMA = "workbench.attempt/1"
GPU_NAMES = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    One start of a job and how it ended, as far as it is known.

    Attributes
    ----------
    number : int
        From 1.
    started, ended : float or None
        Seconds since the epoch; `ended` is None while it runs, or when whoever ran it was killed.
    state : str
        One of `workbench.fleet.tables.JOB_STATES`.
    exit_code : int or None
        Of the launcher; negative for a signal.
    cause, cls, confidence, retry, remediation, at_fault, node, gpu_uuid, rank
        Of its verdict; empty and None before there is one. `node` is where it happened; whether the node is to blame says `at_fault`.
    certain : bool
        Whether starting again would only repeat it: see `workbench.training.retry.certain`.
    step_first, step_last, checkpoint_step : int or None
        First and last step that it made, and step of the last checkpoint that the next attempt can begin from; None when nobody told.
    excluded : tuple of str
        Nodes and GPUs that it was kept off.
    incident : str
        Folder of its evidence.
    summary : str
        The verdict's sentence.
    """

    number: int
    started: float | None = None
    ended: float | None = None
    state: str = "failed"
    exit_code: int | None = None
    cause: str = ""
    cls: str = ""
    certain: bool = False
    confidence: float | None = None
    retry: str | None = None
    remediation: str | None = None
    at_fault: str | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    rank: int | None = None
    step_first: int | None = None
    step_last: int | None = None
    checkpoint_step: int | None = None
    excluded: tuple[str, ...] = ()
    incident: str = ""
    summary: str = ""

    @property
    def reached(self) -> int | None:
        """The furthest step that it was known to be at."""
        return max((one for one in (self.step_first, self.step_last, self.checkpoint_step) if one is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, as the ledger's line has it."""
        return dict(plain(self))


@dataclass(frozen=True, slots=True)
class History:
    """
    All that a decision needs to know of the past.

    Attributes
    ----------
    attempts : tuple of Attempt
        Of this job, the oldest first; the last is the one that just ended and that the verdict is about.
    others : int or None
        Restarts of other jobs within the policy's storm window; None when they could not be counted.
    now : float
        Seconds since the epoch.
    job : str
        Its id: the seed of the back-off's jitter, so that jobs that failed together do not come back together.
    returned : mapping of str to float
        Node → when it was last given back to work (seconds since the epoch), where somebody told: what was blamed before that is used again.
    """

    attempts: tuple[Attempt, ...] = ()
    others: int | None = 0
    now: float = 0.0
    job: str = ""
    returned: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """What a verdict says, of whichever form it came in."""

    cause: str = "unknown"
    cls: str = "unknown"
    confidence: float = 0.0
    summary: str = ""
    retry: str | None = None
    remediation: str | None = None
    at_fault: str | None = None
    node: str | None = None
    gpu: str | None = None  # its UUID; else NODE/PCI, which is an identity as long as nobody moves it
    rank: int | None = None
    next_steps: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


def told(verdict: Verdict | Mapping[str, Any] | None) -> Told:
    """
    Return what a verdict says; without one, or from what is none, that nothing is known.

    Parameters
    ----------
    verdict : Verdict, mapping or None
        The object, or its JSON form of schema ``workbench.verdict/1``.
    """
    if verdict is None:
        return Told(summary="There is no verdict.")
    if not isinstance(verdict, Mapping):
        rows: list[tuple[Any, ...]] = [(one.role, one.file, one.line, one.text) for one in verdict.evidence_records]
        where: Mapping[str, Any] = {"node": verdict.node, "rank": verdict.rank, "at_fault": verdict.at_fault}
        gpu: Any = verdict.gpu.as_dict() if verdict.gpu else None
        cls, confidence = verdict.cls, verdict.confidence
        summary, retry, remediation, steps = verdict.summary, verdict.retry, verdict.remediation, verdict.next_steps
    else:
        found = verdict.get("evidence") or ()
        rows = [(one.get("role"), one.get("file"), one.get("line"), one.get("text")) for one in found if isinstance(one, Mapping)]
        where = _mapping(verdict.get("culprit"))
        gpu = where.get("gpu")
        cls, confidence = str(verdict.get("class") or "unknown"), verdict.get("confidence") or 0.0
        summary, retry = str(verdict.get("summary") or ""), verdict.get("retry")
        remediation, steps = verdict.get("remediation"), verdict.get("next_steps") or []
    node = str(where["node"]) if where.get("node") else None
    gpu = _mapping(gpu)
    # only what is an identity: `GPU_SXM_1` of a BMC is a place in a machine
    uuid = str(gpu.get("uuid") or "")
    name = uuid if uuid.startswith(GPU_NAMES) else (f"{node}/{gpu['pci']}" if node and gpu.get("pci") else None)
    causes = [row for row in rows if row[0] == "cause"][:3]
    return Told(
        cause=cls.split("/")[0],
        cls=cls,
        confidence=float(confidence) if math.isfinite(confidence) else 0.0,
        summary=summary,
        retry=retry,
        remediation=remediation,
        at_fault=where.get("at_fault"),
        node=node,
        gpu=str(name) if name else None,
        rank=where.get("rank"),
        next_steps=tuple(map(str, steps)),
        evidence=tuple(f"{file}:{line}: {text}" if line else f"{file}: {text}" for _, file, line, text in causes),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


class RunLedger:
    """
    The attempts of one run, on the disk.

    A line may be written several times with the same number, as more is known of the attempt: the last one counts. The file is for other
    programs, too: JSON lines of schema ``workbench.attempt/1`` with the fields of `Attempt`.

    Parameters
    ----------
    path : str or Path
        ``RUN/attempts.jsonl``; made by the first write, its folder is there.

    Raises
    ------
    LinesError
        It cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        self._lines = Lines(path, SCHEMA)
        self.path = self._lines.path

    @property
    def problems(self) -> list[str]:
        """What could not be read of it, by the last `attempts`."""
        return [*self._lines.problems]

    @property
    def notices(self) -> list[str]:
        """What a person may want to know and nothing hangs on: a torn last line."""
        return [*self._lines.notices]

    def attempts(self) -> tuple[Attempt, ...]:
        """Return the attempts in the order of their numbers."""
        found: dict[int, Attempt] = {}
        values = self._lines.read()
        strange = 0
        for value in values:
            try:
                one = record(Attempt, value)
            except ValueError:
                strange += 1
                continue
            found[one.number] = one
        if strange:
            self._lines.problems.append(f"{strange} lines of {self.path.name} are no attempts that this version knows")
        return tuple(found[number] for number in sorted(found))

    def put(self, attempt: Attempt) -> None:
        """Write an attempt, or more of what is known of it; on the disk when this returns."""
        self._lines.append(attempt.to_dict())

    def history(self, *, now: float, others: int | None = 0, job: str = "") -> History:
        """Return what `workbench.training.retry.decide` wants."""
        return History(self.attempts(), others, now, job)

    def close(self) -> None:
        """Give the lock of the file back."""
        self._lines.close()

    def __enter__(self) -> RunLedger:
        self._lines.lock()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Storm:
    """
    The restarts of all jobs of a cluster within a window: one small file that all supervisors share.

    Parameters
    ----------
    path : str or Path
        On a file system that all of them see, with `flock` across its nodes where they run on several; its folder is made.
    window : float, optional
        Seconds back that count; what is older is dropped from the file.
    """

    def __init__(self, path: str | Path, window: float = 600.0) -> None:
        self.path = Path(path)
        self.window = window

    def others(self, job: str, now: float) -> int:
        """
        Return how many restarts jobs other than this one had within the window.

        Raises
        ------
        LinesError
            The file is there and cannot be read: give `History.others` None.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise LinesError(f"{self.path} cannot be read: {error.strerror or error}") from error
        return sum(1 for time, name in _restarts(text) if name != job and now - self.window < time <= now + self.window)

    def record(self, job: str, now: float) -> None:
        """
        Write that a job starts again.

        Raises
        ------
        LinesError
            It is not written: others will not see this restart.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # held for one small write
                data = os.pread(file, os.fstat(file).st_size, 0)
                # clocks of nodes differ: what is a little in the future stays
                kept = [one for one in _restarts(data) if abs(now - one[0]) < 2 * self.window]
                rows = [json.dumps({"time": time, "job": name}) for time, name in (*kept, (now, job))]
                whole = ("\n".join(rows) + "\n").encode("ascii")
                # written in place, since a file put in its place would have another lock; a torn line is skipped by who reads
                os.pwrite(file, whole, 0)
                os.ftruncate(file, len(whole))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise LinesError(f"{self.path} cannot be written: {error.strerror or error}") from error


def _restarts(data: bytes) -> list[tuple[float, str]]:
    found = []
    for line in data.split(b"\n"):
        try:
            row = json.loads(line)
            found.append((float(row["time"]), str(row["job"])))
        except (ValueError, KeyError, TypeError):  # torn, or empty
            continue
    return found


def describe(history: History | tuple[Attempt, ...]) -> list[dict[str, Any]]:
    """
    Return the attempts as rows for people: texts and numbers, None where nobody told.

    Columns: ``attempt``, ``started`` and ``ended`` (epoch seconds), ``seconds``, ``state``, ``exit``, ``class``, ``confidence``, ``blamed``
    (who is at fault, and the node, GPU or rank), ``steps`` (``first-last``), ``progress`` (steps beyond all earlier attempts), ``checkpoint``,
    ``excluded``, ``summary``.
    """
    attempts = history.attempts if isinstance(history, History) else history
    rows: list[dict[str, Any]] = []
    best: int | None = None
    for one in attempts:
        reached = one.reached
        gained = None if reached is None else max(0, reached - (best if best is not None else (one.step_first or 0)))
        if reached is not None:
            best = reached if best is None else max(best, reached)
        rows.append(
            {
                "attempt": one.number,
                "started": one.started,
                "ended": one.ended,
                "seconds": None if one.started is None or one.ended is None else round(one.ended - one.started, 3),
                "state": one.state,
                "exit": one.exit_code,
                "class": one.cls or None,
                "confidence": one.confidence,
                "blamed": _blamed(one),
                "steps": None
                if one.step_last is None
                else f"{'?' if one.step_first is None else one.step_first}-{one.step_last}",
                "progress": gained,
                "checkpoint": one.checkpoint_step,
                "excluded": " ".join(one.excluded),
                "summary": one.summary,
            }
        )
    return rows


def _blamed(one: Attempt) -> str | None:
    place = {
        "node": one.node,
        "gpu": f"{one.node or '?'} {one.gpu_uuid or ''}".strip(),
        "rank": None if one.rank is None else str(one.rank),
    }
    if not one.at_fault:
        return None
    return f"{one.at_fault} {place.get(one.at_fault) or ''}".strip()


def ended(attempt: Attempt, seen: Told, *, certain: bool) -> Attempt:
    """Return an attempt with what its verdict says."""
    return replace(
        attempt,
        cause=seen.cause,
        cls=seen.cls,
        certain=certain,
        confidence=seen.confidence,
        retry=seen.retry,
        remediation=seen.remediation,
        at_fault=seen.at_fault,
        node=seen.node,
        gpu_uuid=seen.gpu if seen.gpu and "/" not in seen.gpu else None,
        rank=seen.rank,
        summary=seen.summary,
    )
