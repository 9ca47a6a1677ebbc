"""Turn score cards of game days into their tab of the account: which is shown, sums by dirt, times of real servers, and no ledger at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("panel")

import panel as pn

from tests.views.test_account_view import EVIL, NOW, shown, texts
from workbench.fleet.account import Account
from workbench.fleet.gamedays import game_days
from workbench.fleet.ledger import Ledger
from workbench.serving.books import Books
from workbench.simulation.demo import demo_ledger
from workbench.views.account_model import Sheet, Wish
from workbench.views.account_tabs import sheet


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_ledger(tmp_path_factory.mktemp("account") / "fleet.sqlite", NOW)


CARD = {
    "schema": "workbench.gameday/1",
    "seed": 1,
    "seconds": {"judged": 0.07},
    "rounds": [
        {"number": 1, "truth": "hardware/nvlink", "said": "hardware/nvlink", "confidence": 0.9, "node": "g-1", "blamed": "g-1", "ranks": 16,
         "detected": 20.0, "judged": 0.07, "planned": 0.01, "retry": "exclude-node", "actions": ["drain g-1"],
         "cause_right": True, "node_right": True, "retry_right": True, "plan_right": True, "innocent": False},
        {"number": 2, "truth": "driver/hang", "said": EVIL, "confidence": 0.4, "node": "g-2", "blamed": "g-3", "ranks": 8, "detected": 20.0,
         "judged": 0.07, "planned": 0.01, "retry": None, "actions": [], "cause_right": False, "node_right": False, "retry_right": True,
         "plan_right": False, "innocent": True},
    ],
}  # fmt: skip


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """A folder with two game days and one that is damaged."""
    for name, text, age in (
        ("november", json.dumps(CARD), 0),
        ("october", json.dumps(CARD | {"rounds": CARD["rounds"][:1]}), 9),
        ("bad", "{", 20),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scorecard.json").write_text(text, encoding="utf-8")
        os.utime(tmp_path / name / "scorecard.json", (NOW - age * 86400, NOW - age * 86400))
    return tmp_path


def _with_days(ledger: Path, folder: Path) -> Callable[[Wish], Sheet]:
    with Ledger.open(ledger, "ro") as opened:
        account = Account.read(opened, "8w", now=NOW)
    return lambda wish: sheet(account, wish, game_days(folder))


def test_the_latest_game_day_is_shown_and_another_is_a_link_away(ledger: Path, days: Path) -> None:
    view = shown(_with_days(ledger, days), {"tab": "gameday"})
    (part,) = view._sheet.tables if view._sheet else ()

    assert list(part.shown["right"]) == ["all", "wrong: cause, node, plan, an innocent node"]
    assert 'aria-current="true">november' in view._chips.html
    assert "bad" in view._notes.html
    assert "cannot be read" in view._notes.html
    view.heard("day=october")
    assert view.state() == {"tab": "gameday", "day": "october"}
    assert view._sheet is not None
    assert [len(one.frame) for one in view._sheet.tables] == [1]


def test_a_game_day_on_real_servers_is_shown_with_its_own_times_and_ranks(ledger: Path, tmp_path: Path) -> None:
    (first, *_) = CARD["rounds"]  # type: ignore[misc]
    live = {name: value for name, value in first.items() if name not in ("detected", "ranks")}
    rounds = [live | {"shown": 3.0, "seen": 41.5, "rank": 3, "named": 4, "rank_right": False}]
    (tmp_path / "scorecard.json").write_text(
        json.dumps({"schema": "workbench.gameday-live/1", "seed": 1, "rounds": rounds}), encoding="utf-8"
    )
    view = shown(_with_days(ledger, tmp_path), {"tab": "gameday"})
    assert view._sheet is not None
    (part,) = view._sheet.tables
    assert (part.shown["detected"][0], part.shown["right"][0], part.shown["ranks"][0]) == (41.5, "wrong: rank", None)
    assert "on real servers" in part.note
    assert view.__panel__().select(pn.pane.Bokeh)


def test_a_game_day_that_is_not_there_and_none_at_all_are_said(ledger: Path, days: Path, tmp_path: Path) -> None:
    assert "no game day of the name" in shown(_with_days(ledger, days), {"tab": "gameday", "day": "may"})._notes.html
    none = shown(_with_days(ledger, tmp_path / "nothing"), {"tab": "gameday"})
    assert none.__panel__().select(pn.pane.Bokeh)  # which says how one is played
    assert none._sheet is not None
    assert none._sheet.tables == ()


def test_rounds_are_summed_by_what_was_wrong_with_their_evidence(ledger: Path, tmp_path: Path) -> None:
    """Of both kinds of game day, from the rounds, so that cards of an older workbench have it as well."""
    first, second = CARD["rounds"]  # type: ignore[misc]
    third = first | {"dirt": ["no_kernel", "truncated"], "said": "unknown", "cause_right": False, "rank_right": False}
    rounds = [first | {"rank_right": True}, second | {"dirt": ["truncated"], "rank_right": True}, third]
    for schema in ("workbench.gameday/1", "workbench.gameday-live/1"):
        (tmp_path / "scorecard.json").write_text(json.dumps(CARD | {"schema": schema, "rounds": rounds}), encoding="utf-8")
        seen = shown(_with_days(ledger, tmp_path), {"tab": "gameday"})._sheet
        assert seen is not None
        (_, part) = seen.tables
        rows = {row["kind"]: row for row in part.frame.to_dict("records")}
        assert list(rows) == ["nothing", "no kernel logs", "some logs are cut"]
        cut = rows["some logs are cut"]
        assert [cut[name] for name in ("rounds", "cause", "node", "rank", "retry", "plan", "unknown", "innocent")] == [
            2,
            0,
            1,
            1,
            2,
            1,
            1,
            1,
        ]
        assert (rows["nothing"]["cause"], rows["no kernel logs"]["rounds"]) == (1, 1)


def test_game_days_need_no_ledger(days: Path, tmp_path: Path) -> None:
    """Neither one with rows nor one at all: the pages that have nothing to say name the tab."""
    missing = Books(tmp_path / "none.sqlite", gamedays=days, clock=lambda: NOW)
    Ledger.open(tmp_path / "empty.sqlite").close()
    empty = Books(tmp_path / "empty.sqlite", gamedays=days, clock=lambda: NOW)
    for books in (missing, empty):
        books.look()
        first = shown(books.sheet)
        assert "Game days need no ledger" in texts(first)
        first.heard("tab=gameday")
        assert first._sheet is not None
        assert [len(part.frame) for part in first._sheet.tables] == [2]
        assert first._nav.visible
        assert not first._tiles.visible
        assert 'aria-current="true">november' in first._chips.html
        assert first.__panel__().select(pn.pane.Bokeh)
        first.heard("tab=objectives")
        assert not first.__panel__().select(pn.pane.Bokeh)


@pytest.mark.parametrize("rounds", [7, [7], [{"judged": "soon"}], {"a": 1}, [{"dirt": 7}], [{"actions": "reboot"}]])
def test_a_score_card_of_another_shape_is_a_problem_and_not_drawn(tmp_path: Path, rounds: Any) -> None:
    (tmp_path / "scorecard.json").write_text(json.dumps(CARD | {"rounds": rounds}), encoding="utf-8")
    (one,) = game_days(tmp_path)
    assert one.card is None
    assert "cannot be read" in one.problem
