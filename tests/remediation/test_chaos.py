"""Whatever breaks, dies, answers late or is done by hand between any two calls: the promises of remediation hold (`make chaos` for many more)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.remediation.chaos import TAINTING, CrashingJournal, Sequence
from tests.remediation.invariants import Invariants
from tests.remediation.site import REPAIR, Site, ends
from workbench.remediation import engine
from workbench.remediation.guards import Standing
from workbench.remediation.journal import Journal
from workbench.remediation.model import OWNER, Action, Blast, Plan, Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Auto, Limits, Policy
from workbench.remediation.recheck import Recheck
from workbench.testing.fleet import Crash, Effect, Fleet
from workbench.testing.fleet_executor import FAULTS, FleetExecutor, FleetLock

SEEDS = 400
AUTO = Policy(auto=(Auto("report", confidence=0.5, busy=True),), stop_file="")


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_the_invariants_hold_over_random_sequences(first: int) -> None:
    broken = {seed: found for seed in range(first, first + 50) if (found := Sequence(seed).run())}

    assert not broken


def test_the_same_seed_is_the_same_sequence() -> None:
    one, two = Sequence(11, nodes=9, rounds=4), Sequence(11, nodes=9, rounds=4)
    one.run()
    two.run()

    assert one.fleet.effects
    assert [(effect.time, effect.verb, effect.node) for effect in one.fleet.effects] == [
        (effect.time, effect.verb, effect.node) for effect in two.fleet.effects
    ]


def test_a_fleet_of_hundreds_of_nodes_keeps_its_promises() -> None:
    for seed in range(3):
        assert Sequence(seed, nodes=300, rounds=3).run() == []


HANDS = ("cordon", "uncordon", "take", "reboot", "delete")


@settings(max_examples=120, deadline=None)
@given(
    faults=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(FAULTS)), max_size=6),
    hands=st.lists(st.tuples(st.integers(0, 500), st.sampled_from(("n0", "n1")), st.sampled_from(HANDS)), max_size=3),
    waits=st.lists(st.sampled_from((0.0, 15.0, 400.0)), min_size=1, max_size=4),
)
def test_two_repairs_end_with_the_truth_in_the_journal(
    faults: list[tuple[int, str]], hands: list[tuple[int, str, str]], waits: list[float]
) -> None:
    """The smallest world in which everything can go wrong, so that hypothesis shrinks what breaks it to a few calls."""
    site = Site(2)
    plan = site.plan(*site.chain("n0", deadline=900.0), *site.chain("n1", deadline=900.0), lives=1e6)
    invariants = _watched(site, plan)
    wrong, calls = dict(faults), [0]

    def fault(call: str) -> str:
        calls[0] += 1
        return wrong.pop(calls[0] - 1, "")

    site.fleet.fault = fault
    for seconds, node, what in hands:
        site.fleet.later(float(seconds), lambda node=node, what=what: site.fleet.hand(node, what, "alice"))  # type: ignore[misc]
    for wait in waits:
        try:
            site.resume(wait=wait)
            site.apply(plan=plan, wait=wait)
        except Crash:
            pass
        site.fleet.sleep(wait)
    site.fleet.fault = None
    site.fleet.sleep(2000)
    site.resume()

    invariants.final([site.journal])
    assert invariants.broken == []


def _watched(site: Site, plan: Plan) -> Invariants:
    """Return the invariants that need no planner: nothing twice, nothing of others touched, and the journal tells the truth."""
    invariants = Invariants(site.fleet, Policy(limits=Limits(fresh=1e9)), exact=False, original=len(site.fleet.nodes))
    invariants.planned(plan, "controller")

    def effect(effect: Effect) -> None:
        invariants._once(effect)
        invariants._foreign(effect)
        if effect.verb == "uncordon" and not effect.undo:
            invariants._proven(effect)

    site.fleet.on_effect = effect
    return invariants


# the storm


def _storm(fleet: Fleet, code: str, cls: str, action: str, severity: str = "critical") -> list[Trouble]:
    now = fleet.clock()
    return [
        Trouble(name, code, cls, action, severity, cause=cls.split("/")[0], seen=now, since=now, boot=one.boot, summary=code)
        for name, one in fleet.nodes.items()
    ]


@pytest.mark.parametrize(
    ("code", "cls", "action"),
    [
        ("xid-79", "hardware/gpu-lost", "reboot-node"),
        ("xid-95", "hardware/gpu-memory", "reset-gpu"),
        ("nvlink", "hardware/nvlink", "drain"),
    ],
)
def test_when_all_nodes_report_at_once_nothing_is_evacuated_and_one_person_is_paged(code: str, cls: str, action: str) -> None:
    fleet = Fleet()
    for number in range(300):
        fleet.add(f"n{number}", pool=f"p{number % 3}", claim=f"c{number}")
        fleet.run(f"n{number}", f"ns/w{number}", job=f"j{number // 30}", gpus=8)
    executor, journal = FleetExecutor(fleet), Journal(None, clock=fleet.clock)
    for _ in range(30):  # it goes on for an hour and a half
        plan = make_plan(_storm(fleet, code, cls, action), fleet.look(), past=journal.entries(), policy=AUTO)
        check = Recheck(plan, executor, AUTO, clock=fleet.clock, steady=fleet.steady)
        engine.apply(
            plan, executor, journal, check=check, clock=fleet.clock, steady=fleet.steady, sleep=fleet.sleep, approved=True
        )
        assert "300 nodes" in plan.breaker
        fleet.sleep(180)

    assert len(fleet.pages) == 1
    assert [one.verb for one in fleet.effects if one.verb not in ("page", "exclude")] == []


def test_a_storm_does_not_hold_back_the_way_back() -> None:
    site = Site(40)
    site.apply(*site.chain("n0", ("cordon",)))
    plan = site.plan(*site.chain("n0", ("validate", "uncordon")))
    storm = make_plan(_storm(site.fleet, "xid-79", "hardware/gpu-lost", "reboot-node"), site.fleet.look(), policy=AUTO)
    assert storm.breaker

    check = Recheck(plan, site.executor, AUTO, clock=site.fleet.clock, steady=site.fleet.steady)
    assert ends(site.apply(plan=plan, check=check)) == ["validate done", "uncordon done"]


# what the chaos found on the way


def test_found_a_cordon_that_somebody_took_off_before_the_crash_was_settled_was_not_refused_but_is_undone() -> None:
    site = Site()
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.faults("begin:crash-after")
    with pytest.raises(Crash):
        site.apply(plan=plan)
    site.fleet.hand("n0", "uncordon")

    assert ends(site.resume()) == ["cordon undone"]
    assert [one.guard for one in site.apply(plan=plan)] == ["journal"], (
        "it was somebody's decision: this plan does not set it again"
    )


def test_found_a_reboot_of_a_machine_that_was_replaced_before_the_crash_was_settled_is_for_a_person() -> None:
    site = Site()
    plan = site.plan(*site.chain("n0", ("reboot",)))
    site.faults("begin:crash-after")
    with pytest.raises(Crash):
        site.apply(plan=plan)
    site.fleet.hand("n0", "delete")
    site.fleet.sleep(300)

    assert ends(site.resume()) == ["reboot unknown", "page done"]


def _past(journal: Journal, action: Action, status: str = "done") -> None:
    journal.intent(action, "p", {})
    journal.outcome(action, "p", status)


def test_found_a_job_s_cap_counts_the_nodes_that_its_work_has_left_already() -> None:
    site = Site()
    for name in site.fleet.nodes:
        site.fleet.run(name, f"ns/g-{name}", job="gang")
    limits = Limits(job_count=1, out_percent=100, pool_percent=100, keep=0, keep_percent=0)
    evicted = Action("e0", "evict", "evacuate", "n0", blast=Blast(jobs=("gang",)))
    _past(site.journal, evicted)
    site.fleet.nodes["n0"].work.clear()

    standing = Standing(site.fleet.look(), Policy(limits=limits), site.fleet.clock(), site.journal.entries())
    state = site.fleet.state(site.fleet.nodes["n1"])
    refusal = standing.check(Action("e1", "evict", "evacuate", "n1"), state, None)

    assert refusal is not None
    assert refusal.guard == "cap-job"


def test_found_a_taint_takes_a_node_out_of_service_like_a_cordon_and_counts_for_the_hour_and_the_breaker() -> None:
    site = Site()
    _past(site.journal, site.chain("n0", ("taint",))[0])
    state, action = site.fleet.state(site.fleet.nodes["n1"]), site.chain("n1", ("taint",))[0]
    wide = Limits(out_percent=100, pool_percent=100, keep=0, keep_percent=0)
    refusals = [
        Standing(site.fleet.look(), Policy(limits=limits), site.fleet.clock(), site.journal.entries()).check(action, state, None)
        for limits in (replace(wide, hour_count=1), replace(wide, breaker_count=1), wide)
    ]

    assert [None if one is None else one.guard for one in refusals] == ["cap-hour", "breaker", None]


def test_a_site_s_rung_that_taints_says_why_and_until_when_and_comes_back_like_a_cordon() -> None:
    site = Site(30)
    sick = _storm(site.fleet, "mount", "platform/config", "fix-platform")[0]
    plan = make_plan([sick], site.fleet.look(), policy=AUTO, table=TAINTING)
    (taint,) = plan.actions
    assert (taint.verb, taint.undo, taint.args["expires"] - plan.made) == ("taint", "uncordon", 86400.0)
    assert taint.args["reason"].startswith("[node]") or taint.args["reason"].startswith("[platform]")

    assert ends(site.apply(plan=plan)) == ["taint done"]
    node = site.fleet.nodes["n0"]
    assert (node.owner, node.op, node.expires) == (OWNER, taint.id, taint.args["expires"])
    assert make_plan([sick], site.fleet.look(), past=site.journal.past(), policy=AUTO, table=TAINTING).actions == ()
    assert ends(site.undo(plan)) == ["taint undone"]
    assert (node.owner, node.marks) == ("", {})


def test_found_an_action_that_was_refused_first_and_begun_later_counts_for_the_hour() -> None:
    site = Site()
    action = site.chain("n0", ("cordon",))[0]
    site.journal.outcome(action, "p", "refused", "unseen")
    _past(site.journal, action)

    standing = Standing(site.fleet.look(), AUTO, site.fleet.clock(), site.journal.entries())

    assert set(standing.lately(("cordon",))) == {action.id}


def test_found_an_action_that_was_begun_and_is_refused_later_still_counts_for_the_hour() -> None:
    site = Site()
    action = site.chain("n0", ("cordon",))[0]
    site.faults(*["begin:refused"] * 9)
    site.apply(action, tries=2)
    site.fleet.fault = None
    assert site.journal.status_of(action.id) == "failed"

    plan = Plan(0.0, 1.0, (action,), id="old")
    assert [one.guard for one in site.apply(plan=plan)] == ["expired"]

    assert site.journal.status_of(action.id) == "failed"
    assert set(Standing(site.fleet.look(), AUTO, site.fleet.clock(), site.journal.entries()).lately(("cordon",))) == {action.id}


def test_found_a_world_that_changed_while_a_request_was_lost_is_judged_again() -> None:
    """Two minutes pass between the guards and the second request; a cap that was kept then is not now."""
    site = Site()
    full: list[int] = []
    site.faults("begin:timeout")
    site.fleet.later(20.0, lambda: full.append(1))

    def check(action: Action, *_: Any) -> Any:
        from workbench.remediation.model import Refusal

        return Refusal("capacity", action.node, action.rung, "none left") if full else None

    outcomes = site.apply(*site.chain("n0", ("cordon",)), check=check)

    assert [(one.status, one.guard) for one in outcomes] == [("refused", "capacity")]
    assert site.effects() == []
    assert site.journal.open() == []


def test_found_a_lock_that_was_lost_while_the_guards_were_asked_again_holds_the_second_request_back() -> None:
    site = Site()
    lock = FleetLock(site.fleet, "me", 60.0)
    assert engine.enter(lock, site.fleet.sleep)
    site.faults("begin:timeout")
    asked: list[int] = []

    def check(*_: object) -> None:
        asked.append(1)
        if len(asked) == 2:  # a pause of the whole process
            site.fleet.sleep(120.0)

    outcomes = site.apply(*site.chain("n0", ("cordon",)), check=check, lock=lock)

    assert [(one.status, one.guard) for one in outcomes] == [("open", "lock")]
    assert site.effects() == []


def test_found_a_budget_that_still_holds_says_nothing_about_a_request_that_is_on_its_way() -> None:
    site = Site()
    site.fleet.budgets["pdb"] = 0
    site.fleet.run("n0", "ns/guarded", budgets=("pdb",))
    plan = site.plan(*site.chain("n0", ("cordon", "collect", "evict")))
    site.fleet.later(8.0, lambda: (site.fleet.budgets.update(pdb=1), site.fleet._budgets_changed()))
    answers = iter(("", "late"))
    site.fleet.fault = lambda call: next(answers, "") if call == "begin evict" else ""

    assert ends(site.apply(plan=plan))[2] == "evict done"
    assert site.fleet.operations["n0-evict"].repeats == 0


def test_found_a_step_that_ends_while_others_are_looked_at_does_not_end_its_chain() -> None:
    site = Site()
    site.faults("begin cordon:timeout")

    assert ends(site.apply(*site.chain("n0", deadline=1000.0))) == [f"{verb} done" for verb in REPAIR]


def test_found_an_undo_that_cannot_be_told_does_not_leave_the_action_done() -> None:
    site = Site()
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.apply(plan=plan)
    site.faults("undo:lost", "look:blind")

    assert ends(site.undo(plan)) == ["cordon unknown", "page done"]
    assert site.journal.status_of("n0-cordon") == "unknown"
    assert ends(site.undo(plan)) == ["cordon undone"], "what still is ours can be taken back, and what is not stays"


def test_found_a_switch_thrown_within_the_last_wait_is_off_for_the_one_who_settles_and_was_on_for_nobody_s_request() -> None:
    """The page of seed 5072021 left with the switch that the harness had given: it was thrown while the harness waited to settle."""
    assert Sequence(5072021).run() == []


@pytest.mark.parametrize("fault", ["", "late"])
def test_found_a_request_that_left_before_the_switch_and_arrives_after_it_is_no_breach_and_one_that_leaves_after_it_is(
    fault: str,
) -> None:
    site = Site()
    plan = site.plan(*site.chain("n0", ("cordon",)))
    invariants = Invariants(site.fleet, AUTO, exact=False, original=3)
    invariants.planned(plan, "controller")
    site.fleet.on_effect = invariants._killed
    site.faults(f"begin:{fault}")

    def switch() -> None:
        invariants.kill_at = site.fleet.now

    site.fleet.later(0.08, switch)  # between the request and its effect, which comes at once or 20 s later
    site.apply(plan=plan)
    assert site.effects()
    assert invariants.broken == []

    site.undo(plan)
    assert [one.partition(": ")[2] for one in invariants.broken] == ["the kill switch is on"], "nobody gave this one the switch"


def test_found_a_switch_thrown_while_the_disk_took_its_time_holds_the_page_back_and_it_is_told_when_the_switch_is_off() -> None:
    site = Site()
    plan = site.plan(*site.chain("n0", ("reboot",)))
    site.faults("begin:crash-after")
    with pytest.raises(Crash):
        site.apply(plan=plan)
    site.fleet.hand("n0", "delete")
    site.fleet.sleep(300)
    on: list[int] = []
    write = site.journal._write

    def slow(kind: str, **fields: Any) -> Any:
        if kind == "intent":
            on.append(1)
        return write(kind, **fields)

    site.journal._write = slow  # type: ignore[method-assign]
    kill = lambda: "on" if on else ""  # noqa: E731
    assert ends(site.resume(kill=kill)) == ["reboot unknown", "page refused"]
    assert ends(site.resume(kill=kill)) == []
    assert site.fleet.pages == []

    on.clear()
    site.journal._write = write  # type: ignore[method-assign]
    assert ends(site.resume(kill=kill)) == ["page done"]
    assert ends(site.resume(kill=kill)) == []
    assert len(site.fleet.pages) == 1


@pytest.mark.parametrize("side", ["before", "after"])
def test_found_a_crash_between_what_cannot_be_told_and_its_page_leaves_the_page_owed(side: str) -> None:
    site = Site()
    site.journal = journal = CrashingJournal(None, clock=site.fleet.clock)
    plan = site.plan(*site.chain("n0", ("reboot",)))
    site.faults("begin:crash-after")
    with pytest.raises(Crash):
        site.apply(plan=plan)
    site.fleet.hand("n0", "delete")
    site.fleet.sleep(300)
    journal.crash = (journal.writes + 2, side)  # the first is that the reboot is unknown, the second the page's intent
    with pytest.raises(Crash):
        site.resume()
    assert site.fleet.pages == []

    assert ends(site.resume())[-1] == "page done"
    assert len(site.fleet.pages) == 1


def test_found_a_page_that_did_not_get_through_is_tried_again_and_not_each_minute() -> None:
    site = Site()
    plan = site.plan(*site.chain("n0", ("reboot",)))
    site.faults("begin reboot:crash-after", "begin page:refused")
    with pytest.raises(Crash):
        site.apply(plan=plan)
    site.fleet.hand("n0", "delete")
    site.fleet.sleep(300)
    assert ends(site.resume()) == ["reboot unknown", "page failed"]

    for _ in range(5):
        site.fleet.sleep(60)
        assert ends(site.resume()) == []
    site.fleet.sleep(900)
    assert ends(site.resume()) == ["page done"]


def test_found_a_lost_page_is_owed_also_when_an_undo_was_refused_since() -> None:
    """Seed 6024955: the refused undo hid that nobody had been told of the action."""
    site = Site()
    plan = site.plan(*site.chain("n0", ("cordon",)))
    site.faults("begin cordon:lost", "look cordon:blind", "begin page:refused", *["begin page:refused"] * 9)
    assert ends(site.apply(plan=plan)) == ["cordon unknown", "page failed"]
    site.fleet.hand("n0", "take", "alice")
    assert ends(site.undo(plan)) == ["cordon refused"]
    site.fleet.fault = None
    site.fleet.sleep(1000)

    assert ends(site.resume()) == ["page done"]


def test_a_node_that_somebody_takes_over_is_theirs_from_then_on() -> None:
    site = Site()
    site.fleet.break_down("n0", "xid-95", mended_by=())
    site.apply(*site.chain("n0", ("cordon",)))
    site.fleet.hand("n0", "take", "alice")

    outcomes = site.apply(*[one for one in site.chain("n0") if one.verb != "cordon"])

    assert {one.status for one in outcomes} == {"refused"}
    assert site.fleet.nodes["n0"].owner == "alice"
    assert OWNER not in {one.owner for one in site.fleet.nodes.values()}
