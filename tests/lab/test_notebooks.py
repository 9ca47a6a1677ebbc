"""The shipped notebooks run offline on shipped incidents, are paired, small, without outputs, and become a page that asks for nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest

from tests.conftest import ROOT
from tests.lab.executed import said
from workbench.cli import main
from workbench.errors import WorkbenchError
from workbench.lab.running import Notebook, notebooks, run, values_of

FOLDER = ROOT / "notebooks"
NAMES = ("fleet_account", "fleet_health", "node_health", "postmortem", "remediation_plan", "start_here", "triage")
# name → words that the executed notebook must say: of the verdict, not of the notebook
SAYS = {
    "start_here": ("hardware/nvlink", "dgx-46", "SXid"),
    "triage": ("hardware/gpu-memory (98 %)", "gpu-node-054", "Retry without gpu-node-054"),
    "fleet_account": ("simulated: nothing of it is real", "--exclude=gpu-", "infrastructure job success", "GPU-hours"),
    "fleet_health": ("Demo fleet: ", "critical", "kubernetes"),
    "node_health": ("gpu-node-054", "Xid 95", "it is not among the files"),
    "remediation_plan": ("Nothing has been done", "reset-gpu", "workbench.plan/1"),
    "postmortem": ("to be filled", "Root causes", "dgx-46"),
}


def read(name: str) -> Any:
    """The notebook as it is in the repository."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings and no cache of whoever runs the tests; kernels find this checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class TestForm:
    def test_these_are_all(self) -> None:
        """Each as a notebook and as a script for review."""
        assert {file.stem for file in FOLDER.glob("*.ipynb")} == {file.stem for file in FOLDER.glob("*.py")} == set(NAMES)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_pair_is_in_sync(self, name: str) -> None:
        """`jupytext --sync notebooks/*.ipynb` writes the other."""
        script = jupytext.read(FOLDER / f"{name}.py")

        theirs = [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in script.cells]
        assert [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in read(name).cells] == theirs

    @pytest.mark.parametrize("name", NAMES)
    def test_outputs_are_stripped_and_it_is_small(self, name: str) -> None:
        """Under forty cells, one of them with the parameters, valid, for any Python 3."""
        document = read(name)

        nbformat.validate(document)
        assert len(document.cells) < 40
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in document.cells)
        assert sum("parameters" in cell.metadata.get("tags", []) for cell in document.cells) == 1
        assert document.metadata["kernelspec"]["name"] == "python3"
        assert not {"widgets", "celltoolbar"} & set(document.metadata)
        assert document.cells[0].source.startswith("# ")

    def test_parameters_are_read_with_their_defaults(self) -> None:
        """From the tagged cell, without running anything."""
        assert notebooks()["fleet_health"].parameters == {"source": "demo", "config": "", "gpus": 1024, "pool": ""}


@pytest.mark.slow
class TestRun:
    @pytest.mark.parametrize("name", NAMES)
    def test_it_runs_offline_on_a_shipped_incident(self, name: str) -> None:
        """With the parameters as they are, nothing loaded from outside, no warning in red."""
        document = nbformat.reads(run(Notebook(FOLDER / f"{name}.ipynb"), {}, kind="ipynb"), as_version=4)
        text = said(document)

        for words in SAYS[name]:
            assert words in text, words
        scripts = json.dumps([cell.get("outputs", []) for cell in document.cells])
        assert "cdn.bokeh.org/bokeh/release" not in scripts
        assert not [output for cell in document.cells for output in cell.get("outputs", []) if output.get("name") == "stderr"]

    def test_the_verdict_is_that_of_the_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Byte for byte: a notebook's case file holds what `workbench triage -o json` prints."""
        from workbench import lab
        from workbench.report.verdict_json import dumps
        from workbench.shipped import example_path

        path = str(example_path("gpu-memory"))
        assert main(["triage", path, "-o", "json"]) == 0
        assert dumps(lab.case(path).verdict, indent=2) + "\n" == capsys.readouterr().out


class TestCommand:
    @pytest.mark.slow
    def test_a_page_with_parameters_asks_for_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`--param`, `-o out.html`: another incident, without code, without an address that a browser would load."""
        assert main(["notebook", "triage", "--param", "incident=preempted", "-o", "out.html"]) == 0
        page = Path("out.html").read_text(encoding="utf-8")

        assert "platform/preemption" in page
        assert "lab.case(" not in page
        assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']https?:", page)

    def test_they_are_listed_with_their_parameters(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What can be changed, and what it is now."""
        assert main(["notebook"]) == 0
        out = capsys.readouterr().out

        assert all(name in out for name in NAMES)
        assert "  source='demo'" in out

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["triag"], "did you mean triage?"),
            (["triage", "--param", "incidnt=x"], "did you mean incident?"),
            (["triage", "--param", "incident"], "has no parameter"),
            (["fleet_health", "--param", "gpus=many"], "is no int"),
            (["triage", "-o", "out.pdf"], "neither .html nor .ipynb"),
        ],
    )
    def test_what_is_wrong_is_told_before_anything_runs(
        self, capsys: pytest.CaptureFixture[str], words: list[str], said: str
    ) -> None:
        """With the way out."""
        assert main(["notebook", *words]) == 65
        assert said in capsys.readouterr().err

    @pytest.mark.slow
    def test_a_cell_that_fails_is_one_sentence(self) -> None:
        """What the cell said, not a page of traceback."""
        notebook = notebooks()["remediation_plan"]

        with pytest.raises(WorkbenchError, match="remediation_plan: SourceUnavailable: no-such: no such folder"):
            run(notebook, values_of(["incident=no-such"], notebook))

    def test_a_copy_is_for_jupyterlab(self, tmp_path: Path) -> None:
        """Nothing is overwritten."""
        assert main(["notebook", "triage", "--copy", str(tmp_path)]) == 0
        assert (tmp_path / "triage.ipynb").read_bytes() == (FOLDER / "triage.ipynb").read_bytes()
        assert main(["notebook", "triage", "--copy", str(tmp_path)]) == 69
