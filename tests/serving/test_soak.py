"""Turn some open pages of a short while into whether updates come and memory stays: `benchmarks/soak.py` for long and many is the measurement."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("panel")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.soak import Session, Soaked, soak


@pytest.mark.live
def test_open_pages_get_every_update_and_the_server_does_not_grow() -> None:
    with ThreadPoolExecutor(1) as aside:  # a browser's test may have left a loop in this thread
        found = aside.submit(soak, sessions=6, seconds=45, warm=20, gpus=1024, period=5, nodes=0.5).result()

    assert found.errors == []
    assert all(len(one.times) >= 3 for one in found.sessions)
    assert found.growth < 0.25  # of half a minute: only a leak of each update would show
    assert found.latest < 6  # periods; the budget of 2 is measured where nothing else runs


def test_the_latest_update_and_growth_are_told_in_periods_and_shares() -> None:
    found = Soaked([Session(0, "/fleet", error="closed")], [(0.0, 100), (1.0, 120)], 0.2, [5.0, 12.0], 5.0)

    assert found.latest == 2.4
    assert found.errors == ["session 0: closed"]
    assert Soaked([], [], 0.0, [], 5.0).latest == float("inf")  # nobody heard anything: the worst there is
