"""Events of ml-goodput-measurement: the same sums as by its own rules, worked out by hand."""

from __future__ import annotations

from typing import Any

from tests.fleet.account_frames import frame
from tests.fleet.account_times import T
from workbench.fleet.goodput import waterfall
from workbench.fleet.goodput_events import categories, rows_of_events
from workbench.fleet.timeline import segments


def job_events(*parts: tuple[str, float] | tuple[str, float, int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, when, *step in parts:
        found.append({"job_name": "run", name: T + when, **({"step_count": step[0]} if step else {})})
    return found


def steps(begin: float, numbers: range, length: float = 3.0, first: float = 0.0) -> list[tuple[str, float, int]]:
    found, now = [], begin
    for place, number in enumerate(numbers):
        found.append(("step_start_time", now, number))
        now += length + (first if place == 0 else 0)
    return found


def by_their_categories(events: list[dict[str, Any]], until: float) -> dict[str, float]:
    rows = rows_of_events(events, gpus=4)
    assert rows.problems == ()
    cut = segments(frame("jobs", rows.jobs), frame("attempts", rows.attempts), frame("phases", rows.phases), until=T + until)
    (one,) = waterfall(cut)
    assert one.total == sum(one.parts.values())
    return {theirs[0]: part / 1e6 for theirs, part in categories(one.parts).items() if part}


def test_an_undisturbed_run_is_as_the_library_counts_it() -> None:
    # its own test's run: 5 s of beginning, five steps of 3 s; goodput 15 / 20
    events = job_events(("job_start_time", 0), *steps(5, range(5)), ("job_end_time", 20))
    assert by_their_categories(events, 20) == {"PRODUCTIVE": 15, "OTHER": 5}
    # and with 5 s more in the first step: program startup
    events = job_events(("job_start_time", 0), *steps(5, range(5), first=5), ("job_end_time", 25))
    assert by_their_categories(events, 25) == {"PRODUCTIVE": 15, "TPU_INITIALIZATION": 5, "OTHER": 5}


def test_beginning_loading_and_checkpoints_are_as_the_library_counts_them() -> None:
    events = job_events(
        ("job_start_time", 0), ("tpu_init_start_time", 1), ("tpu_init_end_time", 3), ("training_prep_start_time", 3), ("training_prep_end_time", 7),
        ("data_loading_start_time", 7), ("data_loading_end_time", 9), *steps(10, range(3)),
        # a later load runs beside a step, and is no badput
        ("data_loading_start_time", 17), ("data_loading_end_time", 18), ("step_start_time", 19, 3), ("job_end_time", 22),
    )  # fmt: skip
    events += [
        {
            "job_name": "run",
            "step": 2,
            "event_type": "save",
            "checkpoint_manager_blocking_start_time": T + 17,
            "checkpoint_manager_blocking_duration_secs": 0.5,
        },
        {
            "job_name": "run",
            "step": 0,
            "event_type": "restore",
            "checkpoint_manager_start_time": T + 9,
            "checkpoint_manager_duration_secs": 0.75,
        },
    ]
    assert by_their_categories(events, 22) == {
        "PRODUCTIVE": 11.5,  # four steps of 3 s less the write
        "TPU_INITIALIZATION": 6,
        "DATA_LOADING_SYNC": 2,
        "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": 0.5,
        "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": 0.75,
        "OTHER": 1.25,  # 0 to 1, and 9.75 to 10
    }


def test_a_restart_from_an_older_step_is_as_the_library_counts_it() -> None:
    # five steps, 30 s of nothing, a start from step 2: steps 0 and 1 stand, 2 and 3 are wasted, and from the begin of 4 on it recovers
    events = job_events(
        ("job_start_time", 0), *steps(5, range(5)), ("job_start_time", 50), *steps(55, range(2, 5)), ("job_end_time", 64)
    )
    assert by_their_categories(events, 64) == {
        "PRODUCTIVE": 6 + 9,
        "WASTED_PROGRESS_FROM_DISRUPTION": 6,
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 50 - 17,
        "OTHER": 5 + 5,
    }
    # from the beginning: everything is wasted
    events = job_events(
        ("job_start_time", 0), *steps(5, range(5)), ("job_start_time", 50), *steps(55, range(3)), ("job_end_time", 64)
    )
    assert by_their_categories(events, 64)["WASTED_PROGRESS_FROM_DISRUPTION"] == 12
    # a second fall behind the first run's steps takes those as well
    events = job_events(
        ("job_start_time", 0), *steps(5, range(5)), ("job_start_time", 50), *steps(55, range(3, 6)), ("job_start_time", 80), *steps(85, range(1, 3)), ("job_end_time", 91)
    )  # fmt: skip
    assert by_their_categories(events, 91) == {
        "PRODUCTIVE": 3 + 6,
        "WASTED_PROGRESS_FROM_DISRUPTION": 6 + 3 + 6,
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": (50 - 17) + (80 - 61),
        "OTHER": 15,
    }


def test_a_restart_with_the_next_step_credits_the_last_one_with_the_mean() -> None:
    events = job_events(
        ("job_start_time", 0), *steps(5, range(5)), ("job_start_time", 50), *steps(55, range(5, 7)), ("job_end_time", 61)
    )
    assert by_their_categories(events, 61) == {
        "PRODUCTIVE": 15 + 6,
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 50 - 20,
        "OTHER": 10,
    }


def test_events_without_a_beginning_and_strange_ones_are_problems() -> None:
    assert rows_of_events([]).problems == ("the job's start was not logged",)
    found = rows_of_events(
        [*job_events(("job_start_time", 0), ("tpu_init_end_time", 3)), {"job_name": "run", "custom_badput_event_start_time": 1}]
    )
    assert found.problems == ("2 events were not understood",)
    assert found.jobs[0]["state"] == "running"
