"""Tables: text and numbers only, times in UTC, and files that hold the whole frame."""

from __future__ import annotations

import io
import json

import pandas as pd

from tests.views.view_cases import EVENTS, EVIL, typed
from workbench.views.tables import Table, display, to_csv, to_json

ROWS = [
    {"time": 1777892523.125, "last": None, "count": 3, "source": "job", "signature": EVIL, "rank": 5, "line": None, "text": "=cmd|' /C calc'!A0"},
    {"time": None, "last": None, "count": 1, "source": "job", "signature": "b", "rank": None, "line": 7, "text": "\x1b[31mred"},
]  # fmt: skip


def frame() -> pd.DataFrame:
    return typed(ROWS, EVENTS)


def test_times_are_utc_text_and_missing_is_empty():
    shown = display(frame(), {"time": "time", "rank": "rank", "count": "count", "text": "text"})
    assert shown["time"].tolist() == ["2026-05-04 11:02:03.125", ""]
    assert shown["rank"].tolist() == [5, None]
    assert shown["count"].tolist() == [3, 1]
    assert shown["text"].tolist() == ["=cmd|' /C calc'!A0", "red"]


def test_headings_say_utc_and_every_cell_is_plain_text():
    table = Table(frame(), columns={"time": "first", "signature": "what"}, filters=("signature",))
    widget = table.tabulator
    assert widget.titles["time"] == "first (UTC)"
    assert widget.pagination == "remote"
    assert {formatter["type"] for formatter in widget.formatters.values()} == {"plaintext"}
    assert set(widget.header_filters) == {"signature"}


def test_a_chosen_row_is_told_by_its_place_in_the_frame():
    chosen: list[int] = []
    table = Table(frame(), columns={"signature": "what"}, chosen=chosen.append)

    class Click:
        row = 1

    table._clicked(Click())
    assert chosen == [1]
    assert table.selected == 1
    assert table.tabulator.selection == [1]
    Click.row = 99
    table._clicked(Click())
    assert chosen == [1]


def test_the_exports_hold_the_whole_frame():
    whole = frame()
    back = pd.read_csv(io.StringIO(to_csv(whole)))
    assert list(back.columns) == list(whole.columns)
    assert back["time"].iloc[0] == "2026-05-04T11:02:03.125000Z"
    assert pd.isna(back["time"].iloc[1])
    rows = json.loads(to_json(whole))
    assert rows[0]["rank"] == 5
    assert rows[1]["rank"] is None
    assert rows[0]["signature"] == EVIL


def test_a_spreadsheet_runs_nothing_of_an_export():
    assert "\"'=cmd" in to_csv(frame()) or ",'=cmd" in to_csv(frame())


def test_no_row_is_a_sentence():
    from workbench.views.surface import Surface

    table = Table(frame().head(0), empty="No condition is in the evidence.")
    assert [surface.html for surface in table.__panel__().select(Surface)] == [
        '<p class="soft">No condition is in the evidence.</p>\n'
    ]
