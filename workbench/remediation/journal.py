"""
Turn what is about to be done and how it ended into lines that survive a crash, and those lines back into history.

One JSON object a line, appended and never changed. A line is on the disk when the call that wrote it returns, so an intent that cannot be
written stops the action before anything is done. The last field of a line, ``sum``, is the CRC-32 (eight hex digits) of the line's bytes
before the comma in front of it. One process writes at a time; who only reads needs no lock.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.durable import sync_folder
from workbench.errors import WorkbenchError
from workbench.remediation.entries import JOURNAL_SCHEMA, KINDS, Entry, entry_of, line_of
from workbench.remediation.model import OUTCOMES, Action, Plan
from workbench.remediation.moments import Moment, Moments, Steady, this_machine
from workbench.remediation.records import plain

__all__ = ["JOURNAL_SCHEMA", "KINDS", "Entry", "Journal", "JournalBusy", "JournalError"]

ROOM = 1 << 20  # bytes that must be free before an intent is written: its outcome must still fit


class JournalError(WorkbenchError):
    """The journal cannot be read or written; what was to be written is not, and nothing may be done that needs it."""

    exit_code = 74


class JournalBusy(JournalError):
    """Another process writes the journal."""

    exit_code = 75


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
    steady : callable, optional
        Returns seconds that only grow and of which clock they are; default is this machine's, or none when `clock` was given.

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

    def __init__(
        self, path: Path | None, *, clock: Callable[[], float] = time.time, by: str = "", steady: Steady | None = None
    ) -> None:
        self.path = path
        self.by = by or f"{socket.gethostname()}/{os.getpid()}"
        self._clock = clock
        self._steady = this_machine if steady is None and clock is time.time else steady
        self._file: int | None = None
        self._clear()
        self.refresh()

    # reading

    def entries(self) -> list[Entry]:
        """Return every readable entry in the order of writing."""
        return list(self._entries)

    def past(self) -> list[Entry]:
        """
        Return every readable entry with its time by the clock of now: what caps, cool-downs and ladders count by.

        Where somebody set the clock since, `Entry.time` is not what the line says but now less how long ago it was.
        """
        found = list(self._entries)
        for first, end, shift in self._moments.shifts(self._now()):
            found[first:end] = [replace(one, time=one.time + shift) for one in found[first:end]]
        return found

    def age(self, entry: Entry) -> float:
        """Return how many seconds ago an entry of this journal was written, whatever the clock was set to since."""
        return self._moments.age(self._places[entry.seq], self._now())

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
        """Return the intents written at `since` (seconds since the epoch, by the clock of now) or later, undos left out."""
        return [one for one in self.past() if one.kind == "intent" and one.time >= since and not one.undo]

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
        self._moments = Moments()
        self._places: dict[int, int] = {}  # sequence number → index
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
                    if entry_of(whole) is not None:  # only its line end is missing
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
                    sync_folder(path.parent)
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
            entry = entry_of(line)
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
        self._places[entry.seq] = len(self._entries)
        self._entries.append(entry)
        self._moments.add(Moment(entry.time, entry.steady, entry.base))
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
        now = self._now()
        entry = Entry(seq=seq, time=now.wall, kind=kind, by=self.by, steady=now.steady, base=now.base, **fields)
        if self._file is not None:
            self._append(self._file, entry)
        self._add(entry)
        return entry

    def _now(self) -> Moment:
        return Moment(self._clock()) if self._steady is None else Moment(self._clock(), *self._steady())

    def _append(self, file: int, entry: Entry) -> None:
        try:
            line = line_of(entry)
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
