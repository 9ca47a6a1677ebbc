"""Error budgets and burn rates: by hand, at the windows' edges, and with so few events that nothing can be said."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.fleet.account_frames import frame
from workbench.fleet.budgets import (
    DEFAULTS,
    WINDOWS,
    Burn,
    Objective,
    budget,
    burns,
    burns_of_fleet,
    burns_of_nodes,
    events_of_jobs,
)

NOW = 1_777_000_000.0
TIGHT = Objective("tight", "job-success", 0.99)


def events(*rows: tuple[float, bool], weight: float | None = None) -> pd.DataFrame:
    """Events so many seconds ago."""
    made = pd.DataFrame({"time": [round((NOW - ago) * 1e6) for ago, _ in rows], "good": [good for _, good in rows]})
    return made if weight is None else made.assign(weight=weight)


def found(rows: pd.DataFrame, objective: Objective = TIGHT, **more: Any) -> dict[str, Burn]:
    return {one.window.long_name: one for one in burns(rows, objective, now=NOW, **more)}


def test_the_windows_are_those_of_the_site_reliability_workbook() -> None:
    told = [(one.long_name, one.short_name, one.factor, one.severity) for one in WINDOWS]
    assert told == [("1h", "5m", 14.4, "page"), ("6h", "30m", 6, "page"), ("1d", "2h", 3, "ticket"), ("3d", "6h", 1, "ticket")]
    # what each spends of a budget of 30 days before it is told: 2, 5, 10 and 10 %
    assert [round(one.factor * one.long / (30 * 86400), 4) for one in WINDOWS] == [0.02, 0.05, 0.1, 0.1]
    assert all(one.long == 12 * one.short for one in WINDOWS)


def test_a_budget_is_what_the_target_allows_less_what_was_bad() -> None:
    one = budget(TIGHT, 2000, 1995, "jobs")
    assert (one.bad, one.allowed, one.left, one.share_left) == (5, pytest.approx(20), pytest.approx(15), pytest.approx(0.75))
    assert budget(TIGHT, 100, 90).share_left == pytest.approx(-9)
    none = budget(TIGHT, 0, 0)
    assert (none.allowed, none.left, none.share_left) == (None, None, None)


def test_a_burn_is_told_only_while_both_windows_see_it() -> None:
    going_on = events(*((60 + n, n % 2 == 0) for n in range(40)))
    assert {name: one.state for name, one in found(going_on).items()} == dict.fromkeys(("1h", "6h", "1d", "3d"), "burning")
    assert found(going_on)["1h"].long == pytest.approx(50)
    over = events(*((1800 + n, n % 2 == 0) for n in range(40)), *((60 + n, True) for n in range(5)))
    assert found(over)["1h"].state == "quiet"
    assert found(over)["1h"].short == 0
    assert found(over)["1d"].state == "burning"  # the short window of a day is two hours
    silent = events(*((1800 + n, False) for n in range(40)))
    assert found(silent)["1h"].state == "quiet"
    assert "nothing happened in the last 5m" in found(silent)["1h"].why


def test_two_failed_jobs_of_two_are_no_burn() -> None:
    few = found(events((60, False), (120, False)))
    assert {one.state for one in few.values()} == {"few"}
    assert "2 of 2 in 1h" in few["1h"].why
    assert "one node or one typo" in few["1h"].why
    # three of forty: 7.5 times what is allowed, but the lower bound of 3/40 is 1.6 %, within the 5 % of another target
    loose = Objective("loose", "job-success", 0.95)
    some = found(events(*((60 + n, n >= 3) for n in range(40))), loose)
    assert some["3d"].state == "few"
    assert "lower bound" in some["3d"].why
    assert found(events(*((60 + n, n >= 3) for n in range(40))))["3d"].state == "burning"


def test_without_events_nothing_is_said_to_be_well() -> None:
    assert {one.state for one in found(events()).values()} == {"no data"}
    assert found(events())["1h"].long is None


def test_a_window_that_can_never_burn_is_said_to_be_one() -> None:
    loose = Objective("loose", "job-success", 0.9)
    states = {name: one.state for name, one in found(events(*((n, False) for n in range(1, 200))), loose).items()}
    assert states == {"1h": "never", "6h": "burning", "1d": "burning", "3d": "burning"}


def test_windows_are_closed_at_their_beginning_and_open_at_their_end() -> None:
    edge = found(events((0, False), (3600, False), (3600.000001, True)))["1h"]
    assert (edge.bad, edge.total) == (1, 1)


def test_weights_count_as_so_many_events_and_not_as_evidence() -> None:
    heavy = found(events((60, False), (90, False), weight=512.0))["1h"]
    assert (heavy.bad, heavy.total, heavy.state) == (1024, 1024, "few")


@pytest.mark.parametrize(("target", "days"), [(1.0, 30), (-0.1, 30), (0.9, 0)])
def test_a_target_that_allows_nothing_is_none(target: float, days: float) -> None:
    with pytest.raises(ValueError, match="x: a"):
        Objective("x", "job-success", target, days)


def test_jobs_become_events_as_their_objective_counts_them() -> None:
    base = {"submitted": NOW - 100, "started": NOW - 90, "source": "run"}
    jobs = frame(
        "jobs",
        [
            {"job": "1", "state": "completed", "first_step": NOW - 80, "ended": NOW - 10, **base},
            {"job": "2", "state": "failed", "cause": "user", "first_step": NOW - 80, "ended": NOW - 9, **base},
            {"job": "3", "state": "failed", "cause": "hardware", "ended": NOW - 8, **base},
            {"job": "4", "state": "cancelled", "ended": NOW - 7, **base},
            {"job": "5", "state": "running", **base},
        ],
    )
    assert events_of_jobs(jobs, "job-success")["good"].tolist() == [True, False, False]
    assert events_of_jobs(jobs, "infra-job-success")["good"].tolist() == [True, True, False]
    starts = events_of_jobs(jobs, "job-start")
    assert starts["good"].tolist() == [True, True, False]
    assert set(starts["time"]) == {round((NOW - 90) * 1e6)}
    with pytest.raises(ValueError, match="availability: jobs are events of"):
        events_of_jobs(jobs, "availability")


def test_the_defaults_can_all_burn_somewhere() -> None:
    for one in DEFAULTS:
        assert any(window.factor * one.allowed < 1 for window in WINDOWS)


def _nodes(down: int, hours: float, of: int = 20) -> pd.DataFrame:
    """Nodes of which some went down so many hours ago and still are."""
    rows = [
        {"node": f"n{one}", "begin": NOW - 30 * 86400, "end": None if one >= down else NOW - hours * 3600, "state": "usable"}
        for one in range(of)
    ]
    rows += [
        {"node": f"n{one}", "begin": NOW - hours * 3600, "end": None, "state": "down", "cause": "hardware"} for one in range(down)
    ]
    return frame("node_states", [{**row, "source": "test"} for row in rows])


def test_node_time_burns_by_hand_in_every_pair_of_windows() -> None:
    told = burns_of_nodes(_nodes(10, 2.0), Objective("a", "availability", 0.97), now=NOW)
    by = {one.window.long_name: one for one in told}
    # ten of twenty for two hours: half of an hour's node-time, 2/6 of half of six hours', 2/24 of half of a day's
    assert by["1h"].long == pytest.approx(0.5 / 0.03)
    assert by["6h"].long == pytest.approx(0.5 * 2 / 6 / 0.03)
    assert by["1d"].long == pytest.approx(0.5 * 2 / 24 / 0.03)
    assert by["6h"].short == pytest.approx(0.5 / 0.03)
    assert (by["1h"].bad, by["1h"].total) == (pytest.approx(10), pytest.approx(20))
    assert [by[name].state for name in ("1h", "6h", "1d", "3d")] == ["burning", "quiet", "quiet", "quiet"]


def test_two_broken_nodes_are_no_burn_of_the_fleet_however_strict_the_target() -> None:
    strict = Objective("a", "availability", 0.999)
    assert {one.state for one in burns_of_nodes(_nodes(2, 80.0), strict, now=NOW)} == {"few"}
    assert {one.state for one in burns_of_nodes(_nodes(8, 80.0), strict, now=NOW)} == {"burning"}


def test_node_time_that_nobody_told_is_no_burn_and_not_quiet() -> None:
    (first, *_) = burns_of_nodes(frame("node_states", []), Objective("a", "availability", 0.97), now=NOW)
    assert (first.state, first.long, first.total) == ("no data", None, 0.0)


def test_burns_of_a_fleet_are_those_of_each_of_its_objectives() -> None:
    nodes = _nodes(10, 2.0)
    own = Objective("a", "availability", 0.97)
    foreign = Objective("latency", "", 0.9)
    found = burns_of_fleet((own, foreign, TIGHT), frame("jobs", []), nodes, now=NOW)
    assert [one.name for one, _ in found] == ["a"] * 4 + ["tight"] * 4
    assert [burn for one, burn in found if one is own] == burns_of_nodes(nodes, own, now=NOW)
