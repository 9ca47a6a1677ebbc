"""Give tests of the checks a healthy node to break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.gpu_node import Node
from tests.nvml_fake import build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the fake libnvidia-ml."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder for whatever runs the command: never this machine's own."""
    folder = tmp_path / "state-of-the-command"
    monkeypatch.setenv("WORKBENCH_HEALTH_STATE", str(folder))
    return folder


@pytest.fixture
def node(tmp_path: Path, library: str) -> Node:
    """A healthy node with eight H100."""
    return Node(tmp_path, library)
