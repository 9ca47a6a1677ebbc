"""Turn invented fleets into one image, and prove that each GPU that is not well can be seen and found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.casefile.model import RANKS
from workbench.plots.gpu_map import GAP, gpu_map, gpu_map_data, on_gpu, placement_map
from workbench.site.model import GPUS, HEALTH

Fleet = Callable[[int, dict[tuple[int, int], str]], pd.DataFrame]
CRITICAL, OK, UNKNOWN = (HEALTH.index(word) for word in ("critical", "ok", "unknown"))


def image(figure: Any) -> tuple[np.ndarray, np.ndarray]:
    data = figure.select_one({"name": "map"}).data_source.data
    return data["image"][0], data["who"][0]


def cells(figure: Any) -> dict[str, np.ndarray]:
    return dict(figure.select_one({"name": "cells"}).data)


def labels(figure: Any) -> list[str]:
    return [item.label.value for item in figure.legend[0].items]


@pytest.mark.parametrize("nodes", [1, 2, 24, 25, 100, 2048, 40_000])
def test_one_critical_gpu_is_seen_and_found_in_a_fleet_of_any_size(fleet: Fleet, nodes: int) -> None:
    sick = nodes // 2
    frame = fleet(min(nodes, 2048), {}) if nodes <= 2048 else None
    if frame is None:  # 320,000 GPUs: the layout alone
        codes = np.full(nodes * 8, OK, "uint8")
        codes[sick * 8 + 5] = CRITICAL
        data = gpu_map_data(codes, np.arange(nodes * 8) // 8, np.arange(nodes * 8) % 8, high=288)
        assert data["pool"] > 1
        assert data["who"][data["image"] == CRITICAL].tolist() == [sick * 8 + 5]
        return
    made = gpu_map(fleet(nodes, {(sick, 5): "critical"}))

    drawn, who = image(made)
    assert (drawn == CRITICAL).sum() == 1
    row = int(who[drawn == CRITICAL][0])
    assert cells(made)["node"][row] == sick
    assert cells(made)["gpu"][row] == 5
    assert (drawn == OK).sum() == nodes * 8 - 1  # none shares a cell at this size


@settings(max_examples=30)
@given(st.integers(1, 3000), st.integers(1, 16), st.integers(100, 900), st.data())
def test_every_gpu_has_a_cell_that_is_at_least_as_severe(count: int, most: int, high: int, data: st.DataObject) -> None:
    nodes = np.repeat(np.arange(count), most)
    slots = np.tile(np.arange(most), count)
    codes = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 5, count * most).astype("uint8")

    made = gpu_map_data(codes, nodes, slots, high=high)

    drawn, who = made["image"], made["who"]
    there = drawn != GAP
    assert (codes[who[there]] == drawn[there]).all()
    assert drawn[there].max() == codes.max()
    if made["pool"] == 1:
        assert sorted(who[there].tolist()) == list(range(count * most))
    else:
        share = made["pool"]
        for node in range(0, count, share):
            worst = codes[(nodes // share == node // share) & (slots == 0)].max()
            place = node // share
            columns = drawn.shape[1]
            assert drawn[place // columns * made["strip"], place % columns] == worst
    assert drawn.shape[0] <= max(high, most, 24)


def test_an_unheard_or_unheard_of_health_is_unknown_never_ok(fleet: Fleet) -> None:
    frame = fleet(2, {(0, 0): "splendid", (0, 1): "critical"})
    frame.loc[3, "health"] = pd.NA

    drawn, _ = image(gpu_map(frame))

    assert drawn[0].tolist() == [UNKNOWN, CRITICAL, OK, UNKNOWN, OK, OK, OK, OK]


def test_nodes_stand_in_the_order_of_the_frame_and_few_have_names(fleet: Fleet) -> None:
    frame = fleet(3, {}).iloc[::-1]

    made = gpu_map(frame)

    assert made.yaxis.major_label_overrides == {0.5: "gpu-node-0002", 1.5: "gpu-node-0001", 2.5: "gpu-node-0000"}
    assert made.xaxis.axis_label == "GPU"


def test_gpus_that_share_an_index_or_have_none_each_keep_a_cell(fleet: Fleet) -> None:
    frame = fleet(1, {(0, 2): "critical", (0, 3): "warning"})
    frame["gpu_index"] = pd.array([0, 1, 1, None, None, 5, 6, 7], dtype="Int64")

    made = gpu_map(frame)

    drawn, who = image(made)
    assert sorted(who[drawn != GAP].tolist()) == list(range(8))
    assert sorted(drawn[drawn != GAP].tolist())[-2:] == [HEALTH.index("warning"), CRITICAL]


def test_a_gpu_that_is_not_there_is_a_gap_not_a_colour(fleet: Fleet) -> None:
    drawn, _ = image(gpu_map(fleet(2, {}).drop(index=11)))

    assert drawn[1].tolist() == [OK, OK, OK, GAP, OK, OK, OK, OK]


def test_the_legend_counts_and_the_note_tells_how_many(fleet: Fleet) -> None:
    made = gpu_map(fleet(2048, {(5, 1): "critical", (6, 1): "critical"}))

    assert labels(made) == ["critical 2", "warning 0", "unknown 0", "ok 16,382", "absent 0"]
    assert made.select_one({"name": "note"}).text == "16,384 GPUs on 2,048 nodes"


def test_only_what_is_not_well_carries_a_sentence(fleet: Fleet) -> None:
    made = gpu_map(fleet(500, {(7, 3): "warning"}))

    hover = next(tool for tool in made.tools if type(tool).__name__ == "HoverTool")
    assert json.loads(hover.formatters["@who"].args["facts"]) == {str(7 * 8 + 3): "warning for a reason"}


def test_what_is_clicked_in_a_page_is_told_to_python(fleet: Fleet) -> None:
    made = gpu_map(fleet(2, {}))
    heard: list[tuple[str, int | None]] = []
    on_gpu(made, lambda node, gpu: heard.append((node, gpu)))

    tapped = made.select_one({"name": "tapped"})
    tapped.data = {"node": ["a"], "gpu": [3], "state": ["ok"]}
    tapped.data = {"node": ["a"], "gpu": [-1], "state": ["ok"]}

    assert heard == [("a", 3), ("a", None)]


def test_no_gpu_is_a_sentence() -> None:
    empty = pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in GPUS.items()})

    for nothing in (None, empty):
        made = gpu_map(nothing)
        assert "No GPU is known" in made.select_one({"name": "why"}).data_source.data["text"][0]
        on_gpu(made, lambda node, gpu: None)


def ranks(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame([{name: row.get(name) for name in RANKS} for row in rows], columns=list(RANKS)).astype(
        {name: dtype for name, dtype in RANKS.items() if not dtype.startswith("datetime")}
    )


def test_where_a_job_ran_is_coloured_by_how_each_rank_ended() -> None:
    made = placement_map(
        ranks(
            [
                {"rank": 0, "node": "a", "gpu_index": 0, "state": "victim"},
                {"rank": 1, "node": "a", "local_rank": 1, "state": "culprit"},
                {"rank": 2, "node": "b", "gpu_index": 0, "state": "done"},
                {"rank": 3, "state": "failed"},
            ]
        )
    )

    drawn, _ = image(made)
    assert drawn.tolist() == [[6, 8], [2, GAP]]
    assert labels(made) == ["culprit 1", "victim 1", "done 1"]
    assert "1 ranks without a known node are not drawn" in [title.text for title in made.select({"name": "note"})]


def test_a_job_of_unknown_place_is_a_sentence() -> None:
    for nothing in (None, ranks([]), ranks([{"rank": 0, "state": "failed"}])):
        assert "on which nodes" in placement_map(nothing).select_one({"name": "why"}).data_source.data["text"][0]
