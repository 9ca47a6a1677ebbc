"""On labelled failures no certain fault of the user starts again, nothing that can be tried again is stopped, and no innocent node is left out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.training.jobs import verdict
from workbench.training.policy import Policy

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "attribution"
CASES = sorted((HERE / "cases").glob("*/truth.json"))


@pytest.fixture(scope="module")
def decisions() -> ModuleType:
    """The script that counts, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("attribution_decisions", HERE / "decisions.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("confidence", [0.95, 0.5])
@pytest.mark.parametrize("file", CASES, ids=lambda file: file.parent.name)
def test_the_label_as_the_verdict_gives_no_error(decisions: ModuleType, file: Path, confidence: float) -> None:
    """As sure as can be, and hardly sure: what is known decides rightly."""
    truth: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    cause = truth["cause"]
    at_fault = {"hardware": "gpu", "driver": "node", "user": "rank"}.get(
        cause, "node" if truth.get("retry") == "exclude-node" else "platform"
    )
    said = verdict(truth["class"], confidence, node=truth.get("node"), at_fault=at_fault, retry=truth.get("retry"))

    once, twice = decisions.decided(said, Policy())
    assert decisions.errors_of(truth, said, once, twice, Policy()) == []
    if cause == "user" and confidence > 0.9 and truth["class"] in Policy().certain_classes and not truth.get("retry_also"):
        assert once.action == "stop"


@pytest.mark.parametrize(
    ("truth", "said", "error"),
    [
        (
            {"cause": "hardware", "class": "hardware/pcie", "retry": "exclude-node", "node": "n1"},
            verdict("user/exception", 0.95),
            "false stop",
        ),
        (
            {"cause": "hardware", "class": "hardware/pcie", "retry": "exclude-node", "node": "n1"},
            verdict("hardware/pcie", node="n2"),
            "wrong exclusion",
        ),
        (
            {"cause": "user", "class": "user/exception", "retry": "fix-first", "node": None},
            verdict("hardware/pcie"),
            "wrong exclusion",
        ),
    ],
)
def test_an_error_is_counted(decisions: ModuleType, truth: dict[str, Any], said: dict[str, Any], error: str) -> None:
    """A wrong verdict makes a wrong decision, and the script says so."""
    once, twice = decisions.decided(said, Policy())

    assert decisions.errors_of(truth, said, once, twice, Policy()) == [error]


@pytest.mark.slow
def test_the_verdicts_of_all_cases_give_no_error(decisions: ModuleType) -> None:
    """The whole way from the evidence; nearly every certain class is recognised as certain."""
    result = decisions.account(HERE / "cases")

    assert result["errors"] == {name: [] for name in decisions.ERRORS}
    stopped, again = result["actions"]["user, certain class: stop"], result["actions"].get("user, certain class: restart", 0)
    assert stopped >= 0.9 * (stopped + again)
