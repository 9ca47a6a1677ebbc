"""Turn snapshots into the fleet's page, and check what it shows, what it leaves out, what its link holds, and that updates only patch."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("panel")

from tests.views.fleets import EVIL, NOW, Still, demo, hostile, unwell
from workbench.site.frames import no_snapshot
from workbench.site.model import Heard
from workbench.views.fleet import FleetView
from workbench.views.fleet_model import Picture, Wish, age, picture


def made(poller: Any, **more: Any) -> FleetView:
    view = FleetView(poller, clock=lambda: NOW, **more)
    view.__panel__()
    return view


@pytest.fixture(scope="module")
def fleet() -> Any:
    return demo(1024)


def texts(view: FleetView) -> str:
    return " ".join(str(part.object) for part in (view._top, view._chips, view._nav)) + view._side.html


# ---- what is wanted


def test_counts_tell_what_each_filter_would_leave(fleet: Any) -> None:
    seen = Picture(fleet, Wish(cause="hardware"))
    assert set(seen.nodes["cause"]) == {"hardware"}
    # of its own filter a chip counts as if it were not set, of the others as they are
    assert seen.causes["driver"] == Picture(fleet, Wish()).causes["driver"]
    assert sum(seen.healths.values()) == len(seen.nodes)
    assert sum(count for _, count in seen.offered("pool")) == len(seen.nodes)


def test_the_worst_nodes_come_first_and_the_map_keeps_its_places(fleet: Any) -> None:
    seen = Picture(fleet, Wish())
    order = ["critical", "warning", "unknown", "ok"]
    assert [word for word in dict.fromkeys(seen.nodes["health"])] == order  # noqa: C416
    later = Picture(demo(1024, NOW + 15), Wish())
    assert later.places == seen.places
    assert seen.gpus.groupby("node", sort=False)["gpu_index"].first().eq(0).all()


@pytest.mark.parametrize(("words", "hits"), [("gpu-node-054", 1), ("GPU-NODE-054", 1), ("nothing like it", 0)])
def test_words_are_looked_for_in_names(fleet: Any, words: str, hits: int) -> None:
    assert len(Picture(fleet, Wish(q=words)).nodes) == hits


def test_words_are_looked_for_in_uuids_jobs_and_reasons(fleet: Any) -> None:
    gpu = fleet.gpus.iloc[100]
    assert list(Picture(fleet, Wish(q=gpu["gpu_uuid"])).nodes["node"]) == [gpu["node"]]
    job = fleet.jobs.iloc[0]
    assert len(Picture(fleet, Wish(q=job["job"])).nodes) == job["nodes"]
    assert len(Picture(fleet, Wish(q="[a-z")).nodes) == 0  # words, no expression


def test_an_unknown_cause_is_one_to_filter_by(fleet: Any) -> None:
    nodes = Picture(fleet, Wish(cause="unknown")).nodes
    assert len(nodes)
    assert "ok" not in set(nodes["health"])


def test_jobs_tell_how_many_of_their_nodes_are_not_well(fleet: Any) -> None:
    jobs = Picture(fleet, Wish()).jobs
    ill = set(fleet.nodes.loc[fleet.nodes["health"] != "ok", "node"])
    row = jobs.iloc[0]
    assert row["ill"] == len(ill & set(row["node_names"]))


def test_sessions_share_the_picture_of_a_snapshot_and_old_ones_go(fleet: Any) -> None:
    one = picture(fleet, Wish())
    assert picture(fleet, Wish()) is one
    assert picture(fleet, Wish(health="ok")) is not one
    held = weakref.ref(picture(replace(fleet, time=fleet.time - 1000), Wish()))
    picture(replace(fleet, time=fleet.time + 1000), Wish())
    gc.collect()
    assert held() is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5 s"), (600, "10 min"), (7200, "2.0 h"), (1e6, "11.6 d"), (-3, "0 s"), (None, "")]
)
def test_ages_are_for_people(seconds: float | None, words: str) -> None:
    assert age(seconds) == words


# ---- the page


def test_the_page_tells_counts_sources_and_suspects(fleet: Any) -> None:
    view = made(Still(fleet))
    said = texts(view)
    assert "1,024" in said
    assert "nothing of it is real" in said
    assert "gpu-node-054" in view._side.html
    assert "does not test against chance" in view._side.html
    assert "workbench check" in said
    assert "have not been checked for 15 minutes" in said


def test_the_whole_state_is_in_the_link_and_comes_back(fleet: Any) -> None:
    state = {
        "pool": "h100-train",
        "cause": "hardware",
        "health": "critical",
        "q": "gpu",
        "tab": "findings",
        "node": "gpu-node-054",
        "gpu": "4",
    }
    view = FleetView(Still(fleet), clock=lambda: NOW)
    view.set_state(state)
    assert view.state() == state
    other = FleetView(Still(fleet), clock=lambda: NOW)
    other.set_state(view.state())
    assert (other.wish, other.tab, other.node, other.gpu) == (view.wish, view.tab, view.node, view.gpu)
    assert FleetView(Still(fleet)).state() == {}  # defaults are left out


def test_what_a_link_asks_for_and_is_not_there_is_told(fleet: Any) -> None:
    view = FleetView(Still(fleet), clock=lambda: NOW)
    view.set_state({"health": "splendid", "gpu": "-1", "tab": "everything", "pool": "h100-train"})
    view.__panel__()
    assert set(view.refused) == {"health", "gpu", "tab"}
    assert view.wish == Wish(pool="h100-train")
    assert "splendid" not in texts(view)  # what was refused is named by its name
    assert "health (" in texts(view)


def test_choosing_a_gpu_shows_its_node_and_closing_it_the_suspects(fleet: Any) -> None:
    view = made(Still(fleet))
    view.choose("gpu-node-054", 4)
    assert "Open node" in view._side.html
    assert 'class="on"' in view._side.html
    assert len(view._figure.select_one({"name": "chosen"}).data_source.data["left"]) == 1
    view.heard("close=1")
    assert "Suspects" in view._side.html
    assert view.node is None


def test_a_click_on_a_suspect_is_heard_and_nonsense_is_not(fleet: Any) -> None:
    view = made(Still(fleet))
    view.heard("node=gpu-node-054&gpu=4")
    assert (view.node, view.gpu) == ("gpu-node-054", 4)
    for nonsense in ("", "x=1", "gpu=nan", "node=", "%%%"):
        view.heard(nonsense)
    assert view.node == "gpu-node-054"


def test_a_filter_that_leaves_nothing_says_so(fleet: Any) -> None:
    view = made(Still(fleet))
    view.wish = Wish(q="nothing like it")
    assert "No node matches" in str(view._map[0].object)
    view.wish = Wish()
    assert view._figure is not None


def test_each_tab_has_its_table_made_when_it_is_seen(fleet: Any) -> None:
    view = made(Still(fleet))
    assert list(view._tables) == ["nodes"]
    for tab in ("findings", "conditions", "jobs", "suspects", "actions"):
        view.tab = tab
        assert len(view._tables[tab].frame)
        assert view._body[0] is view._tables[tab].__panel__()


def test_choosing_a_row_of_a_table_chooses_its_gpu(fleet: Any) -> None:
    view = made(Still(fleet))
    view.tab = "findings"
    frame = view._tables["findings"].frame
    row = int(np.flatnonzero(frame["gpu_index"].notna().to_numpy())[0])
    view._tables["findings"]._chosen(row)
    assert (view.node, view.gpu) == (frame["node"].iloc[row], frame["gpu_index"].iloc[row])
    view.tab = "jobs"
    view._tables["jobs"]._chosen(0)
    assert view.wish.q == view._tables["jobs"].frame["job"].iloc[0] or view.wish.q in str(view.picture.jobs["job"].tolist())


# ---- what is not there


def test_without_a_poller_it_says_how_to_get_a_fleet() -> None:
    view = made(None)
    assert "No fleet is watched" in str(view._top.object)


def test_before_the_first_answer_it_waits_and_then_fills_itself(fleet: Any) -> None:
    poller = Still(no_snapshot("x", NOW, heard=(Heard("poller", "missing", None),)), version=0)
    view = made(poller)
    assert "Asking the site" in str(view._top.object)
    assert view.first() == ""
    poller.show(fleet)
    view.refresh()
    assert len(view._stage) == 4
    assert view._figure is not None


def test_a_site_without_nodes_is_not_called_healthy() -> None:
    poller = Still(no_snapshot("x", NOW, heard=(Heard("kubernetes", "failed", None, "refused", "look at its certificate"),)))
    said = str(made(poller)._top.object)
    assert "No node is known" in said
    assert "refused" in said
    assert "look at its certificate" in said


def test_stale_and_failed_sources_are_told_with_the_way_out(fleet: Any) -> None:
    said = texts(made(Still(unwell(fleet))))
    assert "prometheus stale" in said
    assert "is it up?" in said
    assert "refused" in said


def test_a_snapshot_that_is_old_is_called_old(fleet: Any) -> None:
    now = [NOW]
    poller = Still(fleet)
    view = FleetView(poller, clock=lambda: now[0])
    view.__panel__()
    assert "What you see is old" not in texts(view)
    now[0] = NOW + 3 * fleet.period
    view.refresh()  # no new snapshot came: that is what is told
    assert "What you see is old" in texts(view)


def test_hostile_words_stay_text() -> None:
    view = made(Still(hostile()))
    for tab in ("nodes", "findings", "conditions", "jobs", "suspects", "actions"):
        view.tab = tab
        shown = view._tables[tab].shown
        for name in shown.columns:
            assert "\x1b" not in " ".join(map(str, shown[name]))
        assert all(one == {"type": "plaintext"} for one in view._tables[tab].tabulator.formatters.values())
    view.choose("gpu-1", 0)
    said = texts(view) + view.first()
    assert "<script>" not in said
    assert "<img" not in said
    assert "&lt;script&gt;" in said
    assert "\x1b" not in said
    assert EVIL not in said


# ---- live update


def test_a_new_snapshot_patches_what_is_there_and_builds_nothing() -> None:
    poller = Still(demo(1024))
    view = made(poller)
    before = view._figure, view._tables["nodes"].tabulator, view._map[0], list(view._stage)
    bad = poller.snapshot
    health = bad.gpus["health"].mask(bad.gpus.index == 500, "critical")
    node = bad.gpus["node"].iloc[500]
    nodes = bad.nodes.assign(health=bad.nodes["health"].mask(bad.nodes["node"] == node, "critical"))
    poller.show(replace(bad, gpus=bad.gpus.assign(health=health), nodes=nodes, time=bad.time + 15))
    image = before[0].renderers[0].data_source.data["image"][0].copy()
    view.refresh()
    assert (view._figure, view._tables["nodes"].tabulator, view._map[0], list(view._stage)) == before
    assert (before[0].renderers[0].data_source.data["image"][0] != image).sum() == 1
    assert node in set(view._tables["nodes"].shown["node"].head(10))


def test_nothing_new_changes_nothing(fleet: Any) -> None:
    view = made(Still(fleet))
    drawn: list[Any] = []
    for part in (view._top, view._chips, view._nav):
        part.param.watch(drawn.append, "object")
    view._tables["nodes"].tabulator.param.watch(drawn.append, "value")
    view.refresh()
    view.refresh()
    assert drawn == []


def test_a_fleet_of_another_size_gets_another_map() -> None:
    poller = Still(demo(256))
    view = made(poller)
    first = view._figure
    poller.show(demo(512))
    view.refresh()
    assert view._figure is not first


def test_a_session_that_ended_leaves_nothing_behind(fleet: Any) -> None:
    from workbench.views.fresh import ticker

    view = FleetView(Still(fleet), clock=lambda: NOW)
    ended: list[bool] = []
    tick = ticker(view, lambda: ended.append(True))
    held = weakref.ref(view)
    del view
    gc.collect()
    assert held() is None  # the callback does not hold it
    import asyncio

    asyncio.run(tick())
    assert ended == [True]


def test_a_page_that_cannot_be_drawn_once_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    from workbench.views.fresh import ticker

    class Broken:
        calls = 0

        def refresh(self) -> None:
            self.calls += 1
            raise ValueError("a defect")

    one = Broken()
    tick = ticker(one)
    asyncio.run(tick())
    asyncio.run(tick())
    assert one.calls == 2
    assert "could not be brought up to date" in caplog.text


def test_what_is_seen_before_scripts_run_has_the_counts(fleet: Any) -> None:
    first = FleetView(Still(fleet), clock=lambda: NOW).first()
    assert "1,024" in first
    assert "critical" in first
    assert isinstance(pd.Timestamp(fleet.time, unit="s"), pd.Timestamp)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Panel (1.9.4) sorts so
def test_a_link_holds_how_its_table_is_sorted_and_a_newer_fleet_leaves_it_so(fleet: Any) -> None:
    """Of each tab its own; the link of a tab holds it."""
    poller = Still(fleet)
    view = made(poller)
    view._tables["nodes"].tabulator.sorters = [{"field": "node", "dir": "desc"}]
    assert view.state() == {"tables": "nodes=sort%3D-node"}
    assert "sort%253D-node" in view._nav.object

    other = made(poller)
    other.set_state({"tab": "jobs"} | view.state())
    other.tab = "nodes"
    table = other._tables["nodes"].tabulator
    assert table.current_view["node"].tolist() == sorted(table.current_view["node"], reverse=True)
    poller.show(demo(1024, NOW + 15))
    other.refresh()
    assert other._tables["nodes"].tabulator is table
    assert table.current_view["node"].tolist() == sorted(table.current_view["node"], reverse=True)
