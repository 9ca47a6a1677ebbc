"""
Turn observations into typed records: the words of the workbench (event, evidence, hypothesis, verdict, coverage) as data classes.

Times are seconds since the epoch (UTC) as `float` inside records and tz-aware UTC in frames and JSON. Missing is `None`, never an
invented zero.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "CAUSES",
    "CLASSES",
    "REMEDIATIONS",
    "RETRIES",
    "ROLES",
    "Condition",
    "Coverage",
    "DocumentSummary",
    "Event",
    "Evidence",
    "Gpu",
    "Hypothesis",
    "JobRecord",
    "Line",
    "Parsed",
    "Placement",
    "Problem",
    "Series",
    "Verdict",
    "Victim",
]

CAUSES = ("hardware", "driver", "platform", "user", "unknown", "none")

CLASSES: dict[str, str] = {
    "hardware/gpu-memory": "ECC, row remap",
    "hardware/gpu-lost": "a GPU off the bus",
    "hardware/nvlink": "NVLink link or NVSwitch",
    "hardware/pcie": "PCIe link width, AER, replay",
    "hardware/thermal-power": "heat, power brake, power supply",
    "hardware/gpu-other": "another fault of the GPU",
    "hardware/network-link": "port, cable, transceiver, NIC",
    "hardware/host": "CPU, DIMM, disk, panic with a machine check",
    "hardware/sdc": "silent data corruption",
    "driver/hang": "GSP time-out, a driver that does not answer",
    "driver/version-mismatch": "library against module, versions across nodes",
    "driver/missing": "driver not loaded, not found",
    "driver/fabric-manager": "its service, fabric or IMEX state",
    "driver/other": "another fault of a driver",
    "platform/network": "fabric, switch, DNS, remote resets",
    "platform/storage": "NFS, Lustre, object store, disk full",
    "platform/preemption": "a healthy process ended on purpose: priority, spot, maintenance, node pressure, time limit",
    "platform/node-lost": "a node gone without a word",
    "platform/scheduler": "unschedulable, device plugin, gang",
    "platform/image": "image pull, container start",
    "platform/config": "shm, ulimit, cgroup, mount, MTU, injected environment",
    "user/exception": "an error in the code",
    "user/gpu-oom": "out of GPU memory",
    "user/host-oom": "the job's own processes ate the host memory",
    "user/illegal-memory-access": "a kernel touched memory it does not own",
    "user/collective-mismatch": "collectives out of order or of different shape",
    "user/numerics": "NaN, divergence",
    "user/config": "arguments, missing file, dependency, port in use",
    "user/hang": "data loader, deadlock",
    "user/stopped": "the user cancelled it",
    "unknown": "something failed and the evidence does not decide",
    "none": "nothing failed",
}
RETRIES = ("same-nodes", "exclude-node", "fix-first")
REMEDIATIONS = (
    "none",
    "restart-task",
    "reset-gpu",
    "reboot-node",
    "drain",
    "replace-node",
    "fix-user-code",
    "fix-platform",
)
ROLES = ("cause", "symptom", "context", "counter")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as one source named it; `uuid` and `pci` are identities, `index` is only a label."""

    index: int | None = None
    uuid: str | None = None
    pci: str | None = None  # canonical: lower case, dddd:bb:dd.f as far as known, e.g. 0000:3b:00.0

    def as_dict(self) -> dict[str, Any]:
        return {"index": self.index, "uuid": self.uuid, "pci": self.pci}

    def means(self, other: Gpu) -> bool:
        """Whether both names mean the same GPU: by UUID or PCI address; by index only when one of them has nothing else."""
        if self.uuid and other.uuid:
            return self.uuid == other.uuid
        if self.pci and other.pci:
            return self.pci.rsplit(".", 1)[0] == other.pci.rsplit(".", 1)[0]
        return self.index is not None and self.index == other.index


@dataclass(slots=True)
class Event:
    """
    Something observed at a time on an entity by a source.

    `signature` names a row of the catalog; `role`, `cls` and `weight` are that row's unless the content of the line
    decides (an Xid 154 that asks for a reset, an SXid that says Fatal), in which case the parser sets them.
    """

    signature: str
    source: str  # job | kernel | metrics | kubernetes | slurm | smi | flight-recorder | bmc | launcher | torchelastic | stacks
    text: str = ""  # the line as it was, at most 2,000 characters
    time: float | None = None  # seconds since the epoch, UTC
    file: str = ""
    line: int | None = None  # 1-based
    node: str | None = None
    gpu: Gpu | None = None
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    attempt: int | None = None
    role: str | None = None
    cls: str | None = None
    weight: float | None = None  # 0..1: how surely this observation alone means its class
    code: int | None = None  # Xid, SXid, exit code, errno, CUDA error
    data: dict[str, Any] = field(default_factory=dict)  # what only this signature has: seq, op, peer, comm, cgroup …
    count: int = 1
    last: float | None = None  # time of the last of `count` coalesced observations
    order: int = 0  # position in reading order; breaks ties of time

    def copy(self, data: dict[str, Any]) -> Event:
        """Return the same event with other `data`: `dataclasses.replace`, ten times faster, for the hundred thousand of a large job."""
        return Event(
            self.signature, self.source, self.text, self.time, self.file, self.line, self.node, self.gpu, self.rank,
            self.local_rank, self.pid, self.attempt, self.role, self.cls, self.weight, self.code, data, self.count, self.last,
            self.order,
        )  # fmt: skip


@dataclass(slots=True)
class Series:
    """One metric of one entity over time; `times` are epoch seconds (float64), `values` float64 with NaN for blanks."""

    field: str  # canonical DCGM field or metric name
    times: Any
    values: Any
    node: str | None = None
    gpu: Gpu | None = None
    device: str | None = None  # network port, disk: the non-GPU entity
    mig: str | None = None  # GPU instance id
    pod: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)  # the class has a `field` of its own
    file: str = ""
    line: int | None = None
    blanks: int = 0  # sentinel values masked


@dataclass(slots=True)
class Condition:
    """A state that a platform reports of a node (or pod): condition, taint, drain reason, capacity against allocatable."""

    name: str
    status: str
    node: str | None = None
    kind: str = "condition"  # condition | taint | state | resource | pod
    bad: bool | None = None  # by the polarity table; None = not known
    since: float | None = None  # when it became so
    reason: str = ""
    message: str = ""
    source: str = "kubernetes"
    file: str = ""
    line: int | None = None


@dataclass(slots=True)
class Placement:
    """Where a rank ran, as one source said."""

    rank: int | None
    node: str | None
    local_rank: int | None = None
    gpu: Gpu | None = None
    pid: int | None = None
    pod: str | None = None
    attempt: int | None = None
    time: float | None = None
    origin: str = ""  # launcher-line | nccl-init | pod-env | dcgm-pod-label | slurm | xid-pid | torchelastic …
    file: str = ""
    line: int | None = None


@dataclass(slots=True)
class JobRecord:
    """What a scheduler or launcher knows of the job."""

    id: str | None = None
    name: str | None = None
    state: str | None = None  # COMPLETED, FAILED, CANCELLED by 1000, TIMEOUT, NODE_FAIL, PREEMPTED, running …
    nodes: list[str] = field(default_factory=list)
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    user: str | None = None
    reason: str | None = None
    restarts: int | None = None
    time_limit: float | None = None  # seconds
    source: str = ""
    file: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Problem:
    """Something that could not be read or used, with the way out; it becomes a coverage entry, never a traceback."""

    file: str
    message: str  # what is wrong, one sentence
    hint: str = ""  # the way out
    line: int | None = None
    source: str = "files"
    status: str = "failed"  # failed | partial | missing | stale


@dataclass(slots=True)
class Line:
    """One logical line of a log: cleaned of ANSI colours and carriage returns, at most 64 KiB, with the catalog rows that match it."""

    no: int  # 1-based
    text: str
    hits: tuple[str, ...] = ()  # signature ids, most specific first
    offset: int = 0  # byte offset in the uncompressed file


@dataclass(slots=True)
class Parsed:
    """What a parser made of one document."""

    events: list[Event] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # per document: node, boot time, driver version, tz offset …

    def extend(self, other: Parsed) -> None:
        self.events += other.events
        self.series += other.series
        self.conditions += other.conditions
        self.placements += other.placements
        self.jobs += other.jobs
        self.problems += other.problems


@dataclass(slots=True)
class DocumentSummary:
    """What was made of one document: for coverage, and for a person who wonders whether a file was read."""

    name: str
    kind: str
    node: str | None
    size: int
    lines: int
    complete: bool
    events: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Evidence:
    """
    The evidence of one failed job, parsed.

    Attributes
    ----------
    name : str
        The folder or file it was read from.
    records : list of Event
        Every event of every source, in reading order, before coalescing.
    series, condition_records, placement_records, jobs
        What the parsers found besides events.
    documents : list of DocumentSummary
        The files that were read and what each was taken for.
    problems : list of Problem
        What could not be read, with the way out.
    """

    name: str
    records: list[Event] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    condition_records: list[Condition] = field(default_factory=list)
    placement_records: list[Placement] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    documents: list[DocumentSummary] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class Victim:
    """A rank that failed because another did."""

    rank: int | None
    node: str | None
    since: float | None
    by: str


@dataclass(slots=True)
class Hypothesis:
    """A candidate root cause with its evidence for and against."""

    cls: str
    score: float
    node: str | None = None
    gpu: Gpu | None = None
    rank: int | None = None
    at_fault: str | None = None
    time: float | None = None
    attempt: int | None = None
    evidence: list[Event] = field(default_factory=list)
    against: list[Event] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    why_not: str = ""
    retry: str | None = None
    remediation: str | None = None
    rule: str = ""


@dataclass(slots=True)
class Coverage:
    """For one source: asked, reached, complete, how old; and which classes can therefore not be seen."""

    source: str
    status: str  # ok | partial | missing | failed | stale
    detail: str = ""
    blind_to: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """The best hypothesis, or `unknown`, or `none`; see `workbench.report.verdict_json` for its JSON form."""

    cls: str
    confidence: float
    summary: str
    node: str | None = None
    gpu: Gpu | None = None
    rank: int | None = None
    at_fault: str | None = None
    time: float | None = None
    attempt: int | None = None
    evidence_records: list[Event] = field(
        default_factory=list
    )  # ordered; first with role cause is the first evidence of the root cause
    counter_records: list[Event] = field(default_factory=list)
    victim_records: list[Victim] = field(default_factory=list)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    degraded: list[dict[str, Any]] = field(default_factory=list)
    coverage: list[Coverage] = field(default_factory=list)
    retry: str | None = None
    remediation: str | None = None
    next_steps: list[str] = field(default_factory=list)
    decided_by: list[str] = field(default_factory=list)
    clock_skew: dict[str, float] = field(default_factory=dict)  # node → seconds its clock is ahead
    ties: list[str] = field(default_factory=list)

    @property
    def cause(self) -> str:
        return self.cls.split("/")[0]
