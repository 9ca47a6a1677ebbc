"""The inbox is a folder that several processes read and write at once, and no crash, damage or second writer costs an entry."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.inbox.files import append_line, lines_from
from workbench.inbox.model import Entry
from workbench.inbox.rows import COLUMNS, from_json, to_json
from workbench.inbox.store import Inbox, InboxError
from workbench.owners import Teams
from workbench.report.verdict_json import failed

VERDICT: dict[str, Any] = {
    **failed("x", "y"),
    "cause": "hardware", "class": "hardware/gpu-memory", "confidence": 0.97, "summary": "GPU 3 of gpu-017 lost its memory",
    "culprit": {"node": "gpu-017", "gpu": {"index": 3, "uuid": None, "pci": None}, "rank": 27, "at_fault": "gpu"},
    "time": "2026-05-04T11:02:03.120Z", "attempt": 2, "retry": "exclude-node", "remediation": "reset-gpu",
}  # fmt: skip
CRASH = SystemExit


def test_what_was_added_is_there_for_another_process(tmp_path: Path) -> None:
    Inbox(tmp_path, clock=lambda: 1000.0).add(
        id="train-1", verdict=VERDICT, source="slurm", job="train", evidence=tmp_path / "ev"
    )
    entry = Inbox(tmp_path).get("train-1")

    assert (entry.cause, entry.cls, entry.node, entry.gpu, entry.rank, entry.state) == (
        "hardware", "hardware/gpu-memory", "gpu-017", 3, 27, "new",
    )  # fmt: skip
    assert (entry.seen, entry.time, entry.attempt, entry.job) == (1000.0, 1777892523.12, 2, "train")
    assert Inbox(tmp_path).verdict("train-1") == VERDICT


def test_an_inbox_that_is_not_there_is_empty_and_reading_makes_nothing(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "none")

    assert inbox.entries() == []
    assert list(inbox.frame().columns) == list(COLUMNS)
    assert not inbox.root.exists()


def test_entries_come_newest_first_and_by_state(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for number, when in enumerate((300.0, 100.0, 200.0)):
        inbox.add(id=f"job-{number}", time=when, source="folder")
    inbox.set_state("job-1", "closed", by="ann")

    assert [entry.id for entry in inbox.entries()] == ["job-0", "job-2", "job-1"]
    assert [entry.id for entry in inbox.entries("closed")] == ["job-1"]
    assert [entry.id for entry in inbox.entries(("new", "muted"))] == ["job-0", "job-2"]


def test_the_frame_has_its_kinds_and_no_invented_zero(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.add(id="a", verdict=VERDICT, alerts=("f1", "f2"), told={"slack": 5.0, "webhook": 7.0})
    inbox.add(id="b", problem="no source answered")
    frame = inbox.frame().set_index("id")

    assert {name: str(frame[name].dtype) for name in frame} == {name: kind for name, kind in COLUMNS.items() if name != "id"}
    assert frame.loc["a", "alerts"] == 2
    assert frame.loc["a", "told"].timestamp() == 5.0
    assert frame.loc["b", ["gpu", "ranks", "cost", "node"]].isna().all()


PRICES = {"H100": "2.50", "currency": "EUR"}


@pytest.mark.parametrize(
    ("known", "prices", "cost"),
    [
        ({"gpu_hours": 8.0, "gpu_hours_lost": 2.0, "product": "NVIDIA H100 80GB HBM3"}, PRICES, 25.0),
        ({"gpu_hours": 8.0, "product": "NVIDIA-H100-80GB-HBM3"}, PRICES, 20.0),
        ({"gpu_hours": 8.0}, PRICES, None),  # no price for a product that nobody named
        ({"gpu_hours": 8.0}, {**PRICES, "default": "1"}, 8.0),
        ({"product": "NVIDIA H100 80GB HBM3"}, PRICES, None),
        ({"gpu_hours": 8.0, "product": "NVIDIA H100 80GB HBM3"}, None, None),
        ({"gpu_hours": 8.0, "product": "NVIDIA H100 80GB HBM3", "cause": "none"}, PRICES, None),
    ],
)
def test_a_row_costs_what_its_gpu_hours_cost_and_nothing_is_told_where_hours_or_price_are_not_known(
    tmp_path: Path, known: dict[str, Any], prices: dict[str, str] | None, cost: float | None
) -> None:
    Inbox(tmp_path).add(id="a", verdict=VERDICT, **known)
    assert Inbox(tmp_path, prices=prices).get("a").cost == cost
    assert Inbox(tmp_path).get("a").cost is None


def test_a_new_price_holds_for_rows_that_were_there(tmp_path: Path) -> None:
    Inbox(tmp_path, prices=PRICES).add(id="a", verdict=VERDICT, gpu_hours=4.0, product="H100")
    assert [Inbox(tmp_path, prices={"H100": price}).get("a").cost for price in ("2.50", "3")] == [10.0, 12.0]


TEAMS = Teams({"ml-speech": "speech", "nlp-*": "language", "nlp-eval": "evaluation"}, {"proj0042": "vision"})


@pytest.mark.parametrize(
    ("known", "team"),
    [
        ({"namespace": "ml-speech"}, "speech"),
        ({"namespace": "nlp-train"}, "language"),
        ({"namespace": "nlp-eval"}, "evaluation"),  # by its name, whatever pattern stands before it
        ({"namespace": "ml-speech", "team": "default-queue"}, "speech"),  # a queue's name is a guess, the site's table is not
        ({"team": "proj0042"}, "vision"),  # an account of Slurm
        ({"namespace": "other", "team": "robots"}, "robots"),
        ({"namespace": "other"}, None),
    ],
)
def test_a_row_has_the_team_that_the_table_of_the_site_names(tmp_path: Path, known: dict[str, Any], team: str | None) -> None:
    Inbox(tmp_path).add(id="a", verdict=VERDICT, **known)
    assert Inbox(tmp_path, teams=TEAMS).get("a").team == team
    assert Inbox(tmp_path).get("a").team == known.get("team")


def test_a_new_table_of_teams_holds_for_rows_that_an_older_one_named(tmp_path: Path) -> None:
    """Also of rows that were changed meanwhile, and so written with the older name; without a table it is what was told again."""
    one = Inbox(tmp_path, teams=TEAMS)
    one.add(id="a", verdict=VERDICT, team="proj0042")
    one.set_state("a", "acknowledged", by="ann")
    one.add(id="a", verdict=VERDICT, team="vision")  # what the watch knows of it, told once more

    assert Inbox(tmp_path, teams=Teams({}, {"proj0042": "robots"})).get("a").team == "robots"
    assert Inbox(tmp_path).get("a").team == "proj0042"


def test_the_inbox_costs_what_the_postmortem_says(tmp_path: Path) -> None:
    from workbench.casefile import open_path
    from workbench.report.facts import gather
    from workbench.shipped import example_path, examples

    prices = {"default": "2"}
    told = []
    for name in list(examples())[:4]:
        case = open_path(example_path(name))
        entry = Inbox(tmp_path, prices=prices).add(case, id=name)
        facts = gather(case.verdict, made=0.0, job=case.job, impact=case.impact, prices=prices)
        row = next(row for row in facts.impact if row["what"] == "Cost")
        assert row["value"] == (None if entry.cost is None else f"{entry.cost:,.2f}")
        told.append(entry.cost)
    assert any(told)


def test_a_later_verdict_keeps_state_alerts_and_who_was_told(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.add(id="a", source="slurm", verdict=VERDICT, alerts=("f",), told={"slack": 5.0}, data={"tries": 1})
    inbox.set_state("a", "acknowledged", by="ann", note="mine")
    entry = inbox.add(id="a", verdict={**VERDICT, "class": "unknown", "cause": "unknown", "culprit": {}}, data={"more": 2})

    assert (entry.state, entry.alerts, entry.told, entry.source) == ("acknowledged", ("f",), {"slack": 5.0}, "slurm")
    assert (entry.cause, entry.node, entry.gpu) == ("unknown", None, None), "an older culprit must not outlive its verdict"
    assert (entry.data["tries"], entry.data["more"]) == (1, 2)
    assert [line["what"] for line in inbox.history("a")] == ["added", "state", "verdict"]


def test_history_tells_who_and_why(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, clock=lambda: 77.0)
    inbox.add(id="a")
    inbox.set_state("a", "muted", by="ann", note="known: firmware\n<script>")
    inbox.note("a", "asked the vendor", by="bob")
    state, note = inbox.history("a")[1:]

    assert (state["time"], state["by"], state["from"], state["state"], state["note"]) == (
        77.0, "ann", "new", "muted", "known: firmware\n<script>",
    )  # fmt: skip
    assert (note["what"], note["by"], note["note"]) == ("note", "bob", "asked the vendor")


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a" * 200, "a\x00b", ".."])
def test_an_id_is_no_way_out_of_the_folder(tmp_path: Path, name: str) -> None:
    inbox = Inbox(tmp_path / "inbox")
    for call in (
        lambda: inbox.add(id=name),
        lambda: inbox.get(name),
        lambda: inbox.set_state(name, "new"),
        lambda: inbox.folder(name),
    ):
        with pytest.raises(InboxError):
            call()
    assert name not in inbox
    assert not [path for path in tmp_path.rglob("*") if path.name == "entry.json"]


def test_a_word_that_is_no_state_is_refused(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.add(id="a")

    with pytest.raises(InboxError, match="no state"):
        inbox.set_state("a", "done")
    assert inbox.get("a").state == "new"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"schema":"other/1"}',
        b'{"schema":"workbench.inbox/1","id":"bad"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_entry_is_told_and_the_others_are_used(tmp_path: Path, damage: bytes) -> None:
    inbox = Inbox(tmp_path)
    inbox.add(id="good", verdict=VERDICT)
    inbox.add(id="bad")
    (tmp_path / "entries" / "bad" / "entry.json").write_bytes(damage)
    fresh = Inbox(tmp_path)

    assert [entry.id for entry in fresh.entries()] == ["good"]
    assert len(fresh.problems) == 1
    assert "bad" in fresh.problems[0]
    with pytest.raises(InboxError, match="damaged"):
        fresh.add(id="bad")
    assert (tmp_path / "entries" / "bad" / "entry.json").read_bytes() == damage, (
        "nothing is written over what nobody has looked at"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "gone"),
        ("seen", "soon"),
        ("seen", None),
        ("gpu", True),
        ("gpu", 1.5),
        ("alerts", "f"),
        ("data", []),
        ("id", "../x"),
        ("time", float("1e999")),
    ],
)
def test_a_row_of_the_wrong_kind_is_damaged(field: str, value: Any) -> None:
    table = to_json(Entry("a", 1.0, 2.0, "folder", ""))

    assert from_json(table) == Entry("a", 1.0, 2.0, "folder", "")
    with pytest.raises(ValueError, match="its"):
        from_json({**table, field: value})


def test_fields_of_a_later_version_are_left_aside() -> None:
    assert from_json({**to_json(Entry("a", 1.0, 2.0, "folder", "")), "schema": "workbench.inbox/2", "mood": 1}).id == "a"


def test_an_add_that_died_before_the_row_is_told_later_and_can_be_repeated(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    (tmp_path / "entries" / "half" / "evidence-1").mkdir(parents=True)

    assert inbox.entries() == []
    assert inbox.problems == [], "it may still run"
    os.utime(tmp_path / "entries" / "half", (1, 1))
    assert inbox.entries() == []
    assert "interrupted" in inbox.problems[0]
    inbox.add(id="half", verdict=VERDICT)
    assert [entry.id for entry in inbox.entries()] == ["half"]


def test_a_state_outlives_a_crash_between_history_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(tmp_path)
    inbox.add(id="a")

    def die(*_: Any) -> None:
        raise CRASH

    with monkeypatch.context() as patch:
        patch.setattr("workbench.inbox.store.write_json", die)
        with pytest.raises(CRASH):
            inbox.set_state("a", "acknowledged", by="ann")
    assert Inbox(tmp_path).get("a").state == "acknowledged"
    Inbox(tmp_path).change("a", lambda entry: replace(entry, summary="x"))
    again = Inbox(tmp_path).get("a")
    assert (again.state, again.summary) == ("acknowledged", "x")


def test_a_torn_line_of_history_costs_that_line_only(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.add(id="a")
    inbox.set_state("a", "acknowledged", by="ann")
    with (tmp_path / "entries" / "a" / "history.jsonl").open("ab") as stream:
        stream.write(b'{"time":5,"what":"sta')
    inbox.set_state("a", "resolved", by="ann")
    rows = Inbox(tmp_path).history("a")

    assert Inbox(tmp_path).get("a").state == "resolved"
    assert [row["what"] for row in rows] == ["added", "state", "state", "damaged"]


def _add_many(root: str, first: int, count: int) -> None:
    inbox = Inbox(root)
    for number in range(first, first + count):
        inbox.add(id=f"job-{number}", verdict=VERDICT)
        inbox.change("shared", lambda entry: replace(entry, data={**entry.data, "count": entry.data.get("count", 0) + 1}))


def test_several_processes_add_and_change_and_none_of_it_is_lost(tmp_path: Path) -> None:
    Inbox(tmp_path).add(id="shared")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add_many, args=(str(tmp_path), at * 15, 15)) for at in range(3)]
    for worker in workers:
        worker.start()
    reader, halves = Inbox(tmp_path), list[str]()
    while any(worker.is_alive() for worker in workers):
        reader.entries()
        halves += reader.problems
    for worker in workers:
        worker.join()

    assert halves == [], "a reader saw half of something"
    assert len(reader.entries()) == 46
    assert reader.get("shared").data["count"] == 45


def _hold(root: str) -> None:
    with Inbox(root)._lock():
        time.sleep(60)


def test_who_dies_with_the_lock_gives_it_back(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.add(id="a")
    worker = multiprocessing.get_context("fork").Process(target=_hold, args=(str(tmp_path),))
    worker.start()
    time.sleep(0.3)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()

    assert inbox.set_state("a", "closed").state == "closed"


def test_forgetting_takes_evidence_first_and_never_what_lies_elsewhere(tmp_path: Path) -> None:
    now = [0.0]
    inbox = Inbox(tmp_path / "inbox", clock=lambda: now[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number in range(4):
        now[0] = number * 100.0
        place = inbox.room(f"job-{number}")
        (place / "log.txt").write_bytes(b"x" * 1000)
        inbox.add(id=f"job-{number}", verdict=VERDICT, evidence=place)
    inbox.add(id="other", evidence=elsewhere)
    inbox.set_state("job-2", "closed", by="ann")

    assert [line.split(":")[0] for line in inbox.forget(most=2500)] == ["job-2", "job-0"], (
        "what is closed goes first, then the oldest"
    )
    assert [bool(inbox._own(inbox.get(f"job-{number}"))) for number in range(4)] == [False, True, False, True]
    assert inbox.forget(evidence_older=150.0) == ["job-1: evidence of 0.0 MB removed: it is old"]
    assert inbox.get("job-0").cls == "hardware/gpu-memory", "the verdict stays"
    assert "evidence" in [line["what"] for line in inbox.history("job-0")]
    assert [line for line in inbox.forget(older=250.0) if "forgotten" in line] == ["job-0: forgotten"]
    assert "job-0" not in inbox
    assert elsewhere.exists()


def test_the_newest_open_incident_keeps_its_evidence_however_little_room_there_is(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    place = inbox.room("a")
    (place / "log").write_bytes(b"x" * 1000)
    inbox.add(id="a", evidence=place)

    assert inbox.forget(most=10) == []
    assert (place / "log").exists()


def test_evidence_below_the_inbox_moves_with_it(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "one")
    place = inbox.room("a")
    inbox.add(id="a", evidence=place)
    (tmp_path / "one").rename(tmp_path / "two")

    assert Path(Inbox(tmp_path / "two").get("a").evidence) == tmp_path / "two" / "entries" / "a" / "evidence-1"


def test_lines_survive_what_a_crash_left_without_its_end(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_bytes(b'{"a":')
    append_line(file, {"b": 1})

    assert lines_from(file) == ([{"b": 1}], 1)
    assert json.loads(file.read_bytes().splitlines()[-1]) == {"b": 1}


def test_entries_that_did_not_change_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(tmp_path)
    for number in range(50):
        inbox.add(id=f"job-{number}")
    inbox.entries()

    def never(*_: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("workbench.inbox.store.from_json", never)
    assert len(inbox.entries()) == 50
