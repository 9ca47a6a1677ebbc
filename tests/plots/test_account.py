"""Turn accounts into figures, and prove their sums, bounds, names and empty states, and that hostile names stay text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from workbench.fleet.cost import assumptions, price_of
from workbench.fleet.cost import tornado as swings
from workbench.fleet.excess import Excess
from workbench.fleet.figures import CAUSES, Figure
from workbench.fleet.goodput import Waterfall
from workbench.fleet.lemons import COLUMNS, Lemons
from workbench.fleet.timeline import KINDS
from workbench.plots.account import failures_by_week, lemons, objective_weeks, tornado, waterfall
from workbench.plots.score_card import QUESTIONS, score_card
from workbench.plots.theme import switch, theme

HOUR = 3_600_000_000
MONDAY = 1_777_852_800.0  # 2026-05-04
EVIL = "<b>$$x$$\x1b[2J</b>"


def why(figure: Any) -> str:
    return str(figure.select_one({"name": "why"}).data_source.data["text"][0])


def said(figure: Any) -> str:
    return str(figure.select_one({"name": "note"}).text)


def data(figure: Any, name: str) -> dict[str, Any]:
    return dict(figure.select_one({"name": name}).data)


def fall(**hours: float) -> Waterfall:
    parts = dict.fromkeys(KINDS, 0) | {kind: round(part * HOUR) for kind, part in hours.items()}
    return Waterfall(parts, "allocated", "gpus", jobs=3)


def week(number: int, value: float | None, **more: Any) -> Figure:
    day = str(np.datetime64("2026-05-04") + np.timedelta64(7 * number, "D"))
    base = Figure(
        "job success", value, None if value is None else 100 * value, 100.0, "jobs", method="Wilson", by=(("week", day),)
    )
    bounds = {} if value is None else {"low": value - 0.05, "high": min(1.0, value + 0.05)}
    return replace(base, **{**bounds, **more})


def judged(rows: list[tuple[str, float, float, bool]], **more: Any) -> Lemons:
    frame = pd.DataFrame(
        [(unit, "node", unit, hours, blames, 0.5, 9.0, 3.0, 0.99 if listed else 0.1, listed, EVIL) for unit, hours, blames, listed in rows],
        columns=list(COLUMNS),
    )  # fmt: skip
    fit = Excess(*([0.001] * len(Excess.__dataclass_fields__)))
    return Lemons(frame, "n", {"node": replace(fit, usual=0.002)}, **more)


class TestWaterfall:
    def test_bars_hang_one_below_the_other_from_all_to_what_was_productive(self) -> None:
        made = waterfall(fall(step=60, lost=25, save=10, unknown=5))
        rows = data(made, "waterfall")

        assert rows["y"][0] == "all"
        assert rows["y"][-1] == "productive"
        lengths = np.subtract(rows["right"], rows["left"])
        assert np.isclose(lengths[1:].sum(), 1)
        assert np.allclose(rows["left"][1:-1], rows["right"][2:])  # each begins where the one above ends
        assert rows["left"][-1] == 0

    def test_the_printed_shares_add_up_to_a_hundred(self) -> None:
        rows = data(waterfall(fall(step=1, lost=1, save=1)), "waterfall")

        assert round(sum(float(share) for share in rows["share"][1:]), 6) == 100
        assert rows["share"][0] == "100"
        assert rows["of"][0] == "3.0 GPU-hours of 3 jobs"

    def test_a_sliver_is_not_nothing_and_what_took_no_time_is_said(self) -> None:
        made = waterfall(fall(step=1_000_000, detect=1))

        assert data(made, "waterfall")["share"][1] == "< 0.01"
        assert "queue" in said(made)
        assert "detect" not in said(made)

    def test_no_time_is_a_sentence(self) -> None:
        assert "No attempt held a GPU" in why(waterfall(fall()))
        assert "No attempt held a GPU" in why(waterfall(None))


class TestObjective:
    def test_each_week_has_its_bounds_and_what_it_is_a_part_of(self) -> None:
        made = objective_weeks([week(1, 0.9), week(0, 0.8)], target=0.95)
        rows = data(made, "weeks")

        assert list(rows["week"]) == ["2026-05-04", "2026-05-11"]
        assert list(rows["y"]) == [0.8, 0.9]
        assert list(rows["of"]) == ["80 of 100 jobs", "90 of 100 jobs"]
        assert rows["bounds"][0] == "75.00 % to 85.00 %"
        assert made.select_one({"name": "target"}).location == 0.95
        assert "target 95 %" in said(made)

    def test_a_week_without_a_denominator_is_a_gap_and_not_a_zero(self) -> None:
        made = objective_weeks([week(0, 0.8), week(1, None), week(2, 0.9)])

        assert list(data(made, "weeks")["y"]) == [0.8, 0.9]
        line = made.renderers[0].data_source.data
        assert np.isnan(line["y"]).sum() == 1
        assert "1 weeks without a denominator" in said(made)
        assert "no target" in said(made)

    def test_a_week_that_runs_is_hollow_and_does_not_press_the_others_together(self) -> None:
        made = objective_weeks([week(0, 0.99), week(1, 0.9, low=0.1)], unfinished=MONDAY + 7 * 86400)

        assert list(data(made, "weeks")["fill"]) == [1.0, 0.0]
        assert made.y_range.start > 0.8
        assert "still runs" in said(made)

    def test_nothing_told_is_a_sentence(self) -> None:
        assert "No week of this window" in why(objective_weeks([week(0, None)]))
        assert "No week of this window" in why(objective_weeks([]))


class TestFailures:
    @staticmethod
    def rows(counts: dict[tuple[int, str], int], of: int = 10) -> list[dict[str, Any]]:
        return [
            {"week": MONDAY + 7 * 86400 * number, "cause": cause, "attempts": counts.get((number, cause), 0), "of": of, "gpu_hours": 0.0}
            for number in (0, 1) for cause in CAUSES
        ]  # fmt: skip

    def test_causes_are_stacked_in_the_colours_that_they_have_everywhere(self) -> None:
        made = failures_by_week(self.rows({(0, "hardware"): 2, (1, "user"): 3, (1, "hardware"): 1}))
        rows = data(made, "weeks")

        assert rows["hardware"] == [2, 1]
        assert rows["user"] == [0, 3]
        assert "driver" not in rows
        assert rows["of"] == ["2 failed of 10 that ended", "4 failed of 10 that ended"]
        bars = [one.glyph.fill_color for one in made.renderers if one.glyph.__class__.__name__ == "VBar"]
        assert bars == [theme(False).causes["hardware"], theme(False).causes["user"]]
        assert said(made) == "6 failed of 20 attempts that ended"

    def test_no_failure_and_no_attempt_are_two_sentences(self) -> None:
        assert why(failures_by_week(self.rows({}))) == "None of 20 attempts that ended failed."
        assert "No attempt ended" in why(failures_by_week(self.rows({}, of=0)))


class TestLemons:
    def test_listed_ones_are_named_and_stand_above_the_line_of_a_healthy_one(self) -> None:
        made = lemons(judged([("n1", 1000, 9, True), ("n2", 1000, 1, False), ("n3", 500, 0, False)]))

        assert list(data(made, "listed")["unit"]) == ["n1"]
        assert list(data(made, "others")["unit"]) == ["n2", "n3"]
        assert list(made.select_one({"name": "names"}).data_source.data["text"]) == ["n1"]
        assert list(made.select_one({"name": "expected node"}).data_source.data["y"]) == [0, 2.0]
        assert said(made) == "1 of 3 nodes are listed, at most 5 % of them wrongly"

    def test_names_that_would_lie_on_one_another_stand_on_two_sides(self) -> None:
        made = lemons(judged([("n1", 1000, 9, True), ("n2", 990, 8.9, True), ("n3", 500, 5, True)]))

        texts = {name: list(made.select_one({"name": name}).data_source.data["text"]) for name in ("names", "names left")}
        assert texts == {"names": ["n1", "n3"], "names left": ["n2"]}

    def test_none_listed_is_drawn_and_too_few_are_a_sentence(self) -> None:
        assert "0 of 1 nodes" in said(lemons(judged([("n1", 10, 0, False)])))
        few = Lemons(pd.DataFrame(columns=list(COLUMNS)), "", problems=("3 nodes have hours: too few",))
        assert why(lemons(few)) == "3 nodes have hours: too few"
        assert "Nobody told" in why(lemons(None))

    def test_hostile_names_are_no_formula_and_no_markup(self) -> None:
        made = lemons(judged([(EVIL, 1000, 9, True)]))
        text = str(made.select_one({"name": "names"}).data_source.data["text"][0])

        assert "$$" not in text
        assert "\x1b" not in text


class TestTornado:
    def test_the_widest_swing_is_at_the_top_and_its_ends_are_told(self) -> None:
        price = price_of("H100 SXM")
        assert price is not None
        frame = swings(assumptions(), nodes=64, node_gpus=8, price=price)
        made = tornado(frame, currency="USD", fleet="64 nodes")

        assert made.y_range.factors[-1] == str(frame["name"].iloc[0]).replace("_", " ")
        rows = data(made, "swings")
        base = float(frame["base"].iloc[0])
        assert all(left <= base <= right for left, right in zip(rows["left"], rows["right"], strict=True))
        assert f"{base:,.0f} USD a month as assumed, for 64 nodes" in said(made)
        assert "instead of" in rows["value"][0]

    def test_without_a_price_it_says_so(self) -> None:
        assert "what a GPU-hour" in why(tornado(None))


class TestScoreCard:
    ROUND: dict[str, Any] = {
        "truth": "hardware/gpu-lost", "said": EVIL, "confidence": 0.9, "node": "n1", "blamed": None, "detected": 20.0, "judged": 0.2,
        "planned": None, "actions": ["reboot n1"], "cause_right": False, "node_right": True, "retry_right": True, "plan_right": True,
        "innocent": False,
    }  # fmt: skip

    def test_each_round_is_a_column_and_each_question_tells_how_many_were_right(self) -> None:
        made = score_card({"seed": 1, "rounds": [self.ROUND, {**self.ROUND, "innocent": True}], "seconds": {"judged": 0.2}})

        assert len(data(made, "right")["x"]) + len(data(made, "wrong")["x"]) == 2 * len(QUESTIONS)
        assert "cause  0 of 2" in made.y_range.factors
        assert "nobody innocent  1 of 2" in made.y_range.factors
        assert sorted(data(made, "wrong")["x"]) == [1, 2, 2]
        assert "? " not in data(made, "right")["time"][0]
        assert data(made, "right")["time"][0] == "20 s + 0.2 s + ?"
        assert "$$" not in data(made, "right")["said"][0]

    def test_no_round_is_a_sentence(self) -> None:
        assert "No round was played" in why(score_card(None))
        assert "No round was played" in why(score_card({"rounds": []}))


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_turns_to_the_other_appearance(dark: bool) -> None:
    made = [
        waterfall(fall(step=2, lost=1), dark=dark),
        objective_weeks([week(0, 0.9)], dark=dark),
        failures_by_week(TestFailures.rows({(0, "user"): 1}), dark=dark),
        lemons(judged([("n1", 1000, 9, True)]), dark=dark),
        score_card({"rounds": [TestScoreCard.ROUND]}, dark=dark),
        tornado(None, dark=dark),
    ]
    for one in made:
        assert one.background_fill_color == theme(dark).card
        switch(one, not dark)
        assert one.background_fill_color == theme(not dark).card
        assert one.title.text_color == theme(not dark).ink
