"""The kernel's signature rows and the parser that uses them agree."""

from __future__ import annotations

import re

import pytest

from workbench import catalog
from workbench.model import Line
from workbench.parse.bmc import parse_bmc
from workbench.parse.fabric_manager import parse_fabric_manager
from workbench.parse.kernel import parse_kernel
from workbench.parse.kernel_rules import WORDS

ROWS = {name: row for name, row in catalog.signatures().items() if row.layer in ("kernel", "fabric-manager", "bmc")}
SCANNED = sorted(name for name, row in ROWS.items() if row.pattern)


def test_every_number_has_a_row() -> None:
    """All Xid and SXid codes known to the tables are signatures."""
    assert {f"xid-{row['code']}" for row in catalog.table("xid")} <= set(ROWS)
    assert {f"sxid-{row['code']}" for row in catalog.table("sxid")} <= set(ROWS)


@pytest.mark.parametrize("name", SCANNED)
def test_an_example_matches_its_pattern(name: str) -> None:
    """The line that documents a row is one that the row finds, and an automaton can run the pattern."""
    row = ROWS[name]
    assert re.search(row.pattern, row.example)
    assert not re.search(r"\(\?<?[=!]", row.pattern)


def test_all_patterns_compile_for_the_scanner() -> None:
    """One database of all patterns, as the log scanner builds it."""
    hyperscan = pytest.importorskip("hyperscan")
    patterns = [re.sub(r"\(\?P<\w+>", "(", ROWS[name].pattern).encode() for name in SCANNED]
    hyperscan.Database().compile(expressions=patterns, ids=list(range(len(patterns))), elements=len(patterns))


# Found by what surrounds them or decided by the whole log, not by their line alone.
STRUCTURAL = {"xid", "sxid", "edac-ce-storm", "nvidia-unsupported"}


@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if row.layer == "kernel" and name not in STRUCTURAL))
def test_the_parser_gives_the_signature_of_the_example(name: str) -> None:
    """Words that lead to a rule stand in the rule's own example."""
    parsed = parse_kernel([Line(1, ROWS[name].example)], file="x")
    assert [event.signature for event in parsed.events] == [name]


@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if row.layer in ("bmc", "fabric-manager")))
def test_board_and_fabric_examples_are_found(name: str) -> None:
    """The same for the other two logs."""
    lines = [Line(1, ROWS[name].example)]
    parsed = parse_bmc(lines, file="x") if name.startswith("bmc") else parse_fabric_manager(lines, file="x")
    assert [event.signature for event in parsed.events] in ([name], ["sxid-12028"])


def test_rules_name_rows_that_exist() -> None:
    """A word without a row would find nothing, silently."""
    assert {name for _, names in WORDS for name in names} <= set(ROWS)
