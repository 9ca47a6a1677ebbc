"""
Turn what is about to be done and how it ended into lines that survive a crash, and those lines back into history.

One JSON object a line, appended and never changed. A line is on the disk when the call that wrote it returns, so an intent that cannot be
written stops the action before anything is done. The last field of a line, ``sum``, is the CRC-32 (eight hex digits) of the line's bytes
before the comma in front of it. One process writes at a time; who only reads needs no lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.remediation.model import OUTCOMES, Action, Plan
from workbench.remediation.records import plain, record

__all__ = ["JOURNAL_SCHEMA", "KINDS", "Entry", "Journal", "JournalBusy", "JournalError"]

JOURNAL_SCHEMA = "workbench.journal/1"
KINDS = ("plan", "intent", "outcome", "note")
ROOM = 1 << 20  # bytes that must be free before an intent is written: its outcome must still fit
_SUM = b',"sum":"'
_TAIL = len(_SUM) + len('xxxxxxxx"}')


class JournalError(WorkbenchError):
    """The journal cannot be read or written; what was to be written is not, and nothing may be done that needs it."""

    exit_code = 74


class JournalBusy(JournalError):
    """Another process writes the journal."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One line of the journal.

    Attributes
    ----------
    seq : int
        Grows by one a line; a gap is a lost line.
    time : float
        When it was written, by the controller's clock.
    kind : str
        One of `KINDS`. An ``intent`` is written before anything is done, its ``outcome`` after; a refusal is an outcome without an intent.
    plan, action, node, verb, rung, trouble : str
        What it is about; of an undo, `verb` is the verb that takes back, but of the outcome ``undone`` the action's own.
    status : str
        One of `workbench.remediation.model.OUTCOMES`; only of outcomes.
    detail : str
        One sentence.
    before : mapping
        What was there before, as far as an undo needs it.
    data : mapping
        Of an intent ``action``, the whole action; ``undo`` is true when it is about taking the action back; of a plan ``plan``.
    by : str
        The controller that wrote it.
    """

    seq: int
    time: float
    kind: str
    plan: str = ""
    action: str = ""
    node: str = ""
    verb: str = ""
    rung: str = ""
    trouble: str = ""
    status: str = ""
    detail: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""

    @property
    def undo(self) -> bool:
        """Whether it is about taking the action back."""
        return bool(self.data.get("undo"))

    def intended(self) -> Action | None:
        """Return the whole action of an intent; None when the line does not hold one."""
        try:
            return record(Action, self.data["action"])
        except (KeyError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return it as the journal's line has it, without the sum."""
        return {"schema": JOURNAL_SCHEMA, **plain(self)}


class Journal:
    """
    What was intended and how it ended.

    Opening reads and changes nothing. The first write (or `lock`) takes the exclusive lock of the file, reads what others wrote meanwhile and
    cuts off a torn last line; `close` (or leaving a ``with``) gives the lock back.

    Parameters
    ----------
    path : Path or None
        The file, made by the first write; None keeps everything in memory.
    clock : callable, optional
        Returns seconds since the epoch.
    by : str, optional
        Who writes; default is host and process id.

    Attributes
    ----------
    problems : list of str
        Lines that are damaged or missing: something may have been done that nobody remembers, so nothing destructive may be done until a person
        has looked and called `accept`.
    notices : list of str
        What a person may want to know and nothing hangs on: a torn last line, problems that were accepted.

    Raises
    ------
    JournalError
        The file is there and cannot be read, or is no journal.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time, by: str = "") -> None:
        self.path = path
        self.by = by or f"{socket.gethostname()}/{os.getpid()}"
        self._clock = clock
        self._file: int | None = None
        self._clear()
        self.refresh()

    # reading

    def entries(self) -> list[Entry]:
        """Return every readable entry in the order of writing."""
        return list(self._entries)

    def of_node(self, name: str) -> list[Entry]:
        """Return the entries about a node in the order of writing."""
        return list(self._nodes.get(name, ()))

    def of_action(self, action: str) -> list[Entry]:
        """Return the intents and outcomes of an action in the order of writing, those of its undo too."""
        return list(self._actions.get(action, ()))

    def open(self) -> list[Entry]:
        """Return the intents without outcome, oldest first: begun or not, a crash left them; `engine.resume` finds out."""
        return list(self._open.values())

    def actions_since(self, since: float) -> list[Entry]:
        """
        Return the intents written at `since` (seconds since the epoch) or later, undos left out: what caps per hour count.

        An entry of the future (the clock was set back since) counts as recent.
        """
        return [one for one in self._entries if one.kind == "intent" and one.time >= since and not one.undo]

    def status_of(self, action: str) -> str:
        """
        Return how far an action is: one of ``OUTCOMES``, ``open`` while its (or its undo's) outcome is missing, empty when it was never tried.

        An undo that did not succeed leaves the action what it was; of one whose end cannot be told, nobody knows what it left.
        """
        return "open" if action in self._open else self._status.get(action, "")

    def refresh(self) -> None:
        """
        Read what was written since.

        Raises
        ------
        JournalError
            The file cannot be read.
        """
        if self.path is None or self._file is not None:  # nobody else writes then
            return
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise JournalError(f"the journal {self.path} cannot be read: {error.strerror or error}") from error
        self._load(data)

    # writing

    def record_plan(self, plan: Plan) -> Entry:
        """Write the whole plan, once: a plan that is there already is not written again; return its entry."""
        self.lock()
        if plan.id in self._plans:
            return self._plans[plan.id]
        return self._write("plan", plan=plan.id, data={"plan": plan.to_dict()})

    def intent(self, action: Action, plan: Plan | str, before: Mapping[str, Any], *, undo: bool = False) -> Entry:
        """
        Write that the action (or its undo) is about to be done; on the disk when this returns.

        Parameters
        ----------
        action : Action
        plan : Plan or str
            The plan or its id.
        before : mapping
            What is there now.
        undo : bool, optional
            Whether the action is about to be taken back.

        Raises
        ------
        JournalError
            It is not written (or not for sure), or the disk has no room for the outcome: do not begin.
        """
        data: dict[str, Any] = {"action": action.to_dict()}
        return self._about(action, plan, "intent", "", "", before, data, undo)

    def outcome(
        self,
        action: Action,
        plan: Plan | str,
        status: str,
        detail: str = "",
        before: Mapping[str, Any] | None = None,
        *,
        undo: bool = False,
    ) -> Entry:
        """
        Write how it ended; on the disk when this returns.

        Parameters
        ----------
        status : str
            One of `workbench.remediation.model.OUTCOMES`; of an undo that succeeded ``undone``.

        Raises
        ------
        JournalError
            It is not written: the intent stays open, and `engine.resume` finds out how it ended.
        """
        if status not in OUTCOMES:
            raise ValueError(f"{status!r} is none of {', '.join(OUTCOMES)}")
        return self._about(action, plan, "outcome", status, detail, before or {}, {}, undo or status == "undone")

    def note(self, text: str, *, node: str = "", plan: Plan | str = "", data: Mapping[str, Any] | None = None) -> Entry:
        """Write a sentence for people: the kill switch, a lost lock, what could not be settled."""
        return self._write("note", plan=_plan_id(plan), node=node, detail=text, data=data or {})

    def accept(self, text: str) -> Entry:
        """Write that a person has looked at the `problems` of the file up to here and why they no longer matter; they become notices."""
        entry = self._write("note", detail=text, data={"accepts": True})
        self._accepted()
        return entry

    def lock(self) -> None:
        """
        Take the exclusive lock of the file for this process, read what others wrote, cut off a torn last line.

        Raises
        ------
        JournalBusy
            Another process holds it.
        JournalError
            The file cannot be opened or repaired.
        """
        if self.path is None or self._file is not None:
            return
        try:
            self._file = self._take(self.path)
        except OSError as error:
            raise JournalError(f"the journal {self.path} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Give the lock back; writing again takes it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Journal:
        self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # within

    def _clear(self) -> None:
        self.problems: list[str] = []
        self.notices: list[str] = []
        self._entries: list[Entry] = []
        self._nodes: dict[str, list[Entry]] = {}
        self._actions: dict[str, list[Entry]] = {}
        self._open: dict[str, Entry] = {}
        self._status: dict[str, str] = {}
        self._plans: dict[str, Entry] = {}
        self._size = 0  # bytes up to the end of the last whole line

    def _take(self, path: Path) -> int:
        while True:
            new = not path.exists()
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            try:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    hint = "one controller writes a journal at a time: wait for it, or look who it is with `fuser`"
                    raise JournalBusy(f"another process writes the journal {path}", hint=hint) from None
                try:
                    same = os.path.samestat(os.stat(path), os.fstat(file))
                except FileNotFoundError:
                    same = False
                if not same:  # somebody moved it away between opening and locking: the lock of that file is worth nothing
                    os.close(file)
                    continue
                size = os.fstat(file).st_size
                data = os.pread(file, size, 0)
                while len(data) < size and (more := os.pread(file, size - len(data), len(data))):
                    data += more
                self._load(data)
                if self._size != size:
                    whole = data[self._size :]
                    if _entry(whole) is not None:  # only its line end is missing
                        os.write(file, b"\n")
                        self._load(data + b"\n")
                    else:
                        os.ftruncate(file, self._size)
                        self._load(data[: self._size])
                        self.notices.append(
                            f"its last line was torn ({size - self._size} bytes): the write never ended, it is cut off"
                        )
                    os.fsync(file)
                if new:
                    _sync_folder(path.parent)
            except BaseException:
                try:
                    os.close(file)
                except OSError:
                    pass
                raise
            return file

    def _load(self, data: bytes) -> None:
        self._clear()
        damaged = False  # the line before: its number is not known, so what looks like a gap is told already
        end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
            entry = _entry(line)
            if entry is None:
                self.problems.append(f"line {number} is damaged")
                damaged = True
                continue
            last = self._entries[-1].seq if self._entries else 0
            if entry.seq != last + 1 and not (damaged and entry.seq > last + 1):
                lines = "are not in order" if entry.seq <= last else f"are missing: {last + 1} to {entry.seq - 1}"
                self.problems.append(f"entries before line {number} {lines}")
            damaged = False
            self._add(entry)
            if entry.data.get("accepts"):
                self._accepted()
        self._size = end
        if end < len(data):
            self.notices.append(f"its last line ({len(data) - end} bytes) is not whole: it is being written, or a crash tore it")

    def _accepted(self) -> None:
        self.notices += [f"accepted: {one}" for one in self.problems]
        self.problems.clear()

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        if entry.node:
            self._nodes.setdefault(entry.node, []).append(entry)
        if entry.kind == "plan":
            self._plans[entry.plan] = entry
        elif entry.kind in ("intent", "outcome"):
            self._actions.setdefault(entry.action, []).append(entry)
            if entry.kind == "intent":
                self._open.pop(entry.action, None)
                self._open[entry.action] = entry
            else:
                self._open.pop(entry.action, None)
                if not entry.undo or entry.status in ("undone", "unknown"):
                    self._status[entry.action] = entry.status

    def _about(
        self,
        action: Action,
        plan: Plan | str,
        kind: str,
        status: str,
        detail: str,
        before: Mapping[str, Any],
        data: dict[str, Any],
        undo: bool,
    ) -> Entry:
        if undo:
            data["undo"] = True
        return self._write(
            kind,
            plan=_plan_id(plan),
            action=action.id,
            node=action.node,
            # who counts what was begun must not count an undo as the same again; that it is undone is said of the action itself
            verb=(action.undo or "undo") if undo and status != "undone" else action.verb,
            rung=action.rung,
            trouble=action.trouble,
            status=status,
            detail=detail,
            before=plain(before),
            data=data,
        )

    def _write(self, kind: str, **fields: Any) -> Entry:
        self.lock()
        seq = self._entries[-1].seq + 1 if self._entries else 1
        entry = Entry(seq=seq, time=self._clock(), kind=kind, by=self.by, **fields)
        if self._file is not None:
            self._append(self._file, entry)
        self._add(entry)
        return entry

    def _append(self, file: int, entry: Entry) -> None:
        try:
            line = _line(entry)
        except (TypeError, ValueError) as error:
            raise JournalError(f"the entry cannot be written as JSON: {error}") from error
        try:
            if entry.kind == "intent":
                disk = os.fstatvfs(file)
                if disk.f_bavail * disk.f_frsize < ROOM:
                    raise OSError(f"less than {ROOM >> 20} MiB is free there, and the outcome must fit as well")
            rest = line
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError as error:
            # After a failed fsync nobody knows what is on the disk: let go of the file, the next write reads it again and cuts off the piece
            try:
                os.ftruncate(file, self._size)
            except OSError:
                pass
            self.close()
            hint = "nothing is done that is not journaled first; free the disk or name another file"
            raise JournalError(f"the journal {self.path} cannot be written: {error.strerror or error}", hint=hint) from error
        self._size += len(line)


def _plan_id(plan: Plan | str) -> str:
    return plan if isinstance(plan, str) else plan.id


def _line(entry: Entry) -> bytes:
    body = json.dumps(entry.to_dict(), separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    return body + _SUM + b'%08x"}\n' % zlib.crc32(body)


def _entry(line: bytes) -> Entry | None:
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail != _SUM + b'%08x"}' % zlib.crc32(body):
        return None
    try:
        value = json.loads(body + b"}")
        if value.pop("schema") != JOURNAL_SCHEMA or value["kind"] not in KINDS:
            return None
        return record(Entry, value)
    except (KeyError, ValueError, AttributeError, TypeError):
        return None


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
