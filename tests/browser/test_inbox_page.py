"""The inbox in the browser: rows, counts, filters that are the address, a second browser that sees the same, empty states."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.browser.conftest import Tab
from tests.serving.served import Served
from workbench.inbox.store import Inbox
from workbench.report.verdict_json import failed
from workbench.shipped import examples

pytestmark = pytest.mark.live


def listed(tab: Tab) -> list[str]:
    """Return the classes that are listed, in order."""
    return [row.strip() for row in tab.locator("table.inbox .open b").all_inner_texts()]


def test_incidents_are_listed_newest_first_and_a_click_opens_one(tab: Tab) -> None:
    """With cause, culprit and state."""
    tab.open("/")
    times = tab.locator("table.inbox time").evaluate_all("all => all.map(time => time.dateTime)")

    assert len(listed(tab)) == len(examples())
    assert times == sorted(times, reverse=True)
    tab.get_by_text("dgx-46", exact=True).click(force=True)  # the whole row is the link
    tab.wait_for_url(re.compile(r"/incident\?id=nvlink-switch"))
    tab.drawn().get_by_text("hardware/nvlink").first.wait_for()


def test_filters_are_the_address_and_a_second_browser_sees_the_same(new_tab: Callable[..., Tab]) -> None:
    """Counts tell what each filter would show; back takes the last one away."""
    tab = new_tab().open("/")
    tab.locator("a.chip-cause", has_text="hardware").click()
    tab.wait_for_function("location.search === '?cause=hardware'")
    tab.get_by_text("1–2 of 2").wait_for()
    tab.get_by_placeholder("Search").press_sequentially("dgx", delay=30)
    tab.get_by_text("1–1 of 1").wait_for()
    tab.wait_for_function("location.search === '?cause=hardware&text=dgx'")

    other = new_tab().open("/" + tab.query())

    assert listed(other) == listed(tab) == ["hardware/nvlink"]
    assert other.get_by_placeholder("Search").input_value() == "dgx"
    assert other.locator("a.chip-cause.on").inner_text().split() == ["hardware", "1"]
    tab.keep("inbox-filtered")
    other.get_by_placeholder("Search").fill("")
    other.get_by_text("1–2 of 2").wait_for()


def test_the_selects_filter_and_the_back_button_returns(tab: Tab) -> None:
    """By class and by state."""
    tab.open("/")
    tab.locator("select").nth(1).select_option(label="platform/storage  (1)")
    tab.get_by_text("1–1 of 1").wait_for()
    tab.wait_for_function("location.search === '?class=platform%2Fstorage'")
    tab.go_back()
    tab.get_by_text("1–6 of 6").wait_for()


def test_an_address_that_makes_no_sense_is_told_and_the_rest_counts(tab: Tab) -> None:
    """Never an error, never a guess."""
    tab.open("/?cause=gremlins&text=dgx")

    tab.get_by_text("The address asks for something that there is not: cause").wait_for()
    assert listed(tab) == ["hardware/nvlink"]


def test_no_match_says_so_and_shows_the_way_back(tab: Tab) -> None:
    """A filter too many must not look like a calm night."""
    tab.open("/?text=zzzz")
    tab.get_by_text("None of 6 incidents matches").wait_for()
    tab.keep("inbox-no-match")
    tab.get_by_role("link", name="show all").click()
    tab.get_by_text("1–6 of 6").wait_for()
    assert tab.query() == ""


def test_an_empty_inbox_says_how_to_fill_it_and_fills_while_one_looks(
    new_tab: Callable[..., Tab], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A new incident appears without a reload; hostile text stays text."""
    root = tmp_path_factory.mktemp("fresh")
    with Served(("--inbox", str(root))) as served:
        tab = new_tab(served.url).open("/")
        tab.get_by_text("The inbox is empty").wait_for()
        assert tab.get_by_text("workbench watch").is_visible()
        tab.keep("inbox-empty")
        hostile = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\x1b[31mred'
        verdict = failed("x", hostile) | {"summary": hostile}
        Inbox(root).add(id="evil", verdict=verdict, job=hostile, team=hostile, node=hostile, user=hostile, problem=hostile)

        tab.locator("table.inbox").get_by_text("<script>window.hit=1</script>").first.wait_for(timeout=20_000)
        tab.wait_for_timeout(500)
        tab.keep("inbox-hostile")

        assert tab.evaluate("window.hit") is None
        assert tab.locator("table.inbox img, table.inbox script").count() == 0
        assert "\x1b" not in tab.locator("table.inbox").inner_text()
        assert json.loads(served.ask("/api/incidents").body)["incidents"][0]["job"] == hostile
        tab.close()


def test_a_state_that_is_set_elsewhere_is_seen_without_a_reload(
    new_tab: Callable[..., Tab], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Several people, one inbox."""
    root = tmp_path_factory.mktemp("states")
    inbox = Inbox(root)
    inbox.add(id="one", verdict=failed("x", "could not be read"))
    with Served(("--inbox", str(root))) as served:
        tab = new_tab(served.url).open("/")
        tab.locator(".pill-state.new").wait_for()
        assert tab.locator("#new-count").inner_text() == "1"
        inbox.set_state("one", "acknowledged", "otto", "I have it")

        tab.locator(".pill-state.acknowledged").wait_for(timeout=20_000)
        tab.locator("#new-count").wait_for(state="hidden", timeout=20_000)
        tab.close()
