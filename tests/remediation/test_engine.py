"""The engine: exactly the plan, once, in order, on the world that the plan expects; and after any crash the truth, never twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import WorkbenchError
from workbench.remediation import engine
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.journal import Journal, JournalError
from workbench.remediation.model import OWNER, Action, NodeState, Plan, Refusal, Step
from workbench.testing.fleet import Crash, Fleet
from workbench.testing.fleet_executor import FleetExecutor, FleetLock

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


@pytest.fixture
def site() -> Site:
    return Site()


def ends(outcomes: list[engine.Outcome]) -> list[str]:
    return [f"{one.action.verb} {one.status}" for one in outcomes]


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


def test_after_its_expiry_nothing_of_a_plan_is_begun(site: Site) -> None:
    site.fleet.nodes["n0"].boot_takes = 900.0
    outcomes = site.apply(*site.chain("n0", deadline=4000.0), lives=300.0)

    assert ends(outcomes)[:4] == ["cordon done", "collect done", "evict done", "reboot done"]
    assert (outcomes[4].guard, outcomes[5].guard) == ("expired", "chain")
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


# answers that are lost


@pytest.mark.parametrize("fault", ["refused", "busy", "conflict", "timeout", "late", "lost", "blind"])
@pytest.mark.parametrize("verb", ["cordon", "evict", "reboot"])
def test_one_request_that_goes_wrong_changes_nothing_about_the_end(fault: str, verb: str, site: Site) -> None:
    site.faults(f"begin {verb}:{fault}")

    outcomes = site.apply(*site.chain("n0", deadline=1000.0))

    assert ends(outcomes) == [f"{verb} done" for verb in REPAIR]
    assert site.effects() == [f"{verb} n0" for verb in REPAIR]
    assert not any(one.repeats for one in site.fleet.operations.values()), "nothing was asked for again after it had taken effect"


def test_requests_that_never_arrive_end_after_so_many(site: Site) -> None:
    site.faults(*["begin:refused"] * 9)

    outcomes = site.apply(*site.chain("n0"), tries=3)

    assert ends(outcomes)[0] == "cordon failed"
    assert "connection refused" in outcomes[0].detail
    assert site.effects() == []


def test_what_cannot_be_told_is_unknown_pages_once_and_is_not_done_again(site: Site) -> None:
    site.faults("begin reboot:lost", "look reboot:blind")
    plan = site.plan(*site.chain("n0"), *site.chain("n1", ("cordon",)))

    outcomes = site.apply(plan=plan)

    assert ends(outcomes)[3:] == ["reboot unknown", "validate refused", "uncordon refused", "cordon done", "page done"]
    assert outcomes[-1].action.node == "n0"
    assert "n0: reboot" in outcomes[-1].action.args["text"]
    site.fleet.sleep(600)

    again = site.apply(plan=plan)
    assert (again[3].status, again[3].guard) == ("refused", "journal")
    assert site.effects().count("reboot n0") == 1
    assert len(site.fleet.pages) == 1

    engine.settle(site.journal, "n0-reboot", "done", "it is up again, boot id looked at")
    assert ends(site.apply(plan=plan))[3:6] == ["reboot done", "validate done", "uncordon done"]


def test_without_a_way_to_page_the_journal_says_that_a_person_is_needed(site: Site) -> None:
    site.executor.verbs -= {"page"}
    site.faults("begin:lost", "look:blind")

    site.apply(*site.chain("n0", ("cordon",)))

    assert "a person is needed" in site.journal.entries()[-1].detail


def test_a_server_that_is_silent_past_the_deadline_leaves_it_open_not_guessed(site: Site) -> None:
    chain = [replace(one, deadline=100.0) for one in site.chain("n0")]
    site.faults("begin reboot:lost", *["look reboot:timeout"] * 99)

    outcomes = site.apply(*chain)

    assert ends(outcomes)[3] == "reboot open"
    site.fleet.fault = None
    site.fleet.sleep(600)
    assert ends(site.resume()) == ["reboot done"]


def test_an_outage_that_does_not_end_calls_a_person(site: Site) -> None:
    chain = site.chain("n0", ("cordon",))
    site.faults("begin:lost", *["look:timeout"] * 999)
    site.apply(*chain)
    assert ends(site.resume()) == ["cordon open"]
    site.fleet.sleep(4000)

    assert ends(site.resume()) == ["cordon unknown", "page done"]
    assert site.journal.open() == []


# ends that are no success


def test_a_wait_that_is_too_long_expires_and_the_node_stays_ours(site: Site) -> None:
    site.fleet.nodes["n0"].boot_takes = 1e6

    outcomes = site.apply(*site.chain("n0"))

    assert ends(outcomes)[3:] == ["reboot expired", "validate refused", "uncordon refused"]
    assert site.fleet.nodes["n0"].owner == OWNER


def test_a_node_that_is_not_well_after_the_fix_stays_out_of_service_with_our_reason(site: Site) -> None:
    site.fleet.break_down("n0", "xid-95", mended_by=("replace",))

    outcomes = site.apply(*site.chain("n0"))

    assert ends(outcomes)[4:] == ["validate failed", "uncordon refused"]
    machine = site.fleet.nodes["n0"]
    assert (machine.schedulable, machine.owner, machine.reason) == (False, OWNER, "xid-95")
    assert machine.expires is not None


def test_a_budget_that_gives_way_is_waited_for_and_each_pod_is_asked_once(site: Site) -> None:
    site.fleet.budgets["pdb"] = 0
    site.fleet.run("n0", "ns/guarded", budgets=("pdb",))
    site.fleet.later(60.0, lambda: (site.fleet.budgets.update(pdb=1), site.fleet._budgets_changed()))

    outcomes = site.apply(*site.chain("n0"))

    assert ends(outcomes)[2] == "evict done"
    assert sorted(one.lost for one in site.fleet.effects if one.verb == "evict") == [("ns/guarded",), ("ns/w0",)]


def test_a_budget_that_never_gives_way_expires_and_is_named(site: Site) -> None:
    site.fleet.budgets["pdb"] = 0
    site.fleet.run("n0", "ns/guarded", budgets=("pdb",))

    outcomes = site.apply(*site.chain("n0"))

    assert ends(outcomes)[2] == "evict expired"
    assert "pdb" in outcomes[2].detail
    assert "ns/guarded" in site.fleet.nodes["n0"].work


def test_guards_are_asked_again_before_something_is_begun_again(site: Site) -> None:
    site.fleet.budgets["pdb"] = 0
    site.fleet.run("n0", "ns/guarded", budgets=("pdb",))
    asked = itertools.count()

    def check(action: Action, state: NodeState | None, journal: Journal) -> Refusal | None:
        return Refusal("breaker", "n0", "", "many nodes fail") if action.verb == "evict" and next(asked) == 1 else None

    outcomes = site.apply(*site.chain("n0"), check=check)

    assert (outcomes[2].status, outcomes[2].guard) == ("expired", "breaker")


def test_a_ticket_that_fails_holds_up_nothing(site: Site) -> None:
    ticket = Action("t", "ticket", "report", "n0", approval="auto")
    real = site.executor.begin
    site.executor.begin = lambda action, deadline: (
        Step("failed", "no such queue") if action.verb == "ticket" else real(action, deadline)
    )  # type: ignore[method-assign]

    assert ends(site.apply(ticket, *site.chain("n0", ("cordon",)))) == ["ticket failed", "cordon done"]


# crashes: the controller dies at every point where it can


class Dies(Journal):
    """A journal whose controller dies at its n-th write, before or after the line is on the disk."""

    left, side = 10**9, "before"

    def _write(self, kind: str, **fields: Any) -> Any:
        self.left -= 1
        if self.left == 0 and self.side == "before":
            raise Crash
        entry = super()._write(kind, **fields)
        if self.left == 0:
            raise Crash
        return entry


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("write", range(1, 14))
def test_a_crash_at_any_write_of_the_journal_loses_nothing_and_does_nothing_twice(write: int, side: str, site: Site) -> None:
    site.journal = journal = Dies(None, clock=site.fleet.clock)
    plan = site.plan(*site.chain("n0"))
    journal.left, journal.side = write, side
    with pytest.raises(Crash):
        site.apply(plan=plan)

    site.resume()
    assert journal.open() == []
    assert ends(site.apply(plan=plan)) == [f"{verb} done" for verb in REPAIR]
    assert site.effects() == [f"{verb} n0" for verb in REPAIR]
    assert not any(one.repeats for one in site.fleet.operations.values())


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("call", [f"begin {verb}" for verb in REPAIR] + ["look reboot", "look evict", "node", "look validate"])
def test_a_crash_at_any_request_loses_nothing_and_does_nothing_twice(call: str, side: str, site: Site) -> None:
    plan = site.plan(*site.chain("n0"))
    site.faults(f"{call}:crash-{side}")
    with pytest.raises(Crash):
        site.apply(plan=plan)

    site.resume()
    assert site.journal.open() == []
    assert ends(site.apply(plan=plan)) == [f"{verb} done" for verb in REPAIR]
    assert site.effects() == [f"{verb} n0" for verb in REPAIR]


def test_a_request_of_the_dead_controller_that_arrives_late_is_not_taken_for_one_that_never_was(site: Site) -> None:
    chain = site.chain("n0", ("cordon",))
    site.journal.intent(chain[0], "plan-1", {})
    site.fleet.later(20.0, lambda: site.executor._begin(chain[0]))

    assert ends(site.resume(wait=0.0)) == ["cordon done"]


def test_resume_begins_nothing(site: Site) -> None:
    for action in site.chain("n0"):
        site.journal.intent(action, "plan-1", {})

    assert {one.status for one in site.resume()} == {"refused"}
    assert site.effects() == []
    assert site.journal.open() == []


def test_an_intent_that_cannot_be_read_is_unknown_and_calls_a_person(site: Site) -> None:
    site.journal._write("intent", plan="p", action="x", node="n0", verb="reboot", rung="reboot-node", data={})

    assert ends(site.resume()) == ["reboot unknown", "page done"]


def test_what_a_crash_left_open_on_a_node_holds_back_the_next_plan_for_it(site: Site) -> None:
    site.journal.intent(site.chain("n0", ("reboot",))[0], "plan-0", {})

    outcomes = site.apply(*site.chain("n0", ("cordon",)), *site.chain("n1", ("cordon",)))

    assert [(one.status, one.guard) for one in outcomes] == [("refused", "journal"), ("done", "")]


# the journal


@pytest.mark.parametrize("write", range(1, 8))
def test_a_journal_that_cannot_be_written_stops_before_anything_is_done(
    write: int, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = Journal._write, [write]

    def fails(self: Journal, kind: str, **fields: Any) -> Any:
        left[0] -= 1
        if left[0] <= 0:
            raise JournalError("no space left on device")
        return real(self, kind, **fields)

    monkeypatch.setattr(Journal, "_write", fails)
    with pytest.raises(JournalError):
        site.apply(*site.chain("n0"))

    begun = {one.action for one in site.journal.entries() if one.kind == "intent"}
    assert {one.action for one in site.fleet.effects} <= begun


def test_a_damaged_journal_lets_nothing_destructive_be_done_until_a_person_has_accepted_it(site: Site) -> None:
    site.journal.problems.append("line 3 is damaged")

    outcomes = site.apply(*site.chain("n0"))
    assert ends(outcomes)[:3] == ["cordon done", "collect done", "evict refused"]
    assert "line 3 is damaged" in outcomes[2].detail

    site.journal.accept("looked at it")
    assert ends(site.apply(*site.chain("n1", ("cordon", "evict")))) == ["cordon done", "evict done"]


def test_after_a_destructive_step_that_nobody_can_tell_no_other_follows_on_that_node(site: Site) -> None:
    site.journal.intent(Action("r0", "reboot", "reboot-node", "n0"), "p0", {})
    site.journal.outcome(Action("r0", "reboot", "reboot-node", "n0"), "p0", "unknown")

    outcomes = site.apply(*site.chain("n0", ("cordon", "evict")))

    assert ends(outcomes) == ["cordon done", "evict refused"]


# undo


def test_undo_takes_back_last_first_exactly_what_was_done(site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon", "taint", "label")))
    site.apply(plan=plan)
    before = site.fleet.state(site.fleet.nodes["n0"])
    assert before.marks
    assert not before.schedulable

    outcomes = site.undo(plan)

    assert ends(outcomes) == ["label undone", "taint undone", "cordon undone"]
    after = site.fleet.state(site.fleet.nodes["n0"])
    assert (after.schedulable, after.owner, after.marks) == (True, "", {})
    assert [site.journal.status_of(one.id) for one in plan.actions] == ["undone"] * 3
    assert site.undo(plan) == []


def test_what_somebody_changed_since_stays_and_is_told(site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon", "taint")), *site.chain("n1", ("cordon",)))
    site.apply(plan=plan)
    site.fleet.hand("n0", "take", "alice")
    site.fleet.hand("n1", "uncordon")
    site.fleet.nodes["n0"].marks["taint:unfit"] = "of alice"

    outcomes = site.undo(plan)

    assert ends(outcomes) == ["cordon refused", "taint refused", "cordon refused"]
    machine = site.fleet.nodes["n0"]
    assert (machine.owner, machine.schedulable, machine.marks) == ("alice", False, {"taint:unfit": "of alice"})
    assert site.journal.open() == []


def test_only_what_the_journal_says_we_did_is_undone(site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.fleet.hand("n0", "cordon", "alice")

    assert site.undo(plan) == []
    site.apply(plan=plan)
    assert site.undo(plan) == []
    assert site.fleet.nodes["n0"].owner == "alice"


def test_what_cannot_be_taken_back_is_told(site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon", "evict", "reboot")))
    site.apply(plan=plan)

    outcomes = site.undo(plan)

    assert [(one.action.verb, one.status) for one in outcomes] == [
        ("reboot", "refused"),
        ("evict", "refused"),
        ("cordon", "undone"),
    ]
    assert "nothing takes back reboot" in outcomes[0].detail


def test_a_replaced_machine_is_another_one_and_is_left_alone(site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.apply(plan=plan)
    site.fleet.hand("n0", "delete")
    assert ends(site.undo(plan)) == ["cordon refused"]
    site.fleet.sleep(300)

    assert "another one" in site.undo(plan)[0].detail


@pytest.mark.parametrize("fault", ["refused", "timeout", "late", "lost"])
def test_an_undo_whose_answer_is_lost_is_looked_at(fault: str, site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.apply(plan=plan)
    site.faults(f"undo:{fault}")

    assert ends(site.undo(plan)) == ["cordon undone"]
    assert site.effects() == ["cordon n0", "undo cordon n0"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_an_undo_that_a_crash_cut_off_is_settled(side: str, site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.apply(plan=plan)
    site.faults(f"undo:crash-{side}")
    with pytest.raises(Crash):
        site.undo(plan)

    outcomes = site.resume()

    assert ends(outcomes) == ["cordon undone" if side == "after" else "cordon refused"]
    assert site.journal.status_of("n0-cordon") == ("undone" if side == "after" else "done")
    assert (site.fleet.nodes["n0"].owner == OWNER) == (side == "before")


def test_what_was_undone_is_not_done_again_by_the_same_plan(site: Site) -> None:
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.apply(plan=plan)
    site.undo(plan)

    assert [(one.status, one.guard) for one in site.apply(plan=plan)] == [("refused", "journal")]


def test_only_what_is_open_or_unknown_can_be_settled(site: Site) -> None:
    site.apply(*site.chain("n0", ("cordon",)))

    with pytest.raises(ValueError, match="nothing to settle"):
        engine.settle(site.journal, "n0-cordon", "failed", "no")
    with pytest.raises(ValueError, match="no action"):
        engine.settle(site.journal, "never", "done", "no")


def test_errors_of_ours_are_ours(site: Site) -> None:
    assert issubclass(JournalError, WorkbenchError)
    assert JournalError.exit_code == 74
