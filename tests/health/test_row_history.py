"""A GPU that loses rows of its memory again and again is told before its spares are gone; one loss, however large, is what spares are for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.health.gpu_node import NOW, UUIDS, Node
from workbench.health import Finding, run
from workbench.health.history import recall
from workbench.health.row_history import WINDOW, growth, next_state
from workbench.health.state import forget
from workbench.model import Gpu
from workbench.parse.gpu_state import GpuState
from workbench.sources.node.world import World

DAY = 86400.0
PLACE = "/var/lib/workbench"


def gpu(rows: int | None, uuid: str = UUIDS[3]) -> GpuState:
    facts = {} if rows is None else {"remapped_rows.correctable": 0, "remapped_rows.uncorrectable": rows}
    return GpuState(Gpu(3, uuid, "0000:5d:00.0"), facts)


def looks(counts: Sequence[tuple[float, int | None]]) -> tuple[int, int] | None:
    """Keep all looks but the last, (days before NOW, rows); return what the last one says: rows lost, and at how many times."""
    kept = None
    for ago, rows in counts[:-1]:
        kept = next_state(kept, [gpu(rows)], now=NOW - ago * DAY)
    ago, rows = counts[-1]
    grown = growth(kept, gpu(rows), now=NOW - ago * DAY)
    return (grown.lost, grown.times) if grown else None


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([(0, 4)], None),  # nobody knows since when
        ([(20, 4), (0, 4)], None),
        ([(20, 4), (10, 5), (0, 6)], (2, 2)),
        ([(20, 4), (10, 6), (9.99, 8), (0, 8)], (4, 1)),  # one event of several rows
        ([(90, 0), (60, 2), (10, 3), (0, 3)], (1, 1)),  # the older one is a month and more ago
        ([(20, 4), (10, None), (5, 5), (0, None)], None),  # what does not answer is not compared
        ([(20, 4), (10, 5), (5, 0), (0, 1)], (1, 1)),  # another board under this name
    ],
)
def test_losses_at_several_times_within_a_month_are_counted(
    counts: list[tuple[float, int | None]], told: tuple[int, int] | None
) -> None:
    assert looks(counts) == told


def test_pages_of_older_gpus_are_counted_alike() -> None:
    old = [GpuState(Gpu(0, UUIDS[0]), {"retired_pages.single_bit": 2, "retired_pages.double_bit": count}) for count in (0, 1)]
    kept = next_state(None, [old[0]], now=NOW - DAY)
    grown = growth(kept, old[1], now=NOW)
    assert grown is not None
    assert (grown.what, grown.lost) == ("pages", 1)


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(0, 600)), max_size=400))
def test_the_history_stays_small_and_what_it_says_is_never_more_than_what_was_lost(counts: list[tuple[float, int]]) -> None:
    kept = None
    for ago, rows in sorted(counts, reverse=True):
        kept = next_state(kept, [gpu(rows)], now=NOW - ago * DAY)
        grown = growth(kept, gpu(rows), now=NOW - ago * DAY)
        assert grown is None or (0 < grown.lost <= rows and 1 <= grown.times <= grown.lost)
        assert len(kept["gpus"][UUIDS[3]]) <= 100


@pytest.mark.parametrize(
    "kept", [{}, {"gpus": []}, {"gpus": {UUIDS[3]: "x"}}, {"gpus": {UUIDS[3]: [[1], [True, 2], ["a", "b"], None]}}]
)
def test_a_state_that_somebody_wrote_by_hand_is_no_past(kept: dict[str, object]) -> None:
    assert growth(kept, gpu(7), now=NOW) is None
    assert next_state(kept, [gpu(7)], now=NOW)["gpus"][UUIDS[3]] == [[NOW, 7]]


def test_a_gpu_that_left_is_forgotten_with_the_window() -> None:
    kept = next_state(None, [gpu(2, "GPU-gone"), gpu(0)], now=NOW - 2 * WINDOW)
    assert set(next_state(kept, [gpu(0)], now=NOW - 1.5 * WINDOW)["gpus"]) == {"GPU-gone", UUIDS[3]}
    assert set(next_state(kept, [gpu(0)], now=NOW)["gpus"]) == {UUIDS[3]}


def look(node: Node, rows: int, ago: float) -> list[Finding]:
    """`workbench check gpu-memory` so many days before NOW, of a node whose GPU 3 has had so many rows remapped."""
    scenario = node.file("scenario.txt", f"3 nvmlDeviceGetRemappedRows = 0 {rows} 0 0\n")
    env = {"PATH": str(node.tools), "LD_LIBRARY_PATH": node.library, "FAKE_NVML": "", "FAKE_NVML_FILE": str(scenario)}
    world = World("gpu-7", node.root, env, lambda: NOW - ago * DAY, node.settings)
    return [one for one in run(only=["gpu-memory"], world=world, state=PLACE) if one.status != "ok"]


def test_the_check_warns_of_the_gpu_that_goes_on_losing_rows(node: Node) -> None:
    assert look(node, 1, 9) == []
    assert look(node, 2, 6) == []
    (found,) = look(node, 4, 3)
    assert (found.code, found.status, found.cls, found.action) == (
        "memory-rows-growing",
        "warning",
        "hardware/gpu-memory",
        "drain",
    )
    assert found.gpu is not None
    assert found.gpu.uuid == UUIDS[3]
    assert found.summary.startswith("3 rows of its memory were remapped at 2 times since 2026-04-28")
    assert look(node, 4, 0)  # for as long as it is true
    forget(node.root / PLACE.lstrip("/"), ["gpu-memory"])
    assert recall("rows", folder=node.root / PLACE.lstrip("/")) is None
    assert look(node, 4, 0) == []
