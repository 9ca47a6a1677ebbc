"""Who was told of an incident hears once that somebody has it, when a site wants that, also over failures of the way and of ourselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.inbox.conftest import World, crash_at, lines, sign
from workbench.inbox.notify import slack_payload
from workbench.testing import Crash


@pytest.fixture
def told(world: World) -> World:
    """A world in which people were told of one failure."""
    world.states = True
    world.scheduler.show(sign(time=world.now, nodes=("gpu-1",), user="ann"))
    world.run(60)
    assert len(world.bell.rung) == 1
    return world


def mark(world: World, state: str, by: str = "ann", note: str = "") -> str:
    """Set the state of the one entry."""
    world.now += 5
    id = world.inbox.entries()[0].id
    world.inbox.set_state(id, state, by=by, note=note)
    return id


def test_who_has_it_and_why_is_told_once(told: World) -> None:
    id = mark(told, "acknowledged", "ann", "looking at the switch")
    told.run(3600)
    (_, note) = told.bell.rung

    assert note.kind == "state"
    assert len(note.lines) == 5
    assert note.lines[0].startswith("Acknowledged: train, by ann, 20")
    assert note.lines[1] == "Why: looking at the switch"
    assert note.lines[4] == f"https://wb.example/incident?id={id}"
    assert note.entry["state"] == "acknowledged"

    mark(told, "resolved", "otto")
    told.run(60)
    assert lines(told.bell.rung)[2].startswith("Resolved: train, by otto")
    assert len({note.key for note in told.bell.rung}) == 3


def test_it_is_told_only_where_a_site_wants_it_and_not_long_afterwards(told: World) -> None:
    told.states = False
    mark(told, "acknowledged")
    told.run(300)
    told.states = True
    told.now += 2 * 86400
    told.run(60)

    assert len(told.bell.rung) == 1


def test_a_state_set_before_anybody_was_told_of_the_incident_is_no_message_of_its_own(world: World) -> None:
    world.states, world.bell.down = True, 3
    world.scheduler.show(sign(time=world.now))
    world.run(30)
    mark(world, "acknowledged")
    world.run(900)

    assert [note.kind for note in world.bell.rung] == ["incident"]


def test_a_way_that_is_down_is_told_later(told: World) -> None:
    told.bell.down = 2
    mark(told, "muted", note="a known thing")
    told.run(600)

    assert [note.kind for note in told.bell.rung] == ["incident", "state"]


def test_another_verdict_afterwards_is_told_and_the_state_not_again(told: World) -> None:
    id = mark(told, "acknowledged")
    told.run(60)
    told.inbox.change(id, lambda entry: replace(entry, node="gpu-2"))
    told.run(60)

    assert [note.kind for note in told.bell.rung] == ["incident", "state", "changed"]


@pytest.mark.parametrize("point", range(1, 12))
def test_a_crash_anywhere_loses_no_state_and_tells_it_at_most_once_more(told: World, point: int) -> None:
    mark(told, "acknowledged")
    told.step = crash_at(point)
    try:
        told.run(60)
    except Crash:
        pass
    told.step = lambda _: None
    told.run(600)
    kinds = [note.kind for note in told.bell.rung]

    assert kinds[0] == "incident"
    assert kinds[1:] in (["state"], ["state", "state"])
    if len(kinds) == 3:
        assert "sent again" in told.bell.rung[2].lines[0]


def test_a_hostile_reason_calls_nobody(told: World) -> None:
    mark(told, "closed", by="<!channel>", note="<!here> https://evil.example\n\x1b[31mred token=abcdef0123456789abcdef")
    told.run(60)
    payload = slack_payload(told.bell.rung[1])

    assert "<!" not in payload["text"].rpartition("\n")[0]
    assert "\x1b" not in payload["text"]
    assert "abcdef0123456789" not in payload["text"]
    assert len(told.bell.rung[1].lines) == 5
