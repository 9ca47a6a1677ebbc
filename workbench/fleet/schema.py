"""Turn the tables of the account into SQL: what makes a ledger, what brings an older one up to date, and how one row replaces another."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from workbench.fleet import rollups
from workbench.fleet.tables import JOB_STATES, NODE_STATES, TABLES, Column, Table

if TYPE_CHECKING:
    import sqlite3

__all__ = ["APPLICATION", "MIGRATIONS", "VERSION", "certain", "complete", "create", "ddl", "insert", "layers", "stage"]

APPLICATION = 0x57424C47  # "WBLG" in SQLite's application_id: no other program's file is taken for a ledger
VERSION = 1  # PRAGMA user_version; grows when an older workbench could no longer write such a file

# version that a step ends with → what it does; a step runs inside the transaction of the whole migration. Columns and tables that were added
# to `workbench.fleet.tables` need no step: `complete` adds them
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}

_TYPES = {"text": "TEXT", "time": "REAL", "count": "INTEGER", "number": "REAL", "words": "TEXT"}
_LATEST = 1e11  # seconds since the epoch; what is later was told in milliseconds

# what is asked for besides the key: the signs that came with a job
_INDICES = {"signals_job": "signals (cluster, job)"}

# Several who tell of the same job know different parts of it: the scheduler its times, the supervisor its steps, a verdict why it failed. Each
# part is replaced as a whole by who knows it better, and among equals by the later word; so the order in which they tell does not matter.
# part → columns; all other columns are the scheduler's part
_PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "jobs": {"judged": ("cause", "cls"), "progressed": ("first_step",)},
    "attempts": {
        "judged": ("cause", "cls", "confidence", "at_fault", "node", "gpu_uuid", "rank", "detected", "diagnosed", "incident"),
        "progressed": ("first_step", "step_first", "step_last", "step_saved", "excluded"),
    },
}
# sources that know a job from hearsay: the folder of one failure
_SECOND_HAND = ("folder:*", "inbox:*")
# what these say of a cause is only what a job's state says, less than a verdict
_SCHEDULERS = ("slurm", "kubernetes")
_RANK = 1e11  # one rank outweighs every time; both are kept in one number


def layers(table: str) -> dict[str, tuple[str, ...]]:
    """Return the parts of a table that are replaced one by one: name of the column that orders them → columns."""
    parts = _PARTS.get(table, {})
    special = {name for columns in parts.values() for name in columns}
    rest = tuple(one.name for one in TABLES[table].columns if one.name not in special and one.name not in TABLES[table].key)
    return {"told": rest, **parts}


def _orders(table: str) -> dict[str, str]:
    """Return, of each part, the SQL that says how much a row's word on it weighs."""
    if table not in _PARTS:
        return {}
    second = " OR ".join(f":source GLOB '{one}'" for one in _SECOND_HAND)
    scheduler = ", ".join(f"'{one}'" for one in _SCHEDULERS)
    known = " OR ".join(f":{name} IS NOT NULL" for name in _PARTS[table]["progressed"])
    # a supervisor starts anew within one allocation: of its attempts it knows more than the scheduler, which saw only one
    own = f"WHEN :source = 'run' THEN {2 * _RANK} " if table == "attempts" else ""
    return {
        "told": f":recorded + CASE WHEN {second} THEN 0 {own}ELSE {_RANK} END",
        "judged": f":recorded + CASE WHEN :cause IS NULL THEN 0 WHEN :source IN ({scheduler}) THEN {_RANK} ELSE {2 * _RANK} END",
        "progressed": f":recorded + CASE WHEN {known} THEN {_RANK} ELSE 0 END",
    }


def certain(recorded: float) -> float:
    """Return the weight of a word on a job's cause that a verdict said, or all its attempts together."""
    return recorded + 2 * _RANK


def _check(column: Column, table: Table) -> str:
    name = f'"{column.name}"'
    if column.name in table.key and column.kind == "text":
        return f"{name} TEXT NOT NULL DEFAULT ''"
    needed = " NOT NULL" if column.name in table.key or column.name == "recorded" else ""
    # SQLite keeps what is no number in a column of numbers as text, and every text is greater than every number; NULL passes any test
    if column.kind == "time":
        test = f"{name} BETWEEN 0 AND {_LATEST}"
    elif column.kind == "number":
        test = f"{name} < 1e308"
    elif column.kind == "count":
        test = f"typeof({name}) IN ('integer', 'null')"
    else:
        test = ""  # any number becomes text
    if column.name == "state":
        states = NODE_STATES if table.name == "node_states" else JOB_STATES
        test = f"state IN ({', '.join(repr(one) for one in states)})"
    return f"{name} {_TYPES[column.kind]}{needed}" + (f" CHECK ({test})" if test else "")


def ddl(table: Table) -> str:
    """Return the statement that makes a table."""
    parts = [_check(one, table) for one in table.columns]
    parts += [f"{name}_order REAL NOT NULL DEFAULT 0" for name in _orders(table.name)]
    keys = ", ".join(f'"{name}"' for name in table.key)
    return f"CREATE TABLE {table.name} ({', '.join(parts)}, PRIMARY KEY ({keys})) WITHOUT ROWID"


@lru_cache(maxsize=32)
def stage(table: str) -> tuple[str, str, str, str]:
    """
    Return the statements of a bulk: make its stage if it is not there, fill it, take all of it in as new rows, empty it.

    The stage is of this connection alone and knows no keys, so it costs little; what it is for is to count many rows in one go.
    """
    made = TABLES[table]
    names = [f'"{one.name}"' for one in made.columns]
    orders = {name: re.sub(r":(\w+)", r'"\1"', text) for name, text in _orders(table).items()}
    columns = ", ".join(f'"{one.name}" {_TYPES[one.kind]}' for one in made.columns)
    return (
        f"CREATE TEMP TABLE IF NOT EXISTS staged_{table} ({columns})",
        f"INSERT INTO temp.staged_{table} VALUES ({', '.join('?' * len(names))})",
        (
            f"INSERT INTO main.{table} ({', '.join([*names, *(f'{name}_order' for name in orders)])})"
            f" SELECT {', '.join([*names, *orders.values()])} FROM temp.staged_{table}"
        ),
        f"DELETE FROM temp.staged_{table}",
    )


@lru_cache(maxsize=32)
def insert(table: str) -> str:
    """Return the statement that takes in a row (its columns in order): a new one, or what it says better of one that is there."""
    made = TABLES[table]
    names = [f'"{one.name}"' for one in made.columns]
    orders = {name: re.sub(r":(\w+)", r'"\1"', text) for name, text in _orders(table).items()}
    key = [f'"{name}"' for name in made.key]
    # a row of its own, since numbered places (?1) for what is used twice go only with named values from Python 3.14 on, which cost more
    told = f"SELECT {', '.join(f'? AS {name}' for name in names)}"
    head = f"INSERT INTO {table} ({', '.join([*names, *(f'{name}_order' for name in orders)])}) "
    # `WHERE true` tells SQLite's parser that ON does not begin a join
    head += (
        f"SELECT {', '.join([*names, *orders.values()])} FROM ({told}) WHERE true ON CONFLICT ({', '.join(key)}) DO UPDATE SET "
    )
    if not orders:
        sets = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
        changed = " OR ".join(f"{table}.{name} IS NOT excluded.{name}" for name in names if name not in key)
        return f"{head}{sets} WHERE excluded.recorded >= {table}.recorded AND ({changed})"
    cells, news = [], []
    for part, columns in layers(table).items():
        order = f"{part}_order"
        columns = tuple(f'"{name}"' for name in columns)
        better = f"excluded.{order} >= {table}.{order}"
        cells += [f"{name} = CASE WHEN {better} THEN excluded.{name} ELSE {table}.{name} END" for name in columns]
        cells.append(f"{order} = max(excluded.{order}, {table}.{order})")
        differs = " OR ".join(f"{table}.{name} IS NOT excluded.{name}" for name in (*columns, order))
        news.append(f"({better} AND ({differs}))")
    return f"{head}{', '.join(cells)} WHERE {' OR '.join(news)}"


# ---- making and completing


def create(connection: sqlite3.Connection) -> None:
    """Make all tables of an empty file, inside the caller's transaction."""
    complete(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def complete(connection: sqlite3.Connection) -> list[str]:
    """
    Add what a file lacks of the present tables: tables, columns, rollups and what keeps them. Inside the caller's transaction.

    Returns
    -------
    list of str
        What was added; empty when it was whole.
    """
    done = []
    for table in TABLES.values():
        there = {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table.name})")}
        if not there:
            connection.execute(ddl(table))
            done.append(table.name)
            continue
        for column in table.columns:
            if column.name not in there:
                connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {_check(column, table)}")
                done.append(f"{table.name}.{column.name}")
    for name, columns in _INDICES.items():
        connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")
    return done + rollups.complete(connection)


def lacking(connection: sqlite3.Connection) -> bool:
    """Tell whether `complete` would add something."""
    for table in TABLES.values():
        there = {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table.name})")}
        if not there.issuperset(one.name for one in table.columns):
            return True
    there = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    return not there.issuperset(_INDICES) or rollups.lacking(connection)
