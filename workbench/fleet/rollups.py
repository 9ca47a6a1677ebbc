"""
Turn each write of a job or an attempt into the change of its weekly counts, inside SQLite and the same transaction.

Triggers keep the counts, so they are right whoever writes, corrects or deletes a row, also by hand. All sums are whole numbers
(GPU-milliseconds), so no order of writes can make them differ from a count of everything by a rounding error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

__all__ = [
    "EFFECTIVE",
    "OPEN",
    "ROLLUPS",
    "bulk",
    "complete",
    "kept",
    "lacking",
    "query",
    "recount",
    "WEEK",
    "week_of",
    "week_start",
]

OPEN = -1  # the week of what has not ended
# a cause belongs to an end that needs one: a job that goes on or succeeded has none, and one that failed without a word has an unknown one
EFFECTIVE = (
    "CASE WHEN {0}state = 'failed' THEN coalesce({0}cause, 'unknown')"
    " WHEN {0}state IN ('pending', 'running', 'completed') THEN NULL ELSE {0}cause END"
)
WEEK = 604800  # seconds
_MONDAY = 259200  # the epoch was a Thursday: three days after a Monday

# one row: whether a bulk of rows is taken in that is counted as a whole, not row by row. It is set and taken back within one transaction, so
# nobody else ever sees it set
_BULK = "CREATE TABLE rollup_bulk (bulk INTEGER NOT NULL)"


@dataclass(frozen=True, slots=True)
class Rollup:
    """
    A weekly count.

    Attributes
    ----------
    table : str
        Whose rows it counts.
    when : str
        The SQL of which of them; empty for all. ``{0}`` is the row.
    keys, sums : dict of str to str
        What it counts by, and what it adds up: column → SQL. Keys are texts but for those of `numbers`.
    watched : tuple of str
        Columns of the table whose change changes the count.
    """

    table: str
    when: str
    keys: Mapping[str, str]
    sums: Mapping[str, str]
    watched: tuple[str, ...]


_NUMBERS = ("week", "told")  # keys that are whole numbers


def _week(column: str) -> str:
    return f"CASE WHEN {{0}}{column} IS NULL THEN {OPEN} ELSE CAST(({{0}}{column} + {_MONDAY}) / {WEEK} AS INTEGER) END"


_BY = {"cluster": "{0}cluster", "cause": f"coalesce({EFFECTIVE}, '')", "state": "coalesce({0}state, '')"}


def _ended(table: str) -> Rollup:
    """What ended: attempts are counted as jobs are."""
    return Rollup(
        table,
        "",
        {"week": _week("ended"), **_BY},
        {
            "count": "1",
            # of how many the GPU time is known
            "ended": "{0}ended IS NOT NULL AND {0}started IS NOT NULL AND {0}gpus IS NOT NULL",
            "gpu_ms": "coalesce(CAST(round(max({0}gpus * ({0}ended - {0}started) * 1000, 0)) AS INTEGER), 0)",
        },
        ("cluster", "state", "cause", "started", "ended", "gpus"),
    )


ROLLUPS = {
    "jobs_weekly": _ended("jobs"),
    "attempts_weekly": _ended("attempts"),
    # whether jobs reached a first step, by the week in which they were given nodes; who told, since not all who tell of jobs tell of steps
    "starts_weekly": Rollup(
        "jobs",
        "{0}started IS NOT NULL",
        {"week": _week("started"), **_BY, "source": "coalesce({0}source, '')", "told": "({0}first_step IS NOT NULL)"},
        {"count": "1"},
        ("cluster", "state", "cause", "started", "first_step", "source"),
    ),
}
KEYS = tuple(ROLLUPS["jobs_weekly"].keys)


def week_start(week: int) -> float:
    """Return when a week begins: Monday 00:00 UTC, in seconds since the epoch."""
    return float(week * WEEK - _MONDAY)


def week_of(moment: float) -> float:
    """Return when the week of a moment begins, in seconds since the epoch."""
    return week_start(int((moment + _MONDAY) // WEEK))


def _cells(name: str, row: str) -> tuple[str, ...]:
    """Return the SQL of keys and sums of one row of the counted table (`row`: ``NEW.``, ``OLD.`` or nothing)."""
    made = ROLLUPS[name]
    return tuple(cell.format(row) for cell in (*made.keys.values(), *made.sums.values()))


def _ddl(name: str) -> str:
    made = ROLLUPS[name]
    columns = [f"{key} {'INTEGER' if key in _NUMBERS else 'TEXT'} NOT NULL" for key in made.keys]
    columns += [f"{one} INTEGER NOT NULL" for one in made.sums]
    return f"CREATE TABLE {name} ({', '.join(columns)}, PRIMARY KEY ({', '.join(made.keys)})) WITHOUT ROWID"


def _where(name: str, row: str) -> str:
    when = ROLLUPS[name].when
    return f" WHERE {when.format(row)}" if when else ""


def _add(name: str, row: str, sign: str) -> str:
    made, cells = ROLLUPS[name], _cells(name, row)
    some = len(made.keys)
    values = [*cells[:some], *(f"{sign}({cell})" for cell in cells[some:])]
    sums = ", ".join(f"{one} = {one} + excluded.{one}" for one in made.sums)
    # without WHERE, SQLite takes ON for a join's
    where = _where(name, row) or " WHERE true"
    return f"INSERT INTO {name} SELECT {', '.join(values)}{where} ON CONFLICT ({', '.join(made.keys)}) DO UPDATE SET {sums};"


def _drop(name: str, row: str) -> str:
    """Take a row away again; a count of nothing is no row, so that it equals a count of everything."""
    keys = " AND ".join(f"{key} = {cell}" for key, cell in zip(ROLLUPS[name].keys, _cells(name, row), strict=False))
    return f"{_add(name, row, '-')} DELETE FROM {name} WHERE {keys} AND count = 0;"


def _triggers(name: str) -> dict[str, str]:
    made = ROLLUPS[name]
    return {
        f"{name}_insert": f"AFTER INSERT ON {made.table} WHEN NOT (SELECT bulk FROM rollup_bulk) BEGIN {_add(name, 'NEW.', '')} END",
        f"{name}_update": (
            f"AFTER UPDATE OF {', '.join(made.watched)} ON {made.table} WHEN"
            f" {' OR '.join(f'OLD.{one} IS NOT NEW.{one}' for one in made.watched)} BEGIN {_drop(name, 'OLD.')} {_add(name, 'NEW.', '')} END"
        ),
        f"{name}_delete": f"AFTER DELETE ON {made.table} BEGIN {_drop(name, 'OLD.')} END",
    }


def _there(connection: sqlite3.Connection) -> dict[str, str]:
    return {
        str(name): str(text) for name, text in connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    }


def lacking(connection: sqlite3.Connection) -> bool:
    """Tell whether a rollup or a trigger is not there, or not as it is made now."""
    there = _there(connection)
    if "rollup_bulk" not in there:
        return True
    for name in ROLLUPS:
        if there.get(name) != _ddl(name):
            return True
        if any(there.get(trigger) != f"CREATE TRIGGER {trigger} {body}" for trigger, body in _triggers(name).items()):
            return True
    return False


def complete(connection: sqlite3.Connection) -> list[str]:
    """Make rollups and triggers that are not there as they are made now, and count anew what they count."""
    if not lacking(connection):
        return []
    done = []
    connection.execute("DROP TABLE IF EXISTS rollup_bulk")
    connection.execute(_BULK)
    connection.execute("INSERT INTO rollup_bulk VALUES (0)")
    for name, made in ROLLUPS.items():
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.execute(_ddl(name))
        connection.execute(f"INSERT INTO {name} {_count(name, made.table)}")
        for trigger, body in _triggers(name).items():
            connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
            connection.execute(f"CREATE TRIGGER {trigger} {body}")
        done.append(name)
    return done


def _count(name: str, table: str) -> str:
    made, cells = ROLLUPS[name], _cells(name, "")
    some = len(made.keys)
    return (
        f"SELECT {', '.join(f'{cell} AS {key}' for cell, key in zip(cells, made.keys, strict=False))},"
        f" {', '.join(f'sum({cell}) AS {one}' for cell, one in zip(cells[some:], made.sums, strict=True))} FROM {table}{_where(name, '')}"
        f" GROUP BY {', '.join(str(one + 1) for one in range(some))}"
    )


def bulk(connection: sqlite3.Connection, table: str, source: str, take: str) -> int:
    """
    Take in new rows that lie in another table, and count them as a whole; return how many. Inside the caller's transaction.

    Parameters
    ----------
    connection : Connection
    table, source : str
        Where they come to, and where they lie: with the same columns.
    take : str
        The statement that takes them in.
    """
    names = [name for name, made in ROLLUPS.items() if made.table == table]
    if not names:
        return connection.execute(take).rowcount
    connection.execute("UPDATE rollup_bulk SET bulk = 1")
    taken = connection.execute(take).rowcount
    for name in names:
        made = ROLLUPS[name]
        sums = ", ".join(f"{one} = {name}.{one} + excluded.{one}" for one in made.sums)
        connection.execute(
            # without WHERE, SQLite takes ON for a join's
            f"INSERT INTO {name} SELECT * FROM ({_count(name, source)}) WHERE true ON CONFLICT ({', '.join(made.keys)}) DO UPDATE SET {sums}"
        )
    connection.execute("UPDATE rollup_bulk SET bulk = 0")
    return taken


def _ordered(name: str) -> str:
    return f"ORDER BY {', '.join(str(one + 1) for one in range(len(ROLLUPS[name].keys)))}"


def kept(connection: sqlite3.Connection, name: str) -> list[tuple[Any, ...]]:
    """Return what a rollup holds."""
    return [tuple(row) for row in connection.execute(f"SELECT * FROM {name} {_ordered(name)}")]


def recount(connection: sqlite3.Connection, name: str) -> list[tuple[Any, ...]]:
    """Return what a rollup should hold, from a count of everything."""
    return [tuple(row) for row in connection.execute(f"{_count(name, ROLLUPS[name].table)} {_ordered(name)}")]


def query(
    name: str, by: Sequence[str], *, since: float | None, until: float | None, where: Mapping[str, Any], there: bool = True
) -> tuple[str, list[Any]]:
    """
    Return the statement and the values that sum a rollup by some of its keys; one that is not `there` is counted from its rows.

    A week counts when it begins in [since, until); what has not ended counts only when neither is given.
    """
    made = ROLLUPS.get(name)
    if made is None:
        raise ValueError(f"{name} is none of {', '.join(ROLLUPS)}")
    for key in (*by, *where):
        if key not in made.keys:
            raise ValueError(f"{key} is none of {', '.join(made.keys)}")
    tests, values = list[str](), list[Any]()
    if since is not None:
        tests.append("week >= ?")
        values.append(-(-(int(since) + _MONDAY) // WEEK))
    if until is not None:
        tests.append("week < ? AND week >= 0")
        values.append(-(-(int(until) + _MONDAY) // WEEK))
    for key, value in where.items():
        some = [value] if isinstance(value, str | int) else list(value)
        tests.append(f"{key} IN ({', '.join('?' * len(some))})")
        values += some
    columns = ", ".join([*by, *(f"sum({one})" for one in made.sums)])
    source = name if there else f"({_count(name, made.table)})"
    text = f"SELECT {columns} FROM {source}" + (f" WHERE {' AND '.join(tests)}" if tests else "")
    if by:
        text += f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}"
    return text, values
