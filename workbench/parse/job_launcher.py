"""Turn what launchers print about themselves into placements, the agent's summary of failures, and hints from file names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from workbench.model import Gpu, Placement
from workbench.parse.ids import pci, uuid
from workbench.parse.prefix import Prefix
from workbench.parse.traceback import Raised, Tracebacks

__all__ = ["Failure", "Summary", "file_hints", "launched", "mesh", "nccl_bus", "placement", "world_info", "world_size"]

# logs/rank-3.stderr.log | rank_003.log | rank12.out   (but not "frank-1")
_FILE_RANK = re.compile(r"(?:^|[/._-])(?:global[_-]?)?rank[-_.]?(\d+)(?=[._/-]|$)", re.I)
# torchelastic's own layout: …/attempt_1/3/stderr.log  (the folder is the LOCAL rank)
_FILE_ELASTIC = re.compile(r"attempt[_-](\d+)/(\d+)/(?:stdout|stderr|error)")
_FILE_ATTEMPT = re.compile(r"(?:attempt|restart|retry)[-_.]?(\d+)", re.I)


def file_hints(file: str) -> tuple[int | None, int | None, int | None]:
    """Return (rank, local rank, attempt) as far as a file's name tells them."""
    if found := _FILE_ELASTIC.search(file):
        return None, int(found[2]), int(found[1])
    rank = _FILE_RANK.search(file)
    attempt = _FILE_ATTEMPT.search(file)
    return int(rank[1]) if rank else None, None, int(attempt[1]) if attempt else None


def nccl_bus(text: str) -> str | None:
    """
    Return the PCI address in NCCL's ``busId b8000``: the address without its punctuation, leading zeros gone.

    Digits from the right: one of function, two of device, two of bus, the rest is the domain.
    """
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text):
        return None
    digits = text.lower().rjust(9, "0")
    return f"{digits[:-5].lstrip('0').rjust(4, '0')}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}"


# cheap gate before the patterns below
_GATE = re.compile(r"busId|MPI startup|NCCL INFO (?:Ring|Channel|Trees) ")
# #  Rank  0 Group  0 Pid 203082 on    node-a device  0 [0x42] NVIDIA H100 80GB HBM3   (nccl-tests)
_TESTS = re.compile(r"#\s+Rank\s+(\d+) (?:Group\s+\d+ )?Pid\s+(\d+) on\s+(\S+) device\s+(\d+) \[(?:0x)?([0-9a-fA-F:.]+)\]")
# [0] MPI startup(): 3       41233    node-b      {12,13,14,15}   (Intel MPI)
_STARTUP = re.compile(r"MPI startup\(\): (\d+)\s+(\d+)\s+([A-Za-z][\w.-]*)\s+[{\d]")
# srun: launching StepId=4711.0 on host node-b, 8 tasks: [8-15]
_LAUNCHED = re.compile(r"srun: launching \S+ on host ([\w.-]+), \d+ tasks?: \[?([\d,-]+)\]?")
# [TensorRT-LLM][INFO] Rank 3 is using GPU 3
_USES = re.compile(r"\bRank (\d+) is using GPU (\d+)\b")
# [./gloo/transport/tcp/context.cc:243] INFO Rank 2 is connected to 3. Expected number of connected peers is: 3
# [Gloo] Rank 2 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3
_MESH = re.compile(
    r"\bRank (\d+) is connected to (\d+)(?: peer ranks)?\. Expected number of connected peers?(?: ranks)? is ?: ?(\d+)"
)
# rank 5/32 local_rank 5 on gpu-node-047 cuda:5 (NVIDIA H100 80GB HBM3)
_BANNER = re.compile(r"\brank (\d+)/(\d+),? local_rank (\d+) on (\S+)(?: (?:cuda|gpu):(\d+))?")
# comm 0x5581e8a0 rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId b8000 commId 0x1 - Init COMPLETE
_COMM = re.compile(r"\brank (\d+) n[rR]anks (\d+)\s+cudaDev (\d+)(?: nvmlDev (\d+))?\s+busId ([0-9a-fA-F]+)")
# CUDA_VISIBLE_DEVICES=4,5,6,7,0,1,2,3 pci 0000:43:00.0 | LOCAL_RANK: 3 - CUDA_VISIBLE_DEVICES: [4,5,6,7] | pciBusId=0000:43:00.0
_VISIBLE = re.compile(r"CUDA_VISIBLE_DEVICES['\"]?\s?[=:]\s?['\"\[]?(\d{1,3}(?:, ?\d{1,3})*)(?![\w-])")
_BUS = re.compile(
    r"\bpci(?:[-_ ]?(?:bus[-_ ]?id|address))?\b\s?[=:]?\s?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b", re.I
)
# rank 14 device cuda:6 GPU-129f520e-b61d-5843-ce33-886b0c1dfe4c pci 0000:d1:00.0 host gpu-a05
_OWN = re.compile(r"\brank[ =:]{1,2}(\d{1,6})\b.{0,80}?\b(?:device|cuda|gpu)[ =:]{1,2}(?:cuda:)?(\d{1,2})\b")
_HOST = re.compile(r"\b(?:host|hostname|node)[ =:]{1,2}([A-Za-z][\w.-]*)")
# initializing process group backend=gloo world=8 local_rank=1 pid=11164 | RANK=3 LOCAL_RANK=3 WORLD_SIZE=16 MASTER_ADDR=node-a
_PAIR = re.compile(
    r"\b(global_rank|local_rank|rank|world_size|world|pid|host|hostname|node|device|cuda)\b['\"]?\s?[=:]\s?['\"]?(?:cuda:)?([\w.-]+)",
    re.I,
)
# NCCL INFO Trees [0] 1/-1/-1->0->-1 : the middle is the rank that prints
_TREES = re.compile(r"NCCL INFO Trees \[\d+\] [-\d/]+->(\d+)->")
# NCCL INFO Ring 00 : 1[1b000] -> 2[3d000] via direct shared memory | Channel 00 : 1[3000] -> 0[3000] [receive] via NET/IB/0
_RING = re.compile(r"NCCL INFO (?:Ring|Channel) [\d/]+ : (\d+)\[([0-9a-f]+)\] -> (\d+)\[([0-9a-f]+)\] (\[receive\])?")
# GLOBAL_RANK: 0, MEMBER: 1/8
_LIGHTNING = re.compile(r"GLOBAL_RANK: (\d+), MEMBER: (\d+)/(\d+)")
_WORLD = re.compile(
    r"\bworld(?:[_ ]?size)?['\"]?\s?[=:]\s?['\"]?(\d+)|\bnranks (\d+)|\brank \d+/(\d+)\b|WORLD_SIZE[=:] ?(\d+)|MEMBER: \d+/(\d+)",
    re.I,
)


# [INFO] [launch.py:145:main] WORLD INFO DICT: {'worker-0': [0, 1], 'worker-1': [0, 1]}
_WORLD_INFO = re.compile(r"['\"]([\w.-]+)['\"]: ?\[([\d, ]+)\]")
# - (node_id=ab, ip=10.0.0.4, pid=3245) world_rank=1, local_rank=0, node_rank=1
_RAY_TRAIN = re.compile(r"ip=([\d.a-f:]+), pid=(\d+)\) world_rank=(\d+), local_rank=(\d+)")
# (RayTrainWorker pid=3245, ip=10.0.0.4) Setting up process group for: env:// [rank=1, world_size=4]
_RAY_SETUP = re.compile(r"\[rank=(\d+), world_size=(\d+)\]")


def world_info(text: str) -> list[Placement]:
    """Return where DeepSpeed's launcher puts its ranks: node by node in the order of its list, GPUs in the order given."""
    places: list[Placement] = []
    for node, devices in _WORLD_INFO.findall(text[text.find("WORLD INFO DICT") :]):
        for local, device in enumerate(devices.split(",")):
            gpu = Gpu(index=int(device)) if device.strip().isdigit() else None
            places.append(Placement(len(places), node, local, gpu, origin="deepspeed"))
    return places


def launched(text: str) -> list[tuple[int, str]]:
    """Return (task, node) of what ``srun -v`` says that it starts; a task is the rank where srun starts the ranks."""
    found = _LAUNCHED.search(text[:2000])
    tasks: list[tuple[int, str]] = []
    for part in found[2].split(",") if found else []:
        low, _, high = part.partition("-")
        if low.isdigit() and (high.isdigit() or not high) and int(high or low) - int(low) < 10_000:
            tasks += [(task, found[1]) for task in range(int(low), int(high or low) + 1)] if found else []
    return tasks


def mesh(text: str) -> tuple[int, int] | None:
    """Return (rank, size) of a group that gloo says it connected; only in the default group is the rank the job's."""
    found = _MESH.search(text[:2000])
    return (int(found[1]), int(found[3]) + 1) if found and found[2] == found[3] else None


def world_size(text: str) -> int | None:
    """Return the number of ranks that a line names, or None."""
    found = _WORLD.search(text) if "rank" in text or "orld" in text or "WORLD" in text or "MEMBER" in text else None
    return int(next(value for value in found.groups() if value)) if found else None


def placement(head: Prefix, node: str | None) -> Placement | None:
    """
    Return where a rank runs, when the line says so.

    Parameters
    ----------
    head : Prefix
        The split line.
    node : str, optional
        Node of the file, when the line names none.
    """
    text = head.rest if len(head.rest) < 4000 else head.rest[:4000]
    if "ank" not in text and "RANK" not in text and not _GATE.search(text):
        return None
    if found := _COMM.search(text):
        gpu: Gpu | None = Gpu(index=int(found[4] or found[3]), pci=nccl_bus(found[5]))
        return Placement(int(found[1]), head.node or node, gpu=gpu, pid=head.pid, time=head.time, origin="nccl-init")
    if found := _BANNER.search(text):
        gpu = _device(text, found[5] or found[3], sure=bool(found[5]))
        return Placement(int(found[1]), found[4], int(found[3]), gpu, head.pid, time=head.time, origin="launcher-line")
    if found := _TESTS.search(text):
        return Placement(
            int(found[1]), found[3], gpu=Gpu(index=int(found[4])), pid=int(found[2]), time=head.time, origin="launcher-line"
        )
    if found := _STARTUP.search(text):
        return Placement(int(found[1]), found[3], pid=int(found[2]), time=head.time, origin="launcher-line")
    if found := _USES.search(text):
        return Placement(
            int(found[1]), head.node or node, gpu=Gpu(index=int(found[2])), pid=head.pid, time=head.time, origin="launcher-line"
        )
    if found := _RAY_TRAIN.search(text):
        return Placement(int(found[3]), found[1], int(found[4]), pid=int(found[2]), time=head.time, origin="launcher-line")
    if head.pid is not None and (found := _RAY_SETUP.search(text)):
        return Placement(int(found[1]), head.node or node, pid=head.pid, time=head.time, origin="launcher-line")
    if found := _LIGHTNING.search(text):
        return Placement(int(found[1]), head.node or node, pid=head.pid, time=head.time, origin="launcher-line")
    if head.pid is not None and "NCCL INFO " in text:
        if found := _TREES.search(text):
            return Placement(int(found[1]), head.node or node, pid=head.pid, time=head.time, origin="nccl-init")
        if found := _RING.search(text):
            rank, bus = (found[3], found[4]) if found[5] else (found[1], found[2])
            # newer releases print the device number in the brackets, older ones the bus address, which has at least four digits
            gpu = Gpu(index=head.device, pci=nccl_bus(bus) if len(bus) >= 4 else None)
            return Placement(int(rank), head.node or node, gpu=gpu, pid=head.pid, time=head.time, origin="nccl-init")
    if "ocal_rank" in text or "LOCAL_RANK" in text:
        pairs = {key.lower(): value for key, value in _PAIR.findall(text)}
        rank = pairs.get("global_rank") or pairs.get("rank") or (str(head.rank) if head.rank is not None else None)
        local = pairs.get("local_rank")
        if rank is None or not rank.isdigit() or local is None or not local.isdigit():
            return None
        host = pairs.get("host") or pairs.get("hostname") or pairs.get("node") or head.node or node
        device = pairs.get("device") or pairs.get("cuda")
        own = device is not None and device.isdigit()
        gpu = _device(text, device if own and device else local, sure=own)
        pid = pairs.get("pid")
        return Placement(
            int(rank),
            host,
            int(local),
            gpu,
            int(pid) if pid and pid.isdigit() else head.pid,
            time=head.time,
            origin="launcher-line",
        )
    if ("GPU-" in text or "pci" in text.lower()) and "rror" not in text and (found := _OWN.search(text)):
        known = _device(text, found[2], sure=False)
        gpu = Gpu(known.index if known else None, uuid(text), known.pci if known else None)
        host = _HOST.search(text)
        if gpu.uuid or gpu.pci:
            return Placement(
                int(found[1]), host[1] if host else head.node or node, None, gpu, head.pid, time=head.time, origin="launcher-line"
            )
    return None


def _device(text: str, number: str, *, sure: bool) -> Gpu | None:
    """
    Return the GPU of a process that numbers it `number`, from what else its line says: the devices that it sees, or the address.

    A process numbers the devices that it sees from 0, in the order of ``CUDA_VISIBLE_DEVICES``. Without either the number counts only
    when the line says that it is the device's (`sure`), not the local rank.
    """
    bus, visible = _BUS.search(text), _VISIBLE.search(text)
    order = visible[1].replace(" ", "").split(",") if visible else []
    index = int(order[int(number)]) if int(number) < len(order) else int(number) if sure and not order else None
    address = pci(bus[1]) if bus else None
    return Gpu(index=index, pci=address) if index is not None or address else None


@dataclass(slots=True)
class Failure:
    """One block of torchelastic's summary: what became of one worker."""

    no: int  # line of the exit code
    text: str
    root: bool = False
    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    code: int | None = None
    pid: int | None = None
    time: float | None = None
    raised: list[Raised] = field(default_factory=list)
    attempt: int | None = None


#   time      : 2026-11-29_17:05:58
_KEY = re.compile(r"^\s+(time|host|rank|exitcode|error_file|traceback)\s{0,6}: ?(.*)$")
_RANKS = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_TIME = re.compile(r"(\d{4})-(\d{2})-(\d{2})_(\d{2}):(\d{2}):(\d{2})")
# a block begins with its number, the summary ends with a bar
_BLOCK = re.compile(r"^\s*\[\d+\]:\s*$")
_BAR = re.compile(r"^\s*(?:={8,}|-{8,})\s*$")
_EDGES = tuple("[=- \t\r\f\v")  # what either begins with


class Summary:
    """
    Follow torchelastic's ``ChildFailedError`` summary: blocks of ``time, host, rank, exitcode, error_file, traceback``.

    The tracebacks in it are copies of what the workers printed; they are kept with their block, not reported again.
    """

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self._open: Failure | None = None
        self._root = False
        self._stack: Tracebacks | None = None
        self._stamp: float | None = None
        self._host: str | None = None

    def feed(self, no: int, text: str) -> bool:
        """Take the next line (without its head); return whether it belongs to the summary."""
        if "Root Cause (first observed failure)" in text:
            self._root = True
            self._close()
            return True
        edge = text[:1] in _EDGES
        block = edge and _BLOCK.match(text) is not None
        if block or (edge and _BAR.match(text)):
            active = self._open is not None
            self._close()
            if not block and active and self._root:
                self._root = False
            return active or block
        if text.startswith("Failures:"):
            self._root = False
        if text[:1].isspace() and (found := _KEY.match(text)):
            return self._key(no, found[1], found[2], text)
        if self._stack is not None:
            _, raised = self._stack.feed(no, "summary", text)
            if raised is not None and self._open is not None:
                self._open.raised.append(raised)
            return True
        return False

    def _key(self, no: int, key: str, value: str, text: str) -> bool:
        if key == "time" and (found := _TIME.match(value)):
            self._close()
            self._stamp = datetime.strptime(found[0], "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
            return True
        if key == "host" and self._stamp is not None:
            self._host = value.strip()
            return True
        if key == "rank" and (found := _RANKS.search(value)):
            self._open = Failure(no, text, self._root, int(found[1]), int(found[2]), self._host, time=self._stamp)
            return True
        if self._open is None:
            return False
        if key == "exitcode" and (found := _CODE.search(value)):
            self._open.no, self._open.text = no, text
            self._open.code, self._open.pid = int(found[1]), int(found[2])
            self.failures.append(self._open)
        elif key == "traceback":
            self._stack = Tracebacks()
            self._stack.feed(no, "summary", text)
        return True

    def _close(self) -> None:
        self._open = self._stack = None
        self._stamp = self._host = None
