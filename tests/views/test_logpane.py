"""The window of log lines: numbered, marked, cut where a line is endless, and honest about what is not there."""

from __future__ import annotations

import re

from tests.views.view_cases import EVIL, bare, hostile, shipped, verdict
from workbench.views.logpane import WIDTH, LogPane


def numbers(pane: LogPane) -> list[int]:
    return [int(no) for no in re.findall(r'aria-label="line (\d+)"', pane.html)]


def long_case(lines: int = 10_000):
    texts = [f"line {no}" for no in range(1, lines + 1)]
    events = [{"role": "cause", "signature": "x", "time": None, "source": "job", "file": "a.log", "line": no, "node": None, "gpu": None, "rank": None, "text": ""} for no in (5000, 40)]  # fmt: skip
    return bare({"a.log": texts, "b.log": ["other"]}, verdict=verdict(evidence=events))


def test_lines_around_the_chosen_one_are_shown_with_the_evidence_marked():
    pane = LogPane(long_case(), file="a.log", line=5000)
    assert numbers(pane) == list(range(4960, 5081))
    assert 'class="l here ev cause" data-here' in pane.html
    assert "line 5,000 of 10,000" in pane.html


def test_a_line_on_the_screen_is_marked_where_it_stands():
    pane = LogPane(long_case(), file="a.log", line=5000)
    before = numbers(pane)
    pane.line = 5010
    assert numbers(pane) == before
    pane.line = 9000
    assert 9000 in numbers(pane)
    assert 5000 not in numbers(pane)


def test_earlier_and_later_lines_come_on_demand_and_the_window_stays_bounded():
    pane = LogPane(long_case(), file="a.log", line=5000)
    pane._heard("log=earlier")
    assert numbers(pane)[0] == 4760
    for _ in range(30):
        pane._heard("log=later")
    assert len(numbers(pane)) <= 2_001
    assert numbers(pane)[-1] > 5_500


def test_it_jumps_from_evidence_to_evidence():
    pane = LogPane(long_case(), file="a.log", line=5000)
    pane._heard("jump=1")
    assert pane.line == 40
    pane._heard("jump=1")
    assert pane.line == 5000
    pane._heard("jump=-1")
    assert pane.line == 40


def test_a_line_of_a_megabyte_is_cut_and_grows_on_demand():
    case = hostile()
    name = case.documents["name"].iloc[0]
    pane = LogPane(case, file=name, line=3)
    assert len(pane.html) < 20_000
    assert "the line goes on: show more" in pane.html
    pane._heard("more=3")
    assert pane.html.count("x") > WIDTH + 60_000
    for _ in range(20):
        pane._heard("more=3")
    assert "the line goes on" not in pane.html
    assert "&lt;script&gt;" in pane.html


def test_what_is_searched_is_marked_and_escaped():
    pane = LogPane(bare({"a.log": [EVIL, "A <B> a <b>"]}), file="a.log", line=1, needle="<b>")
    assert pane.html.count("<mark>&lt;") == 2
    assert "<mark>&lt;B&gt;</mark>" in pane.html
    assert "<script" not in pane.html


def test_what_is_not_there_is_said():
    case = shipped("gpu-memory")
    assert "not among the documents" in LogPane(case, file="/etc/passwd", line=1).html
    assert "There is no line" in LogPane(long_case(), file="b.log", line=77).html
    assert "Choose a file" in LogPane(case).html
