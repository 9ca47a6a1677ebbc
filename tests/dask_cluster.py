"""Turn a folder into a Dask cluster of this machine: a scheduler and workers as programs of their own, any of which can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.cluster import Cluster
from workbench.errors import SourceUnavailable

__all__ = ["Dask"]


class Dask:
    """
    A scheduler and workers of one thread each, without a nanny: a worker that is killed stays dead.

    Parameters
    ----------
    folder : Path
        For their files.
    workers : int
        How many.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        environ = os.environ | {
            "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "1000000",  # `busy` and `done_twice` read it from its begin
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._client: Any = None
        where = folder / "scheduler.json"

        def start(*words: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-m", *words], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

        self.scheduler = start(
            "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(where)
        )  # fmt: skip
        self.workers: list[subprocess.Popen[bytes]] = []
        try:
            end = time.monotonic() + 60
            while not where.exists() or not where.read_text(encoding="utf-8").strip():
                if time.monotonic() > end:
                    raise TimeoutError("the scheduler did not start")
                time.sleep(0.05)
            self.address: str = json.loads(where.read_text(encoding="utf-8"))["address"]
            for number in range(workers):
                self.workers.append(
                    start(
                        "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard",
                        "--host", "127.0.0.1", "--name", f"worker-{number}", "--local-directory", str(folder / f"worker-{number}"),
                    )
                )  # fmt: skip
        except BaseException:
            self.stop()
            raise

    def ready(self, seconds: float = 60.0) -> Cluster:
        """Return the cluster when all its workers are there."""
        end = time.monotonic() + seconds
        while True:
            try:
                cluster = Cluster(self.address)
                if cluster.size == len(self.workers):
                    return cluster
                cluster.close()
            except SourceUnavailable:
                if time.monotonic() > end:
                    raise
            if time.monotonic() > end:
                raise TimeoutError(f"of {len(self.workers)} workers some did not come")
            time.sleep(0.2)

    def ask(self, function: Callable[..., Any]) -> Any:
        """Return what a function says that runs on the scheduler, such as `busy`."""
        from distributed import Client

        if self._client is None:
            self._client = Client(self.address, set_as_default=False)
        return self._client.run_on_scheduler(function)

    def kill(self, number: int) -> None:
        """End a worker at once, as the kernel's out-of-memory killer does."""
        self.workers[number].send_signal(signal.SIGKILL)
        self.workers[number].wait()

    def stop(self) -> None:
        """End all of them."""
        if self._client is not None:
            self._client.close()
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def busy(dask_scheduler: Any = None) -> dict[str, Any]:
    """Run on the scheduler: how many parts of the work are done, and how many each worker has in hand."""
    done = sum(1 for entry in dask_scheduler.transition_log if entry[2] == "memory")
    return {"done": done, "in_hand": {str(one.name): len(one.processing) for one in dask_scheduler.workers.values()}}


def done_twice(dask_scheduler: Any = None) -> int:
    """Run on the scheduler: how many parts of the work were given to a second worker since the first was lost."""
    given: dict[Any, int] = {}
    for entry in dask_scheduler.transition_log:
        if entry[2] == "processing":
            given[entry[0]] = given.get(entry[0], 0) + 1
    return sum(1 for times in given.values() if times > 1)
