"""What the loop may not do alone it proposes; what a person has said yes to it does, exactly and once, unless something came in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remediation.test_loop import ANYTHING, checker, loop_on
from workbench.remediation.journal import Journal
from workbench.remediation.loop import Loop
from workbench.remediation.model import OWNER
from workbench.remediation.policy import Policy
from workbench.remediation.proposing import undo_plan
from workbench.remediation.queue import Proposal, Queue
from workbench.testing.fleet import Crash, Fleet
from workbench.testing.fleet_executor import FleetExecutor


class Site:
    """A fleet with a sick node and a loop that may do nothing alone."""

    def __init__(self, folder: Path, **policy: object) -> None:
        self.fleet = fleet = Fleet(seed=1)
        for number in range(40):
            fleet.add(f"gpu-{number:02}", pool="h100", claim=f"claim-{number}")
        fleet.run("gpu-07", "ml/train-0", job="train", gpus=8)
        fleet.break_down("gpu-07", "xid-79", mended_by=("reboot",))
        self.stop = folder / "stop"
        self.queue = Queue(folder / "queue", clock=fleet.clock)
        self.journal = Journal(None, clock=fleet.clock, by="loop@a")
        self.policy = Policy(stop_file=str(self.stop), **policy)  # type: ignore[arg-type]
        self.loop = self.another()

    def another(self) -> Loop:
        return loop_on(self.fleet, self.journal, self.policy, queue=self.queue)

    def asked(self) -> Proposal:
        """Let the loop make a turn, and return what it asks."""
        self.loop.once()
        waiting = [one for one in self.queue.proposals() if one.state == "proposed"]
        assert len(waiting) == 1, waiting
        return waiting[0]

    def yes(self) -> Proposal:
        one = self.asked()
        return self.queue.approve(one.id, one.digest, by="maria", reason="go")

    def did(self) -> list[str]:
        return [one.verb for one in self.fleet.effects if one.verb != "page"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_needs_a_person_is_proposed_and_not_done(site: Site) -> None:
    one = site.asked()
    assert [action.verb for action in one.plan.actions] == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert (one.last.by, one.plan.actions[2].blast.jobs) == ("loop@a", ("train",))
    for _ in range(3):
        site.fleet.sleep(60)
        assert site.asked().id == one.id
    assert site.did() == []
    assert "workbench_remediation_plans_waiting 1\n" in site.loop.metrics()


def test_exactly_the_plan_that_was_approved_is_done_once(site: Site) -> None:
    one = site.yes()
    site.fleet.sleep(60)
    site.loop.once()

    assert site.did() == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert {effect.action for effect in site.fleet.effects} == {action.id for action in one.plan.actions}
    done = site.queue.get(one.id)
    assert (done.state, done.last.by, done.last.data["ended"]) == ("applied", "loop@a", {"done": 6})
    for _ in range(3):
        site.fleet.sleep(60)
        site.loop.once()
    assert len(site.fleet.effects) == 6
    notes = [entry.detail for entry in site.journal.entries() if entry.kind == "note" and entry.plan == one.id]
    assert [note.split(" ", 2)[2] for note in notes] == [
        "proposed by loop@a", "approved by maria: go", "applying by loop@a", "applied by loop@a",
    ]  # fmt: skip


def test_a_policy_that_does_not_propose_leaves_the_queue_empty(tmp_path: Path) -> None:
    site = Site(tmp_path, propose=False)
    site.loop.once()
    assert site.queue.proposals() == []


def test_what_the_policy_allows_is_done_and_not_asked(tmp_path: Path) -> None:
    site = Site(tmp_path, auto=ANYTHING.auto)
    site.loop.once()
    assert site.did() == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert site.queue.proposals() == []


def test_a_yes_from_before_the_kill_switch_does_not_outlive_it(site: Site) -> None:
    one = site.yes()
    site.stop.write_text("INC-7: hands off\n")
    site.loop.once()
    assert (site.did(), site.queue.get(one.id).state) == ([], "refused")
    assert "hands off" in site.queue.get(one.id).last.reason

    site.stop.unlink()
    site.fleet.sleep(60)
    again = site.asked()
    assert site.did() == []
    assert again.id != one.id


def test_a_yes_that_nobody_used_in_time_is_over(site: Site) -> None:
    one = site.yes()
    site.fleet.sleep(one.plan.expires - site.fleet.clock() + 1)
    again = site.asked()
    assert site.did() == []
    assert site.queue.get(one.id).last.state == "expired"
    assert again.id != one.id


def test_what_was_begun_in_time_is_brought_to_its_end_though_the_plan_expires_meanwhile(site: Site) -> None:
    """A drain takes longer than a plan lives: the node must not be left empty and half mended until somebody says yes once more."""
    site.fleet.nodes["gpu-07"].work.clear()
    site.fleet.run("gpu-07", "ml/train-0", job="train", gpus=8, grace=3000.0)
    one = site.yes()
    site.fleet.sleep(one.plan.expires - site.fleet.clock() - 60)
    while site.fleet.nodes["gpu-07"].faults or site.fleet.nodes["gpu-07"].owner:
        site.loop.once(wait=60.0)
        site.fleet.sleep(60)
        assert site.fleet.clock() < one.plan.expires + 7200

    assert site.did() == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert {effect.action for effect in site.fleet.effects} == {action.id for action in one.plan.actions}
    assert site.fleet.effects[3].wall > one.plan.expires + 1200
    assert (site.queue.get(one.id).state, site.queue.get(one.id).last.data["ended"]["done"]) == ("applied", 6)


@pytest.mark.parametrize("change", ["another machine", "another boot", "others have it", "other work"])
def test_a_yes_to_a_world_that_is_not_there_any_more_does_nothing(change: str, site: Site) -> None:
    one = site.yes()
    if change == "another machine":
        site.fleet.hand("gpu-07", "delete")
        site.fleet.sleep(200)
    elif change == "another boot":
        site.fleet.hand("gpu-07", "reboot")
        site.fleet.sleep(300)
    elif change == "others have it":
        site.fleet.hand("gpu-07", "cordon", "alice")
    else:
        site.fleet.nodes["gpu-07"].work.clear()
        site.fleet.run("gpu-07", "ml/another", job="another", gpus=8)
    site.loop.once()

    # a cordon looks at no work, and may stand; nothing that ends work is done
    assert site.did() in ([], ["cordon", "collect"])
    ended = site.queue.get(one.id)
    assert ended.state == ("applied" if site.did() else "refused")
    assert "world" in ended.last.reason or "foreign" in ended.last.reason


def test_what_takes_long_goes_on_in_later_turns_and_ends_as_one(site: Site) -> None:
    site.fleet.nodes["gpu-07"].boot_takes = 500.0
    one = site.yes()
    site.loop.once(wait=60.0)
    assert (site.did()[-1], site.queue.get(one.id).state) == ("reboot", "applying")
    for _ in range(12):
        site.fleet.sleep(60)
        site.loop.once(wait=60.0)
    assert site.did() == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert site.queue.get(one.id).state == "applied"
    assert len(site.queue.proposals()) == 1, "its node is not asked about while a yes is carried out"


@pytest.mark.parametrize("fault", ["crash-before", "crash-after", "crash-late"])
@pytest.mark.parametrize("verb", ["cordon", "evict", "reboot", "uncordon"])
def test_a_controller_that_dies_in_the_middle_leaves_a_plan_that_the_next_one_ends(fault: str, verb: str, site: Site) -> None:
    one = site.yes()
    site.fleet.fault = lambda call: fault if call == f"begin {verb}" else ""
    with pytest.raises(Crash):
        site.loop.once()
    assert site.queue.get(one.id).state == "applying"
    site.fleet.fault = None
    site.loop = site.another()
    for _ in range(3):
        site.fleet.sleep(30)
        site.loop.once()

    assert site.did() == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert site.queue.get(one.id).state == "applied"
    assert all(one.repeats == 0 for one in site.fleet.operations.values())


def test_of_an_undo_what_still_is_ours_is_taken_back_after_a_yes(site: Site) -> None:
    site.fleet.nodes["gpu-07"].faults.clear()
    site.fleet.break_down("gpu-07", "xid-79", mended_by=())  # so the check fails and it stays cordoned
    site.yes()
    site.loop.once()
    assert site.fleet.nodes["gpu-07"].owner == OWNER
    begun = [entry.intended() for entry in site.journal.entries() if entry.kind == "intent"]
    back = undo_plan([one for one in begun if one is not None], now=site.fleet.clock(), why="wrong node")
    undo = site.queue.propose(back, by="otto", kind="undo")
    assert undo is not None
    site.loop.once()
    assert site.fleet.nodes["gpu-07"].owner == OWNER, "nobody has said yes"

    site.queue.approve(undo.id, undo.digest, by="maria")
    site.loop.once()
    assert site.fleet.nodes["gpu-07"].schedulable
    assert (site.queue.get(undo.id).state, site.queue.get(undo.id).last.data["ended"]) == ("applied", {"undone": 1})


def test_a_queue_that_cannot_be_read_is_told_and_stops_nothing_else(tmp_path: Path) -> None:
    site = Site(tmp_path, auto=ANYTHING.auto)
    (tmp_path / "queue").write_text("no folder")
    turn = site.loop.once()
    assert any("queue" in one for one in turn.problems)
    assert site.did()[-1] == "uncordon"


def test_a_proposal_whose_file_was_changed_is_not_done(site: Site) -> None:
    one = site.yes()
    file = site.queue.root / f"{one.id}.plan.json"
    file.write_text(file.read_text().replace("gpu-07", "gpu-08"))
    turn = site.loop.once()
    assert site.did() == []
    assert any("not executed" in problem for problem in turn.problems)


def test_a_node_that_is_well_again_is_not_asked_about(site: Site) -> None:
    one = site.asked()
    site.fleet.nodes["gpu-07"].faults.clear()
    site.loop.once()
    assert site.queue.get(one.id).state == "withdrawn"
    assert checker(site.fleet)(site.fleet.clock())[0] == []
    assert isinstance(site.loop.executor, FleetExecutor)


def test_a_controller_that_is_stopped_in_the_middle_leaves_the_rest_of_the_plan_to_the_next_one(site: Site) -> None:
    """An update of the controller is no reason to leave a node cordoned until somebody says yes a second time."""
    one = site.yes()
    ended: list[str] = []
    site.loop.stop = lambda: "collect" in site.did()
    site.loop.tell = lambda outcome: ended.append(outcome.status)
    site.loop.once()
    assert site.did() == ["cordon", "collect"]
    assert site.queue.get(one.id).state == "applying"

    site.another().once()
    assert site.did() == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert site.queue.get(one.id).state == "applied"
