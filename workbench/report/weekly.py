"""Turn a week of the fleet's ledger, and the week before it, into one report: objectives, where time went, failures, lemons, repairs, cost."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.report.text import clean

if TYPE_CHECKING:
    from workbench.fleet.figures import Figure
    from workbench.fleet.ledger import Ledger

__all__ = ["SCHEMA", "html", "last_week", "markdown", "week_of", "weekly"]

SCHEMA = "workbench.weekly/1"
_WEEK = 7 * 86400
_SHOWN = 8  # rows of a table that a person reads on a Monday
_QUARTER = 13  # weeks of history by which lemons are judged: a week alone says nothing about a node


def week_of(text: str) -> float:
    """
    Return when a week begins, in seconds since the epoch: ``2026-W05`` or any day of it, ``2026-01-28``.

    Raises
    ------
    ValueError
        It is neither.
    """
    try:
        day = dt.datetime.fromisoformat(text)  # of a week without a day: its Monday
    except ValueError:
        raise ValueError(f"{text!r} is no week, such as 2026-W05 or 2026-01-28") from None
    day = day.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=dt.UTC)
    return (day - dt.timedelta(days=day.weekday())).timestamp()


def last_week(ledger: Ledger, now: float) -> float | None:
    """Return when the last whole week with jobs begins; where only the present week has any, that one; None when none has."""
    weeks = [row["week"] for row in ledger.totals(("week",)) if row["week"] is not None and row["week"] <= now]
    whole = [week for week in weeks if week + _WEEK <= now]
    return float(max(whole or weeks)) if weeks else None


def weekly(
    ledger: Ledger,
    begin: float,
    *,
    cluster: str | None = None,
    prices: Mapping[str, str] | None = None,
    now: float | None = None,
) -> dict[str, Any]:
    """
    Return the report of one week as plain values (``workbench.weekly/1``).

    Parameters
    ----------
    ledger : Ledger
    begin : float
        Monday 00:00 UTC, seconds since the epoch.
    cluster : str, optional
        Of this cluster only.
    prices : mapping, optional
        The setting ``report.prices``.
    now : float, optional
        Seconds since the epoch; a week that is not over ends here. Default: the clock.

    Returns
    -------
    dict
        ``objectives`` (figures with numerator, denominator, bounds and the value of the week before), ``goodput`` (a waterfall over allocated
        GPU time), ``failures`` (by class), ``costly`` (the failed attempts that cost most), ``lemons`` (by the thirteen weeks that end here),
        ``repairs`` (by rung), ``notes``. Absent is None, never zero.
    """
    from workbench.fleet.cost import incident_costs
    from workbench.fleet.goodput import waterfall, weight_of
    from workbench.fleet.lemons import lemons
    from workbench.fleet.timeline import segments

    now = time.time() if now is None else now
    end = min(begin + _WEEK, max(begin, now))
    where = {"cluster": cluster} if cluster else {}
    jobs, states, attempts, phases, actions = (
        ledger.frame(name, begin, end, **where) for name in ("jobs", "node_states", "attempts", "phases", "actions")
    )
    past = [ledger.frame(name, end - _QUARTER * _WEEK, end, **where) for name in ("signals", "attempts", "node_states", "gpus")]
    figures, before = _objectives(jobs, states, begin, end), _before(ledger, begin, where)
    cut = segments(jobs, attempts, phases, until=end)
    (fall,) = waterfall(cut, denominator="allocated", weight=weight_of(cut), jobs=jobs, since=begin, until=end)
    found = lemons(*past, until=end)
    costs = incident_costs(attempts, jobs, phases, prices=prices)
    failed = attempts[attempts["state"].eq("failed") & attempts["ended"].notna()]
    return {
        "schema": SCHEMA,
        "week": dt.datetime.fromtimestamp(begin, dt.UTC).strftime("%G-W%V"),
        "since": _iso(begin),
        "until": _iso(end),
        "over": end == begin + _WEEK,
        "cluster": cluster,
        "version": __version__,
        "objectives": [figure.row() | {"week_before": before.get(_key(figure))} for figure in figures],
        "goodput": {
            "denominator": "allocated",
            "of_hours": fall.total / 3.6e9,
            "unit": fall.unit,
            "parts": fall.rows(),
            "percents": fall.percents(),
        },
        "failures": _by_class(failed, costs),
        "costly": _costly(costs),
        "currencies": sorted({str(one) for one in costs["currency"].dropna()}) if len(costs) else [],
        "lemons": [
            {name: _plain(row[name]) for name in ("node", "unit", "blames", "expected", "chance", "why") if name in row}
            for row in found.units[found.units["listed"]].to_dict("records")
        ],
        "lemons_exclude": found.exclude,
        "lemons_judged": int(found.units["chance"].notna().sum()) if len(found.units) else 0,
        "repairs": _repairs(actions),
        "notes": [clean(problem) for problem in found.problems],
    }


def _objectives(jobs: Any, states: Any, begin: float, end: float) -> list[Figure]:
    from workbench.fleet.objectives import availability, job_starts, job_success

    window: dict[str, Any] = {"since": begin, "until": end, "causes": True}
    figures = [*availability(states, **window), *job_starts(jobs, **window)]
    for infra in (False, True):
        figures += job_success(jobs, infra=infra, **window)
    return figures


def _before(ledger: Ledger, begin: float, where: Mapping[str, Any]) -> dict[str, float | None]:
    jobs, states = (ledger.frame(name, begin - _WEEK, begin, **where) for name in ("jobs", "node_states"))
    return {_key(figure): figure.value for figure in _objectives(jobs, states, begin - _WEEK, begin)}


def _key(figure: Figure) -> str:
    return f"{figure.name} {figure.by}"


def _by_class(failed: Any, costs: Any) -> list[dict[str, Any]]:
    """Failed attempts by class, the most GPU-hours lost first."""
    if not len(failed):
        return []
    lost = (
        costs.assign(hours=costs["idle_hours"].fillna(0) + costs["lost_hours"].fillna(0))
        .groupby("cls", dropna=False)["hours"]
        .sum()
    )
    rows = []
    for cls, part in failed.groupby(failed["cls"].fillna("unknown")):
        rows.append(
            {
                "class": str(cls),
                "attempts": len(part),
                "jobs": int(part["job"].nunique()),
                "gpu_hours_lost": float(lost.get(cls, 0.0)),
            }
        )
    return sorted(rows, key=lambda row: (-row["gpu_hours_lost"], -row["attempts"], row["class"]))


def _costly(costs: Any) -> list[dict[str, Any]]:
    if not len(costs):
        return []
    names = ("job", "attempt", "team", "cls", "idle_hours", "lost_hours", "cost", "currency", "missing")
    most = costs.sort_values("cost", ascending=False, na_position="last").head(_SHOWN)
    return [{name: _plain(row[name]) for name in names} for row in most.to_dict("records")]


def _repairs(actions: Any) -> list[dict[str, Any]]:
    if not len(actions):
        return []
    rows = []
    for rung, part in actions.groupby(actions["rung"].fillna("")):
        ended = part[part["end"].notna()]
        minutes = (ended["end"] - ended["begin"]).dt.total_seconds() / 60
        outcome = part["outcome"].fillna("open").value_counts()
        rows.append(
            {
                "rung": str(rung), "times": len(part), "nodes": int(part["node"].nunique()), "done": int(outcome.get("done", 0)),
                "failed": int(outcome.get("failed", 0)), "median_minutes": float(minutes.median()) if len(minutes) else None,
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: -row["times"])


def _plain(value: Any) -> Any:
    import math

    if hasattr(value, "item"):
        value = value.item()
    if (
        value is None or value != value or type(value).__name__ in ("NAType", "NaTType")
    ):  # NaN is no value, and not equal to itself
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _iso(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# ---- for people ---------------------------------------------------------------------------------------------------------------------


def markdown(told: Mapping[str, Any]) -> str:
    """Return the report as Markdown; texts of the ledger are escaped."""
    span = f"{told['since'][:10]} to {told['until'][:10]} (UTC)" + ("" if told["over"] else ", not over yet")
    went = told["goodput"]
    parts = [
        f"# GPU fleet, week {told['week']}",
        span + (f", cluster {_cell(told['cluster'])}" if told["cluster"] else ""),
        "## In short",
        "\n".join(f"- {line}" for line in _short(told)),
        "## Objectives",
        _table(
            ("objective", "this week", "week before", "95 % bounds", "of"),
            [
                (
                    _title(row["name"]), _percent(row["value"]), _percent(row["week_before"]), _bounds(row["low"], row["high"]),
                    _of(row["numerator"], row["denominator"], row["unit"]),
                )
                for row in told["objectives"]
                if not _idle_loss(row)
            ],
        ),
        "Causes that lost nothing are left out; all are in the JSON.",
        "## Where allocated GPU time went" if went["unit"] == "GPU-hours" else "## Where the jobs' time went",
        _table(
            ("part", went["unit"], "share", "what it is"),
            [
                (row["kind"], f"{row['amount']:,.{1 if row['amount'] >= 1 else 2}f}", f"{went['percents'][row['kind']]} %", row["meaning"])
                for row in went["parts"]
                if row["microseconds"]
            ],
        ) or "Nobody told of any attempt in this week.",
        "## Failures",
        _table(
            ("class", "attempts", "jobs", "GPU-hours lost"),
            [(row["class"], f"{row['attempts']:,}", f"{row['jobs']:,}", f"{row['gpu_hours_lost']:,.1f}") for row in told["failures"][:_SHOWN]],
        ) or "No attempt failed.",
        "## The dearest failures",
        _table(
            ("job", "team", "class", "GPU-hours idle", "GPU-hours redone", "cost"),
            [
                (f"{row['job']}/{row['attempt']}", row["team"], row["cls"], _number(row["idle_hours"]), _number(row["lost_hours"]), _cost(row))
                for row in told["costly"]
            ],
        ) or "None.",
        "## Nodes and GPUs that fail more often than chance",
        _table(
            ("node or GPU", "blames", "expected", "chance", "why"),
            [
                (row.get("unit") or row.get("node"), _number(row["blames"]), _number(row["expected"], 2), _percent(row["chance"]), row["why"])
                for row in told["lemons"][: 2 * _SHOWN]
            ],
        ) or (f"Of {told['lemons_judged']:,} judged by thirteen weeks, none." if told["lemons_judged"] else "Nothing could be judged."),
        f"To keep jobs off them: `--exclude={told['lemons_exclude']}`" if told["lemons_exclude"] else "",
        "## Repairs",
        _table(
            ("rung", "times", "nodes", "helped", "did not", "median"),
            [
                (row["rung"], row["times"], row["nodes"], row["done"], row["failed"], _minutes(row["median_minutes"]))
                for row in told["repairs"]
            ],
        ) or "None was told.",
        "\n".join(f"- {_cell(note)}" for note in told["notes"]),
        f"Written by workbench {told['version']} from the fleet's ledger.",
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def html(told: Mapping[str, Any]) -> str:
    """Return the report as one self-contained page: no script, no request."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    from workbench.report.markdown_html import to_html

    pages = Environment(loader=PackageLoader("workbench.report", "templates"), autoescape=True, trim_blocks=True)
    # the body is made of escaped parts by markdown_html
    return pages.get_template("weekly.html.j2").render(
        title=f"GPU fleet, week {told['week']}", body=Markup(to_html(markdown(told)))
    )


def _short(told: Mapping[str, Any]) -> list[str]:
    whole = {row["name"]: row for row in told["objectives"] if not row.get("cause")}
    lines = []
    for name, row in whole.items():
        if ": lost to " in name:
            continue
        change = ""
        if row["value"] is not None and row["week_before"] is not None:
            points = 100 * (row["value"] - row["week_before"])
            change = f", {points:+.2f} points on the week before" if abs(points) >= 0.005 else ", as the week before"
        lines.append(f"{_title(name)}: {_percent(row['value'])}{change}")
    total = told["goodput"]["of_hours"]
    if total:
        part, unit = told["goodput"]["percents"]["step"], told["goodput"]["unit"]
        lines.append(f"{part} % of {_hours(total)} allocated {unit} were productive")
    if told["failures"]:
        worst = told["failures"][0]
        lines.append(f"{worst['class']} lost most: {worst['gpu_hours_lost']:,.1f} GPU-hours in {worst['attempts']:,} attempts")
    count = len(told["lemons"])
    if count:
        lines.append(f"{count} node{'s' if count > 1 else ''} or GPUs fail more often than chance")
    return lines or ["The ledger knows of nothing in this week."]


def _idle_loss(row: Mapping[str, Any]) -> bool:
    return ": lost to " in row["name"] and not row["numerator"]


def _title(name: str) -> str:
    return "lost to " + name.rpartition(" ")[2] if ": lost to " in name else name


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _bounds(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{100 * low:.2f}–{100 * high:.2f}"


def _minutes(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} min"


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:,.2f}"


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _of(part: float | None, whole: float | None, unit: str) -> str:
    return "no data" if not whole or part is None else f"{part:,.0f} of {whole:,.0f} {unit}"


def _cost(row: Mapping[str, Any]) -> str:
    if row["cost"] is None:
        return "–"
    return f"{row['cost']:,.2f} {row['currency'] or ''}".strip() + (" and more" if row["missing"] else "")


def _cell(text: Any) -> str:
    shown = "–" if text is None else clean(str(text))
    return (
        shown.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "\\<")
        .replace("`", "\\`")
        .replace("*", "\\*")
        .replace("_", "\\_")
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
