"""Turn the platform's state into causes: whose pod or process it was, which node fell silent, which file server was gone."""

from __future__ import annotations

import re
from collections import defaultdict

from workbench.model import Event
from workbench.triage.context import Context, life_of
from workbench.triage.rules.outcome import Outcome

__all__ = [
    "file_servers",
    "lost_nodes",
    "lost_store",
    "memory_kills",
    "other_workloads",
    "quoted_lines",
    "started_after",
    "superseded_mismatch",
    "volumes",
]

_EXIT_9 = (
    "elastic-exit",
    "exit-sigkill",
    "torchelastic-failure",
    "torchelastic-root-cause",
    "slurm-task-killed",
    "k8s-oom-killed",
    "elastic-failure",
)


def other_workloads(context: Context, outcome: Outcome) -> None:
    """What happened to another job's pod is not this job's cause."""
    for group in outcome.alive("k8s-"):
        pods = {str(event.data["pod"]) for event in group.events if event.data.get("pod")}
        if (
            pods
            and context.job_pods
            and not (pods & context.job_pods)
            and (pods & context.other_pods or group.signature.startswith("k8s-evict"))
        ):
            group.dismiss(f"pod {sorted(pods)[0]} is not one of the job's")


# what keeps a pod from its node, and what keeps its containers from starting there
_PLACING = ("k8s-failed-scheduling", "k8s-gang-waiting")
_STARTING = ("k8s-mount", "k8s-image", "k8s-sandbox", "k8s-gpu-injection", "k8s-allocate-failed")


def _moment(event: Event) -> float | None:
    """Return when an event was seen last: as a time, or as minus its age where the source tells only that."""
    if event.time is not None:
        return event.last or event.time
    age = event.data.get("age")
    return -float(age) if age is not None else None


def started_after(context: Context, outcome: Outcome) -> None:
    """
    A pod that found its node, or whose container started, afterwards had only to wait: nothing of that ended the job.

    kubectl prints how long ago instead of when, which orders the events of one output as well.
    """
    placed: dict[tuple[str, str], float] = {}
    started: dict[tuple[str, str], float] = {}
    for event in context.events:
        if event.signature != "k8s-started" or not event.data.get("pod") or (moment := _moment(event)) is None:
            continue
        pod = str(event.data["pod"]), "" if event.time is not None else event.file
        placed[pod] = max(moment, placed.get(pod, moment))
        if event.data.get("reason") == "Started":
            started[pod] = max(moment, started.get(pod, moment))
    for group in outcome.alive(*_PLACING, *_STARTING):
        after = placed if group.signature.startswith(_PLACING) else started
        over = [
            event
            for event in group.events
            if (moment := _moment(event)) is not None
            and after.get((str(event.data.get("pod")), "" if event.time is not None else event.file), float("-inf")) > moment
        ]
        if len(over) == len(group.events):
            group.dismiss("the pod started afterwards")


def volumes(context: Context, outcome: Outcome) -> None:
    """Of a volume that does not come the kubelet tells twice: why the mount failed, and that a pod waited in vain for it, which follows."""
    for group in outcome.alive("k8s-mount"):
        waits = [event for event in group.events if event.data.get("waited")]
        if len(waits) < len(group.events):
            for event in waits:
                event.data["supports"] = group.signature


# RuntimeError: DataLoader worker (pid 9188) is killed by signal: Killed.
_LOADER = re.compile(r"DataLoader worker \(pid(?:\(s\))? (\d+)")


def memory_kills(context: Context, outcome: Outcome) -> None:
    """
    An out-of-memory kill counts when its victim was the job's process: by process id, by pod, or by a rank of that node that died of
    signal 9 in the same moment; otherwise it is another workload's.
    """
    killed_ranks = [
        event
        for event in context.events
        if (
            event.signature in _EXIT_9
            and (event.code in (-9, 137, 9) or event.signature in ("exit-sigkill", "slurm-task-killed", "k8s-oom-killed"))
        )
    ]
    loaders = {
        int(found[1]): event
        for event in context.events
        if event.signature == "dataloader-worker-killed" and (found := _LOADER.search(event.text))
    }
    job_known = bool(context.rank_node or context.job_pods or context.rank_last)
    for group in outcome.alive("oom-kill"):
        if not job_known:
            continue
        mine: list[str] = []
        for event in group.events:
            pid = event.data.get("killed_pid") or event.pid
            name = str(event.data.get("killed_name") or event.data.get("killed") or event.data.get("name") or "")
            where = f"{event.data.get('cgroup') or ''} {event.data.get('pod') or ''} {event.data.get('pod_uid') or ''}"
            if pid is not None and any(key[1] == pid for key in context.pid_rank):
                mine.append(f"pid {pid} is a rank's")
                event.rank = next(rank for key, rank in context.pid_rank.items() if key[1] == pid)
                group.rank = event.rank
            elif pid is not None and any(other.pid == pid for other in killed_ranks):
                mine.append(f"pid {pid} is one that the launcher reports killed")
                group.rank = next((other.rank for other in killed_ranks if other.pid == pid), group.rank)
            elif pid in loaders:
                mine.append(f"pid {pid} is the loader that the job misses")
                group.rank = loaders[int(pid)].rank if group.rank is None else group.rank
            elif any(pod in where for pod in context.job_pods if pod):
                mine.append("its pod is the job's")
            elif any(
                (other.node in (None, group.node))
                and (other.time is None or event.time is None or abs(other.time - event.time) < 60.0)
                for other in killed_ranks
            ) and re.match(r"python|pt_|ray|train|torch|java|vllm", name or "python"):
                mine.append("a process of the job died of signal 9 on that node in the same minute")
                same = {other.rank for other in killed_ranks if other.rank is not None and other.node == group.node}
                if group.rank is None and len(same) == 1:
                    group.rank = next(iter(same))
        if mine:
            group.notes.append(mine[0])
            group.weight = max(group.weight, 0.93)
        else:
            group.dismiss("the process it killed is none of the job's")


def lost_nodes(context: Context, outcome: Outcome) -> None:
    """
    A node whose logs and metrics stop in one moment while its peers go on to complain was lost, whatever killed it.
    """
    _who_failed(context, outcome)
    gone = {group.node: group for group in outcome.alive("metric-node-gone") if group.factor >= 0.3}
    unready = {
        group.node: group
        for group in outcome.alive(
            "k8s-node-not-ready", "k8s-node-lost", "slurm-node-down", "slurm-node-not-responding", "slurm-node-fail"
        )
        if group.factor >= 0.3 and group.node
    }
    silent = _silent_nodes(context)
    killed = {
        event.node: event
        for event in context.events
        if event.signature == "launch-agent-signal" and event.data.get("signal") in (9, "SIGKILL", "KILL") and event.node
    }
    for node in set(gone) | set(unready) | set(silent):
        if context.in_job(node) is False or node is None:
            continue
        signs = [
            name
            for name, has in (
                ("metrics stop", node in gone),
                ("the platform lost it", node in unready),
                ("its logs stop", node in silent),
                ("its launcher was killed", node in killed),
            )
            if has
        ]
        if len(signs) == 1 and node in silent and len(context.ranks_of(node)) >= 2 and len(_lost_peers(context)) >= 2:
            outcome.add(
                context,
                "node-silent",
                "platform/node-lost",
                0.6,
                _lost_peers(context)[:6],
                node=node,
                note="all its ranks fell silent at once, without a last word, and the others lost their connections",
            )
            continue
        if len(signs) < 2:
            if signs == ["the platform lost it"] and context.rank_node and node not in silent and _complained(context, node):
                unready[node].lower(0.5, "its ranks still wrote their errors, so the node lived")
            continue
        for group in (unready.get(node), gone.get(node)):
            if group is not None:
                group.weight = max(group.weight, 0.9)
                group.factor = max(group.factor, 0.95)
                group.notes.append(" and ".join(signs))
        if node not in unready and node not in gone:
            events = [killed[node]] if node in killed else []
            for event in events:
                event.data["promoted"] = True
            outcome.add(
                context,
                "node-silent",
                "platform/node-lost",
                0.6,
                [*_lost_peers(context)[:4], *events] or silent[node],
                node=node,
                note=" and ".join(signs),
            )


# recvValueWithTimeout failed on SocketImpl(fd=3, addr=[::ffff:10.0.0.11]:46282, remote=[::ffff:10.0.0.1]:29400): Failed to recv, …
_REMOTE = re.compile(r"remote=\[(?:::ffff:)?(?P<address>[^\]]+)\]:(?P<port>\d+)")


def lost_store(context: Context, outcome: Outcome) -> None:
    """
    A rendezvous store that runs apart from the ranks and closes its connections to two nodes or more, as the first thing
    that goes wrong, was lost with its host. One inside the job closes them whenever rank 0 ends, which says nothing.
    """
    lost = [
        event
        for event in context.events
        if event.signature == "store-closed" and event.time is not None and event.node and _REMOTE.search(event.text)
    ]
    remotes = {found["address"] for event in lost if (found := _REMOTE.search(event.text))}
    if len(remotes) != 1 or len({event.node for event in lost}) < 2 or any(group.score >= 0.5 for group in outcome.alive()):
        return
    began = min(event.time for event in lost if event.time is not None)
    errors = [
        event.time
        for event in context.events
        if event.time is not None and event.source in ("job", "launcher") and context.role(event) in ("cause", "symptom")
    ]
    if (
        began > min(errors, default=began) + 2.0
    ):  # a closed connection is noticed within a second or two, by the ranks as by the agents
        return
    address = remotes.pop()
    ends = {str(document.facts.get("rdzv_endpoint") or "").rpartition(":")[0] for document in context.incident.documents} - {""}
    name = context.node(ends.pop() if len(ends) == 1 else address) or address
    inside = set(context.rank_node.values()) | {event.node for event in context.events if event.source in ("job", "launcher")}
    if {name, context.node(address)} & inside:
        return
    for event in lost:
        event.data["promoted"] = True
    outcome.add(
        context,
        "store-lost",
        "platform/node-lost",
        0.6,
        sorted(lost, key=lambda event: event.time or 0.0),
        node=name,
        note=f"the rendezvous store on {name} closed its connections before any rank complained",
    )


def _who_failed(context: Context, outcome: Outcome) -> None:
    """
    ``STEP 36.0 ON node-a CANCELLED … DUE TO NODE FAILURE`` names the daemon that prints, which lives; srun's line names the one that failed.
    Several nodes that stop answering in the same minute are the network's or the controller's matter.
    """
    failed = {event.node for event in context.events if event.signature == "slurm-node-failure-srun" and event.node}
    for group in outcome.alive("slurm-node-fail", "slurm-log-node-failure"):
        if group.signature != "slurm-node-failure-srun" and all(" ON " in event.text for event in group.events):
            group.node = next(iter(failed)) if len(failed) == 1 else None
    quiet = [
        group
        for group in outcome.alive("slurm-node-not-responding", "slurm-node-down", "k8s-node-not-ready", "k8s-node-lost")
        if group.node
    ]
    times = [group.first for group in quiet if group.first is not None]
    together = len({group.node for group in quiet}) >= 3 and (not times or max(times) - min(times) <= 60.0)
    if together and (context.job_nodes or len({group.node for group in quiet}) >= 4):
        for group in quiet:
            group.notes.append("several nodes stopped answering together")
            group.node = None


def quoted_lines(context: Context, outcome: Outcome) -> None:
    """A node condition that repeats a kernel line is neither heavier nor earlier than the line itself."""
    kernel = {
        group.node: group
        for group in outcome.alive()
        if group.source == "kernel" and group.cls.startswith(("hardware/host", "platform/storage"))
    }
    for group in outcome.alive("k8s-npd", "k8s-condition"):
        if group.node in kernel:
            group.lower(0.7, "it repeats what the kernel log of the node says")


def superseded_mismatch(context: Context, outcome: Outcome) -> None:
    """A version mismatch is an observation about the module that was loaded then: a later load starts anew."""
    loads = [(event.node, event.time, event.order) for event in context.events if event.signature == "nvidia-loaded"]
    for group in outcome.alive("nvidia-api-mismatch"):
        last = group.events[-1]
        for node, time, order in loads:
            later = time > last.time if time is not None and last.time is not None else order > last.order
            if node == group.node and later:
                worse = any(
                    other.cls.startswith(("driver/hang", "hardware/")) and other.score >= 0.5 and other.node == group.node
                    for other in outcome.alive()
                )
                if worse:
                    group.lower(0.3, "the module was loaded anew afterwards")
                    break


def _lost_peers(context: Context) -> list[Event]:
    lost = [
        event
        for event in context.events
        if event.signature in ("gloo-closed-by-peer", "nccl-closed-by-peer", "py-connection-reset", "nccl-remote-error")
    ]
    for event in lost:
        event.data["promoted"] = True
    return lost


def _complained(context: Context, node: str) -> bool:
    return any(
        event.node == node and event.source in ("job", "launcher") and context.role(event) in ("cause", "symptom")
        for event in context.events
    )


def _silent_nodes(context: Context) -> dict[str, list[Event]]:
    """Nodes of the job of which no rank or launcher wrote an error although every other node did."""
    speaking: dict[str, list[Event]] = defaultdict(list)
    for event in context.events:
        if event.source == "launcher" and event.signature.startswith("launch-"):
            continue  # what the platform recorded of the launcher is not the node's own voice
        if (
            event.source in ("job", "launcher", "torchelastic")
            and event.node
            and context.role(event) in ("cause", "symptom")
            and context.weight(event) > 0
        ):
            speaking[event.node].append(event)
    logged = {context.rank_node[rank] for rank in context.rank_last if rank in context.rank_node}
    silent = [node for node in logged if node not in speaking]
    if not silent or len(silent) > max(1, len(logged) // 8) or len(logged) < 2:
        return {}
    return {node: [] for node in silent}


def file_servers(context: Context, outcome: Outcome) -> None:
    """
    A file server that several nodes lose in the same minutes is the storage's fault; one node that waits a few seconds for its home
    directories is not news.
    """
    back: dict[tuple[str | None, str], list[float]] = defaultdict(list)
    for event in context.events:
        if event.signature in ("nfs-ok", "lustre-restored") and event.time is not None:
            back[event.node, str(event.data.get("server") or "")].append(event.time)
    groups = [group for group in outcome.alive("nfs-not-responding", "lustre-", "lnet-") if group.factor >= 0.1]
    nodes = {group.node for group in groups if group.node}
    for group in groups:
        short = True
        for event in group.events:
            server = str(event.data.get("server") or "")
            later = [time for time in back.get((event.node, server), []) if event.time is not None and time >= event.time]
            if event.time is None or not later or min(later) - event.time > 30.0:
                life = life_of(context, event.time)
                if (
                    not later
                    and life is not None
                    and event.time is not None
                    and life.stop is not None
                    and life.stop > event.time + context.windows.survived
                ):
                    continue
                short = False
        if short and group.events[0].time is not None:
            group.lower(0.2, "the server answered again within seconds")
        elif len(nodes) >= 2:
            group.weight = max(group.weight, 0.85)
            group.notes.append(f"{len(nodes)} nodes lost the server")
            group.node = None
            group.rank = None
