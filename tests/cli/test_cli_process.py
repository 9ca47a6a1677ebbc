"""The command line as a process: cheap to start, quiet when its reader leaves, helpful when the word is unknown."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import __version__
from workbench.cli import command_names, exits, main
from workbench.cli.entry import parser_for

Run = Callable[..., subprocess.CompletedProcess[str]]
# none of these is needed to print help; each costs more than Python's own start
HEAVY = {"pandas", "numpy", "rich", "hyperscan", "jinja2", "yaml", "panel", "hvplot", "backports", "isal", "pynvml"}


class TestStart:
    @pytest.mark.parametrize("words", [["--help"], ["triage", "--help"], ["--version"]])
    def test_help_loads_nothing_heavy(self, words: list[str], root: Path) -> None:
        """`workbench --help` is what a person types first; it must feel instant."""
        code = f"import sys; from workbench.cli import main; code = main({words!r}); print(code, *sys.modules, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60)
        modules = {name.split(".")[0] for name in done.stderr.split()}

        assert done.stderr.startswith("0 ")
        assert not HEAVY & modules
        assert "dataclasses" not in modules  # it brings `inspect`, half as much again as argparse

    def test_a_job_waits_for_no_module_that_its_start_does_not_need(self, root: Path, tmp_path: Path) -> None:
        """What `workbench run` imports before the job starts is what the job starts later by."""
        code = (
            "import os, sys\ndef spawned(*_, **__): print(*sys.modules, flush=True); os._exit(0)\nos.posix_spawnp = spawned\n"
            f"from workbench.cli import main; main(['run', '--run-dir', {str(tmp_path)!r}, '--', 'true'])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60)
        modules = {name.split(".")[0] for name in done.stdout.split()}

        assert "workbench" in modules, done.stderr
        assert not (HEAVY | {"dataclasses", "shutil", "tempfile", "threading", "json", "logging"}) & modules

    @pytest.mark.parametrize("columns", ["", "0", "60", "wide"])
    def test_help_of_a_command_is_the_same_with_and_without_the_others(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
    ) -> None:
        """A parser of one command says what the parser of all says, as wide as argparse would."""
        monkeypatch.setenv("COLUMNS", columns)
        told = []
        for words in (["run"], None):
            with pytest.raises(SystemExit):
                parser_for(words).parse_args(["run", "--help"])
            told.append(capsys.readouterr().out)
        monkeypatch.setattr("workbench.cli.entry._Help", argparse.RawDescriptionHelpFormatter)
        with pytest.raises(SystemExit):
            parser_for(["run"]).parse_args(["run", "--help"])
        told.append(capsys.readouterr().out)

        assert told[0] == told[1] == told[2]
        assert "--run-dir" in told[0]

    def test_import_loads_nothing_heavy(self, root: Path) -> None:
        """`import workbench` is free until something is asked of it."""
        code = "import sys, workbench; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60)

        assert not HEAVY & {name.split(".")[0] for name in done.stdout.split()}

    def test_version(self, workbench: Run) -> None:
        """One line."""
        assert workbench("--version").stdout == f"workbench {__version__}\n"

    @pytest.mark.parametrize("name", [None, *command_names()])
    def test_help_lists_the_exit_codes(self, workbench: Run, name: str | None) -> None:
        """Every page of help ends with its table."""
        done = workbench(*([name] if name else []), "--help")

        assert done.returncode == 0
        assert done.stdout.endswith(exits.table(name or "") + "\n")

    def test_a_reader_that_leaves_is_no_error(self, root: Path) -> None:
        """`workbench examples | head -0` ends quietly."""
        command = f'"{sys.executable}" -m workbench explain xid:79 class:hardware/nvlink | true'
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=root, timeout=60)

        assert done.stderr == ""


class TestExplain:
    @pytest.mark.parametrize(
        ("term", "says"),
        [
            ("xid:79", "fallen off the bus"),
            ("sxid:12028", "sxid 12028"),
            ("dcgm:DCGM_FI_DEV_GPU_TEMP", "dcgm_fields.csv"),
            ("dcgm:150", "DCGM_FI_DEV_GPU_TEMP"),
            ("condition:Ready", "kubelet"),
            ("class:hardware/nvlink", "NVLink link or NVSwitch"),
            ("hardware/nvlink", "classes.csv"),
            ("nvml:15", "nvml_returns.csv"),
        ],
    )
    def test_it_says_what_is_known_and_from_where(self, capsys: pytest.CaptureFixture[str], term: str, says: str) -> None:
        """Each card names the table and the row it is from."""
        assert main(["explain", term]) == exits.OK
        out = " ".join(capsys.readouterr().out.split())

        assert says.lower() in out.lower().replace("_", " ") + out.lower()
        assert "[catalog/" in out

    def test_every_shipped_signature_is_explained(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A verdict's evidence names signatures; each must lead somewhere."""
        from workbench.catalog import signatures

        names = list(signatures())
        assert main(["explain", "--output", "json", *names]) == exits.OK
        assert {card["term"] for card in json.loads(capsys.readouterr().out)} == set(names)

    def test_a_near_miss_gets_a_suggestion(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Did you mean; the other words are still answered."""
        assert main(["explain", "class:hardware/nvlnk", "xid:79"]) == exits.DATA
        out, err = capsys.readouterr()

        assert "class:hardware/nvlink" in err
        assert "xid 79" in out

    @pytest.mark.parametrize("term", ["", ":", "xid:", "xid:\x1b[2J", "💥" * 50])
    def test_odd_words_are_answered_without_a_traceback(self, capsys: pytest.CaptureFixture[str], term: str) -> None:
        """Nothing typed can break it, and nothing of it reaches the terminal raw."""
        assert main(["explain", term]) == exits.DATA
        assert "\x1b" not in capsys.readouterr().err


class TestExamples:
    def test_every_example_is_listed_and_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The list is that of the Python API."""
        from workbench.shipped import examples

        assert main(["examples", "--output", "json"]) == exits.OK
        rows = json.loads(capsys.readouterr().out)

        assert [row["name"] for row in rows] == list(examples())
        assert all(Path(row["path"]).is_file() for row in rows)

    def test_demo_writes_a_report(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The verdict in the terminal, the page beside it."""
        assert main(["demo", "--out", str(tmp_path / "r.html")]) == exits.OK
        assert "hardware/nvlink" in capsys.readouterr().out
        assert "hardware/nvlink" in (tmp_path / "r.html").read_text(encoding="utf-8")

    def test_an_unknown_example_names_those_there_are(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Two lines, code 69."""
        assert main(["demo", "no-such"]) == exits.UNAVAILABLE
        assert "nvlink-switch" in capsys.readouterr().err


class TestRealEvidence:
    """The command over the real loader, on what people give it by mistake."""

    @pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe" * 1000, b"{", b"\x1f\x8b\x08\x00cut", b"PK\x03\x04"])
    def test_a_useless_file_is_unknown(self, workbench: Run, tmp_path: Path, content: bytes) -> None:
        """Never a traceback, never `none`."""
        (tmp_path / "f").write_bytes(content)
        done = workbench("triage", str(tmp_path / "f"), "--output", "jsonl")

        assert json.loads(done.stdout)["class"] == "unknown"
        assert "Traceback" not in done.stderr
        assert done.returncode in (exits.OK, exits.INCOMPLETE)

    def test_an_empty_folder_is_incomplete(self, workbench: Run, tmp_path: Path) -> None:
        """Nothing to read: `unknown`, and 3."""
        done = workbench("triage", str(tmp_path), "--output", "jsonl")

        assert json.loads(done.stdout)["class"] == "unknown"
        assert done.returncode == exits.INCOMPLETE

    def test_a_path_that_is_not_there(self, workbench: Run) -> None:
        """Still one verdict; 69; two lines."""
        done = workbench("triage", "no/such/folder", "--output", "jsonl")

        assert json.loads(done.stdout)["coverage"][0]["status"] == "failed"
        assert (done.returncode, len(done.stderr.splitlines())) == (exits.UNAVAILABLE, 2)

    def test_a_log_on_stdin(self, workbench: Run) -> None:
        """`kubectl logs POD | workbench triage -`."""
        log = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    x = batch["y"]\nKeyError: \'y\'\n'
        done = workbench("triage", "-", "--output", "jsonl", stdin=log)

        assert json.loads(done.stdout)["class"] == "user/exception"
        assert done.returncode == exits.OK
