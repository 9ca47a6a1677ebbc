"""
Turn jobs that fail, as they fail, into entries of the inbox: seen once, collected while the evidence is fresh, triaged, and told once.

Nothing is kept in memory alone. A failure becomes an entry as soon as it is seen, and the entry says what is still to be done with it; the
cursor (``watch.json``) says which signs were seen. The entry is written first: a crash between the two shows the same sign again, which the
entry knows already.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from workbench.errors import WorkbenchError
from workbench.inbox.alerts import adoptable, fold, home_of
from workbench.inbox.collecting import Collect, Found
from workbench.inbox.cursor import Cursor
from workbench.inbox.files import InboxBusy, InboxError, locked, remove
from workbench.inbox.model import Entry
from workbench.inbox.sightings import Failure, Seen, Sighting, assign, failure_of
from workbench.inbox.store import Inbox
from workbench.inbox.storms import Settings, Storms, stage_of
from workbench.inbox.tell import Teller, back_off
from workbench.sources.contract import Deadline

__all__ = ["Follower", "Round", "Settings", "Watch"]

_RECENT = 2 * 86400.0  # seconds for which new signs may still belong to a failure
_ROUNDS = 3  # collections of one failure that succeed: the first, and two more when signs came later
_TRIES = 3  # collections that fail before people are told that there is a failure nobody could look at
_RETRY = (30.0, 1800.0)  # seconds between two tries of a collection, first and most
_GRACE = 20.0  # seconds that collections get to end when we are asked to stop


class Follower(Protocol):
    """A scheduler whose jobs are followed; `look` never raises, what it could not see is a problem."""

    name: str

    def look(self, since: float, now: float, deadline: Deadline) -> Seen:
        """Return the signs of failures since then."""


@dataclass(frozen=True, slots=True)
class Round:
    """One look: when, how many failures were new, and what stood in the way."""

    began: float
    ended: float
    new: int = 0
    problems: tuple[str, ...] = ()


class Watch:
    """
    Follows schedulers and keeps an inbox.

    Parameters
    ----------
    inbox : Inbox
    followers : sequence of Follower
    collect : Collect
    teller : Teller
    settings : Settings, optional
    clock, steady : callable, optional
        Seconds since the epoch; seconds that only grow.
    threads : bool, optional
        Collect beside the looks; without, one collection after the other, in order (for tests and a single round).
    step : callable, optional
        Called with a word at each point where a crash would matter; for tests.
    """

    def __init__(
        self,
        inbox: Inbox,
        followers: Sequence[Follower],
        collect: Collect,
        teller: Teller,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        threads: bool = True,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.inbox, self.followers, self.teller = inbox, tuple(followers), teller
        self.settings = settings or Settings()
        self._collect, self._clock, self._steady, self._threads, self._step = collect, clock, steady, threads, step
        self._running: dict[str, Path] = {}
        self._done: SimpleQueue[tuple[str, Path, int, Found | Exception]] = SimpleQueue()
        self._lock = ExitStack()
        self._cursor = Cursor(inbox.root / "watch.json")
        self._storms = Storms(inbox, self._cursor, teller, self.settings)
        self.last: Round | None = None
        self.rounds = 0
        self.seen: Counter[str] = Counter()  # source → failures
        self.collected: Counter[str] = Counter()  # outcome → collections
        self.seconds = 0.0  # from the sign of a failure to its verdict, summed over `verdicts`
        self.verdicts = 0
        self.problems: tuple[str, ...] = ()  # of telling and collecting, the last time

    # ---- beginning and end

    def open(self) -> None:
        """
        Become the one watch of this inbox and read where the last one came to.

        Raises
        ------
        InboxBusy
            Another watch runs on it.
        """
        try:
            self._lock.enter_context(locked(self.inbox.root / "watch.lock", 0.0))
        except InboxBusy:
            raise InboxBusy(f"another watch runs on {self.inbox.root}", hint="one watch an inbox; stop that one first") from None
        self._cursor.read()

    def close(self) -> None:
        """Let another watch begin; what runs still is done again by that one."""
        self._lock.close()

    def __enter__(self) -> Watch:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- one look

    def look(self) -> Round:
        """Look at every scheduler and make entries of what is new; whatever cannot be seen or written is a problem of this look only."""
        began, cursor = self._clock(), self._cursor
        started = cursor.begin(began)
        looks = self._looks(began)
        problems = [problem for seen in looks.values() for problem in seen.problems]
        fresh, signs = list[Sighting](), list[Sighting]()
        for name, seen in looks.items():
            signs += seen.sightings
            for sign in seen.sightings:
                # before a scheduler was seen whole for the first time nobody knows what is new: what is old is no news
                old = sign.time is None or sign.time < started - self.settings.first
                if name not in cursor.positions and old:
                    cursor.mark(sign.item, began)
                if sign.item not in cursor.seen:
                    fresh.append(sign)
        self._step("looked")
        new, failed = 0, set[str]()
        try:
            with locked(self.inbox.root / "match.lock"):
                new, failed = self._enter(fresh, began, problems)
            self._step("entered")
            for sign in signs:
                if sign.item not in failed:
                    cursor.mark(sign.item, began)
            for name, seen in looks.items():
                if not seen.problems and not failed:
                    cursor.reach(name, seen.position, began)
            cursor.write(began)
            self._step("noted")
        except InboxError as error:  # a full disk: the same signs are new at the next look
            problems.append(str(error))
        self.last = Round(began, self._clock(), new, tuple(problems))
        self.rounds += 1
        return self.last

    def _looks(self, now: float) -> dict[str, Seen]:
        def one(follower: Follower) -> Seen:
            since = self._cursor.positions.get(follower.name, self._cursor.begin(now) - self.settings.first)
            try:
                return follower.look(since, now, Deadline(self.settings.deadline))
            except WorkbenchError as error:
                return Seen(problems=[f"{follower.name}: {error}"])
            except Exception as error:  # a defect in one must not cost the others
                return Seen(problems=[f"{follower.name}: internal error: {type(error).__name__}: {error}"])

        if len(self.followers) < 2:
            return {follower.name: one(follower) for follower in self.followers}
        with ThreadPoolExecutor(len(self.followers), "watch-look") as pool:
            return dict(zip((follower.name for follower in self.followers), pool.map(one, self.followers), strict=True))

    def _enter(self, signs: Sequence[Sighting], now: float, problems: list[str]) -> tuple[int, set[str]]:
        """Make or change the entries of what was seen; return how many failures are new, and the signs that could not be kept."""
        if not signs:
            return 0, set()
        entries = self.inbox.entries()
        known = [
            (entry.id, failure)
            for entry in entries
            if (failure := failure_of(entry)) is not None and now - max(failure.last, entry.seen) <= _RECENT
        ]
        have = {name for name, _ in known}
        changed = assign(signs, known, now)
        homes: dict[str, str] = {}
        akin = {name: adoptable(failure, entries) for name, failure in changed}
        for name, others in akin.items():
            if name not in have and (free := [one for one in others if one not in homes.values()]):
                homes[name] = free[0]
        new = [name for name, _ in changed if name not in have]
        storm = self._storms.of(len(new), entries, now)
        failed = set[str]()
        for name, failure in changed:
            self._step("before an entry")
            home = homes.get(name, name)
            try:
                # an entry of this name that is not known holds an old failure whose sign is shown again
                if name in have or name in homes or name in self.inbox:
                    self._more(home, failure, now)
                else:
                    self._first(name, failure, storm, now)
                for other in akin[name]:
                    if other != home and other not in homes.values() and other not in self._running and other in self.inbox:
                        self._step("before folding")
                        fold(self.inbox, other, home, "watch")
            except InboxError as error:  # one that is damaged must not cost the others
                problems.append(str(error))
                failed.update(failure.items)
        return len(new), failed

    def _first(self, name: str, failure: Failure, storm: str, now: float) -> None:
        self.seen[failure.source] += 1
        data: dict[str, Any] = {"failure": failure.to_dict(), "watch": {"stage": "queued", "first": now, "sign": now}}
        if storm:
            data["storm"] = storm
        self.inbox.add(
            id=name,
            source=failure.source,
            job=failure.job,
            attempt=failure.attempt,
            namespace=failure.namespace or None,
            user=failure.user or None,
            team=failure.team or None,
            time=failure.first,
            nodes=len(failure.nodes) or None,
            data=data,
            by="watch",
            note=failure.reasons[0] if failure.reasons else "",
        )

    def _more(self, name: str, failure: Failure, now: float) -> None:
        """Keep new signs of a failure that is known, and have it collected again when it was collected already."""

        def change(entry: Entry) -> Entry:
            watch = dict(entry.data.get("watch") or {})
            if watch.get("stage") != "queued" and int(watch.get("rounds") or 0) < _ROUNDS:
                watch |= {"stage": "queued", "first": now, "tries": 0, "next": 0.0}
            watch["sign"] = now
            entry = replace(entry, data={**entry.data, "failure": failure.to_dict(), "watch": watch})
            if entry.source != "alert":
                return entry
            return replace(  # what an alert began has become a job's failure
                entry,
                source=failure.source,
                job=failure.job,
                namespace=failure.namespace or entry.namespace,
                user=failure.user or entry.user,
                team=failure.team or entry.team,
                attempt=failure.attempt,
                time=failure.first if entry.time is None else min(entry.time, failure.first),
            )

        self.inbox.change(name, change, what="signs", by="watch", note=failure.reasons[-1] if failure.reasons else "")

    # ---- collecting and telling

    def work(self, *, soon: bool = False) -> None:
        """Take in what was collected, begin what is due, tell what is untold. With `soon` nothing is left to settle."""
        said = self._harvest()
        entries = self.inbox.entries()
        queue = sorted((entry for entry in entries if stage_of(entry) == "queued"), key=lambda one: (one.seen, one.id))
        for entry in queue:
            if len(self._running) >= self.settings.at_once:
                break
            if entry.id not in self._running and self._due(entry, soon):
                self._begin(entry)
                if not self._threads:
                    said += self._harvest()
        if not self._threads:  # what was collected just now is told now
            entries = self.inbox.entries()
        if self._storms.of(0, entries, self._clock()):  # many alerts at once are one, too
            entries = self.inbox.entries()
        said += self._storms.tell(self._clock(), soon=soon)
        waiting = [entry for entry in entries if self.teller.due(entry)]
        said += self.teller.tell(sorted(waiting, key=lambda one: one.seen))
        self.problems = tuple(said)

    def busy(self) -> bool:
        """Whether a collection runs, or one is due."""
        return bool(self._running) or any(
            stage_of(entry) == "queued" and self._due(entry, True) for entry in self.inbox.entries()
        )

    def _due(self, entry: Entry, soon: bool) -> bool:
        now, watch = self._clock(), entry.data["watch"]
        if float(watch.get("next") or 0.0) > now:
            return False
        first, sign = float(watch.get("first") or 0.0), float(watch.get("sign") or 0.0)
        return soon or now >= min(sign + self.settings.settle, first + 6 * self.settings.settle)

    def _begin(self, entry: Entry) -> None:
        failure = failure_of(entry)
        if failure is None:  # written by another version, or by hand
            self.inbox.change(
                entry.id, lambda one: _watched(one, stage="lost"), what="problem", by="watch", note="the failure is not readable"
            )
            return
        for left in self.inbox.folder(entry.id).absolute().glob("evidence-*"):  # of a watch that ended in the middle
            if str(left) != entry.evidence:
                remove(left)
        place = self.inbox.room(entry.id)
        self._running[entry.id] = place
        count = len(failure.items)

        def run() -> None:
            try:
                self._done.put((entry.id, place, count, self._collect(failure, place, self._clock())))
            except Exception as error:  # a defect of a source or parser is this entry's problem, and no other's
                self._done.put((entry.id, place, count, error))

        self._step("before collecting")
        if self._threads:
            threading.Thread(target=run, daemon=True, name=f"collect {entry.id}").start()
        else:
            run()
        self._step("collected")

    def _harvest(self) -> list[str]:
        said = list[str]()
        while True:
            try:
                name, place, count, found = self._done.get_nowait()
            except Empty:
                return said
            self._running.pop(name, None)
            try:
                said += self._take(name, place, count, found)
            except InboxError as error:  # the disk is full, or somebody removed the entry
                said.append(f"{name}: {error}")
                self.collected["lost"] += 1
            self._step("taken")

    def _take(self, name: str, place: Path, count: int, found: Found | Exception) -> list[str]:
        """Write what came of a collection into the entry."""
        entry = self.inbox.get(name)
        if entry.data.get("folded"):
            remove(place)
            return []
        watch = dict(entry.data.get("watch") or {})
        now, tries = self._clock(), int(watch.get("tries") or 0) + 1
        case = found.case if isinstance(found, Found) else None
        if case is None:
            why = found.problem if isinstance(found, Found) else _why(found)
            self.collected["failed"] += 1
            # with a verdict of an earlier collection the entry is well without this one
            had = int(watch.get("rounds") or 0) > 0
            watch |= {"tries": tries, "next": now + back_off(tries, *_RETRY)}
            if had and tries >= _TRIES:
                watch["stage"] = "collected"
            ready = bool(entry.data.get("ready")) or tries >= _TRIES
            problem = entry.problem if had else f"its evidence could not be collected ({_times(tries)} tried): {why}"
            self.inbox.change(
                name,
                lambda one: replace(one, problem=problem, data={**one.data, "watch": watch, "ready": ready}),
                what="problem",
                by="watch",
                note=why,
            )
            remove(place)
            return [f"{name}: {why}"]
        assert isinstance(found, Found)
        old = entry.evidence
        watch |= {"stage": "collected", "rounds": int(watch.get("rounds") or 0) + 1, "tries": 0, "next": 0.0}
        failure = failure_of(entry)
        if failure is not None and len(failure.items) > count and watch["rounds"] < _ROUNDS:
            watch |= {"stage": "queued", "first": now}  # signs came while it was collected
        elif found.lacking and watch["rounds"] < _ROUNDS:
            watch |= {"stage": "queued", "first": now, "next": now + back_off(watch["rounds"], *_RETRY)}
        if failure is not None:
            failure = replace(
                failure,
                nodes=tuple(dict.fromkeys((*failure.nodes, *found.nodes)))[:512],
                pods=tuple(dict.fromkeys((*failure.pods, *found.pods)))[:512],
            )
        known = {
            key: getattr(entry, key) for key in ("job", "namespace", "user", "team", "attempt") if getattr(entry, key) is not None
        }
        self.inbox.add(
            case,
            id=name,
            evidence=place,
            problem="",
            by="watch",
            note=f"lacking: {'; '.join(found.lacking[:3])}" if found.lacking else "",
            data={
                "watch": watch,
                "ready": True,
                "lacking": list(found.lacking),
                **({"failure": failure.to_dict()} if failure else {}),
            },
            **known,
        )
        if old and Path(old).parent == self.inbox.folder(name).absolute() and Path(old) != place.absolute():
            remove(Path(old))
        self.collected["partial" if found.lacking else "ok"] += 1
        with locked(self.inbox.root / "match.lock"):
            self._join(name)
        self.seconds += max(now - (failure.first if failure else entry.seen), 0.0)
        self.verdicts += 1
        return []

    def _join(self, name: str) -> None:
        """Make one incident of several, now that it is known where this one ran: an alert may have begun some of them."""
        entry, entries = self.inbox.get(name), self.inbox.entries()
        if entry.source == "alert":
            if home := home_of(entry, [one for one in entries if not one.data.get("folded")]):
                self._step("before folding")
                fold(self.inbox, name, home, "watch")
            return
        failure = failure_of(entry)
        for other in adoptable(failure, entries) if failure is not None else ():
            if other not in self._running:
                self._step("before folding")
                fold(self.inbox, other, name, "watch")

    # ---- again and again

    def once(self, stop: Callable[[], bool] = lambda: False) -> Round:
        """Look once, then collect and tell all that is due, and return when that is done."""
        turn = self.look()
        while not stop():
            self.work(soon=True)
            if not self.busy():
                break
            if self._threads:
                time.sleep(0.05)
        return turn

    def every(
        self,
        seconds: float,
        *,
        stop: threading.Event,
        done: Callable[[Round], None] = lambda _: None,
        after: Callable[[], None] = lambda: None,
        pause: float = 2.0,
    ) -> None:
        """Look every so many seconds, and work between, until `stop` is set; then wait a little for what still runs."""
        while not stop.is_set():
            began = self._steady()
            done(self.look())
            while True:
                self.work()
                after()
                left = began + seconds - self._steady()
                if left <= 0 or stop.wait(min(pause, left)):
                    break
        end = self._steady() + _GRACE
        while self._running and self._steady() < end:
            time.sleep(0.05)
            self._harvest()

    # ---- for who watches the watcher

    @property
    def running(self) -> int:
        """How many collections run now."""
        return len(self._running)

    def ready(self, within: float) -> bool:
        """Whether the last look saw every scheduler whole, and is no older than `within` seconds."""
        last = self.last
        return last is not None and not last.problems and self._clock() - last.ended <= within


def _watched(entry: Entry, **more: Any) -> Entry:
    return replace(entry, data={**entry.data, "watch": {**(entry.data.get("watch") or {}), **more}})


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _why(error: Exception) -> str:
    if isinstance(error, (WorkbenchError, OSError)):
        return str(error) or type(error).__name__
    return f"internal error: {type(error).__name__}: {error}"
