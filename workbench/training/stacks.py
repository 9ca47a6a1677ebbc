"""
Turn the processes of a job that hangs into files that say what each of them waits in: stacks by py-spy, or by faulthandler where the job
registered it, and states and wait channels of the kernel always.

The files are those that `workbench triage` reads (`workbench.parse.stacks`, `workbench.parse.process_list`): the folder becomes part of
the incident.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.training.processes import Member, caught, members, same

__all__ = ["SIGNAL", "Stacks", "collect_stacks", "grouped", "stacks_environment"]

SIGNAL = signal.SIGRTMIN + 9  # what `dump_hook/sitecustomize.py` registers
_MOST = 128  # processes of one node whose stacks are taken: eight ranks with fifteen loaders each
_AT_ONCE = 4
_LOOKS = 4  # how often a state is looked at: a process that reads a file is in D for a moment
_LOOK = 0.15  # s between them
# signature of `workbench.parse.stacks` → what such ranks do, in words
_DOES = {
    "stack-in-collective": "in a collective",
    "stack-dataloader-wait": "waiting for the data loader",
    "stack-lock-wait": "waiting for a lock, a queue or a thread",
    "stack-user-wait": "idle in the job's own code",
    "stack-user-code": "running the job's own code",
    "stack-storage-wait": "waiting for a file system",
    "stack-cuda-sync": "waiting for the GPU",
    "stack-fatal-error": "dead",
}


@dataclass(frozen=True, slots=True)
class Stacks:
    """What is known of one process of a job that hangs."""

    pid: int
    role: str  # rank | worker | launcher | other
    rank: int | None = None
    local_rank: int | None = None
    how: str = ""  # py-spy | faulthandler | kernel (its stack alone) | empty: none could be taken
    file: str = ""  # the dump, in the folder
    state: str = ""  # of proc(5); D and T only when they lasted
    wchan: str = ""
    kind: str = ""  # signature of what the main thread is in
    where: str = ""  # the frame that decides
    frame: str = ""  # the innermost frame of the job's own code
    why: str = ""  # why there is no dump, or how the better way failed


def stacks_environment(environ: Mapping[str, str], folder: str | os.PathLike[str]) -> dict[str, str]:
    """
    Return what to add to a job's environment so that each Python in it dumps its stacks into `folder` when `SIGNAL` comes.

    For a site without py-spy, or whose ranks may not be traced (a container without SYS_PTRACE). The job's interpreter imports one small
    file at its start, which registers `faulthandler`; a `sitecustomize` of its own still runs.
    """
    hook = str(Path(__file__).with_name("dump_hook"))
    before = environ.get("PYTHONPATH")
    return {"WORKBENCH_STACKS": os.fspath(folder), "PYTHONPATH": f"{hook}{os.pathsep}{before}" if before else hook}


def collect_stacks(
    pid: int | Iterable[int],
    folder: str | os.PathLike[str],
    *,
    deadline: float = 60.0,
    dumps: str | os.PathLike[str] | None = None,
    pyspy: str | None = None,
) -> list[Stacks]:
    """
    Take the stacks of the ranks below a process, and of their data loaders.

    Parameters
    ----------
    pid : int or iterable of int
        What was started.
    folder : path
        Where the dumps go (made when it is not there): ``rank-3.txt``, ``rank-3-worker0.txt``, ``pid-4711.txt``, ``ps-<host>.txt``.
    deadline : float
        Seconds for all of it. What is not done by then is said in `Stacks.why`.
    dumps : path, optional
        Folder of `stacks_environment`. Only processes that registered there are sent the signal; any other it would end.
    pyspy : str, optional
        Path of py-spy; else the one beside this Python or on PATH. An empty text: do without.

    Returns
    -------
    list of Stacks
        One a process, ranks first. Nothing raises: what could not be had is said in `why`.

    Notes
    -----
    py-spy must stop the process, which one in uninterruptible sleep (D) never does, so it is not tried there. The launcher is left out when
    there are ranks: it waits for them, as it should, and would be the odd one out.
    """
    end = time.monotonic() + deadline
    place = Path(folder)
    everyone, lasting = _watched(pid)
    wanted = [one for one in everyone if one.role in ("rank", "worker")]
    if not wanted:
        pythons = {one.pid for one in everyone if one.python}
        wanted = [one for one in everyone if one.python and one.parent not in pythons] or everyone[:1]
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return [_of(one, lasting, why=f"{place}: {error.strerror or error}") for one in everyone]
    _process_list(place, everyone, lasting)
    names = _names(wanted)
    tool = pyspy if pyspy is not None else _find_pyspy()
    found: dict[int, Stacks] = {}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        jobs = {one.pid: pool.submit(_by_pyspy, one, lasting, place / names[one.pid], tool, end) for one in wanted[:_MOST]}
        for one in wanted[:_MOST]:
            found[one.pid] = jobs[one.pid].result()
    missing = [one for one in wanted[:_MOST] if not found[one.pid].how]
    found |= _by_signal(missing, found, place, names, dumps, end)
    for one in missing:
        if not found[one.pid].how:
            found[one.pid] = _by_kernel(one, found[one.pid], place / names[one.pid])
    for one in wanted[_MOST:]:
        found[one.pid] = _of(one, lasting, why=f"stacks of {_MOST} processes were taken, no more")
    return [_read(place, found[one.pid]) if one.pid in found else _of(one, lasting) for one in everyone]


def grouped(stacks: Sequence[Stacks]) -> list[str]:
    """Return one sentence for each place in which ranks are, the most frequent first: ``ranks 0-6 in a collective: all_reduce (…)``."""
    from workbench.detect.flight_groups import in_words

    places: dict[tuple[str, str, str], list[Stacks]] = {}
    for one in stacks:
        if one.role == "rank" or (one.kind and one.rank is None):
            places.setdefault((one.kind, one.where, one.frame) if one.kind else ("", one.state, one.wchan), []).append(one)
    out = []
    for (kind, where, frame), there in sorted(places.items(), key=lambda item: -len(item[1])):
        ranks = [one.rank for one in there if one.rank is not None]
        who = in_words(ranks) if ranks else "process " + ", ".join(str(one.pid) for one in there)
        if not kind:
            why = next((one.why for one in there if one.why), "no dump")
            out.append(f"{who}: no stack ({why}); state {where or 'unknown'}{f', in {frame}' if frame not in ('', '0') else ''}")
            continue
        called = f", from {frame}" if frame and frame != where else ""
        out.append(f"{who}, {_DOES.get(kind, kind)}: {where}{called}")
    return out


def _watched(pid: int | Iterable[int]) -> tuple[list[Member], dict[int, str]]:
    """The processes, and the state of each that lasted over several looks (else S, or R where it ran once)."""
    roots = [pid] if isinstance(pid, int) else list(pid)
    everyone = members(roots)
    latest = {one.pid: one for one in everyone}
    states: dict[int, list[str]] = {one.pid: [one.state] for one in everyone}
    for _ in range(_LOOKS - 1):
        time.sleep(_LOOK)
        for one in members(roots):
            if one.pid in states:
                states[one.pid].append(one.state)
                latest[one.pid] = one
    lasting = {}
    for number, seen in states.items():
        stopped = seen[-1] in ("T", "t", "Z")  # nobody is that for a moment
        lasting[number] = seen[-1] if stopped or len(set(seen)) == 1 else next((s for s in ("R", "S") if s in seen), seen[-1])
    return [latest[one.pid] for one in everyone], lasting


def _of(one: Member, lasting: Mapping[int, str], **more: str) -> Stacks:
    state = lasting.get(one.pid, one.state)
    return Stacks(one.pid, one.role, one.rank, one.local_rank, state=state, wchan=one.wchan, **more)


def _names(wanted: Sequence[Member]) -> dict[int, str]:
    names, workers, taken = {}, dict[int, int](), set[str]()
    for one in wanted:
        name = f"pid-{one.pid}.txt"
        if one.rank is not None and one.role == "rank":
            name = f"rank-{one.rank}.txt"
        elif one.rank is not None:
            number = workers[one.rank] = workers.get(one.rank, -1) + 1
            name = f"rank-{one.rank}-worker{number}.txt"
        names[one.pid] = name if name not in taken else f"pid-{one.pid}.txt"
        taken.add(name)
    return names


def _find_pyspy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def _by_pyspy(one: Member, lasting: Mapping[int, str], path: Path, tool: str, end: float) -> Stacks:
    base = _of(one, lasting)
    left = end - time.monotonic()
    if not tool:
        return replace(base, why="py-spy is not installed")
    if not one.python:
        return replace(base, why="not a Python process")
    if base.state == "D":
        return replace(base, why="in uninterruptible sleep (D): no debugger can stop it")
    if left <= 0:
        return replace(base, why="no time was left")
    try:
        done = subprocess.run(
            [tool, "dump", "--pid", str(one.pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=min(left, 20.0),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return replace(base, why="py-spy did not answer in time")
    except OSError as error:
        return replace(base, why=f"py-spy: {error.strerror or error}")
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode or "Thread " not in text:
        error_lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = error_lines[-1] if error_lines else f"exit code {done.returncode}"
        return replace(base, why=f"py-spy: {said[:200]}")
    return _written(base, path, text, "py-spy")


def _by_signal(
    missing: Sequence[Member],
    found: Mapping[int, Stacks],
    place: Path,
    names: Mapping[int, str],
    dumps: str | os.PathLike[str] | None,
    end: float,
) -> dict[int, Stacks]:
    """Ask those that registered, all at once, and wait until their answers do not grow any more."""
    if dumps is None:
        return {
            one.pid: replace(found[one.pid], why=f"{found[one.pid].why}; no dumps by signal were asked for") for one in missing
        }
    out: dict[int, Stacks] = {}
    asked: dict[int, tuple[Member, Path, int]] = {}
    for one in missing:
        answer = Path(dumps) / f"{one.pid}.dump"
        if found[one.pid].state in ("D", "T", "t"):
            out[one.pid] = replace(
                found[one.pid], why=f"{found[one.pid].why}; in state {found[one.pid].state} it answers no signal"
            )
            continue
        try:
            size = answer.stat().st_size
            # the file is from before an exec where the handler is gone: then the signal would end the process
            if not caught(one.pid, SIGNAL) or not same(one):
                raise ProcessLookupError(0, "the process has no handler for it any more")
            os.kill(one.pid, SIGNAL)
            asked[one.pid] = (one, answer, size)
        except FileNotFoundError:
            out[one.pid] = replace(found[one.pid], why=f"{found[one.pid].why}; the process registered no dump by signal")
        except OSError as error:
            out[one.pid] = replace(found[one.pid], why=f"{found[one.pid].why}; dump by signal: {error.strerror or error}")
    until = min(end, time.monotonic() + 10.0) if asked else 0.0
    texts: dict[int, str] = {}
    while len(texts) < len(asked) and time.monotonic() < max(until, 0.0):
        time.sleep(0.1)
        for number, (_, answer, size) in asked.items():
            if number in texts:
                continue
            try:
                with answer.open("rb") as file:
                    file.seek(size)
                    text = file.read().decode("utf-8", "replace")
            except OSError:
                continue
            # the thread that the signal came to is last and begins so; its outermost frame is that of a program or of a thread
            if "Thread 0x" in text or "Current thread" in text:
                time.sleep(0.2)
                texts[number] = text + _rest(answer, size + len(text.encode()))
    for number, (one, _, _) in asked.items():
        if number in texts:
            head = f"Process {number}: {one.command}\n\n"
            out[number] = _written(found[number], place / names[number], head + texts[number], "faulthandler")
        else:
            out[number] = replace(found[number], why=f"{found[number].why}; no answer to the signal in time")
    return out


def _rest(answer: Path, size: int) -> str:
    try:
        with answer.open("rb") as file:
            file.seek(size)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _by_kernel(one: Member, base: Stacks, path: Path) -> Stacks:
    """The kernel's own stack of a process in D (root alone may read it): the function that it sleeps in is what decides."""
    if base.state != "D":
        return base
    try:
        text = Path(f"/proc/{one.pid}/stack").read_text("utf-8", "replace")
    except OSError as error:
        return replace(base, why=f"{base.why}; its stack in the kernel: {error.strerror or error}")
    if not text.strip():
        return base
    return _written(base, path, f"Process {one.pid}: {one.command}\nThread {one.pid} (idle)\n{text}", "kernel")


def _written(base: Stacks, path: Path, text: str, how: str) -> Stacks:
    try:
        path.write_text(text if text.endswith("\n") else text + "\n", "utf-8")
    except OSError as error:
        return replace(base, why=f"{path}: {error.strerror or error}")
    return replace(base, how=how, file=str(path))


def _process_list(place: Path, everyone: Sequence[Member], lasting: Mapping[int, str]) -> None:
    """As ``ps -o pid,ppid,stat,wchan,args`` prints it, which is what people paste and the parser knows."""
    rows = [f"{'PID':>8} {'PPID':>8} STAT {'WCHAN':<32} COMMAND"]
    for one in everyone:
        wchan = one.wchan if one.wchan not in ("", "0") else "-"
        command = " ".join(one.command.split())[:400] or "[unknown]"
        rows.append(f"{one.pid:>8} {one.parent:>8} {lasting.get(one.pid, one.state):<4} {wchan:<32} {command}")
    try:
        (place / f"ps-{socket.gethostname().split('.')[0] or 'node'}.txt").write_text("\n".join(rows) + "\n", "utf-8")
    except OSError:
        pass  # the dumps are what matters, and the same is in what is returned


def _read(place: Path, one: Stacks) -> Stacks:
    """What the parser of triage makes of the dump."""
    if not one.file:
        return one
    from workbench.model import Line
    from workbench.parse.stacks import parse_stacks

    text = Path(one.file).read_text("utf-8", "replace")
    lines = [Line(number, row) for number, row in enumerate(text.splitlines(), 1)]
    events = parse_stacks(lines, file=Path(one.file).name, rank=one.rank).events
    if not events:
        return one
    event = events[0]
    return replace(one, kind=event.signature, where=_short(event.text), frame=_short(str(event.data.get("frame") or "")))


# File "/workspace/train.py", line 117 in reduce_stats
_FAULT_FRAME = re.compile(r'^File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')


def _short(frame: str) -> str:
    """A frame as py-spy writes it, whoever took it."""
    found = _FAULT_FRAME.match(frame.strip())
    return f"{found['name']} ({found['file']}:{found['line']})" if found else frame.strip()
