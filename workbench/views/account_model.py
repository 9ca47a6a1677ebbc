"""Turn the address of the account's page into what is wanted, and an account into its headline; a sheet holds what one tab shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from workbench.fleet.account import BY, DEFAULT, Account, span_of
from workbench.fleet.budgets import Objective
from workbench.fleet.figures import Figure
from workbench.fleet.goodput import DENOMINATORS, goodput
from workbench.views.permalink import Field, choice, read, text, write

__all__ = ["GROUPS", "LOSS", "SPANS", "TABS", "Part", "Sheet", "Wish", "headline", "percent", "targeted"]

TABS: Mapping[str, str] = {
    "objectives": "Objectives",
    "time": "Time",
    "failures": "Failures",
    "lemons": "Lemons",
    "cost": "Cost",
    "gameday": "Game day",
}
SPANS: Mapping[str, str] = {"4w": "4 weeks", "8w": "8 weeks", "13w": "quarter", "26w": "half a year", "52w": "year"}
GROUPS: Mapping[str, str] = {"": "all", "team": "team", "pool": "pool", "sku": "product", "size": "job size"}
# name of a figure → what an objective with a target for it counts
_TARGETED = {
    "availability": "availability",
    "job-start success": "job-start",
    "job success": "job-success",
    "infrastructure job success": "infra-job-success",
}
LOSS = ": lost to "


def targeted(objectives: Sequence[Objective]) -> dict[str, Objective]:
    """Return name of a figure → the first objective that has a target for it."""
    first = {one.indicator: one for one in reversed(objectives)}
    return {name: first[own] for name, own in _TARGETED.items() if own in first}


def _span() -> Field:
    def take(value: str) -> str:
        span_of(value, 1e11)
        return value

    return Field(take)


_FIELDS = {
    "window": _span(),
    "cluster": text(253),
    "by": choice(*BY),
    "of": choice(*DENOMINATORS),
    "tab": choice(*TABS),
    "day": text(255),
}
_START = {"window": DEFAULT, "cluster": None, "by": None, "of": "allocated", "tab": "objectives", "day": None}


@dataclass(frozen=True, slots=True)
class Wish:
    """
    What of the account is wanted.

    Attributes
    ----------
    window : str
        As `workbench.fleet.account.span_of` reads it.
    cluster : str or None
        Of this cluster only.
    by : str
        Groups: one of `BY`, or empty.
    of : str
        What time is a share of: one of `DENOMINATORS`.
    tab : str
        A key of `TABS`.
    day : str or None
        Name of a game day; None for the latest.
    """

    window: str = DEFAULT
    cluster: str | None = None
    by: str = ""
    of: str = "allocated"
    tab: str = "objectives"
    day: str | None = None

    @classmethod
    def read(cls, state: Mapping[str, str]) -> tuple[Wish, dict[str, str]]:
        """Return what an address asks for, and name → why for what of it makes no sense."""
        values, refused = read(_FIELDS, state)
        return cls(
            values.get("window") or DEFAULT,
            values.get("cluster"),
            values.get("by") or "",
            values.get("of") or "allocated",
            values.get("tab") or "objectives",
            values.get("day"),
        ), refused

    def write(self) -> dict[str, str]:
        """Return it as an address holds it, without what is at its default."""
        values = {name: getattr(self, name) or None for name in _FIELDS}
        return write(_FIELDS, values, _START)

    def but(self, **changes: Any) -> Wish:
        """Return another with some of it changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Part:
    """
    A table of a sheet.

    Attributes
    ----------
    name : str
        Of its files.
    title : str
    frame : DataFrame
        With numbers as they are, for the files.
    shown : DataFrame
        What people see of it.
    columns : mapping
        Column → heading.
    widths : mapping
        Pixels; one column has none and takes what is left.
    empty : str
        What is said when there is no row.
    noun : str
    note : str
        What the numbers are a part of.
    """

    name: str
    title: str
    frame: pd.DataFrame
    shown: pd.DataFrame
    columns: Mapping[str, str]
    widths: Mapping[str, int] = field(default_factory=dict)
    empty: str = "There is nothing to show."
    noun: str = "row"
    note: str = ""


@dataclass(frozen=True)
class Sheet:
    """
    One tab of an account, made by whoever may wait, drawn by who may not.

    Attributes
    ----------
    wish : Wish
    since, until, now : float
        Seconds since the epoch.
    clusters : tuple of str
    weeks : tuple of float or None
        When the ledger's first and last week begin.
    many : int
        See `Account.many`.
    empty : bool
    tiles : tuple of dict
        The headline: title, value, of, more, title of the definition.
    tables : tuple of Part
    drawn : dict
        What the figures of the tab are drawn from.
    notes : tuple of str
        What a reader must know.
    """

    wish: Wish
    since: float
    until: float
    now: float
    clusters: tuple[str, ...]
    weeks: tuple[float | None, float | None]
    many: int
    empty: bool
    tiles: tuple[dict[str, str], ...] = ()
    tables: tuple[Part, ...] = ()
    drawn: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def percent(share: float | None, digits: int = 2) -> str:
    """Return a share for people, rounded neither to all nor to nothing."""
    if share is None:
        return "–"
    whole, none = f"{100:.{digits}f}", f"{0:.{digits}f}"
    said = f"{100 * share:.{digits}f}"
    if said == whole and share < 1:
        return f"> {100 - 10**-digits:.{digits}f} %"
    return f"< {10**-digits:.{digits}f} %" if said == none and share > 0 else f"{said} %"


def headline(account: Account) -> list[dict[str, str]]:
    """Return the figures above all tabs, each with what it is a part of."""
    targets = targeted(account.targets)
    found = [_tile(one, targets.get(one.name)) for one in account.whole if LOSS not in one.name]
    if not account.many:
        (fall,) = account.falls("allocated")
        found.append(_tile(goodput(fall), None))
    whole = sum(int(row["of"]) for row in account.failures_by_week if row["cause"] == "unknown")
    failed = sum(int(row["attempts"]) for row in account.failures_by_week)
    found.append(
        {
            "name": "failed attempts",
            "value": f"{failed:,}" if whole else "–",
            "of": f"of {whole:,} that ended" if whole else "no attempt ended",
            "more": percent(failed / whole, 1) if whole else "",
            "what": "attempts that failed or ran out of time / attempts that ended in the window",
            "state": "",
        }
    )
    return found


def _tile(one: Figure, target: Objective | None) -> dict[str, str]:
    state = ""
    if target is not None and one.value is not None:
        state = "kept" if one.value >= target.target else "missed"
    of = (
        "nothing told"
        if one.value is None or one.numerator is None
        else f"{one.numerator:,.0f} of {one.denominator:,.0f} {one.unit}"
    )
    low, high = percent(one.low, 1), percent(one.high, 1)
    bounds = "" if one.low is None or one.high is None or low == high else f"{low} to {high}"
    return {
        "name": one.name,
        "value": percent(one.value),
        "of": of,
        "more": bounds,
        "what": "; ".join([one.definition, one.method, *one.notes]),
        "state": state,
        "target": f"target {100 * target.target:g} %" if target is not None else "",
    }
