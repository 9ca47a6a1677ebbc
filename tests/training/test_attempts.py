"""The attempts of a run outlive the program that writes them, and all jobs of a cluster count each other's restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import jsonschema
import pytest

from tests.training.jobs import START, failed, told, verdict
from workbench.report.schemas import schema
from workbench.training.attempts import SCHEMA, Attempt, RunLedger, Storm, describe
from workbench.training.lines import Lines, LinesBusy, LinesError


class TestLedger:
    def test_what_is_written_comes_back(self, tmp_path: Path) -> None:
        """The last line of a number counts: more is known of it later."""
        path = tmp_path / "attempts.jsonl"
        first = told(failed(1), verdict("hardware/pcie", uuid="GPU-1"))
        with RunLedger(path) as ledger:
            ledger.put(Attempt(1, started=START, state="running"))
            ledger.put(first)
            ledger.put(Attempt(2, started=START + 700, state="running", excluded=("n1", "GPU-1")))

        again = RunLedger(path)
        assert again.attempts() == (first, Attempt(2, started=START + 700, state="running", excluded=("n1", "GPU-1")))
        assert again.history(now=5.0, others=3, job="x").others == 3
        assert again.problems == []

    def test_another_program_can_read_it(self, tmp_path: Path) -> None:
        """JSON lines, with a sum that needs no code of ours."""
        with RunLedger(tmp_path / "attempts.jsonl") as ledger:
            ledger.put(failed(1))
        line = ledger.path.read_bytes().splitlines()[0]
        row = json.loads(line)

        assert (row["schema"], row["number"], row["step_last"]) == (SCHEMA, 1, 10)
        assert row["sum"] == f"{zlib.crc32(line[: line.rindex(b',')]):08x}"

    @pytest.mark.parametrize("keep", range(1, 60, 7))
    def test_a_torn_last_line_is_cut_off_and_said(self, tmp_path: Path, keep: int) -> None:
        """Whatever piece of it reached the disk; what was whole stays."""
        path = tmp_path / "attempts.jsonl"
        with RunLedger(path) as ledger:
            ledger.put(failed(1))
            ledger.put(failed(2))
        data = path.read_bytes()
        first = data.index(b"\n") + 1
        path.write_bytes(data[: first + keep])

        ledger = RunLedger(path)
        assert [one.number for one in ledger.attempts()] == [1]
        assert ledger.problems == []
        with ledger:
            ledger.put(failed(2, exit_code=9))
        assert [one.exit_code for one in ledger.attempts()] == [1, 9]
        assert f"torn ({keep} bytes)" in ledger.notices[0]

    def test_a_line_that_lacks_only_its_end_counts(self, tmp_path: Path) -> None:
        """It says itself that it is whole."""
        path = tmp_path / "attempts.jsonl"
        with RunLedger(path) as ledger:
            ledger.put(failed(1))
        path.write_bytes(path.read_bytes()[:-1])

        assert len(RunLedger(path).attempts()) == 1
        with RunLedger(path) as ledger:
            ledger.put(failed(2))
        assert len(RunLedger(path).attempts()) == 2

    def test_a_damaged_line_within_is_said(self, tmp_path: Path) -> None:
        """The others are read."""
        path = tmp_path / "attempts.jsonl"
        with RunLedger(path) as ledger:
            for number in (1, 2, 3):
                ledger.put(failed(number))
        data = path.read_bytes().replace(b'"number":2', b'"number":7')
        path.write_bytes(data)
        ledger = RunLedger(path)

        assert [one.number for one in ledger.attempts()] == [1, 3]
        assert ledger.problems == ["line 2 of attempts.jsonl is damaged"]

    def test_a_line_of_a_later_version_is_said_and_not_guessed(self, tmp_path: Path) -> None:
        """A field that nobody here knows may change what the others mean."""
        path = tmp_path / "attempts.jsonl"
        with Lines(path, SCHEMA) as lines:
            lines.append({"number": 1, "colour": "blue"})
        ledger = RunLedger(path)

        assert ledger.attempts() == ()
        assert "1 lines" in ledger.problems[0]

    def test_a_second_writer_is_refused_and_a_reader_is_not(self, tmp_path: Path) -> None:
        """Two supervisors of one run would restart each other's job."""
        path = tmp_path / "attempts.jsonl"
        with RunLedger(path) as ledger:
            ledger.put(failed(1))
            with pytest.raises(LinesBusy, match="another process"):
                RunLedger(path).put(failed(2))
            assert len(RunLedger(path).attempts()) == 1
        with RunLedger(path) as ledger:
            ledger.put(failed(2))

    def test_a_full_disk_leaves_the_file_as_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A line of which nobody knows whether it is on the disk is taken back."""
        path = tmp_path / "attempts.jsonl"
        ledger = RunLedger(path)
        ledger.put(failed(1))
        before = path.read_bytes()

        def refuse(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(LinesError, match="No space left"):
                ledger.put(failed(2))
        assert path.read_bytes() == before
        with ledger:
            ledger.put(failed(2))
        assert len(ledger.attempts()) == 2

    def test_what_a_killed_writer_wrote_is_there(self, tmp_path: Path) -> None:
        """Each line whose call returned, and no half one."""
        path = tmp_path / "attempts.jsonl"
        code = (
            "import sys; from workbench.training.attempts import *\n"
            f"ledger = RunLedger({str(path)!r})\n"
            "for number in range(1, 10000):\n    ledger.put(Attempt(number)); print(number, flush=True)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout
            seen = [int(child.stdout.readline()) for _ in range(20)]
            child.send_signal(signal.SIGKILL)
            seen += [int(line) for line in child.stdout if line.endswith("\n")]

        ledger = RunLedger(path)
        numbers = [one.number for one in ledger.attempts()]
        assert numbers[: len(seen)] == seen
        with ledger:
            ledger.put(Attempt(len(numbers) + 1))
        assert len(ledger.attempts()) == len(numbers) + 1

    def test_a_folder_that_is_not_there_is_an_error_with_its_name(self, tmp_path: Path) -> None:
        """Nothing to read is no attempt; nothing to write to is an error."""
        ledger = RunLedger(tmp_path / "gone" / "attempts.jsonl")

        assert ledger.attempts() == ()
        with pytest.raises(LinesError, match="gone"):
            ledger.put(failed(1))


class TestStorm:
    def test_others_are_counted_within_the_window(self, tmp_path: Path) -> None:
        """Not one's own, not the old ones."""
        storm = Storm(tmp_path / "shared" / "restarts", window=600.0)
        assert storm.others("a", START) == 0

        for number in range(5):
            storm.record("b", START + number)
        storm.record("a", START + 5)
        assert storm.others("a", START + 10) == 5
        assert storm.others("b", START + 10) == 1
        assert storm.others("a", START + 602.5) == 2
        assert storm.others("a", START + 5000) == 0

    def test_the_file_stays_small(self, tmp_path: Path) -> None:
        """What no window reaches is dropped."""
        storm = Storm(tmp_path / "restarts", window=10.0)

        for number in range(200):
            storm.record("a", START + 10 * number)
        assert len(storm.path.read_bytes().splitlines()) < 5

    def test_many_writers_lose_nothing(self, tmp_path: Path) -> None:
        """All supervisors of a cluster write one file."""
        path = tmp_path / "restarts"
        code = (
            "import sys; from workbench.training.attempts import Storm\n"
            f"for number in range(25): Storm({str(path)!r}).record(sys.argv[1], {START} + number)"
        )
        children = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "abcd"]

        assert [child.wait(60) for child in children] == [0, 0, 0, 0]
        assert Storm(path).others("x", START + 30) == 100

    def test_torn_and_foreign_lines_are_passed_over(self, tmp_path: Path) -> None:
        """A storm is counted, not audited."""
        path = tmp_path / "restarts"
        path.write_bytes(b'{"time": %f, "job": "b"}\nnull\n{"time": 1}\n\xff\n{"ti' % START)

        assert Storm(path).others("a", START) == 1

    def test_a_file_that_cannot_be_read_is_no_zero(self, tmp_path: Path) -> None:
        """Could not count is not none."""
        (tmp_path / "restarts").mkdir()

        with pytest.raises(LinesError, match="cannot be read"):
            Storm(tmp_path / "restarts").others("a", START)
        with pytest.raises(LinesError, match="cannot be written"):
            Storm(tmp_path / "restarts").record("a", START)


def test_attempts_are_described_in_rows() -> None:
    """What each gained beyond all earlier ones, who was to blame, what was left out."""
    past = (
        told(failed(1, step_first=1, step_last=100, checkpoint_step=90), verdict("hardware/pcie", node="n1", uuid="GPU-1")),
        told(failed(2, step_first=91, step_last=95, excluded=("n1", "GPU-1")), verdict("user/hang")),
        Attempt(3, started=START, state="running"),
    )
    rows = describe(past)

    assert [row["progress"] for row in rows] == [99, 0, None]
    assert [row["blamed"] for row in rows] == ["gpu n1 GPU-1", "rank 3", None]
    assert [row["steps"] for row in rows] == ["1-100", "91-95", None]
    assert (rows[0]["seconds"], rows[1]["excluded"], rows[2]["state"]) == (600.0, "n1 GPU-1", "running")


def test_a_line_is_what_the_published_schema_says(tmp_path: Path) -> None:
    """With all its fields, and with as few as can be."""
    validator = jsonschema.Draft202012Validator(schema("attempt"))
    with RunLedger(tmp_path / "attempts.jsonl") as ledger:
        ledger.put(told(failed(1, excluded=("n1",)), verdict("hardware/pcie", uuid="GPU-1")))
        ledger.put(Attempt(2))
    rows = [json.loads(line) for line in ledger.path.read_bytes().splitlines()]

    for row in rows:
        assert [error.message for error in validator.iter_errors(row)] == []
        assert set(row) == set(schema("attempt")["properties"])
