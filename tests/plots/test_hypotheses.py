"""Turn verdicts and rows of an inbox into bars, and prove their order, numbers and empty states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from workbench.inbox.model import Entry
from workbench.plots.hypotheses import cause_counts, causes_over_time, hypotheses, percent
from workbench.plots.theme import switch, theme

START = 1_777_892_400.0  # 11:00
VERDICT = {
    "class": "hardware/gpu-lost",
    "confidence": 0.9,
    "hypotheses": [
        {"class": "user/hang", "confidence": 0.01, "why_not": "all others wait"},
        {"class": "hardware/gpu-lost", "confidence": 0.9, "why_not": ""},
        {"class": "platform/network", "confidence": 0.09, "why_not": "it came later\x1b[2J"},
    ],
}


def entry(seconds: float | None, cause: str, seen: float = 0.0) -> Entry:
    return Entry(
        id="x", time=None if seconds is None else START + seconds, seen=START + seen, source="folder", evidence="x", cause=cause
    )


def why(figure: Any) -> str:
    return str(figure.select_one({"name": "why"}).data_source.data["text"][0])


def bars(figure: Any) -> dict[str, Any]:
    return dict(figure.renderers[0].data_source.data)


def hours(figure: Any) -> dict[str, Any]:
    return dict(figure.select_one({"name": "hours"}).data)


def test_the_verdict_stands_above_the_others_by_falling_confidence() -> None:
    made = hypotheses(VERDICT)

    assert list(made.y_range.factors) == ["user/hang", "platform/network", "hardware/gpu-lost"]  # from the bottom up
    data = bars(made)
    assert dict(zip(data["class"], np.round(data["confidence"], 2), strict=True)) == {
        "user/hang": 0.01,
        "platform/network": 0.09,
        "hardware/gpu-lost": 0.9,
    }
    assert list(made.select_one({"name": "shares"}).data_source.data["text"]) == ["1 %", "9 %", "90 %"]
    assert "it came later [2J" in list(data["why"])


def test_bars_have_the_colours_of_their_causes_and_switch_with_the_appearance() -> None:
    made = hypotheses(VERDICT)

    def palette() -> dict[str, str]:
        mapper = made.renderers[0].glyph.fill_color.transform
        return dict(zip(mapper.factors, mapper.palette, strict=True))

    assert palette()["hardware"] == theme(False).causes["hardware"]
    switch(made, True)
    assert palette()["hardware"] == theme(True).causes["hardware"]


def test_a_verdict_without_a_failure_says_so() -> None:
    assert (
        why(hypotheses({"class": "none", "confidence": 1.0, "hypotheses": []}))
        == "Nothing failed, so there is nothing to explain."
    )
    assert why(hypotheses({})) == "The verdict has no hypotheses."


def test_a_class_that_nobody_knows_is_of_unknown_cause() -> None:
    made = hypotheses(
        {"class": "unknown", "confidence": 0.4, "hypotheses": [{"class": "magic/moon", "confidence": 0.2, "why_not": None}]}
    )

    assert set(bars(made)["cause"]) == {"unknown"}


def test_confidence_is_never_rounded_to_certainty_or_to_nothing() -> None:
    assert [percent(share) for share in (0.0, 0.004, 0.5, 0.996, 1.0)] == ["0 %", "< 1 %", "50 %", "> 99 %", "100 %"]


def test_incidents_are_counted_in_hours_of_utc_by_cause() -> None:
    entries = [entry(60, "hardware"), entry(3599, "hardware"), entry(3600, "user"), entry(None, "driver", seen=7300)]

    made = causes_over_time(entries)

    data = hours(made)
    assert made.xaxis.axis_label == "time (UTC), 2026-05-04"
    at = (np.asarray(data["x"]) - START * 1e3) / 3.6e6
    assert at[np.asarray(data["hardware"]) > 0].tolist() == [0.5]
    assert sum(data["hardware"]) == 2
    assert at[np.asarray(data["user"]) > 0].tolist() == [1.5]
    assert at[np.asarray(data["driver"]) > 0].tolist() == [2.5]  # when it came in, since nobody knows when it failed


def test_a_frame_of_the_inbox_counts_the_same_as_its_entries() -> None:
    entries = [entry(60, "hardware"), entry(4000, "user"), entry(None, "driver", seen=100)]
    frame = pd.DataFrame(
        {"time": [one.time for one in entries], "seen": [one.seen for one in entries], "cause": [one.cause for one in entries]}
    )
    aware = frame.assign(**{name: pd.to_datetime(frame[name], unit="s", utc=True).dt.as_unit("us") for name in ("time", "seen")})

    for one in (frame, aware):
        assert {name: list(column) for name, column in hours(causes_over_time(one)).items()} == {
            name: list(column) for name, column in hours(causes_over_time(entries)).items()
        }


def test_only_the_last_hours_are_shown_and_none_is_said() -> None:
    entries = [entry(0, "user"), entry(200 * 3600, "hardware")]

    data = hours(causes_over_time(entries, hours=24))

    assert "user" not in data
    assert len(data["x"]) == 24
    assert "No incident in the last 24 hours" in why(causes_over_time(entries, hours=24, until=START + 300 * 3600))
    assert why(causes_over_time([])) == "No incident has come in yet."


def test_causes_are_counted_in_their_own_order() -> None:
    made = cause_counts([entry(1, "user"), entry(2, "hardware"), entry(3, "user"), entry(4, "made up")])

    data = bars(made)
    assert list(made.y_range.factors) == ["unknown", "user", "hardware"]
    assert dict(zip(data["cause"], data["incidents"], strict=True)) == {"unknown": 1, "user": 2, "hardware": 1}
    assert why(cause_counts([])) == "No incident has come in yet."
