"""
Turn each write of a job or an attempt into the change of its weekly count, inside SQLite and the same transaction.

Triggers keep the counts, so they are right whoever writes, corrects or deletes a row, also by hand. All sums are whole numbers
(GPU-milliseconds), so no order of writes can make them differ from a count of everything by a rounding error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

__all__ = ["EFFECTIVE", "OPEN", "ROLLUPS", "bulk", "complete", "lacking", "query", "recount", "WEEK", "week_of", "week_start"]

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
# name → table that it counts
ROLLUPS = {"jobs_weekly": "jobs", "attempts_weekly": "attempts"}
KEYS = ("week", "cluster", "cause", "state")
SUMS = ("count", "ended", "gpu_ms")


def week_start(week: int) -> float:
    """Return when a week begins: Monday 00:00 UTC, in seconds since the epoch."""
    return float(week * WEEK - _MONDAY)


def week_of(moment: float) -> float:
    """Return when the week of a moment begins, in seconds since the epoch."""
    return week_start(int((moment + _MONDAY) // WEEK))


def _cells(row: str) -> tuple[str, ...]:
    """Return the SQL of keys and sums of one row of the counted table (`row`: ``NEW.``, ``OLD.`` or nothing)."""
    held = f"{row}gpus * ({row}ended - {row}started) * 1000"
    return (
        f"CASE WHEN {row}ended IS NULL THEN {OPEN} ELSE CAST(({row}ended + {_MONDAY}) / {WEEK} AS INTEGER) END",
        f"{row}cluster",
        f"coalesce({EFFECTIVE.format(row)}, '')",
        f"coalesce({row}state, '')",
        "1",
        f"{row}ended IS NOT NULL AND {row}started IS NOT NULL AND {row}gpus IS NOT NULL",  # of how many the GPU time is known
        f"coalesce(CAST(round(max({held}, 0)) AS INTEGER), 0)",
    )


def _ddl(name: str) -> str:
    return (
        f"CREATE TABLE {name} (week INTEGER NOT NULL, cluster TEXT NOT NULL, cause TEXT NOT NULL, state TEXT NOT NULL,"
        " count INTEGER NOT NULL, ended INTEGER NOT NULL, gpu_ms INTEGER NOT NULL, PRIMARY KEY (week, cluster, cause, state)) WITHOUT ROWID"
    )


def _add(name: str, row: str, sign: str) -> str:
    cells = _cells(row)
    values = [*cells[:4], *(f"{sign}({cell})" for cell in cells[4:])]
    sums = ", ".join(f"{one} = {one} + excluded.{one}" for one in SUMS)
    return f"INSERT INTO {name} VALUES ({', '.join(values)}) ON CONFLICT ({', '.join(KEYS)}) DO UPDATE SET {sums};"


def _drop(name: str, row: str) -> str:
    """Take a row away again; a count of nothing is no row, so that it equals a count of everything."""
    keys = " AND ".join(f"{key} = {cell}" for key, cell in zip(KEYS, _cells(row), strict=False))
    return f"{_add(name, row, '-')} DELETE FROM {name} WHERE {keys} AND count = 0;"


def _triggers(name: str, table: str) -> dict[str, str]:
    watched = "cluster, state, cause, started, ended, gpus"
    return {
        f"{name}_insert": f"AFTER INSERT ON {table} WHEN NOT (SELECT bulk FROM rollup_bulk) BEGIN {_add(name, 'NEW.', '')} END",
        f"{name}_update": f"AFTER UPDATE OF {watched} ON {table} BEGIN {_drop(name, 'OLD.')} {_add(name, 'NEW.', '')} END",
        f"{name}_delete": f"AFTER DELETE ON {table} BEGIN {_drop(name, 'OLD.')} END",
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
    for name, table in ROLLUPS.items():
        if there.get(name) != _ddl(name):
            return True
        if any(there.get(trigger) != f"CREATE TRIGGER {trigger} {body}" for trigger, body in _triggers(name, table).items()):
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
    for name, table in ROLLUPS.items():
        connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.execute(_ddl(name))
        connection.execute(f"INSERT INTO {name} {_count(table)}")
        for trigger, body in _triggers(name, table).items():
            connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
            connection.execute(f"CREATE TRIGGER {trigger} {body}")
        done.append(name)
    return done


def _count(table: str) -> str:
    cells = _cells("")
    return (
        f"SELECT {', '.join(f'{cell} AS {key}' for cell, key in zip(cells, KEYS, strict=False))},"
        f" {', '.join(f'sum({cell})' for cell in cells[4:])} FROM {table} GROUP BY 1, 2, 3, 4"
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
    name = next((name for name, counted in ROLLUPS.items() if counted == table), None)
    if name is None:
        return connection.execute(take).rowcount
    connection.execute("UPDATE rollup_bulk SET bulk = 1")
    taken = connection.execute(take).rowcount
    sums = ", ".join(f"{one} = {name}.{one} + excluded.{one}" for one in SUMS)
    connection.execute(
        # without WHERE, SQLite takes ON for a join's
        f"INSERT INTO {name} SELECT * FROM ({_count(source)}) WHERE true ON CONFLICT ({', '.join(KEYS)}) DO UPDATE SET {sums}"
    )
    connection.execute("UPDATE rollup_bulk SET bulk = 0")
    return taken


def recount(connection: sqlite3.Connection, name: str) -> list[tuple[Any, ...]]:
    """Return what a rollup should hold, from a count of everything."""
    return [tuple(row) for row in connection.execute(f"{_count(ROLLUPS[name])} ORDER BY 1, 2, 3, 4")]


def query(
    name: str, by: Sequence[str], *, since: float | None, until: float | None, where: Mapping[str, Any]
) -> tuple[str, list[Any]]:
    """
    Return the statement and the values that sum a rollup by some of its keys.

    A week counts when it begins in [since, until); what has not ended counts only when neither is given.
    """
    for key in (*by, *where):
        if key not in KEYS:
            raise ValueError(f"{key} is none of {', '.join(KEYS)}")
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
    columns = ", ".join([*by, *(f"sum({one})" for one in SUMS)])
    text = f"SELECT {columns} FROM {name}" + (f" WHERE {' AND '.join(tests)}" if tests else "")
    if by:
        text += f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}"
    return text, values
