"""The incident's page in a real browser: down by clicks to the culprit's log line, shared by its address, whatever the logs hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.browser.conftest import SIZES, Tab
from tests.serving.served import Served

pytestmark = pytest.mark.live

HERE = "/incident?id=gpu-memory"
EVIL = "<script>window.evil=1</script><img src=x onerror=window.evil=2><svg onload=window.evil=3>"

# where a rank at a time lies on the screen: Bokeh draws on a canvas, which has no element to click on
PLACE = """([title, row, share]) => {
  const all = Bokeh.documents.flatMap(one => [...one._all_models.values()])
  const made = all.find(one => one.type === 'Figure' && one.title?.text === title)
  const view = Bokeh.index.find_one_by_id(made.id), range = made.x_range
  const box = view.el.getBoundingClientRect()
  return [box.x + view.frame.x_scale.compute(range.start + (range.end - range.start) * share), box.y + view.frame.y_scale.compute(row)]
}"""


def part(tab: Tab, name: str) -> None:
    """Go to a part of the incident by its tab."""
    tab.locator(".tabs").get_by_role("link", name=name).click()
    tab.locator(".tabs a[aria-current=page]", has_text=name).wait_for()


def click_rank(tab: Tab, row: int, share: float = 0.5) -> None:
    """Click a rank in the map."""
    tab.get_by_text("Copy the query of").wait_for()
    tab.wait_for_timeout(500)
    x, y = tab.evaluate(PLACE, ["What each rank did", row + 0.5, share])
    tab.mouse.click(x, y)


def here(tab: Tab) -> str:
    """Return the text of the line that the visible log is at."""
    return str(tab.locator(".l.here:visible code").inner_text())


# where the marks of the timeline lie on the screen, with the line that each is of
MARKS = """() => {
  const all = Bokeh.documents.flatMap(one => [...one._all_models.values()])
  const made = all.find(one => one.type === 'Figure' && one.title?.text === 'Timeline')
  const source = all.find(one => one.name === 'events' && one.type === 'ColumnDataSource'), view = Bokeh.index.find_one_by_id(made.id)
  const box = view.el.getBoundingClientRect(), column = name => [...source.get_column(name)]
  const [x, y, evidence, file, line] = ['x', 'y', 'evidence', 'file', 'line'].map(column)
  return x.map((at, i) => [box.x + view.frame.x_scale.compute(at), box.y + view.frame.y_scale.compute(y[i]), Number(evidence[i]), file[i], Number(line[i])])
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_part_is_drawn_within_the_page(new_tab: Callable[..., Tab], size: str, theme: str) -> None:
    """Nothing sticks out to the side and nothing complains; the screenshots are kept."""
    tab = new_tab(size=size, color_scheme=theme).open(f"{HERE}&theme={theme}")
    for name in ("Overview", "Ranks", "Logs", "Explanations", "Events", "Placement", "Documents"):
        part(tab, name)
        tab.wait_for_timeout(2500 if name == "Ranks" else 800)
        tab.keep(f"incident-{name}-{theme}-{size}")

        assert tab.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], name


def test_the_verdict_is_there_without_script(new_tab: Callable[..., Tab]) -> None:
    """What failed, where and what to do is in the first answer of the server, and its links are plain links."""
    tab = new_tab(java_script_enabled=False)
    tab.page.goto(tab.base + HERE)
    card = tab.locator("article.card")

    assert card.locator("h1").inner_text() == "hardware/gpu-memory"
    assert "Retry without gpu-node-054." in card.inner_text()
    assert "tab=log" in card.locator(".first a").get_attribute("href")


def test_a_click_on_a_mark_of_the_timeline_opens_its_line_and_the_address_has_it(tab: Tab) -> None:
    """The same state as a click on the piece of evidence; back leads to the timeline, and the same mark can be clicked again."""
    tab.open(HERE)
    tab.wait_for_function(
        "Bokeh.documents.some(one => [...one._all_models.values()].some(model => model.title?.text === 'Timeline'))"
    )
    tab.wait_for_timeout(1000)
    for _ in range(2):
        tab.evaluate("scrollTo(0, 0)")
        tab.wait_for_timeout(500)
        x, y, number, file, line = max(mark for mark in tab.evaluate(MARKS) if mark[2] >= 0)  # nothing lies over the last
        tab.mouse.click(x, y)
        tab.wait_for_function("location.search.includes('tab=log')")
        tab.locator(".l.here:visible .no", has_text=str(line)).wait_for()
        assert f"line={line}" in tab.query()
        assert file.rpartition("!")[2] in tab.locator(".log .file:visible").inner_text()
        clicked = tab.query()
        part(tab, "Overview")
        tab.locator(f"[data-go='evidence={number}']:visible").click()
        tab.wait_for_function("location.search.includes('tab=log')")
        assert tab.query() == clicked
        part(tab, "Overview")


def test_by_clicks_down_to_the_culprits_log_line(tab: Tab) -> None:
    """Inbox, incident, ranks, a click into the map, its GPU and its log line."""
    tab.open("/")
    tab.locator("a[href*='incident?id=gpu-memory']").first.click()
    tab.drawn().locator("article.card h1").first.wait_for()
    part(tab, "Ranks")
    click_rank(tab, 3)
    tab.locator(".rank h2", has_text="Rank 3").wait_for()
    click_rank(tab, 20)
    tab.locator(".rank h2", has_text="Rank 20").wait_for()
    tab.locator(".l.here:visible", has_text="Xid").wait_for()

    assert "GPU 4 (0000:9d:00.0)" in tab.locator(".rank").inner_text()
    assert "Xid (PCI:0000:9d:00): 48" in here(tab)
    assert tab.locator(".l.here.ev.cause:visible").count() == 1


def test_a_click_is_answered_although_the_rest_is_not_drawn_and_that_is_drawn_when_nothing_is_pressed(tab: Tab) -> None:
    """Who looks at rank after rank waits for no figure and no table; they stand there as soon as he lets go."""
    tab.add_init_script(
        "window.pressing = setInterval(() => document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Shift'})), 40)"
    )
    tab.open(f"{HERE}&tab=ranks")
    tab.locator(".rank h2", has_text="Rank 20").wait_for()
    tab.wait_for_timeout(500)
    for rank in (3, 5):
        x, y = tab.evaluate(PLACE, ["What each rank did", rank + 0.5, 0.5])
        tab.mouse.click(x, y)
        tab.locator(".rank h2", has_text=f"Rank {rank}").wait_for()
    assert tab.locator(".tabulator-row").count() == 0
    assert tab.get_by_text("The rest is being drawn").is_visible()

    tab.evaluate("clearInterval(window.pressing)")
    tab.locator(".tabulator-row").first.wait_for()
    tab.get_by_text("The rest is being drawn").wait_for(state="hidden")
    tab.wait_for_function(
        """() => Bokeh.documents.some(one => ['Temperature', 'Power'].every(title => [...one._all_models.values()].some(
          model => model.type === 'Figure' && model.title?.text.startsWith(title) && Bokeh.index.find_one_by_id(model.id))))"""
    )
    beside, below = tab.evaluate(
        """() => {
          const made = Bokeh.documents.flatMap(one => [...one._all_models.values()]).find(one => one.title?.text === 'Temperature')
          const box = Bokeh.index.find_one_by_id(made.id).el.getBoundingClientRect()
          return [box.x, box.y]
        }"""
    )
    log = tab.locator(".lines:visible").bounding_box()
    assert beside > log["x"] + log["width"]
    assert abs(below - log["y"]) < 100, "what comes later takes the first place beside the log"


def test_the_map_is_coloured_by_steps_and_a_colleague_sees_the_same(tab: Tab, new_tab: Callable[..., Tab]) -> None:
    """One click above the map; a click into it still names the rank, and the address holds both."""
    there = """title => Bokeh.documents.some(one => [...one._all_models.values()].some(
      model => model.type === 'Figure' && model.title?.text === title && Bokeh.index.find_one_by_id(model.id)))"""
    tab.open("/incident?id=hang-data-loader&tab=ranks")
    tab.get_by_text("Copy lines").first.wait_for()
    tab.locator(".colours a", has_text="Steps behind the median").click()
    tab.wait_for_function(there, arg="Steps behind the median")
    tab.wait_for_timeout(800)
    x, y = tab.evaluate(PLACE, ["Steps behind the median", 5.5, 0.5])
    tab.mouse.click(x, y)
    tab.locator(".rank h2", has_text="Rank 5").wait_for()
    tab.wait_for_function("location.search.includes('colour=steps') && location.search.includes('rank=5')")
    tab.keep("incident-steps-light-wide")

    other = new_tab(color_scheme="light").open("/incident" + tab.query())
    other.wait_for_function(there, arg="Steps behind the median")
    other.locator(".rank h2", has_text="Rank 5").wait_for()
    other.locator(".colours a", has_text="State").click()
    other.wait_for_function(there, arg="What each rank did")


def test_a_row_of_the_table_chooses_the_rank_by_mouse_and_by_keyboard(tab: Tab) -> None:
    """Click a cell, then go down by arrow and press Enter."""
    tab.open(f"{HERE}&tab=ranks")
    rows = tab.locator(".tabulator-row")
    rows.nth(2).locator(".tabulator-cell").nth(2).click()
    tab.locator(".rank h2", has_text="Rank 2").wait_for()
    chosen = tab.locator(".rank h2", has_text="Rank 3")
    for _ in range(6):  # the choice draws the table anew, and a focus given before that is lost
        tab.locator(".tabulator-row[tabindex]").nth(2).focus()
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("Enter")
        tab.wait_for_timeout(2000)
        if chosen.count():
            break
    chosen.wait_for()


def test_a_shared_address_shows_a_table_as_it_was_sorted_and_filtered(tab: Tab, new_tab: Callable[..., Tab]) -> None:
    """By a click on a heading and words in a field below it."""
    tab.open(f"{HERE}&tab=events")
    field = ".tabulator-col[tabulator-field=node] input"
    tab.locator(field).press_sequentially("node-054")
    tab.wait_for_function("decodeURIComponent(location.search).includes('node%3Dnode-054')")
    for _ in range(2):
        tab.locator(".tabulator-col[tabulator-field=line] .tabulator-col-title").click()
        tab.wait_for_timeout(1500)
    tab.wait_for_function("decodeURIComponent(location.search).includes('sort%3D-line')")
    first = ".tabulator-row >> nth=0"
    here = tab.locator(first).inner_text()

    other = new_tab(color_scheme="light").open("/incident" + tab.query())
    other.locator(first).wait_for()
    other.wait_for_timeout(1500)
    assert other.locator(first).inner_text() == here
    assert other.locator(field).input_value() == "node-054"
    assert other.query() == tab.query()


def test_a_shared_address_shows_the_same_in_another_browser(tab: Tab, new_tab: Callable[..., Tab]) -> None:
    """Rank, line, search and part are all in the address."""
    tab.open(HERE)
    part(tab, "Ranks")
    click_rank(tab, 3)
    tab.locator(".rank h2", has_text="Rank 3").wait_for()
    part(tab, "Logs")
    tab.get_by_label("Find in logs").fill("closing signal")
    tab.keyboard.press("Enter")
    tab.locator(".hits code").first.wait_for()
    tab.locator(".hits a").nth(1).click()
    tab.locator(".hits li:nth-child(2).on").wait_for()
    asked = tab.locator(".hits li:nth-child(2) a").get_attribute("data-go")
    tab.locator(f".lines:visible .l.here a[data-go='{asked}']").wait_for()
    tab.wait_for_function(
        "asked => location.search.includes('query=closing') && location.search.includes(asked.split('&')[1])", arg=asked
    )
    line = here(tab)

    other = new_tab(color_scheme="light").open("/incident" + tab.query())
    other.locator(".l.here:visible mark").first.wait_for()

    assert "closing signal" in line
    assert here(other) == line
    assert other.get_by_label("Find in logs").input_value() == "closing signal"
    assert other.locator(".hits .on").inner_text() == tab.locator(".hits .on").inner_text()
    part(other, "Ranks")
    other.locator(".rank h2", has_text="Rank 3").wait_for()


def test_back_goes_to_what_was_seen_before(tab: Tab) -> None:
    """The browser's own button works."""
    tab.open(HERE)
    part(tab, "Logs")
    tab.wait_for_function("location.search.includes('tab=log')")
    part(tab, "Events")
    tab.wait_for_function("location.search.includes('tab=events')")
    tab.page.go_back()
    tab.drawn().locator(".tabs a[aria-current=page]", has_text="Logs").wait_for()


def test_jump_to_evidence_and_copy(new_tab: Callable[..., Tab]) -> None:
    """By button and by key; lines, a link and a query land on the clipboard."""
    tab = new_tab(color_scheme="light", permissions=["clipboard-read", "clipboard-write"])
    tab.open(f"{HERE}&tab=log")
    tab.locator(".l.here:visible").wait_for()
    first = here(tab)
    tab.get_by_role("button", name="evidence ›").click()
    tab.locator(".log header .file", has_text="worker-2.log").wait_for()
    assert "uncorrectable ECC error" in here(tab)
    tab.locator(".lines").focus()
    tab.keyboard.press("p")
    tab.locator(".log header .file", has_text="kernel/gpu-node-054.log").wait_for()
    assert here(tab) == first

    tab.get_by_role("button", name="Copy lines").click()
    tab.get_by_role("button", name="Copied").wait_for()
    assert first in tab.evaluate("navigator.clipboard.readText()")
    tab.get_by_role("button", name="Copy as link").click()
    tab.get_by_role("button", name="Copied").first.wait_for()
    link = tab.evaluate("navigator.clipboard.readText()")
    assert link.startswith(tab.base)
    assert "tab=log" in link
    part(tab, "Documents")
    tab.get_by_role("button", name="Copy the query for DCGM_FI_DEV_GPU_TEMP").click()
    tab.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('DCGM_FI_DEV_GPU_TEMP{')")


def test_local_time_is_told_on_hover_only(new_tab: Callable[..., Tab]) -> None:
    """What is read is UTC; a reader in Tokyo finds the own time behind it."""
    tab = new_tab(color_scheme="light", timezone_id="Asia/Tokyo", locale="en-GB").open(HERE)
    tab.locator(".tabs").wait_for()
    time = tab.locator("article.card .facts time:visible").first
    assert time.inner_text() == "2025-05-15 09:26:19.988 UTC"
    time.hover()
    assert "18:26:19" in time.get_attribute("title")


def test_tables_are_taken_away_whole(tab: Tab) -> None:
    """The CSV of a table has every row, not those of the page that is seen."""
    tab.open(f"{HERE}&tab=events")
    button = tab.locator("a, button").filter(has_text="CSV").first
    button.wait_for()
    with tab.expect_download() as download:
        button.click()
    assert Path(download.value.path()).read_text().count("\n") > 500


# -- hostile evidence ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard whose root holds an incident that wants to be a page: script tags, ANSI, a line of a megabyte, an evil file name."""
    root = tmp_path_factory.mktemp("hostile")
    logs = root / "job" / "logs"
    logs.mkdir(parents=True)
    lines = [f"[rank0]: 2026-05-04 11:02:{second:02d},000 INFO step {second} {EVIL}" for second in range(30)]
    lines += [
        "[rank0]: " + "x" * 1_000_000 + EVIL,
        f"[rank0]: \x1b]0;title\x07\x1b[1;31m2026-05-04 11:02:31,000 ERROR\x1b[0m {EVIL} \u202egnp.exe",
        f"[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered {EVIL}",
    ]
    (logs / "a <img src=x onerror=window.evil=4>.log").write_text("\n".join(lines) + "\n")
    with Served(("--demo", "--root", str(root)), {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}) as served:
        yield served


def test_hostile_text_stays_text_in_every_part(new_tab: Callable[..., Tab], hostile: Served) -> None:
    """Nothing of the evidence runs, loads or colours; it is all there to be read."""
    tab = new_tab(hostile.url, color_scheme="light").open("/incident?path=job")
    tab.locator(".tabs").wait_for()
    for name in ("Overview", "Ranks", "Events", "Placement", "Documents", "Explanations", "Logs"):
        part(tab, name)
        tab.wait_for_timeout(600)
    tab.locator(".hits a").first.click()
    tab.locator(".lines:visible").wait_for()
    shown = tab.locator(".lines:visible").inner_text()
    assert "<script>window.evil=1</script>" in shown
    assert "\x1b" not in shown
    assert "[1;31m" not in shown
    tab.get_by_label("Find in logs").fill("<img src=x")
    tab.keyboard.press("Enter")
    tab.locator(".hits mark").first.wait_for()
    assert tab.locator(".hits mark").first.inner_text() == "<img src=x"

    assert tab.evaluate("window.evil === undefined")
    # elements that are not the page's own would be found: Bokeh's shadow roots are open
    count = """() => { let bad = 0; const walk = node => {
      for (const one of node.querySelectorAll('*')) {
        if (one.localName === 'img' || one.getAttribute('onerror') || one.getAttribute('onload')) bad++
        if (one.shadowRoot) walk(one.shadowRoot)
      } }; walk(document); return bad }"""
    assert tab.evaluate(count) == 0


def test_a_line_of_a_megabyte_is_cut_and_shown_on_demand(new_tab: Callable[..., Tab], hostile: Served) -> None:
    """The page stays quick; a button shows more of it."""
    file = "job/logs/a <img src=x onerror=window.evil=4>.log"
    tab = new_tab(hostile.url, color_scheme="light").open("/incident?path=job&tab=log")
    tab.locator(".hits a").first.wait_for()
    asked = tab.locator(".hits a").first.get_attribute("data-go")
    assert quote(file.rpartition("/")[2], safe="").replace("%20", "+") in asked
    tab.open("/incident?path=job&tab=log&" + asked.replace("line=1", "line=31"))
    more = tab.locator(".l.here .more:visible")
    more.wait_for()
    assert len(here(tab)) < 10_000
    more.click()
    tab.wait_for_timeout(1000)
    assert len(here(tab)) > 60_000
