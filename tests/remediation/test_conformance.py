"""The conformance suite passes an executor that keeps its promises, and notices each way to break one."""

from __future__ import annotations

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack
from tests.remediation.memory import BREAKAGES, MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    """A world whose executor is right."""
    return MemoryWorld()


class TestMemory(Acts, TakesBack, RespectsOthers):
    """The suite as a backend uses it."""

    VERBS = ("cordon", "evict")
    UNDONE = ("cordon",)


def failures(world: MemoryWorld) -> set[str]:
    """Return the names of the suite's tests that fail in a world."""
    failed = set()
    for suite in (Acts, TakesBack, RespectsOthers):
        for name in dir(suite):
            if name.startswith("test_"):
                try:
                    getattr(suite(), name)(MemoryWorld(world.broken), "cordon")
                except (AssertionError, pytest.fail.Exception):
                    failed.add(name)
    return failed


def test_what_is_right_passes() -> None:
    assert failures(MemoryWorld()) == set()


@pytest.mark.parametrize(("broken", "notices"), BREAKAGES.items())
def test_each_breakage_is_noticed(broken: str, notices: str) -> None:
    """By the test that is there for it."""
    assert any(name.startswith(notices) for name in failures(MemoryWorld(broken))), f"nobody noticed: {broken}"
