"""Hostile text in every field of a case stays text in every part of the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import panel as pn
import pytest

from tests.views.view_cases import EVIL, hostile
from workbench.views.incident import TABS, IncidentView, verdict_card_html
from workbench.views.markup import cut, plain
from workbench.views.surface import Surface

ALLOWED = {
    "a", "article", "b", "button", "code", "dd", "div", "dl", "dt", "form", "h1", "h2", "h3", "h4", "header", "input", "label", "li", "mark", "nav", "ol",
    "option", "p", "section", "select", "small", "span", "table", "tbody", "td", "th", "thead", "time", "tr", "ul",
}  # fmt: skip


class Tags(HTMLParser):
    """Collects elements and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def check(html: str) -> None:
    parser = Tags()
    parser.feed(html)
    assert parser.tags <= ALLOWED
    for name, value in parser.attributes:
        assert not name.startswith("on")
        assert (
            name in ("data-copy", "data-go", "data-link", "title")
            or "<" not in value
            or name in ("data-scroll", "aria-label", "value")
        )
        if name == "href":
            assert value.startswith(("?", "#", "./"))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)


@pytest.mark.parametrize("tab", TABS)
def test_no_part_of_the_page_holds_markup_of_the_evidence(tab):
    view = IncidentView(hostile(), tab=tab)
    page = view.__panel__()
    if tab == "log":
        view.query = "<script>"
    view.notice = EVIL
    found = list(page.select(Surface))
    assert found
    for surface in found:
        check(surface.html)
    # no pane may take text of the evidence for HTML or Markdown
    assert not list(page.select(pn.pane.Markdown))
    assert not list(page.select(pn.pane.HTML))
    for table in page.select(pn.widgets.Tabulator):
        assert {formatter["type"] for formatter in table.formatters.values()} == {"plaintext"}


@pytest.mark.parametrize("compact", [False, True])
def test_the_card_holds_no_markup_of_the_evidence(compact):
    html = verdict_card_html(hostile(), {"id": EVIL}, compact=compact)
    check(html)
    assert "&lt;script&gt;" in html


def test_ansi_goes_and_what_is_left_is_visible():
    assert plain("\x1b[1;31mERROR\x1b[0m boom \x1b]0;title\x07end\x1b(B") == "ERROR boom end"
    assert plain("\x9b31mred") == "red"
    assert plain("nothing to do") == "nothing to do"
    assert len(cut("x" * 1_000_000)) <= 600
