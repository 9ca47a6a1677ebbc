"""
Turn a seed into a fleet in memory with a time of its own: nodes, work, budgets, hands of others, and requests that go wrong between any two.

`Fleet` is the world: machines that break, boot and lose their work, a server that changes them, and everybody else who does. Nothing waits:
time moves when somebody sleeps or asks, and what was due meanwhile happens then. `workbench.testing.fleet_executor` is how it is remediated.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.remediation.model import OWNER, FleetState, NodeState, Work

__all__ = ["HAND", "Crash", "Effect", "Fleet", "Machine", "Operation"]

HAND = "somebody"  # who restricted a node by hand without leaving a name


class Crash(BaseException):
    """The controller dies here: no handler of its own sees that, as with kill -9."""


@dataclass(frozen=True, slots=True)
class Effect:
    """
    One change of the world that an action made.

    `owner` is who restricted the node just before; `lost` is the work that ended; `state` is the node just before; `sent` is when its request
    left the controller, by the time that nobody can set.
    """

    time: float
    wall: float
    action: str
    verb: str
    node: str
    by: str
    owner: str = ""
    lost: tuple[str, ...] = ()
    state: NodeState | None = None
    undo: bool = False
    sent: float = 0.0


@dataclass(slots=True)
class Operation:
    """What the other side knows of one action: a request id on a server, an annotation on a node."""

    action: str
    verb: str
    node: str
    state: str  # pending, done, failed, blocked, changed
    detail: str = ""
    before: dict[str, Any] = field(default_factory=dict)
    effects: int = 0
    by: str = ""
    repeats: int = 0  # how often the same controller asked for it again after it had taken effect
    undone: bool = False


@dataclass(slots=True)
class Machine:
    """A node as it really is; `faults` is what is wrong with it, each with the verbs that mend it."""

    name: str
    uid: str
    boot: str
    booted: float
    pool: str = ""
    zone: str = ""
    environment: str = "cloud"
    gpus: int = 8
    claim: str = ""
    ready: bool = True
    schedulable: bool = True
    owner: str = ""
    op: str = ""
    reason: str = ""
    restricted: float | None = None
    expires: float | None = None
    marks: dict[str, str] = field(default_factory=dict)
    version: int = 1
    work: dict[str, Work] = field(default_factory=dict)
    faults: dict[str, frozenset[str]] = field(default_factory=dict)
    boot_takes: float = 240.0
    reset_works: bool = True
    seen: NodeState | None = None  # as it was read last, while nothing has changed


class Fleet:
    """
    All machines, what runs on them, and time.

    Parameters
    ----------
    seed : int, optional
        Of everything that the fleet itself draws.
    start : float, optional
        Seconds since the epoch at which it begins.

    Attributes
    ----------
    nodes : dict of str to Machine
    budgets : dict of str to int
        Disruptions that each budget allows now.
    effects : list of Effect
        Every change that an action made, in order.
    pages, tickets : list of str
        Ids of actions that told somebody.
    on_effect : callable or None
        Called just before each change with its `Effect`: what invariants are checked by.
    fault : callable or None
        ``fault(call)`` says how a request goes wrong: see `workbench.testing.fleet_executor.FAULTS`; empty for one that does not.
    late : float
        Seconds that a late request needs to arrive.
    pause : callable or None
        Called with the controller's name between its decision to change something and its request: it may stand still there.
    """

    def __init__(self, seed: int = 0, *, start: float = 1_800_000_000.0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.start = start
        self.skew = 0.0
        self.nodes: dict[str, Machine] = {}
        self.budgets: dict[str, int] = {}
        self.operations: dict[str, Operation] = {}
        self.effects: list[Effect] = []
        self.pages: list[str] = []
        self.tickets: list[str] = []
        self.excluded: list[tuple[str, str]] = []
        self.disrupted: set[str] = set()  # identities of work that its budgets count as away
        self.hidden: set[str] = set()  # nodes that a list does not show: a fleet that cannot be seen whole
        self.taken = 0.0  # when the lease changed hands
        self.lease: tuple[str, int, float] = ("", 0, 0.0)  # holder, token, until when
        self.on_effect: Callable[[Effect], None] | None = None
        self.fault: Callable[[str], str] | None = None
        self.late = 20.0
        self.pause: Callable[[str], None] | None = None
        self.changing = False  # whether a request that changes something is on its way
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    # time

    def steady(self) -> float:
        """Return seconds that only grow."""
        return self.now

    def clock(self) -> float:
        """Return seconds since the epoch, as a clock says that somebody may have set."""
        return self.start + self.now + self.skew

    def sleep(self, seconds: float) -> None:
        """Let time pass; what is due happens on the way."""
        until = self.now + max(0.0, seconds)
        while self._due and self._due[0][0] <= until:
            when, _, what = heapq.heappop(self._due)
            self.now = max(self.now, when)
            what()
        self.now = max(self.now, until)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Let something happen after some seconds."""
        self._number += 1
        heapq.heappush(self._due, (self.now + seconds, self._number, what))

    def jump(self, seconds: float) -> None:
        """Set the clock forward or back."""
        self.skew += seconds

    def new(self, what: str) -> str:
        """Return an identity that nothing had before."""
        self._number += 1
        return f"{what}-{self._number}"

    # what is there

    def add(self, name: str, **more: Any) -> Machine:
        """Add a machine that has been up for a day."""
        machine = Machine(name, self.new("uid"), self.new("boot"), self.clock() - 86400.0, **more)
        self.nodes[name] = machine
        return machine

    def run(self, node: str, name: str, **more: Any) -> Work:
        """Let work run on a node."""
        more.setdefault("since", self.clock() - 3600.0)
        work = Work(name, uid=self.new("work"), **more)
        self.nodes[node].work[name] = work
        self.changed(self.nodes[node])
        return work

    def state(self, machine: Machine) -> NodeState:
        """Return a machine as its scheduler shows it."""
        budgets = self.budgets
        if machine.seen is None:
            work = tuple(machine.work.values())
            machine.seen = NodeState(
                name=machine.name,
                uid=machine.uid,
                boot=machine.boot,
                booted=machine.booted,
                ready=machine.ready,
                schedulable=machine.schedulable,
                owner=machine.owner,
                op=machine.op,
                reason=machine.reason,
                restricted=machine.restricted,
                expires=machine.expires,
                marks=dict(machine.marks),
                pool=machine.pool,
                zone=machine.zone,
                environment=machine.environment,
                gpus=machine.gpus,
                claim=machine.claim,
                version=str(machine.version),
                work=tuple(_with(one, budgets) for one in work) if budgets else work,
            )
        return machine.seen

    def look(self) -> FleetState:
        """Return all machines; hidden ones are missing, and it says so."""
        shown = {name: self.state(one) for name, one in self.nodes.items() if name not in self.hidden}
        problems = (f"{len(self.hidden)} nodes did not answer",) if self.hidden else ()
        return FleetState(self.clock(), shown, "fake", not self.hidden, problems)

    def changed(self, machine: Machine) -> None:
        """Note that a machine is another version of itself now."""
        machine.version += 1
        machine.seen = None

    # what happens by itself

    def break_down(self, name: str, fault: str, mended_by: Iterable[str] = ("reset-gpu", "reboot", "replace")) -> None:
        """Break something of a machine; what mends it is a set of verbs."""
        if machine := self.nodes.get(name):
            machine.faults[fault] = frozenset(mended_by)

    def go_down(self, name: str, takes: float | None = None, *, by: str = "") -> None:
        """Let a machine go down and come up again as another boot, without its work; `by` is the verb that did it."""
        machine = self.nodes.get(name)
        if machine is None:
            return
        uid, boot = machine.uid, machine.boot
        machine.ready = False
        machine.work.clear()
        self.changed(machine)

        def up() -> None:
            if self.nodes.get(name) is machine and (machine.uid, machine.boot) == (uid, boot):
                machine.boot, machine.booted, machine.ready = self.new("boot"), self.clock(), True
                self.mend(machine, by or "reboot")
                self.changed(machine)

        self.later(machine.boot_takes if takes is None else takes, up)

    def mend(self, machine: Machine, verb: str) -> None:
        """Take away the faults that a verb mends."""
        machine.faults = {fault: verbs for fault, verbs in machine.faults.items() if verb not in verbs}

    def another(self, machine: Machine, takes: float) -> None:
        """Take a machine away; one of the same name and another identity comes in its place."""
        del self.nodes[machine.name]

        def come() -> None:
            if machine.name not in self.nodes:
                same = {
                    one: getattr(machine, one)
                    for one in ("pool", "zone", "environment", "gpus", "claim", "boot_takes", "reset_works")
                }
                new = self.add(machine.name, **same)
                new.booted = self.clock()

        self.later(takes, come)

    def end(self, machine: Machine, name: str) -> None:
        """End work; what is controlled starts again on a node that has room."""
        work = machine.work.pop(name, None)
        if work is None:
            return
        self.changed(machine)
        self.disrupt(work)
        if work.controlled:
            self.later(10.0, lambda: self._again(work))

    def disrupt(self, work: Work) -> None:
        """Count a disruption of work against its budgets, once: from its eviction until it runs again."""
        if work.budgets and work.uid not in self.disrupted:
            self.disrupted.add(work.uid)
            for budget in work.budgets:
                self.budgets[budget] = self.budgets.get(budget, 0) - 1
            self._budgets_changed()

    def _again(self, work: Work) -> None:
        if work.budgets:
            for budget in work.budgets:
                self.budgets[budget] += 1
            self._budgets_changed()
        room = [
            one
            for one in self.nodes.values()
            if one.ready and one.schedulable and sum(w.gpus for w in one.work.values()) < one.gpus
        ]
        if room:
            place = self.random.choice(room)
            name = work.id if work.id not in place.work else self.new(work.id)
            self.run(
                place.name, name, **{one: getattr(work, one) for one in ("job", "ranks", "gpus", "gang", "budgets", "grace")}
            )

    def _budgets_changed(self) -> None:
        for machine in self.nodes.values():
            if any(one.budgets for one in machine.work.values()):
                machine.seen = None

    # what others do

    def hand(self, name: str, what: str, who: str = HAND) -> None:
        """Let somebody do something by hand: ``cordon``, ``uncordon``, ``reboot``, ``delete``, ``take`` (cordons a node that we cordoned)."""
        machine = self.nodes.get(name)
        if machine is None:
            return
        if what == "cordon" and machine.schedulable:
            machine.schedulable, machine.owner, machine.op = False, who, ""
            machine.reason, machine.restricted, machine.expires = "maintenance", self.clock(), None
        elif what == "take" and machine.owner == OWNER:
            machine.owner, machine.op, machine.reason, machine.expires = who, "", "mine now", None
        elif what == "uncordon":
            machine.schedulable, machine.owner, machine.op, machine.reason = True, "", "", ""
            machine.restricted = machine.expires = None
        elif what == "reboot":
            self.go_down(name)
        elif what == "delete":
            self.another(machine, 120.0)
            return
        self.changed(machine)


def _with(work: Work, budgets: dict[str, int]) -> Work:
    if not work.budgets:
        return work
    return replace(work, disruptions=max(0, min(budgets.get(one, 0) for one in work.budgets)))
