"""The loop on a fleet in memory: from what checks show to a node that is back in service, and what it tells who watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.errors import SourceError
from workbench.model import Gpu
from workbench.remediation.engine import enter
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.journal import Journal
from workbench.remediation.loop import Loop
from workbench.remediation.model import Evidence, Trouble
from workbench.remediation.policy import Auto, Limits, Policy
from workbench.remediation.troubles import Checked
from workbench.testing.fleet import Fleet
from workbench.testing.fleet_executor import FleetExecutor, FleetLock

ANYTHING = Policy(Limits(), auto=(Auto("report", confidence=0.5, busy=True),), stop_file="/nonexistent/stop")
FAULTS = {
    "xid-79": ("hardware/gpu-lost", "reboot-node"),
    "xid-95": ("hardware/gpu-memory", "reset-gpu"),
    "nvlink-down": ("hardware/nvlink", "drain"),
}


def checker(fleet: Fleet) -> Callable[[float], tuple[list[Trouble], list[Checked]]]:
    """Return what checks of all nodes say at a moment: the faults that the machines really have."""
    begun: dict[tuple[str, str], float] = {}

    def look(now: float) -> tuple[list[Trouble], list[Checked]]:
        troubles, checked = [], []
        for machine in fleet.nodes.values():
            if not machine.ready:
                continue
            checked.append(Checked(machine.name, now, not machine.faults, "running"))
            for fault in machine.faults:
                cls, action = FAULTS[fault]
                begun.setdefault((machine.name, fault), now)
                seen = Evidence(f"{machine.name}-{fault}-{now}", "check xid", fault, now)
                gpu = Gpu(3, f"GPU-{machine.uid}-3")
                wrong = Trouble(
                    machine.name,
                    fault,
                    cls,
                    action,
                    gpu=gpu,
                    cause="hardware",
                    seen=now,
                    since=begun[machine.name, fault],
                    boot=machine.boot,
                )
                troubles.append(
                    Trouble(**{**{name: getattr(wrong, name) for name in wrong.__dataclass_fields__}, "evidence": (seen,)})
                )
        return troubles, checked

    return look


@pytest.fixture
def fleet() -> Fleet:
    found = Fleet(seed=1)
    for number in range(40):
        found.add(f"gpu-{number:02}", pool="h100", claim=f"claim-{number}")
    return found


def loop_on(fleet: Fleet, journal: Journal | None = None, policy: Policy = ANYTHING, **more: object) -> Loop:
    return Loop(
        FleetExecutor(fleet),
        journal or Journal(None, clock=fleet.clock),
        policy,
        seen=(checker(fleet),),
        clock=fleet.clock,
        steady=fleet.steady,
        sleep=fleet.sleep,
        **more,  # type: ignore[arg-type]
    )


def turns(loop: Loop, fleet: Fleet, count: int) -> None:
    for _ in range(count):
        loop.once()
        fleet.sleep(60)


def verbs(fleet: Fleet, node: str) -> list[str]:
    return [one.verb for one in fleet.effects if one.node == node]


def test_a_lost_gpu_ends_in_a_checked_node_that_works_again(fleet: Fleet) -> None:
    fleet.run("gpu-07", "ml/train-0", job="train", gpus=8)
    fleet.break_down("gpu-07", "xid-79", ("reboot",))
    loop = loop_on(fleet)
    turns(loop, fleet, 3)

    assert verbs(fleet, "gpu-07") == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert fleet.nodes["gpu-07"].schedulable
    assert not fleet.nodes["gpu-07"].owner
    assert not loop.journal.open()
    assert {one.node for one in fleet.effects} == {"gpu-07"}


def test_what_a_reset_does_not_mend_climbs_to_a_reboot(fleet: Fleet) -> None:
    fleet.break_down("gpu-03", "xid-95", ("reboot",))
    loop = loop_on(fleet)
    turns(loop, fleet, 6)

    tried = [verb for verb in verbs(fleet, "gpu-03") if verb in ("reset-gpu", "validate", "reboot", "uncordon")]
    assert tried == ["reset-gpu", "validate", "reboot", "validate", "uncordon"]
    assert fleet.nodes["gpu-03"].schedulable


def test_what_nothing_mends_ends_with_a_report_and_no_work(fleet: Fleet) -> None:
    fleet.nodes["gpu-03"].claim = ""  # no provider who could give another machine
    fleet.break_down("gpu-03", "xid-95", ())
    loop = loop_on(fleet)
    for _ in range(40):
        loop.once()
        fleet.sleep(3600)

    machine = fleet.nodes["gpu-03"]
    assert fleet.tickets
    assert not machine.schedulable
    assert machine.owner
    finals = [verb for verb in verbs(fleet, "gpu-03") if verb in ("reset-gpu", "reboot", "replace")]
    assert finals == ["reset-gpu", "reboot"]  # and not again each day: it never came back in between


def test_without_a_rule_it_only_proposes(fleet: Fleet) -> None:
    fleet.break_down("gpu-03", "xid-79")
    loop = loop_on(fleet, policy=Policy(stop_file="/nonexistent/stop"))
    turn = loop.once()

    assert turn.plan is not None
    assert turn.plan.actions
    assert not fleet.effects


def test_a_false_alarm_of_all_nodes_moves_none_and_pages_once(fleet: Fleet) -> None:
    for name in fleet.nodes:
        fleet.break_down(name, "xid-79")
    loop = loop_on(fleet)
    turns(loop, fleet, 30)

    assert len(fleet.pages) == 1
    assert {one.verb for one in fleet.effects} <= {"page"}


def test_the_stop_file_stops_it_between_two_steps(fleet: Fleet, tmp_path: Path) -> None:
    fleet.break_down("gpu-03", "xid-79", ("reboot",))
    stop = tmp_path / "stop"
    loop = loop_on(fleet, policy=Policy(auto=ANYTHING.auto, stop_file=str(stop)))
    fleet.on_effect = lambda effect: stop.touch() if effect.verb == "cordon" else None
    turns(loop, fleet, 5)
    assert verbs(fleet, "gpu-03") == ["cordon"]

    stop.unlink()
    fleet.on_effect = None
    turns(loop, fleet, 5)
    assert verbs(fleet, "gpu-03")[-1] == "uncordon"
    assert verbs(fleet, "gpu-03").count("reboot") == 1


def test_a_source_that_fails_costs_only_what_it_would_have_said(fleet: Fleet) -> None:
    def broken(now: float) -> tuple[list[Trouble], list[Checked]]:
        raise SourceError("the folder of verdicts is gone")

    fleet.break_down("gpu-03", "xid-79", ("reboot",))
    loop = loop_on(fleet)
    loop.seen = (broken, *loop.seen)
    turn = loop.once()

    assert "the folder of verdicts is gone" in turn.problems[0]
    assert verbs(fleet, "gpu-03")
    assert not loop.ready(3600)


def test_it_tells_how_it_goes(fleet: Fleet) -> None:
    fleet.break_down("gpu-03", "xid-79", ("reboot",))
    loop = loop_on(fleet)
    assert not loop.ready(3600)
    assert "workbench_remediation_nodes_seen" not in loop.metrics()  # nobody has looked yet: no zero
    loop.once()
    text = loop.metrics()

    assert loop.ready(60)
    assert 'workbench_remediation_actions_total{verb="reboot",status="done"} 1' in text
    assert "workbench_remediation_nodes_seen 40" in text
    assert "workbench_remediation_breaker_open 0" in text
    fleet.sleep(3600)
    assert not loop.ready(60)


def test_the_metrics_are_prometheus_own(fleet: Fleet) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    loop = loop_on(fleet)
    loop.once()

    names = {family.name for family in text_string_to_metric_families(loop.metrics())}
    assert "workbench_remediation_last_round_age_seconds" in names


def test_a_node_that_drains_for_long_holds_up_no_other_and_goes_on_when_it_is_empty(fleet: Fleet) -> None:
    fleet.run("gpu-00", "ns/long", job="j", grace=1500.0, controlled=False)
    fleet.break_down("gpu-00", "xid-79", mended_by=("reboot",))
    fleet.later(100.0, lambda: fleet.break_down("gpu-01", "xid-79", mended_by=("reboot",)))
    loop = loop_on(fleet, stop=lambda: fleet.now > 7200)

    loop.every(60.0)

    times = {(one.verb, one.node): one.time for one in fleet.effects}
    assert times["cordon", "gpu-01"] < 240
    assert times["reboot", "gpu-00"] > times["evict", "gpu-00"] + 1500 - 60
    assert [one.owner for one in fleet.nodes.values() if one.owner] == []
    assert not fleet.nodes["gpu-00"].faults
    assert sorted(one.verb for one in fleet.effects if one.node == "gpu-00" and one.verb in ("evict", "reboot")) == [
        "evict",
        "reboot",
    ]
    assert loop.journal.open() == []


def held(fleet: Fleet, node: str, until: float | None = None) -> None:
    """Let work run on a node that a disruption budget holds there."""
    fleet.budgets["pdb"] = 0
    fleet.run(node, "ml/guarded", job="guarded", gpus=8, budgets=("pdb",))
    if until is not None:
        fleet.later(until, lambda: (fleet.budgets.update(pdb=1), fleet._budgets_changed()))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("every", [10.0, 60.0])
def test_a_budget_holds_a_node_over_many_turns_until_it_gives_way_and_no_rung_is_climbed_for_it(
    fleet: Fleet, every: float
) -> None:
    held(fleet, "gpu-05", until=5000.0)
    fleet.break_down("gpu-05", "nvlink-down", mended_by=("reboot",))
    loop = loop_on(fleet, stop=lambda: fleet.now > 5300)
    loop.every(every)

    assert verbs(fleet, "gpu-05") == ["cordon", "collect", "evict"]
    assert 5000 <= fleet.effects[-1].time < 5150
    assert {effect.action for effect in fleet.effects} == {one.action for one in loop.journal.entries() if one.kind == "intent"}
    evictions = [entry.status for entry in loop.journal.of_node("gpu-05") if entry.kind == "outcome" and entry.verb == "evict"]
    assert set(evictions[:-1]) == {"held"}
    assert evictions[-1] == "done"
    assert {entry.rung for entry in loop.journal.of_node("gpu-05")} == {"evacuate"}


def test_a_node_that_a_budget_holds_beyond_the_deadline_is_told_to_a_person_once_each_time_and_no_rung_is_climbed(
    fleet: Fleet,
) -> None:
    held(fleet, "gpu-05")
    fleet.break_down("gpu-05", "xid-95", mended_by=("reset-gpu",))
    loop = loop_on(fleet, stop=lambda: fleet.now > 2400)
    loop.every(60.0)

    assert verbs(fleet, "gpu-05") == ["cordon", "collect", "page"]
    assert {entry.rung for entry in loop.journal.of_node("gpu-05")} == {"reset-gpu"}
    expired = [one for one in loop.journal.of_node("gpu-05") if one.status == "expired"]
    assert len(expired) == 1
    assert 900 <= expired[0].time - fleet.start <= 900 + 180, "the deadline counts from the first time it was asked for"
    page = next(one for one in loop.journal.of_node("gpu-05") if one.verb == "page").intended()
    assert page is not None
    assert "pdb allows no disruption" in page.args["text"]
    assert 'workbench_remediation_refused{guard="held-up"} 1' in loop.metrics()

    fleet.budgets["pdb"] = 1
    fleet._budgets_changed()
    loop.stop = lambda: fleet.now > 4800
    loop.every(60.0)
    assert verbs(fleet, "gpu-05")[3:] == ["evict", "reset-gpu", "validate", "uncordon"], "after the cool-down it is asked again"


def test_news_are_not_kept_waiting_by_a_node_that_drains(fleet: Fleet) -> None:
    held(fleet, "gpu-05")
    fleet.break_down("gpu-05", "xid-79", mended_by=("reboot",))
    news: list[int] = []
    for number, when in enumerate((70.0, 200.0, 331.0), 10):
        name = f"gpu-{number}"
        fleet.later(when, lambda name=name: (fleet.break_down(name, "xid-79", mended_by=("reboot",)), news.append(1)))  # type: ignore[misc]

    def wake(seconds: float) -> bool:
        until = fleet.now + seconds
        while not news and fleet.now < until:
            fleet.sleep(min(0.2, until - fleet.now))
        return bool(news) and bool(news.pop())

    policy = replace(ANYTHING, limits=Limits(out_percent=100.0, pool_percent=100.0))
    loop_on(fleet, policy=policy, stop=lambda: fleet.now > 400, wake=wake).every(60.0)

    cordons = {one.node: one.time for one in fleet.effects if one.verb == "cordon"}
    assert cordons["gpu-10"] - 70 < 1.5
    assert cordons["gpu-11"] - 200 < 1.5
    assert cordons["gpu-12"] - 331 < 1.5


def test_news_begin_a_turn_at_once_but_not_without_a_pause(fleet: Fleet) -> None:
    """What a watch tells is looked at now and not in a minute; a node that flaps does not keep us busy."""
    began: list[float] = []
    news = [False, False, True, True, True]

    def wake(seconds: float) -> bool:
        told = news.pop(0) if news else False
        if not told:
            fleet.sleep(seconds)
        return told

    loop = loop_on(fleet, stop=lambda: len(began) >= 5, wake=wake)
    loop.every(60.0, lambda turn: began.append(turn.began))

    ago = [round(one - began[0], 1) for one in began]
    assert ago == [0, 2, 2.5, 3, 63]


def test_a_lock_that_ran_out_is_taken_again_as_soon_as_nobody_else_has_it_and_until_then_it_only_looks(fleet: Fleet) -> None:
    """The API server was away for longer than the lease lasts: a controller that goes on looking and never acts again helps nobody."""
    lock, other = FleetLock(fleet, "a", 60.0), FleetLock(fleet, "b", 600.0)
    assert enter(lock, fleet.sleep)
    loop = loop_on(fleet, lock=lock)
    loop.once()
    fleet.sleep(61.0)
    assert other.acquire(Deadline(1.0))
    fleet.break_down("gpu-03", "xid-79", ("reboot",))

    turn = loop.once()
    assert turn.problems == ("another controller acts on this cluster, or may",)
    assert turn.plan is not None
    assert turn.plan.actions
    assert not loop.ready(3600)
    assert (fleet.effects, loop.journal.entries()) == ([], [])

    fleet.sleep(601.0)
    loop.once()
    assert verbs(fleet, "gpu-03")[-1] == "uncordon"
    assert fleet.effects[0].time - fleet.taken >= 30, "a request of the one before may still be on its way for so long"
    assert loop.ready(3600)
    assert not other.held()


def test_a_server_that_cannot_say_whose_the_lock_is_is_told(fleet: Fleet) -> None:
    class Away(FleetLock):
        def held(self) -> bool:
            raise ExecutorError("connection refused")

    fleet.break_down("gpu-03", "xid-79", ("reboot",))
    turn = loop_on(fleet, lock=Away(fleet, "a")).once()

    assert turn.problems == ("whether this controller may act cannot be told: connection refused",)
    assert fleet.effects == []
