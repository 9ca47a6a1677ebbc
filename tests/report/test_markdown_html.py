"""Our Markdown becomes the HTML that a full renderer makes of it, and nothing in it can run, load or hide anything."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import mistune
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import HOSTILE
from workbench.report.markdown import code, quoted
from workbench.report.markdown_html import to_html


class Tree(HTMLParser):
    """Collects tags in order, the text, and what could load or run something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src") or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words += data


def squeezed(html: str) -> tuple[list[str], str]:
    """Tags and words, without what renderers differ in: white space, sections of tables, paragraphs in loose lists."""
    tree = Tree(html)
    return [tag for tag in tree.tags if tag not in ("tbody", "p")], re.sub(r"\s+", "", unescape(tree.words))


SAMPLES = [
    "# A\n\ntext *soft* and **hard** and `code`\n\n## B\n",
    "1. one\n2. two\n   more of two\n\n- a\n- b\n  - c\n",
    "| a | b |\n|---|---|\n| 1 | `x` y |\n| \\| | 2 |\n",
    "> quoted\n> text\n\n---\n\n```text\n# no heading\n<b>\n```\n",
    "a [link](https://example.org/a_b) and `` code with ` in it ``\n",
    "\\*not soft\\* \\<b\\> &amp; a\\_b snake_case_word\n",
]


class TestSame:
    @pytest.mark.parametrize("text", SAMPLES)
    def test_it_agrees_with_a_full_renderer(self, text: str) -> None:
        """Same tags in the same order, same words."""
        theirs = mistune.create_markdown(plugins=["table"])(text)

        assert squeezed(to_html(text)) == squeezed(str(theirs))

    def test_a_bar_in_a_cells_code_is_no_border(self) -> None:
        """GitHub's tables: the backslash goes, in a code span, too."""
        assert "<td><code>x|y</code></td><td>2</td>" in to_html("| a | b |\n|---|---|\n| `x\\|y` | 2 |\n")

    def test_boxes_of_tasks_are_shown(self) -> None:
        """As GitHub does."""
        assert to_html("- [ ] a\n- [x] b\n").count('type="checkbox"') == 2


class TestHostile:
    @pytest.mark.parametrize(
        "text",
        [
            "<script>alert(1)</script>",
            "<img src=x onerror=alert(1)>",
            "[x](javascript:alert(1))",
            "[x](data:text/html;base64,AAAA)",
            "[x](//evil.example)",
            "![x](http://evil.example/pixel.png)",
            "<http://evil.example>",
            '[a](https://x" onclick="alert(1))',
            "`</code><script>`",
            "&#60;script&#62;alert(1)",
        ],
    )
    def test_nothing_runs_or_loads(self, text: str) -> None:
        """Raw HTML is text, only addresses of pages are links, pictures are not loaded."""
        tree = Tree(to_html(text))

        assert not {"script", "img", "iframe", "object"} & set(tree.tags)
        assert all(re.match(r"https?://|mailto:|#", link) for link in tree.links)

    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=60) | st.just(HOSTILE))
    def test_quoted_text_comes_out_as_it_went_in(self, text: str) -> None:
        """Whatever a log holds, in a sentence, a cell and a code span."""
        from workbench.report.text import clean

        page = to_html(f"before {quoted(text)} after\n")
        tree = Tree(page)

        assert set(tree.tags) == {"p"}
        assert re.sub(r"\s+", "", tree.words) == re.sub(r"\s+", "", f"before{clean(text)}after")
        table = Tree(to_html(f"| a | b |\n|---|---|\n| {quoted(text)} | {code(text).replace('|', chr(92) + '|')} |\n"))
        assert table.tags == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td", "code"]

    def test_control_and_reordering_characters_are_written_out(self) -> None:
        """Also those that an entity names."""
        page = to_html(f"{HOSTILE} &#x202e; &#27;\n")

        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", page)

    def test_a_long_line_costs_little(self) -> None:
        """A megabyte of what could open something is done in a moment."""
        import time

        began = time.monotonic()
        for piece in ("*a ", "`", "[", "\\", "_x", "| "):
            to_html(piece * (20_000 // len(piece)))

        assert time.monotonic() - began < 60
