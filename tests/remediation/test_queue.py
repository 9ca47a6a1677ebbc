"""A yes is to exactly one plan, by somebody, once; several processes share the queue, and what it cannot read it does not do."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.fleets import NOW, fleet, node, trouble, work
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action, Plan, digest
from workbench.remediation.planner import make_plan
from workbench.remediation.proposing import note_down, parts, propose, undo_plan
from workbench.remediation.queue import NO_HOLDS, Proposal, Queue, QueueError, digest_of

VERBS = ("cordon", "collect", "evict", "reboot", "validate", "uncordon", "ticket", "page")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, clock: Clock) -> Queue:
    return Queue(tmp_path / "queue", clock=clock)


def plan(*names: str, at: float = NOW, **more: Any) -> Plan:
    """Return a plan for some nodes, each with work."""
    nodes = [node(name, work=(work(f"job-{name}"),), **more) for name in names]
    state = replace(fleet(*nodes), time=at)
    return make_plan([trouble(name, seen=at - 60, since=NOW - 60) for name in names], state, verbs=VERBS)


def proposed(queue: Queue, name: str = "gpu-001", **more: Any) -> Proposal:
    one = queue.propose(plan(name, **more), by="loop@a", source="loop")
    assert one is not None
    return one


def test_a_plan_waits_and_is_told_whole(queue: Queue, clock: Clock) -> None:
    made = plan("gpu-001")
    one = queue.propose(made, by="ada", reason="it fell off the bus")
    assert one is not None
    again = Queue(queue.root, clock=clock).get(made.id)

    assert again == one
    assert (again.state, again.plan, again.since, again.last.by, again.last.reason) == (
        "proposed",
        made,
        NOW,
        "ada",
        "it fell off the bus",
    )
    assert again.digest == digest_of("plan", made)


def test_a_yes_and_what_follows_is_written_with_who_and_why(queue: Queue) -> None:
    one = proposed(queue)
    queue.approve(one.id, one.digest, by="maria", reason="checked with the team")
    assert [each.id for each in queue.approved()] == [one.id]
    taken = queue.begin(one.id, by="loop@a")
    assert taken.plan == one.plan
    end = queue.end(one.id, "applied", by="loop@a", ended={"done": 6})

    assert [(event.state, event.by, event.reason) for event in end.events] == [
        ("proposed", "loop@a", ""),
        ("approved", "maria", "checked with the team"),
        ("applying", "loop@a", ""),
        ("applied", "loop@a", ""),
    ]
    assert end.last.data["ended"] == {"done": 6}
    assert queue.approved() == []


def test_a_no_needs_a_reason_and_ends_it(queue: Queue) -> None:
    one = proposed(queue)
    with pytest.raises(QueueError, match="needs a reason"):
        queue.reject(one.id, one.digest, by="maria", reason="  ")
    queue.reject(one.id, one.digest, by="maria", reason="a demo runs there until noon")
    for ask in (queue.approve, lambda *a, **k: queue.reject(*a, **k, reason="again")):
        with pytest.raises(QueueError, match="rejected by maria already"):
            ask(one.id, one.digest, by="otto")
    with pytest.raises(QueueError):
        queue.begin(one.id, by="loop@a")


def test_a_yes_can_be_taken_back_until_somebody_has_begun(queue: Queue) -> None:
    one = proposed(queue)
    queue.approve(one.id, one.digest, by="maria")
    queue.reject(one.id, one.digest, by="maria", reason="wrong node")
    with pytest.raises(QueueError):
        queue.begin(one.id, by="loop@a")

    other = proposed(queue, "gpu-002")
    queue.approve(other.id, other.digest, by="maria")
    queue.begin(other.id, by="loop@a")
    with pytest.raises(QueueError, match="applying"):
        queue.reject(other.id, other.digest, by="maria", reason="too late")


def test_what_a_controller_does_at_this_moment_is_decided(queue: Queue) -> None:
    """A second yes would have let a no follow that stops nothing: the node was rebooted although somebody had been told that it is not."""
    one = proposed(queue)
    queue.approve(one.id, one.digest, by="maria")
    queue.begin(one.id, by="loop@a")

    for ask in (queue.approve, lambda *a, **k: queue.reject(*a, **k, reason="wrong node")):
        with pytest.raises(QueueError, match="applying by loop@a already"):
            ask(one.id, one.digest, by="otto")
    assert queue.end(one.id, "applied", by="loop@a").state == "applied"


def test_a_yes_to_another_plan_than_the_one_that_was_shown_is_none(queue: Queue) -> None:
    one = proposed(queue)
    for seal in ("", digest_of("plan", plan("gpu-002")), digest_of("undo", one.plan)):
        with pytest.raises(QueueError, match="not the one that was shown"):
            queue.approve(one.id, seal, by="maria")
    assert queue.get(one.id).state == "proposed"


@pytest.mark.parametrize("when", ["before the yes", "after the yes"])
@pytest.mark.parametrize("how", ["an action", "resealed", "kind", "another plan"])
def test_a_plan_whose_file_was_changed_is_neither_approved_nor_done(when: str, how: str, queue: Queue) -> None:
    one = proposed(queue)
    if when == "after the yes":
        queue.approve(one.id, one.digest, by="maria")
    file = queue.root / f"{one.id}.plan.json"
    table = json.loads(file.read_text())
    if how == "an action":
        table["plan"]["actions"][0]["node"] = "gpu-009"
    elif how == "resealed":
        actions = (replace(one.plan.actions[0], node="gpu-009"), *one.plan.actions[1:])
        table["plan"] = replace(one.plan, actions=actions).to_dict()
    elif how == "another plan":
        table["plan"] = plan("gpu-002").to_dict()
    else:
        table["kind"] = "undo"
    file.write_text(json.dumps(table))

    assert queue.get(one.id).problem
    with pytest.raises(QueueError):
        queue.approve(one.id, one.digest, by="maria")
    with pytest.raises(QueueError, match="not executed"):
        queue.begin(one.id, by="loop@a")
    if when == "after the yes":
        assert queue.get(one.id).last.state == "refused"


def test_what_nobody_did_in_time_is_over(queue: Queue, clock: Clock) -> None:
    one, other = proposed(queue), proposed(queue, "gpu-002")
    queue.approve(one.id, one.digest, by="maria")
    clock.now = one.plan.expires

    assert {each.state for each in queue.proposals()} == {"expired"}
    with pytest.raises(QueueError, match="is expired"):
        queue.approve(other.id, other.digest, by="maria")
    with pytest.raises(QueueError, match="is expired"):
        queue.begin(one.id, by="loop@a")
    queue.expire(by="loop@a")
    assert [each.last.state for each in queue.proposals()] == ["expired", "expired"]
    clock.now = NOW
    assert {each.state for each in queue.proposals()} == {"expired"}, "a clock that is set back revives nothing"


def test_the_same_steps_in_the_same_world_are_asked_once(queue: Queue, clock: Clock) -> None:
    one = proposed(queue)
    clock.now += 60.0
    assert proposed(queue, at=NOW + 60.0).id == one.id
    assert len(queue.proposals()) == 1


def test_when_the_world_has_changed_a_newer_plan_takes_the_place_and_has_waited_as_long(queue: Queue, clock: Clock) -> None:
    one = proposed(queue)
    clock.now += 60.0
    newer = queue.propose(
        make_plan([trouble(seen=NOW)], fleet(node(work=(work("other"),))), verbs=VERBS), by="loop@a", source="loop"
    )
    assert newer is not None
    assert newer.id != one.id
    assert newer.since == NOW
    assert queue.get(one.id).state == "withdrawn"
    with pytest.raises(QueueError):
        queue.approve(one.id, one.digest, by="maria")


def test_a_plan_that_expired_waits_on_as_a_new_one(queue: Queue, clock: Clock) -> None:
    one = proposed(queue)
    clock.now = one.plan.expires + 1.0
    newer = proposed(queue, at=clock.now)
    assert newer.id != one.id
    assert newer.since == NOW
    assert newer.state == "proposed"


def test_a_no_holds_for_a_loop_and_not_for_a_person(queue: Queue, clock: Clock) -> None:
    one = proposed(queue)
    queue.reject(one.id, one.digest, by="maria", reason="not now")
    clock.now += 600.0
    later = plan("gpu-001", at=clock.now)
    assert queue.propose(later, by="loop@a", source="loop") is None
    by_hand = queue.propose(later, by="otto")
    assert by_hand is not None
    queue.reject(by_hand.id, by_hand.digest, by="maria", reason="not now")
    clock.now += NO_HOLDS + 1.0
    assert queue.propose(plan("gpu-001", at=clock.now), by="loop@a", source="loop") is not None


def test_a_plan_is_split_by_node_and_each_has_a_yes_of_its_own(queue: Queue) -> None:
    made = plan("gpu-001", "gpu-002")
    found = propose(queue, made, by="loop@a")

    assert [{action.node for action in one.plan.actions} for one in found] == [{"gpu-001"}, {"gpu-002"}]
    assert [one.node for each in found for one in each.plan.troubles] == ["gpu-001", "gpu-002"]
    assert {one.id for each in found for one in each.plan.actions} == {one.id for one in made.actions}
    assert parts(replace(made, actions=tuple(replace(one, approval="auto") for one in made.actions))) == []


def test_what_is_not_called_for_any_more_is_withdrawn_and_what_a_person_proposed_stays(queue: Queue) -> None:
    propose(queue, plan("gpu-001", "gpu-002"), by="loop@a")
    by_hand = queue.propose(plan("gpu-003"), by="otto")
    assert by_hand is not None
    propose(queue, plan("gpu-002"), by="loop@a")

    states = {one.plan.actions[0].node: one.state for one in queue.proposals()}
    assert states == {"gpu-001": "withdrawn", "gpu-002": "proposed", "gpu-003": "proposed"}


def test_while_a_yes_is_carried_out_its_node_is_not_asked_about_again(queue: Queue) -> None:
    (one,) = propose(queue, plan("gpu-001"), by="loop@a")
    queue.approve(one.id, one.digest, by="maria")
    queue.begin(one.id, by="loop@a")
    held = make_plan([trouble()], fleet(node(schedulable=False, owner="gpu-reliability-workbench")), verbs=VERBS)

    assert propose(queue, held, by="loop@a") == []
    assert [each.id for each in queue.proposals()] == [one.id]


def test_an_undo_is_a_proposal_of_its_own(queue: Queue) -> None:
    one = proposed(queue)
    back = undo_plan(one.plan.actions, now=NOW, why="it was the wrong node")
    assert {action.verb for action in back.actions} == {"cordon"}
    assert any("evict" in note for note in back.notes)
    undo = queue.propose(back, by="otto", kind="undo")
    assert undo is not None
    assert (undo.kind, undo.state) == ("undo", "proposed")
    assert undo.digest != digest_of("plan", back)
    with pytest.raises(QueueError, match="nothing of it"):
        undo_plan([action for action in one.plan.actions if not action.undo], now=NOW, why="")


def test_all_of_it_comes_into_the_journal_once(queue: Queue, tmp_path: Path, clock: Clock) -> None:
    one = proposed(queue)
    queue.approve(one.id, one.digest, by="maria", reason="yes")
    with Journal(tmp_path / "journal", clock=clock) as journal:
        assert note_down(queue, journal) == 2
        assert note_down(queue, journal) == 0
        other = Journal(tmp_path / "journal", clock=clock)
        queue.begin(one.id, by="loop@a")
        assert note_down(queue, other) == 0, "another process holds it"
    assert note_down(queue, other) == 1
    said = [(entry.detail, entry.node, entry.data["by"]) for entry in Journal(tmp_path / "journal").entries()]
    assert said == [
        (f"plan {one.id} proposed by loop@a", "gpu-001", "loop@a"),
        (f"plan {one.id} approved by maria: yes", "gpu-001", "maria"),
        (f"plan {one.id} applying by loop@a", "gpu-001", "loop@a"),
    ]


# files


def test_a_torn_last_line_is_an_event_that_never_was(queue: Queue) -> None:
    one = proposed(queue)
    queue.approve(one.id, one.digest, by="maria")
    file = queue.root / f"{one.id}.events.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])

    assert queue.get(one.id).state == "proposed"
    queue.reject(one.id, one.digest, by="otto", reason="no")
    assert [event.state for event in queue.get(one.id).events] == ["proposed", "rejected"]


@pytest.mark.parametrize("torn", [None, b"", b'3f1c88aa {"by": "loop@a", "da'])
def test_a_proposal_that_never_came_to_its_end_is_no_trouble_and_can_be_made_again(torn: bytes | None, queue: Queue) -> None:
    """Who died between the plan and its first line, or in the middle of that, has asked nobody anything."""
    one = proposed(queue)
    file = queue.root / f"{one.id}.events.jsonl"
    file.unlink()
    if torn is not None:
        file.write_bytes(torn)

    assert (queue.proposals(), queue.problems) == ([], [])
    with pytest.raises(QueueError, match="no event"):
        queue.approve(one.id, one.digest, by="maria")
    again = proposed(queue)
    assert (again.id, again.state, len(again.events)) == (one.id, "proposed", 1)


def test_what_has_not_changed_is_not_read_again_and_what_has_is(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller looks several times a minute, and what is over stays in the folder for good."""
    ids = [proposed(queue, f"gpu-{number:03}").id for number in range(1, 9)]
    for id in ids[2:]:
        queue.withdraw(id, by="loop@a", reason="over")
    before = queue.proposals()
    read: list[str] = []
    load = Plan.from_dict.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Plan, "from_dict", classmethod(lambda cls, value: (read.append(value["id"]), load(cls, value))[1]))

    assert queue.proposals() == before
    assert read == []
    other = Queue(queue.root, clock=lambda: NOW)
    other.approve(ids[0], other.get(ids[0]).digest, by="maria")
    read.clear()
    assert [one.id for one in queue.approved()] == [ids[0]]
    assert read == [], "more has happened to it, and it still is the plan that was read"
    file = queue.root / f"{ids[1]}.plan.json"
    file.write_text(file.read_text().replace("gpu-002", "gpu-009"))
    assert {one.id: bool(one.problem) for one in queue.proposals()}[ids[1]]


def test_a_line_that_somebody_changed_makes_the_plan_unusable_and_others_go_on(queue: Queue) -> None:
    one, other = proposed(queue), proposed(queue, "gpu-002")
    queue.approve(one.id, one.digest, by="maria")
    file = queue.root / f"{one.id}.events.jsonl"
    file.write_bytes(file.read_bytes().replace(b"maria", b"mario"))

    with pytest.raises(QueueError, match="line 2 is damaged"):
        queue.get(one.id)
    with pytest.raises(QueueError):
        queue.begin(one.id, by="loop@a")
    assert [each.id for each in queue.proposals()] == [other.id]
    assert len(queue.problems) == 1


@pytest.mark.parametrize("id", ["", "../x", "a/b", ".hidden", "x" * 200, "a\nb"])
def test_an_id_leads_to_no_other_file(id: str, queue: Queue) -> None:
    proposed(queue)
    for ask in (queue.get, lambda id: queue.approve(id, "d", by="x"), lambda id: queue.begin(id, by="x")):
        with pytest.raises(QueueError):
            ask(id)


def test_no_queue_is_an_empty_one_and_one_that_cannot_be_read_is_not(tmp_path: Path) -> None:
    assert Queue(tmp_path / "none").proposals() == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(QueueError, match="cannot be read"):
        Queue(tmp_path / "file").proposals()


def _decide(root: Path, id: str, seal: str, number: int, answers: Any) -> None:
    queue = Queue(root, clock=lambda: NOW)
    try:
        if number % 2:
            queue.approve(id, seal, by=f"user-{number}")
        else:
            queue.reject(id, seal, by=f"user-{number}", reason="no")
        answers.put(number)
    except QueueError:
        answers.put(None)


def test_of_many_processes_that_decide_at_once_the_answers_make_one_story(queue: Queue) -> None:
    """A no may follow a yes; nothing follows a no, and nobody says yes twice."""
    one = proposed(queue)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    workers = [context.Process(target=_decide, args=(queue.root, one.id, one.digest, number, answers)) for number in range(8)]
    for worker in workers:
        worker.start()
    said = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)

    states = [event.state for event in queue.get(one.id).events]
    assert states in (["proposed", "rejected"], ["proposed", "approved", "rejected"])
    assert len([each for each in said if each is not None]) == len(states) - 1


def test_a_process_that_is_killed_while_it_decides_leaves_the_plan_decided_or_not(queue: Queue) -> None:
    one = proposed(queue)
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom workbench.remediation import queue as q\n"
        "write = os.pwrite\n"
        "def torn(handle, line, at):\n    write(handle, line[:20], at); os._exit(9)\n"
        "q.os.pwrite = torn\n"
        f"q.Queue(Path(sys.argv[1]), clock=lambda: {NOW}).approve(sys.argv[2], sys.argv[3], by='maria')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(queue.root), one.id, one.digest], check=False, timeout=120)
    assert done.returncode == 9
    assert queue.get(one.id).state == "proposed"
    assert queue.approve(one.id, one.digest, by="otto").last.by == "otto"


def test_a_plan_without_steps_is_not_proposed(queue: Queue) -> None:
    empty = Plan(NOW, NOW + 60.0, id="empty")
    refused: list[Callable[[], object]] = [
        lambda: queue.propose(empty, by="x"),
        lambda: queue.propose(plan("gpu-001"), by="x", kind="other"),
        lambda: queue.propose(replace(plan("gpu-001"), id="../../etc"), by="x"),
    ]
    for ask in refused:
        with pytest.raises(QueueError, match="nothing to propose"):
            ask()
    assert digest([1]) != digest([2])
    assert Action("a", "cordon", "cordon", "n").approval == "person"
