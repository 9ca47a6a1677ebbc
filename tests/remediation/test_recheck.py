"""The guards just before an action: with the fleet as it is then, and with what we may have taken away that it does not show yet."""

from __future__ import annotations

import pytest

from workbench.remediation.executors.contract import ExecutorError
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action, Plan, Trouble
from workbench.remediation.policy import Limits, Policy
from workbench.remediation.recheck import Recheck
from workbench.testing.fleet import Fleet
from workbench.testing.fleet_executor import FleetExecutor

WIDE = Limits(out_count=1, out_percent=100, pool_count=9, pool_percent=100, zone_count=9, keep=0, keep_percent=0)


class Here:
    """Four nodes, a cap of one, and a plan that would cordon two."""

    def __init__(self, age: float = 30.0) -> None:
        self.fleet = Fleet()
        for name in ("n0", "n1", "n2", "n3"):
            self.fleet.add(name)
        now = self.fleet.clock()
        troubles = tuple(
            Trouble(
                name, "xid-95", "hardware/gpu-memory", "reset-gpu", cause="hardware", seen=now, boot=self.fleet.nodes[name].boot
            )
            for name in ("n0", "n1")
        )
        self.actions = [
            Action(f"{one.node}-c", "cordon", "cordon", one.node, trouble=one.id, approval="auto") for one in troubles
        ]
        plan = Plan(now, now + 3600, tuple(self.actions), troubles=troubles, id="p")
        self.executor = FleetExecutor(self.fleet)
        self.journal = Journal(None, clock=self.fleet.clock)
        self.recheck = Recheck(
            plan, self.executor, Policy(limits=WIDE), clock=self.fleet.clock, steady=self.fleet.steady, age=age
        )

    def ask(self, number: int) -> str:
        action = self.actions[number]
        refusal = self.recheck(action, self.fleet.state(self.fleet.nodes[action.node]), self.journal)
        return "" if refusal is None else refusal.guard


def test_a_node_that_we_have_taken_since_the_fleet_was_read_counts() -> None:
    here = Here()
    assert here.ask(0) == ""
    here.journal.intent(here.actions[0], "p", {})
    here.journal.outcome(here.actions[0], "p", "done")

    assert here.ask(1) == "cap-fleet"


def test_a_node_that_we_may_have_taken_counts_even_when_the_fleet_does_not_show_it() -> None:
    here = Here(age=0.0)
    here.journal.intent(here.actions[0], "p", {})

    assert here.ask(1) == "cap-fleet"


def test_what_was_refused_was_never_taken() -> None:
    here = Here()
    assert here.ask(0) == ""
    here.journal.intent(here.actions[0], "p", {})
    here.journal.outcome(here.actions[0], "p", "refused")

    assert here.ask(1) == ""


def test_the_action_that_is_asked_about_again_is_not_counted_against_itself() -> None:
    here = Here(age=0.0)
    here.journal.intent(here.actions[0], "p", {})

    assert here.ask(0) == ""


def test_the_fleet_is_read_again_when_it_is_too_old() -> None:
    here = Here(age=30.0)
    assert here.ask(1) == ""
    here.executor._begin(here.actions[0])  # by another journal: only the fleet shows it
    assert here.ask(1) == ""
    here.fleet.sleep(31)

    assert here.ask(1) == "cap-fleet"


def test_a_fleet_that_cannot_be_seen_holds_back_what_shrinks_it_and_not_the_way_back() -> None:
    here = Here()
    here.fleet.fault = lambda call: "refused" if call == "fleet" else ""
    with pytest.raises(ExecutorError):
        here.ask(0)

    back = Action("b", "uncordon", "cordon", "n0", approval="auto")
    assert here.recheck(back, here.fleet.state(here.fleet.nodes["n0"]), here.journal) is None
