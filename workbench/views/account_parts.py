"""Turn an account into what budgets, ETTR and game days add to its tabs: tables, and what a reader must know of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workbench.fleet.account import Account
from workbench.fleet.ettr import MEANS, Ettr
from workbench.fleet.gamedays import SCHEMAS, GameDay
from workbench.simulation.dirt import WORDS
from workbench.views.account_model import Part, Wish, percent

__all__ = ["budgets", "chosen", "ettr", "game_day"]

_STATES = {
    "burning": "burns",
    "few": "too few to tell",
    "quiet": "quiet",
    "never": "cannot burn so fast",
    "no data": "nothing happened",
}


def budgets(account: Account) -> list[Part]:
    """Return how fast the error budgets burn at the end of the window; nothing without targets."""
    rows: list[dict[str, Any]] = [
        {
            "objective": one.name,
            "target": one.target,
            "days": one.days,
            "windows": f"{burn.window.long_name} and {burn.window.short_name}",
            "factor": burn.window.factor,
            "burn_long": burn.long,
            "burn_short": burn.short,
            "bad": burn.bad,
            "of": burn.total,
            "unit": "node-hours" if one.indicator == "availability" else "jobs",
            "state": burn.state,
            "tells": burn.window.severity if burn.state == "burning" else None,
            "why": burn.why,
        }
        for one, burn in account.burning
    ]
    if not rows:
        return []
    heads = {
        "objective": "objective",
        "windows": "seen over",
        "factor": "above ×",
        "burn_long": "long ×",
        "burn_short": "short ×",
        "bad": "bad",
        "of": "of",
        "unit": "unit",
        "state": "says",
        "why": "why",
    }
    frame = pd.DataFrame(rows).astype(dict.fromkeys(("burn_long", "burn_short", "bad", "of", "days"), "Float64"))
    shown = pd.DataFrame(
        {
            "objective": [f"{row['objective']}, {percent(row['target'], 1)}" for row in rows],
            "windows": frame["windows"],
            "factor": frame["factor"],
            **{name: _rounded(frame[name], 2) for name in ("burn_long", "burn_short", "bad", "of")},
            "unit": frame["unit"],
            "state": [
                f"{_STATES[row['state']]}: {row['tells']}" if row["tells"] else _STATES.get(row["state"], row["state"])
                for row in rows
            ],
            "why": frame["why"],
        }
    )
    return [
        Part(
            "budget-burns",
            "Error budgets: how fast they burn",
            frame,
            shown[list(heads)],
            heads,
            {
                "objective": 206,
                "windows": 112,
                "factor": 100,
                "burn_long": 92,
                "burn_short": 98,
                "bad": 80,
                "of": 86,
                "unit": 104,
                "state": 156,
            },
            noun="burn",
            note=f"up to {_when(account.until)} UTC; long and short: how many times as fast as would spend it in exactly its window "
            f"({_days(account)}). Told when both are above the factor, and above chance",
        )
    ]


def _days(account: Account) -> str:
    days = sorted({one.days for one in account.targets})
    return ", ".join(f"{one:g} days" for one in days)


def ettr(account: Account) -> list[Part]:
    """Return ETTR as it was beside its formula, term by term, with what must be known of both; nothing without time."""
    one = account.ettr
    if one.measured is None:
        return []
    heads = {
        "term": "lost to",
        "measured": "as it was %",
        "expected": "by formula %",
        "difference": "difference",
        "meaning": "what it is",
    }
    known = one.expected is not None
    rows: list[dict[str, Any]] = [
        {
            "term": name,
            "measured": lost,
            "expected": wanted if known else None,
            "difference": lost - wanted if known else None,
            "meaning": MEANS.get(name, ""),
        }
        for name, lost, wanted in one.terms
        if lost or wanted
    ]
    rows.sort(key=lambda row: -abs(row["difference"] or row["measured"]))
    frame = pd.DataFrame(rows, columns=list(heads)).astype(dict.fromkeys(("measured", "expected", "difference"), "Float64"))
    shown = frame.assign(**{name: _rounded(frame[name] * 100, 2) for name in ("measured", "expected", "difference")})
    part = Part(
        "ettr",
        f"ETTR {percent(one.measured)}, {_by_formula(one)}",
        frame,
        shown,
        heads,
        {"term": 150, "measured": 122, "expected": 130, "difference": 116},
        noun="term",
        note="; ".join([_explained(one), *one.notes]) + ". Terms add up to what is lost",
        empty="Nothing was lost.",
    )
    return [part]


def _by_formula(one: Ettr) -> str:
    return "by formula: cannot be said" if one.expected is None else f"by formula {percent(one.expected)}"


def _explained(one: Ettr) -> str:
    """Return the difference in words: its size, and the terms that make most of it."""
    if one.difference is None:
        return "productive time / time in which jobs ran or could have run"
    parts = sorted(((name, lost - wanted) for name, lost, wanted in one.terms), key=lambda part: -abs(part[1]))
    most = [f"{name} {100 * size:+.1f}" for name, size in parts[:3] if abs(size) >= 0.0005]
    way = "more" if one.difference >= 0 else "less"
    text = f"the formula expects {abs(100 * one.difference):.1f} points {way} than there was"
    return f"{text}: {', '.join(most)}" if most else text


def chosen(days: Sequence[GameDay], wish: Wish) -> GameDay | None:
    """Return the game day that is wanted: that of the name, or the latest; None when there is none of the name."""
    return next((one for one in days if wish.day in (None, one.name)), None)


def game_day(wish: Wish, days: Sequence[GameDay]) -> tuple[Sequence[Part], dict[str, Any], Sequence[str]]:
    """Return the score card that is wanted, its rounds as a table, and which others there are."""
    one = chosen(days, wish)
    drawn: dict[str, Any] = {
        "card": None,
        "days": tuple((day.name, _when(day.played)) for day in days),
        "day": one.name if one else None,
    }
    notes = [day.problem for day in days if day.problem]
    if wish.day is not None and one is None:
        notes.insert(0, f"There is no game day of the name {wish.day}.")
    if one is None or one.card is None:
        return (), drawn, notes
    drawn["card"], drawn["title"] = one.card, f"{one.name}, played {_when(one.played)} UTC"
    heads = {
        "number": "round",
        "right": "right",
        "truth": "put in",
        "said": "judged",
        "confidence": "sure %",
        "node": "at fault",
        "blamed": "blamed",
        "ranks": "ranks",
        "detected": "known s",
        "judged": "judged s",
        "retry": "retry",
        "actions": "plan",
    }
    rows = [_round(row) for row in one.card["rounds"]]
    frame = pd.DataFrame(rows, columns=list(heads)).astype(dict.fromkeys(("confidence", "detected", "judged"), "Float64"))
    shown = frame.assign(confidence=_rounded(frame["confidence"] * 100, 0), judged=_rounded(frame["judged"], 2))
    part = Part(
        "gameday",
        "Rounds",
        frame,
        shown,
        heads,
        {
            "number": 86,
            "right": 118,
            "truth": 196,
            "said": 196,
            "confidence": 96,
            "node": 96,
            "blamed": 96,
            "ranks": 88,
            "detected": 96,
            "judged": 98,
            "retry": 118,
        },
        noun="round",
        note=_TIMES[one.card["schema"] == SCHEMAS[1]],
        empty="No round was played.",
    )
    return (part, *_dirty(one.card["rounds"])), drawn, notes


_TIMES = (
    "known: seconds after the fault, simulated by the spec's time to notice; judged: seconds that it took, measured",
    "on real servers, measured; known: seconds from the first sign until the watch had it; judged: from there to the first verdict",
)
_NO_WORD = ("unknown", "none", "nothing")
_ASKED = {"cause_right": "cause", "node_right": "node", "rank_right": "rank", "retry_right": "retry", "plan_right": "plan"}


def _round(row: Mapping[str, Any]) -> dict[str, Any]:
    wrong = [word for key, word in _ASKED.items() if not row.get(key, key == "rank_right")] + (
        ["an innocent node"] if row.get("innocent") else []
    )
    numbers = {name: row.get(name) for name in ("confidence", "detected", "judged")}
    words = {name: None if row.get(name) is None else str(row.get(name)) for name in ("truth", "said", "node", "blamed", "retry")}
    return {
        "number": row.get("number"),
        "right": "all" if not wrong else "wrong: " + ", ".join(wrong),
        **words,
        **numbers,
        "ranks": row.get("ranks"),
        "actions": ", ".join(dict.fromkeys(map(str, row.get("actions") or ()))) or None,
    }


def _dirty(rounds: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Sum the rounds by what was wrong with their evidence; none where nothing was."""
    if not any(one.get("dirt") for one in rounds):
        return ()
    asked = {key: word for key, word in _ASKED.items() if any(key in one for one in rounds)}
    rows = []
    for kind, words in WORDS.items():
        some = [one for one in rounds if (kind in (one.get("dirt") or ()) if kind != "clean" else not one.get("dirt"))]
        if some:
            row: dict[str, Any] = {"kind": words, "rounds": len(some)}
            row |= {word: sum(bool(one.get(key)) for one in some) for key, word in asked.items()}
            row["unknown"] = sum(one.get("said") in _NO_WORD for one in some)
            row["innocent"] = sum(bool(one.get("innocent")) for one in some)
            rows.append(row)
    heads = {"kind": "wrong with the evidence", "rounds": "rounds", **{word: f"{word} right" for word in asked.values()}}
    heads |= {"unknown": "said unknown", "innocent": "innocent blamed"}
    frame = pd.DataFrame(rows, columns=list(heads))
    widths = {name: 260 if name == "kind" else 130 for name in heads}
    return (
        Part(
            "gameday-dirt", "By what is wrong with the evidence", frame, frame, heads, widths, noun="row",
            note="rounds of each; one with two troubles counts for both", empty="No round was played.",
        ),
    )  # fmt: skip


def _when(seconds: float) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M}"


def _rounded(values: Any, digits: int) -> Any:
    numbers = [None if one is pd.NA or one is None or one != one else round(float(one), digits) for one in values]
    return pd.Series(numbers, index=values.index, dtype=object if None in numbers else float)
