"""
Turn what many sources say of names, pods and processes into one placement: rank → node → GPU, under one name each.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from workbench.model import Gpu
from workbench.parse.ids import short_node
from workbench.triage.context import Context, slot

__all__ = ["find_job_pods", "place_ranks", "unify_names"]

_ORIGIN_TRUST = {"nccl-init": 5, "launcher-line": 4, "torchelastic": 4, "pod-env": 3, "slurm": 2, "dcgm-pod-label": 1}


def unify_names(context: Context) -> None:
    """Unify names: pods, addresses and short names all lead to the name that the node's own sources use."""
    incident = context.incident
    names: Counter[str] = Counter()
    for document in incident.documents:
        if document.node and document.kind in ("kernel-log", "metrics-text", "smi", "bmc"):
            names[document.node] += 3
    for one in incident.series[:20000]:
        if one.node:
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
    for pod, node in context.pod_node.items():
        context.alias[pod] = context.alias.get(node, node)
    for document in incident.documents:
        addresses = document.facts.get("addresses") or {}
        for address, node in addresses.items():
            context.alias.setdefault(address, context.alias.get(node, node))
        nodes = document.facts.get("nodes")
        for node, facts in nodes.items() if isinstance(nodes, dict) else ():
            for address in (facts or {}).get("addresses") or []:
                context.alias.setdefault(str(address), context.alias.get(node, node))
    for one in incident.series:
        instance = (one.labels.get("instance") or "").rsplit(":", 1)[0]
        if one.node and re.fullmatch(r"\d+\.\d+\.\d+\.\d+", instance):
            context.alias.setdefault(instance, context.alias.get(one.node, one.node))


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
    logged = {pod for pod in pods if any(pod in name for name in names)}
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


def place_ranks(context: Context) -> None:
    incident = context.incident
    for one in incident.series:
        if one.node and one.gpu and one.gpu.index is not None and not one.mig:
            # the first identity seen wins: indices are renumbered when a GPU is lost
            node = context.node(one.node) or one.node
            known = context.gpus.setdefault(node, {})
            have = known.get(one.gpu.index)
            first = float(one.times[0]) if len(one.times) else 0.0
            if have is None or (have.pci is None and one.gpu.pci):
                if not any(
                    other.uuid and other.uuid == one.gpu.uuid and index != one.gpu.index for index, other in known.items()
                ):
                    known[one.gpu.index] = one.gpu
            del first
    for document in incident.documents:
        for gpu in document.facts.get("gpus") or []:
            if isinstance(gpu, Gpu) and gpu.index is not None and document.node:
                node = context.node(document.node) or document.node
                context.gpus.setdefault(node, {}).setdefault(gpu.index, gpu)
        size = document.facts.get("world_size")
        if isinstance(size, int) and size > (context.world_size or 0):
            context.world_size = size
    records = sorted(incident.placement_records, key=lambda p: -_ORIGIN_TRUST.get(p.origin, 2))
    for placement in records:
        node = context.node(placement.node) or context.node(placement.pod)
        if node and placement.origin in ("pod-env", "slurm", "launcher-line", "nccl-init", "torchelastic", "kubernetes"):
            context.job_nodes.add(node)
        if placement.pod and placement.origin == "pod-env":
            context.job_pods.add(placement.pod)
        if placement.rank is None:
            continue
        rank = placement.rank
        if node:
            context.rank_node.setdefault(rank, node)
        if placement.local_rank is not None:
            context.rank_local.setdefault(rank, placement.local_rank)
        if placement.pid is not None:
            context.pid_rank.setdefault((node, placement.pid), rank)
        if placement.gpu is not None:
            gpu = context.identify(node, placement.gpu)
            have = context.rank_gpu.get(rank)
            if have is None or (have.pci is None and gpu.pci):
                context.rank_gpu[rank] = gpu
    for rank, local in context.rank_local.items():
        home = context.rank_node.get(rank)
        if rank not in context.rank_gpu and home:
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
