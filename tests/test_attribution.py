"""The attribution benchmark counts what its README says it counts, and its cases are sound."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workbench.model import CLASSES, REMEDIATIONS, RETRIES

HERE = Path(__file__).resolve().parent.parent / "benchmarks" / "attribution"
CASES = sorted((HERE / "cases").glob("*/truth.json"))
TRUTH: dict[str, Any] = {
    "cause": "hardware",
    "class": "hardware/nvlink",
    "also": ["hardware/pcie"],
    "node": "n1",
    "gpu": "0000:3b:00",
    "rank": 4,
    "rank_accept": [4, 5],
    "culprit_first_line": "SXid (PCI:0000:05:00.0): 22003",
    "symptom_lines": ["Connection closed"],
    "retry": "exclude-node",
    "remediation": "drain",
    "source": "simulated",
}
RIGHT: dict[str, Any] = {
    "cause": "hardware",
    "class": "hardware/nvlink",
    "confidence": 0.9,
    "culprit": {"node": "n1", "gpu": {"index": 0, "uuid": None, "pci": "00000000:3B:00.0"}, "rank": 5, "at_fault": "gpu"},
    "evidence": [
        {"role": "symptom", "text": "Connection closed"},
        {"role": "cause", "text": "x sxid (pci:0000:05:00.0): 22003 y"},
    ],
    "retry": "exclude-node",
    "remediation": "replace-node",
}


@pytest.fixture(scope="module")
def score() -> ModuleType:
    """The scorer, which is a script for others and no part of the package."""
    spec = importlib.util.spec_from_file_location("attribution_score", HERE / "score.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestJudge:
    def test_a_right_verdict_is_right_in_all(self, score: ModuleType) -> None:
        """Spellings of an address, ranks that count as well and a rung of the same kind are right."""
        result = score.judge(TRUTH, RIGHT)

        assert all(result[name] for name in score.RIGHT)
        assert not any(result[name] for name in score.WRONG)
        assert result["remediation exact"] is False

    def test_a_symptom_given_as_cause_is_counted(self, score: ModuleType) -> None:
        """Also when the true line stands beside it."""
        wrong = {**RIGHT, "evidence": [{"role": "cause", "text": "peer: Connection closed by n1"}]}

        assert score.judge(TRUTH, wrong)["symptom blamed"]
        assert score.judge(TRUTH, wrong)["line@3"] is False

    @pytest.mark.parametrize(("blamed", "counts"), [("gpu", True), ("node", True), ("rank", False), (None, False)])
    def test_blaming_a_machine_for_the_users_error_is_counted(self, score: ModuleType, blamed: str | None, counts: bool) -> None:
        """Where it happened is no blame; `at_fault` is."""
        truth = {"cause": "user", "class": "user/exception", "node": "n1", "gpu": None, "rank": None}
        said = {"cause": "user", "class": "user/exception", "culprit": {"node": "n1", "at_fault": blamed}}

        assert score.judge(truth, said)["innocent blamed"] is counts

    def test_an_empty_answer_is_wrong_and_no_error(self, score: ModuleType) -> None:
        """A tool that leaves fields out gets figures all the same."""
        result = score.judge(TRUTH, {})

        assert not any(result[name] for name in score.RIGHT)

    def test_figures_and_gates(self, score: ModuleType) -> None:
        """Sure and wrong costs; a perfect tool misses no gate."""
        case = {**TRUTH, "id": "a", "kind": "simulated"}
        good = score.figures([case], [RIGHT])
        bad = score.figures([case], [{**RIGHT, "cause": "user", "class": "user/hang", "confidence": 1.0}])

        assert (good["class"], good["Brier"]) == ([1, 1, 1.0], 0.01)
        assert score.missed(good) == []
        assert bad["Brier"] == 1.0
        assert any(line.startswith("class 0.0") for line in score.missed(bad))


def test_the_command_gets_neutral_names_and_ablations_take_files_away(tmp_path: Path) -> None:
    """Nothing in a path gives the answer away; a case without the source is not counted in its ablation."""
    for name, files in {"hardware-x": ["logs/a.log", "kernel/n1.log"], "user-y": ["logs/a.log"]}.items():
        for file in files:
            (tmp_path / "cases" / name / "input" / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cases" / name / "input" / file).write_text("x\n", encoding="utf-8")
        (tmp_path / "cases" / name / "truth.json").write_text(json.dumps(TRUTH), encoding="utf-8")
    (tmp_path / "tool.py").write_text(
        "import json, pathlib, sys\n"
        "for path in sys.argv[1:]:\n"
        "    files = sorted(str(p.relative_to(path)) for p in pathlib.Path(path).rglob('*') if p.is_file())\n"
        "    assert 'hardware' not in path and 'user' not in path\n"
        "    print(json.dumps({'class': 'hardware/nvlink' if 'kernel/n1.log' in files else 'unknown'}))\n",
        encoding="utf-8",
    )
    command = f"{sys.executable} {tmp_path / 'tool.py'} {{inputs}}"
    done = subprocess.run(
        [sys.executable, HERE / "score.py", tmp_path / "cases", "--command", command, "--ablations", "--json", "--gate"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    result = json.loads(done.stdout)

    assert result["figures"]["all"]["class"] == [1, 2, 0.5]
    assert result["ablations"]["without kernel"]["class"] == [0, 1, 0.0]
    assert result["ablations"]["without kernel: whole"]["class"] == [1, 1, 1.0]
    assert done.returncode == 1


def test_there_are_cases() -> None:
    """As many as the README says."""
    assert len(CASES) == 117
    assert f"{len(CASES)} failed" in (HERE / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.parent.name)
def test_a_case_is_sound(file: Path) -> None:
    """Its words are those of the schema."""
    truth = json.loads(file.read_text(encoding="utf-8"))

    assert {truth["class"], *truth.get("also", [])} <= set(CLASSES)
    assert truth["cause"] == truth["class"].split("/")[0]
    assert truth.get("retry") in (None, *RETRIES)
    assert truth.get("remediation") in (None, *REMEDIATIONS)
    assert truth["why"]
    assert any(path.is_file() for path in (file.parent / "input").rglob("*"))
