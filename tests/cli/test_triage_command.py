"""`workbench triage` gives one verdict per path whatever happens, and an exit code that says what did."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import exits, main
from workbench.errors import ParseError, SourceUnavailable
from workbench.model import Coverage, Verdict


class FakeIncident:
    """What `load` gives, as far as the command uses it."""

    def __init__(self, verdict: Verdict | Exception) -> None:
        self._verdict = verdict

    def triage(self) -> Verdict:
        if isinstance(self._verdict, Exception):
            raise self._verdict
        return self._verdict


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Verdict | Exception]:
    """Path → the verdict or error that triage of it ends with; the real loader is not needed to test the command."""
    table: dict[str, Verdict | Exception] = {}

    def load(path: str, progress: Callable[..., None] | None = None) -> FakeIncident:
        answer = table[path]
        if isinstance(answer, SourceUnavailable | OSError):
            raise answer
        return FakeIncident(answer)

    fake = types.ModuleType("workbench.incident")
    fake.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workbench.incident", fake)
    return table


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class TestOnePerPath:
    def test_jsonl_keeps_the_order_and_survives_a_failure(
        self, answers: dict[str, Verdict | Exception], verdict: Verdict, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A path that fails in any way costs its own verdict only."""
        answers |= {
            "a": verdict,
            "b": ZeroDivisionError("a defect"),
            "c": SourceUnavailable("c: no such folder", hint="look again"),
            "d": PermissionError(13, "Permission denied"),
            "e": Verdict("none", 0.9, "It succeeded."),
        }

        code = main(["triage", "a", "b", "c", "d", "e", "--output", "jsonl"])
        out, err = capsys.readouterr()

        assert [row["class"] for row in lines(out)] == ["hardware/gpu-memory", "unknown", "unknown", "unknown", "none"]
        assert [row["incident"] for row in lines(out)] == ["a", "b", "c", "d", "e"]
        assert "ZeroDivisionError: a defect" in lines(out)[1]["coverage"][0]["detail"]
        assert "Traceback" not in out + err
        assert code == exits.INTERNAL

    def test_each_line_is_out_before_the_next_path_is_read(
        self,
        answers: dict[str, Verdict | Exception],
        verdict: Verdict,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        """Somebody who pipes a fleet's incidents sees each verdict when it is there."""
        seen: list[str] = []
        answers |= {"a": verdict, "b": verdict}
        load = sys.modules["workbench.incident"].load

        def watching(path: str, progress: Callable[..., None] | None = None) -> FakeIncident:
            seen.append(capfd.readouterr().out)
            result: FakeIncident = load(path, progress=progress)
            return result

        monkeypatch.setattr(sys.modules["workbench.incident"], "load", watching)
        main(["triage", "a", "b", "--output", "jsonl"])

        assert seen[0] == ""
        assert lines(seen[1])[0]["incident"] == "a"

    def test_json_is_an_object_for_one_and_a_list_for_several(
        self, answers: dict[str, Verdict | Exception], verdict: Verdict, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One path: one object, as in docs/reference/verdict.md."""
        answers |= {"a": verdict, "b": verdict}

        main(["triage", "a", "--output", "json"])
        assert json.loads(capsys.readouterr().out)["schema"] == "workbench.verdict/1"
        main(["triage", "a", "b", "--output", "json"])
        assert [row["incident"] for row in json.loads(capsys.readouterr().out)] == ["a", "b"]

    @pytest.mark.parametrize(("fmt", "start"), [("table", "a\nhardware"), ("md", "# hardware"), ("html", "<!doctype html>")])
    def test_formats_for_people(
        self, answers: dict[str, Verdict | Exception], verdict: Verdict, capsys: pytest.CaptureFixture[str], fmt: str, start: str
    ) -> None:
        """The other formats start with the answer."""
        answers["a"] = verdict

        assert main(["triage", "a", "--output", fmt]) == exits.OK
        assert capsys.readouterr().out.startswith(start)


class TestExitCodes:
    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (Verdict("unknown", 0.3, ""), exits.OK),
            (Verdict("none", 0.9, "", coverage=[Coverage("metrics", "missing"), Coverage("job", "ok")]), exits.OK),
            (Verdict("user/hang", 0.9, "", coverage=[Coverage("kernel", "failed", "truncated")]), exits.INCOMPLETE),
            (Verdict("unknown", 0.0, "", coverage=[Coverage("job", "missing"), Coverage("kernel", "missing")]), exits.INCOMPLETE),
            (ParseError("not a log"), exits.DATA),
            (FileNotFoundError(2, "No such file"), exits.UNAVAILABLE),
            (RuntimeError("a defect"), exits.INTERNAL),
        ],
    )
    def test_the_code_says_what_happened(
        self, answers: dict[str, Verdict | Exception], answer: Verdict | Exception, code: int
    ) -> None:
        """`unknown` is a good answer: 0. Evidence that could not be read is 3."""
        answers["a"] = answer

        assert main(["triage", "a", "--output", "jsonl"]) == code

    @pytest.mark.parametrize(
        "words", [["triage"], ["triage", "a", "--output", "xml"], ["no-such-command"], [], ["triage", "a", "--window", "soon"]]
    )
    def test_a_wrong_command_line_is_64(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        """Not argparse's 2, which shells use for other things."""
        assert main(words) == exits.USAGE
        assert capsys.readouterr().out == ""

    def test_a_misspelt_command_gets_a_suggestion(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Did you mean."""
        main(["triag", "x"])

        assert "did you mean `workbench triage`?" in capsys.readouterr().err

    @pytest.mark.parametrize("option", [["--catalog", "no/such/folder"], ["--window", "xid=20s"], ["--redact", "@no/such/file"]])
    def test_a_wrong_setting_is_78(self, answers: dict[str, Verdict | Exception], verdict: Verdict, option: list[str]) -> None:
        """Found before any evidence is read."""
        answers["a"] = verdict

        assert main(["triage", "a", *option]) == exits.CONFIG

    def test_debug_lets_the_traceback_through(self, answers: dict[str, Verdict | Exception]) -> None:
        """Only then."""
        answers["a"] = ZeroDivisionError("a defect")

        with pytest.raises(ZeroDivisionError):
            main(["triage", "a", "--debug"])


class TestOutput:
    def test_a_file_is_whole_or_not_there(
        self, answers: dict[str, Verdict | Exception], verdict: Verdict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The suffix chooses the format; nothing but the file is left."""
        answers["a"] = verdict

        assert main(["triage", "a", "--out", str(tmp_path / "report.html")]) == exits.OK
        assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        assert os.listdir(tmp_path) == ["report.html"]
        assert capsys.readouterr().out == ""

    def test_a_folder_that_is_not_there_is_two_lines(
        self, answers: dict[str, Verdict | Exception], verdict: Verdict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What is wrong, and the way out."""
        answers["a"] = verdict

        assert main(["triage", "a", "--out", str(tmp_path / "no" / "report.html")]) == exits.INTERNAL
        assert len(capsys.readouterr().err.splitlines()) == 2

    @pytest.mark.parametrize(
        ("env", "option", "colours"),
        [
            ({}, [], False),
            ({"FORCE_COLOR": "1"}, [], True),
            ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, [], False),
            ({"FORCE_COLOR": "1"}, ["--no-color"], False),
        ],
    )
    def test_colours(
        self,
        answers: dict[str, Verdict | Exception],
        verdict: Verdict,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        env: dict[str, str],
        option: list[str],
        colours: bool,
    ) -> None:
        """None in a pipe unless forced; NO_COLOR and --no-color win."""
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        answers["a"] = verdict

        main(["triage", "a", "--output", "table", *option])

        assert ("\x1b[" in capsys.readouterr().out) is colours

    def test_names_can_be_kept_back(
        self, answers: dict[str, Verdict | Exception], verdict: Verdict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """--redact, from the command line or a file, also for a path that could not be read."""
        answers |= {"gpu-node-017": verdict, "gone-gpu-node-017": SourceUnavailable("gone-gpu-node-017: not there")}
        (tmp_path / "names").write_text("gpu-node-001\n", encoding="utf-8")

        main(
            [
                "triage",
                "gpu-node-017",
                "gone-gpu-node-017",
                "--output",
                "jsonl",
                "--redact",
                "gpu-node-017",
                "--redact",
                f"@{tmp_path / 'names'}",
            ]
        )
        out = capsys.readouterr().out

        assert "gpu-node-017" not in out
        assert '"node": "gpu-node-001"' not in out
