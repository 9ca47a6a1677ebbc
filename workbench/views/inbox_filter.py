"""Turn what a person wants to see of the inbox into rows: filters, order and page, as text in the address and back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.inbox.model import STATES, Entry
from workbench.report.text import iso
from workbench.views import permalink

__all__ = ["CAUSES", "SORTS", "SPANS", "Wanted"]

CAUSES = ("hardware", "driver", "platform", "user", "unknown", "none")
SORTS = ("time", "cost", "confidence")
OPEN = ("new", "acknowledged")
# what is offered as a span; in the address stands the moment, so that a link shows the same tomorrow
SPANS = {"last hour": 3600.0, "last 24 hours": 86400.0, "last 7 days": 604800.0, "last 30 days": 2592000.0}
ALL, PAGE = "all", 50

_MOMENT = permalink.Field(permalink._seconds, lambda seconds: iso(float(seconds)) or "")
_FIELDS = {
    "cause": permalink.choice(*CAUSES),
    "class": permalink.text(60),
    "state": permalink.choice(ALL, "open", *STATES),
    "team": permalink.text(120),
    "text": permalink.text(200),
    "since": _MOMENT,
    "until": _MOMENT,
    "sort": permalink.choice(*SORTS),
    "page": permalink.whole(1, 100_000),
}
_NAMES = {"class": "cls"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    What is to be shown; None and "" mean all.

    `since` and `until` are epoch seconds; `state` is a state, ``open`` (new or acknowledged) or ``all``.
    """

    cause: str | None = None
    cls: str | None = None
    state: str = ALL
    team: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None
    sort: str = "time"
    page: int = 1

    @classmethod
    def read(cls, state: Mapping[str, str]) -> tuple[Wanted, dict[str, str]]:
        """Return what an address asks for, and name → why for what it says that makes no sense."""
        values, refused = permalink.read(_FIELDS, state)
        given = {_NAMES.get(name, name): value for name, value in values.items() if value is not None}
        return cls(**given), refused

    def write(self) -> dict[str, str]:
        """Return it for the address, without what is at its default."""
        values = asdict(self)
        named = {name: values[_NAMES.get(name, name)] for name in _FIELDS}
        return permalink.write(_FIELDS, named, {**dict.fromkeys(_FIELDS), "state": ALL, "sort": "time", "page": 1})

    def with_(self, **changes: Any) -> Wanted:
        """Return it changed; another filter starts at the first page."""
        return replace(self, **{"page": 1, **changes})

    @property
    def filtered(self) -> bool:
        """Whether anything may be left out."""
        return self.with_(sort="time") != Wanted()

    def matches(self, entry: Entry, *, but: str = "") -> bool:
        """Tell whether a row is wanted; `but` names a filter that is not asked."""
        moment = entry.seen if entry.time is None else entry.time
        return (
            (but == "cause" or not self.cause or entry.cause == self.cause)
            and (but == "cls" or not self.cls or entry.cls == self.cls)
            and (
                but == "state" or self.state == ALL or entry.state == self.state or (self.state == "open" and entry.state in OPEN)
            )
            and (but == "team" or not self.team or (entry.team or "") == self.team)
            and (self.since is None or moment >= self.since)
            and (self.until is None or moment <= self.until)
            and (not self.text or _says(entry, self.text))
        )

    def of(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the wanted rows in order, of all pages."""
        found = [entry for entry in entries if self.matches(entry)]
        if self.sort == "cost":
            found.sort(key=lambda one: (one.cost is None, -(one.cost or 0.0), one.gpu_hours is None, -(one.gpu_hours or 0.0)))
        elif self.sort == "confidence":
            found.sort(key=lambda one: one.confidence)
        return found

    def counts(self, entries: Sequence[Entry], name: str) -> Counter[str]:
        """Return value → rows for one field (``cause``, ``cls``, ``state``, ``team``), as it would be without its own filter."""
        return Counter(str(getattr(entry, name) or "") for entry in entries if self.matches(entry, but=name))


def _says(entry: Entry, text: str) -> bool:
    """Whether all words occur somewhere in the row, case ignored."""
    fields = (
        entry.id,
        entry.job,
        entry.namespace,
        entry.user,
        entry.team,
        entry.cls,
        entry.summary,
        entry.node,
        entry.source,
        entry.evidence,
    )
    whole = "\n".join(str(value).lower() for value in fields if value)
    return all(word in whole for word in text.lower().split())


def since_of(span: str, now: float | None = None) -> float:
    """Return the moment (epoch seconds, whole minutes) at which a span of `SPANS` begins."""
    return ((time.time() if now is None else now) - SPANS[span]) // 60 * 60
