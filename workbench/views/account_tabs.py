"""Turn an account into the sheet of one tab: its tables, what its figures are drawn from, and what a reader must know of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from workbench.fleet.account import Account, span_of
from workbench.fleet.budgets import Objective, budget
from workbench.fleet.figures import Figure, figures_frame
from workbench.fleet.gamedays import GameDay
from workbench.fleet.goodput import DENOMINATORS, Waterfall, goodput
from workbench.views.account_model import GROUPS, LOSS, Part, Sheet, Wish, headline, percent, targeted
from workbench.views.account_parts import budgets, ettr, game_day
from workbench.views.tables import display

__all__ = ["sheet", "without_ledger"]

Made = tuple[Sequence[Part], dict[str, Any], Sequence[str]]


def sheet(account: Account, wish: Wish, days: Sequence[GameDay] = (), notes: Sequence[str] = ()) -> Sheet:
    """Return one tab of an account, with game days that were played, and what is to be said of where all came from; blocking."""
    bare = Sheet(
        wish,
        account.since,
        account.until,
        account.now,
        account.clusters,
        (account.first, account.last),
        account.many,
        account.empty,
    )
    if wish.tab == "gameday":
        bare = _with_game_days(bare, days, notes)
    if account.empty:
        return bare
    bare = replace(bare, tiles=tuple(headline(account)))
    if wish.tab == "gameday":
        return bare
    tables, drawn, more = _MAKERS[wish.tab](account, wish)
    return replace(bare, tables=tuple(tables), drawn=drawn, notes=tuple(dict.fromkeys((*notes, *more))))


def without_ledger(wish: Wish, days: Sequence[GameDay], now: float) -> Sheet:
    """Return the game days that were played where there is no ledger: they need none."""
    since, until = span_of(wish.window, now)
    return _with_game_days(Sheet(wish, since, until, now, (), (None, None), 0, True), days, ())


def _with_game_days(bare: Sheet, days: Sequence[GameDay], notes: Sequence[str]) -> Sheet:
    """Return a sheet with the game day that its wish asks for."""
    tables, drawn, more = game_day(bare.wish, days)
    return replace(bare, tables=tuple(tables), drawn=drawn, notes=tuple(dict.fromkeys((*notes, *more))))


def _objectives(account: Account, wish: Wish) -> Made:
    figures = account.whole if not wish.by else account.objectives((wish.by,))
    rows = figures_frame(figures)
    if not len(rows):
        return (), _weekly(account), ("Nothing that an objective counts was told in this window.",)
    targets = targeted(account.targets)
    rows["lost_to"] = pd.Series([name.partition(LOSS)[2] or None for name in rows["name"]], dtype=object)
    rows["objective"] = [name.partition(LOSS)[0] for name in rows["name"]]
    rows["target"] = pd.Series([targets[one.name].target if one.name in targets else None for one in figures], dtype="Float64")
    rows["budget_left"] = pd.Series([_left(one, targets.get(one.name)) for one in figures], dtype="Float64")
    rows = rows[rows["lost_to"].isna() | (rows["numerator"].fillna(0) > 0)].reset_index(drop=True)
    shown = pd.DataFrame(
        {
            "objective": [
                ("lost to " + lost) if lost else name for name, lost in zip(rows["objective"], rows["lost_to"], strict=True)
            ]
        }
    )
    columns = {"objective": "objective"}
    if wish.by:
        shown[wish.by] = rows[wish.by].astype(object)
        columns[wish.by] = GROUPS[wish.by]
    for name, factor, digits in (
        ("value", 100, 3),
        ("low", 100, 2),
        ("high", 100, 2),
        ("numerator", 1, 1),
        ("denominator", 1, 1),
        ("target", 100, 2),
        ("budget_left", 100, 1),
    ):
        shown[name] = _rounded(rows[name], factor, digits)
    shown["unit"] = rows["unit"]
    shown["notes"] = ["; ".join(notes) for notes in rows["notes"]]
    columns |= {
        "value": "value %",
        "low": "from %",
        "high": "to %",
        "numerator": "good",
        "denominator": "of",
        "unit": "unit",
        "target": "target %",
        "budget_left": "budget left %",
        "notes": "what was left out",
    }
    rows["notes"] = shown["notes"]
    notes = [f"Availability has no {GROUPS[wish.by]}: it is of nodes."] if wish.by in ("team", "size") else []
    names = list(columns)
    part = Part(
        "objectives",
        f"Objectives{f' by {GROUPS[wish.by]}' if wish.by else ''}, and what each cause took",
        rows,
        shown[names],
        columns,
        {
            "objective": 220,
            wish.by or "-": 140,
            "value": 108,
            "low": 100,
            "high": 92,
            "numerator": 106,
            "denominator": 110,
            "unit": 106,
            "target": 108,
            "budget_left": 136,
        },
        note="good of all; bounds at 95 %. Causes that took nothing are left out here and in the files.",
        noun="figure",
    )
    if account.many:
        notes.append("Budgets of jobs: too many jobs ended to say how fast they burn; a shorter window tells it.")
    return (part, *budgets(account)), _weekly(account), notes


def _weekly(account: Account) -> dict[str, Any]:
    names = ("availability", "job-start success", "job success", "infrastructure job success")
    figures = {name: [one for one in account.weekly if one.name == name] for name in names}
    return {"weekly": figures, "targets": {name: one.target for name, one in targeted(account.targets).items()}}


def _left(one: Figure, target: Objective | None) -> float | None:
    if target is None or not one.denominator or one.numerator is None:
        return None
    return budget(target, one.denominator, one.numerator, one.unit).share_left


def _time(account: Account, wish: Wish) -> Made:
    if account.many:
        return (), {"fall": None}, (_many(account),)
    (fall,) = account.falls(wish.of)
    rows = pd.DataFrame(fall.rows())
    rows["of"] = rows["total_microseconds"] / 3.6e9
    percents = fall.percents(2)
    shown = pd.DataFrame(
        {
            "kind": ["productive (step)" if kind == "step" else kind for kind in rows["kind"]],
            "share": pd.Series([float(percents[kind]) if percents[kind] else None for kind in rows["kind"]], dtype=object),
            "amount": _rounded(rows["amount"], 1, 1),
            "of": _rounded(rows["of"], 1, 1),
            "meaning": rows["meaning"],
        }
    )
    heads = {"kind": "part", "share": "share %", "amount": "GPU-hours", "of": "of GPU-hours", "meaning": "what it is"}
    parts = [
        Part(
            "time",
            "Parts",
            rows,
            shown[list(heads)],
            heads,
            {"kind": 160, "share": 96, "amount": 120, "of": 130},
            noun="part",
            note=f"{DENOMINATORS[wish.of]}, each second times its GPUs; shares add up to 100 % exactly",
        )
    ]
    if wish.by:
        parts.insert(0, _time_by(account.falls(wish.of, (wish.by,)), wish))
    return [*parts, *ettr(account)], {"fall": fall}, list(fall.notes)


def _time_by(falls: Sequence[Waterfall], wish: Wish) -> Part:
    figures = [goodput(one) for one in falls]
    rows = figures_frame(figures) if figures else pd.DataFrame(columns=[wish.by])
    worst = []
    for one in falls:
        lost = {kind: part for kind, part in one.parts.items() if kind != "step" and part}
        kind = max(lost, key=lambda name: lost[name]) if lost else ""
        worst.append(f"{kind}, {percent(lost[kind] / one.total, 1)}" if kind else "nothing")
    rows["most_lost_to"] = worst
    rows["jobs"] = pd.Series([one.jobs for one in falls], dtype="Int64")
    if "notes" in rows:
        rows["notes"] = ["; ".join(notes) for notes in rows["notes"]]
    heads = {
        wish.by: GROUPS[wish.by],
        "value": "productive %",
        "high": "at most %",
        "numerator": "GPU-hours",
        "denominator": "of GPU-hours",
        "jobs": "jobs",
        "most_lost_to": "lost most to",
    }
    shown = pd.DataFrame({wish.by: rows[wish.by].astype(object)})
    if len(rows):
        for name, factor, digits in (("value", 100, 2), ("high", 100, 2), ("numerator", 1, 1), ("denominator", 1, 1)):
            shown[name] = _rounded(rows[name], factor, digits)
    shown = shown.reindex(columns=[*shown.columns, *(name for name in heads if name not in shown)])
    shown["jobs"], shown["most_lost_to"] = rows["jobs"], rows["most_lost_to"]
    return Part(
        "goodput",
        f"Goodput by {GROUPS[wish.by]}",
        rows,
        shown[list(heads)],
        heads,
        {"value": 132, "high": 116, "numerator": 120, "denominator": 130, "jobs": 80, "most_lost_to": 220},
        noun="group",
        note="at most: what it would be if all time that nobody told of was productive",
        empty="No group held a GPU in this window.",
    )


def _failures(account: Account, wish: Wish) -> Made:
    drawn = {"weeks": account.failures_by_week}
    if account.many:
        return (), drawn, (_many(account),)
    failed = account.failed
    whole = len(failed)
    rows: list[dict[str, Any]] = []
    for (cause, cls), part in failed.groupby([failed["cause"].fillna("unknown"), failed["cls"].fillna("unknown")], sort=False):
        hours = part["idle_hours"].fillna(0) + part["lost_hours"].fillna(0)
        told = part["idle_hours"].notna() | part["lost_hours"].notna()
        rows.append(
            {
                "cls": str(cls),
                "cause": str(cause),
                "attempts": len(part),
                "of": whole,
                "share": len(part) / whole,
                "jobs": int(part["job"].nunique()),
                "gpu_hours_lost": float(hours[told].sum()) if told.any() else None,
                "told_of": int(told.sum()),
            }
        )
    rows.sort(key=lambda row: (-(row["gpu_hours_lost"] or 0.0), -row["attempts"], row["cls"]))
    heads = {
        "cls": "class",
        "cause": "cause",
        "attempts": "attempts",
        "of": "of",
        "share": "share %",
        "jobs": "jobs",
        "gpu_hours_lost": "GPU-hours lost",
        "told_of": "told for",
    }
    classes = pd.DataFrame(rows, columns=list(heads)).astype({"gpu_hours_lost": "Float64", "share": "Float64"})
    shown = classes.assign(share=_rounded(classes["share"], 100, 1), gpu_hours_lost=_rounded(classes["gpu_hours_lost"], 1, 1))
    first = Part(
        "failure-classes",
        "By class",
        classes,
        shown,
        heads,
        {"cause": 110, "attempts": 100, "of": 80, "share": 106, "jobs": 80, "gpu_hours_lost": 140, "told_of": 90},
        empty="No attempt failed in this window.",
        noun="class",
        note="GPU-hours lost: idle until the next start, and work done again; told for as many attempts as the last column says",
    )
    columns = {
        "ended": "ended",
        "job": "job",
        "attempt": "attempt",
        "team": "team",
        "cause": "cause",
        "cls": "class",
        "node": "blamed node",
        "confidence": "sure %",
        "gpus": "GPUs",
        "idle_hours": "idle GPU-h",
        "lost_hours": "redone GPU-h",
        "incident": "evidence",
    }
    seen = display(failed, columns)
    seen["ended"] = [value[:16] for value in seen["ended"]]
    for name, factor, digits in (("confidence", 100, 0), ("idle_hours", 1, 1), ("lost_hours", 1, 1)):
        seen[name] = _rounded(failed[name], factor, digits)
    second = Part(
        "failed-attempts",
        "Failed attempts, the latest first",
        failed,
        seen,
        columns,
        {
            "ended": 156,
            "attempt": 98,
            "team": 100,
            "cause": 94,
            "cls": 180,
            "node": 130,
            "confidence": 92,
            "gpus": 84,
            "idle_hours": 120,
            "lost_hours": 138,
            "incident": 130,
        },
        empty="No attempt failed in this window.",
        noun="attempt",
        note="what a cell leaves empty nobody told",
    )
    return (first, second), drawn, ()


def _lemons(account: Account, wish: Wish) -> Made:
    if account.many and not len(account.frames["quarter"]):
        return (), {"lemons": None}, (_many(account),)
    found = account.lemons
    units = found.units[(found.units["blames"] > 0) | found.units["listed"].astype(bool)].reset_index(drop=True)
    heads = {
        "unit": "node or GPU",
        "kind": "kind",
        "node": "on node",
        "listed": "listed",
        "blames": "blames",
        "expected": "expected",
        "hours": "hours",
        "times": "× usual",
        "chance": "chance %",
        "why": "why",
    }
    shown = display(units, heads)
    for name, factor, digits in (("blames", 1, 2), ("expected", 1, 2), ("hours", 1, 0), ("times", 1, 1), ("chance", 100, 1)):
        shown[name] = _rounded(units[name], factor, digits)
    weeks = math.ceil((account.until - account.judged) / (7 * 86400))
    part = Part(
        "lemons",
        "Nodes and GPUs with something against them",
        units,
        shown,
        heads,
        {
            "unit": 122,
            "kind": 78,
            "node": 100,
            "listed": 80,
            "blames": 94,
            "expected": 108,
            "hours": 86,
            "times": 96,
            "chance": 112,
        },
        empty="Nothing speaks against any node or GPU." if len(found.units) else "Nobody told which nodes jobs ran on.",
        noun="unit",
        note=f"by the {weeks} weeks that end with the window; blames of how many hours; expected: of a healthy unit in as many hours. "
        f"{int((found.units['blames'] == 0).sum()):,} others have nothing against them",
    )
    return (part,), {"lemons": found, "exclude": found.exclude}, list(found.problems)


def _cost(account: Account, wish: Wish) -> Made:
    if account.many:
        return (), {"tornado": account.pays, "currency": account.price.currency if account.price else ""}, (_many(account),)
    costs = account.costs
    rows: list[dict[str, Any]] = []
    who = [str(team or user or "not told") for team, user in zip(costs["team"].fillna(""), costs["user"].fillna(""), strict=True)]
    words = costs.assign(who=who, cause=costs["cause"].fillna("").replace("", "unknown"), currency=costs["currency"].fillna(""))
    for (one, cause, currency), part in words.groupby(["who", "cause", "currency"]):
        priced = part["cost"].notna()
        rows.append(
            {
                "who": str(one),
                "cause": str(cause),
                "attempts": len(part),
                "of": len(costs),
                "idle_hours": _sum(part["idle_hours"]),
                "lost_hours": _sum(part["lost_hours"]),
                "people_hours": _sum(part["people_hours"]),
                "cost": _sum(part["cost"]),
                "currency": str(currency),
                "priced": int(priced.sum()),
                "incomplete": int((part["missing"] != "").sum()),
            }
        )
    rows.sort(key=lambda row: (-(row["cost"] or 0.0), row["who"], row["cause"]))
    heads = {
        "who": "who lost it",
        "cause": "cause",
        "attempts": "failures",
        "of": "of",
        "idle_hours": "idle GPU-h",
        "lost_hours": "redone GPU-h",
        "people_hours": "people h",
        "cost": "cost",
        "currency": "currency",
        "incomplete": "not all told",
    }
    frame = pd.DataFrame(rows, columns=[*heads, "priced"]).astype(
        dict.fromkeys(("idle_hours", "lost_hours", "people_hours", "cost"), "Float64")
    )
    shown = frame[list(heads)].assign(
        **{name: _rounded(frame[name], 1, 1) for name in ("idle_hours", "lost_hours", "people_hours")}
    )
    shown["cost"] = _rounded(frame["cost"], 1, 0)
    sources = sorted({str(one) for one in costs["price_source"].dropna() if one})
    first = Part(
        "cost",
        "What failures cost, and whom",
        frame,
        shown,
        heads,
        {
            "cause": 110,
            "attempts": 90,
            "of": 70,
            "idle_hours": 110,
            "lost_hours": 140,
            "people_hours": 112,
            "cost": 110,
            "currency": 112,
            "incomplete": 120,
        },
        empty="No attempt failed in this window.",
        noun="row",
        note="price: " + "; ".join(sources) if sources else "no price is known: set report.prices",
    )
    parts = [first]
    if account.pays is not None:
        parts.append(_assumed(account.pays))
    nodes, gpus, sku = account.size
    said = f"{nodes:,} nodes of {gpus} GPUs ({sku or 'product not told'})" if nodes and gpus else ""
    drawn = {"tornado": account.pays, "currency": account.price.currency if account.price else "", "fleet": said}
    return parts, drawn, ()


def _assumed(frame: pd.DataFrame) -> Part:
    heads = {
        "name": "assumption",
        "low": "low",
        "value": "as assumed",
        "high": "high",
        "unit": "unit",
        "at_low": "saved at low",
        "at_high": "saved at high",
        "flips": "sign changes",
        "meaning": "what it is",
        "source": "source",
    }
    shown = display(frame, heads)
    for name in ("at_low", "at_high"):
        shown[name] = _rounded(frame[name], 1, 0)
    shown["name"] = [str(name).replace("_", " ") for name in shown["name"]]
    return Part(
        "assumptions",
        "Assumptions",
        frame,
        shown,
        heads,
        {
            "name": 210,
            "low": 84,
            "value": 116,
            "high": 84,
            "unit": 136,
            "at_low": 130,
            "at_high": 134,
            "flips": 132,
            "source": 210,
        },
        noun="assumption",
        note="each can be replaced by your own: workbench fleet cost --pays --assume FILE",
    )


def _many(account: Account) -> str:
    return (
        f"{account.many:,} attempts ended in this window: too many to be read one by one for a page. Choose a shorter window or one cluster, or "
        "ask the command line (workbench fleet), which takes its time."
    )


def _sum(values: Any) -> float | None:
    return float(values.sum()) if values.notna().any() else None


def _rounded(values: Any, factor: float, digits: int) -> Any:
    """Return numbers for people; missing ones are empty cells."""
    numbers = [None if one is pd.NA or one is None or one != one else round(float(one) * factor, digits) for one in values]
    return pd.Series(numbers, index=values.index, dtype=object if None in numbers else float)


_MAKERS = {"objectives": _objectives, "time": _time, "failures": _failures, "lemons": _lemons, "cost": _cost}
