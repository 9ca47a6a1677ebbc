"""Turn invented events into timelines, and prove that evidence is never pooled and nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from workbench.plots.timeline import PIECES, on_tap, timeline, timeline_data

Events = Callable[[list[dict[str, Any]]], pd.DataFrame]
START = 1_777_892_400.0


def source(figure: Any) -> dict[str, Any]:
    return dict(figure.select_one({"name": "evidence"}).data_source.data)


def said(figure: Any) -> str:
    return str(figure.select_one({"name": "note"}).text)


def test_lanes_stand_from_the_culprit_outwards_and_only_those_with_events(events: Events) -> None:
    made = timeline(events([{"lane": "other"}, {"lane": "victims", "time": 5.0}, {"lane": "culprit", "time": 1.0}]))

    assert made.yaxis.major_label_overrides == {2: "culprit", 1: "victims", 0: "other"}
    data = source(made)
    assert [round(y) for lane in ("culprit", "victims", "other") for y in data["y"][data["lane"] == lane]] == [2, 1, 0]


def test_evidence_keeps_a_mark_of_its_own_among_thousands(events: Events) -> None:
    rows = [{"time": float(one % 700), "lane": "victims", "role": "symptom", "count": 3} for one in range(5000)]
    rows += [
        {"time": 100.0 + one, "lane": "victims", "role": "symptom", "evidence": one, "signature": f"sig-{one}"}
        for one in range(20)
    ]

    made = timeline(events(rows))

    data = source(made)
    assert sorted(data["evidence"][data["evidence"] >= 0]) == list(range(20))
    assert len(data["x"]) <= PIECES + 20
    assert data["count"].sum() == 5000 * 3 + 20
    assert said(made) == "5,020 events; close ones share a mark, evidence has its own"
    # evidence is drawn after all else, so that nothing lies over it
    assert (data["evidence"][-20:] >= 0).all()


def test_few_events_are_not_pooled_even_at_the_same_moment(events: Events) -> None:
    data, untimed = timeline_data(events([{"time": 1.0}] * 40))

    assert len(data["x"]) == 40
    assert untimed == 0


def test_the_cause_lies_over_other_evidence_of_its_moment(events: Events) -> None:
    """Two lines of the same second are one place: what is seen there is the cause."""
    made = timeline(events([
        {"lane": "culprit", "time": 1.0, "role": "cause", "evidence": 0}, {"lane": "culprit", "time": 1.0, "role": "context", "evidence": 1},
        {"lane": "culprit", "time": 1.0, "role": "context"},
    ]))  # fmt: skip

    assert list(source(made)["role"])[-1] == "cause"


def test_what_lasted_has_a_bar_and_what_did_not_has_none(events: Events) -> None:
    made = timeline(events([{"time": 10.0, "last": 70.0, "count": 9}, {"time": 20.0}]))

    bars = made.select_one({"name": "lasting"})
    assert list(bars.view.filter.booleans) == [True, False]
    data = bars.data_source.data
    assert (data["x2"] - data["x"]).tolist() == [60_000.0, 0.0]


def test_events_without_a_time_are_counted_not_drawn(events: Events) -> None:
    made = timeline(events([{"time": 1.0}, {"time": None}, {"time": None}]))

    assert len(source(made)["x"]) == 1
    assert "2 without a time are not drawn" in said(made)
    nothing = timeline(events([{"time": None}]))
    assert nothing.select_one({"name": "why"}).data_source.data["text"] == ["1 events are known, but none of them with a time."]


def test_what_a_case_file_left_out_is_said(events: Events) -> None:
    told = events([{"time": 1.0}])
    told.attrs["left_out"] = 12_345

    assert "12,345 that matter less are not in this case file" in said(timeline(told))


def test_the_line_of_the_first_failure_is_the_first_cause_among_the_evidence(events: Events) -> None:
    rows = [
        {"time": 5.0, "role": "cause"},  # no evidence of this verdict
        {"time": 40.0, "role": "cause", "evidence": 2},
        {"time": 20.0, "role": "cause", "evidence": 0},
        {"time": 10.0, "role": "symptom", "evidence": 1},
    ]

    assert timeline(events(rows)).select_one({"name": "event"}).location == (START + 20.0) * 1e3
    assert timeline(events(rows), zero=START + 1).select_one({"name": "event"}).location == (START + 1) * 1e3
    assert timeline(events(rows[3:])).select_one({"name": "event"}) is None


def test_it_opens_on_the_evidence_with_a_margin(events: Events) -> None:
    rows = [{"time": 100.0, "evidence": 0}, {"time": 200.0, "evidence": 1}, {"time": -9000.0}]

    made = timeline(events(rows))

    assert (made.x_range.start, made.x_range.end) == ((START + 92) * 1e3, (START + 208) * 1e3)
    chosen = timeline(events(rows), around=(START, START + 50))
    assert (chosen.x_range.start, chosen.x_range.end) == (START * 1e3, (START + 50) * 1e3)


def test_numbers_that_would_lie_on_one_another_share_a_text(events: Events) -> None:
    rows = [{"time": at, "lane": "culprit", "evidence": one} for one, at in enumerate([100.0, 100.5, 900.0, 100.2])]

    numbers = timeline(events(rows)).select_one({"name": "numbers"}).data

    assert sorted(numbers["number"]) == ["1, 2, 4", "3"]


def test_a_mark_leads_back_to_its_line(events: Events) -> None:
    data = source(
        timeline(
            events([{"time": 1.0, "file": "kernel/a.log", "line": 812, "evidence": 0, "node": "a", "gpu_index": 3, "rank": 27}])
        )
    )

    assert (data["file"][0], data["line"][0], data["evidence"][0], data["where"][0]) == (
        "kernel/a.log",
        812,
        0,
        "a GPU 3 rank 27",
    )


def test_words_that_nobody_knows_fall_to_the_quietest_place(events: Events) -> None:
    data = source(timeline(events([{"time": 1.0, "lane": "elsewhere", "role": "guess"}])))

    assert (data["lane"][0], data["role"][0]) == ("other", "context")


def test_no_events_are_a_sentence(events: Events) -> None:
    for nothing in (None, events([])):
        assert "No source told of an event" in timeline(nothing).select_one({"name": "why"}).data_source.data["text"][0]


def test_ten_thousand_lines_of_hostile_text_stay_short_and_plain(events: Events) -> None:
    hostile = "\x1b]0;owned\x07<script>alert(1)</script>\u202e" + "A" * 100_000

    data = source(timeline(events([{"time": float(one), "text": hostile, "signature": hostile} for one in range(300)])))

    for column in ("text", "what"):
        assert max(map(len, data[column])) < 200
        assert not any(set(text) & {"\x1b", "\x07", "\u202e"} for text in data[column])
    assert np.isfinite(data["x"]).all()


def test_a_click_on_a_mark_names_its_event_each_time(events: Events) -> None:
    frame = events([{"time": None}, {"time": 9.0, "lane": "victims"}, {"time": 1.0, "evidence": 0}, {"time": 5.0}])
    made = timeline(frame)
    heard: list[int] = []
    on_tap(made, heard.append)
    drawn = made.select_one({"name": "events"})

    for mark in range(3):
        drawn.selected.indices = [mark]
    drawn.selected.indices = [2]  # once more
    drawn.selected.indices = [0, 2]  # one over the other

    order = [int(one) for one in drawn.data["event"]]
    assert sorted(order) == [1, 2, 3]
    assert order[2] == 2  # evidence is drawn last
    assert heard == [*order, 2, 2]
    assert drawn.selected.indices == []
    on_tap(timeline(None), heard.append)  # an empty figure has nothing to click on
