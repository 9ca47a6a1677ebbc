"""
Turn rows of the account's tables into one SQLite file that many processes read and write at once, and that file into frames.

A row that comes again replaces the one that is there unless its `recorded` is older, so late, repeated and corrected records need no care.
Of jobs and attempts each part is replaced by who knows it better (`workbench.fleet.schema.layers`): a scheduler that tells the same job again
does not take away what a verdict found. When `put` returns the rows are on the disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from workbench.fleet import rollups, schema
from workbench.fleet.cells import binder, careful, frame_of, plain
from workbench.fleet.place import backup, integrity, network_problem, opened, refused
from workbench.fleet.tables import TABLES, Table
from workbench.fleet.trouble import BadRow, LedgerBusy, LedgerCorrupt, LedgerError, translated

if TYPE_CHECKING:
    import pandas as pd

    from workbench.model import Problem

__all__ = ["BadRow", "Ledger", "LedgerBusy", "LedgerCorrupt", "LedgerError"]

_PORTION = 5000  # rows that are bound at a time
_BULK = 50  # rows from which on it pays to take them in as a whole
_REFUSED = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, UnicodeError, OverflowError)
# table → first and last moment of a row, for `since` and `until`
_SPANS = {
    "jobs": ("coalesce(submitted, started, ended)", "ended"),
    "attempts": ("coalesce(queued, started, ended)", "ended"),
    "signals": ("time", "time"),
    "findings": ("time", "time"),
}


class Ledger:
    """
    The account of a fleet in one file. Make one with `Ledger.open`; several threads may use it, a fork may not.

    Attributes
    ----------
    path : Path
    readonly : bool
    problems : list of Problem
        What a person should know of where the file lies, such as a network file system.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, readonly: bool, clock: Callable[[], float]) -> None:
        self.path = path
        self.readonly = readonly
        self.problems: list[Problem] = []
        self._connection = connection
        self._clock = clock
        self._lock = threading.RLock()
        self._deep = 0

    def __repr__(self) -> str:
        return f"<Ledger {self.path}{' (read only)' if self.readonly else ''}>"

    @classmethod
    def open(cls, path: str | Path, mode: str = "rw", *, clock: Callable[[], float] = time.time, busy: float = 30.0) -> Ledger:
        """
        Open a ledger; with ``rw`` it is made when it is not there, and brought up to date (a copy is kept) when it is older.

        Parameters
        ----------
        path : str or Path
        mode : str
            ``rw``, or ``ro``: nothing is ever written.
        clock : callable, optional
            Returns seconds since the epoch: `recorded` of rows that do not tell it.
        busy : float
            Seconds to wait for who is writing.

        Raises
        ------
        LedgerError
            It is not there (``ro``), may not be read, is of a newer workbench, or is no ledger.
        LedgerCorrupt
            It is damaged; the hint is the way out.
        LedgerBusy
            Another process wrote for longer than `busy`.
        """
        if mode not in ("rw", "ro"):
            raise ValueError(f"mode {mode!r} is neither rw nor ro")
        path = Path(path).expanduser()
        connection = opened(path, mode, busy)
        ledger = cls(path, connection, readonly=mode == "ro", clock=clock)
        try:
            with translated(path):
                ledger._settle()
        except BaseException:
            connection.close()
            raise
        if (problem := network_problem(path)) is not None:
            ledger.problems.append(problem)
        return ledger

    def _settle(self) -> None:
        """Make, complete or refuse the file."""
        version = refused(self._connection, self.path, readonly=self.readonly)
        if self.readonly:
            return
        if version == schema.VERSION and not schema.lacking(self._connection):
            return
        with self.batch():
            version = refused(self._connection, self.path, readonly=False)  # another process may have been faster
            if version == 0:
                schema.create(self._connection)
                return
            if version == schema.VERSION and not schema.lacking(self._connection):
                return
            backup(self.path, version)
            for step in range(version + 1, schema.VERSION + 1):
                if step in schema.MIGRATIONS:
                    schema.MIGRATIONS[step](self._connection)
            schema.complete(self._connection)
            self._connection.execute(f"PRAGMA user_version = {schema.VERSION}")

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Let all writes within happen together or, when one fails, not at all; others wait meanwhile."""
        if self.readonly:
            raise LedgerError(f"{self.path} is open for reading only", hint='open it with mode="rw"')
        with self._lock, translated(self.path):
            if self._deep:
                self._deep += 1
                name = f"batch_{self._deep}"
                self._connection.execute(f"SAVEPOINT {name}")
                try:
                    yield
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        self._connection.execute(f"ROLLBACK TO {name}")
                    raise
                finally:
                    self._deep -= 1
                    with contextlib.suppress(sqlite3.Error):
                        self._connection.execute(f"RELEASE {name}")
                return
            self._connection.execute("BEGIN IMMEDIATE")
            self._deep = 1
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._deep = 0

    def put(self, table: str, rows: Iterable[Mapping[str, Any]] | pd.DataFrame) -> int:
        """
        Take in rows; all of them or, when one is wrong, none.

        Parameters
        ----------
        table : str
            A name of `workbench.fleet.tables.TABLES`.
        rows : iterable of mapping, or DataFrame
            Columns by name; what is missing was not told. Times are seconds since the epoch, datetimes or timestamps. Without `recorded` a row
            was told now; without `source` nobody knows by whom.

        Returns
        -------
        int
            How many rows were new or changed something.

        Raises
        ------
        BadRow
            A row has an unknown column, no key or a value of the wrong kind; says which.
        """
        made = _table(table)
        given: Iterable[Any] = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
        bind = binder(made, self._clock())
        at = changed = 0
        with self.batch():
            told = iter(given)
            while portion := [bind(row, at + step) for step, row in enumerate(itertools.islice(told, _PORTION))]:
                taken = self._bulk(table, portion) if len(portion) >= _BULK else None
                changed += taken if taken is not None else self._each(made, portion, at)
                at += len(portion)
        return changed

    def wrong(self, table: str, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return which rows `put` would refuse, and why."""
        made, found = _table(table), dict[int, str]()
        bind = binder(made, self._clock())
        for at, row in enumerate(rows):
            try:
                careful(made, bind(row, at), at)
            except BadRow as error:
                found[at] = str(error)
        return found

    def _bulk(self, table: str, portion: list[tuple[Any, ...]]) -> int | None:
        """Take in rows that are all new, in one go; None when they are not, or something is wrong with one of them."""
        connection = self._connection
        make, fill, take, empty = schema.stage(table)
        connection.execute(make)
        connection.execute("SAVEPOINT portion")
        try:
            connection.executemany(fill, portion)
            taken = rollups.bulk(connection, table, f"temp.staged_{table}", take)
            connection.execute(empty)
        except _REFUSED:
            connection.execute("ROLLBACK TO portion")
            taken = None
        connection.execute("RELEASE portion")
        return taken

    def _each(self, table: Table, portion: list[tuple[Any, ...]], at: int) -> int:
        """Write rows one by one; where SQLite refuses one, make each what its columns want, or say which one cannot be made so."""
        connection, statement = self._connection, schema.insert(table.name)
        connection.execute("SAVEPOINT portion")
        try:
            changed = connection.executemany(statement, portion).rowcount
        except _REFUSED:
            connection.execute("ROLLBACK TO portion")
            changed = 0
            for step, cells in enumerate(portion):
                row = careful(table, cells, at + step)
                try:
                    changed += connection.execute(statement, row).rowcount
                except sqlite3.IntegrityError as error:
                    raise BadRow(f"row {at + step} of {table.name}: {error}", row=at + step) from error
        connection.execute("RELEASE portion")
        return changed

    def delete(self, table: str, keys: Iterable[Mapping[str, Any]]) -> int:
        """Remove the rows of these keys (all columns of the key each); return how many were there."""
        made = _table(table)
        kinds = {one.name: one for one in made.columns}
        tests = " AND ".join(f"{name} = ?" for name in made.key)
        gone = 0
        with self.batch():
            for key in keys:
                cells = [plain(kinds[name], key.get(name)) for name in made.key]
                cells = [
                    "" if cell is None and kinds[name].kind == "text" else cell
                    for name, cell in zip(made.key, cells, strict=True)
                ]
                gone += self._connection.execute(f"DELETE FROM {table} WHERE {tests}", cells).rowcount
        return gone

    def conclude(self, attempts: Iterable[Mapping[str, Any]]) -> None:
        """Give each job the cause and class of its last attempt."""
        rows = [
            (one["cause"], one["cls"], schema.certain(one["recorded"]), one["cluster"], one["job"], one["cause"], one["cls"])
            for one in attempts
        ]
        with self.batch():
            self._connection.executemany(
                "UPDATE jobs SET cause = ?, cls = ?, judged_order = ? WHERE cluster = ? AND job = ?"
                " AND (cause IS NOT ? OR cls IS NOT ?)",
                rows,
            )

    def succeed(self, nodes: Iterable[tuple[str, str]]) -> None:
        """Let each stretch of these nodes' lives (cluster, node) end where the next begins, if it was not told to end before."""
        later = (
            "(SELECT min(begin) FROM node_states AS next WHERE next.cluster = node_states.cluster AND next.node = node_states.node"
            " AND next.begin > node_states.begin)"
        )
        with self.batch():
            self._connection.executemany(
                f'UPDATE node_states SET "end" = {later} WHERE cluster = ? AND node = ? AND coalesce("end", 1e12) > {later}',
                sorted(set(nodes)),
            )

    # ---- reading

    def rows(
        self,
        table: str,
        since: float | None = None,
        until: float | None = None,
        *,
        limit: int | None = None,
        last: str = "",
        **where: Any,
    ) -> list[dict[str, Any]]:
        """
        Return rows as plain values, in the order of the key; without pandas.

        Parameters
        ----------
        table : str
        since, until : float, optional
            Seconds since the epoch: only rows that have something in [since, until).
        limit : int, optional
            The most of them.
        last : str, optional
            Name of a column: the greatest of it first.
        **where
            Column = value, None for what was not told, or a list of values.
        """
        columns = _table(table).columns
        lists = {one.name for one in columns if one.kind == "words"}
        names = [one.name for one in columns]
        found = []
        for cells in self._select(table, since, until, where, limit, last):
            row = dict(zip(names, cells, strict=True))
            for name in lists:
                row[name] = json.loads(row[name]) if row[name] is not None else None
            found.append(row)
        return found

    def frame(self, table: str, since: float | None = None, until: float | None = None, **where: Any) -> pd.DataFrame:
        """Return rows as a frame, as `rows` chooses them; types as `workbench.fleet.tables` says."""
        columns = [(one.name, one.kind) for one in _table(table).columns]
        return frame_of(columns, self._select(table, since, until, where, None, ""))

    def _select(
        self, table: str, since: float | None, until: float | None, where: Mapping[str, Any], limit: int | None, last: str
    ) -> list[tuple[Any, ...]]:
        made = _table(table)
        kinds = {one.name: one for one in made.columns}
        for name in (*where, *([last] if last else ())):
            if name not in kinds:
                raise ValueError(f"{table} has no column {name}")
        there = self._columns(table)
        cells = [("NULL" if name not in there else cell) + f" AS {name}" for name, cell in _cells(made)]
        tests, values = [], []
        begin, end = _SPANS.get(table, ("begin", "end"))
        end = f'"{end}"' if end == "end" else end
        if since is not None:
            point = begin == end
            tests.append(f"{end} >= ?" if point else f"({end} IS NULL OR {end} > ?)")
            values.append(float(since))
        if until is not None:
            tests.append(f"{begin} < ?")
            values.append(float(until))
        effective = dict(_cells(made))
        for name, value in where.items():
            if value is None:
                tests.append(f"{effective[name]} IS NULL")
                continue
            some = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
            tests.append(f"{effective[name]} IN ({', '.join('?' * len(some))})")
            values += [plain(kinds[name], one) for one in some]
        text = f"SELECT {', '.join(cells)} FROM {table}" + (f" WHERE {' AND '.join(tests)}" if tests else "")
        keys = ", ".join(f'"{name}"' for name in made.key)
        text += f' ORDER BY "{last}" DESC NULLS LAST, {keys}' if last else f" ORDER BY {keys}"
        text += f" LIMIT {int(limit)}" if limit is not None else ""
        return self._ask(text, values)

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._ask(f"PRAGMA table_info({table})")}

    def _ask(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, translated(self.path):
            return self._connection.execute(text, values).fetchall()

    # ---- counts

    def counts(
        self,
        by: Sequence[str] = ("week", "cause"),
        *,
        of: str = "jobs",
        since: float | None = None,
        until: float | None = None,
        **where: Any,
    ) -> pd.DataFrame:
        """
        Return how many jobs (or attempts) ended, in a time that does not grow with their number.

        Parameters
        ----------
        by : sequence of str
            Of ``week``, ``cluster``, ``cause`` and ``state``.
        of : str
            ``jobs`` or ``attempts``.
        since, until : float, optional
            Weeks that begin in [since, until).
        **where
            Key = value or list of values; ``cause=""`` is what needs none.

        Returns
        -------
        DataFrame
            The keys (`week` is its Monday 00:00 UTC, missing for what has not ended; `cause` is missing for what needs none); `count`; `ended`:
            of how many start, end and GPUs are known; `gpu_hours` that those held.
        """
        import pandas as pd

        kinds = {"week": "time"}
        columns = [(name, kinds.get(name, "text")) for name in by]
        found = []
        for row in self.totals(by, of=of, since=since, until=until, **where):
            keys = [row[name] for name in by]
            found.append((*keys, row["count"], row["ended"], row["gpu_ms"] / 3_600_000))
        frame = frame_of([*columns, ("count", "count"), ("ended", "count"), ("gpu_hours", "number")], found)
        return frame if by else frame.fillna({"count": 0, "ended": 0, "gpu_hours": pd.NA})

    def totals(
        self,
        by: Sequence[str] = ("week", "cause"),
        *,
        of: str = "jobs",
        since: float | None = None,
        until: float | None = None,
        **where: Any,
    ) -> list[dict[str, Any]]:
        """
        Return what `counts` returns as plain values: `week` in seconds or None, `cause` or None, GPU time in ms (`gpu_ms`).

        `of` may also be ``starts``: jobs by the week of their first nodes, `source` and `told` (is their first step known); only a `count`.
        """
        name = f"{of}_weekly"
        # a file that an older workbench wrote, opened to be read, may lack one
        text, values = rollups.query(name, by, since=since, until=until, where=where, there=bool(self._columns(name)))
        sums = tuple(rollups.ROLLUPS[name].sums)
        names, weekly, blank = (*by, *sums), "week" in by, [name for name in ("cause", "state", "source") if name in by]
        found = []
        for cells in self._ask(text, values):
            row = dict(zip(names, cells, strict=True))
            if weekly:
                row["week"] = None if row["week"] == rollups.OPEN else rollups.week_start(row["week"])
            for name in blank:
                row[name] = row[name] or None
            for name in sums:
                row[name] = row[name] or 0
            found.append(row)
        return found

    def select(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return what a SELECT of your own says; the columns of jobs and attempts are as told, without what follows from a state."""
        if not text.lstrip().upper().startswith(("SELECT", "WITH")):
            raise ValueError("only SELECT and WITH are asked here")
        return self._ask(text, values)

    def size(self, table: str) -> int:
        """Return how many rows a table has."""
        return int(self._ask(f"SELECT count(*) FROM {_table(table).name}")[0][0])

    # ---- looking after it

    def check(self) -> list[str]:
        """
        Read everything; return in which rollups a count differs from what it counts (none ever should).

        Raises
        ------
        LedgerCorrupt
            The file is damaged.
        """
        with self._lock, translated(self.path):
            integrity(self._connection, self.path)
            return [
                name
                for name in rollups.ROLLUPS
                if rollups.kept(self._connection, name) != rollups.recount(self._connection, name)
            ]


def _table(name: str) -> Table:
    try:
        return TABLES[name]
    except KeyError:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}") from None


def _cells(table: Table) -> list[tuple[str, str]]:
    """Return of each column the SQL of what is shown of it."""
    cells = []
    for column in table.columns:
        cell = f'"{column.name}"'
        if table.name in ("jobs", "attempts"):
            if column.name == "cause":
                cell = f"({rollups.EFFECTIVE.format('')})"
            elif column.name == "cls":  # a class goes with its cause
                cell = f"(CASE WHEN ({rollups.EFFECTIVE.format('')}) IS NULL THEN NULL ELSE cls END)"
        cells.append((column.name, cell))
    return cells
