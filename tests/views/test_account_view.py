"""Turn accounts into the page, and check what it says of each figure, what its link holds, what it asks for, and what it says of none."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("panel")

import panel as pn

from workbench.errors import WorkbenchError
from workbench.fleet import account as accounts
from workbench.fleet.account import Account, NoLedger
from workbench.fleet.budgets import Objective
from workbench.fleet.ledger import Ledger
from workbench.simulation.demo import demo_ledger
from workbench.views.account import AccountView
from workbench.views.account_model import TABS, Sheet, Wish, percent
from workbench.views.account_tabs import sheet
from workbench.views.surface import Surface
from workbench.views.tables import to_csv, to_json

NOW = time.time()
EVIL = "<script>window.evil=1</script><img src=x onerror=window.evil=2>\x1b[31mred\x1b[0m \u202egnp.exe"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_ledger(tmp_path_factory.mktemp("account") / "fleet.sqlite", NOW)


@pytest.fixture(scope="module")
def load(ledger: Path) -> Callable[[Wish], Sheet]:
    """Sheets of the simulated ledger; one account a window."""
    held: dict[tuple[str, str | None], Account] = {}

    def take(wish: Wish) -> Sheet:
        key = (wish.window, wish.cluster)
        if key not in held:
            with Ledger.open(ledger, "ro") as opened:
                held[key] = Account.read(opened, wish.window, cluster=wish.cluster, now=NOW)
        return sheet(held[key], wish)

    return take


def shown(load: Callable[[Wish], Sheet], state: dict[str, str] | None = None, **more: Any) -> AccountView:
    view = AccountView(load, clock=lambda: NOW, **more)
    view.set_state(state or {})
    view.__panel__()
    return view


def texts(view: AccountView) -> str:
    return " ".join(part.html for part in view.__panel__().select(Surface)) + " ".join(
        str(pane.object) for pane in view.__panel__().select(pn.pane.HTML)
    )


class Pool:
    """Runs work when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: work(*given)))
        return future

    def run(self) -> None:
        for future, work in self.waiting:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        self.waiting = []


# ---- the state


def test_the_address_holds_what_differs_from_the_start_and_gives_it_back(load: Callable[[Wish], Sheet]) -> None:
    state = {"window": "4w", "by": "team", "tab": "time", "of": "elapsed"}
    view = shown(load, state)

    assert view.state() == state
    assert shown(load).state() == {}
    view.set_state({})
    assert view.state() == {}


def test_what_an_address_asks_for_in_vain_is_told_and_left_out(load: Callable[[Wish], Sheet]) -> None:
    view = shown(load, {"window": EVIL, "by": "colour", "tab": "time"})

    assert view.wish == Wish(tab="time")
    assert "makes no sense" in view._top.html
    assert set(view.refused) == {"window", "by"}


@pytest.mark.parametrize("asked", ["tab=rm", "window=%00", "window=0w", "by=" + "x" * 9000, "nonsense", "", "of=night"])
def test_what_a_browser_makes_up_changes_nothing(load: Callable[[Wish], Sheet], asked: str) -> None:
    view = shown(load)
    view.heard(asked)

    assert view.wish == Wish()


def test_a_click_changes_one_thing_and_its_link_says_the_same(load: Callable[[Wish], Sheet]) -> None:
    view = shown(load, {"tab": "time", "by": "team"})
    assert 'href="./account?window=4w&amp;by=team&amp;tab=time" data-go="window=4w"' in view._chips.html
    view.heard("by=")

    assert view.state() == {"tab": "time"}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Panel (1.9.4) sorts so
def test_how_tables_are_sorted_and_filtered_is_in_the_address_and_comes_back_from_it(load: Callable[[Wish], Sheet]) -> None:
    """Of each table its own; a window or tab that is turned to keeps it, and what nobody asked for is not there."""
    view = shown(load, {"tab": "lemons"})
    (table,) = view.__panel__().select(pn.widgets.Tabulator)
    table.sorters = [{"field": "blames", "dir": "desc"}]
    assert view.state() == {"tab": "lemons", "tables": "lemons=sort%3D-blames"}

    other = shown(load, view.state())
    (again,) = other.__panel__().select(pn.widgets.Tabulator)
    assert again.sorters == [{"field": "blames", "dir": "desc"}]
    other.heard("tab=cost")
    assert other.state() == {"tab": "cost", "tables": "lemons=sort%3D-blames"}
    other.set_state({"tab": "cost", "tables": "cost=sort%3Dno-such&assumptions=unit%3DGPU"})
    assert "assumptions" in other.state()["tables"]
    view.set_state({})
    assert view.state() == {}


def test_a_long_table_is_filtered_by_its_headings_and_the_filter_is_in_the_address(load: Callable[[Wish], Sheet]) -> None:
    view = shown(load, {"tab": "failures", "tables": "failed-attempts=cause%3Dhardware"})
    tables = view.__panel__().select(pn.widgets.Tabulator)
    found = next(one for one in tables if "job" in one.value)
    assert set(found.header_filters) == {"job", "team", "node", "cls", "cause"}
    assert set(found.current_view["cause"]) == {"hardware"}
    assert len(found.current_view) < len(found.value)


# ---- what is shown


@pytest.mark.parametrize("by", ["", "team", "size"])
@pytest.mark.parametrize("tab", TABS)
def test_every_tab_has_figures_and_tables_with_what_they_are_a_part_of(load: Callable[[Wish], Sheet], tab: str, by: str) -> None:
    view = shown(load, {"tab": tab, **({"by": by} if by else {})})
    made = load(view.wish)

    assert view.__panel__().select(pn.pane.Bokeh)
    tables = view.__panel__().select(pn.widgets.Tabulator)
    assert len(tables) == len(made.tables)
    for table in tables:
        assert {one["type"] for one in table.formatters.values()} == {"plaintext"}
    for part in made.tables:
        assert set(part.columns) <= set(part.frame.columns)
        assert list(part.shown.columns) == list(part.columns)
        # whatever is exported is whole, and is what JSON and CSV can hold
        assert len(json.loads(to_json(part.frame))) == len(part.frame)
        assert len(pd.read_csv(io.StringIO(to_csv(part.frame)))) == len(part.frame)
    assert not any(
        "NaN" in str(value) for part in made.tables for value in part.shown.astype(object).to_numpy().ravel() if value is not None
    )


def test_the_headline_tells_numerator_and_denominator_of_each_figure(load: Callable[[Wish], Sheet]) -> None:
    tiles = {tile["name"]: tile for tile in load(Wish()).tiles}

    assert set(tiles) == {
        "availability",
        "job-start success",
        "job success",
        "infrastructure job success",
        "goodput",
        "failed attempts",
    }
    for tile in tiles.values():
        assert re.search(r"of [0-9,]+ ", tile["of"]), tile
    assert tiles["availability"]["state"] in ("kept", "missed")
    assert "target 97 %" in tiles["availability"]["target"]


def test_the_parts_of_time_add_up_in_the_table_and_in_its_file(load: Callable[[Wish], Sheet]) -> None:
    part = load(Wish(tab="time")).tables[0]

    assert round(sum(part.shown["share"]), 6) == 100
    assert part.frame["microseconds"].sum() == part.frame["total_microseconds"].iloc[0]


def test_failures_by_class_are_all_failures(load: Callable[[Wish], Sheet]) -> None:
    classes, attempts = load(Wish(tab="failures")).tables

    assert classes.frame["attempts"].sum() == len(attempts.frame) == classes.frame["of"].iloc[0]


def test_listed_nodes_can_be_taken_along(load: Callable[[Wish], Sheet]) -> None:
    view = shown(load, {"tab": "lemons"})
    exclude = load(view.wish).drawn["exclude"]

    assert exclude
    assert f'data-copy="--exclude={exclude}"' in texts(view)


def test_a_simulated_account_says_so_and_a_real_one_where_it_is(load: Callable[[Wish], Sheet]) -> None:
    assert "simulated: nothing of it is real" in shown(load, simulated=True)._top.html
    real = shown(load, where="/srv/fleet.sqlite")._top.html
    assert "simulated" not in real
    assert "/srv/fleet.sqlite" in real


def test_the_way_to_other_weeks_is_by_dates(load: Callable[[Wish], Sheet]) -> None:
    view = shown(load, {"window": "4w"})
    earlier = re.search(r'data-go="window=([0-9-]+)%2F([0-9-]+)">← earlier', view._chips.html)
    assert earlier
    view.heard(f"window={earlier[1]}/{earlier[2]}")

    assert view._sheet is not None
    assert not view._sheet.empty
    assert "later →" in view._chips.html
    assert view.state()["window"] == f"{earlier[1]}/{earlier[2]}"


def test_weeks_without_anything_say_where_there_is_something(load: Callable[[Wish], Sheet]) -> None:
    view = shown(load, {"window": "2020-01-06/2020-01-13"})
    assert "tells nothing of these weeks" in view._notes.html
    asked = re.search(r'data-go="([^"]+)">Show all of it', view._notes.html)
    assert asked
    view.heard(asked[1].replace("&amp;", "&"))

    assert view._sheet is not None
    assert not view._sheet.empty


def test_too_many_attempts_are_said_and_no_figure_is_made_up(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MOST", 100)
    with Ledger.open(ledger, "ro") as opened:
        read = Account.read(opened, "8w", now=NOW)
    for tab in TABS:
        view = shown(lambda wish: sheet(read, wish), {"tab": tab})
        assert ("too many to be read" in view._notes.html) == (tab not in ("objectives", "gameday"))
    assert "goodput" not in [tile["name"] for tile in sheet(read, Wish()).tiles]


# ---- what is not there, and who waits


def test_without_a_ledger_it_says_how_to_get_one() -> None:
    def none(wish: Wish) -> Sheet:
        raise NoLedger("there is no ledger /x", hint="name another")

    view = shown(none)
    text = texts(view)

    assert "There is no account yet" in text
    assert "workbench run -- COMMAND" in text
    assert "workbench fleet ingest" in text
    assert not view.__panel__().select(pn.pane.Bokeh)


def test_a_ledger_that_breaks_leaves_the_figures_and_says_that_they_are_old(load: Callable[[Wish], Sheet]) -> None:
    versions = [1]
    broken: list[int] = []

    def take(wish: Wish) -> Sheet:
        if broken:
            raise WorkbenchError("the ledger is damaged", hint="workbench fleet export saves what can be read")
        return load(wish)

    view = shown(take, version=lambda: versions[0])
    versions[0] = 2
    broken.append(1)
    view.refresh()

    assert "the ledger is damaged" in view._top.html
    assert view.__panel__().select(pn.pane.Bokeh)
    view.heard("tab=time")
    assert "cannot be read" in texts(view)


def test_nobody_is_held_up_and_the_last_wish_wins(load: Callable[[Wish], Sheet]) -> None:
    pool = Pool()
    view = shown(load, pool=pool)
    assert "Reading the ledger" in texts(view)
    view.heard("tab=time")
    view.heard("tab=failures")
    assert not view.__panel__().select(pn.pane.Bokeh)
    pool.run()

    assert view._sheet is not None
    assert view._sheet.wish.tab == "failures"
    assert "reading …" not in view._top.html


def test_a_page_is_whole_at_once_when_its_sheet_is_held(load: Callable[[Wish], Sheet]) -> None:
    pool = Pool()
    view = shown(load, pool=pool, held=load)

    assert view._sheet is not None
    assert not pool.waiting


def test_it_is_read_again_only_when_the_ledger_has_changed(load: Callable[[Wish], Sheet]) -> None:
    asked: list[Wish] = []
    versions = [1]

    def take(wish: Wish) -> Sheet:
        asked.append(wish)
        return load(wish)

    view = shown(take, version=lambda: versions[0])
    view.refresh()
    assert len(asked) == 1
    versions[0] = 2
    view.refresh()
    view.refresh()
    assert len(asked) == 2


# ---- hostile text


def test_hostile_text_of_a_ledger_stays_text_everywhere(tmp_path: Path) -> None:
    row = {
        "cluster": EVIL,
        "job": EVIL,
        "source": EVIL,
        "gpus": 8,
        "state": "failed",
        "cause": "hardware",
        "cls": EVIL,
        "recorded": NOW,
    }
    times = {"started": NOW - 7200, "ended": NOW - 3600}
    with Ledger.open(tmp_path / "x.sqlite") as ledger, ledger.batch():
        ledger.put("jobs", [row | times | {"team": EVIL, "pool": EVIL, "sku": EVIL, "user": EVIL, "submitted": NOW - 7300}])
        ledger.put(
            "attempts", [row | times | {"attempt": 1, "node": EVIL, "gpu_uuid": EVIL, "node_names": [EVIL], "incident": EVIL}]
        )
        state = {"cluster": EVIL, "node": EVIL, "begin": NOW - 9000, "state": "down", "cause": "hardware", "sku": EVIL, "gpus": 8}
        ledger.put("node_states", [state])
    with Ledger.open(tmp_path / "x.sqlite", "ro") as opened:
        read = Account.read(opened, "1w", cluster=EVIL, now=NOW)
    for tab in TABS:
        view = AccountView(lambda wish: sheet(read, wish), where=EVIL, clock=lambda: NOW)
        view.wish = Wish("1w", EVIL, "team", "allocated", tab)
        view.__panel__()
        text = texts(view)
        assert "<script>window" not in text
        assert "<img src=x" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "&lt;script&gt;" in text


def test_a_share_is_rounded_neither_to_all_nor_to_nothing() -> None:
    assert [percent(one) for one in (None, 0.0, 0.00001, 0.5, 0.99999, 1.0)] == [
        "–", "0.00 %", "< 0.01 %", "50.00 %", "> 99.99 %", "100.00 %",
    ]  # fmt: skip


# ---- budgets, ETTR, game days


def test_targets_of_a_file_are_those_that_are_judged_and_budgeted(ledger: Path) -> None:
    own = (Objective("ours", "job-success", 0.999, days=7.0), Objective("strict", "availability", 0.9999))
    with Ledger.open(ledger, "ro") as opened:
        account = Account.read(opened, "8w", targets=own, now=NOW)
    made = sheet(account, Wish())
    tiles = {tile["name"]: tile for tile in made.tiles}

    assert (tiles["job success"]["state"], tiles["job success"]["target"]) == ("missed", "target 99.9 %")
    assert tiles["infrastructure job success"]["state"] == ""
    assert made.drawn["targets"] == {"job success": 0.999, "availability": 0.9999}
    burns = next(part for part in made.tables if part.name == "budget-burns")
    assert list(burns.frame["objective"]) == ["ours"] * 4 + ["strict"] * 4
    assert "7 days, 30 days" in burns.note


def test_burns_of_the_page_are_those_of_the_account_and_a_burn_that_counts_says_who_is_told(tmp_path: Path) -> None:
    rows = [
        {"job": str(one), "started": NOW - 9000, "ended": NOW - 60 * one - 10, "state": "failed" if one < 20 else "completed", "cause": "driver"}
        for one in range(60)
    ]  # fmt: skip
    with Ledger.open(tmp_path / "own.sqlite") as opened:
        opened.put("jobs", rows)
        account = Account.read(opened, "8w", targets=(Objective("all", "job-success", 0.98),), now=NOW)
    (part,) = (one for one in sheet(account, Wish()).tables if one.name == "budget-burns")
    for (_, burn), row, seen in zip(account.burning, part.frame.to_dict("records"), part.shown.to_dict("records"), strict=True):
        assert (burn.state, burn.bad, burn.total) == (row["state"], row["bad"], row["of"])
        assert ("page" in seen["state"] or "ticket" in seen["state"]) == (burn.state == "burning")
    assert [one.state for _, one in account.burning] == ["burning"] * 4
    assert list(part.shown["state"]) == ["burns: page", "burns: page", "burns: ticket", "burns: ticket"]


def test_ettr_and_its_formula_differ_by_what_the_terms_say(load: Callable[[Wish], Sheet]) -> None:
    made = load(Wish(tab="time"))
    part = next(one for one in made.tables if one.name == "ettr")
    said = [float(number) for number in re.findall(r"([\d.]+) %", part.title)]

    assert round(100 - 100 * part.frame["measured"].sum(), 2) == said[0]
    assert round(100 - 100 * part.frame["expected"].sum(), 2) == said[1]
    assert round(100 * part.frame["difference"].sum(), 2) == pytest.approx(said[1] - said[0], abs=0.011)
    assert "the formula expects" in part.note
    assert "jobs that told their checkpoints" in part.note
