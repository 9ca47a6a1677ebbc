"""The engine: exactly the plan, once, in order, on the world that the plan expects; and after any crash the truth, never twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.site import REPAIR, Site, ends
from workbench.remediation import engine
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.journal import Journal
from workbench.remediation.model import OWNER, Action, NodeState, Refusal
from workbench.testing.fleet import Fleet
from workbench.testing.fleet_executor import FleetLock


@pytest.fixture
def site() -> Site:
    return Site()


# the plan, and nothing but the plan


def test_a_plan_is_done_in_its_order_each_step_with_its_pair(site: Site) -> None:
    outcomes = site.apply(*site.chain("n0"))

    assert ends(outcomes) == [f"{verb} done" for verb in REPAIR]
    assert site.effects() == [f"{verb} n0" for verb in REPAIR]
    pairs = [(one.kind, one.verb) for one in site.journal.of_node("n0")]
    assert pairs == [(kind, verb) for verb in REPAIR for kind in ("intent", "outcome")]
    machine = site.fleet.nodes["n0"]
    assert (machine.schedulable, machine.owner) == (True, "")
    assert site.journal.open() == []


def test_the_chain_of_one_node_does_not_wait_for_that_of_another(site: Site) -> None:
    site.fleet.nodes["n0"].boot_takes = 3000.0
    site.apply(*site.chain("n0", deadline=4000.0), *site.chain("n1", ("cordon",)))

    cordoned = next(one.time for one in site.fleet.effects if (one.verb, one.node) == ("cordon", "n1"))
    assert cordoned < 60
    assert site.effects()[-1] == "uncordon n0"


def test_only_what_is_named_is_done(site: Site) -> None:
    outcomes = site.apply(*site.chain("n0", ("cordon",)), *site.chain("n1", ("cordon", "collect")), only=["n1-cordon"])

    assert ends(outcomes) == ["cordon done"]
    assert site.effects() == ["cordon n1"]


def test_what_needs_a_person_is_refused_without_one(site: Site) -> None:
    chain = [replace(one, approval="person") for one in site.chain("n0", ("cordon",))]
    assert [one.guard for one in site.apply(*chain)] == ["approval"]
    assert site.effects() == []

    assert ends(site.apply(*chain, approved=True)) == ["cordon done"]


def test_the_same_plan_again_does_nothing(site: Site) -> None:
    plan = site.plan(*site.chain("n0"))
    site.apply(plan=plan)
    before, entries = site.effects(), len(site.journal.entries())

    assert ends(site.apply(plan=plan)) == [f"{verb} done" for verb in REPAIR]
    assert site.effects() == before
    assert len(site.journal.entries()) == entries


def test_after_its_expiry_no_chain_of_a_plan_is_begun(site: Site) -> None:
    plan = site.plan(*site.chain("n0"), *site.chain("n1"), lives=300.0)
    site.fleet.nodes["n0"].boot_takes = 900.0
    site.fleet.sleep(290.0)
    site.apply(plan=plan, only=["n0"], wait=20.0)
    outcomes = site.apply(plan=plan, only=["n1"])

    assert [one.guard for one in outcomes] == ["expired", *["chain"] * 5]
    assert {one.node for one in site.fleet.effects} == {"n0"}


def test_what_was_begun_in_time_is_brought_to_its_end(site: Site) -> None:
    site.fleet.nodes["n0"].boot_takes = 900.0
    outcomes = site.apply(*site.chain("n0", deadline=4000.0), lives=300.0)

    assert ends(outcomes) == [f"{verb} done" for verb in REPAIR]
    assert site.fleet.nodes["n0"].schedulable


def test_a_later_step_has_the_time_of_those_before_it_and_no_more(site: Site) -> None:
    plan = site.plan(*site.chain("n0", deadline=400.0), lives=300.0)
    site.apply(plan=plan, only=["n0-cordon", "n0-collect"])
    site.fleet.sleep(300.0 + 2 * 400.0)
    outcomes = site.apply(plan=plan, only=["n0-evict", "n0-reboot"])

    assert [one.guard for one in outcomes] == ["expired", "chain"]
    assert site.fleet.nodes["n0"].owner == OWNER, "it stays cordoned with our reason"
    assert site.fleet.nodes["n0"].reason == "xid-95"


def test_what_comes_after_something_undone_is_refused(site: Site) -> None:
    chain = site.chain("n0", ("cordon", "collect"))
    outcomes = site.apply(chain[1])

    assert (outcomes[0].status, outcomes[0].guard) == ("refused", "after")
    assert site.effects() == []


def test_actions_that_wait_for_each_other_are_refused_at_once(site: Site) -> None:
    one, two = site.chain("n0", ("cordon",))[0], site.chain("n1", ("cordon",))[0]
    outcomes = site.apply(replace(one, after=(two.id,)), replace(two, after=(one.id,)))

    assert [one.guard for one in outcomes] == ["after", "after"]
    assert site.effects() == []


# the world


@pytest.mark.parametrize(
    ("change", "guard"),
    [
        (lambda fleet: fleet.hand("n0", "cordon", "alice"), "foreign"),
        (lambda fleet: fleet.hand("n0", "reboot"), "world"),
        (lambda fleet: fleet.hand("n0", "delete"), "world"),
        (lambda fleet: setattr(fleet.nodes["n0"], "uid", "another"), "world"),
    ],
    ids=["cordoned", "rebooted", "deleted", "replaced"],
)
def test_a_world_that_is_not_what_the_plan_expects_is_not_changed(
    change: Callable[[Fleet], None], guard: str, site: Site
) -> None:
    plan = site.plan(*site.chain("n0"))
    change(site.fleet)
    site.fleet.sleep(400)
    if "n0" in site.fleet.nodes:
        site.fleet.changed(site.fleet.nodes["n0"])

    outcomes = site.apply(plan=plan)

    assert (outcomes[0].status, outcomes[0].guard) == ("refused", guard)
    assert {one.guard for one in outcomes[1:]} == {"chain"}
    assert site.effects() == []


def test_work_that_came_since_is_not_lost(site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("evict",)))
    site.fleet.run("n0", "ns/new")

    (outcome,) = site.apply(plan=plan)

    assert outcome.guard == "world"
    assert "ns/new runs there by now" in outcome.detail


def test_a_guard_is_asked_with_the_node_of_this_moment_and_its_word_is_kept(site: Site) -> None:
    asked: list[tuple[str, NodeState | None]] = []

    def check(action: Action, state: NodeState | None, journal: Journal) -> Refusal | None:
        asked.append((action.verb, state))
        return Refusal("cap-pool", action.node, action.rung, "too many") if action.verb == "evict" else None

    outcomes = site.apply(*site.chain("n0"), check=check)

    assert ends(outcomes) == [
        "cordon done",
        "collect done",
        "evict refused",
        "reboot refused",
        "validate refused",
        "uncordon refused",
    ]
    assert outcomes[2].guard == "cap-pool"
    assert [verb for verb, _ in asked] == ["cordon", "collect", "evict"]
    assert asked[2][1] is not None
    assert asked[2][1].owner == OWNER
    assert site.fleet.nodes["n0"].owner == OWNER


def test_a_guard_that_breaks_refuses(site: Site) -> None:
    def check(*_: object) -> None:
        raise KeyError("pool")

    (outcome,) = site.apply(*site.chain("n0", ("cordon",)), check=check)

    assert (outcome.status, outcome.guard) == ("refused", "guard")
    assert site.effects() == []


def test_a_guard_that_cannot_see_the_fleet_for_a_moment_is_asked_again(site: Site) -> None:
    answers = iter([ExecutorError("503"), ExecutorError("503"), None])

    def check(*_: object) -> None:
        if (answer := next(answers)) is not None:
            raise answer

    assert ends(site.apply(*site.chain("n0", ("cordon",)), check=check)) == ["cordon done"]


def test_a_node_that_cannot_be_seen_is_left_alone_and_the_others_go_on(site: Site) -> None:
    real = site.executor.node

    def node(name: str, deadline: Deadline) -> NodeState | None:
        if name == "n0":
            raise ExecutorError("503")
        return real(name, deadline)

    site.executor.node = node  # type: ignore[method-assign]
    outcomes = site.apply(*site.chain("n0", ("cordon",)), *site.chain("n1", ("cordon",)))

    assert [(one.status, one.guard) for one in outcomes] == [("refused", "unseen"), ("done", "")]


# switches


def test_the_kill_switch_is_asked_before_each_step(site: Site, tmp_path: Path) -> None:
    kill = tmp_path / "stop"

    def tell(outcome: engine.Outcome) -> None:
        if outcome.action.verb == "collect":
            kill.write_text("INC-7: hands off\n", encoding="utf-8")

    outcomes = site.apply(*site.chain("n0"), *site.chain("n1", ("cordon",)), kill=kill, tell=tell)

    assert site.effects() == ["cordon n0", "collect n0"]
    assert {one.guard for one in outcomes[2:]} == {"kill-switch"}
    assert "INC-7: hands off" in outcomes[2].detail
    assert site.journal.open() == []


@pytest.mark.parametrize("kill", [lambda: 1 / 0, Path("/proc/self/mem")], ids=["raises", "cannot be read"])
def test_a_kill_switch_that_cannot_be_asked_is_on(kill: Any, site: Site) -> None:
    assert [one.guard for one in site.apply(*site.chain("n0"), kill=kill)] == ["kill-switch"] * 6
    assert site.effects() == []


def test_a_switch_that_goes_on_while_the_intent_is_written_still_stops_the_change(site: Site) -> None:
    on: list[str] = []
    real = site.journal._write

    def write(kind: str, **fields: Any) -> Any:
        if kind == "intent":
            on.append("now")
        return real(kind, **fields)

    site.journal._write = write  # type: ignore[method-assign]
    outcomes = site.apply(*site.chain("n0", ("cordon",)), kill=lambda: "on" if on else "")

    assert ends(outcomes) == ["cordon refused"]
    assert site.effects() == []
    assert site.journal.open() == [], "the intent has its outcome"


def test_without_the_lock_nothing_is_done_and_losing_it_stops(site: Site) -> None:
    lock = FleetLock(site.fleet, "me")
    assert [one.guard for one in site.apply(*site.chain("n1", ("cordon",)), lock=lock)] == ["lock"]

    assert engine.enter(lock, site.fleet.sleep)

    def tell(outcome: engine.Outcome) -> None:
        if outcome.action.verb == "cordon":
            site.fleet.lease = ("another", 9, site.fleet.now + 600)

    outcomes = site.apply(*site.chain("n0"), lock=lock, tell=tell)

    assert ends(outcomes)[:2] == ["cordon done", "collect refused"]
    assert site.effects() == ["cordon n0"]


def test_who_takes_over_waits_until_no_request_of_the_one_before_can_arrive(site: Site) -> None:
    began = site.fleet.now
    first, second = FleetLock(site.fleet, "first"), FleetLock(site.fleet, "second")

    assert engine.enter(first, site.fleet.sleep, call=30.0)
    assert site.fleet.now - began >= 30
    assert not engine.enter(second, site.fleet.sleep)
    site.fleet.sleep(120)
    assert engine.enter(second, site.fleet.sleep)
    assert not first.held()


def test_a_stop_leaves_what_is_on_its_way_for_resume(site: Site) -> None:
    stop: list[int] = []
    site.fleet.later(60.0, lambda: stop.append(1))
    plan = site.plan(*site.chain("n0"))

    outcomes = site.apply(plan=plan, stop=lambda: bool(stop))

    assert ends(outcomes) == ["cordon done", "collect done", "evict done", "reboot open", "validate refused", "uncordon refused"]
    assert [one.verb for one in site.journal.open()] == ["reboot"]
    assert ends(site.resume()) == ["reboot done"]
    assert ends(site.apply(plan=plan)) == [f"{verb} done" for verb in REPAIR]
    assert site.effects() == [f"{verb} n0" for verb in REPAIR]


def test_a_turn_need_not_wait_for_a_long_step(site: Site) -> None:
    site.fleet.nodes["n0"].boot_takes = 1500.0
    plan = site.plan(*site.chain("n0", deadline=3000.0), *site.chain("n1", ("cordon",)))

    outcomes = site.apply(plan=plan, wait=60.0)

    assert ends(outcomes)[3:] == ["reboot open", "validate refused", "uncordon refused", "cordon done"]
    assert site.fleet.now < 120
    assert ends(site.resume(wait=0.0)) == ["reboot open"]
    assert site.fleet.now < 120
    site.fleet.sleep(1500)
    assert ends(site.resume(wait=0.0)) == ["reboot done"]
    assert ends(site.apply(plan=plan))[3:] == ["reboot done", "validate done", "uncordon done", "cordon done"]
