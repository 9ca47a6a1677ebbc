"""
Turn entries that people do not know of yet into messages that each way takes once, also when we or the receiver end in the middle.

Before a message is sent, the row says so; after it was taken, the row says by which way, when, and what it said. Whoever finds a message that
was begun and not taken sends it again with the same key, and says so in it: told twice at worst, never not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.inbox.model import Entry
from workbench.inbox.notify import Note, Way, link_of, note_of, signature_of, state_note
from workbench.inbox.post import NotTold
from workbench.inbox.store import Inbox, InboxError

__all__ = ["TELLABLE", "Teller", "back_off"]

TELLABLE = ("new", "acknowledged")  # of what is resolved, closed or muted nobody wants to hear again
_FIRST, _MOST = 10.0, 900.0  # seconds between two tries of one message, first and most
_STALE = 86400.0  # seconds after which a state that somebody set is no news
_OLD = 7 * 86400.0  # after that many seconds a message is no news any more; the entry says that it was never told


def back_off(tries: int, first: float = _FIRST, most: float = _MOST) -> float:
    """Return the seconds to wait after so many tries."""
    return float(min(first * 2 ** min(tries - 1, 20), most))


class Teller:
    """
    Tells people of entries.

    Parameters
    ----------
    inbox : Inbox
    ways : sequence of Way
    link : str, optional
        Address of the served pages; see `workbench.inbox.notify.link_of`.
    states : bool, optional
        Whether those who were told of an incident are told, too, when a person sets its state.
    clock : callable
        Returns seconds since the epoch.
    step : callable, optional
        Called with a word at each point where a crash would matter; for tests.
    """

    def __init__(
        self,
        inbox: Inbox,
        ways: Sequence[Way],
        *,
        link: str = "",
        states: bool = False,
        clock: Callable[[], float],
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.inbox, self.ways, self.link, self.states = inbox, tuple(ways), link, states
        self._clock, self._step = clock, step
        self.told: Counter[tuple[str, str]] = Counter()  # (way, outcome) → how many

    def untold(self, entry: Entry) -> list[Way]:
        """Return the ways by which people do not know yet what this entry says now."""
        if entry.state not in TELLABLE or not entry.data.get("ready") or entry.data.get("storm"):
            return []
        if entry.source == "alert" and entry.cause == "none" and not entry.problem:
            return []  # the alert itself was told, and there is nothing to add to it
        if self._clock() - entry.seen > _OLD:
            return []
        now = signature_of(entry)
        return [way for way in self.ways if _of(entry, way.name).get("signature") != now]

    def unheard(self, entry: Entry) -> list[Way]:
        """Return the ways by which people were told of this entry, and do not know yet which state somebody has set since."""
        when = _marked(entry)
        if not self.states or when is None or self._clock() - when > _STALE:
            return []
        return [
            way for way in self.ways if _of(entry, way.name).get("signature") and _mark(entry, way.name).get("signature") != when
        ]

    def due(self, entry: Entry) -> bool:
        """Tell whether anybody has yet to be told anything of this entry."""
        return bool(self.untold(entry) or self.unheard(entry))

    def tell(self, entries: Sequence[Entry]) -> list[str]:
        """Tell what is due, each way until it fails once; return sentences of what could not be told."""
        said, down = list[str](), set[str]()
        for entry in entries:
            # what it is comes before what somebody made of it: a way that was not told of the incident hears of no state
            work = [(way, self._tell, _of(entry, way.name)) for way in self.untold(entry)]
            work += [(way, self._tell_state, _mark(entry, way.name)) for way in self.unheard(entry)]
            for way, send, record in work:
                if way.name in down or float(record.get("next") or 0.0) > self._clock():
                    continue
                try:
                    problem = send(entry.id, way)
                except InboxError as error:
                    said.append(str(error))
                    continue
                if problem:
                    down.add(way.name)
                    said.append(f"{way.name}: {entry.id} could not be told: {problem}")
        return said

    def _tell(self, id: str, way: Way) -> str:
        before: list[Entry] = []

        def begin(entry: Entry) -> Entry:
            before.append(entry)
            return _with(entry, way.name, {**_of(entry, way.name), "sending": signature_of(entry)})

        entry = self.inbox.change(id, begin)
        if way not in self.untold(entry):  # somebody closed it meanwhile
            return ""
        now, was = signature_of(entry), _of(before[0], way.name)
        note = note_of(
            entry,
            self.inbox.verdict(id),
            link=link_of(self.link, id),
            # what was begun and may have arrived counts as told
            changed=bool(was.get("signature")) or was.get("sending") not in (None, now),
            again=was.get("sending") == now,  # begun before, and nobody knows whether it arrived
        )
        problem, record = self.send(way, note, was, now)
        if problem:
            self.inbox.change(id, lambda one: _with(one, way.name, {**_of(one, way.name), **record}))
            return problem
        when = self._clock()
        self.inbox.change(
            id,
            # a state that was set before the first message is in it: only what is set later is news
            lambda one: replace(
                _with(one, way.name, {"signature": now, "mark": _mark(one, way.name) or {"signature": _marked(entry)}}),
                told={**one.told, way.name: when},
            ),
            what="told",
            by="watch",
            note=f"by {way.name}: {entry.cls}" + (" (changed)" if note.kind == "changed" else ""),
        )
        return ""

    def _tell_state(self, id: str, way: Way) -> str:
        before: list[Entry] = []

        def begin(entry: Entry) -> Entry:
            before.append(entry)
            return _with_mark(entry, way.name, {**_mark(entry, way.name), "sending": _marked(entry)})

        entry = self.inbox.change(id, begin)
        if way not in self.unheard(entry):
            return ""
        now, was = _marked(entry), _mark(before[0], way.name)
        note = state_note(entry, link=link_of(self.link, id), again=was.get("sending") == now)
        problem, record = self.send(way, note, was, now)
        if problem:
            self.inbox.change(id, lambda one: _with_mark(one, way.name, {**_mark(one, way.name), **record}))
            return problem
        self.inbox.change(
            id,
            lambda one: _with_mark(one, way.name, {"signature": now}),
            what="told",
            by="watch",
            note=f"by {way.name}: {entry.state}",
        )
        return ""

    def send(self, way: Way, note: Note, was: Mapping[str, Any], mark: Any) -> tuple[str, dict[str, Any]]:
        """
        Send one message; return why it was not taken (empty: it was) and what to remember for the next try.

        `was` is what was remembered before this try; `mark` is remembered as ``sending`` when nobody knows whether it arrived. A receiver that
        refuses this try says nothing about one before it that may have arrived.
        """
        self._step("before sending")
        try:
            way.send(note)
        except (NotTold, OSError) as error:  # OSError: a pipe or disk behind a stream
            tries = int(was.get("tries") or 0) + 1
            self.told[way.name, "failed"] += 1
            asked, unsure = (error.again or 0.0, error.unsure) if isinstance(error, NotTold) else (0.0, False)
            return str(error), {
                "signature": was.get("signature"),
                "sending": mark if unsure else was.get("sending"),
                "tries": tries,
                "next": self._clock() + max(back_off(tries), min(asked, 3600.0)),
                "said": str(error),
            }
        self._step("after sending")
        self.told[way.name, "told"] += 1
        return "", {}


def _of(entry: Entry, way: str) -> dict[str, Any]:
    found = (entry.data.get("tell") or {}).get(way)
    return dict(found) if isinstance(found, Mapping) else {}


def _with(entry: Entry, way: str, record: Mapping[str, Any]) -> Entry:
    return replace(entry, data={**entry.data, "tell": {**(entry.data.get("tell") or {}), way: dict(record)}})


def _mark(entry: Entry, way: str) -> dict[str, Any]:
    """Return what is remembered of telling states by a way; ``signature`` is when the state was set that was told last."""
    found = _of(entry, way).get("mark")
    return dict(found) if isinstance(found, Mapping) else {}


def _with_mark(entry: Entry, way: str, record: Mapping[str, Any]) -> Entry:
    return _with(entry, way, {**_of(entry, way), "mark": dict(record)})


def _marked(entry: Entry) -> float | None:
    """Return when a person set the state; None when nobody did."""
    time = (entry.data.get("marked") or {}).get("time")
    return float(time) if isinstance(time, (int, float)) else None
