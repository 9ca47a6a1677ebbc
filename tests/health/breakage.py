"""Turn a healthy node into one whose programs, files or NVIDIA library are broken in one way, and record what the readings ask for."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from tests.health.healthy_node import healthy, tool
from workbench.sources import command
from workbench.sources.node.world import World

__all__ = ["FORMS", "UNDYING", "Asked", "Node", "left_behind", "recording", "without_rights"]

_GARBAGE = bytes(range(256)) * 8
_HALF = b'{"version": 3, "devices": [{"name": "0", "state": "acti'
_FOREIGN = "Gerät 0: läuft, 12,5 °C, Größe 3,2 GiB\nInsgesamt 8 Geräte, 0 Fehler\n".encode("latin-1")
_FLOOD = 100 << 20
_PYTHON = os.path.basename(sys.executable)
_HANGS = "trap '' TERM; /bin/sleep 300 & while :; do /bin/sleep 300; done"
# the form in which no signal reaches what was started, SIGKILL included: what state D looks like from outside. That such a process truly
# is left behind is shown by one that is frozen (tests/live/test_command_live.py)
UNDYING = "hang in the kernel"
# read by path and not through the world: the places of the kernel log
_LOGS = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog", "/dev/kmsg")

# form → what the program does (a shell script), what stands at a file's place, and the rules of libnvidia-ml
FORMS: dict[str, tuple[str, str]] = {
    "missing": ("", ""),
    "not-executable": ("", ""),
    "exit 1": ("echo 'it is broken' >&2; exit 1", "node nvmlInit_v2 code 999\n"),
    "empty": ("exit 0", "node nvmlInit_v2 quit\n"),
    "garbage": ("exec /bin/cat {root}/garbage.out", ""),
    "half": ("{half}", "4 nvmlDeviceGetEccMode quit\n"),
    "other locale": ("exec /bin/cat {root}/foreign.out", "node nvmlDeviceGetCount_v2 code 999\n"),
    "hang": (_HANGS, "node nvmlInit_v2 hang\n"),
    UNDYING: (_HANGS, "node nvmlInit_v2 hang\n"),
    "killed": ("echo 'so far so good'; kill -9 $$", "3 nvmlDeviceGetUUID crash\n"),
    "100 MB": ("exec /usr/bin/head -c {flood} /dev/zero", "0 nvmlDeviceGetUUID print 100\n"),
    "permission denied": ("echo \"$0: Permission denied\" >&2; exit 1", "node nvmlInit_v2 code 4\n"),
}  # fmt: skip


@dataclass
class Asked:
    """Names of programs, files and folders that readings asked for, and programs that were looked for outside of the node."""

    programs: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    escaped: list[str] = field(default_factory=list)
    undying: set[int] | None = None  # leaders of the groups that no signal reaches; None when signals do

    def add(self, other: Asked) -> bool:
        """Take what another has; return whether any of it was new."""
        before = self.size
        self.programs |= other.programs
        self.files |= other.files
        self.folders |= other.folders
        self.escaped += other.escaped
        return self.size > before

    @property
    def size(self) -> int:
        return len(self.programs) + len(self.files) + len(self.folders)


class Recorded(World):
    """A world that keeps the names it is asked for."""

    asked: Asked

    def path(self, name: str) -> Path:
        self.asked.files.add(name)
        return super().path(name)

    def names(self, name: str) -> list[str]:
        self.asked.folders.add(name)
        return super().names(name)


_NODES: dict[str, Asked] = {}  # folder of programs → who records what is run from it
_ESCAPED: list[str] = []


@contextmanager
def recording() -> Any:
    """
    Record every program that is started; one named by an absolute path is looked up on the node like the others.

    What is started on a node that is broken by `UNDYING` gets no signal.
    """
    real, real_signal = command._start, command._signal_group

    def start(argv: Any, env: Any, cwd: Any, stdin: Any, found: Any) -> None:
        asked = _NODES.get(str(env.get("PATH", "")))
        if asked is None:  # of no node of ours: it would have read the machine that runs the tests
            _ESCAPED.append(argv[0])
            found.ending, found.about = "missing", argv[0]
            found.done.set()
            return
        name = os.path.basename(argv[0])
        asked.programs.add(name)
        real([name, *argv[1:]], env, cwd, stdin, found)
        if asked.undying is not None and found.process is not None:
            asked.undying.add(found.process.pid)

    def signal_group(process: Any, number: int) -> None:
        if not any(process.pid in (asked.undying or ()) for asked in list(_NODES.values())):
            real_signal(process, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_start", start)
        patch.setattr(command, "_signal_group", signal_group)
        _ESCAPED.clear()
        yield _ESCAPED


class Node:
    """
    A node below a folder, healthy until something of it is broken.

    `world` is where to look; `asked` what was asked for so far; `token` stands in the environment of every process that was started.
    """

    def __init__(self, root: Path) -> None:
        plain = healthy(root)
        self.root, self.asked, self.token = root, Asked(), uuid4().hex
        self.bin = root / "bin"
        tool(self.bin, _PYTHON, f'exec {sys.executable} "$@"')
        (root / "garbage.out").write_bytes(_GARBAGE)
        (root / "foreign.out").write_bytes(_FOREIGN)
        (root / "half.out").write_bytes(_HALF)
        self.env = {**plain.env, "WORKBENCH_TEST_RUN": self.token}
        self.world = Recorded(plain.node, plain.root, self.env, plain.clock, plain.settings)
        object.__setattr__(self.world, "asked", self.asked)
        _NODES[str(self.bin)] = self.asked

    # ---- breaking

    def everything(self, form: str, known: Asked, *, reader_too: bool) -> None:
        """Break all that is there, and all that is known to be asked for whether it is there or not."""
        self.programs(form, known.programs | {path.name for path in self.bin.iterdir()} - (set() if reader_too else {_PYTHON}))
        if not reader_too:
            tool(self.bin, _PYTHON, f'exec {sys.executable} "$@"')
        self.library(form)
        there = {f"/{path.relative_to(self.root)}" for path in self.root.rglob("*") if self._is_evidence(path)}
        self.files(form, there | known.files | set(_LOGS), known.folders)

    def _is_evidence(self, path: Path) -> bool:
        return (
            path.is_file()
            and not path.is_symlink()
            and path.suffix not in (".out", ".healthy")
            and path.parent not in (self.bin, self.root / "lib")
        )

    def programs(self, form: str, names: Iterable[str]) -> None:
        """Put every one of these programs on the PATH in a broken form."""
        for name in names:
            path = self.bin / name
            whole = self.root / f"{name}.healthy"
            if path.exists():
                path.replace(whole)
            if form == "missing":
                continue
            script = FORMS[form][0].format(root=self.root, flood=_FLOOD, half=self._half(whole))
            tool(self.bin, name, script, 0o644 if form == "not-executable" else 0o755)

    def _half(self, whole: Path) -> str:
        if not whole.exists():
            return f"exec /bin/cat {self.root}/half.out"
        out = f"{self.root}/{whole.name}.$$"
        return f'{whole} "$@" >{out}; exec /usr/bin/head -c $(( $(/usr/bin/stat -c %s {out}) / 2 )) {out}'

    def library(self, form: str) -> None:
        """Give libnvidia-ml the same trouble."""
        folder = self.root / "lib"
        folder.mkdir()
        place = folder / "libnvidia-ml.so.1"
        if form == "missing":
            place.write_bytes(b"")  # were there none at all, the machine's own would be found
        elif form == "garbage":
            place.write_bytes(_GARBAGE)
        elif form == "not-executable":
            place.mkdir()
        else:
            (folder / "rules.txt").write_text(FORMS[form][1])
            self.env["FAKE_NVML_FILE"] = str(folder / "rules.txt")
            return
        self.env["LD_LIBRARY_PATH"] = str(folder)

    def files(self, form: str, names: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Put something else at the place of each file; folders are made where there are none, so that what is in them is asked for."""
        folders = set(folders)
        if form != "missing":
            for name in sorted(folders):
                self._make(self.root / name.lstrip("/"))
        for name in sorted(set(names) - folders, reverse=True):  # what lies in a folder that is a file, too, before it
            place = self.root / name.lstrip("/")
            if place.is_dir():  # a folder that is asked for by its name: what is in it is broken
                continue
            old = place.read_bytes() if place.is_file() and form == "half" else b""
            if form != "missing":
                self._make(place.parent)
            _remove(place)
            if place.parent.is_dir():
                _put(place, form, old)
        if form == "missing":
            for name in sorted(folders, reverse=True):
                shutil.rmtree(self.root / name.lstrip("/"), ignore_errors=True)
        if form == "permission denied":
            for name in folders:
                (self.root / name.lstrip("/")).chmod(0)

    def _make(self, folder: Path) -> None:
        for place in (*reversed(folder.relative_to(self.root).parents), folder.relative_to(self.root)):
            if not (self.root / place).is_dir():
                _remove(self.root / place)
                (self.root / place).mkdir()

    def mend(self) -> None:
        """Let what hangs go on or end, and make all of it removable."""
        for leader in self.asked.undying or ():
            try:
                os.killpg(leader, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for folder, folders, files in os.walk(self.root):
            for name in folders:
                if not os.path.islink(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name), 0o755)
            for name in files:
                place = Path(folder, name)
                if place.is_fifo():
                    try:
                        os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK))
                    except OSError:  # nobody reads it
                        pass
        _NODES.pop(str(self.bin), None)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _torn(old: bytes) -> bytes:
    """The begin of the first line, without its last value: half of a file of many lines could still say all that is asked."""
    first = old.split(b"\n")[0]
    return first[: min(len(first) // 2, 8)] or b"\n" * bool(old)


def _put(place: Path, form: str, old: bytes) -> None:
    if form == "not-executable":
        place.mkdir()
    elif form == "exit 1":
        place.symlink_to(place)  # an error of the file system that is neither "there is none" nor "you may not"
    elif form in ("hang", UNDYING):
        os.mkfifo(place)
    elif form == "100 MB":
        with place.open("wb") as stream:
            stream.truncate(_FLOOD)
    elif form in ("garbage", "half", "other locale", "empty"):
        place.write_bytes({"garbage": _GARBAGE, "half": _torn(old) or _HALF, "other locale": _FOREIGN, "empty": b""}[form])
    elif form == "permission denied":
        place.write_bytes(old)
        place.chmod(0)
    elif form == "killed":
        place.symlink_to(place.with_name("nowhere"))


T = TypeVar("T")


def without_rights(work: Callable[[], T]) -> T:
    """Run something in a thread that is an ordinary user to files: also root's, its own threads' and its children's reads can be refused."""
    out: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            if os.geteuid() == 0:
                _drop((1, 2))  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; rights are a thread's own
            out.append(work())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return out[0]


def _drop(rights: Iterable[int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    sets = (ctypes.c_uint32 * 6)()
    for right in rights:
        assert libc.prctl(24, right, 0, 0, 0) == 0, "PR_CAPBSET_DROP"
    assert libc.capget(head, sets) == 0
    for at in range(3):
        for right in rights:
            sets[at] &= ~(1 << right)
    assert libc.capset(head, sets) == 0


def left_behind(token: str, seconds: float = 3.0) -> list[str]:
    """Return the command lines of processes of a run that are still there after a while."""
    until = time.monotonic() + seconds
    while (found := _alive(token)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _alive(token: str) -> list[str]:
    needle = f"WORKBENCH_TEST_RUN={token}".encode()
    out = []
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                if needle in Path(f"/proc/{pid}/environ").read_bytes():
                    out.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:  # it ended meanwhile
                continue
    return out
