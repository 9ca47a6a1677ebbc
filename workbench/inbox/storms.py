"""Turn many failures at once into one message with counts: when five hundred jobs fail, nobody reads five hundred messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.inbox.cursor import Cursor
from workbench.inbox.model import Entry
from workbench.inbox.notify import storm_note
from workbench.inbox.store import Inbox
from workbench.inbox.tell import Teller

__all__ = ["Settings", "Storms", "stage_of"]

WITHIN = 300.0  # seconds within which failures count as one storm; it ends after so many without another


@dataclass(frozen=True, slots=True)
class Settings:
    """
    How the watch goes about it; all times in seconds.

    Attributes
    ----------
    at_once : int
        Most collections at the same time.
    settle : float
        How long after its last sign a failure is left alone, so that its victims are seen too; six times as long at most.
    storm : int
        More new failures than this within five minutes are told of as one.
    first : float
        How far back the very first look counts: what failed before is no news.
    deadline : float
        How long one look at one scheduler may take.
    """

    at_once: int = 2
    settle: float = 20.0
    storm: int = 20
    first: float = 3600.0
    deadline: float = 60.0


class Storms:
    """Tells storms apart from single failures; what it remembers is in the cursor and in the entries (``data["storm"]``)."""

    def __init__(self, inbox: Inbox, cursor: Cursor, teller: Teller, settings: Settings) -> None:
        self._inbox, self._cursor, self._teller, self._settings = inbox, cursor, teller, settings

    def of(self, new: int, entries: Sequence[Entry], now: float) -> str:
        """
        Return the storm that so many new failures belong to, empty when there is none.

        Those of the last minutes that nobody was told of yet become its members.
        """
        storm = self._cursor.storm
        if storm and now - float(storm["last"]) <= WITHIN:
            if new:
                storm["last"] = now
                self._cursor.write()
            return str(storm["id"])
        before = [entry for entry in entries if now - entry.seen <= WITHIN and stage_of(entry) and not entry.data.get("storm")]
        if new + len(before) <= self._settings.storm or (not new and all(entry.told for entry in before)):
            return ""
        if storm and self._members(entries) and not self._all_told():
            storm["last"] = now  # nobody could be told of the last one yet: they are told together
            self._cursor.write()
            return self._joined(str(storm["id"]), before)
        name = f"storm-{now:.0f}"
        began = min([now, *(entry.seen for entry in before)])
        self._cursor.storm = {"id": name, "began": began, "last": now, "first": now, "tell": {}}
        self._cursor.write()  # first: an entry of a storm that nobody remembers would never be told
        return self._joined(name, before)

    def _joined(self, name: str, before: Sequence[Entry]) -> str:
        for entry in before:
            if not entry.told:
                self._inbox.change(entry.id, lambda one: replace(one, data={**one.data, "storm": name}))
        return name

    def _members(self, entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.data.get("storm") == self._cursor.storm.get("id")]

    def _all_told(self) -> bool:
        return all(self._cursor.storm["tell"].get(way.name, {}).get("told") for way in self._teller.ways)

    def tell(self, now: float, *, soon: bool = False) -> list[str]:
        """Tell the storm when it does not grow any more, or with `soon` now; return sentences of what could not be told."""
        storm, said = self._cursor.storm, list[str]()
        if not storm:
            return said
        settle = self._settings.settle
        if not soon and now - float(storm["last"]) < settle and now - float(storm["first"]) < 3 * settle:
            return said
        for way in self._teller.ways:
            was = storm["tell"].setdefault(way.name, {})
            if was.get("told") or float(was.get("next") or 0.0) > now:
                continue
            members = self._members(self._inbox.entries())
            if not members:
                continue
            queued = sum(stage_of(entry) == "queued" for entry in members)
            note = storm_note(
                storm["id"],
                float(storm["began"]),
                members,
                link=self._teller.link,
                queued=queued,
                at_once=self._settings.at_once,
            )
            note = replace(note, again=bool(was.get("sending")))
            storm["tell"][way.name] = {**was, "sending": True}
            self._cursor.write()
            problem, record = self._teller.send(way, note, was, True)
            storm["tell"][way.name] = record if problem else {"told": now}
            self._cursor.write()
            if problem:
                said.append(f"{way.name}: the storm could not be told: {problem}")
        return said


def stage_of(entry: Entry) -> str:
    """Return how far the watch is with an entry: ``queued``, ``collected``, ``lost``; empty when it is none of the watch's."""
    watch = entry.data.get("watch")
    return str(watch.get("stage") or "") if isinstance(watch, Mapping) else ""
