"""How long ago we did something is not what the clock says that somebody has set: caps, cool-downs and tries hold."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.site import Site, ends
from workbench.remediation.guards import Standing
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action, FleetState, NodeState
from workbench.remediation.moments import Moment, Moments, this_machine
from workbench.remediation.policy import Limits, Policy

CORDON = Action("a1", "cordon", "cordon", "n0", trouble="t")
OTHER = Action("a2", "cordon", "cordon", "n1", trouble="t")
TIGHT = Policy(limits=Limits(hour_count=1, out_count=9, out_percent=100, pool_count=9, pool_percent=100, keep=0, keep_percent=0))


class Clocks:
    """A wall clock that somebody sets, and a steady one that ends with each boot."""

    def __init__(self) -> None:
        self.now, self.skew, self.boot, self.began = 0.0, 0.0, "boot-1", 0.0

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now + self.skew

    def steady(self) -> tuple[float, str]:
        return self.now - self.began, self.boot

    def reboot(self) -> None:
        self.boot, self.began = f"{self.boot}+", self.now


def journal_of(clocks: Clocks, path: Path | None = None) -> Journal:
    return Journal(path, clock=clocks.wall, steady=clocks.steady)


def done(journal: Journal, action: Action = CORDON) -> None:
    journal.intent(action, "p", {})
    journal.outcome(action, "p", "done")


def refused(journal: Journal, clocks: Clocks) -> str:
    """Return which guard refuses one more cordon now."""
    fleet = FleetState(clocks.wall(), {name: NodeState(name) for name in ("n0", "n1", "n2")})
    standing = Standing(fleet, TIGHT, clocks.wall(), journal.past())
    refusal = standing.check(OTHER, fleet.nodes["n1"], None)
    return refusal.guard if refusal else ""


@pytest.mark.parametrize("jump", [0.0, 2 * 3600.0, 400 * 86400.0, -2 * 3600.0, -400 * 86400.0])
def test_an_hourly_cap_is_renewed_by_an_hour_and_by_no_clock_that_is_set(jump: float, tmp_path: Path) -> None:
    clocks = Clocks()
    path = tmp_path / "journal.jsonl"
    with journal_of(clocks, path) as journal:
        done(journal)
    clocks.now += 600.0
    clocks.skew += jump
    journal = journal_of(clocks, path)  # another process
    assert refused(journal, clocks) == "cap-hour"

    clocks.now += 2990.0
    assert refused(journal, clocks) == "cap-hour"
    clocks.now += 20.0
    assert refused(journal, clocks) == ""


def test_what_was_done_on_both_sides_of_a_jump_is_as_old_as_it_is() -> None:
    clocks = Clocks()
    journal = journal_of(clocks)
    done(journal)
    clocks.now, clocks.skew = 100.0, 7200.0
    done(journal, OTHER)
    clocks.now, clocks.skew = 160.0, -300.0

    assert [round(journal.age(one)) for one in journal.entries()] == [160, 160, 60, 60]
    assert [round(clocks.wall() - one.time) for one in journal.past()] == [160, 160, 60, 60]
    assert [one.seq for one in journal.past()] == [1, 2, 3, 4]
    assert [one.action for one in journal.actions_since(clocks.wall() - 70.0)] == ["a2"]


def test_a_clock_that_nobody_set_changes_no_time() -> None:
    clocks = Clocks()
    journal = journal_of(clocks)
    for step in range(50):
        done(journal, Action(f"a{step}", "cordon", "cordon", "n0"))
        clocks.now += 100.0
        clocks.skew += 0.01  # as NTP slews

    assert journal.past() == journal.entries()


def test_across_boots_the_clock_is_believed_forwards_and_never_backwards() -> None:
    clocks = Clocks()
    journal = journal_of(clocks)
    done(journal)
    clocks.now += 5 * 3600.0  # switched off over night
    clocks.reboot()
    assert refused(journal, clocks) == ""

    done(journal, OTHER)
    clocks.now += 60.0
    clocks.reboot()
    clocks.skew -= 86400.0  # a battery is empty
    last = journal.entries()[-1]
    assert journal.age(last) == 0.0
    assert refused(journal, clocks) == "", "the node itself does not count against itself"
    assert set(Standing(FleetState(clocks.wall(), {}), TIGHT, clocks.wall(), journal.past()).lately(("cordon",))) == {"a2"}


def test_a_journal_of_before_counts_by_its_wall_times(tmp_path: Path) -> None:
    clocks = Clocks()
    with Journal(tmp_path / "old", clock=clocks.wall) as journal:
        done(journal)
    lines = (tmp_path / "old").read_text().splitlines()
    assert all(json.loads(one)["steady"] is None for one in lines)
    clocks.now += 1800.0
    assert refused(journal_of(clocks, tmp_path / "old"), clocks) == "cap-hour"
    clocks.now += 1801.0
    assert refused(journal_of(clocks, tmp_path / "old"), clocks) == ""


def test_a_journal_of_this_machine_has_the_clock_that_all_its_processes_share(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        entry = journal.note("here")
    seconds, base = this_machine()
    assert entry.base == base
    assert entry.steady is not None
    assert 0 <= seconds - entry.steady < 60
    assert Journal(tmp_path / "journal").age(entry) < 60
    assert abs(entry.time - time.time()) < 60


def test_moments_of_two_clocks_are_compared_by_the_wall_alone() -> None:
    one, two = Moment(100.0, 5.0, "a"), Moment(130.0, 900.0, "b")
    assert one.until(two) == 30.0
    assert two.until(one) == 0.0
    assert Moment(0.0, 5.0, "a").until(Moment(9e9, 7.0, "a")) == 2.0
    assert list(Moments().shifts(one)) == []


def test_a_plan_does_not_live_longer_because_the_clock_was_set_back() -> None:
    site = Site()
    actions = [*site.chain("n0", ("cordon", "evict")), *site.chain("n1", ("cordon",))]
    plan = site.plan(*actions, lives=900.0)

    def tell(one: Any) -> None:
        if one.action.id == "n0-cordon":
            site.fleet.jump(-86400.0)
            # what comes after a step has that step's time in addition
            site.fleet.sleep(900.0 + one.action.deadline)

    outcomes = site.apply(plan=plan, tell=tell)

    assert ends(outcomes)[0] == "cordon done"
    assert [(one.status, one.guard) for one in outcomes[1:]] == [("refused", "expired")] * 2


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_what_was_begun_has_the_time_that_it_had_whatever_the_clock_says(jump: float) -> None:
    site = Site()
    site.journal = Journal(None, clock=site.fleet.clock, steady=lambda: (site.fleet.steady(), "here"))
    site.fleet.nodes["n0"].boot_takes = 500.0
    plan = site.plan(*site.chain("n0", ("reboot",), deadline=900.0))
    assert ends(site.apply(plan=plan, wait=60.0)) == ["reboot open"]
    site.fleet.jump(jump)

    assert ends(site.resume(wait=100.0)) == ["reboot open"], "its deadline is not over"
    assert ends(site.resume()) == ["reboot done"]
