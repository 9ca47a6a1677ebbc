"""Simulated GPU metrics are those of the job's GPUs, show the fault where it is and when, and are what the workbench itself reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench
from workbench.catalog import table
from workbench.gameday import draw
from workbench.simulation import Spec
from workbench.simulation.evidence import Failure
from workbench.simulation.metrics import BEFORE, STEP, Sample, exposition, samples, span


def failed(cls: str) -> Failure:
    return draw(1, cls, Spec.read(), random.Random(cls), 16)


def culprit(failure: Failure, one: Sample) -> bool:
    labels = dict(one.labels)
    first = failure.nodes.index(labels["Hostname"]) * failure.per_node
    return first + int(labels["gpu"]) == failure.rank


def test_every_gpu_is_scraped_from_before_until_after(tmp_path: Path) -> None:
    """And the workbench reads back what is written."""
    failure = failed("user/exception")
    rows = list(samples(failure))
    series = {(one.name, one.labels) for one in rows}
    fields = {row["field"] for row in table("simulated_metrics") if not row["when"]}

    assert len(series) == failure.gpus * len(fields)
    assert min(one.time for one in rows) < failure.time - BEFORE + STEP
    assert failure.time + span(failure) - STEP < max(one.time for one in rows) <= failure.time + span(failure)
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "dcgm.prom").write_text(exposition(rows))
    read = workbench.load(tmp_path).series
    assert sum(len(one.times) for one in read) == len(rows)
    assert {dict(one.labels)["Hostname"] for one in read} == set(failure.nodes)


Rule = Callable[[Failure, list[Sample]], bool]


def last(rows: list[Sample], name: str) -> float:
    return max((one for one in rows if one.name == name), key=lambda one: one.time).value


SHOWS: dict[str, Rule] = {
    "hardware/gpu-memory": lambda failure, rows: last(rows, "DCGM_FI_DEV_XID_ERRORS") == 95,
    "hardware/gpu-lost": lambda failure, rows: max(one.time for one in rows) < failure.time,
    "driver/hang": lambda failure, rows: last(rows, "DCGM_FI_DEV_XID_ERRORS") == 119,
    "hardware/thermal-power": lambda failure, rows: last(rows, "DCGM_FI_DEV_GPU_TEMP") > 85,
}


@pytest.mark.parametrize("cls", SHOWS)
def test_a_fault_shows_on_the_culprit_s_gpu_and_no_other(cls: str) -> None:
    failure = failed(cls)
    rows = list(samples(failure))
    by_gpu: dict[tuple[str, str], list[Sample]] = {}
    for one in rows:
        labels = dict(one.labels)
        by_gpu.setdefault((labels["Hostname"], labels["gpu"]), []).append(one)

    shown = [found for found in by_gpu.values() if SHOWS[cls](failure, found)]

    assert len(shown) == 1
    assert culprit(failure, shown[0][0])


def test_a_silent_node_is_not_scraped_any_more_and_the_others_are() -> None:
    failure = failed("platform/node-lost")
    ends = dict.fromkeys(failure.nodes, 0.0)
    for one in samples(failure):
        ends[dict(one.labels)["Hostname"]] = one.time

    assert ends[str(failure.node)] < failure.time
    assert all(end > failure.time + 60 for node, end in ends.items() if node != failure.node)


def test_a_job_that_waits_draws_a_third_of_its_power_until_the_watchdog_ends_it() -> None:
    failure = failed("driver/hang")
    power = [one for one in samples(failure) if one.name == "DCGM_FI_DEV_POWER_USAGE" and not culprit(failure, one)]
    waiting = [one.value for one in power if 10 < one.time - failure.time < 600]
    after = [one.value for one in power if one.time - failure.time > 610]

    assert all(220 < value < 240 for value in waiting)
    assert after
    assert all(value < 100 for value in after)
