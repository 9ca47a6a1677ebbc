"""The desk: what sessions see of queue and journal, and that only who may decide decides, whatever he was shown."""

from __future__ import annotations

import time
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import pytest

from tests.remediation.test_queue import plan
from workbench.errors import ConfigError
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action
from workbench.remediation.proposing import note_down
from workbench.remediation.queue import Proposal, Queue, QueueError
from workbench.remediation.words import OWNER
from workbench.serving.desk import Desk
from workbench.serving.desk_demo import demo_desk
from workbench.serving.roles import Roles
from workbench.serving.site import Forbidden
from workbench.site.demo import Demo

PEOPLE = MappingProxyType({"maria": "approver", "otto": "reader"})
OPEN = Roles(PEOPLE, allow_approve=True, login=True)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Queue(tmp_path / "queue"), tmp_path / "journal.jsonl", OPEN)


def waits(desk: Desk, name: str = "gpu-001") -> Proposal:
    one = desk.queue.propose(plan(name, at=time.time()), by="loop@a", source="loop")
    assert one is not None
    return one


def test_who_has_the_role_decides_and_it_is_written_with_the_name(desk: Desk) -> None:
    one, other = waits(desk), waits(desk, "gpu-002")
    assert desk.approve("maria", one.id, one.digest, "looked at it").last.by == "maria"
    assert desk.reject("maria", other.id, other.digest, "a demo").state == "rejected"

    said = [(row["verb"], row["by"], row["detail"]) for row in desk.look().acts]
    assert said == [
        ("plan rejected", "maria", "a demo"),
        ("plan approved", "maria", "looked at it"),
        ("plan proposed", "loop@a", ""),
        ("plan proposed", "loop@a", ""),
    ]


@pytest.mark.parametrize(
    ("roles", "user"),
    [
        (OPEN, "otto"),
        (OPEN, "eve"),
        (OPEN, None),
        (OPEN, ""),
        (Roles(PEOPLE, allow_approve=False, login=True), "maria"),
        (Roles(), None),
        (Roles(), "maria"),
    ],
)
def test_who_may_not_decide_changes_nothing_whatever_he_sends(desk: Desk, roles: Roles, user: str | None) -> None:
    desk.roles = roles
    one = waits(desk)
    assert not desk.may(user)
    for ask in (
        lambda: desk.approve(user, one.id, one.digest, "x"),
        lambda: desk.reject(user, one.id, one.digest, "x"),
        lambda: desk.undo(user, ["a"], "x"),
    ):
        with pytest.raises(Forbidden):
            ask()
    assert desk.queue.get(one.id).state == "proposed"
    assert not desk.journal.exists()
    assert roles.why_not(user)


def test_without_login_the_one_who_started_it_may_when_he_said_so(desk: Desk) -> None:
    desk.roles = Roles(allow_approve=True)
    one = waits(desk)
    assert desk.approve(None, one.id, one.digest).last.by == "who started the dashboard"
    assert desk.roles.why_not(None) == ""


def test_a_yes_to_what_was_not_shown_is_refused(desk: Desk) -> None:
    one = waits(desk)
    with pytest.raises(QueueError, match="not the one that was shown"):
        desk.approve("maria", one.id, "0" * 32)


def test_a_decision_stands_although_a_controller_holds_the_journal_which_writes_it_later(desk: Desk) -> None:
    one = waits(desk)
    with Journal(desk.journal) as held:
        held.note("the loop runs")
        desk.approve("maria", one.id, one.digest)
        assert desk.queue.get(one.id).state == "approved"
        assert note_down(desk.queue, held) == 2


def test_an_undo_is_proposed_and_waits_for_a_yes_of_its_own(desk: Desk) -> None:
    cordon = Action("c1", "cordon", "cordon", "gpu-001", "gpu-001", undo="uncordon")
    reboot = Action("r1", "reboot", "reboot-node", "gpu-001", "gpu-001")
    with Journal(desk.journal) as journal:
        for action in (cordon, reboot):
            journal.intent(action, "p1", {})
            journal.outcome(action, "p1", "done")
    rows = {row["action"]: row["undo"] for row in desk.look().acts}
    assert rows == {"c1": True, "r1": False}

    one = desk.undo("maria", ["c1", "r1", "nothing"], "wrong node")
    assert (one.kind, one.state, [action.id for action in one.plan.actions]) == ("undo", "proposed", ["c1"])
    with pytest.raises(QueueError):
        desk.undo("maria", ["r1"], "x")


def test_the_journal_is_shown_newest_first_with_each_try_and_how_it_ended(desk: Desk) -> None:
    cordon = Action("c1", "cordon", "cordon", "gpu-001", undo="uncordon")
    with Journal(desk.journal, by="loop@a") as journal:
        journal.intent(cordon, "p1", {})
        journal.outcome(cordon, "p1", "done", "ok")
        journal.intent(cordon, "p1", {}, undo=True)
        journal.outcome(cordon, "p1", "undone")
        journal.outcome(Action("x", "reboot", "reboot-node", "gpu-002"), "p1", "refused", "world: it changed")
        journal.intent(Action("y", "drain", "evacuate", "gpu-003"), "p2", {})
        journal.note("looked at", node="gpu-004")

    rows = [(row["verb"], row["node"], row["status"], row["detail"], row["undo"]) for row in desk.look().acts]
    assert rows == [
        ("note", "gpu-004", "", "looked at", False),
        ("drain", "gpu-003", "open", "", False),
        ("reboot", "gpu-002", "refused", "world: it changed", False),
        ("uncordon", "gpu-001", "undone", "", False),
        ("cordon", "gpu-001", "done", "ok", False),
    ]


def test_what_cannot_be_read_is_told_and_what_was_seen_stays(desk: Desk) -> None:
    one = waits(desk)
    before = desk.look()
    (desk.queue.root / f"{one.id}.events.jsonl").write_bytes(b"x\n")
    desk.journal.write_text("no journal\n")
    after = desk.look()

    assert after.version == before.version + 1
    assert after.proposals == ()
    assert len(after.problems) == 2
    assert desk.look().version == after.version, "nothing new"


def test_a_desk_sees_what_another_process_does(desk: Desk) -> None:
    desk.period = 0.05
    desk.start()
    try:
        one = waits(desk)
        until = time.monotonic() + 30
        while not desk.sheet.proposals:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert desk.sheet.proposals[0].id == one.id
    finally:
        desk.stop()


def test_two_demonstrations_do_not_play_in_one_folder(tmp_path: Path) -> None:
    """They would do each other's plans; the second says so before it writes anything, and one that ended makes room."""
    first = demo_desk(tmp_path / "remediation", OPEN, gpus=128)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="another demonstration plays in"):
        demo_desk(tmp_path / "remediation", OPEN, gpus=128)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    first.stop()

    again = demo_desk(tmp_path / "remediation", OPEN, gpus=128)
    assert len(again.sheet.acts) > len(first.sheet.acts)
    again.stop()


def test_fleet_and_queue_of_the_demonstration_tell_one_story(tmp_path: Path) -> None:
    """Every node in the queue and the journal is one of the fleet, with the trouble that the plan names; what a yes mends is well there, too."""
    stage = demo_desk(tmp_path / "remediation", OPEN, gpus=1024)
    try:
        before = Demo(1024, played=stage.played)()
        waiting = [one for one in stage.sheet.proposals if one.state == "proposed"]
        asked = {action.node for one in waiting for action in one.plan.actions}
        done = {act["node"] for act in stage.sheet.acts if act["action"]}
        assert asked
        assert done
        assert asked | done <= set(before.nodes["node"])
        assert asked <= set(before.findings.loc[before.findings["status"] != "ok", "node"])
        held = set(before.nodes.loc[before.nodes["held_by"].eq(OWNER), "node"])
        assert held
        assert held <= done
        recent = before.actions[before.actions["time"] > before.actions["time"].max() - pd.Timedelta(hours=12)]
        assert set(recent["node"]) == done

        one = next(one for one in waiting if any(action.verb == "reset-gpu" for action in one.plan.actions))
        (name,) = {action.node for action in one.plan.actions}
        done_before = stage.played().mended
        stage.approve("maria", one.id, one.digest)
        until = time.monotonic() + 60
        while name not in {node for node, _ in stage.played().mended - done_before}:
            assert time.monotonic() < until
            time.sleep(0.05)

        after = Demo(1024, played=stage.played)()
        assert set(before.nodes.loc[before.nodes["node"] == name, "health"]) <= {"critical", "warning"}
        assert list(after.nodes.loc[after.nodes["node"] == name, "health"]) == ["ok"]
        assert (after.actions["node"] == name).sum() > (before.actions["node"] == name).sum()
    finally:
        stage.stop()
