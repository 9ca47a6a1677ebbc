"""Turn a whole job log, once read, into what only the whole tells: whose exception it was, who ended by himself, who diverged."""

from __future__ import annotations

import re
from typing import Any

from workbench.model import Event, Gpu, Placement
from workbench.parse.job_barrier import barriers
from workbench.parse.job_ends import SIGNALS, by_signal, left, quiet
from workbench.parse.job_launcher import Failure
from workbench.parse.job_outlived import outlived
from workbench.parse.job_ranks import attribute
from workbench.parse.job_spawn import children, meshes, recovered, rooms, tasks_of_nodes
from workbench.parse.job_state import MAX_EVENTS, SOFT, JobState, Uttered, add, cut, details, remember
from workbench.parse.prefix import Prefix

__all__ = ["conclude"]

_FORGIVEN = frozenset(
    {"noise-metrics-push", "noise-tracker", "noise-retry", "noise-shutdown"}
)  # a logger that says so goes on after the traceback
_QUOTING = frozenset({"triton-models-failed", "ray-trial-failed", "ray-task-error"})  # lines that repeat an error said before
_HOOKED = re.compile(r"\[rank\d+\]:")
_THREAD = re.compile(r"^Exception in thread |^Exception ignored in|Error in sys\.excepthook")
# Rank 3: found NaN in local grad norm | [Rank 2] no batch left | Rank 2, node node-a, device 2, iteration 9: Unexpected result nan
_NAMES_ITSELF = re.compile(r"\[?[Rr]ank (\d+)\]?[:,\]] ")
# … node-a kubelet[9010]: E0902 22:01:59 …: a service of the node is no process of the job
_DAEMON = re.compile(r"\b(?:kubelet|containerd|dockerd|crio|systemd|slurmd|kernel)(?:\[\d+\])?: ")
_IGNORED = re.compile(r"^Exception ignored in")
_NOWHERE = ("localhost", "localhost.localdomain")  # what a host calls itself: the one that wrote the file


def conclude(job: JobState) -> None:
    """Add to a job's events what follows from all of its lines together."""
    _failures(job)
    _exceptions(job)
    _tasks(job)
    meshes(job)
    tasks_of_nodes(job)
    children(job)
    rooms(job)
    recovered(job)
    _workers(job)
    _renamed(job)
    _quoted(job)
    one_node = len(job.ctx.hosts) <= 1
    attribute(job.parsed, job.summary.failures, one_node=one_node, local_size=job.local_size, seen=job.ranks)
    _echoes(job)
    outlived(job)
    _last_words(job)
    _divergence(job)
    left(job)
    quiet(job)
    _missing(job)
    _skipped(job)
    _members(job)
    _first_crash(job)
    _reruns(job)
    _no_driver(job)
    _killed(job)
    barriers(job)


def _workers(job: JobState) -> None:
    """TensorFlow numbers its workers; where hosts carry that number in their names, those that came to nothing do so too."""
    placed = {one.node: one.rank for one in job.parsed.placements if one.origin == "tensorflow" and one.node}
    stems = {str(node)[: -len(str(rank))] for node, rank in placed.items() if str(node).endswith(str(rank))}
    if len(placed) < 2 or len(stems) != 1:
        return
    stem = stems.pop()
    for event in job.parsed.events:
        name = event.node or ""
        if event.rank is None and name.startswith(stem) and name[len(stem) :].isdigit():
            event.rank = int(name[len(stem) :])
            event.data["rank_from"] = "placement"


def _killed(job: JobState) -> None:
    """Where the log says who was killed for memory, the launcher's report of the kill is no second cause."""
    if not any(event.signature == "log-oom-kill" for event in job.parsed.events):
        return
    for event in job.parsed.events:
        if event.signature == "exit-sigkill-deepspeed":
            event.role = "symptom"


def _renamed(job: JobState) -> None:
    """A launcher's name of a worker gives way to the name that its host has; the hosts of other workers stay unknown."""
    records: list[Event | Placement] = [*job.parsed.events, *job.parsed.placements]
    for record in records:
        if record.node in job.names:
            record.node = job.names[record.node]


def _quoted(job: JobState) -> None:
    """Add what other tools wrote into this log, in its place; a wrapper runs where the only known node is."""
    nodes = {one.node for one in job.parsed.placements if one.node}
    here = job.node or (next(iter(nodes)) if len(nodes) == 1 else None)

    def whose(pid: int) -> str | None:
        return job.by_pid[pid][2] if pid in job.by_pid else None

    made = job.quoted.events(job.file, here, whose)
    if made:
        for event in made:
            event.attempt = job.attempt
        job.parsed.events = sorted([*job.parsed.events, *made], key=lambda event: event.line or 0)


def _tasks(job: JobState) -> None:
    """Where srun starts the ranks itself (no agent counts below it), the number of its task is the rank."""
    if any(event.signature.startswith("elastic-") for event in job.parsed.events) or job.summary.failures:
        return
    for event in job.parsed.events:
        task = event.data.get("task")
        known = isinstance(task, int) and (job.world is None or task < job.world)
        if known and event.signature.startswith("slurm-task-") and event.rank is None:
            event.rank = task


_NAMES_A_NODE = (
    "ray-node-died", "ray-worker-died", "cloud-preempted", "mpi-daemon-lost", "slurm-node-failure-srun", "slurm-launch-failed",
    "slurm-task-", "exit-", "agent-heartbeat-lost", "slurm-node-fail",
)  # fmt: skip


def _members(job: JobState) -> None:
    """A node that the job's own launcher speaks of is one of the job's, also when no rank is known to have run on it."""
    named: dict[str, Event] = {}
    for event in job.parsed.events:
        if event.signature.startswith(_NAMES_A_NODE):
            for name in (event.node, event.data.get("reported_by")):
                if isinstance(name, str) and name:
                    named.setdefault(name, event)
    lost = {event.node for event in job.parsed.events if event.signature == "slurm-node-failure-srun" and event.node}
    for event in job.parsed.events:
        if event.signature == "slurm-node-fail" and event.node is None and len(lost) == 1:
            event.node, event.role = next(iter(lost)), "symptom"  # another node's daemon ends the step since srun lost that one
    placed = {one.node for one in job.parsed.placements if one.node}
    if len(named.keys() | placed) < 2:
        return  # a single name would make strangers of all other nodes
    for name in named.keys() - placed:
        remember(job, None, None, name, None, named[name].time, named[name].line or 0, "launcher-line")


def _first_crash(job: JobState) -> None:
    """Composer names the rank that ended first; the codes of all others, which it lists later, follow from that."""
    first = next(
        (event for event in job.parsed.events if "crashed with exit code" in event.text and event.rank is not None), None
    )
    for event in job.parsed.events:
        if (
            first is not None
            and event.text.find("Global rank") >= 0
            and event.rank != first.rank
            and event.signature.startswith("exit-")
        ):
            event.weight = 0.05


def _reruns(job: JobState) -> None:
    """Megatron ran a suspicious step again: its conclusion says what the first unexpected result of that rank was."""
    rows = job.matcher.rows
    right = {event.rank for event in job.parsed.events if event.signature == "megatron-result-correct"}
    for event in job.parsed.events:
        if not event.signature.startswith("megatron-sdc-"):
            continue
        for other in job.parsed.events:
            before = (other.line or 0) < (event.line or 0)
            # what comes after it on the same GPU is not decided yet, but that GPU has computed wrongly before
            same = other.rank == event.rank and event.rank is not None and (before or event.rank not in right)
            if same and other.signature == "megatron-unexpected-result" and other.cls is None:
                other.cls, other.weight = rows[event.signature].cls, event.weight or rows[event.signature].weight
                other.node, other.gpu, other.data["at_fault"] = event.node, event.gpu, "gpu"
        if event.signature == "megatron-sdc-elsewhere":
            # an older Megatron names the GPU that checked the result, which is a good one; the bad one ran this rank before the restart
            for one in (event, *(other for other in job.parsed.events if other.signature == "megatron-unexpected-result")):
                one.rank = one.node = one.gpu = None
                one.data["at_fault"] = "job"


def _no_driver(job: JobState) -> None:
    """Without any driver the CUDA runtime says that the driver is too old: of a container that got none, that is no version trouble."""
    if not any(event.signature == "container-no-driver" for event in job.parsed.events):
        return
    for event in job.parsed.events:
        if event.signature in ("cuda-driver-insufficient", "cuda-driver-old"):
            event.role, event.cls, event.weight = "symptom", "driver/missing", 0.2


def _failures(job: JobState) -> None:
    """Report the blocks of the agent's summary, and learn ranks from it."""
    row = job.matcher.rows["elastic-failure"]
    last_raised: dict[str, list[Failure]] = {}
    for failure in job.summary.failures:
        if failure.host in _NOWHERE:
            failure.host = job.node or failure.host
        data: dict[str, Any] = {"root": failure.root, "exit_code": failure.code}
        if failure.code is not None and failure.code < 0:
            data["signal"] = SIGNALS.get(-failure.code, str(-failure.code))
        if failure.raised:
            final = failure.raised[-1]
            data.update(exception=final.exception, message=final.message[:500], user_frame=final.user_frame)
            for quoted in failure.raised:
                last_raised.setdefault(quoted.text, []).append(failure)
        job.parsed.events.append(
            Event(
                row.id, "torchelastic", failure.text[:2000], failure.time, job.file, failure.no, failure.host or job.node,
                rank=failure.rank, local_rank=failure.local_rank, pid=failure.pid, attempt=failure.attempt, code=failure.code,
                data=data,
            )
        )  # fmt: skip
        by_signal(job, job.parsed.events[-1])
        if failure.rank is not None:
            if failure.pid is not None:
                job.by_pid[failure.pid] = (failure.rank, failure.local_rank, failure.host)
            remember(
                job,
                failure.rank,
                failure.local_rank,
                failure.host or job.node,
                failure.pid,
                failure.time,
                failure.no,
                "torchelastic",
            )
    for event in job.parsed.events:
        if event.rank is None and event.pid in job.by_pid and event.signature == "elastic-exit":
            event.rank, event.node = job.by_pid[event.pid][0], event.node or job.by_pid[event.pid][2]
    # exceptions without a speaker get the rank whose summary block quotes them, when only one does
    for one in job.raised:
        raised, head = one.raised, one.head
        blocks = last_raised.get(raised.text, [])
        ranks = {block.rank for block in blocks}
        if head.rank is None and len(ranks) == 1:
            head.rank, head.local_rank = blocks[0].rank, blocks[0].local_rank
            head.node = head.node or blocks[0].host
    known = {one.raised.text for one in job.raised}
    for text, blocks in last_raised.items():  # only the summary has it: the worker's own output is not in this file
        if text in known:
            continue
        for block in blocks[:64]:
            for quoted in block.raised:
                if quoted.text == text:
                    head = Prefix(rank=block.rank, local_rank=block.local_rank, node=block.host, pid=block.pid)
                    hits = tuple(job.matcher.search(quoted.text))
                    job.raised.append(Uttered(quoted, head, block.time, quoted.text, block.attempt or 0, hits))


def _went_on(job: JobState, rank: int | None, no: int) -> bool:
    """Tell whether the rank (or, when unknown, every rank that reports) got further than it was, after a line."""
    everyone: list[int | None] = [one for one, state in job.ranks.items() if state.last_step is not None]
    for one in [rank] if rank is not None else everyone[:64] or [None]:
        points = [(at, step) for _, who, step, _, _, at in job.progress if step is not None and (one is None or who == one)]
        before = max((step for line, step in points if line < no), default=None)
        after = {step for line, step in points if line > no and (before is None or step > before)}
        if len(after) < (1 if before is not None else 2):
            return False
    return True


def _exceptions(job: JobState) -> None:
    """Report one event for each exception; the root of a chain is the cause, the others follow from it."""
    rows = job.matcher.rows
    specific: set[int] = set()  # ids of raised that a row of its own names as a cause
    done: dict[tuple[Any, ...], Event] = {}
    events: dict[int, Event] = {}
    codes = {failure.rank: failure.code or 0 for failure in job.summary.failures if failure.attempt == job.attempt}
    last_of = {one.head.rank: one.raised for one in job.raised}
    for one in job.raised:
        raised, head, moment, text, attempt, intro = one.raised, one.head, one.time, one.text, one.attempt, one.intro
        ordered = [row for row in job.matcher.order(one.hits) if row.id not in SOFT and row.layer != "noise"]
        row = ordered[0] if ordered else rows["python-exception"]
        if intro is not None and intro.level in ("DEBUG", "INFO"):
            intro = None  # a logger that passes an exception on says so at a higher level: this line has nothing to do with it
        if head.rank is None and (itself := _NAMES_ITSELF.match(raised.message)):
            head.rank = int(itself[1])
        if intro is not None and head.rank is None and head.pid is None and not head.stream:
            head.rank, head.local_rank, head.node = intro.rank, intro.local_rank, head.node or intro.node
        data: dict[str, Any] = {"exception": raised.exception, "message": raised.message[:500], "frames": raised.frames}
        data.update(job.matcher.fields(row, text))
        details(row, text, data)
        if raised.user_frame:
            data["user_frame"] = raised.user_frame
        if raised.where:
            data["in"] = raised.where
        also = [other.id for other in ordered[1:] if other.id != row.id]
        if also:
            data["also"] = also
        if raised.bare:
            data["bare"] = True
        near = raised.start - raised.intro_no <= 2
        intro_text = intro.rest if intro is not None else raised.intro if near else ""
        if intro_text and near:
            data["intro"] = intro_text[:200]
        role = row.role
        if raised.chained_from is not None:
            data["chained_from"] = raised.chained_from.text[:300]
            if id(raised.chained_from) in specific or row.id == "python-exception":
                role = "symptom"
        elif raised.wraps is not None:
            data["wraps"] = raised.wraps.text[:300]
            role = "symptom" if row.layer == "generic" else role
        if (row.role == "cause" and row.layer != "generic") or (
            raised.chained_from is not None and id(raised.chained_from) in specific
        ):
            specific.add(id(raised))
        noise = bool(intro_text) and not _FORGIVEN.isdisjoint(job.matcher.search(intro_text[:400]))
        if _IGNORED.search(intro_text or "") or "noise-shutdown" in one.hits:
            noise = True
        threaded = bool(_THREAD.search(intro_text or ""))
        # torch's own hook prints "[rank3]: Traceback": nobody caught that one
        uncaught = (
            threaded
            or bool(_HOOKED.search(text[: len(text) - len(head.rest)]))
            or (codes.get(head.rank, 0) > 0 and last_of.get(head.rank) is raised)
        )
        if noise or (not uncaught and attempt == job.attempt and _went_on(job, head.rank, raised.no)):
            data["handled"] = True
        elif attempt != job.attempt:
            data["earlier_attempt"] = True
        if "time_from" not in data and head.time is None and moment is not None:
            data["time_from"] = "previous"
        key = (row.id, head.rank, head.local_rank, head.pid, raised.text, attempt, role)
        if key in done:
            done[key].count += 1
            done[key].last = moment
            continue
        if len(job.parsed.events) >= MAX_EVENTS:
            job.dropped += 1
            continue
        event = Event(
            row.id, "job", cut(text, None), moment, job.file, raised.no, head.node or job.node, None, head.rank, head.local_rank,
            head.pid, attempt, role=role if role != row.role else None, data=data,
        )  # fmt: skip
        if (index := data.pop("gpu_index", None)) is not None:
            event.gpu = Gpu(index=index)
        if isinstance(named := data.pop("rank", None), int):
            event.rank = named
        event.node = data.pop("node", None) or event.node
        if data.get("handled"):
            event.role = "context"
        done[key] = events[id(raised)] = event
        job.parsed.events.append(event)
        if row.role == "cause" and row.layer != "generic":
            # what was raised first in the chain says less than this: a fall-back that failed, a lookup that was tried
            link = raised.chained_from
            while link is not None:
                if (earlier := events.get(id(link))) is not None and earlier.signature == "python-exception":
                    earlier.role = "symptom"
                    earlier.data["superseded_by"] = raised.text[:200]
                link = link.chained_from
    _supersede(job, events)
    _fold(job, list(events.values()))
    job.parsed.events.sort(key=lambda event: event.line or 0)


def _supersede(job: JobState, events: dict[int, Event]) -> None:
    """
    A generic exception whose log goes on with "During handling of …" gives way to the specific cause that follows it.

    The links of a chain are lost where ranks write into one another; the sentence itself and the order of lines remain.
    """
    rows = job.matcher.rows
    for one in job.raised:
        event = events.get(id(one.raised))
        if event is None or not one.raised.continued or event.signature != "python-exception" or event.role is not None:
            continue
        for other in job.parsed.events:
            row = rows[other.signature]
            near = 0 < (other.line or 0) - (event.line or 0) < 300 and other.rank == event.rank
            if near and row.layer != "generic" and (other.role or row.role) == "cause":
                event.role = "symptom"
                event.data["superseded_by"] = other.text[:200]
                break


def _fold(job: JobState, exceptions: list[Event]) -> None:
    """The lines of a long message repeat what its exception said: they are counted with it."""
    ends = {(event.signature, event.rank, event.line): event for event in exceptions if event.line is not None}
    kept = []
    for event in job.parsed.events:
        if "exception" not in event.data and event.line is not None:
            first = next(
                (ends[key] for back in range(1, 13) if (key := (event.signature, event.rank, event.line - back)) in ends), None
            )
            if (first is not None and event.data.get("time_from") == "previous") or (first is not None and event.time is None):
                first.count += event.count
                continue
        kept.append(event)
    job.parsed.events[:] = kept


def _echoes(job: JobState) -> None:
    """
    The watchdog and C++'s last message repeat an error that the rank has raised: said once more, it is no second cause.

    Nor is the exception that ends on what its own C++ layer logged a moment before (a name that could not be resolved).
    """
    rows = job.matcher.rows
    first: dict[tuple[str, int | None, int | None], Event] = {}
    said: dict[tuple[str, int | None], Event] = {}
    for event in job.parsed.events:
        if (event.role or rows[event.signature].role) != "cause":
            continue
        earlier = first.setdefault((event.signature, event.rank, event.attempt), event)
        again = False
        if event.signature.startswith(("cuda-", "cublas-", "cudnn-")):
            again = "c10d-taking-down" in event.data.get("also", ()) or event.text.lstrip().startswith("what():")
        elif event.signature.startswith(("dns-", "nccl-", "py-threads-")) and "exception" in event.data:
            earlier = said.get((event.signature, event.attempt), event)
            again = earlier.rank in (None, event.rank) and "exception" not in earlier.data
        said.setdefault((event.signature, event.attempt), event)
        if not again and not _QUOTING.isdisjoint(event.data.get("also", ())):
            earlier = said[event.signature, event.attempt]
            again = True
        if earlier is not event and again:
            event.role = "symptom"
            event.data["echo_of"] = earlier.line


def _last_words(job: JobState) -> None:
    """A process that ended by itself without a traceback: the last error that it logged is why."""
    rows = job.matcher.rows
    blamed = {
        (event.attempt, event.rank)
        for event in job.parsed.events
        if (event.role or rows[event.signature].role) == "cause" and event.signature != "loss-nan"
    }
    codes = {failure.rank: failure.code for failure in job.summary.failures if failure.attempt == job.attempt}
    for key, (no, text, head, moment, attempt) in sorted(job.words.items(), key=lambda item: item[1][0]):
        rank = head.rank
        if rank is None:
            rank = next((f.rank for f in job.summary.failures if f.local_rank == -1 - key and key < 0), None)
        if (attempt, rank) in blamed or (attempt, None) in blamed:
            continue
        if any(event.line == no for event in job.parsed.events) or _known(job, text) or _DAEMON.search(text[:120]):
            continue
        code = codes.get(rank)
        if code is None and (codes or any(a == attempt for a, _ in blamed)):
            continue
        if code is not None and code <= 0:
            continue
        if _went_on(job, rank, no) and job.ranks:
            continue
        head.rank = rank
        data: dict[str, Any] = {"exit_code": code} if code is not None else {}
        job.attempt, now = attempt, job.attempt
        event = add(job, rows["app-last-words"], no, text, head, moment, data)
        job.attempt = now
        if event is not None and code is None:
            event.weight = 0.35
    job.parsed.events.sort(key=lambda event: event.line or 0)


def _known(job: JobState, text: str) -> bool:
    """Tell whether the tables know a line: noise, and consequences of something else, are nobody's last words."""
    ordered = [row for row in job.matcher.order(job.matcher.search(text)) if row.id not in SOFT]
    return bool(ordered) and ordered[0].layer != "generic"


def _missing(job: JobState) -> None:
    """A store key of a rank that was never started is a wrong world size; of one that runs, that rank hangs."""
    started = set(job.ranks) | {failure.rank for failure in job.summary.failures if failure.rank is not None}
    for event in job.parsed.events:
        missing = event.data.get("missing_rank")
        if not isinstance(missing, int) or not started:
            continue
        if missing not in started and started == set(range(len(started))) and missing >= len(started) and len(started) > 1:
            event.role, event.cls, event.weight = "cause", "user/config", 0.6
        elif missing in started:
            event.cls, event.weight = "user/hang", 0.4


def _skipped(job: JobState) -> None:
    """A data set that was left out is the cause when the code then fails over the data."""
    rows = job.matcher.rows
    left_out = [event for event in job.parsed.events if event.signature == "dataset-skipped"]
    for event in left_out:
        for other in job.parsed.events:
            after = (other.line or 0) > (event.line or 0) and other.attempt == event.attempt
            blamed = other.signature == "python-exception" and (other.role or rows[other.signature].role) == "cause"
            if after and blamed and any("data" in frame for frame in other.data.get("frames", [])):
                event.role, other.role = "cause", "symptom"
                event.rank = event.rank if event.rank is not None else other.rank


def _divergence(job: JobState) -> None:
    """What a few ranks did and the others did not (left out a step, ran out of data) is a cause, when the job then failed."""
    ranks = {rank for rank, state in job.ranks.items() if state.last_step is not None or state.lines > 3}
    for name in ("rank-data-exhausted", "rank-skipped-step"):
        events = [event for event in job.parsed.events if event.signature == name and event.rank is not None]
        saying = {event.rank for event in events}
        if saying and len(ranks) > len(saying) and ranks - saying:
            for event in events:
                event.role = "cause"
                event.data["others"] = len(ranks - saying)
