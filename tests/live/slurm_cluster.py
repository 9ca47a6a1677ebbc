"""Turn tests/services/slurm into a cluster that tests change: its commands, jobs, and what happens to its machines and daemons."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.servers import SERVICES, free_port, stop
from workbench.sources.command import Ran, run

__all__ = ["RealCluster", "started"]


class RealCluster:
    """Real slurmctld and slurmd, behind the same words as `tests.remediation.slurm_world.FakeCluster`."""

    pace = 1.0  # how much faster than real time things happen

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root, self.names = root, tuple(names)
        self.shell = f". {root}/env"  # what a script needs to find the commands
        self.env = {"SLURM_CONF": str(root / "slurm.conf")}

    def run(self, argv: Sequence[str], *, seconds: float, env: Any = None, prefix: Sequence[str] = ()) -> Ran:
        return run(argv, seconds=seconds, env={"TZ": "UTC", **self.env, **(env or {})}, prefix=prefix)

    def ask(self, *argv: str, seconds: float = 60.0) -> str:
        """Run a command that must end well."""
        ran = self.run(argv, seconds=seconds)
        assert ran.ok, ran.sentence
        return ran.text

    def submit(self, node: str, name: str = "train", gres: str = "gpu:h100:2", body: str = "srun sleep 300") -> str:
        options = ["--parsable", f"--nodelist={node}", f"--job-name={name}", "--output=/dev/null", "--no-requeue"]
        return self.ask("sbatch", *options, *([f"--gres={gres}"] if gres else []), f"--wrap={body}").strip()

    def end(self, job: str) -> None:
        self.ask("scancel", job)

    def empty(self, node: str) -> None:
        """End whatever a test has left there."""
        self.ask("scancel", f"--nodelist={node}")

    def machine(self, node: str, what: str) -> None:
        """Let a machine die, start or reboot."""
        done = subprocess.run(
            [SERVICES / "slurm/node", node, what, "--dir", self.root], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    def boots(self, node: str) -> None:
        self.machine(node, "reboot")

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Within it slurmctld neither answers nor refuses."""
        pid = next(
            int(line.split()[0]) for line in (self.root / "pids").read_text().splitlines() if line.split()[1] == "slurmctld"
        )
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def daemon(self, what: str) -> None:
        """Stop or start slurmctld."""
        subprocess.run(
            [SERVICES / "slurm/daemon", "slurmctld", what, "--dir", self.root], check=True, capture_output=True, timeout=60
        )


@contextmanager
def started(nodes: int) -> Iterator[RealCluster]:
    """Yield a cluster without accounting; its folder is short, since a socket's name may have 107 letters."""
    root = Path(tempfile.mkdtemp(prefix="wb-rem-"))
    names = [f"gpu-node-{number:03d}" for number in range(1, nodes + 1)]
    port = free_port(*range(101, 101 + nodes))
    words = [str(SERVICES / "slurm/start"), "--no-accounting", "--nodes", str(nodes), "--dir", str(root), "--port", str(port)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        yield RealCluster(root, names)
    finally:
        stop(SERVICES / "slurm/stop", "--dir", root, "--purge")
        shutil.rmtree(root, ignore_errors=True)
