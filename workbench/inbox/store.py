"""
Turn a folder into the inbox: one folder an incident, which several processes read and write at once without seeing half of anything.

    ROOT/lock                        held while something is added or changed; who only reads needs no lock
    ROOT/entries/ID/entry.json       the row (`workbench.inbox.model.Entry`), replaced in one step
                    history.jsonl    who changed what, when and why; only ever appended, and the truth about the state
                    verdict.json     the verdict (``workbench.verdict/1``), the document that ``workbench triage -o json`` prints
                    case-N/          the case file
                    evidence-N/      the evidence, when it was collected for the inbox

A state is first appended to the history and then written into the row, so a crash between the two loses nothing: who reads a row looks
whether the history has grown since.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.inbox.files import (
    InboxBusy,
    InboxError,
    append_line,
    length_of,
    lines_from,
    locked,
    next_name,
    remove,
    size_of_tree,
    write_json,
)
from workbench.inbox.model import STATES, Entry
from workbench.inbox.rows import ID, facts_of, frame_of, from_json, owned, priced, to_json, verdict_facts
from workbench.owners import Teams

if TYPE_CHECKING:
    import pandas as pd

    from workbench.casefile.model import CaseFile

__all__ = ["Inbox", "InboxBusy", "InboxError"]

OPEN = ("new", "acknowledged")  # somebody may still have to look
_HALF = 600.0  # seconds after which a folder without a row is no add that still runs
_LEFT = 86400.0  # seconds after which what nobody refers to is of no collection that still runs
_SEEN = "history"  # in `data` of a row: how many bytes of the history it has taken in


class Inbox:
    """
    The incidents triaged so far; opening makes nothing, the first `add` makes the folder.

    Parameters
    ----------
    root : str or Path
        The folder; best on a local disk, since locks (flock) must hold.
    clock : callable, optional
        Returns seconds since the epoch.
    prices : mapping, optional
        The site's price table (``report.prices``), by which the `cost` of a row is counted when it is read: a new price holds for all.
    teams : Teams, optional
        The site's table of teams, likewise.

    Attributes
    ----------
    problems : list of str
        Entries that `entries` could not read this time: damaged, or left by an add that was interrupted. All others are used.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        prices: Mapping[str, str] | None = None,
        teams: Teams | None = None,
    ) -> None:
        self.root = Path(root)
        self.problems: list[str] = []
        self._clock, self._prices, self._teams = clock, dict(prices or {}), teams or Teams()
        self._entries = self.root / "entries"
        self._base = str(self._entries)
        self._known: dict[str, tuple[tuple[int, ...], Entry]] = {}

    def __repr__(self) -> str:
        return f"<Inbox {self.root}>"

    # ---- reading

    def entries(self, state: str | Iterable[str] | None = None) -> list[Entry]:
        """
        Return the rows, newest first; of some states only when they are named.

        What is damaged is left out and told in `problems`.

        Raises
        ------
        InboxError
            The folder is there and cannot be read.
        """
        wanted = {state} if isinstance(state, str) else set(state) if state is not None else None
        found, problems, names = [], list[str](), set[str]()
        try:
            with os.scandir(self._entries) as listed:
                names = {one.name for one in listed if ID.fullmatch(one.name)}
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InboxError(f"the inbox {self.root} cannot be read: {error.strerror or error}") from error
        for name in names:
            try:
                entry = self._read(name)
            except ValueError as error:
                problems.append(f"{self._folder(name)}: {error}")
                continue
            if entry is not None and (wanted is None or entry.state in wanted):
                found.append(entry)
        for name in self._known.keys() - names:
            self._known.pop(name, None)
        self.problems = sorted(problems)
        return sorted(found, key=lambda one: (one.seen if one.time is None else one.time, one.seen, one.id), reverse=True)

    def frame(self, state: str | Iterable[str] | None = None) -> pd.DataFrame:
        """Return `entries` as a frame (columns of `workbench.inbox.rows.COLUMNS`)."""
        return frame_of(self.entries(state))

    def get(self, id: str) -> Entry:
        """
        Return one row.

        Raises
        ------
        InboxError
            There is none of this id, or it is damaged.
        """
        try:
            entry = self._read(id) if ID.fullmatch(id) else None
        except ValueError as error:
            raise InboxError(f"entry {id} is damaged: {error}", hint=f"look at {self._folder(id)}") from None
        if entry is None:
            raise InboxError(f"the inbox has no entry {id[:80]!r}", hint="workbench inbox list")
        return entry

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, str) or not ID.fullmatch(id):
            return False
        try:
            return self._read(id) is not None
        except ValueError:  # damaged is not absent: nothing may be written over it unseen
            return (self._folder(id) / "entry.json").exists()

    def verdict(self, id: str) -> dict[str, Any]:
        """Return the verdict (``workbench.verdict/1``); empty while there is none. Raises as `get` does."""
        self.get(id)
        try:
            table = json.loads((self._folder(id) / "verdict.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InboxError(f"the verdict of {id} cannot be read: {error}") from None
        return table if isinstance(table, dict) else {}

    def case(self, id: str) -> CaseFile:
        """
        Return the case file, made anew from the evidence when there is none.

        Raises
        ------
        InboxError
            There is no such entry, or neither case file nor evidence of it.
        """
        entry = self.get(id)
        from workbench.casefile import open_path
        from workbench.casefile.store import open_case

        folder = self._folder(id) / str(entry.data.get("case") or "case")
        if entry.data.get("case") and folder.is_dir():
            try:
                return open_case(folder, source=entry.evidence or None)
            except (OSError, ValueError, KeyError, WorkbenchError) as error:
                if not (entry.evidence and Path(entry.evidence).exists()):
                    raise InboxError(f"the case file of {id} cannot be read: {error}") from error
        if not entry.evidence or not Path(entry.evidence).exists():
            why = entry.problem or ("its evidence is gone" if entry.evidence else "its evidence is not collected yet")
            raise InboxError(f"there is no case file of {id}: {why}")
        return replace(open_path(entry.evidence), id=id)

    def history(self, id: str) -> list[dict[str, Any]]:
        """
        Return what happened to an entry, oldest first: ``time`` (epoch seconds), ``by``, ``what``, ``note`` and, of a change, ``state``.

        Lines that a crash tore are left out; the last row then says how many.
        """
        self.get(id)
        rows, damaged = lines_from(self._folder(id) / "history.jsonl")
        if damaged:
            rows.append({"time": None, "by": "", "what": "damaged", "note": f"{damaged} lines of the history cannot be read"})
        return rows

    def folder(self, id: str) -> Path:
        """Return the folder of an entry, for what is written beside it."""
        if not ID.fullmatch(id):
            raise InboxError(f"{id[:80]!r} is no id of an entry")
        return self._folder(id)

    # ---- writing

    def add(
        self,
        case: CaseFile | None = None,
        *,
        id: str = "",
        verdict: Mapping[str, Any] | None = None,
        by: str = "",
        note: str = "",
        **facts: Any,
    ) -> Entry:
        """
        Add an incident, or what is newly known of one that is there: its state, alerts and who was told stay.

        Parameters
        ----------
        case : CaseFile, optional
            None when it could not be triaged, or is not yet; give `id` then.
        id : str, optional
            Default that of the case file.
        verdict : mapping, optional
            Where there is no case file.
        by, note : str, optional
            For the history.
        **facts
            Fields of `Entry`: ``source``, ``evidence`` (a path), ``problem``, ``data`` (merged) …; other than None, they decide over what the
            case file tells.

        Raises
        ------
        InboxError
            It cannot be written, or the entry that is there is damaged.
        """
        name = id or (case.id if case is not None else "")
        if not ID.fullmatch(name):
            raise InboxError(f"{name[:80]!r} is no id of an entry", hint="letters, digits, - and . only, 128 at most")
        verdict = case.verdict if case is not None else verdict
        told = facts_of(case) if case is not None else verdict_facts(verdict) if verdict is not None else {}
        saved = self._saved(name, case) if case is not None else ""  # before the lock: a large one takes its time
        with self._lock():
            before = self._fresh(name)
            folder = self._folder(name)
            folder.mkdir(parents=True, exist_ok=True)
            entry = before or Entry(name, None, self._clock(), "folder", "")
            given = {key: value for key, value in facts.items() if value is not None}
            data = {**entry.data, **given.pop("data", {})}
            evidence = given.pop("evidence", entry.evidence)
            entry = replace(entry, **{key: value for key, value in told.items() if value is not None})
            if told:  # a new verdict may know less than the one before
                entry = replace(entry, **{key: told[key] for key in _OF_VERDICT})
            entry = replace(entry, **given, evidence=str(evidence), data=data)
            if verdict is not None:
                write_json(folder / "verdict.json", verdict)
            old: Any = None
            if saved:
                old, data["case"] = data.get("case"), saved
            what = "added" if before is None else "verdict" if verdict is not None else "changed"
            entry = self._written(entry, {"what": what, "by": by, "note": note, **({"cls": entry.cls} if told else {})})
            if old:
                remove(folder / str(old))
        return entry

    def change(self, id: str, change: Callable[[Entry], Entry], *, what: str = "", by: str = "", note: str = "") -> Entry:
        """
        Change a row under the lock and return it; with `what` a line of the history tells of it.

        `change` must not change the state: that is what `set_state` is for.
        """
        with self._lock():
            before = self._need(id)
            after = change(before)
            if after == before and not what:
                return before
            return self._written(replace(after, state=before.state), {"what": what, "by": by, "note": note} if what else None)

    def set_state(self, id: str, state: str, by: str = "", note: str = "", *, seen: str | None = None) -> Entry:
        """
        Set the state (a word of `workbench.inbox.model.STATES`), with who did it and why (`Entry.data["marked"]`), and return the row.

        With `seen`, the state that whoever decides knew, only while it is so.

        Raises
        ------
        InboxError
            There is no such entry or no such state, it is another than was seen, or it cannot be written.
        """
        if state not in STATES:
            raise InboxError(f"{state[:40]!r} is no state", hint=f"one of {', '.join(STATES)}")
        with self._lock():
            before = self._need(id)
            if seen is not None and before.state != seen:
                who = (before.data.get("marked") or {}).get("by") or "somebody"
                raise InboxError(f"{who} has set it to {before.state} meanwhile", hint="look again; nothing was changed")
            line = {"what": "state", "by": by or _me(), "note": note, "from": before.state, "state": state}
            marked = {"by": line["by"], "note": note, "time": round(self._clock(), 3)}
            return self._written(replace(before, state=state, data={**before.data, "marked": marked}), line)

    def note(self, id: str, note: str, by: str = "") -> None:
        """Append a sentence of a person to the history."""
        with self._lock():
            self._written(self._need(id), {"what": "note", "by": by or _me(), "note": note})

    def remove(self, id: str) -> None:
        """Remove an entry and all that is below it."""
        with self._lock():
            remove(self.folder(id))

    def room(self, id: str, kind: str = "evidence") -> Path:
        """Return a new, empty folder of an entry, into which its evidence may be collected."""
        folder = self.folder(id)
        with self._lock():
            folder.mkdir(parents=True, exist_ok=True)
            place = folder / next_name(folder, kind)
            place.mkdir()
            return place

    def forget(
        self, *, older: float | None = None, evidence_older: float | None = None, most: int | None = None, by: str = ""
    ) -> list[str]:
        """
        Forget what is old, evidence first, and return sentences of what was done.

        Parameters
        ----------
        older : float, optional
            Seconds: entries seen longer ago are removed whole.
        evidence_older : float, optional
            Seconds: of entries seen longer ago the evidence below the inbox is removed; row, verdict and case file stay.
        most : int, optional
            Bytes that all evidence below the inbox may have: what is closed, resolved or muted goes first, then the oldest. That of the
            newest open entry is never removed for want of room.
        """
        now, said = self._clock(), list[str]()
        entries = sorted(self.entries(), key=lambda one: one.seen)
        for entry in list(entries):
            if older is not None and now - entry.seen > older:
                self.remove(entry.id)
                said.append(f"{entry.id}: forgotten")
                entries.remove(entry)
        for entry in entries:
            if evidence_older is not None and now - entry.seen > evidence_older and self._own(entry):
                said.append(self._prune(entry, "it is old", by))
        for entry in entries:
            self._tidy(entry)
        if most is not None:
            kept = {one.id: size_of_tree(Path(one.evidence)) for one in entries if self._own(one)}
            last = next((one.id for one in reversed(entries) if one.state in OPEN), None)
            for entry in sorted(entries, key=lambda one: (one.state in OPEN, one.seen)):
                if sum(kept.values()) <= most:
                    break
                if entry.id in kept and entry.id != last:
                    said.append(self._prune(entry, "the inbox is full", by))
                    del kept[entry.id]
        return said

    # ---- inside

    def _folder(self, name: str) -> Path:
        return self._entries / name

    @contextlib.contextmanager
    def _lock(self) -> Any:
        with locked(self.root / "lock"):
            try:
                yield
            except OSError as error:
                raise InboxError(f"the inbox {self.root} cannot be written: {error.strerror or error}") from error

    def _read(self, name: str) -> Entry | None:
        """Return a row, None when there is none; ValueError says what is wrong with it."""
        folder = os.path.join(self._base, name)  # text: ten thousand paths cost more as objects than the disk
        try:
            status = os.stat(folder + "/entry.json")
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                if self._clock() - os.stat(folder).st_mtime > _HALF:
                    raise ValueError("it has no entry.json: an add was interrupted, or somebody removed it") from None
            return None
        except OSError as error:
            raise ValueError(f"entry.json cannot be read: {error.strerror}") from None
        length = length_of(folder + "/history.jsonl")
        mark = (status.st_mtime_ns, status.st_ino, status.st_size, length)
        known = self._known.get(name)
        if known is not None and known[0] == mark:
            return known[1]
        try:
            with open(folder + "/entry.json", "rb") as stream:
                table = json.loads(stream.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ValueError(f"entry.json cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise ValueError("entry.json is no JSON") from None
        entry = from_json(table)
        if entry.id != name:
            raise ValueError(f"entry.json is that of {entry.id}")
        if entry.evidence and not os.path.isabs(entry.evidence):
            entry = replace(entry, evidence=os.path.join(os.path.abspath(folder), entry.evidence))
        entry = owned(priced(entry, self._prices) if self._prices else entry, self._teams)
        taken = entry.data.get(_SEEN)
        if isinstance(taken, int) and length > taken:  # a state that a crash kept out of the row, or that is being written
            for line in lines_from(Path(folder, "history.jsonl"), taken)[0]:
                if line.get("what") == "state" and line.get("state") in STATES:
                    marked = {key: line.get(key) for key in ("by", "note", "time")}
                    entry = replace(entry, state=str(line["state"]), data={**entry.data, "marked": marked})
        self._known[name] = (mark, entry)
        return entry

    def _fresh(self, name: str) -> Entry | None:
        try:
            return self._read(name)
        except ValueError as error:
            if (self._folder(name) / "entry.json").exists():
                raise InboxError(f"entry {name} is damaged: {error}", hint=f"mend or remove {self._folder(name)}") from None
            return None  # what an interrupted add left is used again

    def _need(self, name: str) -> Entry:
        entry = self._fresh(name) if ID.fullmatch(name) else None
        if entry is None:
            raise InboxError(f"the inbox has no entry {name[:80]!r}", hint="workbench inbox list")
        return entry

    def _written(self, entry: Entry, line: Mapping[str, Any] | None) -> Entry:
        """Append the line, then write the row; the lock is held."""
        folder = self._folder(entry.id)
        length = length_of(folder / "history.jsonl")
        if line is not None:
            length = append_line(folder / "history.jsonl", {"time": round(self._clock(), 3), **line})
        data = {**entry.data, _SEEN: length}
        with contextlib.suppress(ValueError):  # below its folder it moves with the inbox
            inside = os.path.relpath(Path(entry.evidence).absolute(), folder.absolute()) if entry.evidence else ""
            entry = replace(entry, evidence=inside) if inside and not inside.startswith("..") else entry
        write_json(folder / "entry.json", to_json(replace(entry, data=data)))
        return self._need(entry.id)

    def _own(self, entry: Entry) -> bool:
        """Whether the evidence lies below the inbox, and is there."""
        if not entry.evidence:
            return False
        path = Path(entry.evidence)
        return path.parent.resolve() == self._folder(entry.id).resolve() and path.exists()

    def _tidy(self, entry: Entry) -> None:
        """Remove evidence and case files that a later one replaced, when a crash left them."""
        folder, now = self._folder(entry.id).absolute(), self._clock()
        used = {entry.evidence, str(folder / str(entry.data.get("case")))}
        for left in (*folder.glob("evidence-*"), *folder.glob("case-*"), *folder.glob(".*")):
            with contextlib.suppress(FileNotFoundError):
                if str(left) not in used and now - left.stat().st_mtime > _LEFT:
                    remove(left)

    def _saved(self, name: str, case: CaseFile) -> str:
        """Write a case file beside those that are there, and return the name of its folder."""
        from workbench.casefile.store import save

        place = self.room(name, "case")
        try:
            save(replace(case, id=name), place)
        except OSError as error:
            raise InboxError(f"the case file {place} cannot be written: {error.strerror or error}") from error
        return place.name

    def _prune(self, entry: Entry, why: str, by: str) -> str:
        size = size_of_tree(Path(entry.evidence))
        remove(Path(entry.evidence))
        said = f"evidence of {size / 1e6:,.1f} MB removed: {why}"
        self.change(
            entry.id,
            lambda one: replace(one, data={**one.data, "evidence_removed": self._clock()}),
            what="evidence",
            by=by,
            note=said,
        )
        return f"{entry.id}: {said}"


# what a verdict decides anew, also when it knows less than the one before
_OF_VERDICT = ("cause", "cls", "confidence", "summary", "node", "gpu", "rank", "at_fault", "retry", "remediation")


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
