"""What a log's parser counts per rank and piece of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model import Line
from workbench.parse import activity
from workbench.parse.activity import MOST_PIECES, Tally
from workbench.parse.job import parse_job


def _facts(text: str, file: str = "logs/job.log", numbers: list[int] | None = None) -> dict:
    rows = text.strip().split("\n")
    lines = [Line(no, row) for no, row in zip(numbers or range(1, len(rows) + 1), rows, strict=True)]
    return parse_job(lines, file=file).facts


def test_lines_of_each_rank_of_one_joined_log_are_counted_apart():
    told = _facts(
        "[rank0]: 2026-05-04 10:00:00,000 - t - INFO - step 1 loss 2.0\n"
        "[rank1]: 2026-05-04 10:00:00,500 - t - INFO - step 1 loss 2.0\n"
        "[rank0]: 2026-05-04 10:00:07,000 - t - INFO - step 2 loss 2.0\n"
    )["activity"]
    assert {rank: list(steps) for rank, (_, steps) in told["lines"].items()} == {0: [1, 2], 1: [1]}
    assert list(told["lines"][0][0]) == [1777888800.0, 1777888807.0]


def test_a_line_without_a_stamp_of_its_own_is_of_no_known_time():
    told = _facts("2026-05-04 10:00:00,000 - t - INFO - start\n 21%|██▏       | 10/50 [0:33:55<55:30:32,  5.08s/it]\n")[
        "activity"
    ]
    ((moments, steps),) = told["lines"].values()
    assert list(moments) == [1777888800.0]
    assert list(steps) == [-1]


def test_lines_that_the_scanner_left_out_are_a_hole_with_their_number():
    told = _facts(
        "2026-05-04 10:00:00,000 - t - INFO - step 1 loss 2.0\n2026-05-04 11:00:00,000 - t - INFO - step 900 loss 2.0\n",
        numbers=[1, 900],
    )["activity"]
    assert told["holes"] == [(1777888800.0, 1777892400.0, 898)]


def test_the_step_of_a_saved_checkpoint_is_read_from_its_line():
    facts = _facts(
        "2026-05-04 10:00:00,000 | INFO | checkpoint | saved /ckpt/x/step-0038200 in 39.8s\n"
        "[default0]:  successfully saved checkpoint from iteration    44000 to /ckpt/x [ t 1/1, p 1/1 ]\n"
        "2026-05-04 10:00:09,000 | INFO | checkpoint | saving step 38488\n"
    )
    assert facts["checkpoints"] == [(1777888800.0, 1, 38200), (None, 2, 44000)]


@pytest.mark.parametrize("waiting", [1, 7, 100])
@given(rows=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 4e9), st.integers(-1, 10**6)), max_size=300))
def test_no_line_is_lost_and_pieces_stay_few_whatever_the_times(waiting, rows):
    tally = Tally()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activity, "_MOST_WAITING", waiting)
        for rank, moment, step in rows:
            tally.look(tally.no + 1)
            tally.line(rank, moment)
            tally.step(rank, step)
        told = tally.facts()
    if len(rows) <= waiting:
        assert not told["rows"]
        for rank in {each[0] for each in rows}:
            assert list(zip(*told["lines"][rank], strict=True)) == [each[1:] for each in rows if each[0] == rank]
        return
    assert not told["lines"]
    counted = {rank: sum(lines) for rank, (_, lines, _) in told["rows"].items()}
    assert counted == {rank: sum(1 for each in rows if each[0] == rank) for rank in {each[0] for each in rows}}
    every = sorted(at for pieces, _, _ in told["rows"].values() for at in pieces)
    assert not every or every[-1] - every[0] < MOST_PIECES
    for rank, (pieces, _, steps) in told["rows"].items():
        for at, step in zip(pieces, steps, strict=True):
            inside = [each[2] for each in rows if each[0] == rank and int(each[1] / told["seconds"]) == at and each[2] >= 0]
            assert step == (inside[-1] if inside else -1)


def test_the_number_of_holes_is_bounded():
    tally = Tally()
    for number in range(5000):
        tally.look(number * 10 + 1)
        tally.line(0, 1e9 + number)
    holes = tally.facts()["holes"]
    assert len(holes) <= 256
    assert sum(lines for _, _, lines in holes) == 4999 * 9
