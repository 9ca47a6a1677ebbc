"""Turn the ledger's file into sheets of the account that sessions take: read when it has changed, once however many ask, in threads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from workbench.fleet.account import Account, NoLedger
from workbench.fleet.budgets import DEFAULTS, Objective
from workbench.fleet.gamedays import game_days
from workbench.fleet.gamedays import stamp as played
from workbench.fleet.ledger import Ledger
from workbench.serving.looking import Looking
from workbench.views.account_model import Sheet, Wish

__all__ = ["Books"]

Held = TypeVar("Held")

PERIOD = 60.0  # seconds: a ledger is written all the time, and an account of weeks does not change within one minute
ACCOUNTS, SHEETS = 3, 24  # held in memory; an account of 150,000 attempts takes about half a GB
_HOUR = 3600.0  # after which an unchanged ledger is read again: the week that runs has come further


class Books(Looking):
    """
    Looks every `PERIOD` seconds whether the ledger has changed, and reads it for who asks.

    Parameters
    ----------
    path : Path
        The ledger.
    prices : mapping, optional
        The setting ``report.prices``.
    objectives : Path, optional
        OpenSLO file with the targets; default those of `workbench.fleet.budgets`. One that cannot be read sets none, and the page says so.
    gamedays : Path, optional
        What ``workbench gameday`` wrote.
    make : callable, optional
        Writes the ledger when it is not there and somebody wants it: of the demonstration.
    clock : callable, optional
        Returns seconds since the epoch.
    """

    def __init__(
        self,
        path: Path,
        *,
        prices: Mapping[str, str] | None = None,
        objectives: Path | None = None,
        gamedays: Path | None = None,
        make: Callable[[Path], object] | None = None,
        clock: Callable[[], float] = time.time,
        period: float = PERIOD,
    ) -> None:
        super().__init__("workbench-account", period)
        self.path, self._prices, self._make, self._clock = path, prices, make, clock
        self._objectives, self._gamedays = objectives, gamedays
        self.version = 0
        self.time: float | None = None
        self.why = ""
        self._stamp: tuple[Any, ...] | None = None
        self._beside: tuple[Any, ...] = ()
        self._accounts: OrderedDict[tuple[Any, ...], tuple[Account, tuple[str, ...]]] = OrderedDict()
        self._sheets: OrderedDict[tuple[Any, ...], Sheet] = OrderedDict()
        self._making: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    @property
    def simulated(self) -> bool:
        """Whether the account is invented."""
        return self._make is not None

    def look(self) -> int:
        """Look once, in the calling thread; return the version."""
        stamp = _stamp(self.path)
        beside = (_stamp(self._objectives) if self._objectives else None, played(self._gamedays))
        if (stamp, beside) != (self._stamp, self._beside) or not self.version:
            self._beside = beside
            self._stamp, self.version = stamp, self.version + 1
        self.time = self._clock() if stamp or self._make else None
        self.why = "" if self.time else "there is no ledger yet"
        return self.version

    def sheet(self, wish: Wish) -> Sheet:
        """
        Return a sheet; blocking, to be called in a thread.

        Raises
        ------
        NoLedger
            There is none. Game days need none.
        WorkbenchError
            It cannot be read.
        """
        from workbench.views.account_tabs import sheet, without_ledger

        key = (wish, *self._now())
        if (there := _take(self._lock, self._sheets, key)) is not None:
            return there
        with self._alone(("sheet", *key)):
            if (there := _take(self._lock, self._sheets, key)) is not None:
                return there
            days = game_days(self._gamedays) if wish.tab == "gameday" else ()
            try:
                account, notes = self._account(wish)
                made = sheet(account, wish, days, notes)
            except NoLedger:
                if wish.tab != "gameday":
                    raise
                made = without_ledger(wish, days, self._clock())
            _keep(self._lock, self._sheets, key, made, SHEETS)
            return made

    def held(self, wish: Wish) -> Sheet | None:
        """Return the sheet when it is in memory: never waits, never reads."""
        return _take(self._lock, self._sheets, (wish, *self._now()))

    def _now(self) -> tuple[int, int]:
        return self.version, int(self._clock() // _HOUR)

    def _targets(self) -> tuple[Sequence[Objective], tuple[str, ...]]:
        """Return what shall be kept, and what could not be read of it."""
        if self._objectives is None:
            return DEFAULTS, ()
        from workbench.fleet import openslo

        try:
            read = openslo.load(self._objectives.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            return (), (
                f"No targets: {self._objectives} (the setting fleet.objectives) cannot be read: {error.strerror or error}",
            )
        problems = read.problems or (() if read.objectives else ("it names no objective, so there are no targets",))
        return read.objectives, tuple(f"{self._objectives.name}: {problem}" for problem in problems)

    def _account(self, wish: Wish) -> tuple[Account, tuple[str, ...]]:
        key = (wish.window, wish.cluster, *self._now())
        with self._alone(("account", *key)):
            if (there := _take(self._lock, self._accounts, key)) is not None:
                return there
            self._make_ledger()
            with Ledger.open(self.path, "ro") as ledger:
                targets, notes = self._targets()
                read = Account.read(
                    ledger, wish.window, cluster=wish.cluster, prices=self._prices, targets=targets, now=self._clock()
                )
            made = (read, notes)
            _keep(self._lock, self._accounts, key, made, ACCOUNTS)
            return made

    def _make_ledger(self) -> None:
        if self.path.is_file():
            return
        if self._make is None:
            raise NoLedger(f"there is no ledger {self.path}", hint="the setting fleet.ledger names another")
        with self._alone(("make",)):
            if not self.path.is_file():
                half = self.path.with_name(f".{self.path.name}")
                self._make(half)
                half.rename(self.path)
                self._stamp = _stamp(self.path)

    def _alone(self, key: tuple[Any, ...]) -> threading.Lock:
        with self._lock:
            if len(self._making) > 256:
                self._making = {name: lock for name, lock in self._making.items() if lock.locked()}
            return self._making.setdefault(key, threading.Lock())


def _take(lock: threading.Lock, where: OrderedDict[tuple[Any, ...], Held], key: tuple[Any, ...]) -> Held | None:
    with lock:
        if key in where:
            where.move_to_end(key)
        return where.get(key)


def _keep(lock: threading.Lock, where: OrderedDict[tuple[Any, ...], Held], key: tuple[Any, ...], made: Held, most: int) -> None:
    with lock:
        where[key] = made
        while len(where) > most:
            where.popitem(last=False)


def _stamp(path: Path) -> tuple[Any, ...] | None:
    """Return what changes with each write; None when there is no file."""
    found: list[Any] = []
    for one in (path, Path(f"{path}-wal")):
        try:
            told = one.stat()
        except OSError:
            continue
        if told.st_size:  # reading may leave an empty journal behind
            found += [one.name, told.st_mtime_ns, told.st_size]
    return tuple(found) or None
