"""
Turn the facts of an incident into one context object that rules may ask: who ran where, when the job ran, stopped and ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from workbench.catalog import Signature, Signatures
from workbench.model import Event, Evidence, Gpu
from workbench.parse.ids import pci as canonical_pci
from workbench.parse.ids import short_node
from workbench.triage.windows import Windows

__all__ = ["JOB_SOURCES", "Context", "Life", "Progress", "life_of", "moment", "slot"]

JOB_SOURCES = ("job", "launcher", "torchelastic")
_INHERITED = 30.0  # seconds by which a line may be later than the stamp it inherited
Progress = tuple[float, int | None, int | None, float | None]  # time, rank, step, seconds a step


@dataclass(slots=True)
class Life:
    """One start of the job: when it began, made its last step, failed first, and said its last word (seconds, UTC)."""

    attempt: int
    start: float
    until: float = float("inf")  # the next start
    stop: float | None = None
    fail: float | None = None
    slack: float = 0.0  # how much later than `fail` the failure may be: its line has no stamp of its own
    end: float | None = None


@dataclass(slots=True)
class Context:
    """Everything a rule may look at; built once per verdict."""

    incident: Evidence
    windows: Windows
    catalog: Signatures
    events: list[Event] = field(default_factory=list)  # normalised, coalesced, ordered
    alias: dict[str, str] = field(default_factory=dict)
    rank_node: dict[int, str] = field(default_factory=dict)
    rank_gpu: dict[int, Gpu] = field(default_factory=dict)
    rank_local: dict[int, int] = field(default_factory=dict)
    gpu_rank: dict[tuple[str, str], int] = field(default_factory=dict)  # (node, pci) → rank
    pid_rank: dict[tuple[str | None, int], int] = field(default_factory=dict)
    pod_node: dict[str, str] = field(default_factory=dict)
    job_pods: set[str] = field(default_factory=set)
    job_nodes: set[str] = field(default_factory=set)
    gpus: dict[str, dict[int, Gpu]] = field(default_factory=dict)  # node → index → identity at the job's start
    unnumbered: dict[str, list[Gpu]] = field(default_factory=dict)  # node → UUID and address, from sources that know no index
    given: dict[str, list[Gpu]] = field(
        default_factory=dict
    )  # node → the GPUs that the job's pods were given there, where all are known
    world_size: int | None = None
    start: float | None = None  # first line of the job
    stop: float | None = None  # last progress
    fail: float | None = None  # first error of the job
    end: float | None = None  # last line of the job
    progress: list[Progress] = field(default_factory=list)
    rank_last: dict[int, dict[str, Any]] = field(default_factory=dict)
    skew: dict[str, float] = field(default_factory=dict)
    job_offset: float = 0.0  # seconds by which the job's own stamps without zone are ahead of UTC
    lives: list[Life] = field(default_factory=list)  # one a start of the job, in order
    other_pods: set[str] = field(default_factory=set)  # pods of other jobs, seen in the platform's state
    sole_node: str | None = None  # the only node that any evidence names
    finished: list[Event] = field(default_factory=list)  # lines that say the job ended well

    @property
    def has_job(self) -> bool:
        """Whether any evidence is of a job: its output, its dumps, or a scheduler's record of it."""
        kinds = {document.kind for document in self.incident.documents if document.events or document.facts.get("progress")}
        return bool(kinds & {"job-log", "flight-recorder", "torchelastic-error", "stacks"} or self.incident.jobs)

    @property
    def has_log(self) -> bool:
        """Whether any output of a job or of its scheduler was read, be it that no line of it says anything."""
        return any(document.kind in ("job-log", "slurm-text") and document.lines for document in self.incident.documents)

    def row(self, event: Event) -> Signature:
        return self.catalog[event.signature]

    def role(self, event: Event) -> str:
        return event.role or self.catalog[event.signature].role

    def cls(self, event: Event) -> str:
        return event.cls or self.catalog[event.signature].cls

    def weight(self, event: Event) -> float:
        return event.weight if event.weight is not None else self.catalog[event.signature].weight

    def node(self, name: str | None) -> str | None:
        """Return the canonical name of a node that a source called `name` (host name, pod, address)."""
        if not name:
            return None
        return self.alias.get(name) or self.alias.get(name.lower()) or self.alias.get(short_node(name)) or name

    def in_job(self, node: str | None) -> bool | None:
        """Tell whether a node belongs to the job; None when the job's nodes are not known, or not all of them."""
        if node is None or not self.job_nodes:
            return None
        if node in self.job_nodes:
            return True
        return False if self.nodes_complete else None

    @property
    def nodes_complete(self) -> bool:
        """Whether the job's nodes are known by its scheduler's word, or because every rank is placed."""
        scheduler = bool(self.job_pods) or any(job.nodes for job in self.incident.jobs)
        return scheduler or (self.world_size is not None and len(self.rank_node) >= self.world_size > 1)

    def rank_on(self, node: str | None, gpu: Gpu | None) -> int | None:
        """Return the rank that ran on a GPU, by PCI address, UUID, or the index at the job's start."""
        if node is None or gpu is None:
            return None
        address = gpu.pci or self.identify(node, gpu).pci
        if address:
            rank = self.gpu_rank.get((node, slot(address)))
            if rank is not None:
                return rank
        for rank, other in self.rank_gpu.items():
            if self.rank_node.get(rank) == node and gpu.uuid and other.uuid == gpu.uuid:
                return rank
        return None

    def identify(self, node: str | None, gpu: Gpu) -> Gpu:
        """Complete a GPU's identity (index, UUID, PCI) with what the node's other sources say of the same device."""
        for known in (*self.gpus.get(node or "", {}).values(), *self.unnumbered.get(node or "", ())):
            if (
                (gpu.uuid and gpu.uuid == known.uuid)
                or (gpu.pci and known.pci and slot(gpu.pci) == slot(known.pci))
                or (not gpu.uuid and not gpu.pci and gpu.index is not None and gpu.index == known.index)
            ):
                return Gpu(
                    gpu.index if gpu.index is not None else known.index,
                    gpu.uuid or known.uuid,
                    gpu.pci or known.pci,
                )
        return gpu

    def is_foreign(self, node: str | None, gpu: Gpu | None) -> bool:
        """Tell whether a GPU of one of the job's nodes was surely given to none of the job's pods."""
        if node is None or gpu is None or not (gpu.pci or gpu.uuid) or not self.given.get(node):
            return False
        gpu = self.identify(node, gpu)
        comparable = False
        for own in self.given[node]:
            if own.pci and gpu.pci:
                comparable = True
                if slot(own.pci) == slot(gpu.pci):
                    return False
            elif own.uuid and gpu.uuid:
                comparable = True
                if own.uuid == gpu.uuid:
                    return False
            else:
                return False  # named by different things, which nothing here brings together
        return comparable

    def ranks_of(self, node: str) -> list[int]:
        return sorted(rank for rank, name in self.rank_node.items() if name == node)


@lru_cache(maxsize=65_536)
def slot(address: str) -> str:
    """Return a PCI address without its function: sources disagree about the function of a GPU, never about its slot."""
    return (canonical_pci(address) or address).rsplit(".", 1)[0]


def moment(event: Event) -> float | None:
    """
    Return the time to order an event by: its own stamp, or for a line that inherited one, the latest it can reasonably be.

    An inherited stamp is a lower bound; taken at its word it would make every unstamped traceback come before the fault that caused it.
    """
    if event.time is None or not event.data.get("time_from") or event.source not in JOB_SOURCES:
        return event.time
    limit = event.data.get("not_after")
    latest = event.time + max(_INHERITED, float(event.data.get("slack") or 0.0))
    return min(latest, max(event.time, float(limit))) if isinstance(limit, (int, float)) else latest


def life_of(context: Context, time: float | None) -> Life | None:
    """Return the start of the job that an event belongs to: the one that ran then, or the next one."""
    if not context.lives:
        return None
    if time is None:
        return context.lives[0]
    for life in context.lives:
        if time < life.until - (30.0 if life.until != float("inf") else 0.0):
            return life
    return context.lives[-1]
