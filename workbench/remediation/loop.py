"""Turn what the cluster shows, again and again, into plans: what the policy lets be done without a person is, the rest is proposed to one."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from workbench.errors import WorkbenchError
from workbench.exposition import exposition
from workbench.remediation.conditions import of_fleet
from workbench.remediation.engine import Outcome, apply, enter, resume
from workbench.remediation.executors.contract import Deadline, Executor, Lock
from workbench.remediation.journal import Journal
from workbench.remediation.ladder import Ladders
from workbench.remediation.model import FleetState, Plan, Trouble
from workbench.remediation.moments import steady as awake
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Policy
from workbench.remediation.proposing import execute, note_down, propose
from workbench.remediation.queue import Queue, QueueError
from workbench.remediation.recheck import Recheck
from workbench.remediation.troubles import Checked

__all__ = ["Loop", "Round", "Seen"]

LEAST = 0.5  # seconds between the beginnings of two turns, however much news there is: a flapping node must not keep us busy
CALL = 60.0  # seconds that reading the fleet may take: 2,000 nodes with 16,000 pods come in some ten


class Seen(Protocol):
    """Something beside the cluster's own conditions that tells what is wrong: verdicts in a folder, another system."""

    def __call__(self, now: float, /) -> tuple[list[Trouble], list[Checked]]: ...


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the loop: the plan (None when the fleet could not be seen), what came of it, and what stood in the way."""

    began: float
    ended: float
    plan: Plan | None = None
    outcomes: tuple[Outcome, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass
class Loop:
    """
    Look, judge, plan, do what the policy allows, verify, write down.

    Attributes
    ----------
    executor : Executor
    journal : Journal
    policy : Policy
    seen : sequence of Seen
        Beside the conditions of the cluster's nodes.
    lock : Lock or None
        Taken by the caller; a turn that finds it lost (the API server was away, this machine stood still) takes it again as soon as nobody else
        has it, and until then only looks.
    table : Ladders or None
    stop : callable
        Returns true when it shall end.
    clock, steady, sleep : callable
    queue : Queue or None
        Where what needs a person is proposed, and what a person has said yes to is found.
    wake : callable or None
        Waits at most so many seconds and returns true as soon as the cluster shows something new: the next turn then begins at once.
    rounds : int
        How many there were.
    """

    executor: Executor
    journal: Journal
    policy: Policy
    seen: Sequence[Seen] = ()
    lock: Lock | None = None
    table: Ladders | None = None
    stop: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.time
    steady: Callable[[], float] = awake
    sleep: Callable[[float], None] = time.sleep
    tell: Callable[[Outcome], None] | None = None
    wake: Callable[[float], bool] | None = None
    queue: Queue | None = None
    rounds: int = 0
    _last: Round | None = None
    _waiting: int | None = None
    _ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    _fleet: FleetState | None = None
    _news: bool = False

    def once(self, wait: float = math.inf) -> Round:
        """
        Make one turn: settle what is open, look, plan, do what needs no person.

        What cannot be seen this time is told and costs nothing but the turn; the journal is the only thing that ends the loop when it cannot
        be written.

        Parameters
        ----------
        wait : float, optional
            Seconds for which a step is waited for; one that takes longer (a drain of hours) is open until a later turn sees its end, and holds
            up no other node.
        """
        began, problems = self.clock(), list[str]()
        news, self._news = self._news, False
        outcomes: list[Outcome] = []
        kill = Path(self.policy.stop_file)
        if acts := self._in_charge(problems):
            outcomes += resume(
                self.journal,
                self.executor,
                lock=self.lock,
                kill=kill,
                stop=self.stop,
                clock=self.clock,
                steady=self.steady,
                sleep=self._rest,
                wait=wait,
                enough=lambda: news or self._news,  # what this turn was begun for comes before what takes long
                tell=self.tell,
            )
            outcomes += self._approved(kill, wait, problems)
        plan: Plan | None = None
        try:
            self._news = False  # what is new by now is in what is read next
            fleet = self.executor.fleet(Deadline(CALL, self.steady))
            troubles, checked = of_fleet(fleet)
            for source in self.seen:
                try:
                    more, seen = source(self.clock())
                    troubles += more
                    checked += seen
                except (WorkbenchError, OSError, ValueError) as error:
                    problems.append(f"{type(source).__name__}: {error}")
            problems += list(fleet.problems)
            self._fleet = fleet
            plan = make_plan(
                troubles,
                fleet,
                past=self.journal.past(),
                policy=self.policy,
                table=self.table,
                verbs=self.executor.verbs,
                checked=checked,
            )
        except WorkbenchError as error:
            problems.append(str(error))
        if acts and plan is not None and any(one.approval == "auto" for one in plan.actions):
            outcomes += apply(
                plan,
                self.executor,
                self.journal,
                check=Recheck(plan, self.executor, self.policy, clock=self.clock, steady=self.steady),
                lock=self.lock,
                kill=kill,
                stop=self.stop,
                clock=self.clock,
                steady=self.steady,
                sleep=self._rest,
                wait=wait,
                enough=lambda: self._news,
                only=[one.id for one in plan.actions if one.approval == "auto"],
                tell=self.tell,
            )
        if self.queue is not None:
            try:
                if acts and plan is not None and self.policy.propose:
                    propose(self.queue, plan, by=self.journal.by)
                self._waiting = sum(one.state == "proposed" for one in self.queue.proposals())
                if acts:
                    note_down(self.queue, self.journal)
            except QueueError as error:
                problems.append(str(error))
                self._waiting = None
        self._last = Round(began, self.clock(), plan, tuple(outcomes), tuple(problems))
        self._ended.update((one.action.verb, one.status) for one in outcomes)
        self.rounds += 1
        return self._last

    def _in_charge(self, problems: list[str]) -> bool:
        """Whether this controller may act: the lock is ours, or it is now, since nobody had it any more."""
        if self.lock is None:
            return True
        try:
            if self.lock.held() or enter(self.lock, self.sleep):
                return True
            problems.append("another controller acts on this cluster, or may")
        except WorkbenchError as error:
            problems.append(f"whether this controller may act cannot be told: {error}")
        return False

    def _approved(self, kill: Path, wait: float, problems: list[str]) -> list[Outcome]:
        """Do what a person has said yes to, before anything is planned anew."""
        outcomes: list[Outcome] = []
        if self.queue is None:
            return outcomes
        try:
            waiting = self.queue.approved()
            problems += self.queue.problems
        except QueueError as error:
            problems.append(str(error))
            return outcomes
        for one in waiting:
            try:
                outcomes += execute(
                    self.queue,
                    one,
                    self.executor,
                    self.journal,
                    self.policy,
                    by=self.journal.by,
                    clock=self.clock,
                    steady=self.steady,
                    wait=wait,
                    enough=lambda: self._news,
                    lock=self.lock,
                    kill=kill,
                    stop=self.stop,
                    sleep=self._rest,
                    tell=self.tell,
                )
            except QueueError as error:
                problems.append(str(error))
        return outcomes

    def _rest(self, seconds: float) -> None:
        """Wait for what is on its way, but not while the cluster shows something new: that is looked at first."""
        if self.wake is None or self._news:
            self.sleep(seconds)
        elif self.wake(seconds):
            self._news = True

    def every(self, seconds: float, done: Callable[[Round], None] = lambda _: None) -> None:
        """Make turns until `stop`, each begun `seconds` after the one before, or at once when that took longer or `wake` says so."""
        while not self.stop():
            began = self.steady()
            done(self.once(seconds))
            while not self.stop() and (left := began + seconds - self.steady()) > 0:
                if self._news:
                    if (early := began + LEAST - self.steady()) > 0:
                        self.sleep(early)
                    break
                if self.wake is None:
                    self.sleep(min(left, 1.0))
                elif self.wake(min(left, 1.0)):
                    self._news = True

    def ready(self, within: float) -> bool:
        """Whether the last turn saw the fleet whole, and is no older than `within` seconds."""
        last = self._last
        return last is not None and last.plan is not None and not last.problems and self.clock() - last.ended <= within

    def metrics(self) -> str:
        """Return how it goes in Prometheus's text format: turns, plans, outcomes, what is out of service, the breaker."""
        last, now = self._last, self.clock()
        plan = last.plan if last else None
        out = sum(one.ours for one in self._fleet.nodes.values()) if self._fleet else None
        rows: list[tuple[str, str, str, float | int | None]] = [
            ("rounds_total", "counter", "", self.rounds),
            ("last_round_age_seconds", "gauge", "", now - last.ended if last else None),
            ("last_round_seconds", "gauge", "", last.ended - last.began if last else None),
            ("problems", "gauge", "", len(last.problems) if last else None),
            ("nodes_out_of_service", "gauge", "", out),
            ("nodes_seen", "gauge", "", len(self._fleet.nodes) if self._fleet else None),
            ("breaker_open", "gauge", "", int(bool(plan.breaker)) if plan else None),
            ("plans_waiting", "gauge", "", self._waiting),
            ("actions_open", "gauge", "", len(self.journal.open())),
            *_by("actions_planned", (one.approval for one in plan.actions) if plan else (), "approval"),
            *_by("refused", (one.guard for one in plan.refused) if plan else (), "guard"),
        ]
        rows += [
            ("actions_total", "counter", f'{{verb="{verb}",status="{status}"}}', number)
            for (verb, status), number in sorted(self._ended.items())
        ]
        return exposition("workbench_remediation_", rows)


def _by(name: str, values: Iterable[str], label: str) -> list[tuple[str, str, str, float | int | None]]:
    return [(name, "gauge", f'{{{label}="{value}"}}', number) for value, number in sorted(Counter(values).items())]
