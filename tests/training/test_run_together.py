"""
Real PyTorch jobs whose every node has a supervisor of its own, on two network namespaces: when one of them sees a hang both take the stacks of their
ranks, and a node that stands still with all its processes is told by its silence, also when it holds the rendezvous.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.servers import free_port
from tests.training.namespaces import Nodes, nodes
from tests.training.test_run_torch import LONG, POLICY, ROOT, TORCHRUN, TRAIN
from workbench.training.lineage import descendants, marked

pytestmark = pytest.mark.slow


@pytest.fixture
def site() -> Iterator[Nodes]:
    with nodes(2) as made:
        yield made


class Both:
    """One supervisor with one torchrun agent and two ranks on each of two nodes, and a folder that both share."""

    def __init__(self, folder: Path, site: Nodes, *arguments: str, host: str = "node-a", policy: str = POLICY) -> None:
        self.folder, self.shared = folder, folder / "together"
        (folder / "checkpoints").mkdir()
        (folder / "retry.toml").write_text(policy)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "SLURM", "NODE_NAME"))}
        env = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "WORKBENCH_NODE_ENABLED": "false",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        port = free_port()
        addresses = {name: f"10.77.0.{at}" for at, name in enumerate(site.names, 1)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in site.names:
            words = [
                *("ip", "netns", "exec", site.spaces[name], "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name),
                *(
                    sys.executable,
                    "-m",
                    "workbench",
                    "run",
                    f"--together={self.shared}",
                    f"--checkpoints={folder / 'checkpoints'}",
                ),
                *(f"--policy={folder / 'retry.toml'}", "--max-hang=8s", "--grace=3s", "--"),
                *(TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "tiny"),
                *("--rdzv-endpoint", f"{addresses[host]}:{port}", "--rdzv-conf", f"is_host={str(name == host).lower()}"),
                *("--local-addr", addresses[name], TRAIN, "--folder", str(folder), *arguments),
            ]
            with (folder / f"{name}.err").open("wb") as err:
                self.processes[name] = subprocess.Popen(
                    words,
                    cwd=ROOT,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=err,
                    start_new_session=True,
                )

    def until(self, path: Path) -> None:
        end = time.monotonic() + LONG
        while not path.exists():
            assert time.monotonic() < end, self.told()
            time.sleep(0.1)

    def told(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("node-*.err")))

    def read(self, name: str) -> Any:
        return json.loads((self.shared / name).read_text())

    def freeze(self, name: str) -> None:
        """Stop the supervisor and all that it started at once, as a node does whose kernel stands still."""
        root = self.processes[name].pid
        for pid in [root, *sorted(descendants(root))]:
            os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        for name, process in self.processes.items():
            for pid in marked(f"WORKBENCH_RUN={(self.shared / name).resolve()}") | descendants(process.pid) | {process.pid}:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait(30)


def test_a_hang_that_one_supervisor_sees_brings_the_stacks_of_all_ranks(tmp_path: Path, site: Nodes) -> None:
    """Only rank 0 prints steps, so only its node's supervisor sees the silence; who sits in a collective and who does not is on both nodes."""
    both = Both(tmp_path, site, "--fault", "hang-outside@3", "--timeout", "600")
    try:
        codes = {name: process.wait(LONG) for name, process in both.processes.items()}
        assert codes == {"node-a": 0, "node-b": 0}, both.told()
        everyone = {f"rank-{rank}.txt" for rank in range(4)}
        (common,) = {path.parent for path in both.shared.glob("hangs/*/stacks/rank-0.txt")}
        assert everyone <= {path.name for path in common.iterdir()}, both.told()
        for name in ("node-a", "node-b"):
            assert everyone <= {path.name for path in (both.shared / name / "attempt-1/stacks").iterdir()}, both.told()
        verdict = both.read("node-a/attempt-1.verdict.json")
        assert (verdict["class"], verdict["culprit"]["rank"]) == ("user/hang", 3), both.told()
        assert {row["state"] for row in both.read("node-a/attempt-1/launch/supervisors.json")["supervisors"]} == {"alive"}
        assert both.read("node-a.json")["state"] == both.read("node-b.json")["state"] == "ended"
    finally:
        both.end()


@pytest.mark.parametrize("gone", ["node-a", "node-b"], ids=["with rank 0", "without it"])
def test_a_node_that_stands_still_with_the_rendezvous_is_lost(tmp_path: Path, site: Nodes, gone: str) -> None:
    """Nobody's connection is closed, the other agent waits for the store and says nothing: the silence of the node's own supervisor tells."""
    other = "node-b" if gone == "node-a" else "node-a"
    both = Both(tmp_path, site, "--pause", "0.5", "--steps", "200", "--timeout", "12", host=gone)
    try:
        both.until(tmp_path / "checkpoints/step-000040.pt")
        both.until(both.shared / f"{other}.json")
        both.freeze(gone)
        both.until(both.shared / f"{other}/attempt-1.verdict.json")
        verdict = both.read(f"{other}/attempt-1.verdict.json")
        assert (verdict["class"], verdict["culprit"]["node"], verdict["retry"]) == ("platform/node-lost", gone, "exclude-node"), (
            verdict["summary"],
            both.told(),
        )
        assert "run-node-silent" in {one["signature"] for one in verdict["evidence"] if one["role"] == "cause"}
        states = {row["node"]: row["state"] for row in both.read(f"{other}/attempt-1/launch/supervisors.json")["supervisors"]}
        assert states == {other: "alive", gone: "silent"}
    finally:
        both.end()
