"""
Turn what many sources say of names, pods and processes into one placement: rank → node → GPU, under one name each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from workbench.model import Gpu
from workbench.parse.addresses import addresses_of
from workbench.parse.ids import short_node
from workbench.triage.assignments import Assigned, assignments
from workbench.triage.context import Context, slot

__all__ = ["find_job_pods", "place_ranks", "unify_names"]

_OF_THE_JOB = ("pod-env", "slurm", "launcher-line", "nccl-init", "torchelastic", "kubernetes", "gloo-mesh")
_ORIGIN_TRUST = {
    "nccl-init": 5,
    "launcher-line": 4,
    "torchelastic": 4,
    "pod-env": 3,
    "slurm": 2,
    "dcgm-pod-label": 1,
    "gloo-mesh": 1,
}


def unify_names(context: Context) -> None:
    """Unify names: pods, addresses and short names all lead to the name that the node's own sources use."""
    incident = context.incident
    names: Counter[str] = Counter()
    for document in incident.documents:
        if document.node and document.kind in ("kernel-log", "metrics-text", "smi", "bmc"):
            names[document.node] += 3
    for one in incident.series[:20000]:
        if one.node and not getattr(one, "weak_node", False):  # an address is no name
            names[one.node] += 1
    for condition in incident.condition_records:
        if condition.node:
            names[condition.node] += 2
    for placement in incident.placement_records:
        if placement.node:
            names[placement.node] += 1
        if placement.pod and placement.node:
            context.pod_node.setdefault(placement.pod, placement.node)
    for job in incident.jobs:
        for name in job.nodes:
            names[name] += 1
    for document in incident.documents:
        if document.node:
            names[document.node] += 1
    for name in names:
        if name in context.pod_node:
            continue
        context.alias[name] = name
    full = sorted((name for name in names if "." in name and not re.fullmatch(r"[\d.]+", name)), key=len, reverse=True)
    for name in full:
        short = short_node(name)
        if short in context.alias and context.alias[short] == short:
            # one machine under two names: the longer one wins only where its own sources use it more
            better = name if names[name] > names[short] else short
            context.alias[short] = context.alias[name] = better
        else:
            context.alias.setdefault(short, name)
    _name_localhost(context)
    _name_files(context)
    for pod, node in context.pod_node.items():
        context.alias[pod] = context.alias.get(node, node)
    for address, node in addresses_of([document.facts for document in incident.documents], incident.series, names).items():
        if context.alias.get(address, address) == address:  # a line that names a machine by its address gives it no other name
            context.alias[address] = context.alias.get(node, node)


_CUT = re.compile(r"[-_.]")
_WORDS = re.compile(r"[-_.][A-Za-z][A-Za-z_.-]*$")


def _name_files(context: Context) -> None:
    """A file is often named after the node and what it holds (``node-7-sel-elist.txt``): the node is the part that other sources name."""
    incident = context.incident
    sure = {name for job in incident.jobs for name in job.nodes}
    sure |= {one.node for one in incident.series[:20000] if one.node} | {
        one.node for one in incident.condition_records if one.node
    }
    sure |= {one.node for one in incident.placement_records if one.node}
    for name in {document.node for document in incident.documents if document.node} - sure:
        heads = (name[: found.start()] for found in reversed(list(_CUT.finditer(name))))
        owner = next((head for head in heads if head in sure and _WORDS.fullmatch(name[len(head) :])), None)
        if owner:
            context.alias[name] = context.alias.get(owner, owner)


_NOWHERE = ("localhost", "localhost.localdomain")


def _name_localhost(context: Context) -> None:
    """A launcher that calls its machine ``localhost`` (``torchrun --standalone``) means the one machine that other sources name."""
    own = {context.alias.get(document.node, document.node) for document in context.incident.documents if document.node}
    own -= {*_NOWHERE, None}
    if len(own) == 1:
        for name in _NOWHERE:
            if name in context.alias:
                context.alias[name] = str(next(iter(own)))


def find_job_pods(context: Context) -> None:
    """Tell the job's pods from others: those whose logs are here, else those of the job with most ranks."""
    pods: dict[str, dict[str, Any]] = {}
    for document in context.incident.documents:
        found = document.facts.get("pods")
        if isinstance(found, dict):
            pods.update(found)
    if not pods:
        return
    names = [re.split(r"[/!]", document.name)[-1] for document in context.incident.documents]
    together = "\n".join(names)
    logged = {pod for pod in pods if pod in together}
    jobs = Counter(pods[pod].get("job") for pod in logged if pods[pod].get("job"))
    if not jobs:
        jobs = Counter(
            {
                facts.get("job"): len(facts.get("ranks") or []) or 1
                for facts in pods.values()
                if facts.get("job") and not facts.get("service")
            }
        )
    main = jobs.most_common(1)[0][0] if jobs else None
    for pod, facts in pods.items():
        if pod in logged or (main is not None and facts.get("job") == main):
            context.job_pods.add(pod)
            if facts.get("node"):
                home = str(facts["node"])
                context.job_nodes.add(context.node(home) or home)
                context.pod_node.setdefault(pod, home)
            ranks = facts.get("ranks") or []
            for rank in ranks if isinstance(ranks, list) else []:
                if facts.get("node"):
                    context.rank_node.setdefault(int(rank), context.node(facts["node"]) or facts["node"])
        else:
            context.other_pods.add(pod)


def know_gpus(context: Context) -> None:
    """
    Establish, per node, which index, UUID and PCI address belong to one GPU, as it was at the job's start.

    Sources in order of trust: series and tools that name several of them, NCCL's own lines, the node's PCI devices in the kernel log
    (NVML numbers GPUs in the order of their PCI addresses), and the sister nodes when these all have the same slots.
    """
    incident = context.incident
    seen: set[tuple[str, Gpu]] = set()
    shared: set[tuple[str | None, int]] = set()  # the series of one set of labels share their GPU: it need not be compared again
    for one in incident.series:
        gpu, node = one.gpu, one.node
        if gpu is None or one.mig or (node, id(gpu)) in shared:
            continue
        shared.add((node, id(gpu)))
        if node and gpu.index is not None and (node, gpu) not in seen:
            # the first identity seen wins: indices are renumbered when a GPU is lost
            seen.add((node, gpu))
            _learn(context, context.node(node) or node, gpu)
    for document in incident.documents:
        node = context.node(document.node)
        for gpu in document.facts.get("gpus") or []:
            if isinstance(gpu, Gpu) and gpu.index is not None and node:
                _learn(context, node, gpu)
    for placement in incident.placement_records:
        if (
            placement.gpu is not None
            and placement.gpu.index is not None
            and placement.gpu.pci
            and placement.origin == "nccl-init"
        ):
            node = context.node(placement.node)
            if node:
                _learn(context, node, placement.gpu)
    for document in incident.documents:
        node, devices = context.node(document.node), document.facts.get("gpus")
        if document.kind != "kernel-log" or not node or not isinstance(devices, dict) or len(devices) < 2:
            continue
        known = context.gpus.setdefault(node, {})
        if not any(gpu.pci for gpu in known.values()) and len(devices) >= len(known):
            for index, address in enumerate(sorted(devices)):
                have = known.get(index, Gpu(index))
                known[index] = Gpu(index, have.uuid or devices[address] or None, address)
    _from_sisters(context)


def _learn(context: Context, node: str, gpu: Gpu) -> None:
    known = context.gpus.setdefault(node, {})
    index = gpu.index if gpu.index is not None else -1
    have = known.get(index)
    if any(other.uuid and other.uuid == gpu.uuid and number != index for number, other in known.items()):
        return
    if have is None:
        known[index] = gpu
    elif have.uuid is None or gpu.uuid is None or have.uuid == gpu.uuid:
        known[index] = Gpu(index, have.uuid or gpu.uuid, have.pci or gpu.pci)


def _from_sisters(context: Context) -> None:
    """Nodes of one job are mostly of one chassis: where all that tell have the same slots, the others have them too."""
    layouts = {
        tuple(sorted((index, slot(gpu.pci)) for index, gpu in known.items() if gpu.pci))
        for known in context.gpus.values()
        if sum(1 for gpu in known.values() if gpu.pci) >= 4
    }
    if len(layouts) != 1:
        return
    layout = dict(next(iter(layouts)))
    for node in context.job_nodes | set(context.gpus):
        known = context.gpus.setdefault(node, {})
        if any(gpu.pci for gpu in known.values()):
            continue
        for index, address in layout.items():
            have = known.get(index, Gpu(index))
            known[index] = Gpu(index, have.uuid, f"{address}.0")


def place_ranks(context: Context) -> None:
    """Place every rank on its node and GPU: NCCL's word first, then the launcher's, then the platform's."""
    incident = context.incident
    for document in incident.documents:
        size = document.facts.get("world_size")
        if isinstance(size, int) and size > (context.world_size or 0):
            context.world_size = size
    for name in (placement.node for placement in incident.placement_records if placement.origin in _OF_THE_JOB):
        node = context.node(name)
        if node:
            context.job_nodes.add(node)
    know_gpus(context)
    records = sorted(incident.placement_records, key=lambda p: -_ORIGIN_TRUST.get(p.origin, 2))
    context.job_pods |= {placement.pod for placement in records if placement.pod and placement.origin == "pod-env"}
    own = _own_gpus(context, assignments(context))
    for placement in records:
        node = context.node(placement.node) or context.node(placement.pod)
        if node and placement.origin in _OF_THE_JOB:
            context.job_nodes.add(node)
        if placement.rank is None:
            continue
        rank = placement.rank
        if node:
            context.rank_node.setdefault(rank, node)
        if placement.local_rank is not None:
            context.rank_local.setdefault(rank, placement.local_rank)
        if placement.pid is not None:
            context.pid_rank.setdefault((node, placement.pid), rank)
        told, mine = placement.gpu, own(rank, node)
        if mine and placement.origin.startswith("pod-env"):
            told = mine.of(placement.local_rank) or told  # the order of an annotation is none
        elif mine and told and told.index is not None and not told.pci and not told.uuid:
            told = mine.of(told.index)  # cuda:0 is the first of the pod's GPUs, whichever of the node's that is
        if told is not None:
            gpu = context.identify(node, told)
            have = context.rank_gpu.get(rank)
            if have is None or (have.pci is None and gpu.pci):
                context.rank_gpu[rank] = gpu
    _fill_blocks(context)
    for rank, local in context.rank_local.items():
        home = context.rank_node.get(rank)
        if rank not in context.rank_gpu and home:
            mine = own(rank, home)
            if mine and (gpu_of := mine.of(local)):
                context.rank_gpu[rank] = gpu_of
            elif mine is None or 0 < len(context.gpus.get(home, ())) <= len(mine.gpus):
                # the local rank is the index only as far as the process sees all devices in order; at the start it does
                context.rank_gpu[rank] = context.identify(home, Gpu(index=local))
    for rank, gpu in context.rank_gpu.items():
        home = context.rank_node.get(rank)
        if home and gpu.pci:
            context.gpu_rank.setdefault((home, slot(gpu.pci)), rank)
    for job in incident.jobs:
        for name in job.nodes:
            context.job_nodes.add(context.node(name) or name)
    context.job_nodes |= set(context.rank_node.values())
    if not context.world_size and context.rank_node:
        context.world_size = max(context.rank_node) + 1


_USUAL = 8  # GPUs of the usual node: a larger distance of two blocks may be a node that says nothing


def _fill_blocks(context: Context) -> None:
    """
    Place ranks that nothing places, where all others lie in blocks of one size, a node each: launchers number them so.

    A rank that died before it said a word, or whose log is lost, is often the very one that is looked for. Where few ranks are placed, an
    agent's words for them (``rank 21 (local_rank: 5)``) tell where each node's block begins.
    """
    home = _blocks(context)
    if not home:
        return
    each = len(home[1])
    counted = all(local == rank % each for rank, local in context.rank_local.items())
    for number, node in enumerate(home[0]):
        for rank in range(number * each, (number + 1) * each):
            if rank not in context.rank_node:
                context.rank_node[rank] = node
                if counted and context.rank_local:
                    context.rank_local[rank] = rank % each


def _blocks(context: Context) -> tuple[list[str], range] | None:
    """Return the nodes in the order of their blocks, and the first block; None when the placed ranks do not lie so."""
    nodes = set(context.rank_node.values())
    if len(nodes) < 2:
        return None
    begins = {(rank - local, context.rank_node[rank]) for rank, local in context.rank_local.items() if rank in context.rank_node}
    size = context.world_size or 0
    if len(begins) == len(nodes) == len({begin for begin, _ in begins}):
        firsts = sorted(begin for begin, _ in begins)
        each = firsts[1] - firsts[0]
        if firsts != list(range(0, each * len(nodes), each)):
            return None
    elif size and size % len(nodes) == 0:
        each = size // len(nodes)
    else:
        return None
    declared = {context.node(name) or name for job in context.incident.jobs for name in job.nodes}
    if not declared <= nodes or not (size or declared or each <= _USUAL):
        return None  # a node between them may have no rank that is placed: then their distance is no size
    if (size and size != each * len(nodes)) or max(context.rank_node) >= each * len(nodes):
        return None
    owners: dict[int, set[str]] = {}
    for rank, node in context.rank_node.items():
        owners.setdefault(rank // each, set()).add(node)
    if len(owners) != len(nodes) or any(len(names) > 1 for names in owners.values()):
        return None
    return [next(iter(owners[number])) for number in range(len(nodes))], range(each)


def _own_gpus(context: Context, given: dict[str, Assigned]) -> Callable[[int, str | None], Assigned | None]:
    """
    Return what tells the GPUs of a rank's pod: the pod that says so itself, or the job's only pod on the rank's node.

    Nodes on which the GPUs of all the job's pods are known are noted in `Context.given`.
    """
    pods: dict[str, list[str]] = {}
    for pod in context.job_pods:
        node = context.node(context.pod_node.get(pod))
        if node:
            pods.setdefault(node, []).append(pod)
    for node, names in pods.items():
        if all(name in given and given[name].whole for name in names):
            context.given[node] = [gpu for name in names for gpu in given[name].gpus]
    records = context.incident.placement_records
    pod_of = {one.rank: one.pod for one in records if one.rank is not None and one.pod and one.origin == "pod-env"}

    def own(rank: int, node: str | None) -> Assigned | None:
        pod = pod_of.get(rank)
        names = pods.get(node or "", [])
        return given.get(pod) if pod else given.get(names[0]) if len(names) == 1 else None

    return own
