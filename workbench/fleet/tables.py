"""
Turn the fleet's account into named tables: every column of the ledger and of each frame made from it, with kind and meaning.

This is the contract between who writes history (ingest, the supervisor, the simulation) and who counts (objectives, goodput, lemons, cost).
In the ledger times are seconds since the epoch (UTC); in frames they are ``datetime64[us, UTC]``, counts are ``Int64``, numbers are ``Float64``,
texts are ``string``, and what nobody told is `pandas.NA`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JOB_STATES", "NODE_STATES", "PHASES", "TABLES", "Column", "Table"]


@dataclass(frozen=True, slots=True)
class Column:
    """
    One column.

    Attributes
    ----------
    name : str
    kind : str
        ``text``, ``time``, ``count``, ``number`` or ``words`` (a list of texts; JSON in the ledger).
    meaning : str
        What it holds, with its unit.
    """

    name: str
    kind: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """
    One table: its columns, those that identify a row, and what a row is.

    A row that comes again with the same key replaces the older one unless its `recorded` is older; so late, repeated and corrected records
    need no care of who sends them.
    """

    name: str
    meaning: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]


# how a job or an attempt ended, or that it has not
JOB_STATES = ("pending", "running", "completed", "failed", "cancelled", "preempted", "timeout")
# a node takes jobs; is kept from them by somebody; is out of service; is out of service as planned
NODE_STATES = ("usable", "held", "down", "maintenance")
# what an attempt spends its time on. ``step`` is the productive part; the rest is badput. ``lost`` is work done after the checkpoint that the
# next attempt began from, done again by it. Together they cover a job from submission to end without overlap
PHASES = (
    "queue",  # waits for its allocation
    "start",  # allocation → all ranks run (image, launcher, rendezvous)
    "init",  # ranks run → first step (imports, model, compilation)
    "restore",  # reads a checkpoint
    "data",  # waits for input
    "step",  # productive
    "slow",  # the part of slow steps above the usual step time
    "save",  # steps wait for a checkpoint's write
    "lost",  # steps whose result was lost
    "detect",  # failed or hung, and nobody knows yet
    "diagnose",  # known, cause being found
    "recover",  # repair, replacement, back-off, restart decision
    "idle",  # nothing of these, between attempts
)


def _columns(text: str) -> tuple[Column, ...]:
    rows = (line.split(None, 2) for line in text.splitlines() if line.strip())
    return tuple(Column(name, kind, meaning) for name, kind, meaning in rows)


_KEPT = """
    source text      who told: `slurm`, `kubernetes`, `run`, `folder:…`, `journal`, `simulation`
    recorded time    when it was told; the later of two records of the same row is kept
"""

_ALL = (
    Table(
        "jobs",
        "a job, over all its attempts",
        ("cluster", "job"),
        _columns(
            """
    cluster text     name of the cluster; empty when there is one
    job text         its id in that cluster
    name text        its name
    user text        who submitted it
    team text        account or team
    pool text        partition, node pool
    sku text         GPU product
    nodes count      nodes asked for
    gpus count       GPUs asked for
    submitted time   when it was submitted
    started time     when its first attempt was given nodes
    first_step time  when a rank first reached step 1; empty when nobody told or none did
    ended time       when its last attempt ended; empty while it runs
    state text       one of JOB_STATES
    cause text       of its end: hardware, driver, platform, user, unknown; empty when it did not fail
    cls text         failure class
"""
            + _KEPT
        ),
    ),
    Table(
        "attempts",
        "one start of a job",
        ("cluster", "job", "attempt"),
        _columns(
            """
    cluster text     as in jobs
    job text         as in jobs
    attempt count    from 1
    queued time      when it began to wait
    started time     when it was given nodes
    first_step time  when it made its first step
    ended time       when it ended; empty while it runs
    state text       one of JOB_STATES
    exit_code count  of the launcher; negative for a signal
    cause text       of its end
    cls text         failure class
    confidence number of the verdict, 0 to 1
    at_fault text    gpu, node, rank, job, platform
    node text        blamed node
    gpu_uuid text    blamed GPU
    rank count       blamed rank
    node_names words nodes it ran on
    excluded words   nodes it was kept off
    gpus count       GPUs it held
    step_first count first step made
    step_last count  last step made
    step_saved count step of the last checkpoint that the next attempt can begin from
    detected time    when its failure was known
    diagnosed time   when its cause was known
    incident text    folder or id of its evidence
"""
            + _KEPT
        ),
    ),
    Table(
        "phases",
        "what an attempt spent a stretch of its time on",
        ("cluster", "job", "attempt", "kind", "begin"),
        _columns(
            """
    cluster text     as in jobs
    job text         as in jobs
    attempt count    as in attempts
    kind text        one of PHASES
    begin time       from
    end time         to
"""
            + _KEPT
        ),
    ),
    Table(
        "node_states",
        "a stretch of a node's life",
        ("cluster", "node", "begin"),
        _columns(
            """
    cluster text     as in jobs
    node text        its name
    begin time       from
    end time         to; empty while it lasts
    state text       one of NODE_STATES
    cause text       why it is not usable: hardware, driver, platform, user, unknown
    cls text         failure class
    reason text      in the words of who set it
    pool text        node pool
    sku text         GPU product
    gpus count       GPUs it has
"""
            + _KEPT
        ),
    ),
    Table(
        "gpus",
        "a GPU in a slot for a time; it keeps its UUID and serial when it is moved",
        ("cluster", "gpu_uuid", "begin"),
        _columns(
            """
    cluster text     as in jobs
    gpu_uuid text    UUID
    serial text      serial number of the board
    node text        where it is
    slot text        PCI address
    begin time       from
    end time         to; empty while it is there
    seen time        when it was last seen there
"""
            + _KEPT
        ),
    ),
    Table(
        "signals",
        "a sign against a node or GPU",
        ("cluster", "node", "gpu_uuid", "kind", "time", "job"),
        _columns(
            """
    cluster text     as in jobs
    node text        the node
    gpu_uuid text    the GPU; empty for the node
    kind text        job-failure, excluded, xid, sxid, finding, ticket, out-of-service, remediation
    time time        when
    job text         the job it came with; several rows of one job and node are one blame
    cls text         failure class
    code text        Xid, name of the check, rung, ticket
    weight number    1 for one whole blame; shares of one job's blame among several nodes add up to 1
    detail text      in words
"""
            + _KEPT
        ),
    ),
    Table(
        "findings",
        "what a health check concluded",
        ("cluster", "node", "gpu_uuid", "check_name", "time"),
        _columns(
            """
    cluster text     as in jobs
    node text        the node
    gpu_uuid text    the GPU; empty for the node
    check_name text  name of the check
    time time        when it was made
    status text      ok, warning, critical, unknown, not-applicable
    cls text         failure class
    action text      what it calls for
    message text     in words
"""
            + _KEPT
        ),
    ),
    Table(
        "actions",
        "a rung of the ladder that was taken",
        ("cluster", "node", "rung", "begin"),
        _columns(
            """
    cluster text     as in jobs
    node text        the node
    gpu_uuid text    the GPU; empty for the node
    rung text        name of the rung
    begin time       intent
    end time         outcome; empty while it is under way
    outcome text     done, failed, expired, refused, undone, unknown, held
    cls text         class that called for it
    plan text        id of its plan
"""
            + _KEPT
        ),
    ),
)

TABLES = {table.name: table for table in _ALL}
