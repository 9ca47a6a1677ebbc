"""Turn `workbench fleet goodput` into where time went (a waterfall of 100 %), ETTR, failures, repairs, and what other sizes expect."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.entry import complain
from workbench.cli.fleet import add_common, open_ledger, window_of
from workbench.cli.fleet_table import Columns, written
from workbench.cli.live import moment
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    import pandas as pd

    from workbench.fleet.ettr import Ettr
    from workbench.fleet.figures import Figure
    from workbench.fleet.goodput import Waterfall

__all__ = ["add_arguments", "run"]

_FALL: Columns = (
    ("kind", "where time went", 16),
    ("amount", "hours", -14),
    ("share", "share", -8),
    ("bar", " ", 20),
    ("meaning", " ", 40),
)
_GROUPED: Columns = (
    ("by", "of", 40),
    ("goodput", "goodput", -8),
    ("most", "at most", -8),
    ("worst", "largest losses", 40),
)
_FIGURES: Columns = (
    ("name", "figure", 24),
    ("by", " ", 14),
    ("value", "value", -9),
    ("bounds", "bounds", 18),
    ("counted", "of", -34),
)
_TERMS: Columns = (
    ("name", "ETTR: lost to", 16),
    ("measured", "measured", -10),
    ("expected", "formula", -10),
    ("difference", "difference", -10),
)
_GROUPS = ("week", "cluster", "team", "user", "pool", "sku", "size", "job", "attempt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument("--by", metavar="WORDS", default="", help=f"a line for each of these together: {', '.join(_GROUPS)}")
    parser.add_argument("--job", metavar="ID", help="of this job only")
    parser.add_argument(
        "--of",
        choices=("elapsed", "scheduled", "allocated"),
        default="elapsed",
        help="the denominator: all time from submission on (default), from the first allocation on, or only while nodes were held",
    )
    parser.add_argument(
        "--weight", choices=("gpus", "time"), help="GPU-hours (default), or hours of jobs (default where no job told its GPUs)"
    )
    parser.add_argument(
        "--project", metavar="GPUS", default="", help="time to failure of jobs of these sizes, such as 1024,16384"
    )
    parser.add_argument("--gpus-per-node", metavar="N", type=int, default=8, help="for --project (default 8)")
    parser.add_argument(
        "--events", metavar="FILE", type=Path, help="instead of the ledger: JSON lines of ml-goodput-measurement, one job"
    )
    parser.add_argument("--interval", metavar="TIME", help="between checkpoints, for the formula of ETTR: 30m; default: as told")
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Show where time went."""
    from workbench.fleet.goodput import goodput, waterfall, weight_of
    from workbench.fleet.timeline import segments

    now = time.time()
    until = moment(options.until, now) or now
    since = moment(options.since, now)
    by = [word for word in options.by.replace(",", " ").split() if word]
    if wrong := [word for word in by if word not in _GROUPS]:
        raise Usage(f"--by {', '.join(wrong)}: it knows {', '.join(_GROUPS)}")
    code, said = exits.OK, ""
    if options.events is not None:
        frames, problems = _of_events(options.events)
        for problem in problems:
            complain(problem)
        code = exits.INCOMPLETE if problems else exits.OK
    else:
        frames, since, until, said = _of_ledger(options, now)
    jobs = frames["jobs"]
    cut = segments(jobs, frames["attempts"], frames["phases"], until=until)
    options.weight = options.weight or weight_of(cut)
    window: dict[str, Any] = {"since": since, "until": until, "denominator": options.of, "weight": options.weight}
    falls = waterfall(cut, by=by, jobs=jobs, **window)
    if by:
        sys.stdout.write(_grouped(falls, options.output))
        return code
    (fall,) = falls
    figures = [goodput(fall), *_figures(options, frames, since or 0.0, until)]
    ettr = _ettr(options, cut, frames, window)
    if options.output == "json":
        told = {
            "waterfall": fall.rows(),
            "notes": list(fall.notes),
            "figures": [one.row() for one in figures],
            "ettr": _ettr_json(ettr),
        }
        sys.stdout.write(json.dumps(told, indent=2, allow_nan=False) + "\n")
    elif options.output == "csv":
        sys.stdout.write(written((), fall.rows(), "csv"))
    else:
        sys.stdout.write((f"{said}\n" if said else "") + _page(fall, figures, ettr, options.output))
    return code


def _of_ledger(options: argparse.Namespace, now: float) -> tuple[dict[str, pd.DataFrame], float, float, str]:
    where: dict[str, Any] = {"cluster": options.cluster} if options.cluster else {}
    one = {"job": options.job} if options.job else {}
    with open_ledger(options) as ledger:
        since, until, said = window_of(options, ledger, 30.0, now)
        jobs = ledger.frame("jobs", since, until, **where, **one)
        # all of a job's past: what is lost is known only from the attempts around it
        first = jobs["submitted"].min() if len(jobs) else None
        begin = min(since, first.timestamp()) if first is not None and first == first else since
        frames = {name: ledger.frame(name, begin, until, **where, **one) for name in ("attempts", "phases")}
        frames |= {name: ledger.frame(name, since, until, **where) for name in ("node_states", "actions")}
    return {"jobs": jobs, **frames}, since, until, said


def _of_events(path: Path) -> tuple[dict[str, pd.DataFrame], list[str]]:
    from workbench.fleet.cells import frame_of
    from workbench.fleet.goodput_events import rows_of_events
    from workbench.fleet.tables import TABLES

    events, bad = [], 0
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror or error}") from None
    for line in filter(str.strip, lines):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            bad += 1
    rows = rows_of_events(events)
    problems = [*([f"{bad} lines of {path.name} are no JSON objects"] if bad else []), *rows.problems]

    def frame(name: str, records: list[dict[str, Any]]) -> pd.DataFrame:
        columns = TABLES[name].columns
        return frame_of(
            [(one.name, one.kind) for one in columns], [tuple(row.get(one.name) for one in columns) for row in records]
        )

    given = {"jobs": rows.jobs, "attempts": rows.attempts, "phases": rows.phases, "node_states": [], "actions": []}
    return {name: frame(name, records) for name, records in given.items()}, problems


def _figures(options: argparse.Namespace, frames: dict[str, pd.DataFrame], since: float, until: float) -> list[Figure]:
    from workbench.fleet.ettr import response_times
    from workbench.fleet.reliability import at_risk, failure_rate, mean_time_to_failure, repair_times

    window: dict[str, Any] = {"since": since, "until": until}
    seen = at_risk(frames["attempts"], frames["jobs"], **window).get("all")
    figures: list[Figure] = []
    if seen is not None:
        figures += [failure_rate(seen, **window), mean_time_to_failure(seen, **window)]
        for word in options.project.replace(",", " ").split():
            if not word.isdigit() or not int(word):
                raise Usage(f"--project {word}: numbers of GPUs, such as 1024,16384")
            nodes = max(1, -(-int(word) // max(1, options.gpus_per_node)))
            figures.append(mean_time_to_failure(seen, nodes, **window))
    figures += response_times(frames["attempts"], **window)
    return figures + repair_times(frames["node_states"], frames["actions"], **window)


def _ettr(options: argparse.Namespace, cut: pd.DataFrame, frames: dict[str, pd.DataFrame], window: dict[str, Any]) -> Ettr:
    """Of the time that jobs ran or waited, whatever the waterfall shows."""
    from workbench.config import time_span
    from workbench.fleet.ettr import ettr_of

    interval = None
    if options.interval:
        try:
            interval = time_span(options.interval)
        except ValueError as error:
            raise Usage(f"--interval: {error}") from None
        if interval <= 0:
            raise Usage("--interval: must be above zero")
    within = {name: window[name] for name in ("since", "until", "weight")}
    return ettr_of(cut, frames["jobs"], frames["attempts"], interval=interval, **within)


def _ettr_json(one: Ettr) -> dict[str, Any]:
    import dataclasses

    return {
        "measured": one.measured,
        "expected": one.expected,
        "difference": one.difference,
        "terms": [{"name": name, "measured": lost, "expected": wanted} for name, lost, wanted in one.terms],
        "parameters": dataclasses.asdict(one.parameters) if one.parameters else None,
        "notes": list(one.notes),
    }


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _page(fall: Waterfall, figures: list[Figure], ettr: Ettr, output: str) -> str:
    from workbench.fleet.goodput import DENOMINATORS, MEANINGS

    percents = fall.percents()
    rows = [
        {
            "kind": kind + (" (goodput)" if kind == "step" else ""),
            "amount": _some(part / 3.6e9),
            "share": f"{percents[kind]} %" if percents[kind] else "–",
            "bar": "#" * round(20 * part / fall.total) or " " if fall.total else " ",
            "meaning": MEANINGS[kind],
        }
        for kind, part in fall.parts.items()
        if part
    ]
    rows.append(
        {
            "kind": "all",
            "amount": _some(fall.total / 3.6e9),
            "share": "100.0 %" if fall.total else "–",
            "bar": " ",
            "meaning": f"{fall.unit} of {fall.jobs:,} job{'s' if fall.jobs != 1 else ''}",
        }
    )
    parts = [f"Denominator: {DENOMINATORS[fall.denominator]}; in {fall.unit}.\n", written(_FALL, rows, output)]
    parts += [f"{note}\n" for note in fall.notes]
    parts.append(
        "\n"
        + written(
            _FIGURES, [_figure(one) for one in figures if one.value is not None or one.low is not None or one.notes], output
        )
    )
    parts += _notes(figures)
    if ettr.measured is not None:
        told = f"\nETTR {_percent(ettr.measured, 2)}"
        told += f", by formula {_percent(ettr.expected, 2)}" if ettr.expected is not None else ", by formula: cannot be said"
        parts.append(told + "\n")
        if ettr.parameters is not None and ettr.expected is not None:
            terms = [
                {
                    "name": name,
                    "measured": _percent(lost, 2),
                    "expected": _percent(wanted, 2),
                    "difference": f"{100 * (lost - wanted):+.2f} %",
                }
                for name, lost, wanted in ettr.terms
                if lost or wanted
            ]
            parts.append(written(_TERMS, terms, output))
        parts += [f"  {note}\n" for note in ettr.notes]
    return "".join(parts)


def _figure(one: Figure) -> dict[str, Any]:
    share = one.name == "goodput"

    def scale(value: float | None) -> str:
        return "–" if value is None else _percent(value) if share else f"{value:,.4g}"

    high = "∞" if one.high is None and one.low is not None and not share else scale(one.high)
    return {
        "name": one.name,
        "by": ", ".join(value for _, value in one.by) or " ",
        "value": scale(one.value),
        "bounds": "–" if one.low is None else f"{scale(one.low)} to {high}",
        "counted": "–"
        if not one.denominator and one.numerator is None
        else f"{_plain(one.numerator)} / {_plain(one.denominator)} {_short(one)}",
    }


def _short(one: Figure) -> str:
    return {"failures per 1000 node-days": "node-days", "seconds of failures": "s", "hours": "h"}.get(one.unit, one.unit)


def _some(hours: float) -> str:
    """Hours, those of a minute's job too."""
    return f"{hours:,.2f}" if hours >= 0.1 or not hours else f"{hours:.4f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:,.4g}"


def _notes(figures: list[Figure]) -> list[str]:
    """What is to be known of figures, each once with the names of those that it is about."""
    import textwrap

    told: dict[str, list[str]] = {}
    for one in figures:
        name = one.name if not one.by else f"{one.name} ({', '.join(value for _, value in one.by)})"
        texts = one.notes if one.by else (f"{one.definition}; {one.method}", *one.notes)
        for text in texts:
            told.setdefault(text, []).append(name)
    lines = [f"{', '.join(names)}: {text}" for text, names in told.items()]
    return ["\n", *(textwrap.fill(line, 98, initial_indent="  ", subsequent_indent="    ") + "\n" for line in lines)]


def _grouped(falls: list[Waterfall], output: str) -> str:
    raw = [row for fall in falls for row in fall.rows()]
    rows = []
    for fall in falls:
        percents = fall.percents()
        worst = sorted((kind for kind in fall.parts if kind != "step" and fall.parts[kind]), key=lambda kind: -fall.parts[kind])[
            :3
        ]
        step, unknown = fall.parts["step"], fall.parts["unknown"]
        rows.append(
            {
                "by": ", ".join(f"{name}={value}" for name, value in fall.by),
                "goodput": _percent(step / fall.total if fall.total else None),
                "most": _percent((step + unknown) / fall.total if fall.total else None),
                "worst": ", ".join(f"{kind} {percents[kind]} %" for kind in worst),
            }
        )
    return written(_GROUPED, rows, output, raw=raw)
