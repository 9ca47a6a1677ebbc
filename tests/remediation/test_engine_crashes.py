"""The engine when answers are lost, deadlines pass, the controller dies or the disk is full; and what is taken back."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.remediation.site import REPAIR, Site, ends
from workbench.errors import WorkbenchError
from workbench.remediation import engine
from workbench.remediation.journal import Journal, JournalError
from workbench.remediation.model import OWNER, Action, NodeState, Refusal, Step
from workbench.testing.fleet import Crash


@pytest.fixture
def site() -> Site:
    return Site()


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
