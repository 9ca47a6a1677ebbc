"""What is refused, and why: caps, capacity, staleness, others' nodes, the breaker, windows; and what is never refused: the way back."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.remediation.fleets import BOOTED, NOW, Entry, fleet, node, ours, tried, trouble, verbs_of, work
from workbench.model import Gpu
from workbench.remediation.guards import SHRINKING, recheck
from workbench.remediation.model import Evidence, FleetState, NodeState, Plan, Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Limits, Policy, Window
from workbench.remediation.troubles import Checked


def guards(plan: Plan) -> list[str]:
    return sorted({one.guard for one in plan.refused})


def sick(*names: str, apart: float = 3600.0, **more: Any) -> list[Trouble]:
    """Return troubles of several nodes that began long after one another, so that they are no burst."""
    return [trouble(name, since=NOW - 60 - apart * number, **more) for number, name in enumerate(names)]


def taken(plan: Plan) -> set[str]:
    return {one.node for one in plan.actions if one.verb in SHRINKING}


NAMES = [f"gpu-{number:03}" for number in range(1, 13)]


@pytest.mark.parametrize(
    ("limits", "size", "guard", "count"),
    [
        ({"out_count": 3}, 400, "cap-fleet", 3),
        ({"out_percent": 1.0}, 400, "cap-fleet", 4),
        ({"pool_count": 2}, 400, "cap-pool", 2),
        ({"pool_percent": 0.5}, 400, "cap-pool", 2),
        ({"zone_count": 1}, 400, "cap-zone", 1),
        ({"hour_count": 5}, 400, "cap-hour", 5),
        ({"final_hour_count": 2}, 400, "cap-hour", 2),
        ({"out_percent": 1.0}, 40, "cap-fleet", 1),  # a percent of few is at least one
    ],
)
def test_no_cap_is_passed(limits: dict[str, Any], size: int, guard: str, count: int) -> None:
    wide = {"out_count": 99, "pool_count": 99, "zone_count": 99, "hour_count": 99, "final_hour_count": 99}
    wide |= {"out_percent": 100.0, "pool_percent": 100.0, "breaker_count": 99}
    plan = make_plan(sick(*NAMES), fleet(size=size), policy=Policy(Limits(**(wide | limits))))

    assert guard in guards(plan)
    if "final_hour_count" in limits:
        assert sum(one.verb == "reboot" for one in plan.actions) == count
    else:
        assert len(taken(plan)) == count


def test_what_is_out_already_counts_and_is_gone_on_with() -> None:
    """Two of ours are out; a third may go; the work on the two goes on."""
    state = fleet(ours("gpu-001"), ours("gpu-002"), size=400)
    plan = make_plan(sick("gpu-001", "gpu-003", "gpu-004"), state, policy=Policy(Limits(out_count=3, breaker_count=99)))

    assert taken(plan) == {"gpu-001", "gpu-003"} or taken(plan) == {"gpu-001", "gpu-004"}
    assert verbs_of(plan.actions, "gpu-001")[:3] == ["collect", "evict", "reboot"]


def test_one_job_does_not_lose_many_nodes_within_an_hour() -> None:
    busy = [node(name, work=(work(id=f"ml/w-{name}", uid=name),)) for name in NAMES]
    plan = make_plan(sick(*NAMES[:5]), fleet(*busy, size=400), policy=Policy(Limits(out_percent=50, breaker_count=99)))

    assert sum(one.verb == "evict" for one in plan.actions) == 2
    assert "cap-job" in guards(plan)


@pytest.mark.parametrize(("healthy", "may"), [(1, False), (2, True)])
def test_the_last_healthy_node_of_a_pool_stays(healthy: int, may: bool) -> None:
    """However sure it is: a pool keeps one."""
    nodes = {f"gpu-{number:03}": node(f"gpu-{number:03}", ready=number <= healthy) for number in range(1, 5)}
    state = FleetState(NOW, nodes, "test")
    plan = make_plan([trouble("gpu-001")], state, policy=Policy(Limits(keep=1, keep_percent=0)))

    assert bool(taken(plan)) is may
    assert ("capacity" in guards(plan)) is not may


def test_a_node_that_is_no_capacity_any_more_may_always_be_mended() -> None:
    nodes = {f"gpu-{number:03}": node(f"gpu-{number:03}", ready=False) for number in range(1, 3)}
    plan = make_plan([trouble("gpu-001")], FleetState(NOW, nodes, "test"))

    assert "reboot" in verbs_of(plan.actions, "gpu-001")


@pytest.mark.parametrize(
    ("change", "state", "past", "why"),
    [
        ({"seen": None, "evidence": ()}, {}, [], "nobody knows when"),
        ({"seen": NOW - 86400, "evidence": ()}, {}, [], "24.0 h old"),
        ({"seen": NOW + 3600, "evidence": ()}, {}, [], "in the future"),
        ({"boot": "boot-0"}, {}, [], "booted since"),
        ({}, {"booted": NOW - 30}, [], "booted since"),
        ({}, {}, tried("gpu-001", "uncordon", "evacuate", "x", 100), "uncordon was done since"),
        ({}, {}, tried("gpu-001", "reset-gpu", "reset-gpu", "x", 100), "reset-gpu was done since"),
        ({}, {}, tried("gpu-001", "cordon", "cordon", "x", 100), "somebody put it back"),
        ({"boot": ""}, {"boot": "", "booted": None}, [], "nobody knows when the node booted"),
    ],
)
def test_nothing_is_done_on_stale_evidence(change: dict[str, Any], state: dict[str, Any], past: list[Entry], why: str) -> None:
    plan = make_plan([trouble(**change)], fleet(node(**state)), past=past, policy=Policy(Limits(boot_grace=0)))

    assert not [one for one in plan.actions if one.destructive]
    (refusal,) = plan.refused
    assert refusal.guard == "stale"
    assert why in refusal.why


def test_without_a_known_boot_the_node_is_still_kept_from_new_work() -> None:
    """A cordon can be taken back; a reboot cannot."""
    plan = make_plan([trouble(boot="")], fleet(node(boot="", booted=None)))

    assert verbs_of(plan.actions, "gpu-001") == ["cordon", "collect"]


def test_what_somebody_else_took_out_of_service_is_theirs() -> None:
    state = fleet(node(schedulable=False, owner="alice", reason="firmware"))
    plan = make_plan([trouble(retry="exclude-node", job="llm")], state)

    assert verbs_of(plan.actions, "gpu-001") == ["exclude"]  # the job's business, not the node's
    (refusal,) = plan.refused
    assert refusal.guard == "foreign"
    assert "alice" in refusal.why
    assert "firmware" in refusal.why


def test_a_fleet_that_was_not_seen_whole_gets_no_smaller() -> None:
    state = fleet(complete=False, problems=("page 3 of the nodes did not come: time-out",))
    plan = make_plan([trouble()], state)

    assert not plan.actions
    assert guards(plan) == ["unseen"]
    assert "page 3" in plan.notes[0]


def test_a_node_that_comes_up_is_left_alone_unless_it_is_certain() -> None:
    young = fleet(node(booted=NOW - 120))

    assert guards(make_plan([trouble(cls="driver/hang", cause="driver")], young)) == ["boot-grace"]
    assert verbs_of(make_plan([trouble()], young).actions, "gpu-001")


def test_windows_hold_for_what_cannot_be_taken_back() -> None:
    night = Window.parse("Mon-Sun 02:00-04:00")
    at = dt.datetime.fromtimestamp(NOW, dt.UTC)
    assert not night.holds(NOW), at
    plan = make_plan([trouble()], fleet(node(work=(work(),))), policy=Policy(windows=(night,)))

    assert verbs_of(plan.actions, "gpu-001") == ["cordon", "collect"]
    assert guards(plan) == ["window"]
    assert guards(make_plan([trouble()], fleet(), policy=Policy(freezes=(Window.parse("Mon-Sun 00:00-24:00"),)))) == ["freeze"]
    assert guards(make_plan([trouble()], fleet(), policy=Policy(never=("gpu-00*",)))) == ["never"]


# ---- the breaker --------------------------------------------------------------------------------------------------------------------


def test_a_storm_is_one_page_and_nothing_else() -> None:
    """All nodes report at once."""
    names = [f"gpu-{number:03}" for number in range(1, 41)]
    storm = [trouble(name, since=NOW - 60 - number) for number, name in enumerate(names)]
    plan = make_plan(storm, fleet())

    assert [one.verb for one in plan.actions] == ["page"]
    assert "40 nodes" in plan.breaker
    assert len([one for one in plan.refused if one.guard == "breaker"]) == 40
    paged = [Entry("intent", "", "page", "report", "breaker", NOW - 600, action="p")]
    assert not make_plan(storm, fleet(), past=paged).actions


def test_a_storm_stays_one_however_long_it_lasts() -> None:
    """Two hours later every check is fresh again, and the breaker still holds: it counts by when each began."""
    names = [f"gpu-{number:03}" for number in range(1, 41)]
    storm = [trouble(name, since=NOW - 7200 - number, seen=NOW - 10) for number, name in enumerate(names)]

    assert make_plan(storm, fleet()).breaker


def test_sick_nodes_that_came_one_after_another_are_no_storm() -> None:
    plan = make_plan(sick(*NAMES), fleet(size=400))

    assert not plan.breaker
    assert taken(plan)


def test_in_a_small_rack_two_are_no_storm_and_three_are() -> None:
    nodes = fleet(size=6)

    assert not make_plan([trouble(name) for name in NAMES[:2]], nodes).breaker
    assert make_plan([trouble(name) for name in NAMES[:3]], nodes).breaker


@pytest.mark.parametrize(
    ("change", "suspect"),
    [
        ({"work": (work("llm-70b"),)}, "job llm-70b"),
        ({"zone": "b"}, "zone b"),
        ({"pool": "new-image"}, "pool new-image"),
    ],
)
def test_it_says_what_to_look_at_first(change: dict[str, Any], suspect: str) -> None:
    hit = [node(name, **change) for name in NAMES]
    codes = ("xid-79", "xid-48", "gpu-missing", "port-down")
    plan = make_plan([trouble(name, code=codes[n % 4]) for n, name in enumerate(NAMES)], fleet(*hit, size=100))

    assert suspect in plan.breaker.split("look first at")[1].split(";")[0]


def test_when_nobody_could_check_the_checker_is_suspected() -> None:
    blind = [
        trouble(
            name,
            code="not-checked",
            cls="",
            cause="",
            action="none",
            severity="unknown",
            confidence=0.0,
            gpu=None,
            since=NOW - 1800,
        )
        for name in NAMES
    ]

    assert "the checker" in make_plan(blind, fleet(size=100)).breaker


def test_a_person_may_overrule_the_breaker_and_the_caps_still_hold() -> None:
    storm = [trouble(name) for name in NAMES]
    plan = make_plan(storm, fleet(size=400), despite_breaker="alice: the power feed of row 7 did fail")

    assert 0 < len(taken(plan)) <= Limits().pool_count
    assert "alice" in plan.notes[0]


# ---- the way back --------------------------------------------------------------------------------------------------------------------


def came_back(*, fit: bool = True, ago: float = 60.0) -> list[Checked]:
    return [Checked("gpu-001", NOW - ago, fit, "running")]


KNOWN = [Entry("intent", "gpu-001", "cordon", "cordon", "t", NOW - 3600, action="op-1")]


def test_a_node_comes_back_through_a_check_under_load() -> None:
    plan = make_plan([], fleet(ours("gpu-001")), past=KNOWN, checked=came_back())

    assert verbs_of(plan.actions, "gpu-001") == ["validate", "uncordon"]
    assert plan.actions[1].after == (plan.actions[0].id,)


def test_the_way_back_is_never_blocked() -> None:
    """Neither by the breaker, nor by caps, nor by a freeze, nor by a fleet that is not seen whole."""
    storm = [trouble(name) for name in NAMES[1:]]
    state = fleet(ours("gpu-001"), complete=False, problems=("x",))
    policy = Policy(Limits(out_count=0, hour_count=0), freezes=(Window.parse("Mon-Sun 00:00-24:00"),))
    plan = make_plan(storm, state, past=KNOWN, policy=policy, checked=came_back())

    assert plan.breaker
    assert verbs_of(plan.actions, "gpu-001") == ["validate", "uncordon"]


@pytest.mark.parametrize("checked", [[], came_back(fit=False), came_back(ago=7200)])
def test_silence_proves_nothing(checked: list[Checked]) -> None:
    """Not checked, not fit, or checked before it was restricted."""
    plan = make_plan([], fleet(ours("gpu-001")), past=KNOWN, checked=checked)

    assert not plan.actions
    assert guards(plan) == ["unproven"]


def test_a_restriction_that_has_expired_is_looked_into_without_being_asked() -> None:
    plan = make_plan([], fleet(ours("gpu-001", expires=NOW - 1)), past=KNOWN)

    assert verbs_of(plan.actions, "gpu-001") == ["validate", "uncordon"]


def test_a_restriction_in_our_name_that_the_journal_does_not_know_is_told() -> None:
    plan = make_plan([], fleet(ours("gpu-001", op="from-elsewhere")))

    assert not plan.actions
    assert "from-elsewhere" in plan.notes[0]


def test_what_waits_for_its_provider_does_not_come_back_by_itself() -> None:
    known = [Entry("intent", "gpu-001", "cordon", "report", "t", NOW - 3600, action="op-1")]

    assert not make_plan([], fleet(ours("gpu-001")), past=known, checked=came_back()).actions


# ---- just before it is done ------------------------------------------------------------------------------------------------------------


def planned() -> Plan:
    return make_plan([trouble()], fleet())


@pytest.mark.parametrize(
    ("state", "later", "guard"),
    [
        (fleet(), 0.0, None),
        (fleet(), 7200.0, "expired"),
        (fleet(node(owner="bob", schedulable=False)), 60.0, "foreign"),
        (fleet(node(booted=NOW - 5)), 60.0, "stale"),
        (fleet(complete=False), 60.0, "unseen"),
        (fleet(*[ours(f"gpu-{number:03}") for number in range(2, 9)]), 60.0, "cap-fleet"),
    ],
)
def test_every_guard_is_asked_again_just_before(state: FleetState, later: float, guard: str | None) -> None:
    plan = planned()
    refusal = recheck(plan.actions[0], plan, state, [], Policy(), NOW + later)

    assert (refusal.guard if refusal else None) == guard


def test_a_node_that_is_gone_is_not_touched() -> None:
    plan, state = planned(), fleet()
    without = replace(state, nodes={name: one for name, one in state.nodes.items() if name != "gpu-001"})

    refusal = recheck(plan.actions[0], plan, without, [], Policy(), NOW)
    assert refusal is not None
    assert refusal.guard == "gone"


def test_whoever_plans_the_burst_is_stopped_while_it_is_done() -> None:
    """Ten plans of one node each are a storm, too."""
    plan = planned()
    past = [
        Entry("intent", f"gpu-{number:03}", "cordon", "cordon", "t", NOW - 60, action=f"a{number}") for number in range(10, 20)
    ]
    policy = Policy(Limits(hour_count=99))

    refusal = recheck(plan.actions[0], plan, fleet(), past, policy, NOW)
    assert refusal is not None
    assert refusal.guard == "breaker"


# ---- whatever comes in -----------------------------------------------------------------------------------------------------------------

states = st.builds(
    lambda number, ready, schedulable, owner, zone, busy: replace(
        node(f"gpu-{number:03}", ready=ready, zone=zone, work=(work(id=f"ml/{number}", uid=str(number)),) if busy else ()),
        schedulable=schedulable if not owner else False,
        owner=owner,
    ),
    st.integers(1, 30),
    st.sampled_from([True, True, True, False, None]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["", "", "", "alice", "gpu-reliability-workbench"]),
    st.sampled_from("ab"),
    st.booleans(),
)
wrongs = st.builds(
    lambda number, action, severity, confidence, age, since: trouble(
        f"gpu-{number:03}",
        action=action,
        severity=severity,
        confidence=confidence,
        seen=NOW - age,
        since=NOW - since,
        gpu=Gpu(number % 8, f"GPU-{number % 8}"),
        evidence=(Evidence("e", "kernel", "x", NOW - age),),
    ),
    st.integers(1, 34),
    st.sampled_from(["reset-gpu", "reboot-node", "replace-node", "drain", "none", "fix-platform", "restart-task"]),
    st.sampled_from(["critical", "warning", "unknown"]),
    st.sampled_from([0.3, 0.6, 0.9, 1.0]),
    st.floats(0, 10 * 86400),
    st.floats(0, 10 * 86400),
)


@given(st.lists(states, max_size=30), st.lists(wrongs, max_size=40), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_no_input_passes_a_limit(nodes: list[NodeState], wrong: list[Trouble], out: int, hour: int, complete: bool) -> None:
    state = fleet(*nodes, size=30, complete=complete)
    limits = Limits(out_count=out, hour_count=hour, pool_percent=100, out_percent=100)
    plan = make_plan(wrong, state, policy=Policy(limits))
    before = {name for name, one in state.nodes.items() if one.ours}
    new = taken(plan) - before

    assert len(new) <= hour
    assert not new or len(before | new) <= out
    assert complete or not taken(plan)
    assert not [one for one in plan.actions if state.nodes.get(one.node, node()).foreign and one.verb not in ("exclude", "page")]
    assert not [one for one in plan.actions if plan.breaker and one.verb in SHRINKING and one.node not in before]
    assert Plan.from_dict(plan.to_dict()) == plan
    for one in plan.actions:
        fault = next((each for each in plan.troubles if each.id == one.trouble), None)
        if one.destructive and fault is not None:
            assert fault.newest is not None
            assert max(BOOTED, NOW - limits.fresh) <= fault.newest <= NOW + 300
            assert fault.confidence >= 0.5
        for needed in one.after:
            assert needed in {each.id for each in plan.actions[: plan.actions.index(one)]}
