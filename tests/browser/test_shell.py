"""The page around every view: navigation, theme, clock, freshness, keyboard, print, and the address as the state."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.browser.conftest import SIZES, Tab
from tests.serving.served import Served

pytestmark = pytest.mark.live

PAGES = {
    "inbox": "/",
    "incident": "/incident?id=nvlink-switch",
    "fleet": "/fleet",
    "node": "/node?node=gpu-node-054",
    "account": "/account",
    "remediation": "/remediation",
}


def colour(tab: Tab) -> int:
    """Return how light the page's ground is, 0 to 255."""
    rgb = re.findall(r"\d+", tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    return sum(map(int, rgb[:3])) // 3


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_is_drawn_whole_in_both_themes_and_sizes(
    new_tab: Callable[..., Tab], page: str, theme: str, size: str
) -> None:
    """Nothing sticks out to the side, no complaint; the screenshots are kept."""
    path = PAGES[page]
    tab = new_tab(size=size, color_scheme="light").open(f"{path}{'&' if '?' in path else '?'}theme={theme}")
    if page in ("fleet", "node", "account"):
        tab.locator("canvas").first.wait_for(timeout=60_000)
    tab.wait_for_timeout(1500)
    tab.keep(f"{page}-{theme}-{size}")

    assert (colour(tab) < 60) == (theme == "dark")
    assert tab.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert tab.title().endswith("GPU Reliability Workbench")


def test_the_theme_follows_the_system_until_it_is_chosen_and_is_remembered(new_tab: Callable[..., Tab]) -> None:
    """auto, then dark, then light, by the button; another page has it too."""
    tab = new_tab(color_scheme="dark").open("/")
    assert colour(tab) < 60
    button = tab.locator("#theme")
    assert "auto" in button.get_attribute("aria-label")
    button.click()
    assert "dark" in button.get_attribute("aria-label")
    button.click()
    assert colour(tab) > 200

    tab.open("/incident?id=succeeded")

    assert colour(tab) > 200
    assert tab.evaluate("localStorage.getItem('workbench-theme')") == "light"
    assert "theme" not in tab.query()


def test_a_theme_in_the_address_holds_for_this_visit_only(new_tab: Callable[..., Tab]) -> None:
    """A colleague's link does not change what is remembered, and the way between pages keeps it."""
    tab = new_tab(color_scheme="light").open("/?theme=dark")
    tab.get_by_role("link", name="Fleet").click()
    tab.drawn()

    assert colour(tab) < 60
    assert tab.query() == "?theme=dark"
    assert tab.evaluate("localStorage.getItem('workbench-theme')") is None


def test_who_goes_on_from_a_link_keeps_what_it_named(new_tab: Callable[..., Tab]) -> None:
    """Tab and filters stay in the address when something else is chosen: what is shared then is still what is seen."""
    tab = new_tab(color_scheme="light").open("/incident?id=gpu-memory&tab=log")
    tab.get_by_role("button", name="evidence ›").click()
    tab.wait_for_function("location.search.includes('line=')")
    assert "tab=log" in tab.query()

    tab = new_tab(color_scheme="light").open("/fleet?tab=findings&health=critical")
    tab.locator("a.chip-cause[href*='health=critical']", has_text="hardware").click()
    tab.wait_for_function("location.search.includes('cause=hardware')")
    assert {"tab=findings", "health=critical"} <= set(tab.query()[1:].split("&"))


def test_clock_and_freshness_are_in_utc(tab: Tab) -> None:
    """Local time on hover."""
    tab.open("/")

    tab.locator("#fresh[data-state=ok]").wait_for()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", tab.locator("#clock").inner_text())
    assert re.search(r"as of \d\d:\d\d:\d\d UTC, \d+ s ago", tab.locator("#fresh").inner_text())
    assert tab.locator("#clock").get_attribute("title").startswith("here:")


def test_a_page_is_used_by_keyboard_alone(tab: Tab) -> None:
    """The first stop skips to the content; every link and field is reached, and shows that it is."""
    tab.open("/")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    for _ in range(40):
        tab.keyboard.press("Tab")
        inner = tab.evaluate(
            "(() => { let e = document.activeElement; while (e && e.shadowRoot) e = e.shadowRoot.activeElement; return e && e.className })()"
        )
        if inner == "open":
            break
    assert inner == "open", "no incident was reached"
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile(r"/incident\?id="))


def test_a_server_that_is_gone_is_told(new_tab: Callable[..., Tab], tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is seen may be old then: it must not look fresh."""
    with Served(("--inbox", str(tmp_path_factory.mktemp("gone")))) as served:
        tab = new_tab(served.url).open("/")
        tab.locator("#fresh[data-state=ok]").wait_for()
        served.stop()
        tab.locator("#lost").wait_for(timeout=30_000)

        assert "no connection" in tab.locator("#fresh").inner_text()
        tab.keep("server-gone")
        tab.problems.clear()  # the refused connections


def test_an_incident_that_is_not_there_says_so(tab: Tab) -> None:
    """With a way back."""
    tab.open("/incident?id=no-such-thing")

    tab.get_by_text("the inbox has no entry 'no-such-thing'").wait_for()
    tab.get_by_role("link", name="Go to the inbox").click()
    tab.get_by_text("hardware/nvlink", exact=True).wait_for()


def test_a_path_outside_the_roots_is_refused_on_the_page_too(tab: Tab) -> None:
    """And hostile text in the address stays text."""
    tab.open("/incident?path=/etc/passwd")
    tab.get_by_text("nothing is shown from there").wait_for()
    tab.open("/incident?id=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")

    tab.get_by_text("<img src=x onerror=alert(1)>").first.wait_for()
    assert tab.locator("main img").count() == 0


def test_a_printed_page_is_ink_on_white(tab: Tab) -> None:
    """Also from the dark theme, without navigation."""
    tab.open("/?theme=dark")
    tab.emulate_media(media="print")

    assert colour(tab) == 255
    assert not tab.locator("nav").is_visible()
