"""Every row of the job tables compiles, matches its own example, is found by its literal gate, and keeps off harmless lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench.catalog import signatures
from workbench.model import Line
from workbench.parse.job import parse_job
from workbench.parse.job_signatures import Matcher, literal, specificity

ROWS = [row for row in signatures().values() if row.origin.startswith("signatures_job")]
WITH_PATTERN = [row for row in ROWS if row.pattern]
BENIGN = (Path(__file__).parents[1] / "data" / "job" / "benign.txt").read_text(encoding="utf-8").splitlines()
FAILING = (Path(__file__).parents[1] / "data" / "job" / "failing.tsv").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher()


def test_there_are_rows_of_every_layer() -> None:
    assert {
        "cuda",
        "nccl",
        "torch",
        "torchelastic",
        "python",
        "storage",
        "vllm",
        "sglang",
        "ray",
        "jax",
        "noise",
        "generic",
    } <= {row.layer for row in ROWS}


@pytest.mark.parametrize("row", WITH_PATTERN, ids=lambda row: row.id)
def test_pattern_matches_its_example_and_its_gate_lets_it_through(row: object) -> None:
    assert re.search(row.pattern, row.example), row.origin  # type: ignore[attr-defined]
    gate = literal(row.pattern)  # type: ignore[attr-defined]
    assert not gate or any(word in row.example.lower() for word in gate)  # type: ignore[attr-defined]


def test_patterns_compile_in_hyperscan() -> None:
    hyperscan = pytest.importorskip("hyperscan")
    database = hyperscan.Database()
    flags = hyperscan.HS_FLAG_SINGLEMATCH
    database.compile(
        expressions=[row.pattern.encode() for row in WITH_PATTERN],
        ids=list(range(len(WITH_PATTERN))),
        flags=[flags] * len(WITH_PATTERN),
    )


def test_every_cause_says_where_it_is_known_from_and_whom_it_speaks_about() -> None:
    for row in ROWS:
        assert row.meaning, row.origin
        assert row.source, row.origin
        assert row.date, row.origin
        if row.role == "cause":
            assert row.weight > 0, row.origin
            assert row.scope, row.origin


@pytest.mark.parametrize("line", BENIGN)
def test_harmless_line_is_no_cause(line: str, matcher: Matcher) -> None:
    parsed = parse_job([Line(1, line)], file="job.log", year=2025)
    blamed = [event.signature for event in parsed.events if (event.role or matcher.rows[event.signature].role) == "cause"]
    heavy = [name for name in blamed if matcher.rows[name].weight >= 0.5]
    if "docs:" in line:  # quoted words count less, but cannot be told from a torn line
        assert all((event.weight or 1) < 0.6 for event in parsed.events)
    else:
        assert heavy == []


@pytest.mark.parametrize("entry", FAILING)
def test_failing_line_has_its_class(entry: str, matcher: Matcher) -> None:
    wanted, text = entry.split("\t", 1)
    head = []
    if re.match(r"(?:\w+\.)*[A-Z]\w+: ", text) or re.fullmatch(r"[\w.]*[A-Z]\w+", text):
        head = [
            Line(1, "Traceback (most recent call last):"),
            Line(2, '  File "/workspace/train.py", line 3, in main'),
            Line(3, "    x()"),
        ]
    parsed = parse_job([*head, Line(4, text)], file="job.log", year=2025)
    assert parsed.events, "nothing was recognised"
    event = parsed.events[0]
    assert (event.cls or matcher.rows[event.signature].cls) == wanted, event.signature


def test_specific_beats_generic_and_fault_of_hardware_beats_warning(matcher: Matcher) -> None:
    text = "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert matcher.order(matcher.search(text))[0].id == "cuda-ecc-uncorrectable"
    warning = (
        "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
    )
    assert matcher.order(matcher.search(warning))[0].id == "cuda-fabric-not-ready"
    assert matcher.order(matcher.search("UserWarning: KeyError: 'x' was ignored"))[0].layer == "noise"


def test_specificity_counts_what_every_match_must_contain() -> None:
    assert specificity("abcdef") > specificity("abc|xyz")
    assert specificity(r"\d+") < specificity("ab")
    assert literal("(?:foo|barbaz)x") in {("barbaz", "foo"), ("foo", "barbaz")}
    assert literal(r"\d+") == ()
