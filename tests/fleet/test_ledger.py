"""The ledger: one file for many processes, later words win, nothing is lost, and what is wrong with a file is said with the way out."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path

import pandas as pd
import pytest

from workbench.fleet import place, schema
from workbench.fleet.ledger import BadRow, Ledger, LedgerBusy, LedgerCorrupt, LedgerError
from workbench.fleet.tables import TABLES

T = 1_780_000_000.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "fleet.sqlite"


def job(number: int, **more: object) -> dict[str, object]:
    return {
        "job": str(number), "gpus": 8, "started": T, "ended": T + 3600, "state": "completed", "source": "slurm", "recorded": T, **more
    }  # fmt: skip


def test_a_row_comes_back_as_it_was_told_and_what_was_not_told_is_missing(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(1, user="ü", nodes=2)])
        ledger.put("attempts", [{"job": "1", "attempt": 1, "node_names": ["a", "b"], "excluded": [], "recorded": T}])
        frame = ledger.frame("jobs")
        attempts = ledger.frame("attempts")
    assert str(frame["ended"].dtype) == "datetime64[us, UTC]"
    assert {str(frame[name].dtype) for name in ("nodes", "gpus")} == {"Int64"}
    assert {str(frame[name].dtype) for name in ("job", "user", "state")} == {"string"}
    row = frame.iloc[0]
    assert (row["job"], row["user"], row["nodes"], row["ended"].timestamp()) == ("1", "ü", 2, T + 3600)
    assert row["team"] is pd.NA
    assert row["first_step"] is pd.NaT
    assert attempts.iloc[0]["node_names"] == ["a", "b"]
    assert attempts.iloc[0]["excluded"] == []
    assert str(attempts["confidence"].dtype) == "Float64"


@pytest.mark.parametrize(
    "some",
    [[], ["a"], ["a", 'quote " and \\', "\x00\n\x1b[31m", "ü€\U0001f600", "\ud800", ""], ("gpu-1", "gpu-2"), ["a", 1, None, 2.5]],
)
def test_lists_are_kept_as_json_of_the_library(path: Path, some: list[object]) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("attempts", [{"job": "1", "attempt": 1, "node_names": some, "recorded": T}])
        ((kept,),) = ledger.select("SELECT node_names FROM attempts")
    assert kept == json.dumps(list(some), separators=(",", ":"))


def test_an_empty_table_is_a_frame_with_all_columns_of_their_types(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for name, table in TABLES.items():
            frame = ledger.frame(name)
            assert list(frame.columns) == [one.name for one in table.columns]
            times = [one.name for one in table.columns if one.kind == "time"]
            assert {str(frame[one].dtype) for one in times} == {"datetime64[us, UTC]"}


def test_the_later_of_two_records_stays_in_whichever_order_they_come(path: Path) -> None:
    told = [
        job(1, state=state, team=team, recorded=T + at)
        for at, (state, team) in enumerate([("failed", "a"), ("completed", "b"), ("timeout", None)])
    ]
    for place_, order in enumerate(permutations(told)):
        with Ledger.open(path.with_name(f"{place_}.sqlite")) as ledger:
            for row in order:
                ledger.put("jobs", [row])
            (kept,) = ledger.rows("jobs")
            assert (kept["state"], kept["team"], kept["recorded"]) == ("timeout", None, T + 2)


def test_what_a_verdict_found_stays_when_the_scheduler_tells_the_same_attempt_again(path: Path) -> None:
    attempt = {"job": "1", "attempt": 1, "state": "failed"}
    scheduler = {
        **attempt,
        "started": T,
        "ended": T + 60,
        "gpus": 64,
        "cause": "platform",
        "cls": "platform/node-lost",
        "source": "slurm",
        "recorded": T + 900,
    }
    verdict = {
        **attempt,
        "ended": T + 55,
        "cause": "hardware",
        "cls": "hardware/gpu-lost",
        "node": "n1",
        "source": "folder:x",
        "recorded": T + 100,
    }
    steps = {**attempt, "started": T + 1, "step_last": 70, "source": "run", "recorded": T + 50}
    seen = set()
    for place_, order in enumerate(permutations([scheduler, verdict, steps])):
        with Ledger.open(path.with_name(f"{place_}.sqlite")) as ledger:
            for row in order:
                ledger.put("attempts", [row])
            (kept,) = ledger.rows("attempts")
        assert (kept["cls"], kept["node"], kept["step_last"]) == ("hardware/gpu-lost", "n1", 70)
        seen.add(tuple(str(value) for value in kept.values()))
    assert len(seen) == 1


def test_a_cause_belongs_to_a_failure_and_a_failure_without_one_has_an_unknown_one(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.put(
            "jobs",
            [
                job(1, state="failed"),
                job(2, state="failed", cause="user", cls="user/exception"),
                job(3, cause="user"),
                job(4, state="failed", cause=""),
            ],
        )
        causes = {row["job"]: row["cause"] for row in ledger.rows("jobs")}
        assert causes == {"1": "unknown", "2": "user", "3": None, "4": "unknown"}
        assert [row["job"] for row in ledger.rows("jobs", cause="unknown")] == ["1", "4"]
        ledger.put("jobs", [job(2, state="completed", recorded=T + 1)])
        assert ledger.rows("jobs", job="2")[0]["cause"] is None


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"job": "1", "ended": "yesterday"}, "ended is no time"),
        ({"job": "1", "ended": T * 1000}, "seconds"),
        ({"job": "1", "gpus": 1.5}, "gpus is no count"),
        ({"job": "1", "state": "exploded"}, "state"),
        ({"job": "1", "colour": "red"}, "colour"),
        ({"job": ["1"]}, "job is no text"),
    ],
)
@pytest.mark.parametrize("rows", [1, 200], ids=["one", "bulk"])
def test_a_wrong_row_is_named_and_nothing_of_its_put_is_written(path: Path, row: dict[str, object], says: str, rows: int) -> None:
    with Ledger.open(path) as ledger:
        with pytest.raises(BadRow, match=says) as raised:
            ledger.put("jobs", [*(job(number) for number in range(100, 100 + rows)), row])
        assert raised.value.row == rows
        assert ledger.size("jobs") == 0
        assert ledger.check() == []


def test_values_of_frames_and_texts_of_hostile_logs_are_only_data(path: Path) -> None:
    hostile = "'); DROP TABLE jobs; --\x00\x1b[31m\ud800 <script>"
    with Ledger.open(path) as ledger:
        ledger.put(
            "jobs", [job(1, name=hostile, ended=datetime.fromtimestamp(T, UTC), gpus=float("nan"), team=pd.NA, submitted=pd.NaT)]
        )
        (row,) = ledger.rows("jobs", name=hostile)
        assert row["name"] == hostile.replace("\ud800", "?")
        assert (row["ended"], row["gpus"], row["team"]) == (T, None, None)
        frame = ledger.frame("jobs")
        assert frame["cause"].isna().all()
        assert ledger.put("jobs", frame) == 0  # what came out goes in again and changes nothing


def test_what_is_told_twice_counts_once_in_bulk_and_one_by_one(path: Path) -> None:
    with Ledger.open(path) as ledger:
        rows = [job(number) for number in range(500)]
        assert ledger.put("jobs", rows) == 500
        assert ledger.put("jobs", rows) == 0
        assert ledger.put("jobs", [*rows, job(1000), job(1000)]) == 1
        assert ledger.counts(()).iloc[0]["count"] == 501
        assert ledger.delete("jobs", [{"job": "3"}, {"job": "nobody"}]) == 1
        assert ledger.check() == []


def test_rows_are_chosen_by_what_they_have_in_a_window_and_by_columns(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.put(
            "jobs",
            [
                job(1, started=T, ended=T + 10),
                job(2, started=T + 20, ended=T + 30),
                job(3, started=T + 5, ended=None, state="running"),
            ],
        )
        names = lambda **asked: [row["job"] for row in ledger.rows("jobs", **asked)]  # noqa: E731
        assert names(since=T + 15) == ["2", "3"]
        assert names(until=T + 20) == ["1", "3"]
        assert names(ended=None) == ["3"]
        assert names(job=["1", "2"], state="completed", limit=1, last="ended") == ["2"]
        with pytest.raises(ValueError, match="no column"):
            names(**{"1=1; --": 1})


def test_reading_only_never_writes_and_refuses_to(path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(path, "ro")
    assert not path.parent.exists()
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(1)])
    before = path.read_bytes()
    with Ledger.open(path, "ro") as ledger:
        assert len(ledger.rows("jobs")) == 1
        with pytest.raises(LedgerError, match="reading only"):
            ledger.put("jobs", [job(2)])
        with pytest.raises(LedgerError):
            ledger._ask("DELETE FROM jobs")
    assert path.read_bytes() == before


def test_a_ledger_of_a_newer_workbench_is_refused_and_left_alone(path: Path) -> None:
    Ledger.open(path).close()
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    raw.close()
    before = path.read_bytes()
    for mode in ("rw", "ro"):
        with pytest.raises(LedgerError, match="newer workbench"):
            Ledger.open(path, mode)
    assert path.read_bytes() == before


def test_an_older_ledger_is_brought_up_to_date_and_a_copy_of_it_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(1)])
    monkeypatch.setattr(schema, "VERSION", 3)
    monkeypatch.setitem(schema.MIGRATIONS, 2, lambda db: db.execute("UPDATE jobs SET name = 'two'"))
    monkeypatch.setitem(schema.MIGRATIONS, 3, lambda db: db.execute("UPDATE jobs SET name = name || ' three'"))
    with Ledger.open(path) as ledger:
        assert ledger.rows("jobs")[0]["name"] == "two three"
        assert ledger._ask("PRAGMA user_version") == [(3,)]
    (copy,) = path.parent.glob("fleet.sqlite.v1.*")
    with contextlib.closing(sqlite3.connect(copy)) as raw, raw:
        assert raw.execute("SELECT name FROM jobs").fetchall() == [(None,)]
    raw.close()


def test_a_migration_that_fails_leaves_everything_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(1)])
    monkeypatch.setattr(schema, "VERSION", 2)

    def step(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM jobs")
        raise ValueError("no")

    monkeypatch.setitem(schema.MIGRATIONS, 2, step)
    with pytest.raises(ValueError, match="no"):
        Ledger.open(path)
    monkeypatch.undo()
    with Ledger.open(path) as ledger:
        assert ledger.size("jobs") == 1


def test_columns_and_rollups_that_a_file_lacks_are_added(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(1), job(2, state="failed")])
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("ALTER TABLE signals DROP COLUMN detail")
        raw.execute("DROP TABLE jobs_weekly")
        raw.execute("DROP TRIGGER attempts_weekly_update")
    raw.close()
    with Ledger.open(path, "ro") as ledger:  # of a column that is not there nothing was told
        assert list(ledger.frame("signals").columns) == [one.name for one in TABLES["signals"].columns]
    with Ledger.open(path) as ledger:
        assert ledger.check() == []
        ledger.put("signals", [{"node": "n", "kind": "xid", "time": T, "detail": "d"}])
        assert ledger.rows("signals")[0]["detail"] == "d"


def test_a_damaged_file_is_an_error_with_the_way_out(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(number, name="x" * 200) for number in range(5000)])
    whole = path.read_bytes()
    path.write_bytes(b"not a database at all, but long enough to be read as one" * 100)
    for mode in ("rw", "ro"):
        with pytest.raises(LedgerCorrupt, match="damaged") as raised:
            Ledger.open(path, mode)
        assert "ingest" in raised.value.hint
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LedgerCorrupt), Ledger.open(path, "ro") as ledger:
        ledger.check()
    torn = bytearray(whole)
    torn[20480:40960] = os.urandom(20480)
    path.write_bytes(bytes(torn))
    with pytest.raises(LedgerCorrupt), Ledger.open(path, "ro") as ledger:
        ledger.check()


def test_a_database_of_another_program_is_not_touched(path: Path) -> None:
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("CREATE TABLE cookies (value TEXT)")
    raw.close()
    before = path.read_bytes()
    for mode in ("rw", "ro"):
        with pytest.raises(LedgerError, match="another program"):
            Ledger.open(path, mode)
    assert path.read_bytes() == before


def test_who_waits_too_long_is_told_and_nothing_is_written(path: Path) -> None:
    with Ledger.open(path) as first, Ledger.open(path, busy=0.05) as second:
        with first.batch():
            first.put("jobs", [job(1)])
            with pytest.raises(LedgerBusy):
                second.put("jobs", [job(2)])
            assert second.rows("jobs") == []  # readers do not wait, and see nothing half done
        assert [row["job"] for row in second.rows("jobs")] == ["1"]


def test_a_network_file_system_and_one_that_nobody_knows_are_warned_about(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n30 22 0:40 / /home rw,relatime shared:2 - nfs4 srv:/home rw\n"
        "31 22 0:41 / /my\\040disk rw - weird /dev/x rw\nbroken\n"
    )
    assert place.filesystem(Path("/home/me/fleet.sqlite"), mounts) == "nfs4"
    assert place.filesystem(Path("/homes/fleet.sqlite"), mounts) == "ext4"
    assert place.filesystem(Path("/my disk/a"), mounts) == "weird"
    assert place.filesystem(Path("/x"), tmp_path / "none") == ""


def test_the_warning_of_a_network_file_system_reaches_who_opens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "filesystem", lambda _: "lustre")
    with Ledger.open(path) as ledger:
        assert "lustre" in ledger.problems[0].message


def test_a_folder_that_may_not_be_written_is_read_all_the_same(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(1)])
    target = path.parent
    if os.geteuid() == 0:  # rights do not hold root back: what SQLite then says is played
        real = place._connect

        def refusing(address: str, busy: float) -> sqlite3.Connection:
            if "immutable" not in address:

                class Refusing:
                    def execute(self, *_: object) -> object:
                        raise sqlite3.OperationalError("unable to open database file")

                    def close(self) -> None: ...

                return Refusing()  # type: ignore[return-value]
            return real(address, busy)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, "_connect", refusing)
            patch.setattr(place.os, "access", lambda *_: False)
            with Ledger.open(path, "ro") as ledger:
                assert ledger.size("jobs") == 1
        return
    target.chmod(0o555)
    try:
        with Ledger.open(path, "ro") as ledger:
            assert ledger.size("jobs") == 1
    finally:
        target.chmod(0o755)


_WRITER = """
import sys
from workbench.fleet.ledger import Ledger
path, me, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
row = {"started": 1e9, "ended": 1e9 + 60, "gpus": 8}
with Ledger.open(path, busy=60.0) as ledger:
    for at in range(turns):
        own = [{**row, "job": f"{me}-{at}-{step}", "state": "completed", "recorded": 1e9} for step in range(3)]
        states = ("completed", "failed")
        shared = [{**row, "job": f"shared-{step}", "state": states[(at + me) % 2], "recorded": 1e9 + at * 8 + me} for step in range(3)]
        with ledger.batch():
            ledger.put("jobs", own)
            ledger.put("jobs", shared)
            if me == 0:
                ledger.put("signals", [{"node": "n", "kind": "xid", "time": 1e9 + at, "recorded": 1e9}])
        print(at, flush=True)
"""


def test_eight_processes_write_at_once_and_two_are_killed_and_nothing_is_lost_or_doubled(path: Path) -> None:
    turns, killed = 40, (3, 5)
    path.parent.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = [path.with_name(f"said-{me}") for me in range(8)]
    writers = []
    for me, file in enumerate(said):
        words = [sys.executable, "-c", _WRITER, str(path), str(me), str(10**9 if me in killed else turns)]
        with file.open("wb") as out:
            writers.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, env=env))
    try:
        _until(lambda: all(file.read_text() == "ready\n" for file in said))
        for one in writers:  # all make the file at once
            assert one.stdin is not None
            one.stdin.write(b"go\n")
            one.stdin.close()
        for me in killed:
            _until(lambda me=me: said[me].read_text().count("\n") > 3)
            writers[me].kill()
        codes = [one.wait(timeout=120) for one in writers]
    finally:
        for one in writers:
            one.kill()
            one.wait()
    assert codes == [-signal.SIGKILL if me in killed else 0 for me in range(8)]
    with Ledger.open(path, "ro") as ledger:
        assert ledger.check() == []  # the file is whole, and so are the counts
        names = [row["job"] for row in ledger.rows("jobs")]
        assert len(names) == len(set(names))
        for me, file in enumerate(said):
            own, number = sum(name.startswith(f"{me}-") for name in names), file.read_text().count("\n") - 1
            # what it said is there, and nothing by halves: one more turn may have been written and not been said
            assert own in ((number * 3, number * 3 + 3) if me in killed else (turns * 3,))
        latest = max(row["recorded"] for row in ledger.rows("jobs", job="shared-0"))
        assert latest >= 1e9 + (turns - 1) * 8 + 7
        assert {row["recorded"] for row in ledger.rows("jobs", job=["shared-0", "shared-1", "shared-2"])} == {latest}
        assert ledger.size("signals") == turns
        assert ledger.counts(()).iloc[0]["count"] == len(names)


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to pass within two minutes")


def test_a_copy_of_the_open_file_with_its_wal_is_a_whole_ledger(path: Path, tmp_path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.put("jobs", [job(1)])
        copy = tmp_path / "copy.sqlite"
        for ending in ("", "-wal"):
            shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    with Ledger.open(copy) as ledger:
        assert ledger.size("jobs") == 1
