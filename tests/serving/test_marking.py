"""The state of an incident from its page: who may set it, that the inbox has it with his name, and that nobody overrides what he did not see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from workbench.inbox.store import Inbox, InboxError
from workbench.serving.board import Board
from workbench.serving.marking import Marking
from workbench.serving.roles import Roles
from workbench.serving.site import Forbidden, Site
from workbench.views.incident_state import MEANINGS, StateBar

PEOPLE = MappingProxyType({"maria": "approver", "otto": "reader"})
OPEN = Roles(PEOPLE, allow_approve=True, login=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    Inbox(tmp_path).add(id="a", summary="GPU 3 fell off the bus")
    site = Site(Inbox(tmp_path), Board(Inbox(tmp_path)), roles=OPEN)
    site.board.look()
    return site


def bar_of(mark: Marking) -> StateBar:
    return StateBar(mark.entry, mark.decide, may=mark.may, why_not=mark.why_not())


def test_who_has_the_role_sets_the_state_and_the_history_has_his_name_and_why(site: Site) -> None:
    bar = bar_of(Marking(site, "a", "maria"))
    assert "<form" in bar._surface.html

    bar.heard("state=acknowledged&seen=new&note=the+rack+is+open")

    last = site.inbox.history("a")[-1]
    assert {key: last[key] for key in ("what", "from", "state", "by", "note")} == {
        "what": "state", "from": "new", "state": "acknowledged", "by": "maria", "note": "the rack is open",
    }  # fmt: skip
    # the process has not looked again yet, and the page shows it all the same
    assert "acknowledged</b>" in bar._surface.html
    assert "the rack is open" in bar._surface.html
    assert "maria" in bar._surface.html


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
def test_who_may_not_changes_nothing_whatever_his_browser_sends(site: Site, roles: Roles, user: str | None) -> None:
    site.roles = roles
    mark = Marking(site, "a", user)
    bar = bar_of(mark)
    assert "<form" not in bar._surface.html
    assert mark.why_not()

    bar.heard("state=closed&seen=new&note=forged")
    with pytest.raises(Forbidden):
        mark.decide("closed", "forged", "new")

    assert site.inbox.get("a").state == "new"
    assert not [row for row in site.inbox.history("a") if row["what"] == "state"]
    assert "nothing was changed" in bar._surface.html


def test_a_role_that_is_taken_away_while_the_page_is_open_holds_at_once(site: Site) -> None:
    bar = bar_of(Marking(site, "a", "maria"))
    site.roles = replace(OPEN, users={"maria": "reader"})

    bar.heard("state=closed&seen=new&note=")

    assert site.inbox.get("a").state == "new"
    assert "only the right to look" in bar._surface.html


def test_without_login_the_one_who_started_it_may_when_he_said_so(site: Site) -> None:
    site.roles = Roles(allow_approve=True)
    bar_of(Marking(site, "a")).heard("state=muted&seen=new&note=")
    assert site.inbox.history("a")[-1]["by"] == "who started the dashboard"


def test_what_somebody_else_has_set_meanwhile_is_not_overridden(site: Site) -> None:
    bar = bar_of(Marking(site, "a", "maria"))
    site.inbox.set_state("a", "resolved", by="otto")

    bar.heard("state=muted&seen=new&note=")

    assert site.inbox.get("a").state == "resolved"
    assert "otto has set it to resolved meanwhile" in bar._surface.html
    with pytest.raises(InboxError, match="meanwhile"):
        site.inbox.set_state("a", "closed", by="x", seen="new")


@pytest.mark.parametrize(
    "asked", ["state=gone&seen=new", "state=closed", "state=closed&seen=x", "", "note=x", "state=new%00&seen=new"]
)
def test_a_state_that_there_is_not_is_not_asked_for(site: Site, asked: str) -> None:
    bar_of(Marking(site, "a", "maria")).heard(asked)
    assert site.inbox.get("a").state == "new"


def test_what_others_set_is_seen_with_the_next_look(site: Site) -> None:
    bar = bar_of(Marking(site, "a", "maria"))
    site.inbox.set_state("a", "closed", by="otto", note="<script>alert(1)</script>")
    site.board.look()
    bar.refresh()
    assert "closed</b>" in bar._surface.html
    assert "<script>" not in bar._surface.html
    assert "&lt;script&gt;" in bar._surface.html


def test_an_incident_that_is_not_in_the_inbox_has_no_state_to_set(site: Site) -> None:
    bar = bar_of(Marking(site, "elsewhere", "maria"))
    assert not bar._surface.visible
    with pytest.raises(InboxError):
        Marking(site, "elsewhere", "maria").decide("closed", "", "new")


def test_every_state_says_what_it_means() -> None:
    from workbench.inbox.model import STATES

    assert tuple(MEANINGS) == STATES
