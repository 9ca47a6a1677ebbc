"""Pages of metrics become events: levels, states and odd values, with the line that says so; no page raises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.detect.played_fleet import START, role
from workbench.catalog import signatures
from workbench.detect.metrics import detect_metrics
from workbench.model import Gpu, Series
from workbench.parse.prom_text import parse_exposition


def exposition(lines: list[str]) -> list[Series]:
    return parse_exposition("\n".join(lines).encode(), file="metrics/n1.prom").series


def test_fabric_state_two_is_a_level_that_counts():
    """3 is success; a node that stays at 2 cannot initialise CUDA, however long ago it got there."""
    lines = [
        f'DCGM_FI_DEV_FABRIC_MANAGER_STATUS{{gpu="{gpu}",UUID="GPU-{node}-{gpu}",Hostname="{node}"}} '
        f"{2 if node == 'n2' else 3} {1760000000 + 30 * at}.000"
        for node in ("n1", "n2", "n3")
        for gpu in range(2)
        for at in range(10)
    ]
    found = [event for event in detect_metrics(exposition(lines)) if role(event) == "cause"]
    assert [(event.signature, event.node, event.gpu, event.data["gpus"]) for event in found] == [
        ("metric-fabric-not-ready", "n2", None, 2)
    ]


def test_dcgms_health_watch_gives_the_class_of_its_error():
    """A new failing series is a change; one that failed all along is context."""
    labels = 'gpu="%d",UUID="GPU-a-%d",Hostname="n1",health_watch="PCIE",health_error_code="DCGM_FR_PCI_REPLAY_RATE"'
    name = f"DCGM_EXP_GPU_HEALTH_STATUS{{{labels}}}"
    lines = [f"{name % (0, 0)} {20 if at > 6 else 0} {1760000000 + 30 * at}.000" for at in range(10)]
    lines += [f"{name % (1, 1)} 20 {1760000000 + 30 * at}.000" for at in range(10)]
    found = {event.gpu.index: event for event in detect_metrics(exposition(lines))}
    assert (found[0].cls, role(found[0]), found[0].time) == ("hardware/pcie", "cause", 1760000210.0)
    assert role(found[1]) == "context"


def test_a_page_without_times_tells_states_and_no_growth():
    """What stands all along a window is history; on a page fetched by hand it is of now, and a counter says nothing."""
    labels = 'gpu="%d",UUID="GPU-a-%d",Hostname="n1"'
    failed = f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{labels % (0, 0)}}} 1"
    counter = f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{labels % (1, 1)}}} 4"
    found = detect_metrics(exposition([failed, counter]))
    assert [(event.signature, role(event), event.time) for event in found] == [("metric-row-remap-failure", "cause", None)]
    window = [f"{failed} {1760000000 + 30 * at}.000" for at in range(10)]
    assert [role(event) for event in detect_metrics(exposition(window))] == ["context"]


def test_an_exporter_that_never_answered_is_said_so():
    """`up` is 0 all along on a node whose host exporter answers."""
    lines = [
        f'up{{instance="10.0.0.{node}:{port}",job="{job}"}} {int(port == 9100 or node != 2)} {1760000000 + 30 * at}'
        for node in (1, 2, 3)
        for port, job in ((9400, "dcgm-exporter"), (9100, "node-exporter"))
        for at in range(10)
    ]
    (event,) = detect_metrics(exposition(lines))
    assert (event.signature, event.node, event.data["node_up"]) == ("metric-exporter-down", "10.0.0.2", True)


def test_events_quote_their_line():
    """text, file and line lead to the evidence."""
    head = "DCGM_FI_DEV_XID_ERRORS"
    lines = [
        f'{head}{{gpu="{gpu}",UUID="GPU-a-{gpu}",Hostname="n1"}} {79 * (gpu == 1 and at >= 7)} {1760000000 + 30 * at}.250'
        for gpu in range(2)
        for at in range(10)
    ]
    (event,) = detect_metrics(exposition(lines))
    assert event.text == lines[17]
    assert (event.file, event.line) == ("metrics/n1.prom", 18)


def test_moved_indices_are_reported_and_events_keep_the_first():
    """After a restart without the lost GPU, index 1 is another card."""
    lines = []
    for at in range(20):
        for card in range(3):
            if card == 1 and at >= 8:
                continue
            index = card if at < 12 else {0: 0, 2: 1}[card]
            lines.append(
                f'DCGM_FI_DEV_GPU_TEMP{{gpu="{index}",UUID="GPU-a-{card}",Hostname="n1"}} {60 + at % 2} {START + 30 * at:.3f}'
            )
    found = {event.signature: event for event in detect_metrics(exposition(lines))}
    assert found["metric-gpu-vanished"].gpu == Gpu(1, "GPU-a-1", None)
    assert [found["metric-gpu-renumbered"].data[key] for key in ("before", "after")] == [2, 1]


NAMES = [
    "GPU_UTIL",
    "POWER_USAGE",
    "SM_CLOCK",
    "GPU_TEMP",
    "FB_USED",
    "FB_FREE",
    "XID_ERRORS",
    "PCIE_REPLAY_COUNTER",
    "PCIE_LINK_WIDTH",
    "CLOCK_THROTTLE_REASONS",
    "ROW_REMAP_PENDING",
    "FABRIC_MANAGER_STATUS",
    "FABRIC_HEALTH_MASK",
    "NVLINK_BANDWIDTH_TOTAL",
    "ECC_DBE_VOL_TOTAL",
]
VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 72.0, 100.0, 650.0, 2147483632.0, -1.0, float("inf"), float("nan")])
ROWS = st.tuples(
    st.sampled_from(NAMES),
    st.integers(0, 2),
    st.sampled_from(["a", "b", None]),
    st.booleans(),
    st.lists(VALUES, min_size=1, max_size=9),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(ROWS, max_size=14))
@example([("FB_USED", 0, "a", False, [0.0]), ("FB_FREE", 0, "a", False, [0.0])])
@example([("GPU_UTIL", 0, "b", False, [0.0]), ("SM_CLOCK", 0, "a", False, [0.0, -1.0, -1.0])])
def test_no_combination_of_series_raises(rows):
    """Fields missing, lengths uneven, nonsense in the values: events or none, never an exception."""
    series = []
    for name, gpu, node, held, values in rows:
        times = START + 30 * np.arange(len(values), dtype=float)
        series.append(
            Series(f"DCGM_FI_DEV_{name}", times, np.array(values), node, Gpu(gpu, None, None), pod="train-0" if held else None)
        )
    detect_metrics(series)


@pytest.mark.parametrize(
    "rows", [[], [Series("x", np.array([]), np.array([]))], [Series("x", np.array([np.nan]), np.array([1.0]))]]
)
def test_nothing_gives_nothing(rows):
    """No series, an empty one, one without a time."""
    assert detect_metrics(rows) == []


def test_a_single_scrape_gives_only_levels():
    """One exposition without history can show no onset."""
    raw = (Path(__file__).parents[1] / "data" / "metrics" / "spellings.prom").read_bytes()
    assert [
        event for event in detect_metrics(parse_exposition(raw, file="x", default_time=START).series) if role(event) == "cause"
    ] == []


def test_every_metric_signature_has_a_row():
    """An event without a catalog row has no meaning to anybody."""
    source = "".join(path.read_text() for path in (Path(detect_metrics.__code__.co_filename).parent).glob("*.py"))
    rows = [name for name in signatures() if name.startswith("metric-")]
    assert len(rows) >= 40
    assert [name for name in rows if f'"{name}"' not in source] == []
