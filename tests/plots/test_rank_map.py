"""Turn invented jobs into maps of ranks × time, and prove that what is drawn is what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from workbench.casefile.model import STATES, Activity
from workbench.plots.rank_map import follow_zoom, on_tap, rank_at, rank_map, rank_map_data
from workbench.plots.step_map import WORDS, lag_bins, step_map, step_map_data
from workbench.plots.theme import switch, theme

Job = Callable[..., tuple[Activity, pd.DataFrame, int]]
START = 1_777_892_400.0


def drawn(figure: Any) -> dict[str, Any]:
    source = figure.select_one({"name": "map"}).data_source
    return {name: values[0] for name, values in source.data.items()}


def labels(figure: Any) -> list[str]:
    return [item.label.value for item in figure.legend[0].items]


@pytest.mark.parametrize("count", [1, 8, 100, 1500, 16_384])
def test_the_one_dead_rank_is_drawn_at_its_place_however_many_there_are(job: Job, count: int) -> None:
    activity, ranks, dead = job(count)

    data = drawn(rank_map(activity, ranks))

    peak = STATES.index("culprit")
    assert data["image"].max() == peak
    row, column = np.argwhere(data["image"] == peak)[0]
    assert data["who"][row, column] == dead
    # its pixel covers the rank, and the piece of time
    high = data["dh"] / data["image"].shape[0]
    assert data["y"] + row * high <= dead < data["y"] + (row + 1) * high
    wide = data["dw"] / data["image"].shape[1]
    assert data["x"] + column * wide == pytest.approx((START + 120 * 30) * 1e3)
    assert (data["image"] == peak).sum() == 1


def test_there_are_never_more_rows_than_pixels_for_them(job: Job) -> None:
    activity, ranks, _ = job(16_384)

    for height in (200, 420, 900):
        made = rank_map(activity, ranks, height=height)
        # what title, note, legend and axis take; tests/browser/test_plots.py measures it in Chromium
        assert drawn(made)["image"].shape[0] <= height - 117


def test_a_zoom_shows_single_ranks_and_a_map_says_how_many_share_a_row(job: Job) -> None:
    activity, ranks, dead = job(16_384)

    whole = rank_map(activity, ranks)
    data = rank_map_data(activity, (dead - 50.2, dead + 50.7), (START + 3000, START + 4200))

    assert "56 to a row of pixels" in whole.select_one({"name": "note"}).text
    image = data["image"][0]
    assert image.shape == (102, 40)
    assert data["y"][0] == dead - 51
    assert data["dh"][0] == 102
    assert image[51, (START + 120 * 30 - data["x"][0] / 1e3) / 30 == np.arange(40)].tolist() == [STATES.index("culprit")]


def test_of_equal_times_the_axis_is_utc_and_names_the_day(job: Job) -> None:
    activity, ranks, _ = job(8)

    assert rank_map(activity, ranks).xaxis.axis_label == "time (UTC), 2026-05-04"


def test_few_nodes_are_named_at_the_axis_and_many_ranks_are_counted(job: Job) -> None:
    few, many = (rank_map(*job(count)[:2]) for count in (32, 16_384))

    assert few.yaxis.axis_label == "node"
    assert few.yaxis.major_label_overrides == {
        4.0: "gpu-node-0000",
        12.0: "gpu-node-0001",
        20.0: "gpu-node-0002",
        28.0: "gpu-node-0003",
    }
    assert many.yaxis.axis_label == "rank"


def test_ranks_that_do_not_count_from_zero_keep_their_numbers(job: Job) -> None:
    activity, ranks, _ = job(240)
    activity = replace(activity, ranks=activity.ranks + 1000)

    made = rank_map(activity, ranks.assign(rank=ranks["rank"] + 1000))

    assert next(iter(made.yaxis.formatter.args["rows"].data["rank"])) == 1000
    assert rank_at(activity, 3.5, START + 60) == 1003


def test_a_click_means_the_most_severe_rank_of_its_pixel(job: Job) -> None:
    activity, _, dead = job(16_384)

    first = dead // 56 * 56
    assert rank_at(activity, first + 0.2, START + 120 * 30 + 5) == dead
    assert rank_at(activity, first + 0.2, START + 60) == first
    assert rank_at(activity, -1.0, START + 60) is None
    assert rank_at(activity, 5.0, START - 60) is None


def test_what_is_clicked_in_a_page_is_told_to_python(job: Job) -> None:
    activity, ranks, _ = job(64)
    made = rank_map(activity, ranks)
    heard: list[tuple[int, float]] = []
    on_tap(made, lambda rank, second: heard.append((rank, second)))

    tapped = made.select_one({"name": "tapped"})
    tapped.data = {"rank": [7], "row": [7], "time": [START], "node": ["gpu-node-0000"], "gpu": [7], "state": ["running"]}

    assert heard == [(7, START)]


def test_zooming_a_served_map_pools_anew(job: Job) -> None:
    from bokeh.events import RangesUpdate

    activity, ranks, dead = job(16_384)
    made = rank_map(activity, ranks)
    follow_zoom(made, activity)

    made._trigger_event(RangesUpdate(made, x0=(START + 3000) * 1e3, x1=(START + 4200) * 1e3, y0=dead + 10.0, y1=dead - 10.0))

    assert drawn(made)["image"].shape == (20, 40)
    assert drawn(made)["image"].max() == STATES.index("culprit")


def test_evidence_is_marked_at_its_rank_or_at_its_node(job: Job, events: Callable[..., pd.DataFrame]) -> None:
    activity, ranks, _ = job(32)
    told = events(
        [
            {"time": 60.0, "evidence": 0, "role": "cause", "rank": 9, "text": "\x1b[31m$$x$$ <b>fell</b>\nof the bus"},
            {"time": 90.0, "evidence": 1, "role": "symptom", "node": "gpu-node-0002"},
            {"time": 95.0, "evidence": 2, "role": "symptom", "node": "switch-1"},
            {"time": None, "evidence": 3, "role": "symptom", "rank": 1},
            {"time": 99.0, "rank": 2},
        ]
    )

    source = rank_map(activity, ranks, events=told).select_one({"name": "evidence"}).data_source.data

    assert list(source["y"]) == [9.5, 20.0]
    assert list(source["number"]) == ["1", "2"]
    assert list(source["x"]) == [(START + 60) * 1e3, (START + 90) * 1e3]
    # a formula would be fetched from a server of others; control characters go, markup is left to Bokeh's escaping
    assert source["text"][0] == "[31m$ $x$ $ <b>fell</b> of the bus"


def test_the_legend_names_the_states_that_there_are_worst_first(job: Job) -> None:
    activity, ranks, _ = job(64)

    assert labels(rank_map(activity, ranks)) == ["culprit", "running"]


def test_a_map_of_nothing_says_what_is_missing() -> None:
    nobody = Activity(np.zeros(0, "int64"), np.zeros(0), np.zeros((0, 0), "uint8"))

    for activity in (None, nobody):
        made = rank_map(activity)
        assert "No rank" in made.select_one({"name": "why"}).data_source.data["text"][0]
        on_tap(made, lambda rank, second: None)
        follow_zoom(made, nobody)


def test_ranks_without_a_known_place_are_still_drawn(job: Job) -> None:
    activity, ranks, _ = job(16)

    made = rank_map(
        activity, ranks.assign(node=pd.array([None] * 16, dtype="string"), gpu_index=pd.array([None] * 16, dtype="Int64"))
    )

    assert drawn(made)["image"].shape == (16, 240)
    assert made.select_one({"name": "rows"}).data["node"].tolist() == [-1] * 16


def test_the_palette_follows_the_appearance(job: Job) -> None:
    activity, ranks, _ = job(64)
    made = rank_map(activity, ranks)

    switch(made, True)

    assert made.select_one({"name": "map"}).glyph.color_mapper.palette == [theme(True).states[word] for word in STATES]


def test_a_rank_that_stands_still_falls_behind_and_the_others_are_in_step(job: Job) -> None:
    activity, ranks, dead = job(64)

    bins = lag_bins(activity)

    assert WORDS[bins[dead, 0]] == "no step told"
    assert {WORDS[code] for code in bins[0, 1:]} == {"in step"}
    behind = [WORDS[code] for code in bins[dead]]
    assert behind[119] == "in step"
    assert behind[121:240:30] == ["2–4", "20–99", "100–999", "100–999"]
    image = drawn(step_map(activity, ranks))["image"]
    assert WORDS[image.max()] == "100–999"
    assert (drawn(step_map(activity, ranks, bins=bins))["image"] == image).all()
    assert step_map_data(activity, bins=bins)["image"][0].max() == image.max()


def test_the_median_is_of_those_that_told_a_step() -> None:
    steps = np.array([[10.0], [10.0], [np.nan], [np.nan], [7.0]], "float32")
    activity = Activity(np.arange(5), np.array([0.0, 30.0]), np.full((5, 1), 3, "uint8"), steps)

    assert [WORDS[code] for code in lag_bins(activity)[:, 0]] == ["in step", "in step", "no step told", "no step told", "2–4"]


def test_without_steps_the_step_map_says_so(job: Job) -> None:
    activity, ranks, _ = job(8)

    for one in (None, replace(activity, steps=None), replace(activity, steps=np.full((8, 240), np.nan, "float32"))):
        assert "training step" in step_map(one, ranks).select_one({"name": "why"}).data_source.data["text"][0]
