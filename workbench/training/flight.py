"""
Turn a request into PyTorch's flight-recorder dumps of every rank: the environment that makes ranks record, the pipes that ask them,
the files that they leave.

Names: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp and FlightRecorder.hpp (https://github.com/pytorch/pytorch), 2026-11-30.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["collect_flight", "flight_environment"]

_RECORDS = 2000  # entries a rank keeps: some steps of collectives, and a few MB
_STABLE = 0.4  # s without growth, after which a dump is taken for whole


def flight_environment(environ: Mapping[str, str], folder: str | os.PathLike[str]) -> dict[str, str]:
    """
    Return what to add to a job's environment so that its ranks record collectives and dump them into `folder`.

    Whatever the job sets itself stays. Both names of each setting are given: older releases know the first only. (Newer ones warn
    of it in each rank, so the hook of `workbench.training.dump_hook` takes it away where they run.)
    """
    place = Path(folder)
    wanted = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(_RECORDS),
        "TORCH_FR_BUFFER_SIZE": str(_RECORDS),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(place / "nccl_trace_rank_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(place / "nccl_trace_rank_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(place / "ask_rank_"),
        "TORCH_FR_DEBUG_INFO_PIPE_FILE": str(place / "ask_rank_"),
    }
    return {name: value for name, value in wanted.items() if name not in environ}


def collect_flight(
    folder: str | os.PathLike[str],
    *,
    deadline: float = 15.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[Path], list[str]]:
    """
    Ask every rank of this node for its dump and wait for the files.

    Parameters
    ----------
    folder : path
        That of `flight_environment`.
    deadline : float
        Seconds at most.

    Returns
    -------
    dumps, problems : list of Path, list of str
        The dumps that lie there now (also those of a time-out before), and what could not be asked.

    Notes
    -----
    A rank answers from its watchdog thread, so also when its main thread hangs. Only the NCCL backend has such a thread: ranks of
    gloo have no pipe, and that nobody was asked is said.
    """
    place, problems, asked = Path(folder), [], 0
    try:
        names = sorted(place.iterdir())
    except OSError as error:
        return [], [f"{place}: {error.strerror or error}"]
    for pipe in names:
        try:
            if not stat.S_ISFIFO(pipe.stat().st_mode):
                continue
            file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(file, b"1\n")
                asked += 1
            finally:
                os.close(file)
        except OSError as error:  # nobody reads it: the rank is gone, or has no watchdog
            problems.append(f"{pipe.name}: {error.strerror or error}")
    if not asked:
        problems.append("no rank has a pipe to ask for its flight-recorder dump (only the NCCL backend makes one)")
        return _dumps(place), problems
    seen: dict[Path, int] = {}
    end, since = clock() + deadline, clock()
    while clock() < end:
        sizes = {path: path.stat().st_size for path in _dumps(place)}
        if sizes != seen:
            seen, since = sizes, clock()
        elif len(sizes) >= asked and clock() - since >= _STABLE:
            break
        sleep(0.05)
    if len(seen) < asked:
        problems.append(f"{asked} ranks were asked for a flight-recorder dump, {len(seen)} dumps came in {deadline:g} s")
    return sorted(seen), problems


def _dumps(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_file() and path.stat().st_size and path.suffix != ".pipe")
