"""
Turn one call a training step into one short line that the job's supervisor reads: ``workbench.training.progress(step)``.

It runs inside somebody's training loop: it needs nothing but `os`, `sys` and `time`, it costs microseconds, it never waits for a
reader, and no error of it reaches the loop.
"""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType

__all__ = ["ENVIRONMENT", "PAUSES", "progress"]

ENVIRONMENT = "WORKBENCH_PROGRESS"  # names the file, or a pipe; without it a call does nothing
PAUSES = ("init", "compile", "eval", "save", "restore", "end")  # what a rank may announce that takes longer than a step
# names of the rank's number, the most specific first: torchrun, Open MPI, PMIx and MPICH, Slurm
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_GAP = 0.05  # s: of steps faster than this not every one is told, so that no loop fills a disk (20 lines a second and rank)

_file = -1  # descriptor; -1 not opened yet
_path = ""
_rank = ""
_node = ""
_last = float("-inf")  # a clock that counts from boot may still be near 0


def progress(
    step: int, *, rank: int | None = None, samples: int | None = None, phase: str | None = None, seconds: float | None = None
) -> None:
    """
    Tell the supervisor that this rank has made a step.

    Parameters
    ----------
    step : int
        Number of the step. A tensor is taken too, but one on a GPU waits for the GPU.
    rank : int, optional
        The global rank; else what torchrun, mpirun or srun wrote into the environment.
    samples : int, optional
        Samples (or tokens) in this step, for throughput.
    phase : {"init", "compile", "eval", "save", "restore", "end"}, optional
        What begins now and may take longer than a step. The next call without it ends the pause.
    seconds : float, optional
        What this rank itself worked on the step, without waiting for others. With it a slow rank is told wherever in the step the call is;
        without it the call must stand before the step's first collective, since after it all ranks are equally late.

    Notes
    -----
    Nothing is raised and nothing is returned, whatever happens. The line is ``STEP RANK TIME SAMPLES PHASE SECONDS NODE``, time in seconds
    since the epoch, ``-`` for what is not known, in one write of less than `PIPE_BUF` bytes, so that ranks which share the file do not mix
    theirs.
    """
    global _last, _node
    try:
        moment = time.monotonic()
        if phase is None and 0.0 <= moment - _last < _GAP:
            return
        file = _open()
        if file < 0:
            return
        _last = moment
        number = str(int(rank)) if rank is not None else _own_rank()
        amount = str(int(samples)) if samples is not None else "-"
        what = phase if phase in PAUSES else "-"
        worked = f"{float(seconds):.6f}" if seconds is not None else "-"
        if not _node:  # as the scheduler calls it, where it says so
            name = os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or os.uname().nodename
            _node = "".join(name.split())[:255] or "-"
        os.write(file, f"{int(step)} {number} {time.time():.6f} {amount} {what} {worked} {_node}\n".encode("ascii"))
    except Exception:  # it runs inside a loop whose owner did not ask for our errors
        pass


def _open() -> int:
    global _file, _path
    path = os.environ.get(ENVIRONMENT, "")
    if path != _path:
        _path, _file = path, -1
        if path:
            # without waiting: a pipe that nobody reads refuses, one that is full drops the line
            _file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    return _file


def _own_rank() -> str:
    global _rank
    if not _rank:
        for name in RANKS:
            value = os.environ.get(name, "")
            if value.isdigit():
                _rank = value
                break
        else:
            return "-"  # may be known later: a program can set it itself
    return _rank


class _Callable(ModuleType):
    """`workbench.training.progress` is a module and a call: whichever an import finds first, the call works."""

    def __call__(
        self,
        step: int,
        *,
        rank: int | None = None,
        samples: int | None = None,
        phase: str | None = None,
        seconds: float | None = None,
    ) -> None:
        progress(step, rank=rank, samples=samples, phase=phase, seconds=seconds)


sys.modules[__name__].__class__ = _Callable
