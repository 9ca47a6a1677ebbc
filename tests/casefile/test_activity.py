"""What the map of ranks and time shows, and what it must not claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workbench.casefile import case_file
from workbench.casefile.activity import ANYBODY, Marks, Sightings, build_activity
from workbench.casefile.model import STATES
from workbench.incident import load
from workbench.shipped import examples, load_example

START = 1777888800.0  # 2026-05-04T10:00:00Z


def _marks(ranks: int, **more: object) -> Marks:
    unknown = np.full(ranks, np.nan)
    return Marks(np.arange(ranks), **{"culprit": unknown.copy(), "failed": unknown.copy(), "victim": unknown.copy(), **more})


def _seen(rows: list[tuple[int, float, int, int]], holes: list | None = None) -> Sightings:
    table = np.asarray(rows, np.float64).reshape(-1, 4)
    return Sightings(
        table[:, 0].astype(np.int64), START + table[:, 1], table[:, 2].astype(np.int64), table[:, 3].astype(np.int64), 1.0, holes
    )


def _at(activity, rank: int, second: float) -> str:
    piece = int((START + second - activity.edges[0]) // (activity.edges[1] - activity.edges[0]))
    return STATES[activity.states[list(activity.ranks).index(rank), piece]]


def _steady(rank: int, first: int, last: int, every: int = 1, step: bool = True) -> list[tuple[int, float, int, int]]:
    return [(rank, second + 0.5, 2, second if step else -1) for second in range(first, last, every)]


def test_a_rank_that_falls_silent_while_others_go_on_is_silent_not_running():
    rows = _steady(0, 0, 200) + _steady(1, 0, 100)
    activity = build_activity(_seen(rows), _marks(2, start=START, end=START + 200))
    assert _at(activity, 1, 50) == "running"
    assert _at(activity, 1, 150) == "silent"
    assert _at(activity, 0, 150) == "running"


def test_a_rank_of_which_nothing_is_known_is_unknown_from_begin_to_end():
    activity = build_activity(_seen(_steady(0, 0, 200)), _marks(2, start=START, end=START + 200))
    assert {STATES[code] for code in activity.states[1]} <= {"unknown", "absent", "done"}
    assert _at(activity, 1, 100) == "unknown"


def test_a_rank_that_hardly_speaks_is_not_called_silent_or_running_between_two_lines():
    rows = [*_steady(0, 0, 200, step=False), (1, 5.5, 1, -1), (1, 150.5, 1, -1)]
    activity = build_activity(_seen(rows), _marks(2, start=START, end=START + 200))
    assert _at(activity, 1, 100) == "unknown"


def test_a_slow_but_regular_speaker_is_running_between_its_lines():
    rows = _steady(0, 0, 200) + _steady(1, 0, 200, every=10)
    activity = build_activity(_seen(rows), _marks(2, start=START, end=START + 200))
    assert _at(activity, 1, 105) == "running"


def test_steps_of_one_rank_show_that_the_ranks_of_its_world_work_until_the_last_step():
    rows = _steady(0, 10, 100) + [(0, second + 0.5, 1, -1) for second in range(100, 190)]
    world = build_activity(_seen(rows), _marks(2, start=START, end=START + 200, in_step=True))
    assert _at(world, 1, 50) == "running"
    assert _at(world, 1, 150) == "unknown"
    apart = build_activity(_seen(rows), _marks(2, start=START, end=START + 200))
    assert _at(apart, 1, 50) == "unknown"


def test_steps_that_no_rank_signed_are_the_jobs():
    rows = [(ANYBODY, second + 0.5, 1, second) for second in range(100)]
    activity = build_activity(_seen(rows), _marks(2, start=START, end=START + 100, in_step=True))
    assert activity.ranks.tolist() == [0, 1]
    assert _at(activity, 1, 50) == "running"
    assert activity.steps is None


def test_tensor_cores_at_work_show_a_rank_without_lines_at_work():
    marks = _marks(2, start=START, end=START + 200, works=[(1, START + np.arange(50.0, 100.0))])
    activity = build_activity(_seen(_steady(0, 0, 200, step=False)), marks)
    assert _at(activity, 1, 70) == "running"
    assert _at(activity, 1, 150) == "unknown"


def test_before_the_first_step_a_rank_starts_and_before_its_first_line_it_is_absent():
    rows = [(0, second + 0.5, 1, -1) for second in range(20, 50)] + _steady(0, 50, 200)
    activity = build_activity(_seen(rows), _marks(1, start=START, end=START + 200))
    assert (_at(activity, 0, 10), _at(activity, 0, 30), _at(activity, 0, 60)) == ("absent", "starting", "running")


def test_the_culprit_and_its_victims_are_marked_from_their_moment_to_the_end_of_the_job():
    marks = _marks(
        3,
        culprit=np.array([START + 100, np.nan, np.nan]),
        victim=np.array([np.nan, START + 150, np.nan]),
        failed=np.array([np.nan, np.nan, START + 120]),
        start=START,
        end=START + 200,
    )
    activity = build_activity(_seen([row for rank in range(3) for row in _steady(rank, 0, 100)]), marks)
    assert [_at(activity, rank, 190) for rank in range(3)] == ["culprit", "victim", "failed"]
    assert _at(activity, 0, 99) == "running"
    assert [_at(activity, rank, 201.5) for rank in range(3)] == ["done"] * 3


def test_where_lines_were_not_looked_at_a_rank_is_not_called_silent():
    rows = _steady(0, 0, 20, step=False) + _steady(0, 180, 200, step=False)
    told = build_activity(_seen(rows), _marks(1, start=START, end=START + 200))
    assert _at(told, 0, 100) == "silent"
    joined = build_activity(_seen(rows, [(ANYBODY, START + 20, START + 180, 5000)]), _marks(1, start=START, end=START + 200))
    assert _at(joined, 0, 100) == "unknown"
    own = build_activity(_seen(rows, [(0, START + 20, START + 180, 5000)]), _marks(1, start=START, end=START + 200))
    assert _at(own, 0, 100) == "running"
    assert int(own.lines.sum()) == pytest.approx(5080, rel=0.01)


def test_a_line_of_another_year_does_not_stretch_the_map():
    rows = [*_steady(0, 0, 200), (0, -5 * 365 * 86400.0, 1, -1)]
    activity = build_activity(_seen(rows), _marks(1, start=START, end=START + 200))
    assert activity.edges[-1] - activity.edges[0] < 400


def test_without_stamps_the_map_has_what_events_tell_and_else_unknown():
    marks = _marks(2, victim=np.array([np.nan, START + 5]), culprit=np.array([START, np.nan]), start=START - 60, end=START + 60)
    activity = build_activity(_seen([]), marks)
    assert activity.lines is None
    assert activity.steps is None
    assert _at(activity, 0, -30) == "unknown"
    assert _at(activity, 0, 30) == "culprit"


def test_without_any_time_or_rank_there_is_no_map():
    assert build_activity(_seen([]), _marks(3)) is None
    assert build_activity(_seen([(ANYBODY, 1.0, 1, 3)]), _marks(0)) is None


@pytest.mark.parametrize("name", examples())
def test_every_map_of_a_shipped_incident_agrees_with_its_verdict(name):
    case = case_file(load_example(name), source="x")
    assert len(case.ranks) == len(set(case.ranks["rank"]))
    if case.activity is None:
        assert case.ranks.empty
        return
    activity = case.activity
    assert activity.ranks.tolist() == case.ranks["rank"].tolist()
    assert activity.states.shape == (len(activity.ranks), len(activity.edges) - 1)
    ended = dict(zip(case.ranks["rank"], case.ranks["state"], strict=True))
    for victim in case.verdict["victims"]:
        assert ended[victim["rank"]] == "victim"
        assert (activity.states[list(activity.ranks).index(victim["rank"])] == STATES.index("victim")).any()
    if case.verdict["culprit"]["at_fault"] in ("gpu", "rank"):
        assert ended[case.verdict["culprit"]["rank"]] == "culprit"
    if case.verdict["class"] == "none":
        assert set(ended.values()) == {"done"}


FORMS = {
    "rank-prefix": ("logs/job.log", "[rank{rank}]: {time} - t - INFO - step {step} loss 2.0"),
    "srun": ("logs/job.log", "{rank}: {time} - t - INFO - step {step} loss 2.0"),
    "mpi": ("logs/job.log", "[1,{rank}]<stdout>: {time} - t - INFO - step {step} loss 2.0"),
    "file a rank": ("logs/rank-{rank}.log", "{time} - t - INFO - step {step} loss 2.0"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_map_is_the_same_whether_ranks_write_into_one_log_or_each_into_its_own(form, tmp_path: Path):
    name, row = FORMS[form]
    for second in range(0, 120, 2):
        for rank in range(4):
            if rank == 2 and second > 60:
                continue  # it hangs
            log = tmp_path / name.format(rank=rank)
            log.parent.mkdir(exist_ok=True)
            time = f"2026-05-04 10:{second // 60:02d}:{second % 60:02d},000"
            with log.open("a") as stream:
                stream.write(row.format(rank=rank, time=time, step=second) + "\n")
    case = case_file(load(tmp_path), source=str(tmp_path))
    activity = case.activity
    assert activity.ranks.tolist() == [0, 1, 2, 3]
    assert activity.lines.sum(axis=1).tolist() == [60, 60, 31, 60]
    assert np.nanmax(activity.steps, axis=1).tolist() == [118, 118, 60, 118]
    assert _at(activity, 2, 30) == "running"
    assert _at(activity, 2, 100) == "silent"
    assert _at(activity, 1, 100) == "running"
    assert case.ranks["step"].tolist() == [118, 118, 60, 118]


def test_a_log_too_large_to_be_kept_is_known_all_along_by_its_samples(tmp_path: Path, monkeypatch):
    from workbench.sources import survey

    limits = survey.Limits(whole=4096, text=8192, head=512, tail=1024)
    monkeypatch.setattr(survey, "Limits", lambda: limits)
    rows = [
        f"2026-05-04 {10 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d},000 - t - INFO - step {second} loss 2.0"
        for second in range(7200)
    ]
    (tmp_path / "rank-0.log").write_text("\n".join(rows) + "\n")
    (tmp_path / "rank-1.log").write_text("\n".join(rows) + "\n")
    incident = load(tmp_path)
    assert not any(document.complete for document in incident.documents)
    activity = case_file(incident, source=str(tmp_path)).activity
    assert _at(activity, 0, 3600) == "running"
    middle = int((START + 3600 - activity.edges[0]) // (activity.edges[1] - activity.edges[0]))
    assert activity.steps[0, middle] == pytest.approx(3600, abs=120)
    assert int(activity.lines[0].sum()) == pytest.approx(7200, rel=0.02)
    assert activity.lines[0, 10:-10].std() < 0.2 * activity.lines[0, 10:-10].mean()


def test_holes_of_a_log_of_which_no_rank_is_known_break_nothing():
    marks = _marks(1, victim=np.array([START + 5]), start=START, end=START + 60)
    activity = build_activity(_seen([], [(ANYBODY, START + 1, START + 50, 9)]), marks)
    assert _at(activity, 0, 30) == "victim"
