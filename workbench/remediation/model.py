"""
Turn what is wrong, what the fleet looks like and what shall be done about it into records: Trouble, FleetState, Action, Plan, Step.

Nothing here reaches the world or decides. Times are seconds since the epoch (UTC), spans are seconds, costs are GPU-hours. Every record
becomes plain values and comes back from them unchanged (`to_dict`, `from_dict`), since plans and journals are files that outlive a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.model import Gpu
from workbench.remediation.records import plain, record
from workbench.remediation.words import FINAL, OUTCOMES, OWNER, PLAN_SCHEMA, RECOVERY, RUNGS, STEPS, VERBS, digest

__all__ = [
    "OUTCOMES",
    "FINAL",
    "OWNER",
    "PLAN_SCHEMA",
    "RECOVERY",
    "RUNGS",
    "STEPS",
    "VERBS",
    "Action",
    "Blast",
    "Cost",
    "Evidence",
    "FleetState",
    "NodeState",
    "Plan",
    "Refusal",
    "Step",
    "Trouble",
    "Work",
    "by_node",
    "digest",
]


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    One observation that a plan stands on.

    Attributes
    ----------
    id : str
        Stable: the same observation has the same id in every plan.
    source : str
        ``check`` or a source of a verdict: ``kernel``, ``job``, ``metrics`` …
    text : str
        The line or value as it was.
    time : float or None
        When it happened; None when nobody knows, which no destructive rung accepts.
    file : str
        Where it can be read again.
    """

    id: str
    source: str
    text: str
    time: float | None = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    Something wrong with one node or GPU, from a finding or a verdict, with how sure that is.

    Attributes
    ----------
    node : str
        The node to blame; empty when no node is.
    gpu : Gpu or None
        The GPU, when one is to blame.
    code : str
        Kind of fault: code of a finding, or the first signature of a verdict.
    cls, cause : str
        Failure class and its cause: ``hardware/gpu-memory``, ``hardware``.
    action : str
        The remediation called for: one of `workbench.model.REMEDIATIONS`.
    retry : str
        ``exclude-node`` and so on when a verdict says so; empty for findings.
    severity : str
        ``critical``, ``warning`` or ``unknown`` (could not be checked).
    confidence : float
        0 to 1; of findings 1 for critical and warning.
    seen, since : float or None
        When the last evidence of it was observed, and the first; the latter None when only the former is known.
    boot : str
        Boot id (or boot time as text) of the node when it was seen; empty when not known.
    job : str
        The job that died of it; empty when none did.
    summary : str
        One sentence.
    evidence : tuple of Evidence
    facts : mapping
        What a provider asks for, as far as told: ``serial``, ``vbios``, ``product`` of the GPU, ``diagnostics``.
    """

    node: str
    code: str
    cls: str
    action: str
    severity: str = "critical"
    gpu: Gpu | None = None
    cause: str = ""
    retry: str = ""
    confidence: float = 1.0
    seen: float | None = None
    since: float | None = None
    boot: str = ""
    job: str = ""
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """
        The fault of this entity, whenever and by whomever seen: what a repetition of it shares.

        It is made of the class, not of the code, since one sick memory says Xid 48 today and Xid 95 tomorrow.
        """
        gpu = "" if self.gpu is None else self.gpu.uuid or self.gpu.pci or str(self.gpu.index)
        return digest([self.node, gpu, self.cls or self.code])

    @property
    def newest(self) -> float | None:
        """When the newest of its evidence was observed."""
        return max((one for one in (self.seen, *(piece.time for piece in self.evidence)) if one is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, **plain(self)}


@dataclass(frozen=True, slots=True)
class Work:
    """
    Something that runs on a node and ends when the node goes.

    Attributes
    ----------
    id : str
        ``namespace/pod`` or ``jobid``.
    uid : str
        Identity that a second thing of the same name does not have.
    job : str
    ranks, gpus : int
        Ranks and GPUs of it on this node.
    job_gpus : int
        GPUs of the whole job, everywhere: when it is a gang, all of them stop.
    since : float or None
        When it began.
    saved : float or None
        When its last checkpoint was written, as far as somebody told.
    gang : bool
        Whether the whole job stops when this stops.
    controlled : bool
        Whether something starts it again elsewhere.
    budgets : tuple of str
        Disruption budgets that cover it.
    disruptions : int or None
        How many disruptions they allow now; None without a budget.
    grace : float
        Seconds that it gets to end.
    ignored : bool
        Belongs to the node (DaemonSet, mirror pod): stays, and nobody loses anything.
    """

    id: str
    uid: str = ""
    job: str = ""
    ranks: int = 0
    gpus: int = 0
    job_gpus: int = 0
    since: float | None = None
    saved: float | None = None
    gang: bool = True
    controlled: bool = True
    budgets: tuple[str, ...] = ()
    disruptions: int | None = None
    grace: float = 30.0
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class NodeState:
    """
    One node as its scheduler sees it now.

    Attributes
    ----------
    name, uid : str
        The name, and the identity that a replacement of the same name does not have (node UID, instance id).
    boot : str
        Boot id; empty when not known.
    booted : float or None
        When it came up.
    ready : bool or None
        Whether its agent answers; None when that is not known.
    schedulable : bool
        Whether new work may come.
    owner : str
        Who restricted it: `OWNER`, another's name or ``somebody`` for a restriction without one; empty when nobody did.
    op : str
        Id of our action that did; empty otherwise.
    reason : str
        As it is written there.
    restricted, expires : float or None
        When that was, and when our restriction expires.
    marks : mapping
        What else of ours is on it: names of taints, labels and annotations to their values.
    pool, zone, sku, environment : str
        The last is ``cloud`` or ``metal``; each is empty when not known.
    gpus : int
        GPUs that it should have.
    claim : str
        What stands for its machine with the provider: a NodeClaim, ``cluster-api:namespace/name``; ``command:…`` for the site's command.
    provider : str
        The provider's id of the machine: ``aws:///us-east-1a/i-0abc``.
    version : str
        Version of the object (resourceVersion): what a change is conditional on.
    conditions : tuple of mapping
        What checks show on the node: the conditions of Kubernetes whose type begins with ``Workbench``, as they stand there.
    checked_boot : str
        Boot id in which those checks ran; empty when not known.
    unseen : tuple of str
        What nobody can tell here: ``work`` (what runs and would be lost), ``boot``.
    work : tuple of Work
    """

    name: str
    uid: str = ""
    boot: str = ""
    booted: float | None = None
    ready: bool | None = True
    schedulable: bool = True
    owner: str = ""
    op: str = ""
    reason: str = ""
    restricted: float | None = None
    expires: float | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    zone: str = ""
    sku: str = ""
    environment: str = ""
    gpus: int = 0
    claim: str = ""
    provider: str = ""
    version: str = ""
    conditions: tuple[Mapping[str, str], ...] = ()
    checked_boot: str = ""
    unseen: tuple[str, ...] = ()
    work: tuple[Work, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether we restricted it."""
        return self.owner == OWNER

    @property
    def foreign(self) -> bool:
        """Whether somebody else restricted it: then nothing of ours touches it."""
        return bool(self.owner) and self.owner != OWNER

    @property
    def healthy(self) -> bool:
        """Whether it is capacity: it answers and takes work."""
        return self.ready is True and self.schedulable

    def busy(self) -> tuple[Work, ...]:
        """Return the work that would be lost."""
        return tuple(one for one in self.work if not one.ignored)


@dataclass(frozen=True, slots=True)
class FleetState:
    """
    All nodes at one moment.

    `complete` is false when a part could not be seen; `problems` then say which, and nothing that makes the fleet smaller is done.
    """

    time: float
    nodes: Mapping[str, NodeState]
    cluster: str = ""
    complete: bool = True
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blast:
    """What an action takes away: work, jobs, ranks, GPU-hours since the last checkpoint, and the budgets in its way."""

    work: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    ranks: int = 0
    gpus: int = 0
    gpu_hours: float | None = None  # lost progress; None when nobody knows since when
    budgets: tuple[str, ...] = ()  # disruption budgets that allow none now


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-hours of acting now against those of waiting for the work to end; None when it cannot be told."""

    now: float | None = None
    wait: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """
    One change of one thing, complete: who executes it needs nothing else.

    Attributes
    ----------
    id : str
        Written on what is changed; the same id twice is the same change.
    verb : str
        One of `VERBS`.
    rung : str
        One of `RUNGS`: what it is a part of.
    node, target : str
        The node, and what is changed: the node, a pod, a job, a claim.
    gpu : Gpu or None
    why : str
        One sentence.
    evidence : tuple of str
        Ids of the plan's evidence.
    trouble : str
        Id of the trouble it is for.
    expects : mapping
        What must still be so just before: ``uid``, ``boot``, ``owner``, ``schedulable``, ``work`` (ids of what may be lost).
    args : mapping
        What the verb needs: reason, taint, text of the ticket.
    after : tuple of str
        Ids of actions that must be done before.
    waits : str
        What is waited for, in words.
    deadline : float
        Seconds from its begin until it counts as expired.
    undo : str
        The verb that takes it back; empty when nothing does.
    approval : str
        ``auto`` when the policy lets it act, else ``person``.
    """

    id: str
    verb: str
    rung: str
    node: str
    target: str = ""
    gpu: Gpu | None = None
    why: str = ""
    evidence: tuple[str, ...] = ()
    trouble: str = ""
    expects: Mapping[str, Any] = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    blast: Blast = field(default_factory=Blast)
    cost: Cost = field(default_factory=Cost)
    waits: str = ""
    deadline: float = 300.0
    undo: str = ""
    approval: str = "person"

    @property
    def destructive(self) -> bool:
        """Whether it ends work or a machine's state: it cannot be taken back."""
        return self.verb in FINAL

    @property
    def recovery(self) -> bool:
        """Whether it gives capacity back or only looks and tells."""
        return self.verb in RECOVERY

    def to_dict(self) -> dict[str, Any]:
        return dict(plain(self))


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was called for and is not in the plan (or was not done): which guard forbade it, why, and until when."""

    guard: str
    node: str
    rung: str
    why: str
    trouble: str = ""
    until: float | None = None
    action: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What shall be done, as data: a person or a policy approves exactly this.

    Attributes
    ----------
    id : str
        Hash of its content.
    made, expires : float
        After `expires` no chain of it is begun; see `expiry`.
    cluster, owner, policy : str
        Where, whose, and the file of the policy that decided what needs a person.
    actions : tuple of Action
        In an order that can be executed.
    refused : tuple of Refusal
    troubles : tuple of Trouble
        What is wrong: all that was considered, also what calls for nothing.
    notes : tuple of str
        What a person must know before saying yes: the breaker, a fleet that could not be seen whole.
    breaker : str
        Why the breaker is open; empty when it is closed.
    """

    made: float
    expires: float
    actions: tuple[Action, ...] = ()
    refused: tuple[Refusal, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[str, ...] = ()
    cluster: str = ""
    owner: str = OWNER
    policy: str = ""
    breaker: str = ""
    id: str = ""

    def evidence(self) -> dict[str, Evidence]:
        """Return every piece of evidence by id."""
        return {one.id: one for trouble in self.troubles for one in trouble.evidence}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values: schema, then the fields; ``seal`` is a hash of all the others."""
        body = {"schema": PLAN_SCHEMA, **plain(self)}
        return {**body, "seal": digest(body, 32)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Plan:
        """
        Return the plan that `to_dict` gave.

        Raises
        ------
        ValueError
            It is no plan, of another schema, or was changed after it was made.
        """
        if value.get("schema") != PLAN_SCHEMA:
            raise ValueError(f"it is no plan of the schema {PLAN_SCHEMA}")
        body = {key: one for key, one in value.items() if key != "seal"}
        if value.get("seal") != digest(body, 32):
            raise ValueError("it was changed after it was made: its seal does not fit its content")
        return record(cls, {key: one for key, one in body.items() if key != "schema"})


@dataclass(frozen=True, slots=True)
class Step:
    """
    How far an action is, as the executor sees it in the world.

    Attributes
    ----------
    status : str
        One of `STEPS`. ``absent``: nothing of it has happened; ``pending``: begun and not over; ``blocked``: something holds it (a disruption
        budget); ``changed``: the world is not what the action expects; ``unknown``: it cannot be told, so nobody may do it again.
    detail : str
        One sentence, in the server's own words where they help.
    before : mapping
        What it was before, as far as an undo needs it.
    again : float
        Seconds after which it is worth looking again.
    """

    status: str
    detail: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    again: float = 5.0

    def __post_init__(self) -> None:
        if self.status not in STEPS:
            raise ValueError(f"{self.status!r} is none of {', '.join(STEPS)}")


def by_node(troubles: Iterable[Trouble]) -> dict[str, list[Trouble]]:
    """Return the troubles of each node, those without a node left out, in the order they came."""
    found: dict[str, list[Trouble]] = {}
    for one in troubles:
        if one.node:
            found.setdefault(one.node, []).append(one)
    return found
