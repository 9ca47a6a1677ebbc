"""Turn the tables of ladders into the rung that a fault has reached: where one begins, and when one climbs, waits or goes back down."""

from __future__ import annotations

import fnmatch
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from workbench.catalog import HERE
from workbench.config import time_span
from workbench.errors import CatalogError
from workbench.model import CAUSES, CLASSES, REMEDIATIONS
from workbench.remediation.model import RUNGS, VERBS, Trouble
from workbench.remediation.words import height

__all__ = ["Attempt", "Ladder", "Ladders", "Past", "Rung", "attempts_of", "ladders", "offenders", "stuck", "used_up"]

SCHEMA = "workbench.ladders/1"
# a step of a rung that stands for the gentlest of several verbs: see `workbench.remediation.planner`
_STEPS = (*VERBS, "leave")
_NEEDS = ("evidence-current", "idle", "claim", "gpu", "work")
_SEVERITIES = ("critical", "warning", "unknown")


@dataclass(frozen=True, slots=True)
class Rung:
    """
    One rung: what is done, how often, and what it needs; the times are seconds, `down` is minutes. See the head of ``ladders.toml``.

    `holds` is how long its restriction stays before somebody must look again; `environments` where it exists at all (empty: everywhere).
    """

    name: str
    meaning: str
    steps: tuple[str, ...]
    sure: float
    attempts: int
    window: float
    cool_down: float
    deadline: float
    down: float
    needs: tuple[str, ...]
    source: str
    holds: float = 0.0
    environments: tuple[str, ...] = ()
    origin: str = ""

    @property
    def height(self) -> int:
        """How far up it is: 0 costs nothing."""
        return height(self.name)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs against one kind of fault, in order, and the faults that it is for."""

    name: str
    climb: tuple[str, ...]
    source: str
    causes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    unseen_for: float = 0.0
    origin: str = ""

    def fits(self, trouble: Trouble) -> bool:
        """Whether it is for this fault."""
        cause = trouble.cause or trouble.cls.split("/")[0]
        return (
            (not self.causes or cause in self.causes)
            and (not self.classes or trouble.cls in self.classes)
            and (not self.actions or trouble.action in self.actions)
            and (not self.severities or trouble.severity in self.severities)
            and (not self.codes or any(fnmatch.fnmatchcase(trouble.code, one) for one in self.codes))
        )


@dataclass(frozen=True, slots=True)
class Ladders:
    """All rungs by name, and all ladders in the order in which they are asked."""

    rungs: Mapping[str, Rung]
    order: tuple[Ladder, ...]

    def of(self, trouble: Trouble) -> Ladder:
        """Return the ladder against a fault: the first that fits."""
        return next(one for one in self.order if one.fits(trouble))


class Past(Protocol):
    """What of a journal's entry matters here: see `workbench.remediation.journal.Entry`."""

    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def verb(self) -> str: ...
    @property
    def rung(self) -> str: ...
    @property
    def trouble(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def time(self) -> float: ...
    @property
    def action(self) -> str: ...
    @property
    def detail(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a rung against a fault: when it began and last moved, and how its last step ended (empty while it goes on)."""

    rung: str
    trouble: str
    begun: float
    last: float
    status: str = ""

    @property
    def over(self) -> bool:
        """Whether it ended, well or badly."""
        return bool(self.status)

    @property
    def well(self) -> bool:
        """Whether every step of it was done."""
        return self.status == "done"


def attempts_of(past: Iterable[Past], *, node: str, trouble: str = "") -> list[Attempt]:
    """
    Return the tries of each rung on a node, the oldest first.

    A try is all that was done for one rung and one fault from its deciding step on: what every rung shares (cordon, collect, uncordon) does
    not count, so that a node which only waits for its drain has not used up its reboot.

    Parameters
    ----------
    past : iterable of Past
        Entries of a journal, in their order.
    node : str
    trouble : str, optional
        `Trouble.id`; empty: of all faults.
    """
    found: dict[tuple[str, str, str], Attempt] = {}
    latest: dict[tuple[str, str], tuple[str, str, str]] = {}
    for one in past:
        if one.node != node or one.kind not in ("intent", "outcome") or (trouble and one.trouble != trouble) or not one.rung:
            continue
        if one.verb == "validate" and one.kind == "outcome" and one.status in ("failed", "expired", "unknown"):
            # the step was done and the node is still not well: that try did not help
            if key := latest.get((one.rung, one.trouble)):
                found[key] = replace(found[key], last=one.time, status="failed")
            continue
        if one.verb not in _DECIDING.get(one.rung, frozenset()):
            continue
        key = (one.rung, one.trouble, one.action)
        before = found.get(key)
        status = one.status if one.kind == "outcome" else (before.status if before else "")
        status = "" if status == "held" else status  # its plan asks again: the try goes on
        found[key] = Attempt(one.rung, one.trouble, before.begun if before else one.time, one.time, status)
        latest[one.rung, one.trouble] = key
    return sorted(found.values(), key=lambda one: one.begun)


def stuck(past: Iterable[Past], *, node: str, rung: str, trouble: str) -> Past | None:
    """
    Return how the work of a node was asked to leave for a rung and did not in time; None when it did, or is asked still.

    That says nothing of the rung, whose deciding step was never tried, so one does not climb for it: the next rungs need an empty node as well.
    """
    last: Past | None = None
    for one in past:
        if one.node == node and one.rung == rung and one.trouble == trouble and one.verb in _EMPTIES:
            last = one if one.kind == "outcome" and one.status == "expired" else None
    return None if last is not None and last.verb in _DECIDING.get(rung, frozenset()) else last


_EMPTIES = frozenset({"evict", "drain"})
_EARLIER = 60.0  # seconds: the intent stands in the journal before the restriction stands on the node, and their clocks differ
# the step of each rung that makes it what it is
_DECIDING = {
    "restart-task": frozenset({"restart-task"}),
    "exclude-node": frozenset({"exclude"}),
    "cordon": frozenset({"cordon", "taint"}),
    "evacuate": frozenset({"evict", "drain"}),
    "reset-gpu": frozenset({"reset-gpu"}),
    "reboot-node": frozenset({"reboot"}),
    "replace-node": frozenset({"replace"}),
    "report": frozenset({"ticket"}),
}


def used_up(rung: Rung, tries: Sequence[Attempt], now: float, *, trouble: str, held: float | None = None) -> bool:
    """
    Return whether a rung has had its tries: as many as it may within its window, or one that failed or expired in it.

    What lies before the window counts no more, which is how one comes back down: a fault that stayed away for so long begins anew. On a node
    that we have kept out of service ever since it did not stay away, and all that was tried in this time counts. A node on
    which a rung was tried twice as often as it may be for one fault has used it up for all faults: whatever it is, this does not mend it.

    Parameters
    ----------
    rung : Rung
    tries : sequence of Attempt
        Of this node, of all faults.
    now : float
    trouble : str
        Id of the fault.
    held : float, optional
        Since when the node has been out of service by us; None when it is not.
    """
    since = now - rung.window if held is None else min(now - rung.window, held - _EARLIER)
    recent = [one for one in tries if one.rung == rung.name and one.begun > since and one.status != "refused"]
    same = [one for one in recent if one.trouble == trouble]
    return (
        len(same) >= rung.attempts
        or any(one.over and not one.well and one.status != "undone" for one in same)
        or len(recent) >= 2 * rung.attempts
    )


def offenders(
    past: Sequence[Past], now: float, *, window: float = 30 * 86400.0, least: int = 2
) -> list[tuple[str, list[Attempt]]]:
    """
    Return the nodes that had to be taken out and mended more than once, the worst first: the list of lemons that a scheduler may leave out.

    Parameters
    ----------
    past : sequence of Past
        Entries of a journal.
    now : float
    window : float, optional
        Seconds back; a month, since what comes once a quarter is no pattern that a list can help against.
    least : int, optional
        Tries of `evacuate` and higher rungs that make an offender.

    Returns
    -------
    list of (str, list of Attempt)
    """
    found = []
    for node in dict.fromkeys(one.node for one in past if one.node):
        tries = [
            one
            for one in attempts_of(past, node=node)
            if one.begun > now - window and height(one.rung) >= height("evacuate") and one.status not in ("refused", "undone")
        ]
        if len(tries) >= least:
            found.append((node, tries))
    return sorted(found, key=lambda one: (-len(one[1]), one[0]))


@lru_cache(maxsize=8)
def ladders(site: str | None = None) -> Ladders:
    """
    Return the shipped ladders, overridden by the site's ``ladders*.toml``: a rung of the same name whole, ladders asked before ours.

    Parameters
    ----------
    site : str, optional
        Folder of the site's catalog; default ``WORKBENCH_CATALOG``.

    Raises
    ------
    CatalogError
        A table is wrong; names file and entry.
    """
    rungs: dict[str, Rung] = {}
    order: list[Ladder] = []
    for folder in [HERE] + [Path(folder) for folder in [site or os.environ.get("WORKBENCH_CATALOG")] if folder]:
        mine: list[Ladder] = []
        for file in sorted(folder.glob("ladders*.toml")):
            try:
                table = tomllib.loads(file.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise CatalogError(f"{file.name}: {error}", hint="see workbench/catalog/ladders.toml") from None
            if table.get("schema") != SCHEMA:
                raise CatalogError(f"{file.name}: schema is {table.get('schema')!r}, not {SCHEMA!r}")
            rungs |= {name: _rung(name, one, file.name) for name, one in table.get("rung", {}).items()}
            mine += [_ladder(number, one, file.name) for number, one in enumerate(table.get("ladder", []), 1)]
        order = mine + order
    for one in order:
        for name in one.climb:
            if name not in rungs:
                raise CatalogError(f"{one.origin}: {name!r} is no rung that any table describes")
    if not order or not _is_last_resort(order[-1]):
        raise CatalogError("no ladder fits every fault: the last one must have no conditions")
    return Ladders(rungs, tuple(order))


def _is_last_resort(one: Ladder) -> bool:
    return not (one.causes or one.classes or one.actions or one.severities or one.codes)


def _rung(name: str, table: Any, file: str) -> Rung:
    where = f"{file}: [rung.{name}]"
    if name not in RUNGS:
        raise CatalogError(f"{where} is none of {', '.join(RUNGS)}")
    values = _values(Rung, table, where, times=("window", "cool_down", "deadline", "holds"))
    for key, allowed in (("steps", _STEPS), ("needs", _NEEDS), ("environments", ("cloud", "metal"))):
        _among(values.get(key, ()), allowed, f"{where} {key}")
    if not 0.0 <= values["sure"] <= 1.0:
        raise CatalogError(f"{where} sure is between 0 and 1")
    if values["attempts"] < 1:
        raise CatalogError(f"{where} attempts is at least 1")
    return Rung(name=name, origin=f"{file}:rung.{name}", **values)


def _ladder(number: int, table: Any, file: str) -> Ladder:
    where = f"{file}: [[ladder]] {table.get('name') or number}"
    values = _values(Ladder, table, where, times=("unseen_for",))
    for key, allowed in (
        ("causes", CAUSES),
        ("classes", tuple(CLASSES)),
        ("actions", REMEDIATIONS),
        ("severities", _SEVERITIES),
        ("climb", RUNGS),
    ):
        _among(values.get(key, ()), allowed, f"{where} {key}")
    if not values["climb"]:
        raise CatalogError(f"{where} climb is empty")
    return Ladder(origin=f"{file}:ladder.{values['name']}", **values)


def _values(cls: type[Any], table: Mapping[str, Any], where: str, *, times: Sequence[str]) -> dict[str, Any]:
    """Return a table's values with the types that the record wants; names what is missing, strange or of another type."""
    kinds = {one.name: str(one.type) for one in fields(cls) if one.name != "origin"}
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in kinds:
            raise CatalogError(f"{where} has no {key!r}: {', '.join(kinds)}")
        if key in times:
            try:
                found[key] = time_span(str(value))
            except ValueError as error:
                raise CatalogError(f"{where} {key}: {error}") from None
        elif kinds[key].startswith("tuple"):
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise CatalogError(f"{where} {key} is a list of words")
            found[key] = tuple(value)
        elif kinds[key] == "float" and isinstance(value, int | float) and not isinstance(value, bool):
            found[key] = float(value)
        elif (kinds[key] == "int" and isinstance(value, int) and not isinstance(value, bool)) or (
            kinds[key] == "str" and isinstance(value, str)
        ):
            found[key] = value
        else:
            raise CatalogError(f"{where} {key} is a {kinds[key]}, not {value!r}")
    wanted = [one.name for one in fields(cls) if one.name in kinds and one.name != "name" and not _optional(one)]
    if missing := [key for key in wanted if key not in found]:
        raise CatalogError(f"{where} has no {missing[0]}")
    return found


def _optional(one: Any) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING


def _among(values: Sequence[str], allowed: Sequence[str], where: str) -> None:
    for one in values:
        if one not in allowed:
            raise CatalogError(f"{where}: {one!r} is none of {', '.join(allowed)}")
