"""Turn a test session into one demonstration that is served without login, and one with login and roles."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.served import Served
from workbench.shipped import example_path, examples

ALERTS_TOKEN = "for-alertmanager-only"


def free_port() -> int:
    """Return a port of this machine that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is given as --root: evidence in it, a link out of it, and a neighbour whose name begins like it."""
    place = tmp_path_factory.mktemp("served")
    inside = place / "evidence"
    shutil.unpack_archive(example_path("gpu-memory"), inside / "gpu-memory", filter="data")
    (place / "evidence-of-others").mkdir()
    (place / "evidence-of-others" / "secret.log").write_text("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus\n")
    (inside / "way-out").symlink_to(place / "evidence-of-others")
    return inside


@pytest.fixture(scope="session")
def demo(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The shipped incidents below a prefix, without login."""
    cache = tmp_path_factory.mktemp("cache")
    with Served(("--demo", "--root", str(root), "--prefix", "/tools/gpu"), {"XDG_CACHE_HOME": str(cache)}) as served:
        served.filled(len(examples()))
        yield served


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An empty inbox with login: maria approves, otto reads, eve has a password and no role."""
    place = tmp_path_factory.mktemp("guarded")
    for name, text in {
        "users": json.dumps({"maria": "m", "otto": "o", "eve": "e"}),
        "roles": json.dumps({"maria": "approver", "otto": "reader"}),
        "token": ALERTS_TOKEN + "\n",
    }.items():
        (place / name).write_text(text)
        (place / name).chmod(0o600)
    options = ("--inbox", str(place / "inbox"), "--basic-auth", str(place / "users"), "--roles", str(place / "roles"))
    with Served((*options, "--allow-approve", "--alerts-token", str(place / "token"))) as served:
        yield served
