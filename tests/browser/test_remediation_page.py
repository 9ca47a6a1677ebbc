"""The remediation page in the browser: a plan is approved by who has the role, by nobody else, whatever his browser sends; then it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SIZES, Tab
from tests.remediation.fleets import fleet, node, trouble, work
from tests.serving.served import Served
from workbench.remediation.journal import Journal
from workbench.remediation.model import Evidence
from workbench.remediation.planner import make_plan
from workbench.remediation.proposing import propose
from workbench.remediation.queue import Proposal, Queue

pytestmark = pytest.mark.live

VERBS = ("cordon", "collect", "evict", "reboot", "validate", "uncordon")
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\x1b[31m" + "A" * 1_000_000
PEOPLE = {"maria": "m", "otto": "o"}


@dataclass
class Guarded:
    """A dashboard with login, and the queue and journal that it shows."""

    served: Served
    queue: Queue
    journal: Path

    def proposed(self, *names: str) -> list[Proposal]:
        """Let a controller propose something for some nodes, and return what waits for a yes."""
        now = time.time()
        nodes = [node(name, work=(work(f"job-{name}", since=now - 9000, saved=now - 1800),)) for name in names]
        seen = (Evidence("e1", "kernel", HOSTILE[:300], now - 60),)
        wrong = [
            trouble(one.name, seen=now - 60, since=now - 60, evidence=seen, summary=f"GPU 3 fell off {HOSTILE}") for one in nodes
        ]
        for one in self.queue.proposals():
            if one.state == "proposed":
                self.queue.withdraw(one.id, by="test", reason="another test")
        return propose(self.queue, make_plan(wrong, replace(fleet(*nodes), time=now), verbs=VERBS), by="loop@a")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Maria approves, otto reads."""
    place = tmp_path_factory.mktemp("guarded")
    for name, table in {"users": PEOPLE, "roles": {"maria": "approver", "otto": "reader"}}.items():
        (place / name).write_text(json.dumps(table))
        (place / name).chmod(0o600)
    environment = {
        "WORKBENCH_REMEDIATION_FOLDER": str(place / "state"),
        "WORKBENCH_REMEDIATION_JOURNAL": str(place / "journal.jsonl"),
        "XDG_CACHE_HOME": str(place / "cache"),
    }
    (place / "inbox").mkdir()
    options = (
        "--inbox",
        str(place / "inbox"),
        "--basic-auth",
        str(place / "users"),
        "--roles",
        str(place / "roles"),
        "--allow-approve",
    )
    with Served(options, environment) as served:
        yield Guarded(served, Queue(place / "state" / "queue"), place / "journal.jsonl")


@pytest.fixture
def visit(new_tab: Callable[..., Tab], guarded: Guarded) -> Callable[..., Tab]:
    """Log in as somebody and open the page."""

    def go(user: str, path: str = "/remediation", **more: Any) -> Tab:
        tab = new_tab(guarded.served.url, **more)
        tab.goto(guarded.served.url + "/login")
        tab.locator("input[name=username]").fill(user)
        tab.locator("input[name=password]").fill(PEOPLE[user])
        tab.locator("input[name=password]").press("Enter")
        tab.wait_for_url(lambda url: "/login" not in url)
        return tab.open(path)

    return go


def until(what: str, holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.1)


def test_who_has_the_role_approves_exactly_the_plan_that_he_saw(visit: Callable[..., Tab], guarded: Guarded) -> None:
    """Two clicks and a reason; the name, the reason and the digest are in the queue and in the journal."""
    guarded.proposed("gpu-001", "gpu-002")
    tab = visit("maria")
    tab.locator(".plans li a", has_text="gpu-002").click()
    tab.locator(".sheet h1", has_text="gpu-002").wait_for()
    tab.get_by_role("button", name="Approve…").click()
    tab.locator("textarea[name=reason]").fill("looked at the rack")
    tab.keep("remediation-approve")
    tab.get_by_role("button", name="Approve gpu-002").click()
    tab.locator(".decide [role=status]", has_text="Approved").wait_for()
    # the journal was empty when the page was drawn
    tab.locator(".tabulator-row", has_text="looked at the rack").wait_for()

    (one,) = guarded.queue.approved()
    yes = one.last
    assert (yes.state, yes.by, yes.reason, yes.digest) == ("approved", "maria", "looked at the rack", one.digest)
    assert {action.node for action in one.plan.actions} == {"gpu-002"}
    said = [entry.detail for entry in Journal(guarded.journal).entries()]
    assert f"plan {one.id} approved by maria: looked at the rack" in said
    assert next(each for each in guarded.queue.proposals() if each.plan.actions[0].node == "gpu-001").state == "proposed"


def test_who_only_reads_has_no_button_and_what_his_browser_sends_is_refused(visit: Callable[..., Tab], guarded: Guarded) -> None:
    """The server decides: the very message that the button would send changes nothing."""
    (one,) = guarded.proposed("gpu-003")
    tab = visit("otto", f"/remediation?plan={one.id}")
    assert "may look and not decide" in tab.locator(".decide").inner_text()
    assert tab.get_by_role("button", name="Approve…").count() == 0

    words = f"decide=approve&id={one.id}&digest={one.digest}&reason=forged"
    sent = tab.evaluate(
        """words => {
          const found = []
          const walk = model => { for (const child of model.children ?? model.child_models ?? []) walk(child); found.push(model) }
          for (const doc of Bokeh.documents) for (const model of doc._all_models.values()) if (model.data && 'asked' in (model.data.attributes ?? {})) {
            model.data.asked = JSON.stringify(['forged' + found.length, words]); found.push(model)
          }
          return found.length
        }""",
        words,
    )
    assert sent > 0, "the message could not even be sent"
    tab.locator(".decide [role=alert]", has_text="has only the right to look").wait_for()
    assert guarded.queue.get(one.id).state == "proposed"
    assert [event.state for event in guarded.queue.get(one.id).events] == ["proposed"]


def test_a_dashboard_that_was_not_started_for_it_lets_nobody_approve(new_tab: Callable[..., Tab], dashboard: Served) -> None:
    """Without --allow-approve all is read-only, also for the one who started it."""
    tab = new_tab().open("/remediation")
    assert "--allow-approve" in tab.locator(".decide").inner_text()
    assert tab.get_by_role("button", name="Approve…").count() == 0
    assert dashboard.ask("/api/fresh").json()["queue"]["waiting"] > 0


def test_a_no_wants_a_reason_and_ends_the_plan(visit: Callable[..., Tab], guarded: Guarded) -> None:
    """The form asks for one; the server would, too."""
    (one,) = guarded.proposed("gpu-004")
    tab = visit("maria", f"/remediation?plan={one.id}")
    tab.get_by_role("button", name="Reject…").click()
    tab.get_by_role("button", name="Reject gpu-004").click()
    assert guarded.queue.get(one.id).state == "proposed", "a form without a reason was sent"
    tab.locator("textarea[name=reason]").fill("its job ends at noon")
    tab.get_by_role("button", name="Reject gpu-004").click()
    until("the no", lambda: guarded.queue.get(one.id).state == "rejected")
    tab.locator(".tab", has_text="Over").click()
    tab.locator(".plans li a", has_text="gpu-004").click()
    tab.locator(".history", has_text="its job ends at noon").wait_for()


def test_a_plan_that_was_replaced_meanwhile_is_not_approved(visit: Callable[..., Tab], guarded: Guarded) -> None:
    """He looked at one plan; the world changed; his yes is to what he saw, which is over."""
    (one,) = guarded.proposed("gpu-005")
    tab = visit("maria", f"/remediation?plan={one.id}")
    tab.get_by_role("button", name="Approve…").click()
    guarded.queue.withdraw(one.id, by="loop@a", reason="the world has changed")
    tab.get_by_role("button", name="Approve gpu-005").click(timeout=20_000)
    until("the refusal or the news", lambda: tab.locator(".decide", has_text="withdrawn").count() > 0)
    assert guarded.queue.get(one.id).state == "withdrawn"


def test_what_others_decide_appears_without_a_reload_and_a_half_written_reason_stays(
    visit: Callable[..., Tab], guarded: Guarded
) -> None:
    """The list follows the queue; what somebody types is not taken away by it."""
    one, other = guarded.proposed("gpu-006", "gpu-007")
    tab = visit("maria", f"/remediation?plan={one.id}")
    tab.get_by_role("button", name="Approve…").click()
    tab.locator("textarea[name=reason]").fill("half a sen")
    guarded.queue.reject(other.id, other.digest, by="otto", reason="no")
    until("the news", lambda: tab.locator(".plans li a", has_text="gpu-007").locator(".pstate.rejected").count() == 1)
    assert tab.locator("textarea[name=reason]").input_value() == "half a sen"


def test_a_link_shows_a_colleague_the_same_plan(visit: Callable[..., Tab], guarded: Guarded) -> None:
    """Also one who may not decide."""
    _, other = guarded.proposed("gpu-008", "gpu-009")
    tab = visit("maria")
    tab.locator(".plans li a", has_text="gpu-009").click()
    tab.locator(".sheet h1", has_text="gpu-009").wait_for()
    assert other.id in tab.query()
    second = visit("otto", "/remediation" + tab.query())
    assert second.locator(".sheet h1").inner_text() == "gpu-009"
    assert second.locator(".sheet .small-print code").last.inner_text() == other.digest


def test_log_text_in_a_plan_stays_text(visit: Callable[..., Tab], guarded: Guarded) -> None:
    """Script tags, markup, colours and a line of a megabyte."""
    (one,) = guarded.proposed("gpu-010")
    tab = visit("maria", f"/remediation?plan={one.id}")
    assert "<script>" in tab.locator(".sheet .seen code").first.inner_text()
    assert tab.title().startswith("Remediation")
    assert tab.locator(".sheet img, .plans img").count() == 0
    assert len(tab.content()) < 3_000_000


def test_the_demonstration_approves_does_shows_and_takes_back(new_tab: Callable[..., Tab], tmp_path: Path) -> None:
    """From a yes to a node that is done, and an undo that waits for a yes of its own."""
    with Served(("--demo", "--allow-approve"), {"XDG_CACHE_HOME": str(tmp_path)}) as served:
        tab = new_tab(served.url).open("/remediation")
        before = tab.locator(".plans li").count()
        assert before >= 3
        name = tab.locator(".plans li .node").nth(1).inner_text()
        tab.locator(".plans li a").nth(1).click()
        tab.locator(".sheet h1", has_text=name).wait_for()
        tab.get_by_role("button", name="Approve…").click()
        tab.get_by_role("button", name=f"Approve {name}").click()
        tab.locator(".sheet .head .pstate.applied").wait_for(timeout=60_000)
        tab.locator(".history", has_text="applied").wait_for()
        tab.keep("remediation-applied")

        tab.locator(".tab", has_text="Over").click()
        tab.locator(".plans li a", has=tab.locator(".pstate.applied")).last.click()
        tab.get_by_role("button", name="Propose to undo…").click()
        tab.locator("textarea[name=reason]").fill("wrong node")
        tab.get_by_role("button", name="Propose the undo").click()
        tab.locator(".sheet .head", has_text="undo of").wait_for()
        tab.page.goto("about:blank")  # before its server goes


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_is_drawn_whole_in_both_themes_and_sizes(new_tab: Callable[..., Tab], theme: str, size: str) -> None:
    """Nothing sticks out to the side; the screenshots are kept."""
    tab = new_tab(size=size).open(f"/remediation?theme={theme}")
    tab.locator(".plans li").first.wait_for()
    tab.wait_for_timeout(1200)
    tab.keep(f"remediation-{theme}-{size}")
    assert tab.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]


def test_the_keyboard_reaches_a_plan_and_its_decision(visit: Callable[..., Tab], guarded: Guarded) -> None:
    """Without a mouse: a plan, Approve, Cancel."""
    guarded.proposed("gpu-011", "gpu-012")
    tab = visit("maria")
    tab.locator(".plans li a", has_text="gpu-012").focus()
    tab.keyboard.press("Enter")
    tab.locator(".sheet h1", has_text="gpu-012").wait_for()
    tab.get_by_role("button", name="Approve…").focus()
    tab.keyboard.press("Enter")
    tab.get_by_role("button", name="Cancel").focus()
    tab.keyboard.press("Enter")
    tab.get_by_role("button", name="Approve…").wait_for()
