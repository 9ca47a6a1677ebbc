"""Turn what a job log has said so far into one state, to which events are added, repeats counted and long lines cut."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from workbench.catalog import Signature
from workbench.model import Event, Gpu, Parsed, Placement
from workbench.parse import ids
from workbench.parse.activity import Tally
from workbench.parse.job_blocks import Blocks
from workbench.parse.job_launcher import Summary
from workbench.parse.job_quoted import Quoted
from workbench.parse.job_signatures import Matcher
from workbench.parse.learned import Learned
from workbench.parse.prefix import Context, Prefix, split_prefix
from workbench.parse.traceback import Raised, Tracebacks

__all__ = ["MAX_EVENTS", "SOFT", "JobState", "RankState", "Uttered", "add", "cut", "details", "remember"]

MAX_EVENTS = 20_000  # per document; what is more is counted, not kept
SOFT = frozenset({"python-final-line", "python-traceback", "py-builtin-exception"})  # rows that only say "an exception"
_TEXT = 2_000  # characters of a line that an event keeps
_SOURCES = {"torchelastic": "launcher", "mpi": "launcher", "slurm": "slurm"}
_WORK = re.compile(
    r"Work\w*\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel_in>\d+))?(?:, NumelOut=(?P<numel_out>\d+))?"
    r"(?:, Timeout\(ms\)=(?P<timeout_ms>\d+))?\)?(?: ran for (?P<ran_ms>\d+) milliseconds)?"
)
# mpirun noticed that process rank 1 with PID 41233 on node node-b exited on signal 6 | srun: error: node-b: task 3: Killed
_WHO = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<node>\S+) (?:exit|call)"
    r"|first noticed rank (?P<rank3>\d+)\)"
    r"|srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,\-]+):"
    r"|\b[Rr]ank (?P<rank2>\d+) (?:\(PID (?P<pid2>\d+)\) )?(?:crashed|exited|died|failed)|[Ww]orker \S+ \(?pid[ =](?P<pid3>\d+)\)? died"
)
# … detected by watchdog at work: 763028, last enqueued NCCL work: 763030, last completed NCCL work: 763027.
_QUEUE = re.compile(
    r"at work(?: sequence id)?:? ?(?P<seq>\d+)|[Ll]ast enqueued (?:NCCL )?work: (?P<last_enqueued>-?\d+)"
    r"|[Ll]ast completed (?:NCCL )?work: (?P<last_completed>-?\d+)"
)
# [PG ID 5 PG GUID 83(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] : the rank is the group's own
_GROUP = re.compile(r"\[PG (?:ID )?\w+ (?:PG GUID )?\w*\s?\(?(?P<pg>\w+)\)? Rank (?P<pg_rank>\d+)\]")
_NCCL_DETAIL = re.compile(r"(?P<dev>\bmlx5_\w+|\brdmap\w+)|vendor err (?P<vendor_err>\d+)|opcode[= ](?P<opcode>\w+)")
_EXIT_SIGNALS = {
    "exit-sigkill": 9, "exit-sigsegv": 11, "exit-sigbus": 7, "exit-sigill": 4, "exit-sigabrt": 6, "exit-sigterm": 15,
}  # fmt: skip
_ON_A_GPU = frozenset({"cuda", "vllm", "sglang", "tgi", "triton", "trtllm"})
# GPU 2 has a total capacity of | (GPU 0; 31.75 GiB total capacity | Allocator (GPU_0_bfc) | in replica 0 on device 0 | cuda:3 | CUDA device 1
_DEVICE = re.compile(
    r"GPU (\d{1,3}) has a total capac|\(GPU (\d{1,3});|\bGPU_(\d{1,3})_bfc|replica \d+ on device (\d{1,3})\b|\bcuda:(\d{1,3})\b"
    r"|CUDA device(?: ordinal)?:? (\d{1,3})\b|on GPU:? ?(\d{1,3})\b|device_?id[=:] ?(\d{1,3})\b"
)
# found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 3, node: node-b
# Rank 2, node node-a, device 2, iteration 17: Unexpected result nan
_MEGATRON = re.compile(r"Device: (?P<dev>\d+), node: (?P<host>[\w.-]+)|Rank \d+, node (?P<host2>[\w.-]+), device (?P<dev2>\d+)")
# Failed to initialize executor on rank 3: … | Scheduler hit an exception on rank 2
_ON_RANK = re.compile(r"\b(?:on|in|at) [Rr]ank[ =:](\d+)\b")
# at node (ID: 4c3f0e, IP: 10.0.0.3) | and address: 10.0.0.103 and node name | Memory on the node (IP: 10.0.0.7, | node_ip=10.0.0.4
_RAY_NODE = re.compile(r"\b(?:IP|ip(?=: )|address|node[_ ]ip)[:=] ?([\w.-]+)(?=[,)\s]|$)|node name: ([\w.-]+)")
_LAGGING = re.compile(r"\[([\d, ]+)\] (?:joined|finished)")


@dataclass(slots=True)
class Uttered:
    """An exception with the line that it ended on."""

    raised: Raised
    head: Prefix
    time: float | None
    text: str
    attempt: int
    hits: tuple[str, ...]
    intro: Prefix | None = None  # head of the line before its traceback


@dataclass(slots=True)
class RankState:
    """How far one rank got."""

    first_time: float | None = None
    last_time: float | None = None
    last_line: int = 0
    last_step: int | None = None
    last_step_line: int = 0
    lines: int = 0
    started: bool = False


_OLD = 60.0  # seconds: buffers of a job's processes are emptied within them; ours


@dataclass(slots=True)
class JobState:
    """What is gathered while the lines go by."""

    file: str
    node: str | None
    ctx: Context
    matcher: Matcher
    rank: int | None
    local_rank: int | None
    attempt: int
    own: bool  # no scanner ran: match here
    learned: Learned = field(default_factory=Learned)
    parsed: Parsed = field(default_factory=Parsed)
    ranks: dict[int, RankState] = field(default_factory=dict)
    progress: list[tuple[float | None, int | None, int | None, float | None, float | None, int]] = field(default_factory=list)
    stride: int = 1
    seen_steps: int = 0
    last: dict[str, float] = field(default_factory=dict)
    any_last: float | None = None
    woven: bool = True  # no stamp so far is much older than one before it: the lines came in as they were written
    first_time: float | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)
    summary: Summary = field(default_factory=Summary)
    stacks: Tracebacks = field(default_factory=Tracebacks)
    raised: list[Uttered] = field(default_factory=list)
    words: dict[int, tuple[int, str, Prefix, float | None, int]] = field(default_factory=dict)
    before: tuple[int, Prefix, str] | None = None
    piece: tuple[int, Prefix] | None = None  # number and head of the line before this piece of a rewritten line
    stamped: bool = True  # every line so far begins with a stamp
    intro: dict[str, Prefix | None] = field(default_factory=dict)
    index: dict[tuple[Any, ...], Event] = field(default_factory=dict)
    noise: dict[str, int] = field(default_factory=dict)
    placed: set[tuple[Any, ...]] = field(default_factory=set)
    by_pid: dict[int, tuple[int | None, int | None, str | None]] = field(default_factory=dict)
    dropped: int = 0
    day: float | None = None
    dated: float | None = None  # the last stamp that had a year
    headed: tuple[int, Prefix] | None = None  # a traceback whose head stands in a logger's line
    yearless: int = 0
    world: int | None = None
    finished: Event | None = None
    ended: Event | None = None  # one process of several ended well
    blocks: Blocks = field(default_factory=Blocks)
    quoted: Quoted = field(default_factory=Quoted)
    names: dict[str, str] = field(default_factory=dict)  # a launcher's name of a process's host → what the process calls it
    norms: dict[int | None, tuple[int, str, Prefix, float | None, int]] = field(default_factory=dict)
    doubtful: set[tuple[str, int | None]] = field(
        default_factory=set
    )  # signature and rank of numbers that a later one may take back
    local_size: int | None = None  # ranks of one node
    meshes: list[tuple[int, int, Prefix, int]] = field(default_factory=list)  # size, rank, speaker and line of gloo's groups
    voices: dict[str, tuple[int, float | None]] = field(default_factory=dict)  # node or pod → the last of its lines, and when
    whole_from: int = 1  # from this line on nothing was left out
    first_step_time: float | None = None
    over: bool = False  # an agent said that a worker of this start ended
    signalled: set[tuple[int, int]] = field(default_factory=set)  # attempt and pid of workers that the agent told to end
    said: dict[int, tuple[int, str, Prefix, float | None]] = field(
        default_factory=dict
    )  # the last ordinary line of each rank, or of -1 - local rank
    tally: Tally = field(default_factory=Tally)
    saved: list[tuple[float | None, int, int | None]] = field(default_factory=list)  # checkpoints: time, line, step

    def moment(self, stream: str, stamp: float | None) -> float | None:
        """
        Return when a line of a stream was written, from its own stamp or the last one before it.

        Without a stamp of its own it has that of its stream's last line; when the file was written by all together and that one is old,
        the last of the file, for a process that says nothing for an hour fails an hour later.
        """
        if stamp is None:
            own = self.last.get(stream, self.any_last) if stream else self.any_last
            late = own is not None and self.any_last is not None and self.any_last - own > _OLD
            return self.any_last if late and self.woven else own
        if self.any_last is not None and stamp < self.any_last - _OLD:
            self.woven = False  # files one after the other, or a clock that is wrong
        self.any_last = stamp
        if self.first_time is None:
            self.first_time = stamp
        if stream:
            self.last[stream] = stamp
        return stamp


def remember(
    job: JobState,
    rank: int | None,
    local: int | None,
    node: str | None,
    pid: int | None,
    time: float | None,
    no: int,
    origin: str,
) -> None:
    key = (rank, node, local, pid, job.attempt, origin)
    if key in job.placed or len(job.placed) > 200_000:
        return
    job.placed.add(key)
    if pid is not None:
        job.by_pid.setdefault(pid, (rank, local, node))
    job.parsed.placements.append(
        Placement(rank, node, local, None, pid, attempt=job.attempt, time=time, origin=origin, file=job.file, line=no)
    )


def details(row: Signature, text: str, data: dict[str, Any]) -> None:
    if row.id.startswith("c10d-"):
        for pattern in (_WORK, _QUEUE, _GROUP):
            for part in pattern.finditer(text):
                data.update({key: value for key, value in part.groupdict().items() if value is not None})
        if row.id == "c10d-desync-report":
            data["ranks"] = [int(word) for words in _LAGGING.findall(text) for word in words.split(",") if word.strip().isdigit()]
        elif row.id == "c10d-collective-fingerprint":
            data["pair"] = [int(word) for word in re.findall(r"Rank (\d+) is running collective", text)]
    elif row.id == "store-wait-timeout" and (found := re.search(r"/default_pg/\d+//\w+//\d+/(\d+)", text)):
        data["missing_rank"] = int(found[1])  # the key that rank was to write
    elif row.id.startswith("exit-"):
        if found := re.search(r"--local[_-]rank[=',\s]+(\d+)", text):
            data["local_rank"] = int(found[1])
        elif found := _WHO.search(text):
            data.update({key: value for key, value in found.groupdict().items() if value is not None})
        if "code" not in data and (signal := _EXIT_SIGNALS.get(row.id.removesuffix("-deepspeed"))):
            data["code"] = -signal
    elif row.id.startswith("nccl-ib"):
        for part in _NCCL_DETAIL.finditer(text):
            data.update({key: value for key, value in part.groupdict().items() if value is not None})
    if row.layer in _ON_A_GPU or row.cls in ("user/gpu-oom", "hardware/sdc"):
        if "gpu_index" not in data and (found := _DEVICE.search(text)):
            data["gpu_index"] = next(value for value in found.groups() if value)
        if "rank" not in data and (found := _ON_RANK.search(text)):
            data["rank"] = found[1]
    if row.id.startswith(("torch-nan", "megatron-")) and (found := _MEGATRON.search(text)):
        data.update(gpu_index=found["dev"] or found["dev2"], node=found["host"] or found["host2"])
    if row.layer in ("ray", "python") and "node" not in data and (found := _RAY_NODE.search(text)):
        data["node"] = next(value for value in found.groups() if value)
    for key in [key for key in data if key[-1:].isdigit() and key[:-1] in ("node", "rank", "pid", "code")]:
        data.setdefault(key[:-1], data.pop(key))  # alternatives of a pattern cannot share a group name
    for key, value in data.items():
        if isinstance(value, str) and len(value) < 16 and re.fullmatch(r"-?\d+", value):
            data[key] = int(value)


def add(
    job: JobState, row: Signature, no: int, text: str, head: Prefix, moment: float | None, data: dict[str, Any]
) -> Event | None:
    """Append an event; the same thing said again by the same speaker within five seconds only counts."""
    data = dict(data)
    named = data.pop("rank", None)  # the rank that the text speaks of; the head only says who wrote it
    rank = named if isinstance(named, int) else head.rank
    local = data.pop("local_rank", None)
    local = head.local_rank if local is None else local
    pid = data.pop("pid", None)
    node = data.pop("node", None) or data.pop("host", None) or head.node or job.node
    gpu = None
    if (index := data.pop("gpu_index", None)) is not None:
        gpu = Gpu(index=index)
    elif pci := ids.pci(str(data.pop("pci", "")) or None):
        gpu = Gpu(pci=pci)
    elif head.device is not None:
        gpu = Gpu(index=head.device)
    if (at := data.get("at")) and isinstance(at, str) and (stamp := split_prefix(at).time) is not None:
        moment, _ = stamp, data.pop("time_from", None)
    owner = job.by_pid.get(pid) if isinstance(pid, int) else None
    if owner is not None:
        rank = owner[0] if rank is None else rank
        local = owner[1] if local is None else local
        node = node or owner[2]
    text = cut(text, job.matcher.compiled(row) if row.pattern else None)
    key = (
        row.id,
        rank,
        local,
        node,
        head.stream,
        job.attempt,
        data.get("seq"),
        data.get("peer"),
        pid if row.id == "elastic-exit" else None,
    )
    earlier = job.index.get(key)
    if earlier is not None and (moment is None or earlier.time is None or moment - (earlier.last or earlier.time) <= 5.0):
        same = re.sub(r"\d+", "#", text[:200]) == re.sub(r"\d+", "#", earlier.text[:200])
        if same or earlier.count > 50:
            earlier.count += 1
            earlier.last = moment if moment is not None else earlier.last
            return earlier
    if len(job.parsed.events) >= MAX_EVENTS:
        job.dropped += 1
        return None
    code = data.get("code")
    event = Event(
        row.id, _SOURCES.get(row.layer, "job"), text[:_TEXT], moment, job.file, no, node, gpu, rank, local,
        pid if pid is not None else head.pid, job.attempt, code=code if isinstance(code, int) else None, data=data,
    )  # fmt: skip
    if head.level:
        event.data.setdefault("level", head.level)
    job.index[key] = event
    job.parsed.events.append(event)
    return event


def cut(text: str, pattern: re.Pattern[str] | None) -> str:
    """The line as it was; of a carriage-return bar or an overlong line the part that says it."""
    if len(text) <= _TEXT and "\r" not in text:
        return text
    found = pattern.search(text) if pattern is not None else None
    start, end = found.span() if found else (0, 0)
    left = text.rfind("\r", 0, start) + 1
    right = text.find("\r", end)
    part = text[left : right if right >= 0 else len(text)]
    if len(part) <= _TEXT:
        return part
    return text[max(left, start - 200) :][:_TEXT]


_NOBODY = "None/None/None/None/None"  # the stream of a line whose head is a stamp
_WHOSE = ("time", "clock", "yearless", "rank", "task", "local_rank", "node", "pid", "pod", "stream")


def whose(job: JobState, no: int, head: Prefix) -> Prefix:
    """
    Return the head of a line with what its neighbours say of it.

    What follows a carriage return has the prefix of its line: whoever put one in front of lines knows no other ends than theirs. Stamps in
    front of every line were put there by who collected them (``kubectl logs --timestamps``, CRI) and tell no speaker from another.
    """
    if job.piece is not None and job.piece[0] == no and not head.stream:
        for name in _WHOSE:
            setattr(head, name, getattr(job.piece[1], name))
        return head
    if not head.stream and head.rest.strip():
        job.stamped = False
    elif job.stamped and head.stream == _NOBODY:
        head.stream, head.rest = "", head.rest.removeprefix(" ")  # tracebacks are told by how far their lines are indented
    job.piece = no, head
    return head
