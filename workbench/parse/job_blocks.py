"""Turn records that launchers spread over several lines into who they speak of: rank, node and pid for the events around them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from workbench.model import Event
from workbench.parse.prefix import Prefix

__all__ = ["Blocks"]

# The actor died unexpectedly before finishing this task.   (Ray; its fields follow, one an indented line)
_RAY_OPEN = re.compile(
    r"\[Rank (\d+) Error Snippet\]|The actor (?:died|is dead)|The worker died|A worker died or was killed|The task was killed"
)
# pid: 4415 | ip: 10.0.3.44 | class_name: RayTrainWorker
_RAY_FIELD = re.compile(r"(pid|ip|class_name|actor_id|namespace|name|repr|label_selector|job_id): ?(\S*)$")
_RAY_MORE = re.compile(r"The actor|the actor's node|Node Id|Worker ID|exit type|- ")
# Remote daemon: [[30422,0],2] on node node-c | Remote daemon: [prterun-node-a-41@0,2] on node node-c   (Open MPI)
_MPI_NODE = re.compile(r"^Remote daemon: \[.{1,80}\] on node (\S+)")
# Process name: [[12345,1],2]   |   Exit code:    1   (Open MPI; horovodrun writes the bare number)
_MPI_RANK = re.compile(r"^Process name: (?:\[(?:\[\d+,\d+\]|\S+@\d+),(\d+)\]|(\d+)$)")
_MPI_CODE = re.compile(r"^Exit code: +(\d+)$")
# =   PID 41233 RUNNING AT node-b   |   =   EXIT CODE: 9   |   =   RANK 3 PID 41233 RUNNING AT node-b   (MPICH, Intel MPI)
_HYDRA = re.compile(r"^=\s+(?:RANK (\d+) )?PID (\d+) RUNNING AT (\S+)")
_HYDRA_CODE = re.compile(r"^=\s+(?:EXIT CODE|KILLED BY SIGNAL): (\d+)")
# -- Process 2 terminated with the following error:   (torch.multiprocessing.spawn)
_SPAWN = re.compile(r"^-- Process (\d+) terminated with the following error")
# ----------Begin global rank 1 STDERR----------   (Composer)
_SECTION = re.compile(r"^-{3,}\s?(Begin|End) global rank (\d+) STD(?:OUT|ERR)")
# Missing ranks:  then  1: [HorovodBroadcast_bias_0]   (Horovod)
_MISSING = re.compile(r"^(\d+): \[")
# local_ranks=[0, 1]  …  global_ranks=[8, 9]   (torchelastic, "Rendezvous complete for workers. Result:")
_RANKS = re.compile(r"^(local|global)_ranks=\[([\d, ]+)\]")
# Data for node: node-b\tNum slots: 8\tMax slots: 0\tNum procs: 8   (mpirun --display-map)
_MAP_NODE = re.compile(r"^Data for node: (\S+)")
# Process OMPI jobid: [41172,1] App: 0 Process rank: 9 Bound: socket 0[core 1[hwt 0-1]]:[../BB]
_MAP_RANK = re.compile(r"^Process (?:\w+ )?jobid: \S+ App: \d+ Process rank: (\d+)")
# Memory on the node (IP: 10.0.0.7, ID: 4f1e) where the task (actor ID: 2f, name=W.__init__, pid=410, memory used=39.1GB) was running was …
_RAY_MEMORY = re.compile(r"^Memory on the node \(IP: ([\w.:-]+)(?:.{0,400}?\bpid=(\d+), memory used=)?")
#  rank=0   (text-generation-inference: a record of its launcher ends with its fields, on a line of their own where the text had several)
_RECORD_RANK = re.compile(r"^rank=(\d+)$")
# Exec host:  gpu-2-17/11 (mail of TORQUE and PBS)   |   exec_host = gpu-2-17/0*8 (qstat -f; a longer list is folded, and so left alone)
_EXEC_HOST = re.compile(r"^(?:Exec host|exec_host) ?[:=] +([A-Za-z][\w.-]*)/\d[\d*]*$")
# The node 'gpu-a.example_28389_0' attempts to join the next round of the rendezvous …   (torchelastic: its own name, pid and number)
_RENDEZVOUS_NODE = re.compile(r"\bThe node '([A-Za-z][\w.-]*)_\d+_\d+' (?:attempts|has|is|closed)")
_NEAR = 8  # lines between a record's first line and its fields


@dataclass(slots=True)
class _Block:
    last: int
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    events: list[Event] = field(default_factory=list)
    heads: list[Prefix] = field(default_factory=list)

    def tell(self) -> None:
        """Give what is known by now to all events of the record; it knows better than whoever printed it."""
        said: list[Event | Prefix] = [*self.events, *self.heads]
        for one in said:
            one.rank = self.rank if self.rank is not None else one.rank
            one.node = self.node or one.node
            one.pid = self.pid if self.pid is not None else one.pid


class Blocks:
    """Follow a log line by line; `feed` before the events of a line are made, `attach` with each of them."""

    def __init__(self) -> None:
        self.local_ranks: list[int] = []
        self.ranks: list[tuple[int, int]] = []  # (local, global) pairs that an agent announced and nobody took yet
        self.mapped: list[tuple[int, str]] = []  # (rank, node) of an MPI map that nobody took yet
        self.hosts: list[str] = []  # nodes that a batch system names and nobody took yet
        self._map: tuple[int, str] | None = None
        self._ray: dict[str, _Block] = {}
        self._section: int | None = None
        self._spawned: int | None = None
        self._recent: list[tuple[int, Event]] = []
        self._raised: tuple[int, Prefix] | None = None  # the line and the head of the last exception
        self._no = 0
        self._horovod: int | None = None

    def feed(self, no: int, head: Prefix) -> None:
        """Take the next line; the rank of a section is given to a head that names none."""
        text = head.rest.strip()
        self._no = no
        if not text:
            return
        first = text[0]
        if first == "-":
            if found := _SECTION.match(text):
                self._section = int(found[2]) if found[1] == "Begin" else None
            elif found := _SPAWN.match(text):
                self._spawned = int(found[1])
        if head.rank is None and not head.stream:
            if self._section is not None:
                head.rank = self._section
            elif self._spawned is not None:
                head.rank = head.local_rank = self._spawned  # mp.spawn starts the ranks of one node
        self._ray_line(no, head, text)
        if first == "D" and (found := _MAP_NODE.match(text)):
            self._map = (no, found[1])
        elif first == "P" and self._map is not None and (found := _MAP_RANK.match(text)):
            self.mapped.append((int(found[1]), self._map[1]))
        elif (first in "Ee" and (found := _EXEC_HOST.match(text))) or (
            "The node '" in text and (found := _RENDEZVOUS_NODE.search(text))
        ):
            self.hosts.append(found[1])
        if first in "RPEM=r" and (self._recent or self._raised):
            self._fields(no, text)
        elif self._horovod is not None and first.isdigit() and (found := _MISSING.match(text)):
            for at, event in self._recent:
                if event.signature.startswith("horovod-") and no - at <= 4 * _NEAR and event.rank is None:
                    event.rank = int(found[1])
            self._horovod = None
        if text.startswith("Missing ranks:"):
            self._horovod = no
        elif first in "lg" and (found := _RANKS.match(text)):
            numbers = [int(word) for word in found[2].split(",") if word.strip()]
            if found[1] == "local":
                self.local_ranks = numbers
            elif len(numbers) == len(self.local_ranks):
                self.ranks = list(zip(self.local_ranks, numbers, strict=True))

    def _fields(self, no: int, text: str) -> None:
        def near(prefix: str) -> list[Event]:
            return [event for at, event in self._recent if event.signature.startswith(prefix) and 0 <= no - at <= _NEAR]

        if found := _RECORD_RANK.match(text):
            if self._raised is not None and no - self._raised[0] <= _NEAR and self._raised[1].rank is None:
                self._raised[1].rank = int(found[1])
        elif found := _MPI_NODE.match(text):
            for event in near("mpi-daemon-lost"):
                event.node = found[1]
        elif found := _MPI_RANK.match(text):
            for event in near("exit-code"):
                event.rank = int(found[1] or found[2]) if event.rank is None else event.rank
        elif found := _HYDRA.match(text):
            for event in near("exit-code"):
                event.rank = int(found[1]) if found[1] else event.rank
                event.pid, event.node = int(found[2]), found[3]
        elif found := _HYDRA_CODE.match(text):
            for event in near("exit-code"):
                event.code = -int(found[1]) if int(found[1]) in (6, 7, 9, 11, 15) else int(found[1])
        elif found := _MPI_CODE.match(text):
            for event in near("exit-code"):
                event.code = int(found[1]) if event.code is None else event.code
        elif found := _RAY_MEMORY.match(text):
            pid = int(found[2]) if found[2] else None
            for event in near("log-oom-kill"):
                event.node, event.pid = event.node or found[1], event.pid or pid
            if pid is not None and self._raised is not None and no - self._raised[0] <= _NEAR:
                said = self._raised[1]  # the driver tells it: the worker that was killed is meant, not whoever printed before
                said.rank, said.local_rank, said.node, said.pid = None, None, found[1], pid

    def _ray_line(self, no: int, head: Prefix, text: str) -> None:
        block = self._ray.get(head.stream) if self._ray else None
        if block is not None and no - block.last > _NEAR:
            del self._ray[head.stream]
            block = None
        if found := _RAY_OPEN.search(text[:400]):
            if block is None or found[1]:
                block = self._ray[head.stream] = _Block(no, int(found[1]) if found[1] else None)
            block.last = no
        elif block is not None:
            if found := _RAY_FIELD.match(text):
                if found[1] == "ip":
                    block.node = found[2] or None
                elif found[1] == "pid" and found[2].isdigit():
                    block.pid = int(found[2])
                block.last = no
                block.tell()
            elif _RAY_MORE.match(text):
                block.last = no
            else:
                del self._ray[head.stream]

    def attach(self, no: int, head: Prefix, event: Event) -> None:
        """Note an event of the line just fed, so that later lines of its record can complete it."""
        self._recent = [*self._recent[-15:], (no, event)]
        if (block := self._ray.get(head.stream)) is not None and event.signature != "ray-task-error":
            block.events.append(event)
            block.tell()

    def attach_head(self, head: Prefix) -> None:
        """Note the head of an exception's last line; `mp.spawn`'s section ends with it."""
        self._spawned = None
        self._raised = (self._no, head)
        if (block := self._ray.get(head.stream)) is not None:
            block.heads.append(head)
            block.tell()
