"""The conformance suite passes an executor that keeps its promises, and notices each way to break one."""

from __future__ import annotations

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack, questions_of
from tests.remediation.memory import BREAKAGES, MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    """A world whose executor is right."""
    return MemoryWorld()


class TestMemory(Acts, TakesBack, RespectsOthers):
    """The suite as a backend uses it."""

    VERBS = ("cordon", "evict")
    UNDONE = ("cordon",)


class TestMemoryDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = TestMemory.VERBS
    UNDONE = TestMemory.UNDONE


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


def test_a_dry_run_is_asked_every_question_of_the_suite() -> None:
    for suite, dry in ((Acts, DryActs), (TakesBack, DryTakesBack), (RespectsOthers, DryRespectsOthers)):
        assert questions_of(suite) == questions_of(dry)


@pytest.mark.parametrize("name", sorted(questions_of(DryActs, DryTakesBack)))
def test_a_dry_run_that_is_none_is_noticed(name: str) -> None:
    """By each question that leads to a change; the others only read."""

    class Real(DryActs, DryTakesBack):
        DRY = staticmethod(lambda inner: inner)  # type: ignore[assignment]

    reads = (
        "before_it",
        "fence",
        "changed_world",
        "did_not_arrive",
        "cannot_be_seen",
        "verb_of_others",
        "never_happened",
        "somebody_changed",
    )
    try:
        getattr(Real(), name)(MemoryWorld(), "cordon")
    except (AssertionError, pytest.fail.Exception):
        return
    assert any(one in name for one in reads), "nobody noticed"
