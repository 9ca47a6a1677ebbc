"""The Kubernetes executor against a real kube-apiserver, controller manager and scheduler with kwok's nodes, with the shipped rights only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.remediation_site import Cluster, audited
from tests.remediation.conformance import Acts, RespectsOthers, TakesBack
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane that writes down every request."""
    with audited(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


class TestNodes(Acts, TakesBack, RespectsOthers):
    """What changes a node and can be taken back."""

    VERBS = UNDONE = ("cordon", "drain", "uncordon", "taint", "label", "exclude")


class TestFinal(Acts, RespectsOthers):
    """What cannot be taken back."""

    VERBS = ("evict", "restart-task", "replace")


class TestNodesDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = UNDONE = TestNodes.VERBS


class TestFinalDry(DryActs, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = TestFinal.VERBS
