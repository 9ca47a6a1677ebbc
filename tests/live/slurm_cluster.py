"""Turn tests/services/slurm into a cluster that tests change: its commands, jobs, and what happens to its machines and daemons."""

from __future__ import annotations

import os
import shlex
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

PACKAGES = "munge,slurm-wlm,slurmdbd,slurmrestd,mariadb-server,procps,iproute2,hostname,python3-minimal"


class RealCluster:
    """Real slurmctld and slurmd, behind the same words as `tests.remediation.slurm_world.FakeCluster`."""

    pace = 1.0  # how much faster than real time things happen

    def __init__(self, root: Path, names: Sequence[str], prefix: Sequence[str] = ()) -> None:
        self.root, self.names, self.prefix = root, tuple(names), tuple(prefix)
        self.env = {"SLURM_CONF": str(root / "slurm.conf")}
        # what a script needs to find the commands
        own = f'cd /tmp; scontrol() {{ {shlex.join(self.prefix)} env SLURM_CONF={root}/slurm.conf scontrol "$@"; }}'
        self.shell = own if self.prefix else f". {root}/env"

    def run(self, argv: Sequence[str], *, seconds: float, env: Any = None, prefix: Sequence[str] = ()) -> Ran:
        return run(argv, seconds=seconds, env={"TZ": "UTC", **self.env, **(env or {})}, prefix=(*self.prefix, *prefix))

    def ask(self, *argv: str, seconds: float = 60.0) -> str:
        """Run a command that must end well."""
        ran = self.run(argv, seconds=seconds)
        assert ran.ok, ran.sentence
        return ran.text

    def submit(
        self, node: str, name: str = "train", gres: str = "gpu:h100:2", body: str = "srun sleep 300", *, requeue: bool = False
    ) -> str:
        options = ["--parsable", f"--nodelist={node}", f"--job-name={name}", "--output=/dev/null"]
        options.append("--requeue" if requeue else "--no-requeue")
        return self.ask("sbatch", *options, *([f"--gres={gres}"] if gres else []), f"--wrap={body}").strip()

    def waiting(self, name: str, *options: str) -> str:
        """Hand in a job that waits for longer than any test."""
        words = ["--parsable", f"--job-name={name}", "--output=/dev/null", "--begin=now+1hour", *options]
        return self.ask("sbatch", *words, "--wrap=true").strip()

    def end(self, job: str) -> None:
        self.ask("scancel", job)

    def empty(self, node: str) -> None:
        """End whatever a test has left there."""
        self.ask("scancel", f"--nodelist={node}")

    def machine(self, node: str, what: str) -> None:
        """Let a machine die, start or reboot."""
        self._script("node", node, what)

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
        self._script("daemon", "slurmctld", what)

    def _script(self, name: str, *words: str) -> None:
        whole = [*self.prefix, str(SERVICES / "slurm" / name), *words, "--dir", str(self.root)]
        # what it starts keeps its streams open: so these are a file
        with (self.root / "log" / f"{name}.out").open("w+") as out:
            done = subprocess.run(whole, stdout=out, stderr=subprocess.STDOUT, cwd="/tmp", timeout=60)
            out.seek(0)
            assert done.returncode == 0, out.read()


@contextmanager
def started(nodes: int, suite: str = "") -> Iterator[RealCluster]:
    """
    Yield a cluster without accounting; its folder is short, since a socket's name may have 107 letters.

    `suite` is another Debian whose Slurm is used from a root folder: ``trixie`` for 24.11, ``sid`` for 26.05.
    """
    prefix = (str(SERVICES / "slurm/debian-root"), suite, "slurm", PACKAGES) if suite else ()
    root = Path(tempfile.mkdtemp(prefix="wb-rem-"))
    names = [f"gpu-node-{number:03d}" for number in range(1, nodes + 1)]
    port = free_port(*range(101, 101 + nodes))
    words = [*prefix, str(SERVICES / "slurm/start"), *(["--no-install"] if suite else []), "--no-accounting"]
    words += ["--nodes", str(nodes), "--dir", str(root), "--port", str(port), "--no-cgroup"]  # jobs here have several nodes
    try:
        with (root / "start.out").open("w+") as out:
            done = subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, cwd="/tmp", timeout=300)
            out.seek(0)
            assert done.returncode == 0, out.read()
        yield RealCluster(root, names, prefix)
    finally:
        stop(*prefix, SERVICES / "slurm/stop", "--dir", root, "--purge")
        shutil.rmtree(root, ignore_errors=True)
