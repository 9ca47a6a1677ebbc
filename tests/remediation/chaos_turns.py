"""
Turn a seed into the product's own loop on a fleet that breaks, with people who say yes and no, and what must hold.

As `tests.remediation.chaos.Sequence`, but each controller is a `Loop` with a policy, and a queue of approvals on a disk that all share. What no
rule of the policy allows waits there; people approve, reject, change their minds, ask for something to be taken back, and change files behind
everybody's back; a controller may die in the middle of a line of the queue.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.remediation.chaos import Controller, CrashingJournal, Sequence
from tests.remediation.invariants import CALL, Invariants
from workbench.errors import WorkbenchError
from workbench.remediation import engine
from workbench.remediation.ladder import Ladders, ladders
from workbench.remediation.loop import Loop, Round
from workbench.remediation.model import Action, Plan, Trouble
from workbench.remediation.policy import Auto, Policy
from workbench.remediation.proposing import undo_plan
from workbench.remediation.queue import Event, Proposal, Queue, QueueError
from workbench.remediation.troubles import Checked
from workbench.remediation.words import height
from workbench.testing.fleet import Crash, Effect

RULES: tuple[tuple[Auto, ...], ...] = (
    (),
    (Auto("exclude-node", confidence=0.5),),
    (Auto("cordon", confidence=0.9),),
    (Auto("evacuate", confidence=0.9, busy=False), Auto("cordon", confidence=0.6)),
    (Auto("reboot-node", confidence=0.9, busy=True),),
    (Auto("report", confidence=0.5, busy=True),),
)


def _labelling() -> Ladders:
    """Return the shipped ladders as a site has them that also marks for others what it takes out of service."""
    shipped = ladders()
    rungs = {}
    for name, one in shipped.rungs.items():
        steps = [more for step in one.steps for more in ((step, "label") if step == "cordon" else (step,))]
        rungs[name] = replace(one, steps=tuple(steps))
    return replace(shipped, rungs=rungs)


LABELLING = _labelling()


@dataclass
class Said:
    """What people have said of one proposal, as the harness saw it and not as the queue remembers it."""

    kind: str
    actions: dict[str, Action]
    yes: bool = False


class Asked(Invariants):
    """The promises about people beside those of the fleet: nothing happens that neither a rule of the policy nor a person allowed."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.said: dict[str, Said] = {}
        self.given: dict[tuple[str, str], set[str]] = {}  # controller and action → the plans that it was given with

    def planned(self, plan: Plan, by: str) -> None:
        """Note what a controller is given: of the loop's own plan what needs nobody, of a person's all."""
        part = (
            plan if plan.id in self.said else replace(plan, actions=tuple(one for one in plan.actions if one.approval == "auto"))
        )
        super().planned(part, by)
        for action in part.actions:
            self.given.setdefault((by, action.id), set()).add(plan.id)

    def effect(self, effect: Effect) -> None:
        """Check a change that is about to happen."""
        super().effect(effect)
        if effect.verb == "page":
            return  # telling needs nobody's yes
        if effect.undo:
            if not any(one.yes and one.kind == "undo" and effect.action in one.actions for one in self.said.values()):
                self.wrong(effect, "it was taken back and nobody had said yes to that")
            return
        known = self.actions.get((effect.by, effect.action))
        if known is None:
            self.wrong(effect, "neither a rule of the policy nor a person allowed it")
            return
        if known[0].approval == "auto" and self._ruled(*known):
            return
        plans = [self.said[one] for one in self.given[effect.by, effect.action] if one in self.said]
        yes = [one.actions[effect.action] for one in plans if one.yes and one.kind == "plan"]
        if not yes:
            self.wrong(effect, "neither a rule of the policy nor a person allowed it")
        elif all((one.verb, one.node) != (effect.verb, effect.node) for one in yes):
            self.wrong(effect, f"what was approved is {yes[0].verb} of {yes[0].node}")

    def _ruled(self, action: Action, plan: Plan) -> bool:
        if action.verb in ("validate", "uncordon"):
            return bool(self.policy.auto)  # the way back of what is well again needs any rule
        sure = max((one.confidence for one in plan.troubles if one.id == action.trouble and one.node == action.node), default=1.0)
        return any(height(action.rung) <= height(rule.up_to) and sure >= rule.confidence for rule in self.policy.auto)


class CrashingQueue(Queue):
    """A queue whose controller dies before, after, or in the middle of a line that it writes."""

    crash: Callable[[], str] = staticmethod(lambda: "")

    def _append(self, id: str, event: Event) -> None:
        side = self.crash()
        if side == "before":
            raise Crash("queue")
        super()._append(id, event)
        if side == "torn":
            file = self._file(id, ".events.jsonl")
            data = file.read_bytes()
            file.write_bytes(data[: data.rfind(b"\n", 0, -1) + 1 + 20])
        if side:
            raise Crash("queue")


@dataclass
class Process:
    """One run of `workbench loop`: from its start, which takes the lock, to its end or its death."""

    loop: Loop
    until: float = 0.0
    left: int = 0
    rounds: list[Round] = field(default_factory=list)


class Turns(Sequence):
    """One fleet, the loops of its controllers, and its people."""

    watches = Asked

    def __init__(self, seed: int, folder: Path, *, nodes: int = 0, rounds: int = 0) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.turns = Random(f"turns {seed}")
        self.processes: dict[str, Process] = {}
        self.tampered: set[str] = set()
        super().__init__(seed, nodes=nodes, rounds=rounds)
        self.said: dict[str, Said] = self.invariants.said  # type: ignore[attr-defined]
        if self.turns.random() < 0.3:
            self.table = LABELLING
        self.people = Queue(folder / "queue", clock=self.fleet.clock)

    def _policy(self, size: int) -> Policy:
        turns = self.turns
        found = super()._policy(size)
        return replace(found, auto=turns.choice(RULES), propose=turns.random() < 0.95, stop_file=str(self.folder / "stop"))

    def _switch(self) -> None:
        super()._switch()
        (self.folder / "stop").touch()

    def _switch_off(self) -> None:
        super()._switch_off()
        (self.folder / "stop").unlink(missing_ok=True)

    def _controller(self, name: str, journal: CrashingJournal | None = None) -> Controller:
        one = super()._controller(name, journal)
        one.journal.on_plan = lambda plan: self.invariants.planned(plan, name)
        queue = CrashingQueue(self.folder / "queue", clock=self.fleet.clock)
        queue.crash = self._queue_fault  # type: ignore[method-assign]
        fleet = self.fleet
        process = Process(
            Loop(
                one.executor,
                one.journal,
                self.policy,
                seen=(self._seen,),
                lock=None if self.alone else one.lock,
                table=self.table if hasattr(self, "table") else None,
                clock=fleet.clock,
                steady=fleet.steady,
                sleep=fleet.sleep,
                queue=queue,
            )
        )
        process.loop.stop = lambda: process.left <= 0 or fleet.now >= process.until
        process.loop.tell = lambda outcome: self.invariants.ended([outcome])
        if self.turns.random() < 0.5:
            process.loop.wake = self._wake
        self.processes[name] = process
        return one

    def _queue_fault(self) -> str:
        if not self.crashes or self.turns.random() > 0.1:
            return ""
        self.crashes -= 1
        return self.turns.choice(("before", "after", "torn"))

    def _wake(self, seconds: float) -> bool:
        if self.turns.random() < 0.1:
            self.fleet.sleep(self.turns.uniform(0.0, seconds))
            return True
        self.fleet.sleep(seconds)
        return False

    def _seen(self, now: float) -> tuple[list[Trouble], list[Checked]]:
        return self._troubles()

    # the controller

    def act(self, one: Controller) -> None:
        """Let a controller's loop go on for some turns: it is started when it does not run, and may be stopped or die."""
        turns, fleet = self.turns, self.fleet
        if one.inside:
            return
        one.inside = True
        process = self.processes[one.name]
        process.loop.table = self.table
        process.left, process.until = turns.randint(1, 5), fleet.now + turns.choice((60.0, 600.0, math.inf))
        for _ in range(turns.randint(0, 8)):
            fleet.later(turns.uniform(0.0, 600.0), self._person)

        def done(turn: Round) -> None:
            process.left -= 1
            process.rounds.append(turn)

        try:
            if self.crashes and self.random.random() < 0.5:
                self.crashes -= 1
                one.journal.crash = (one.journal.writes + self.random.randint(1, 12), self.random.choice(("before", "after")))
            if not self.alone and not process.rounds and not engine.enter(one.lock, fleet.sleep, call=CALL):
                return  # another controller acts: this one is started again later
            if turns.random() < 0.2:
                process.left = 1
                done(process.loop.once())
            else:
                process.loop.every(turns.choice((10.0, 60.0, 60.0, 300.0)), done)
            self.invariants.counts["turn"] += process.loop.rounds
            process.loop.rounds = 0
            if turns.random() < 0.3:  # a graceful end
                one.lock.release()
                process.rounds.clear()
        except Crash:
            fresh = self._controller(one.name, one.journal)
            one.lock, one.executor = fresh.lock, fresh.executor
            self.invariants.counts["crash"] += 1
        except WorkbenchError:
            pass  # the server did not answer when the lock was asked for
        finally:
            one.inside, one.journal.crash = False, None

    # people

    def _person(self) -> None:
        """Somebody looks at the queue and does something about it."""
        turns = self.turns
        try:
            found = self.people.proposals()
            what = turns.random()
            if what < 0.15:
                self._ask_for_undo()
            elif found:
                self._decide(turns.choice(found[:6]), what)
        except QueueError:
            pass

    def _decide(self, one: Proposal, what: float) -> None:
        if what < 0.20:
            self._tamper(one)
        elif what < 0.90:
            self._yes(one, one.digest if self.turns.random() < 0.95 else "another")
        else:
            self.people.reject(one.id, one.digest, by="maria", reason="not now")
            if one.id in self.said:
                self.said[one.id].yes = False
            self.invariants.counts["no"] += 1

    def _yes(self, one: Proposal, seal: str) -> None:
        self.people.approve(one.id, seal, by="maria")
        if one.id in self.tampered:
            self.invariants.broken.append(f"the plan {one.id} was approved although its file was changed")
        if seal != one.digest:
            self.invariants.broken.append(f"the plan {one.id} was approved by who had seen another one")
        self.said[one.id] = Said(one.kind, {each.id: each for each in one.plan.actions}, True)
        self.invariants.counts["yes"] += 1

    def _tamper(self, one: Proposal) -> None:
        """Change what is to be done behind everybody's back, in half of the cases with a seal that fits."""
        if one.id in self.tampered:
            return  # twice might be as it was
        file = self.people.root / f"{one.id}.plan.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        last = one.plan.actions[-1]
        other = replace(last, verb="reboot" if last.verb == "replace" else "replace")
        if self.turns.random() < 0.5:
            document["plan"] = replace(one.plan, actions=(*one.plan.actions[:-1], other)).to_dict()
        else:
            document["plan"]["actions"][-1]["verb"] = other.verb
        file.write_text(json.dumps(document), encoding="utf-8")
        self.tampered.add(one.id)
        self.invariants.counts["tampered"] += 1

    def _ask_for_undo(self) -> None:
        """Somebody wants something taken back that a controller did, and perhaps says yes to it at once."""
        journal = self.turns.choice(self.controllers).journal
        begun = {one.id: one for entry in journal.entries() if entry.kind == "intent" and (one := entry.intended()) is not None}
        able = [one for one in begun.values() if one.undo]
        if not able:
            return
        node = self.turns.choice(able).node
        plan = undo_plan([one for one in able if one.node == node], now=self.fleet.clock(), why="it was a mistake")
        one = self.people.propose(plan, by="otto", kind="undo")
        if one is not None and one.state == "proposed" and self.turns.random() < 0.7:
            self._yes(one, one.digest)

    # the end

    def _settle(self) -> None:
        """Everything answers again and nobody stops anything: what people said yes to is done or over, and all of it is written down."""
        super()._settle()
        fleet, broken = self.fleet, self.invariants.broken
        self.crashes, self.slow = 0, 0.0
        for one in self.controllers:
            process = self.processes[one.name]
            loop = process.loop
            loop.policy, loop.wake, loop.stop = replace(self.policy, propose=False, auto=()), None, lambda: False
            if not process.rounds and not self.alone:
                assert engine.enter(one.lock, fleet.sleep, call=CALL)  # it is started; one that runs finds its way by itself
            for problem in [loop.once().problems, loop.once().problems][-1]:
                if not any(name in problem for name in self.tampered):
                    broken.append(f"nothing goes wrong any more, and the loop tells of a problem: {problem}")
            one.lock.release()
        self.invariants.final([one.journal for one in self.controllers])
        found = self.people.proposals()
        broken += [f"the queue cannot be read: {one}" for one in self.people.problems]
        noted: set[str] = set()
        for one in self.controllers:
            marks = [
                str(entry.data["queue"]) for entry in one.journal.entries() if entry.kind == "note" and "queue" in entry.data
            ]
            noted |= set(marks)
            if len(marks) != len(set(marks)):
                broken.append("something that happened in the queue is in a journal twice")
        for proposal in found:
            if proposal.state in ("approved", "applying") and not proposal.problem:
                broken.append(f"the plan {proposal.id} is {proposal.state}, and nobody does it: {proposal.last.reason}")
            if proposal.state == "applied" and any(word in proposal.last.reason for word in ("stopped:", "lock:")):
                broken.append(f"the plan {proposal.id} was given up half done, for a moment's reason: {proposal.last.reason}")
            if sum(event.state == "applied" for event in proposal.events) > 1:
                broken.append(f"the plan {proposal.id} was done twice")
            if missing := [number for number in range(len(proposal.events)) if f"{proposal.id}/{number}" not in noted]:
                broken.append(f"what happened to the plan {proposal.id} is in no journal: {proposal.events[missing[0]].state}")
            self.invariants.counts[f"queue:{proposal.state}"] += 1
