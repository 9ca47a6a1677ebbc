"""Turn invented samples into small multiples, and prove that gaps stay gaps and units are told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.catalog import table
from workbench.frames import metrics_frame
from workbench.model import Gpu, Series
from workbench.plots.metrics import GAP, metric_panels, panels, peers_band, update_panels, with_gaps

Metrics = Callable[..., pd.DataFrame]
START = 1_777_892_400.0
TEMP, POWER = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"


def source(figure, name: str) -> dict[str, np.ndarray]:
    return next(drawn.data_source.data for drawn in figure.renderers if drawn.data_source.name == name)


def line(figure, field: str = TEMP) -> dict[str, np.ndarray]:
    """The points of the first line of a field."""
    lines = source(figure, "lines")
    at = list(lines["field"]).index(field)
    return {"x": lines["xs"][at], "y": lines["ys"][at]}


def one(field: str, times: list[float], values: list[float]) -> pd.DataFrame:
    return metrics_frame([Series(field, np.array(times) + START, np.array(values), node="a", gpu=Gpu(0))])


def test_a_gap_is_a_break_in_the_line_and_one_late_scrape_is_none(metrics: Metrics) -> None:
    gone = line(metric_panels(metrics(gap=slice(40, 50)), node="gpu-node-0001", gpu=3)[0])
    whole = line(metric_panels(metrics(gap=slice(40, 41)), node="gpu-node-0001", gpu=3)[0])

    broken = np.flatnonzero(np.isnan(gone["y"]))
    assert len(broken) == 1
    assert gone["x"][broken[0] - 1] == (START + 39 * 30) * 1e3
    assert gone["x"][broken[0] + 1] == (START + 50 * 30) * 1e3
    assert not np.isnan(whole["y"]).any()


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=60))
def test_breaks_stand_in_all_gaps_and_nowhere_else(distances: list[float]) -> None:
    times = np.cumsum([0.0, *distances])

    x, y = with_gaps(times, np.ones(len(times)))

    assert (np.diff(x) >= 0).all()
    assert (x[~np.isnan(y)] == times).all()
    usual = float(np.median(distances))
    gaps = sum(distance > GAP * usual for distance in np.diff(times)) if len(times) >= 3 else 0
    assert np.isnan(y).sum() == gaps


def test_a_sample_between_two_gaps_is_a_dot() -> None:
    made = metric_panels(one(TEMP, [0, 30, 60, 90, 600, 1200, 1230, 1260], [1, 2, 3, 4, 77, 5, 6, 7]), node="a", gpu=0)[0]

    alone = source(made, "alone")
    assert list(alone["y"]) == [77]
    assert list(alone["x"]) == [(START + 600) * 1e3]


def test_a_blank_sample_breaks_the_line_too() -> None:
    assert np.isnan(line(metric_panels(one(TEMP, [0, 30, 60, 90], [1, np.nan, 3, 4]), node="a")[0])["y"][1])


def test_the_unit_is_at_the_axis_and_time_is_utc(metrics: Metrics) -> None:
    made = metric_panels(metrics(fields=(TEMP, POWER)), node="gpu-node-0000", gpu=0)

    assert [figure.title.text for figure in made] == ["Temperature", "Power"]
    assert [figure.yaxis.axis_label for figure in made] == ["°C", "W"]
    assert {figure.xaxis.axis_label for figure in made} == {"time (UTC), 2026-05-04"}


def test_all_panels_zoom_together_and_the_event_has_its_line_in_each(metrics: Metrics) -> None:
    frame = metrics(fields=(TEMP, POWER))
    at = START + 600

    made = metric_panels(frame, node="gpu-node-0000", gpu=0, around=at, margin=300)

    assert made[0].x_range is made[1].x_range
    assert (made[0].x_range.start, made[0].x_range.end) == ((at - 300) * 1e3, (at + 300) * 1e3)
    assert [figure.select_one({"name": "event"}).location for figure in made] == [at * 1e3] * 2
    aware = metric_panels(frame, node="gpu-node-0000", gpu=0, around=datetime.fromtimestamp(at, UTC))
    assert aware[0].select_one({"name": "event"}).location == at * 1e3


def test_a_gpu_is_found_by_index_uuid_and_address(metrics: Metrics) -> None:
    frame = metrics()

    by_index, by_uuid, by_address = (
        line(metric_panels(frame, node="gpu-node-0001", gpu=gpu)[0]) for gpu in (3, "GPU-1-3", "0000:03:00.0")
    )

    assert list(by_index["y"]) == list(by_uuid["y"]) == list(by_address["y"])
    assert by_index["y"].min() == 63


def test_without_a_gpu_each_of_the_node_has_a_line_of_the_first_field(metrics: Metrics) -> None:
    made = metric_panels(metrics(fields=(TEMP, "DCGM_FI_DEV_MEMORY_TEMP")), node="gpu-node-0000")[0]

    lines = source(made, "lines")
    assert lines["gpu"] == [f"GPU {gpu}" for gpu in range(8)]
    assert lines["field"] == [TEMP] * 8


def test_a_panel_has_the_same_few_models_for_one_line_and_for_many(metrics: Metrics) -> None:
    frame = metrics(fields=(TEMP, "DCGM_FI_DEV_MEMORY_TEMP"))
    (many,), (few,) = (metric_panels(frame, node="gpu-node-0000", gpu=gpu) for gpu in (None, 0))

    assert len(many.renderers) == len(few.renderers) == 3  # the band, the lines, the dots
    # a browser waits for each model; the legend of the few is of three and itself
    assert len(many.references()) == len(few.references()) - 4


def test_panels_share_the_models_of_their_axis_of_time(metrics: Metrics) -> None:
    made = metric_panels(metrics(fields=(TEMP, POWER)), node="gpu-node-0000", gpu=0)

    assert len({figure.xaxis[0].ticker for figure in made} | {figure.xgrid[0].ticker for figure in made}) == 1
    assert len({figure.xaxis[0].formatter for figure in made}) == 1


def test_the_legend_names_each_line_by_its_own_look_and_lies_outside_of_the_lines(metrics: Metrics) -> None:
    memory = "DCGM_FI_DEV_MEMORY_TEMP"
    made = metric_panels(metrics(nodes=2, fields=(TEMP, memory)), node="gpu-node-0001", gpu=3)[0]

    (legend,) = made.legend
    assert legend in made.above
    assert [item.label.value for item in legend.items] == ["peers 10–90 %", "GPU", "memory"]
    lines = source(made, "lines")
    assert [lines["field"][item.index] for item in legend.items[1:]] == [TEMP, memory]
    assert len(set(zip(lines["colour"], lines["dash"], strict=True))) == 2


def test_hover_names_the_line(metrics: Metrics) -> None:
    from bokeh.models import HoverTool

    made = metric_panels(metrics(), node="gpu-node-0000", gpu=3)[0]

    hover = made.select_one(HoverTool)
    assert [drawn.data_source.name for drawn in hover.renderers] == ["lines"]
    assert ("", "@gpu") in hover.tooltips
    assert source(made, "lines")["gpu"] == ["GPU 3 GPU"]


def test_the_band_is_what_the_others_did(metrics: Metrics) -> None:
    made = metric_panels(metrics(nodes=2), node="gpu-node-0001", gpu=3)[0]

    band = source(made, "peers")
    # 15 others: 60..67 twice but for one 63, plus 0, 1, 2 by turns
    assert list(band["middle"][:4]) == [64.0, 65.0, 66.0, 64.0]
    assert (band["low"] < band["middle"]).all()
    assert (band["middle"] < band["high"]).all()
    assert band["left"][1] - band["left"][0] == 30_000


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5), min_size=3, max_size=9))
def test_the_band_has_the_quantiles_that_numpy_has(rows: list[list[float]]) -> None:
    values = np.array(rows)
    times = np.tile(np.arange(5) * 30_000.0, (len(rows), 1))
    series = np.tile(np.arange(len(rows))[:, None], (1, 5))

    band = peers_band(times.ravel(), values.ravel(), series.ravel())

    for name, share in (("low", 0.1), ("middle", 0.5), ("high", 0.9)):
        assert band[name] == pytest.approx(np.quantile(values, share, axis=0), abs=1e-6)


def test_two_peers_are_no_band() -> None:
    assert not len(peers_band(np.arange(8.0), np.ones(8), np.array([0, 1] * 4))["left"])


def test_a_counter_shows_growth_and_a_restart_is_none() -> None:
    field = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"

    made = metric_panels(one(field, [0, 30, 60, 90, 120], [100, 100, 107, 0, 2]), node="a", gpu=0)[0]

    drawn = line(made, field)
    # a value holds until the next one: corners, not slopes
    assert list(drawn["x"] / 1e3 - START) == [0, 30, 30, 60, 60, 90, 90, 120, 120]
    assert list(drawn["y"]) == [0, 0, 0, 0, 7, 7, 7, 7, 9]
    assert made.title.text == "ECC errors in this window"


def test_a_counter_does_not_hold_over_a_gap() -> None:
    field = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"

    drawn = line(metric_panels(one(field, [0, 30, 60, 600, 630], [1, 1, 2, 3, 3]), node="a", gpu=0)[0], field)

    inside = (drawn["x"] > (START + 60) * 1e3) & (drawn["x"] < (START + 600) * 1e3)
    assert inside.any()
    assert np.isnan(drawn["y"][inside]).all()


def test_a_ratio_is_shown_in_percent_and_bytes_in_gigabytes() -> None:
    use, sent = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_NVLINK_TX_BYTES"

    made = metric_panels(pd.concat([one(use, [0, 30], [0.5, 1.0]), one(sent, [0, 30], [2e9, 3e9])]), node="a", gpu=0)

    assert list(line(made[0], use)["y"]) == [50, 100]
    assert list(line(made[1], sent)["y"]) == pytest.approx([2, 3])


def test_many_samples_keep_their_extremes() -> None:
    values = np.zeros(50_000)
    values[31_234], values[40_001] = 99.0, -7.0

    drawn = line(metric_panels(one(TEMP, list(np.arange(50_000.0)), list(values)), node="a", gpu=0)[0])

    assert len(drawn["x"]) <= 1300
    assert (drawn["y"].max(), drawn["y"].min()) == (99.0, -7.0)


def test_a_gpu_that_tells_nothing_is_said_beside_what_its_peers_did(metrics: Metrics) -> None:
    frame = metrics(fields=(TEMP, POWER))
    silent = frame[~((frame["field"] == POWER) & (frame["node"] == "gpu-node-0001") & (frame["gpu_index"] == 3))]

    made = metric_panels(silent, node="gpu-node-0001", gpu=3)

    assert "nothing measured here" in [title.text for title in made[1].select({"name": "note"})]
    assert len(source(made[1], "peers")["left"])


def test_what_nobody_measured_is_said_once(metrics: Metrics) -> None:
    made = metric_panels(metrics(), node="gpu-node-0000", gpu=0)

    assert made[-1].select_one({"name": "note"}).text.startswith("not measured anywhere: power, clocks, use, memory, ecc")


@pytest.mark.parametrize(
    ("node", "gpu", "why"),
    [
        ("nowhere", None, "No metric names nowhere"),
        ("gpu-node-0000", 9, "No metric names gpu-node-0000 GPU 9"),
        ("gpu-node-0000", "GPU-x", "GPU-x"),
    ],
)
def test_whom_no_metric_names_is_said(metrics: Metrics, node: str, gpu: int | str | None, why: str) -> None:
    (made,) = metric_panels(metrics(), node=node, gpu=gpu)

    assert why in made.select_one({"name": "why"}).data_source.data["text"][0]


def test_no_metrics_are_a_sentence_and_so_is_a_field_of_no_panel() -> None:
    for nothing in (None, metrics_frame([])):
        assert "No metrics came" in metric_panels(nothing, node="a")[0].select_one({"name": "why"}).data_source.data["text"][0]
    strange = metric_panels(one("my_own_metric", [0, 30], [1, 2]), node="a")[0]
    assert "belongs to a panel" in strange.select_one({"name": "why"}).data_source.data["text"][0]


def test_another_gpu_in_place_is_what_new_figures_would_show(metrics: Metrics) -> None:
    frame = metrics(fields=(TEMP, POWER), gap=slice(40, 50))
    made = metric_panels(frame, node="gpu-node-0000", gpu=0, around=START + 600)

    assert update_panels(made, frame, node="gpu-node-0001", gpu=3, around=START + 900)

    fresh = metric_panels(frame, node="gpu-node-0001", gpu=3, around=START + 900)
    for mine, wanted in zip(made, fresh, strict=True):
        for drawn, other in zip(mine.renderers, wanted.renderers, strict=True):
            for name, values in other.data_source.data.items():
                np.testing.assert_array_equal(drawn.data_source.data[name], values)
        assert mine.select_one({"name": "event"}).location == (START + 900) * 1e3
        assert (mine.x_range.start, mine.x_range.end) == (wanted.x_range.start, wanted.x_range.end)


def test_what_does_not_fit_the_figures_changes_nothing(metrics: Metrics) -> None:
    frame = metrics()
    made = metric_panels(frame, node="gpu-node-0000", gpu=0)
    before = list(line(made[0])["y"])

    assert not update_panels(made, frame, node="nowhere", gpu=0)
    assert not update_panels(made, frame, node="gpu-node-0001")  # eight lines, not one
    assert not update_panels(
        made, frame, node="gpu-node-0001", gpu=0, around=START
    )  # a line for an event that the figures do not have
    assert not update_panels(made, metrics(fields=(POWER,)), node="gpu-node-0001", gpu=0)
    assert list(line(made[0])["y"]) == before


def test_every_field_of_a_panel_is_one_that_dcgm_has() -> None:
    known = {row["prometheus_name"] for row in table("dcgm_fields")}

    assert {row["field"] for _, rows in panels() for row in rows} <= known
    for _, rows in panels():
        assert len({(row["title"], row["unit"], row["kind"]) for row in rows}) == 1
        assert all(row["source"] and row["date"] and float(row["scale"]) > 0 for row in rows)
