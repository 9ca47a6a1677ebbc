"""
Turn the output files that a Slurm job named into logs of an incident folder: their beginning and end, read where they are.

The path of such a file is the user's choice, and the reader is often an operator with more rights. So a file counts only when it is a
regular file that belongs to the job's user. It lies on shared storage, which may hang: a process of its own reads it and can be left.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import PurePosixPath

from workbench.sources.command import run
from workbench.sources.contract import Answer, Deadline, Folder, FolderFull
from workbench.sources.slurm.jobs import Allocation

__all__ = ["DEFAULT", "HEAD", "TAIL", "collect_logs", "directives", "expanded", "log_paths", "submitted"]

HEAD = 8 << 20  # bytes of a log's beginning: launch, placement, versions
TAIL = 24 << 20  # bytes of its end: the failure
DEFAULT = "sbatch's default; the script may have named another"
_OPTION = re.compile(r"(?:--(output|error)(?:=(.+))?|-([oe])(.+)?)$")
_MOST = 64  # files of one job: arrays have thousands
_READER = """
import os, stat, sys
path, uid, head, tail = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
try:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    state = os.fstat(file)
except OSError as error:
    print(error.strerror, file=sys.stderr); sys.exit(3 if isinstance(error, FileNotFoundError) else 4)
if not stat.S_ISREG(state.st_mode):
    print("it is no regular file", file=sys.stderr); sys.exit(5)
if uid >= 0 and state.st_uid != uid:
    print(f"it belongs to uid {state.st_uid}, the job to uid {uid}", file=sys.stderr); sys.exit(5)
def copy(left):
    while left > 0:
        block = os.read(file, min(left, 1 << 20))
        if not block: break
        sys.stdout.buffer.write(block); left -= len(block)
if state.st_size <= head + tail:
    copy(head + tail)
else:
    copy(head)
    gap = state.st_size - head - tail
    sys.stdout.buffer.write(b"\\n[workbench: %d bytes in the middle of this log were left out]\\n" % gap)
    os.lseek(file, state.st_size - tail, os.SEEK_SET); copy(tail)
    print(f"left out {gap}", file=sys.stderr)
"""


def expanded(pattern: str, row: Allocation) -> str | None:
    """
    Return the path that sbatch makes of a file name pattern, or None when it depends on something that accounts do not keep.

    https://slurm.schedmd.com/sbatch.html#SECTION_%3CB%3Efilename-pattern%3C/B%3E
    """
    base = row.id.split("+")[0].split("_")[0]
    values = {
        "A": base if row.task else row.raw,
        "a": row.task or "4294967294",  # what Slurm writes where there is no task
        "j": row.raw,
        "J": row.raw,
        "x": row.name,
        "u": row.user,
        "N": row.nodes[0].split(".")[0] if row.nodes else None,
        "n": "0",
        "t": "0",
        "s": "batch",
        "%": "%",
    }
    unknown = False

    def one(found: re.Match[str]) -> str:
        nonlocal unknown
        value = values.get(found[2])
        unknown = unknown or value is None
        return (value or "").rjust(int(found[1] or 0), "0") if found[2] != "%" else "%"

    if "\\" in pattern:  # a backslash switches patterns off
        return pattern.replace("\\", "")
    path = re.sub(r"%(\d{0,2})([A-Za-z%])", one, pattern)
    return None if unknown else path


def log_paths(row: Allocation) -> tuple[list[str], str]:
    """Return the files that a job's batch script writes to, absolute, and how they are known."""
    out, err, known = row.stdout, row.stderr, "Slurm names them"
    if not out and row.submit_line:
        out, err = submitted(row.submit_line)
        known = "the submit line names them" if out else ""
    if not out and row.workdir:
        out, known = "slurm-%A_%a.out" if row.task else "slurm-%j.out", DEFAULT
    paths: dict[str, None] = {}
    for pattern in (out, err or out):
        path = expanded(pattern, row) if pattern else None
        if path and path != "/dev/null":
            paths.setdefault(path if path.startswith("/") else str(PurePosixPath(row.workdir or "/") / path))
    return list(paths), known


def submitted(line: str) -> tuple[str, str]:
    """Return the patterns of -o and -e in a command line such as ``sbatch -o logs/%j.out --error=logs/%j.err train.sh``."""
    try:
        words = shlex.split(line)
    except ValueError:
        return "", ""
    found = {"o": "", "e": ""}
    for at, word in enumerate(words[1:], 1):
        named = _OPTION.match(word)
        key = (named[1] or named[3])[0] if named else ""
        if named and not found[key]:  # what follows the script is the script's own
            found[key] = named[2] or named[4] or (words[at + 1] if at + 1 < len(words) else "")
    return found["o"], found["e"]


def directives(script: str) -> tuple[str, str]:
    """Return the patterns of the ``#SBATCH --output`` and ``--error`` lines of a batch script."""
    lines = re.findall(r"(?m)^#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", script[: 1 << 20])
    return submitted(" ".join(["sbatch", *lines]))


def _name(path: str, row: Allocation) -> str:
    """The name in the folder: the number of the job in front, unless the file's own name has it; nothing that leads out."""
    last = re.sub(r"[^\w.+-]", "_", PurePosixPath(path).name).lstrip(".") or "output"
    if row.raw not in last and row.id not in last:
        last = f"{re.sub(r'[^0-9_+]', '', row.id)}-{last}"
    return f"logs/{last}" if PurePosixPath(last).suffix in (".out", ".err", ".log", ".txt") else f"logs/{last}.log"


def collect_logs(rows: Sequence[Allocation], folder: Folder, deadline: Deadline, *, away: str = "") -> list[Answer]:
    """
    Write what the jobs printed, as far as the files can be read from here; one `Answer` a file.

    Parameters
    ----------
    rows : sequence of Allocation
        Tries of one task share their file.
    away : str
        The host in front of the Slurm commands: the files may be there and not here.
    """
    answers: list[Answer] = []
    wanted: dict[str, tuple[Allocation, str]] = {}
    for row in rows:
        paths, known = log_paths(row)
        for path in paths:
            wanted[path] = (row, known)
        if not paths:
            answers.append(
                Answer("job", "missing", f"job {row.id}: Slurm does not say where its output is", asked=f"output of {row.id}")
            )
    for path, (row, known) in list(wanted.items())[:_MOST]:
        answers.append(_collected(path, row, known, folder, deadline, away))
    if len(wanted) > _MOST:
        answers.append(
            Answer(
                "job",
                "partial",
                f"{len(wanted) - _MOST} of {len(wanted)} output files were left out",
                "ask for one task: --job NUMBER_TASK",
            )
        )
    return answers


def _uid(row: Allocation) -> int | None:
    if row.uid is not None:
        return row.uid
    try:
        return pwd.getpwnam(row.user).pw_uid
    except (KeyError, ValueError):
        return None


def _collected(path: str, row: Allocation, known: str, folder: Folder, deadline: Deadline, away: str) -> Answer:
    name = _name(path, row)
    if folder.has(name):
        return Answer("job", "ok", f"{path} was collected before", asked=path, file=name)
    if deadline.over:
        return Answer("job", "failed", f"{path} was not read: the deadline is over", "give it more time: --deadline 60s", path)
    uid = _uid(row)
    if uid is None and os.geteuid() == 0:
        return Answer(
            "job", "failed", f"{path}: whose job it was is not known", "only files of the job's own user are read", path
        )
    ran = run(
        [sys.executable, "-I", "-S", "-c", _READER, path, str(-1 if uid is None else uid), str(HEAD), str(TAIL)],
        seconds=deadline.left(),
        limit=HEAD + TAIL + 4096,
    )
    why = ran.said
    if ran.code == 3:
        hint = f"copy it from {away} into the folder's logs/" if away else "read it where the job's storage is mounted"
        return Answer("job", "missing", f"{path}: {why or 'not found'} ({known})", hint, path, seconds=ran.seconds)
    if ran.code in (4, 5):
        hint = "ask the job's user for it" if ran.code == 4 else "only files of the job's own user are read"
        return Answer("job", "failed", f"{path}: {why}", hint, path, seconds=ran.seconds)
    if not ran.ok:
        return Answer(
            "job", "failed", f"{path}: reading it {ran.sentence}", "is its file server alive?", path, seconds=ran.seconds
        )
    if not ran.out:
        return Answer("job", "missing", f"{path} is empty", asked=path, seconds=ran.seconds)
    try:
        folder.write(name, ran.out)
    except (FolderFull, OSError) as error:
        return Answer("job", "failed", f"{path} was not written: {error}", "allow more with --limit", path, seconds=ran.seconds)
    cut = re.search(r"left out (\d+)$", why)
    status = "partial" if cut else "ok"
    detail = f"{path}, {len(ran.out):,} bytes" + (f"; {int(cut[1]):,} bytes in its middle were left out" if cut else "")
    return Answer("job", status, detail, asked=path, file=name, rows=ran.out.count(b"\n"), seconds=ran.seconds)
