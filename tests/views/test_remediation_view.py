"""The remediation page: what it shows of a plan, what it asks of who decides, and that log text in a plan stays text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import panel as pn
import pytest

from tests.remediation.fleets import fleet, node, trouble, work
from workbench.errors import WorkbenchError
from workbench.remediation.model import Evidence
from workbench.remediation.planner import make_plan
from workbench.remediation.proposing import propose
from workbench.remediation.queue import Queue
from workbench.serving.desk import Desk
from workbench.serving.roles import Roles
from workbench.views.remediation import RemediationView
from workbench.views.remediation_model import journal_frame, queue_frame

HOSTILE = "<script>alert(1)</script>\x1b[31m<img src=x onerror=alert(2)>"
VERBS = ("cordon", "collect", "evict", "reboot", "validate", "uncordon")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    now = time.time()
    desk = Desk(Queue(tmp_path / "queue"), tmp_path / "journal.jsonl", Roles(allow_approve=True))
    evidence = (Evidence("e1", "kernel", HOSTILE, now - 60),)
    nodes = [node(f"gpu-00{number}", work=(work(f"job-{number}", since=now - 9000, saved=now - 1800),)) for number in (1, 2)]
    wrong = [trouble(one.name, seen=now - 60, since=now - 60, evidence=evidence, summary=f"fell off {HOSTILE}") for one in nodes]
    propose(desk.queue, make_plan(wrong, replace(fleet(*nodes), time=now), verbs=VERBS), by="loop@a")
    desk.look()
    return desk


def shown(desk: Desk, **more: Any) -> tuple[RemediationView, list[tuple[Any, ...]]]:
    asked: list[tuple[Any, ...]] = []

    def decide(verb: str, ids: list[str], seal: str, reason: str) -> Any:
        asked.append((verb, ids, seal, reason))
        one = {"approve": desk.approve, "reject": desk.reject}[verb](None, ids[0], seal, reason)
        desk.look()
        return one

    return RemediationView(lambda: desk.sheet, decide, may=lambda: True, root="/q", **more), asked


def parts(view: RemediationView) -> str:
    return "".join([view._top.object, view._tabs.html, view._list.html, view._form.html, view._sheet.html, view._one.html])


def test_a_plan_shows_what_it_takes_away_what_it_costs_and_until_when(desk: Desk) -> None:
    view, _ = shown(desk)
    text = parts(view)
    one = desk.sheet.proposals[0]
    for word in ("1 task of job-1", ">256.0<", one.id, one.digest, "reboot", "May be begun until", "<b>2</b> plans wait"):
        assert word in text, word
    assert text.count('class="never"') == 2, "evict and reboot cannot be undone"


def test_hostile_text_of_a_plan_stays_text(desk: Desk) -> None:
    view, _ = shown(desk)
    text = parts(view)
    assert "<script>" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_yes_takes_two_steps_and_carries_the_digest_of_what_was_shown(desk: Desk) -> None:
    view, asked = shown(desk)
    one = desk.sheet.proposals[1]
    view.heard(f"plan={one.id}")
    assert "Approve…" in view._form.html
    view.heard("ask=approve")
    assert f'name="digest" value="{one.digest}"' in view._form.html
    assert "cannot be undone" in view._form.html
    view.heard(f"decide=approve&id={one.id}&digest={one.digest}&reason=looked")

    assert asked == [("approve", [one.id], one.digest, "looked")]
    assert "Approved." in view._form.html
    assert "Take the yes back" in view._form.html
    assert desk.queue.get(one.id).state == "approved"


def test_a_decision_that_is_refused_is_told_and_shown_as_it_is_now(desk: Desk) -> None:
    view, _ = shown(desk)
    one = desk.sheet.proposals[0]
    desk.queue.reject(one.id, one.digest, by="otto", reason="no")
    view.heard(f"decide=approve&id={one.id}&digest={one.digest}")
    assert "rejected by otto already" in view._form.html


@pytest.mark.parametrize(
    "asked", ["decide=delete&id=x", "decide=approve", "ask=rm", "show=%00", "plan=" + "x" * 9000, "nonsense", ""]
)
def test_what_a_browser_makes_up_is_no_error(asked: str, desk: Desk) -> None:
    view, _ = shown(desk)
    view.heard(asked)
    assert all(one.state == "proposed" for one in desk.queue.proposals())


def test_who_may_not_decide_sees_no_button_and_why(desk: Desk) -> None:
    view = RemediationView(lambda: desk.sheet, lambda *_: None, may=lambda: False, why_not="the role is missing")
    view.heard("ask=approve")
    text = parts(view)
    assert "<form" not in text
    assert "Approve…" not in text
    assert "the role is missing" in text


def test_an_error_of_the_server_is_no_page_that_waits_for_ever(desk: Desk) -> None:
    def fails(error: Exception) -> Callable[..., Any]:
        def decide(*_: Any) -> Any:
            raise error

        return decide

    for error, word in (
        (WorkbenchError("disk full", hint="free it"), "disk full (free it)"),
        (ValueError("secret"), "ValueError"),
    ):
        view = RemediationView(lambda: desk.sheet, fails(error), may=lambda: True)
        view.heard(f"decide=approve&id={desk.sheet.proposals[0].id}")
        assert word in view._form.html
        assert "secret" not in view._form.html
        assert "busy" not in view._form.html


def test_the_address_holds_the_page_and_a_wrong_one_is_told(desk: Desk) -> None:
    view, _ = shown(desk)
    one = desk.sheet.proposals[1]
    view.heard("show=all")
    view.heard(f"plan={one.id}")
    view.node = "gpu-00"
    state = view.state()
    assert state == {"plan": one.id, "show": "all", "node": "gpu-00"}
    other, _ = shown(desk)
    other.set_state(state)
    assert parts(other) == parts(view)
    other.set_state({"plan": "gone", "show": "nothing"})
    assert "There is no plan gone" in other._sheet.html
    assert "makes no sense" in other._top.object


def test_an_empty_queue_says_what_fills_it(tmp_path: Path) -> None:
    desk = Desk(Queue(tmp_path / "queue"), tmp_path / "journal.jsonl")
    desk.look()
    view, _ = shown(desk)
    assert "No plan waits for a yes" in view._list.html
    assert "workbench plan --queue" in view._list.html
    assert view._layout.select(pn.widgets.Tabulator), "its scripts must be on the page before the journal has a row"


def test_the_exports_hold_all_of_it(desk: Desk) -> None:
    frame = queue_frame(desk.sheet.proposals)
    assert list(frame["nodes"]) == ["gpu-001", "gpu-002"]
    assert list(frame["cannot_be_undone"]) == ["evict reboot", "evict reboot"]
    assert str(frame["expires"].dtype) == "datetime64[us, UTC]"
    empty = journal_frame([], 7)
    assert (len(empty), empty.attrs["left_out"]) == (0, 7)
    assert len(queue_frame([])) == 0


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Panel (1.9.4) sorts so
def test_a_link_holds_how_the_journal_is_sorted(desk: Desk) -> None:
    view, _ = shown(desk)
    view._table.tabulator.sorters = [{"field": "node", "dir": "asc"}]
    assert view.state()["tables"] == "journal=sort%3Dnode"

    other, _ = shown(desk)
    other.set_state(view.state())
    assert other._table.tabulator.sorters == [{"field": "node", "dir": "asc"}]
    assert other.state() == view.state()
