"""Events find the attempt of their GPU that they fell in."""

from __future__ import annotations

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from workbench.detect.intervals import join_intervals


def _times(seconds: list[int | None]) -> pd.Series:
    return pd.Series(pd.to_datetime(seconds, unit="s", utc=True))


class TestJoinIntervals:
    def test_an_event_takes_the_interval_of_its_own_gpu(self) -> None:
        events = pd.DataFrame({"gpu": ["GPU-a", "GPU-b", "GPU-a"], "time": _times([5, 5, 50])})
        intervals = pd.DataFrame(
            {"gpu": ["GPU-a", "GPU-b"], "start": _times([0, 20]), "end": _times([10, 30]), "job": [1, 2], "ok": [True, False]}
        )
        joined = join_intervals(events, intervals)
        assert joined["job"].tolist()[0] == 1
        assert joined["job"].isna().tolist() == [False, True, True]
        assert joined["ok"].tolist()[0] is True

    def test_an_interval_without_end_still_runs_and_its_end_is_outside(self) -> None:
        events = pd.DataFrame({"gpu": [1, 1, 2], "time": _times([10, 999, 10])})
        intervals = pd.DataFrame({"gpu": [1, 2], "start": _times([0, 0]), "end": _times([None, 10])})
        joined = join_intervals(events, intervals)
        assert joined.set_index(["gpu", "time"])["start"].isna().tolist() == [False, True, False]

    def test_without_intervals_every_event_is_outside(self) -> None:
        events = pd.DataFrame({"gpu": [1], "time": _times([10])})
        intervals = pd.DataFrame({"gpu": pd.Series(dtype="int64"), "start": _times([]), "end": _times([])})
        assert join_intervals(events, intervals)["start"].isna().all()

    @given(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=30),
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=20),
    )
    def test_agrees_with_the_plain_double_loop(self, events: list[tuple[int, int]], lengths: list[tuple[int, int]]) -> None:
        begin: dict[int, int] = {}
        rows = []
        for gpu, length in lengths:
            start = begin.get(gpu, 0) + 3
            rows.append((gpu, start, start + length))
            begin[gpu] = start + length
        left = pd.DataFrame({"gpu": [e[0] for e in events], "time": _times([e[1] for e in events])})
        right = pd.DataFrame(
            {"gpu": [r[0] for r in rows], "start": _times([r[1] for r in rows]), "end": _times([r[2] for r in rows])}
        )
        if not events:
            return
        joined = join_intervals(left, right)
        for gpu, time, start in zip(joined["gpu"], joined["time"], joined["start"], strict=True):
            seconds = int(time.timestamp())
            expected = [r[1] for r in rows if r[0] == gpu and r[1] <= seconds < r[2]]
            assert (int(start.timestamp()) if not pd.isna(start) else None) == (expected[0] if expected else None)
