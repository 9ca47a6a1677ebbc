"""
Turn what lies at hand after a failed attempt into files of its folder: torchelastic's error files and logs, flight-recorder dumps, this node's
kernel log and GPUs.

Run as a program (`python -m workbench.training.evidence FILE`), so that a file server or driver that hangs costs the supervisor a deadline and
no more. FILE is the attempt's JSON; an answer for each source goes to standard output.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.config import load_config
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.node.source import ThisNode

__all__ = ["collect", "main"]

SECONDS = 40.0  # for all of it
_LARGEST = 256 << 20  # bytes of one file that is copied; of a larger one the end
_LOG_DIR = ("--log-dir", "--log_dir", "-log-dir")
# where torch writes dumps when nobody says: PyTorch 2.14, torch/csrc/distributed/c10d/NCCLUtils and FlightRecorder
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DEFAULT_DUMPS = ("/tmp/nccl_trace_rank_", "/tmp/comm_lib_trace_rank_")


def collect(about: Mapping[str, Any], folder: Path, seconds: float = SECONDS) -> list[Answer]:
    """
    Copy what is at hand and tell what could not be had.

    Parameters
    ----------
    about : mapping
        ``command``, ``env`` (of the job: only names of files are read), ``started`` and ``ended`` (epoch seconds), ``nodes``.
    folder : Path
        The attempt's.
    seconds : float
        For the node's kernel log and tools.
    """
    answers = [_elastic(about, folder), _flights(about, folder)]
    scope = Scope("run", float(about["started"]), float(about["ended"]), nodes=tuple(about.get("nodes") or ()) or _me())
    if not load_config()["node.enabled"]:
        return [*answers, *(Answer(word, "missing", "the setting node.enabled is off") for word in ("kernel", "smi"))]
    return answers + ThisNode().collect(scope, Folder.resume(folder), Deadline(seconds))


def _me() -> tuple[str, ...]:
    return (os.environ.get("SLURMD_NODENAME") or socket.gethostname(),)


def _elastic(about: Mapping[str, Any], folder: Path) -> Answer:
    """Error files and the ranks' own logs, from ``torchrun --log-dir``."""
    found, asked = 0, []
    for place in _log_dirs(about["command"]):
        asked.append(place)
        for path in _new(glob.iglob(os.path.join(glob.escape(place), "**", "*"), recursive=True), float(about["started"])):
            name = os.path.basename(path)
            if name == "error.json" or re.search(r"\.(?:log|json|txt|out|err)$", name):
                found += _copy(path, folder / "elastic" / os.path.relpath(path, place))
    for path in _new((about.get("env") or {}).get("TORCHELASTIC_ERROR_FILE", "").split("\0"), float(about["started"])):
        found += _copy(path, folder / "elastic" / "error.json")
    if not asked:
        return Answer("job", "ok", "the launcher was given no --log-dir: the ranks' output is what it printed itself")
    status = "ok" if found else "missing"
    return Answer("job", status, f"{found} files of the ranks in {', '.join(asked)}", asked=", ".join(asked), rows=found)


def _log_dirs(command: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(command):
        name, equal, value = word.partition("=")
        if name in _LOG_DIR:
            place = value if equal else command[at + 1] if at + 1 < len(command) else ""
            if place:
                yield place


def _flights(about: Mapping[str, Any], folder: Path) -> Answer:
    """Dumps of the flight recorder: one file a rank, by a prefix that the environment names."""
    env = about.get("env") or {}
    prefixes = [env[name] for name in _DUMPS if env.get(name)] or list(_DEFAULT_DUMPS)
    found = 0
    for prefix in prefixes:
        if Path(prefix).parent == folder / "flight":
            found += len(list((folder / "flight").glob("*")))
            continue
        for path in _new(glob.iglob(glob.escape(prefix) + "*"), float(about["started"])):
            found += _copy(path, folder / "flight" / os.path.basename(path))
    return Answer(
        "flight-recorder", "ok" if found else "missing", f"{found} dumps at {', '.join(prefixes)}*", asked=", ".join(prefixes)
    )


def _new(paths: Iterable[str], since: float) -> Iterator[str]:
    """Leave out what an earlier job left there."""
    for path in paths:
        try:
            if path and os.path.isfile(path) and os.stat(path).st_mtime >= since - 1:
                yield path
        except OSError:
            continue


def _copy(source: str, target: Path) -> int:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.abspath(source) == str(target):
            return 1
        size = os.stat(source).st_size
        if size <= _LARGEST:
            shutil.copy2(source, target)
        else:
            with open(source, "rb") as reader, target.open("wb") as writer:
                reader.seek(size - _LARGEST)
                reader.readline()
                shutil.copyfileobj(reader, writer)
    except OSError:
        return 0
    return 1


def main(arguments: Sequence[str]) -> int:
    """Collect for the attempt of a file, and print the answers."""
    path = Path(arguments[0])
    about = json.loads(path.read_bytes())
    begun = time.monotonic()
    answers = collect(about, path.parent / path.stem, float(arguments[1]) if len(arguments) > 1 else SECONDS)
    rows = [{"source": one.source, "status": one.status, "detail": one.detail, "hint": one.hint} for one in answers]
    sys.stdout.write(json.dumps({"answers": rows, "seconds": round(time.monotonic() - begun, 3)}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads that a driver holds are left behind


if __name__ == "__main__":
    main(sys.argv[1:])
