"""The node's evidence is kept whole before it is lost, or the step that destroys it does not come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.conformance import Acts, World, soon
from tests.remediation.dry_conformance import DryActs, untouched
from tests.remediation.kept_world import KeptWorld
from workbench.errors import SourceError
from workbench.remediation.executors.bundles import Bundles, Kept
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.model import Action

COLLECT = Action("act-1", "collect", "reset-gpu", "gpu-7")


def keep(action: Action, path: Path, deadline: Deadline) -> Kept:
    """Collect one file."""
    path.write_text("evidence")
    return Kept(str(path), 2, ("prometheus",))


class BundleWorld(KeptWorld):
    """Bundles whose making is counted."""

    def __init__(self, folder: Path) -> None:
        self.made: list[str] = []
        super().__init__(folder)

    def make(self) -> Bundles:
        def counted(action: Action, path: Path, deadline: Deadline) -> Kept:
            self.made.append(action.id)
            return keep(action, path, deadline)

        return Bundles(self.folder, counted, node=self.scheduler.executor.node)

    def writes(self) -> int:
        return len(self.made)

    def shape(self, action: Action) -> Any:
        return self.made.count(action.id)

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        yield


class TestBundles(Acts):
    """The suite of all executors."""

    VERBS = ("collect",)

    @pytest.fixture
    def world(self, tmp_path: Path) -> BundleWorld:
        return BundleWorld(tmp_path / "evidence")

    def test_a_changed_world_is_left_alone(self, world: World, verb: str) -> None:
        """Evidence is kept of whatever is there: it changes nothing."""
        action = world.action(verb)
        world.differ(action)
        assert world.executor.begin(action, soon()).status == "done"


class TestBundlesDry(DryActs):
    """The same questions to a dry run of it: nothing is collected."""

    VERBS = TestBundles.VERBS

    @pytest.fixture
    def world(self, tmp_path: Path) -> BundleWorld:
        return BundleWorld(tmp_path / "evidence")

    def test_a_changed_world_is_left_alone(self, world: World, verb: str) -> None:
        """A dry run compares what a plan expects, also where evidence would be kept all the same."""
        action = world.action(verb)
        world.differ(action)
        with untouched(world, action):
            assert self.dry(world).begin(action, soon()).status == "changed"


def test_what_was_silent_is_told_also_later(tmp_path: Path) -> None:
    for step in (Bundles(tmp_path, keep).begin(COLLECT, soon()), Bundles(tmp_path, keep).look(COLLECT, soon())):
        assert step.status == "done"
        assert "nothing came from prometheus" in step.detail
        assert str(tmp_path / "gpu-7-act-1.tar.zst") in step.detail


def test_no_evidence_at_all_is_a_failure(tmp_path: Path) -> None:
    bundles = Bundles(tmp_path, lambda action, path, deadline: Kept(str(path), 0, ("kubernetes", "node")))
    step = bundles.begin(COLLECT, soon())
    assert (step.status, "kubernetes, node" in step.detail) == ("failed", True)
    assert bundles.look(COLLECT, soon()).status == "absent"


def test_half_a_bundle_of_a_crash_is_none(tmp_path: Path) -> None:
    def dies(action: Action, path: Path, deadline: Deadline) -> Kept:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bundles(tmp_path, dies).begin(COLLECT, soon())
    bundles = Bundles(tmp_path, keep)
    assert bundles.look(COLLECT, soon()).status == "absent"
    assert bundles.begin(COLLECT, soon()).status == "done"
    assert (tmp_path / "gpu-7-act-1.tar.zst").read_text() == "evidence"


def test_where_it_was_really_kept_is_what_counts(tmp_path: Path) -> None:
    def elsewhere(action: Action, path: Path, deadline: Deadline) -> Kept:
        other = path.with_suffix(".gz")
        other.write_text("evidence")
        return Kept(str(other), 1)

    bundles = Bundles(tmp_path, elsewhere)
    assert bundles.begin(COLLECT, soon()).status == "done"
    assert bundles.look(COLLECT, soon()).status == "done"
    (tmp_path / "gpu-7-act-1.tar.gz").unlink()  # somebody cleaned up: then it is not kept
    assert bundles.look(COLLECT, soon()).status == "absent"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SourceError("nobody answers")])
def test_what_goes_wrong_is_an_error_in_words(tmp_path: Path, error: Exception) -> None:
    def fails(*_: object) -> Kept:
        raise error

    with pytest.raises(ExecutorError, match=r"No space left|nobody answers"):
        Bundles(tmp_path, fails).begin(COLLECT, soon())


def test_a_hostile_name_leads_nowhere_else(tmp_path: Path) -> None:
    bundles = Bundles(tmp_path / "evidence", keep)
    assert bundles.begin(replace(COLLECT, node="../../etc/\x1b[31m x"), soon()).status == "done"
    with pytest.raises(ExecutorError):
        bundles.begin(replace(COLLECT, id="../x"), soon())
    assert {file.parent.name for file in tmp_path.rglob("*") if file.is_file()} == {"evidence"}
