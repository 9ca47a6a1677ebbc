"""The account's page in the browser: every tab in both themes, the address as the state, files of whole tables, hostile names, no ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import SIZES, Tab
from tests.serving.served import Served
from workbench.fleet.ledger import Ledger
from workbench.gameday import play
from workbench.simulation import Spec
from workbench.simulation.demo import demo_ledger
from workbench.views.account_model import TABS

pytestmark = pytest.mark.live

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">$$x$$"


def _serve(place: Path, ledger: Path) -> Served:
    (place / "inbox").mkdir()
    days = place / "days"
    for name, seed in (("november", 1), ("<i>october", 2)):
        play(Spec.read(None), 4, days / name, seed=seed, ranks_most=8)
    card = days / "november" / "scorecard.json"
    played = json.loads(card.read_text())
    played["rounds"][0] |= {"said": EVIL, "blamed": EVIL, "cause_right": False, "innocent": True} | dict.fromkeys(
        ("node_right", "retry_right", "plan_right"), True
    )
    card.write_text(json.dumps(played))
    return Served(
        ("--inbox", str(place / "inbox")),
        {
            "WORKBENCH_FLEET_LEDGER": str(ledger),
            "WORKBENCH_FLEET_GAMEDAYS": str(days),
            "XDG_CACHE_HOME": str(place / "cache"),
        },
    )


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard with a simulated ledger that has a second cluster with hostile names in it."""
    place = tmp_path_factory.mktemp("account")
    now = time.time()
    path = demo_ledger(place / "fleet.sqlite", now)
    with Ledger.open(path) as ledger, ledger.batch():
        row = {"cluster": "b<i>", "job": EVIL, "source": "test", "gpus": 8, "state": "failed", "cause": "hardware", "cls": EVIL}
        times = {"started": now - 7200, "ended": now - 3600}
        ledger.put("jobs", [row | times | {"team": EVIL, "submitted": now - 7300}])
        ledger.put("attempts", [row | times | {"attempt": 1, "node": EVIL, "node_names": [EVIL], "incident": EVIL}])
    with _serve(place, path) as served:
        yield served


@pytest.fixture
def visit(new_tab: Callable[..., Tab], books: Served) -> Callable[..., Tab]:
    def go(path: str = "/account", **more: object) -> Tab:
        tab = new_tab(books.url, **more).open(path)
        tab.locator("nav.tabs .tab").first.wait_for(timeout=60_000)
        return tab

    return go


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_tab_is_drawn_whole_in_both_themes_and_sizes(visit: Callable[..., Tab], theme: str, size: str) -> None:
    """Nothing sticks out to the side; the screenshots are kept."""
    tab = visit(f"/account?theme={theme}", size=size)
    for name, title in TABS.items():
        tab.locator("nav.tabs .tab", has_text=title).click()
        tab.locator("nav.tabs .tab.on", has_text=title).wait_for()
        tab.locator("canvas").first.wait_for(timeout=60_000)
        tab.locator(".tabulator-row").first.wait_for(timeout=60_000)
        tab.wait_for_timeout(700)
        tab.keep(f"account-{name}-{theme}-{size}")
        assert tab.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]


def test_the_address_is_the_state_and_a_link_shows_the_same(visit: Callable[..., Tab], books: Served) -> None:
    """Window, groups and tab; back walks through what was seen; what makes no sense is told."""
    tab = visit()
    assert tab.query() == ""
    tab.locator("nav.tabs .tab", has_text="Time").click()
    tab.locator("nav.tabs .tab.on", has_text="Time").wait_for()
    for words in ("team", "4 weeks"):
        tab.locator(".chips a", has_text=words).click()
        tab.locator(".chips a.on", has_text=words).wait_for()
    tab.wait_for_function("location.search.includes('window=4w')")
    assert set(tab.query().lstrip("?").split("&")) == {"tab=time", "by=team", "window=4w"}
    tab.locator("h2", has_text="Goodput by team").wait_for()

    other = visit("/account" + tab.query())
    other.locator("h2", has_text="Goodput by team").wait_for()
    tab.go_back()
    tab.wait_for_function("!location.search.includes('window=4w')")
    tab.locator(".chips a.on", has_text="8 weeks").wait_for()

    odd = visit("/account?window=yesterday&by=colour&tab=time")
    assert "makes no sense" in odd.locator(".troubles").first.inner_text()


def test_it_can_be_used_without_a_mouse(visit: Callable[..., Tab]) -> None:
    """A chip by Tab and Enter; the focus stays where it was."""
    tab = visit()
    link = tab.locator(".chips a", has_text="quarter")
    link.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_function("location.search.includes('window=13w')")
    tab.locator(".chips a.on", has_text="quarter").wait_for()


def test_a_table_is_a_file_with_numbers_as_they_are(visit: Callable[..., Tab], tmp_path: Path) -> None:
    """The share of each part, in JSON, adds up to all of the time."""
    tab = visit("/account?tab=time")
    tab.locator(".tabulator-row").first.wait_for()
    with tab.expect_download() as waiting:
        tab.get_by_role("link", name="JSON").or_(tab.locator("a", has_text="JSON")).first.click()
    rows = json.loads(Path(waiting.value.path()).read_text())
    assert sum(row["microseconds"] for row in rows) == rows[0]["total_microseconds"] > 0


def test_budgets_ettr_and_game_days_are_on_their_tabs(visit: Callable[..., Tab]) -> None:
    """What burns, what the formula expects, and another game day by its chip; hostile words of a score card stay words."""
    tab = visit()
    tab.locator("h2", has_text="Error budgets: how fast they burn").wait_for()
    assert tab.locator(".tabulator-row", has_text="1h and 5m").count() == 3
    tab.locator("nav.tabs .tab", has_text="Time").click()
    tab.locator("h2", has_text="by formula").wait_for()
    assert "the formula expects" in tab.locator(".part-head", has_text="by formula").inner_text()
    tab.locator("nav.tabs .tab", has_text="Game day").click()
    tab.locator(".chips a", has_text="november").click()
    tab.locator(".chips a.on", has_text="november").wait_for()
    tab.locator(".tabulator-row", has_text="wrong: cause, an innocent node").wait_for()
    tab.wait_for_function("location.search.includes('day=november')")
    assert set(tab.query().lstrip("?").split("&")) == {"tab=gameday", "day=november"}
    tab.keep("account-gameday-wrong")
    assert "owned" not in tab.title()
    assert tab.locator(".chips i").count() == 0


def test_hostile_names_of_a_ledger_stay_names(visit: Callable[..., Tab]) -> None:
    """As text in cells and chips, and in no title."""
    tab = visit("/account?cluster=b%3Ci%3E&tab=failures")
    tab.locator(".tabulator-row", has_text="<script>").first.wait_for(timeout=60_000)
    tab.keep("account-hostile")
    for name in ("lemons", "cost", "objectives"):
        tab.open(f"/account?cluster=b%3Ci%3E&by=team&tab={name}")
        tab.locator("nav.tabs .tab").first.wait_for()
        tab.wait_for_timeout(500)
    assert "owned" not in tab.title()
    assert tab.locator("i", has_text=EVIL).count() == 0


def test_without_a_ledger_the_page_says_how_to_get_one(new_tab: Callable[..., Tab], tmp_path: Path) -> None:
    """And shows an account as soon as there is one, at the next look or by asking again."""
    ledger = tmp_path / "fleet.sqlite"
    with _serve(tmp_path, ledger) as served:
        tab = new_tab(served.url).open("/account")
        tab.locator(".missing", has_text="There is no account yet").wait_for()
        assert "workbench run" in tab.locator(".missing").inner_text()
        tab.keep("account-none")
        demo_ledger(ledger, time.time())
        tab.open("/account")
        tab.locator(".tile", has_text="goodput").wait_for(timeout=60_000)
        tab.goto("about:blank")  # a page that loses its server complains
