"""
Turn stack dumps and process lists (py-spy, faulthandler, gdb, /proc, ps) into events that say what each process was waiting in.

One event is made for each process, from its main thread: the innermost frame that decides is looked for, from the inside out.
Waiting in a collective is a symptom, since such a rank waits for another; a rank that waits anywhere else is what the others
wait for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from workbench.model import Event, Line, Parsed
from workbench.parse.flight_recorder import rank_of_file
from workbench.parse.prefix import Prefix, context, split_prefix
from workbench.parse.process_list import looks_like_process_list, parse_process_list, storage_wait

__all__ = ["parse_stacks"]

# a line of a dump, with or without what launchers put in front:  3:   File "train.py", line 3 in f   |   [rank3]: Thread 0x…
_GATE = re.compile(r'File "|[Tt]hread |Process |PID|pid|Fatal Python|\(\S+\)\s*$|#\d|\[<')
# Process 32332: /opt/venv/bin/python -u train.py
_PROCESS = re.compile(r"^(?:Process|PID:?|== ?pid:?) (?P<pid>\d+)(?:: (?P<command>.*))?")
# Thread 32332 (idle): "MainThread"      Thread 0x7F2A (active+gil)
_PYSPY_THREAD = re.compile(r'^Thread (?P<id>0x[0-9A-Fa-f]+|\d+) \((?P<state>[a-z+]+)\)(?:: "(?P<name>[^"]*)")?')
# Current thread 0x00007f12 (most recent call first):      Thread 0x00007f13 [data-loader] (most recent call first):
_FAULT_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\)"
)
# Thread 12 (Thread 0x7f3c (LWP 1234) "python"):
_GDB_THREAD = re.compile(r"^Thread (?P<no>\d+) \((?:Thread 0x[0-9a-f]+ )?\(?LWP (?P<lwp>\d+)\)?(?: \"(?P<name>[^\"]*)\")?")
# Fatal Python error: Segmentation fault
_FATAL = re.compile(r"Fatal Python error: (?P<what>.+)")
#     all_reduce (torch/distributed/distributed_c10d.py:3252)      cuStreamSynchronize (libcuda.so.1)
_PYSPY_FRAME = re.compile(r"^\s{3,}(?P<name>\S.*?) \((?P<file>[^():]+?)(?::(?P<line>\d+))?\)\s*$")
#   File "/workspace/train.py", line 117 in reduce_stats
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+?)\s*$')
# #3  0x00007f12 in pthread_cond_wait () from /lib/x86_64-linux-gnu/libc.so.6
_GDB_FRAME = re.compile(
    r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<name>[^\s(][^(]*?) ?\(.*?\)(?: (?:from|at) (?P<file>[^:\s]+)(?::(?P<line>\d+))?)?\s*$"
)
# [<0>] nfs4_wait_bit_killable+0x23/0xa0 [nfsv4]
_KERNEL_FRAME = re.compile(r"^\s*\[<[0-9a-fx]+>\] (?P<name>[\w.]+)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?(?: \[(?P<file>\w+)\])?\s*$")
# python train.py --local-rank=3
_LOCAL_RANK = re.compile(r"--local[-_]rank[= ](\d+)")
# rank-1-worker0.txt
_WORKER_FILE = re.compile(r"worker[-_]?(\d+)", re.IGNORECASE)

_LONGEST = 4000  # a frame is a short line; a longer one is not searched further
_COLLECTIVE_NAMES = re.compile(
    r"^(?:_?(?:all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|monitored_barrier|all_?to_?all|batch_isend_irecv|reduce"
    r"|gather|scatter|send|recv|isend|irecv)(?:_\w+)?|(?:Work|_?Future)\.wait|_wait_for_\w+|wait_tensor|synchronize_gradients)$"
)
_COLLECTIVE_FILES = (
    "torch/distributed/distributed_c10d", "torch/distributed/_functional_collectives", "torch/distributed/fsdp/",
    "torch/distributed/_composable", "torch/distributed/algorithms", "torch/distributed/nn/", "torch/nn/parallel/distributed",
    "deepspeed/comm/", "megatron/core/pipeline_parallel", "megatron/core/tensor_parallel/mappings", "horovod/",
    "torch/autograd/graph.py",
)  # fmt: skip
_FILE_LOCKS = (
    "torch/utils/file_baton",
    "filelock/",
    "datasets/utils/filelock",
    "fasteners/",
    "portalocker/",
    "oslo_concurrency/",
)
_RENDEZVOUS_FILES = ("torch/distributed/rendezvous", "torch/distributed/elastic/rendezvous", "torch/distributed/c10d_store")
_NATIVE_COLLECTIVE = re.compile(
    r"^(?:nccl[A-Z]\w*|c10d::|gloo::|ProcessGroup(?:NCCL|Gloo|MPI)|MPI_\w+|MPIDI?_|ompi_|opal_|ucp_|ucs_)"
)
_NATIVE_CUDA = re.compile(r"^cu(?:da)?(?:Stream|Event|Device|Ctx)\w*Sync\w*|^cu(?:da)?Memcpy|^cu(?:da)?(?:Free|Malloc)")
_NATIVE_LOCK = re.compile(
    r"^(?:_?_?pthread_(?:cond|mutex|join|rwlock)\w*|_*futex\w*|do_futex|__lll_lock_wait\w*|sem_(?:timed)?wait|__new_sem_wait\w*"
    r"|PyThread_acquire_lock\w*|lock_PyThread_acquire_lock|_PySemaphore_Wait|take_gil)"
)
_STORAGE_FRAMES = re.compile(r"^(?:os\.)?(?:fsync|fdatasync|sync|_?_?libc_(?:write|fsync)|__GI___(?:fsync|write))$")
_STORAGE_NAMES = re.compile(
    r"(?:^|[._])(?:save|load|write|dump|fsync|flush)?_?(?:ckpt|checkpoint)s?(?:$|[._])|^(?:_?save|_?write|fsync)$", re.IGNORECASE
)
_STANDARD = re.compile(
    r"^(?:threading|queue|selectors|socket|ssl|subprocess|contextlib|functools|runpy|concurrent/|multiprocessing/|asyncio/|importlib/|<frozen"
    r"|http/|urllib/|pickle|json/|os|tempfile|shutil|logging/|_pytest/|codecs|site)(?:\.py)?"
)
_WAITING_STDLIB = (
    "threading",
    "queue",
    "selectors",
    "multiprocessing/",
    "concurrent/",
    "subprocess",
    "socket",
    "ssl",
    "asyncio/",
)


@dataclass(slots=True)
class _Frame:
    name: str
    file: str
    text: str
    line: int
    native: bool = False

    @property
    def place(self) -> str:
        """The path as py-spy shortens it: from the package on, without the way to site-packages or the standard library."""
        for mark in ("/site-packages/", "/dist-packages/"):
            if mark in self.file:
                return self.file.split(mark, 1)[1]
        return re.sub(r"^.*/lib/python3(?:\.\d+)?/", "", self.file)

    @property
    def user(self) -> bool:
        """Outside PyTorch, the standard library and native code: what the job's owner can change."""
        library = "-packages/" in self.file or self.place.startswith(("torch/", "deepspeed/", "megatron/core/", "numpy/", "ray/"))
        standard = "/lib/python3" in self.file or bool(_STANDARD.match(self.place))
        return not (self.native or library or standard or self.file.startswith("<"))


@dataclass(slots=True)
class _Thread:
    name: str = ""
    state: str = ""
    current: bool = False
    number: int | None = None
    frames: list[_Frame] = field(default_factory=list)


@dataclass(slots=True)
class _Process:
    pid: int | None = None
    command: str = ""
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    fatal: str = ""
    threads: list[_Thread] = field(default_factory=list)


def parse_stacks(lines: Sequence[Line], *, file: str, rank: int | None = None, headed: bool = False) -> Parsed:
    """
    Read a stack dump or a process list.

    Parameters
    ----------
    lines : sequence of Line
        The document.
    file : str
        Its name; `rank-3.txt` and `rank-1-worker0.txt` give the rank when nothing else does, `ps-node-a.txt` the node.
    rank : int, optional
        The global rank, when the caller knows it.
    headed : bool
        Leave out frames above which no thread was named: in a log that begins inside a dump they lack the innermost ones, which
        alone say what a thread waits for.

    Returns
    -------
    Parsed
        Events `stack-*` (one a process) and `ps-*` (one a process in a state that matters), each with `data["frame"]` and
        `text` the line of the frame that decides; `facts["stacks"]` lists what each process was in.
    """
    if looks_like_process_list(lines):
        return parse_process_list(lines, file=file)
    out = Parsed()
    rank = rank if rank is not None else rank_of_file(file)
    worker = _WORKER_FILE.search(PurePosixPath(file).name)
    summary = []
    for process in _processes(lines, headed):
        event = _event(process, file)
        if event is None:
            continue
        event.rank = process.rank if process.rank is not None else rank
        local = _LOCAL_RANK.search(process.command)
        event.local_rank = int(local.group(1)) if local else process.local_rank
        event.node = event.node or process.node
        event.pid = process.pid
        if worker or event.data.get("worker"):
            event.data["worker"] = int(worker.group(1)) if worker else True
        summary.append({"rank": event.rank, "pid": event.pid, "in": event.signature, "frame": event.data.get("frame")})
        out.events.append(event)
    out.facts["stacks"] = summary
    return out


def _processes(lines: Sequence[Line], headed: bool) -> list[_Process]:
    """The processes of a document: a py-spy header, a change of the rank prefix, or a second main thread starts a new one."""
    found: dict[str, _Process] = {}
    done: list[_Process] = []
    ctx = context(line.text[:_LONGEST] for line in lines[:4000])

    def close(key: str) -> None:
        process = found.pop(key, None)
        if process and any(t.frames for t in process.threads):
            done.append(process)

    for line in lines:
        text = line.text[:_LONGEST]
        if not _GATE.search(text):
            continue
        # a frame's own indent is kept: only what launchers and collectors wrote before it is taken off
        head = split_prefix(text, ctx) if not text.startswith("  ") or ctx.srun else Prefix(rest=text)
        text, key = head.rest, head.stream
        header = _PROCESS.match(text)
        fatal = _FATAL.search(text)
        if header or fatal:
            close(key)
        process = found.setdefault(key, _Process(rank=head.rank, local_rank=head.local_rank, node=head.node or head.pod))
        if header:
            process.pid, process.command = int(header.group("pid")), header.group("command") or ""
        elif fatal:
            process.fatal = fatal.group("what").strip()
        else:
            thread = _thread(text.lstrip())  # a launcher's prefix leaves a blank
            if thread:
                process.threads.append(thread)
                continue
            frame = _frame(text, line)
            if frame:
                if not process.threads:
                    if headed and not process.fatal:
                        continue
                    process.threads.append(_Thread())
                process.threads[-1].frames.append(frame)
    for key in list(found):
        close(key)
    return done


def _thread(text: str) -> _Thread | None:
    match = _PYSPY_THREAD.match(text)
    if match:
        return _Thread(match.group("name") or "", match.group("state"))
    match = _FAULT_THREAD.match(text)
    if match:
        return _Thread(match.group("name") or "", current=match.group("current").startswith("C"))
    match = _GDB_THREAD.match(text)
    return _Thread(match.group("name") or "", number=int(match.group("no"))) if match else None


def _frame(text: str, line: Line) -> _Frame | None:
    match = _FAULT_FRAME.match(text)
    if match:
        return _Frame(match.group("name"), match.group("file"), line.text, line.no)
    match = _KERNEL_FRAME.match(text)
    if match:
        return _Frame(match.group("name"), match.group("file") or "", line.text, line.no, native=True)
    match = _GDB_FRAME.match(text) or _PYSPY_FRAME.match(text)
    if match and (
        match.group("line") or " " not in (match.group("file") or "")
    ):  # "… on node-a (NVIDIA H100 80GB HBM3)" is prose
        path = match.group("file") or ""
        return _Frame(match.group("name"), path, line.text, line.no, native=not path.endswith((".py", ".pyx", ">")))
    return None


def _main(process: _Process) -> _Thread:
    """
    The main thread.

    py-spy names it; faulthandler lists it last; gdb numbers it 1. A crash is about the current thread instead.
    """
    threads = [t for t in process.threads if t.frames]
    if process.fatal:
        return next((t for t in threads if t.current), threads[0])
    named = [t for t in threads if t.name == "MainThread"] or [t for t in threads if t.number == 1]
    bottom = [t for t in threads if t.frames[-1].name == "<module>"]
    return (named or bottom or threads[-1:])[0]


def _event(process: _Process, file: str) -> Event | None:
    thread = _main(process)
    user = next((f for f in thread.frames if f.user), None)
    if process.fatal:
        frame = user or thread.frames[0]
        return _made("stack-fatal-error", frame, user, thread, file, {"fatal": process.fatal})
    signature, frame, via = _waits_in(thread)
    worker = any(f.name.endswith("_worker_loop") for f in thread.frames)
    if worker and signature == "stack-dataloader-wait":
        return None  # an idle loader process that waits for its next index: as it should be
    data: dict[str, object] = {"via": via}
    if worker:
        data["worker"] = True
    # A helper thread that stands in the job's own code, beside a main thread that does: the two may hold each other's lock.
    others = [
        f"{t.name}: {t.frames[0].text.strip()}" for t in process.threads if t is not thread and t.frames and t.frames[0].user
    ]
    if others:
        data["other_threads"] = others[:8]
        if signature in ("stack-user-wait", "stack-lock-wait"):
            signature = "stack-lock-wait"
    return _made(signature, frame, user, thread, file, data)


def _made(signature: str, frame: _Frame, user: _Frame | None, thread: _Thread, file: str, data: dict[str, object]) -> Event:
    event = Event(signature, "stacks", text=frame.text[:2000], file=file, line=frame.line)
    shown = user or frame
    event.data = {"frame": shown.text.strip(), "frame_line": shown.line, "state": thread.state, **data}
    return event


def _waits_in(thread: _Thread) -> tuple[str, _Frame, str]:
    """Signature, the frame that decides, and what it was seen in; the innermost frame that decides wins."""
    lock: _Frame | None = None
    idle = "active" not in thread.state
    for at, frame in enumerate(thread.frames):
        place, last = frame.place, frame.name.rsplit(".", 1)[-1]
        if frame.native:
            if storage_wait(frame.name):
                return "stack-storage-wait", frame, frame.name
            if _NATIVE_COLLECTIVE.match(frame.name):
                return "stack-in-collective", frame, frame.name
            if _NATIVE_CUDA.match(frame.name):
                return "stack-cuda-sync", frame, frame.name
            if _STORAGE_FRAMES.match(frame.name):
                return "stack-storage-wait", frame, frame.name
            if _NATIVE_LOCK.match(frame.name):
                lock = lock or frame
            continue
        if place.startswith(_FILE_LOCKS):  # whoever holds the file is another process, or one that is gone
            return "stack-lock-wait", frame, "a lock file"
        if place.startswith(_RENDEZVOUS_FILES):
            return "stack-in-collective", frame, "rendezvous"
        if any(part in place for part in _COLLECTIVE_FILES) and "elastic/" not in place:
            return "stack-in-collective", frame, "backward" if "autograd" in place else last
        if "torch/distributed/" in place and _COLLECTIVE_NAMES.match(last):
            return "stack-in-collective", frame, last
        if "torch/cuda/" in place and "synchronize" in last:
            return "stack-cuda-sync", frame, last
        if "torch/utils/data/" in place:
            return "stack-dataloader-wait", frame, last
        if "torch/serialization" in place or "torch/distributed/checkpoint" in place or _STORAGE_FRAMES.match(frame.name):
            return "stack-storage-wait", frame, last
        if frame.user:
            if lock is None and idle and at == 0 and _STORAGE_NAMES.search(frame.name):
                return "stack-storage-wait", frame, last
            if lock is not None:
                return "stack-lock-wait", frame, lock.name
            return ("stack-user-wait" if idle and at == 0 else "stack-user-code"), frame, "idle" if idle else "active"
        if place.startswith(_WAITING_STDLIB):
            lock = lock or frame
    if lock is not None:
        return "stack-lock-wait", lock, lock.name
    return ("stack-user-wait" if idle else "stack-user-code"), thread.frames[0], "unknown"
