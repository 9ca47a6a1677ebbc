"""Terminal, Markdown and HTML say the same, the answer first, and nothing in a log can drive them."""

from __future__ import annotations

import doctest
import re
from html.parser import HTMLParser
from types import ModuleType
from typing import Any

import pytest

from workbench.model import Verdict
from workbench.report import html, markdown, redact, terminal, timeline
from workbench.report import text as words
from workbench.report.text import clean, duration, fold, percent, shorten
from workbench.report.verdict_json import failed, to_json


class TestTerminal:
    def test_the_answer_comes_before_the_evidence(self, document: dict[str, Any]) -> None:
        """Class, place, time and sentence stand in the first lines: that is all a tired person reads."""
        head = terminal.render(document).split("What to do")[0]

        for word in (
            "hardware/gpu-memory",
            "97 %",
            "gpu-node-017",
            "rank 27",
            "0000:3b:00.0",
            "2026-05-04 11:02:03.120 UTC",
            "the GPU",
        ):
            assert word in head

    def test_evidence_names_file_and_line(self, document: dict[str, Any]) -> None:
        """`file:line` can be pasted into an editor."""
        assert "kernel/gpu-node-017.log:812" in terminal.render(document)

    def test_victims_are_folded(self, document: dict[str, Any]) -> None:
        """23 victims are one line."""
        assert "ranks 0-15,24-26,28-31 on 3 nodes: connection closed" in terminal.render(document)

    def test_what_could_not_be_seen_is_said(self, document: dict[str, Any]) -> None:
        """Coverage is part of the answer."""
        text = terminal.render(document)

        assert "no DCGM metrics were given" in text
        assert "hardware/thermal-power" in text

    def test_without_colour_there_is_no_control_character(self, document: dict[str, Any]) -> None:
        """A hostile line is written out visibly."""
        text = terminal.render(document)

        assert "\\x1b]0;owned" in text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)

    def test_with_colour_only_our_own_sequences_remain(self, document: dict[str, Any]) -> None:
        """What is left after our SGR codes are removed holds no escape."""
        text = terminal.render(document, color=True)

        assert "\x1b[" in text
        assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", text)

    def test_quiet_leaves_the_evidence_out(self, document: dict[str, Any]) -> None:
        """Detail 0 is the answer and what to do."""
        text = terminal.render(document, detail=0)

        assert "What to do" in text
        assert "Evidence" not in text

    @pytest.mark.parametrize("width", [40, 80, 140])
    def test_no_line_of_a_log_makes_it_wider(self, document: dict[str, Any], width: int) -> None:
        """Log lines are shortened, whatever their length."""
        document["evidence"][0]["text"] = "x" * 5000

        assert all("xxxx" not in line or len(line) <= width for line in terminal.render(document, width=width).splitlines())


class TestMarkdown:
    def test_no_markup_of_the_log_survives(self, document: dict[str, Any]) -> None:
        """Log text is inside code spans; elsewhere markup is escaped."""
        document["summary"] = "<img src=x onerror=alert(1)> [click](http://evil) `code` | cell"
        text = markdown.render(document)
        outside = re.sub(r"(`+).*?\1", "", text.replace(r"\`", ""))

        assert "<script>" not in outside
        assert not re.search(r"(?<!\\)<img", outside)
        assert not re.search(r"(?<!\\)\]\(", outside)

    def test_a_line_with_backticks_stays_one_code_span(self, document: dict[str, Any]) -> None:
        """The fence is longer than any run of backticks inside."""
        document["evidence"][0]["text"] = "a ``` b"

        assert "```` a ``` b ````" in markdown.render(document)


class Page(HTMLParser):
    """Collects tags and the attributes that could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "xlink:href"):
                self.links.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)


class TestHtml:
    def test_it_asks_for_nothing_and_runs_nothing(self, document: dict[str, Any]) -> None:
        """One file, no script, no request, and a policy that forbids both."""
        page = Page()
        page.feed(text := html.render([document, document]))

        assert not {"script", "link", "iframe", "img", "object", "embed", "form"} & set(page.tags)
        assert not page.handlers
        assert all(link.startswith("#") for link in page.links)
        assert "url(" not in text
        assert "@import" not in text
        assert "default-src 'none'" in text

    def test_log_text_is_text(self, document: dict[str, Any]) -> None:
        """A script in a log line is shown, not run; a template expression is not evaluated."""
        for field in ("summary", "incident"):
            document[field] = "<script>alert(2)</script>{{7*7}}"
        document["culprit"]["node"] = '"><svg onload=alert(3)>'
        document["evidence"][0]["node"] = '"><svg onload=alert(3)>'
        page = Page()
        page.feed(text := html.render(document))

        assert "script" not in page.tags
        assert not page.handlers
        assert "&lt;script&gt;alert(2)" in text
        assert "49" not in re.findall(r"alert\(2\)&lt;/script&gt;(.{0,8})", text)[0]
        assert "\u202e" not in text
        assert "\x1b" not in text
        text.encode("utf-8")

    def test_it_shows_all_parts(self, document: dict[str, Any]) -> None:
        """What the terminal says, the page says."""
        text = html.render(document)

        for word in (
            "hardware/gpu-memory",
            "What to do",
            "Timeline",
            "kernel/gpu-node-017.log:812",
            "Only victims",
            "Other explanations",
            "What could be seen",
        ):
            assert word in text

    @pytest.mark.parametrize(
        "made",
        [failed("x", "why"), to_json(Verdict("none", 1.0, "It succeeded.")), to_json(Verdict("user/hang", 0.5, "", time=0.0))],
    )
    def test_a_verdict_with_next_to_nothing_renders(self, made: dict[str, Any]) -> None:
        """Every field but class and summary may be empty."""
        for text in (html.render(made), markdown.render(made), terminal.render(made)):
            assert made["class"] in text


class TestTimeline:
    def test_the_culprit_has_the_first_lane(self, document: dict[str, Any]) -> None:
        """The eye starts at the top."""
        first = timeline.lanes(document)[0]

        assert (first.name, first.culprit) == ("gpu-node-017", True)

    def test_ten_thousand_victims_fit_a_screen(self, document: dict[str, Any]) -> None:
        """Lanes beyond the limit are folded and victims are one mark per lane and reason."""
        document["victims"] = [
            {"rank": r, "node": f"n{r // 8:05d}", "since": "2026-05-04T11:02:09.000Z", "by": "closed"} for r in range(16384)
        ]

        assert len(timeline.lanes(document)) == timeline.LANES
        assert len(timeline.svg(document)) < 40_000

    def test_events_without_a_time_are_left_out(self, document: dict[str, Any]) -> None:
        """Nothing is drawn at an invented time."""
        for event in [*document["evidence"], *document["counter_evidence"]]:
            event["time"] = None
        document["victims"] = []

        assert timeline.svg(document) == ""

    @pytest.mark.parametrize("stamp", ["1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"])
    def test_the_edges_of_the_calendar_are_drawn(self, document: dict[str, Any], stamp: str) -> None:
        """A clock that was never set is no reason to fail."""
        document["evidence"][0]["time"] = stamp

        assert timeline.svg(document).startswith("<svg")


class TestText:
    @pytest.mark.parametrize("module", [words, redact])
    def test_examples_in_docstrings_are_true(self, module: ModuleType) -> None:
        """They are the shortest documentation there is."""
        result = doctest.testmod(module)

        assert result.attempted
        assert not result.failed

    @pytest.mark.parametrize(
        ("numbers", "text"), [([], ""), ([5], "5"), ([0, 1, 2, 3, 7, 9, 10], "0-3,7,9-10"), ([2, 1, 2], "1-2")]
    )
    def test_ranks_fold_to_ranges(self, numbers: list[int], text: str) -> None:
        """Runs become first-last, order and repeats do not matter."""
        assert fold(numbers) == text

    def test_certainty_is_never_rounded_up(self) -> None:
        """99.99 % is not 100 %."""
        assert percent(0.9999) == "99.9 %"
        assert percent(1.0) == "100 %"

    def test_durations_read_like_speech(self) -> None:
        """Two units at most."""
        assert [duration(s) for s in (0.25, 5, 75, 7500, -75)] == ["250 ms", "5 s", "1 min 15 s", "2 h 5 min", "-1 min 15 s"]

    def test_cleaning_is_stable_and_leaves_plain_text_alone(self) -> None:
        """Cleaning twice changes nothing more; accents and CJK stay."""
        assert clean(clean("a\x1b\u202eé漢")) == clean("a\x1b\u202eé漢") == "a\\x1b\\u202eé漢"

    def test_shortening_keeps_both_ends(self) -> None:
        """The start says who, the end says what."""
        assert shorten("start" + "x" * 100 + "end", 20).startswith("start")
        assert shorten("start" + "x" * 100 + "end", 20).endswith("end")
        assert len(shorten("start" + "x" * 100 + "end", 20)) == 20
