"""The ledger is read by one thread however many ask, again when it has changed, and made only for the demonstration and when somebody looks."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from workbench.fleet import openslo
from workbench.fleet.account import NoLedger
from workbench.fleet.budgets import Objective
from workbench.fleet.ledger import Ledger
from workbench.serving.books import Books
from workbench.simulation.demo import demo_ledger
from workbench.views.account_model import Wish


def job(name: str, ended: float) -> dict[str, object]:
    return {
        "job": name,
        "submitted": ended - 60,
        "started": ended - 50,
        "ended": ended,
        "state": "completed",
        "gpus": 1,
        "source": "test",
    }


@pytest.fixture
def books(tmp_path: Path) -> Books:
    with Ledger.open(tmp_path / "fleet.sqlite") as ledger:
        ledger.put("jobs", [job("a", time.time() - 100)])
    books = Books(tmp_path / "fleet.sqlite")
    books.look()
    return books


def test_a_sheet_is_made_once_and_held_for_who_asks_next(books: Books) -> None:
    assert books.held(Wish()) is None
    made = books.sheet(Wish())

    assert books.held(Wish()) is made
    assert books.sheet(Wish()) is made
    assert books.held(Wish(tab="time")) is None


def test_who_asks_at_once_gets_the_same(books: Books) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(books.sheet(Wish(tab="failures")))) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert len(found) == 4
    assert len({id(one) for one in found}) == 1


def test_a_change_of_the_ledger_is_another_version(books: Books) -> None:
    before = books.version
    books.sheet(Wish())
    assert books.look() == before  # reading changes nothing
    with Ledger.open(books.path) as ledger:
        ledger.put("jobs", [job("b", time.time() - 50)])

    assert books.look() == before + 1
    assert books.held(Wish()) is None
    tile = next(one for one in books.sheet(Wish()).tiles if one["name"] == "job success")
    assert tile["of"] == "2 of 2 jobs"


def test_no_ledger_is_said_and_none_is_made(tmp_path: Path) -> None:
    books = Books(tmp_path / "none.sqlite")
    books.look()

    assert (books.time, books.why) == (None, "there is no ledger yet")
    with pytest.raises(NoLedger, match=r"there is no ledger .*none\.sqlite"):
        books.sheet(Wish())
    assert not list(tmp_path.iterdir())


def test_the_demonstrations_account_is_made_when_somebody_looks(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        demo_ledger(path, time.time())

    books = Books(tmp_path / "account.sqlite", make=make)
    books.look()
    assert not made
    assert books.simulated

    assert not books.sheet(Wish(tab="lemons")).empty
    books.sheet(Wish(tab="cost"))
    assert len(made) == 1
    assert books.path.is_file()


def test_targets_come_from_the_file_that_is_named_and_a_change_of_it_is_another_version(tmp_path: Path, books: Books) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(openslo.dump((Objective("ours", "job-success", 0.75),)), encoding="utf-8")
    own = Books(books.path, objectives=file)
    before = own.look()
    assert own.sheet(Wish()).drawn["targets"] == {"job success": 0.75}
    file.write_text(openslo.dump((Objective("ours, stricter", "job-success", 0.875),)), encoding="utf-8")

    assert own.look() == before + 1
    assert own.sheet(Wish()).drawn["targets"] == {"job success": 0.875}


@pytest.mark.parametrize("text", [None, "kind: [", "kind: Service\napiVersion: openslo/v1\nmetadata: {name: x}\n"])
def test_targets_that_cannot_be_read_are_none_and_no_others_stand_in_for_them(
    tmp_path: Path, books: Books, text: str | None
) -> None:
    file = tmp_path / "slo.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    own = Books(books.path, objectives=file)
    own.look()
    made = own.sheet(Wish())

    assert made.drawn["targets"] == {}
    assert all(tile["state"] == "" for tile in made.tiles)
    assert any("slo.yaml" in note for note in made.notes)


def test_a_game_day_that_was_played_meanwhile_is_another_version(tmp_path: Path, books: Books) -> None:
    own = Books(books.path, gamedays=tmp_path / "days")
    before = own.look()
    assert own.sheet(Wish(tab="gameday")).drawn["card"] is None
    (tmp_path / "days" / "one").mkdir(parents=True)
    card = {"schema": "workbench.gameday/1", "seed": 1, "rounds": [{"number": 1, "truth": "user/code"}]}
    (tmp_path / "days" / "one" / "scorecard.json").write_text(json.dumps(card), encoding="utf-8")

    assert own.look() == before + 1
    assert own.sheet(Wish(tab="gameday")).drawn["day"] == "one"
