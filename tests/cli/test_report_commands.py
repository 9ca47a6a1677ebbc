"""`workbench postmortem`, `handoff`, `ticket` and `schema`: from whatever names an incident to a file, and never a traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.conftest import ROOT
from workbench.cli import main
from workbench.shipped import example_path


@pytest.fixture(autouse=True)
def _away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site's settings, no cache of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command; return its code and what it wrote."""
    code = main(list(words))
    out = capsys.readouterr()
    return code, out.out, out.err


class TestIncident:
    def test_folder_archive_verdict_case_and_example_name_the_same(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """Whatever a person has in hand."""
        from workbench.casefile import open_path
        from workbench.casefile.store import save

        archive = example_path("gpu-memory")
        main(["triage", str(archive), "-o", "json", "--out", "verdict.json"])
        save(open_path(archive, cache=tmp_path / "cases"), tmp_path / "case")

        for word in (str(archive), "gpu-memory", "verdict.json", str(tmp_path / "case")):
            code, out, err = said(capsys, "handoff", word)
            assert code == 0, err
            assert "hardware/gpu-memory (98 %), gpu-node-054" in out

    def test_an_id_of_the_inbox_brings_its_state_and_when_it_came(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """Detection and handoff know more then."""
        from workbench.casefile import open_path
        from workbench.inbox.store import Inbox

        inbox = Inbox(tmp_path / "inbox")
        case = open_path(example_path("preempted"), cache=tmp_path / "cases")
        entry = inbox.add(case, evidence=str(example_path("preempted")), source="folder")
        inbox.set_state(entry.id, "acknowledged", by="carol", note="on it")

        _, lines, _ = said(capsys, "handoff", entry.id, "--inbox", str(tmp_path / "inbox"))
        code, text, _ = said(capsys, "postmortem", entry.id, "--inbox", str(tmp_path / "inbox"))

        assert "inbox: acknowledged" in lines
        assert code == 0
        assert "It came into the inbox" in text
        for person in ("carol", "u1035", "u1657"):
            assert person not in lines + text

    @pytest.mark.parametrize("command", ["postmortem", "handoff", "ticket"])
    def test_what_is_not_there_is_told_in_two_lines(self, capsys: pytest.CaptureFixture[str], command: str) -> None:
        """With what could be given instead."""
        code, out, err = said(capsys, command, "no-such-incident")

        assert (code, out) == (69, "")
        assert len(err.splitlines()) == 2
        assert "verdict.json" in err

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{"schema": "workbench.plan/1"}', "not a verdict"),
            ('{"schema": "workbench.verdict/1", "cause": "x"}', "has no class"),
        ],
    )
    def test_json_of_another_kind_is_told(self, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
        """A plan is no verdict, half a verdict is none."""
        Path("x.json").write_text(text)
        code, _, err = said(capsys, "postmortem", "x.json")

        assert code == 65
        assert words in err


class TestPostmortem:
    @pytest.mark.parametrize("template", ["google", "atlassian", "pagerduty"])
    @pytest.mark.parametrize("name", ["nvlink-switch", "hang-data-loader", "preempted", "checkpoint-disk-full", "succeeded"])
    def test_every_shipped_incident_in_every_order(self, capsys: pytest.CaptureFixture[str], name: str, template: str) -> None:
        """Facts where they are known, open where not, no account of anybody."""
        code, text, _ = said(capsys, "postmortem", name, "--template", template)

        assert code == 0
        assert text.startswith("# ")
        assert "*to be filled*" in text
        assert "| Action | Type | Owner | Due |" in text
        assert "None" not in text
        assert not re.search(r"\bu\d{4}\b", text)

    def test_the_files_ending_says_what_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A page, a notebook, the facts."""
        for name in ("p.md", "p.html", "p.ipynb", "p.json"):
            assert said(capsys, "postmortem", "gpu-memory", "--out", name)[:2] == (0, "")

        assert Path("p.md").read_text().startswith("# Job gpt-neo-20b failed")
        assert Path("p.html").read_text().startswith("<!doctype html>")
        nbformat.validate(nbformat.read("p.ipynb", as_version=4))
        assert json.loads(Path("p.json").read_text())["failure"] == "hardware/gpu-memory"

    def test_journal_prices_names_and_template_of_the_site(self, capsys: pytest.CaptureFixture[str]) -> None:
        """All of it from the site's file of settings."""
        from workbench.model import Gpu
        from workbench.remediation.journal import Journal
        from workbench.remediation.model import Action

        action = Action("ab12", "cordon", "cordon", "gpu-node-054", gpu=Gpu(4), why="it is sick")
        with Journal(Path("journal.jsonl"), clock=lambda: 1747301400.0) as journal:
            journal.intent(action, "p", {})
            journal.outcome(action, "p", "done", "cordoned")
        Path("own.md.j2").write_text(
            "# {{ title }}\n{% for row in impact %}\n- {{ row.what }}: {{ row.value }}\n{% endfor %}\n"
            "{% for row in remediation %}\n- {{ row.time }} {{ row.what }} {{ row.ended }}\n{% endfor %}\n"
        )
        Path("workbench.toml").write_text(
            '[report]\nredact = ["gpu-node-054", "gpt-neo-20b"]\ntemplate = "own.md.j2"\n'
            '[report.prices]\nH100 = "2.50"\ncurrency = "EUR"\n[remediation]\njournal = "journal.jsonl"\n'
        )
        code, text, err = said(capsys, "postmortem", "gpu-memory")

        assert code == 0, err
        assert "gpu-node-054" not in text
        assert "gpt-neo" not in text
        assert re.search(r"Cost: [\d.,]+ EUR", text)
        assert "2025-05-15 09:30:00.000 UTC give the node no new work done" in text

    def test_an_error_in_a_sites_template_is_two_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        """File, line, the way out."""
        Path("own.md.j2").write_text("# {{ title }}\n{{ sumary }}\n")
        code, out, err = said(capsys, "postmortem", "preempted", "--template", "own.md.j2")

        assert (code, out) == (78, "")
        assert re.search(r"own\.md\.j2:2: nothing is called 'sumary'\n  did you mean summary", err)

    def test_a_journal_that_is_named_and_not_there_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Nobody may read "nothing was done" because of a typing error."""
        assert said(capsys, "postmortem", "preempted", "--journal", "no.jsonl")[0] == 69


class TestTicket:
    def test_json_and_markdown_say_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The text is in the JSON as well."""
        _, text, _ = said(capsys, "ticket", "gpu-memory", "--reference", "INC-7")
        code, out, _ = said(capsys, "ticket", "gpu-memory", "--reference", "INC-7", "-o", "json")
        made = json.loads(out)

        assert code == 0
        assert made["text"] == text
        assert (made["machine"]["driver"], made["gpu"]["pci"]) == ("550.127.05", "0000:9d:00.0")
        assert "INC-7" in text

    def test_evidence_of_tools_gives_serial_and_vbios(self, capsys: pytest.CaptureFixture[str]) -> None:
        """As the provider wants them."""
        _, out, _ = said(capsys, "ticket", str(ROOT / "tests/data/health/sram-threshold-560"), "-o", "json")
        gpu = json.loads(out)["gpu"]

        assert gpu["serial"].startswith("1654923")
        assert gpu["vbios"]

    def test_a_users_fault_is_nothing_for_a_provider(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Told with the way out."""
        code, out, err = said(capsys, "ticket", "hang-data-loader")

        assert (code, out) == (65, "")
        assert "--to internal" in err
        assert said(capsys, "ticket", "hang-data-loader", "--to", "internal")[0] == 0


class TestHandoff:
    def test_several_incidents_are_a_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        """In the order given, as text, Markdown, JSON."""
        names = ("gpu-memory", "succeeded")
        _, text, _ = said(capsys, "handoff", *names)
        _, out, _ = said(capsys, "handoff", *names, "-o", "json")

        assert text.startswith("2 incidents, 1 of them with something left to do")
        assert [row["incident"] for row in json.loads(out)["incidents"]] == list(names)
        assert said(capsys, "handoff", *names, "-o", "md")[1].count("### ") == 2


class TestSchema:
    def test_it_lists_and_prints(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without a name all there are."""
        assert "verdict " in said(capsys, "schema")[1]
        assert json.loads(said(capsys, "schema", "plan")[1])["$id"] == "urn:workbench:schema:plan:1"
        code, _, err = said(capsys, "schema", "verdit")
        assert code == 65
        assert "did you mean verdict?" in err


@pytest.mark.parametrize("command", ["postmortem", "handoff", "ticket", "schema", "mcp"])
def test_help_loads_nothing_heavy(command: str) -> None:
    """Neither pandas nor Jinja nor mcp for a page of help."""
    program = (
        "import sys; from workbench.cli.entry import parser_for; parser_for([sys.argv[1]]);"
        "print([name for name in ('pandas', 'numpy', 'jinja2', 'mcp', 'nbformat', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, command], capture_output=True, text=True, cwd=ROOT, check=True)

    assert done.stdout.strip() == "[]"
