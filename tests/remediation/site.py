"""Turn a fleet in memory into a site with a controller: plans for its nodes, and requests that go wrong in turn."""

from __future__ import annotations

from typing import Any

from workbench.remediation import engine
from workbench.remediation.journal import Journal
from workbench.remediation.model import OWNER, Action, Plan
from workbench.testing.fleet import Fleet
from workbench.testing.fleet_executor import FleetExecutor

REPAIR = ("cordon", "collect", "evict", "reboot", "validate", "uncordon")


class Site:
    """A fleet of three nodes with work on each, a controller, and plans for it."""

    def __init__(self, nodes: int = 3) -> None:
        self.fleet = Fleet()
        for number in range(nodes):
            self.fleet.add(f"n{number}", pool="a", claim=f"c{number}")
            self.fleet.run(f"n{number}", f"ns/w{number}", job=f"j{number}", gpus=8)
        self.executor = FleetExecutor(self.fleet)
        self.journal = Journal(None, clock=self.fleet.clock)
        self.told: list[str] = []

    def chain(self, node: str, verbs: tuple[str, ...] = REPAIR, **more: Any) -> list[Action]:
        """Return steps as the planner makes them: each after the one before, with what it expects."""
        state = self.fleet.state(self.fleet.nodes[node])
        made: list[Action] = []
        for verb in verbs:
            expects: dict[str, Any] = {"uid": state.uid, "owner": OWNER if made or state.ours else state.owner}
            if verb not in ("validate", "uncordon"):
                expects["boot"] = state.boot
            if verb in ("evict", "reboot"):
                expects["work"] = [] if any(one.verb == "evict" for one in made) else [one.uid for one in state.work]
            after = (made[-1].id,) if made else ()
            args = {"reason": "xid-95", "expires": self.fleet.clock() + 86400}
            undo = "uncordon" if verb in ("cordon", "taint", "label") else ""
            made.append(
                Action(
                    f"{node}-{verb}",
                    verb,
                    "reboot-node",
                    node,
                    node,
                    expects=expects,
                    args=args,
                    after=after,
                    undo=undo,
                    approval="auto",
                    **more,
                )
            )
        return made

    def plan(self, *actions: Action, lives: float = 7200.0) -> Plan:
        now = self.fleet.clock()
        return Plan(now, now + lives, tuple(actions), id="plan-1")

    def common(self, **more: Any) -> dict[str, Any]:
        fleet = self.fleet
        return {"clock": fleet.clock, "steady": fleet.steady, "sleep": fleet.sleep} | more

    def apply(self, *actions: Action, plan: Plan | None = None, **more: Any) -> list[engine.Outcome]:
        lives = more.pop("lives", 7200.0)
        plan = plan or self.plan(*actions, lives=lives)
        return engine.apply(plan, self.executor, self.journal, **self.common(**more))

    def resume(self, **more: Any) -> list[engine.Outcome]:
        return engine.resume(self.journal, self.executor, **self.common(**more))

    def undo(self, what: Any, **more: Any) -> list[engine.Outcome]:
        return engine.undo(what, self.executor, self.journal, **self.common(**more))

    def faults(self, *faults: str) -> None:
        """Let the next requests of each kind go wrong in turn: ``begin:lost``, ``look:timeout``."""
        waiting = [one.split(":") for one in faults]

        def fault(call: str) -> str:
            for one in waiting:
                if call.startswith(one[0]):
                    waiting.remove(one)
                    return one[1]
            return ""

        self.fleet.fault = fault

    def effects(self) -> list[str]:
        return [f"{'undo ' if one.undo else ''}{one.verb} {one.node}" for one in self.fleet.effects]


def ends(outcomes: list[engine.Outcome]) -> list[str]:
    return [f"{one.action.verb} {one.status}" for one in outcomes]
