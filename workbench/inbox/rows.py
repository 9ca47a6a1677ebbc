"""Turn a case file into the fields of its row in the inbox, a row into JSON and back, and rows into a frame."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC as UTC_ZONE
from datetime import datetime
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from workbench.inbox.model import STATES, Entry
from workbench.owners import Teams

if TYPE_CHECKING:
    import pandas as pd

    from workbench.casefile.model import CaseFile

__all__ = [
    "COLUMNS",
    "ID",
    "SCHEMA",
    "facts_of",
    "frame_of",
    "from_json",
    "moment",
    "owned",
    "priced",
    "to_json",
    "verdict_facts",
]

SCHEMA = "workbench.inbox/1"
ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,126}[A-Za-z0-9])?")  # also the name of a folder: no way out of it
UTC = "datetime64[us, UTC]"

# the columns of the frame: what a table, a filter or an export needs; `told` is the first moment by any way
COLUMNS: dict[str, str] = {
    "id": "string",
    "time": UTC,
    "seen": UTC,
    "state": "string",
    "source": "string",
    "job": "string",
    "attempt": "Int64",
    "namespace": "string",
    "user": "string",
    "team": "string",
    "cause": "string",
    "cls": "string",
    "confidence": "Float64",
    "summary": "string",
    "node": "string",
    "gpu": "Int64",
    "rank": "Int64",
    "at_fault": "string",
    "retry": "string",
    "remediation": "string",
    "ranks": "Int64",
    "nodes": "Int64",
    "gpus": "Int64",
    "gpu_hours": "Float64",
    "gpu_hours_lost": "Float64",
    "product": "string",
    "cost": "Float64",
    "alerts": "Int64",  # how many rang
    "told": UTC,
    "problem": "string",
    "evidence": "string",
}


def moment(stamp: Any) -> float | None:
    """Return the epoch seconds of an ISO time or of a number; None when it is neither."""
    if isinstance(stamp, bool) or stamp is None:
        return None
    try:
        if isinstance(stamp, (int, float)):
            return float(stamp) if math.isfinite(stamp) else None
        told = datetime.fromisoformat(str(stamp)[:64])
        return (told if told.tzinfo else told.replace(tzinfo=UTC_ZONE)).timestamp()
    except (ValueError, OverflowError):
        return None


def verdict_facts(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row that a verdict (``workbench.verdict/1``) tells."""
    culprit = verdict.get("culprit") or {}
    gpu = culprit.get("gpu") or {}
    return {
        "cause": str(verdict.get("cause") or "unknown"),
        "cls": str(verdict.get("class") or "unknown"),
        "confidence": _number(verdict.get("confidence")) or 0.0,
        "summary": str(verdict.get("summary") or ""),
        "time": moment(verdict.get("time")),
        "attempt": _whole(verdict.get("attempt")),
        "node": _text(culprit.get("node")),
        "gpu": _whole(gpu.get("index")),
        "rank": _whole(culprit.get("rank")),
        "at_fault": _text(culprit.get("at_fault")),
        "retry": _text(verdict.get("retry")),
        "remediation": _text(verdict.get("remediation")),
    }


def facts_of(case: CaseFile) -> dict[str, Any]:
    """Return the fields of a row that a case file tells: verdict, job and impact; what it does not know is None."""
    job, impact = case.job, case.impact
    facts = verdict_facts(case.verdict)
    facts |= {
        "job": _text(job.get("name")) or _text(job.get("id")),
        "namespace": _text(job.get("namespace")),
        "user": _text(job.get("user")),
        "team": _text(job.get("team")),
        "time": facts["time"] if facts["time"] is not None else moment(job.get("end")),
        "ranks": _first(impact.get("ranks"), job.get("ranks")),
        "nodes": _first(impact.get("nodes"), job.get("nodes")),
        "gpus": _first(impact.get("gpus"), job.get("gpus")),
        "gpu_hours": _number(impact.get("gpu_hours")),
        "gpu_hours_lost": _number(impact.get("gpu_hours_lost")),
        "product": _text(impact.get("product")),
    }
    return facts


def priced(entry: Entry, prices: Mapping[str, str]) -> Entry:
    """Return a row with what its GPU-hours cost by a price table; None where hours or price are not known, or nothing failed."""
    from workbench.report.facts import cost_of

    cost = None if entry.cause == "none" else cost_of((entry.gpu_hours, entry.gpu_hours_lost), entry.product, prices)
    return replace(entry, cost=None if cost is None else round(cost[0], 2))


_BY_TABLE = "team_by_table"  # in `data` of a row: the team that was told, and the one that the site's table made of it


def owned(entry: Entry, teams: Teams) -> Entry:
    """Return a row with the team that the site's table names; of a row that an earlier table named, what was told before counts."""
    before = entry.data.get(_BY_TABLE)
    told = before[0] if isinstance(before, list) and len(before) == 2 and before[1] == entry.team else entry.team
    team = teams.team(told, entry.namespace)
    if team == entry.team and (before is None or team != told):
        return entry
    data = {key: value for key, value in entry.data.items() if key != _BY_TABLE}
    return replace(entry, team=team, data=data if team == told else {**data, _BY_TABLE: [told, team]})


def _first(*values: Any) -> int | None:
    return next((number for value in values if (number := _whole(value)) is not None), None)


def _text(value: Any) -> str | None:
    return str(value) if value not in (None, "") else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


# ---- JSON


def to_json(entry: Entry) -> dict[str, Any]:
    """Return a row as ``entry.json`` and `workbench inbox -o json` have it."""
    return {"schema": SCHEMA, **asdict(entry), "alerts": list(entry.alerts)}


_HINTS = get_type_hints(Entry)
_NEEDED = ("id", "seen", "source", "evidence")


def from_json(table: Any) -> Entry:
    """
    Return the row that ``entry.json`` holds; fields of a later version are left aside.

    Raises
    ------
    ValueError
        It is no row; says what is wrong with it.
    """
    if not isinstance(table, dict):
        raise ValueError("it is no JSON object")
    schema = str(table.get("schema") or "")
    if schema.partition("/")[0] != SCHEMA.partition("/")[0]:
        raise ValueError(f"its schema is {schema!r}, not {SCHEMA!r}")
    if lacking := [name for name in _NEEDED if name not in table]:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    values = {item.name: _typed(item.name, table[item.name]) for item in fields(Entry) if item.name in table}
    entry = Entry(**values)
    if not ID.fullmatch(entry.id):
        raise ValueError(f"its id {entry.id[:40]!r} is none")
    if entry.state not in STATES:
        raise ValueError(f"its state {entry.state[:40]!r} is none of {', '.join(STATES)}")
    return entry


def _typed(name: str, value: Any) -> Any:
    wanted = _HINTS[name]
    plain = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    if value is None and NoneType in plain:
        return None
    kinds = tuple(get_origin(one) or one for one in plain if one is not NoneType)
    if float in kinds and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if tuple in kinds and isinstance(value, list):
        return tuple(str(one) for one in value)
    if isinstance(value, kinds) and not isinstance(value, (bool, float)):
        return value
    raise ValueError(f"its {name} is of the wrong kind: {str(value)[:40]!r}")


# ---- frames


def frame_of(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return rows as a frame with `COLUMNS`, in their order."""
    import pandas as pd

    found: dict[str, Any] = {}
    dtype: Any  # the stubs know only words that are written out
    for name, dtype in COLUMNS.items():
        values: Iterable[Any]
        if name == "told":
            values = [min(entry.told.values(), default=None) for entry in entries]
        elif name == "alerts":
            values = [len(entry.alerts) for entry in entries]
        else:
            values = [getattr(entry, name) for entry in entries]
        if dtype == UTC:
            stamps = pd.to_datetime(pd.Series(list(values), dtype="Float64"), unit="s", utc=True, errors="coerce")
            found[name] = stamps.astype(dtype)
        else:
            found[name] = pd.Series(list(values), dtype=dtype)
    return pd.DataFrame(found)
