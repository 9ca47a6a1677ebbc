"""
Turn weighed groups of cause events into hypotheses, one per class and entity, and order them by strength and by who came first.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model import Event, Gpu, Hypothesis
from workbench.triage.advice import advise, class_row
from workbench.triage.context import Context, moment, slot
from workbench.triage.groups import Group, skeleton

__all__ = ["anchor", "first_of_kind", "form_hypotheses", "rank_hypotheses"]

ANCHOR = 0.3  # below this a hypothesis is mentioned, never the verdict
LATE_COST = 0.35  # what coming later than a rival costs at most: an early generic error beats a late specific one
_ANOTHER_JOB = 6 * 3600.0
_OF_A_GPU = ("hardware/gpu", "hardware/nvlink", "hardware/pcie", "hardware/sdc", "driver/hang")
_BY_ENTITY = ("hardware/", "driver/", "platform/node-lost")


def form_hypotheses(context: Context, groups: Sequence[Group]) -> list[Hypothesis]:
    """Merge groups of one class on one entity into a hypothesis with evidence for and against, score, culprit and advice."""
    merged: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        merged.setdefault(_entity(context, group), []).append(group)
    _join_partial(context, merged)
    _join_nameless(merged)
    hypotheses = []
    for members in merged.values():
        alive = [group for group in members if not group.dismissed]
        if not alive:
            strongest = max(members, key=lambda g: g.weight)
            hypotheses.append(
                Hypothesis(
                    strongest.cls,
                    0.0,
                    strongest.node,
                    strongest.gpu,
                    strongest.rank,
                    time=strongest.first,
                    evidence=strongest.events[:3],
                    why_not=strongest.dismissed,
                    rule=strongest.signature,
                )
            )
            continue
        hypotheses.append(_hypothesis(context, alive))
    return hypotheses


_NAMELESS = 900.0  # seconds: a scheduler waits for a node (SlurmdTimeout, 300 s by default) before it gives it a name


def _join_nameless(merged: dict[tuple[object, ...], list[Group]]) -> None:
    """A lost node that one source does not name (the accounting of a job) is the one that another does, when only one is named."""
    nameless = [key for key in merged if key == ("platform/node-lost", None, None)]
    named = [
        key
        for key, groups in merged.items()
        if key[0] == "platform/node-lost" and key not in nameless and any(not group.dismissed for group in groups)
    ]
    if not nameless or len(named) != 1:
        return
    first = {
        key: min((group.first for group in merged[key] if group.first is not None and not group.dismissed), default=None)
        for key in (*nameless, *named)
    }
    here, there = first[nameless[0]], first[named[0]]
    if here is None or there is None or abs(here - there) <= _NAMELESS:
        merged[named[0]] += merged.pop(nameless[0])


def _join_partial(context: Context, merged: dict[tuple[object, ...], list[Group]]) -> None:
    """
    Join what one source knows by index and another by PCI address, when on that node only one of each is in question.

    Without a source that has both, the pair is the same device as far as anybody can tell: same node, same class, same minute.
    """
    for key in list(merged):
        if len(key) != 3 or not isinstance(key[2], (int, type(None))):
            continue
        cls, node, index = key
        partners = [other for other in merged if len(other) == 3 and other[:2] == (cls, node) and isinstance(other[2], str)]
        rivals = [other for other in merged if len(other) == 3 and other[:2] == (cls, node) and isinstance(other[2], int)]
        if len(partners) != 1 or (index is not None and len(rivals) != 1):
            continue
        here, there = (
            [group for group in merged[key] if not group.dismissed],
            [group for group in merged[partners[0]] if not group.dismissed],
        )
        if not here or not there:
            continue
        known = next((group.gpu for group in there if group.gpu is not None), None)
        if index is not None and known is not None and known.index is not None and known.index != index:
            continue
        times = [min((g.first for g in side if g.first is not None), default=None) for side in (here, there)]
        if times[0] is not None and times[1] is not None and abs(times[0] - times[1]) > 120.0:
            continue
        for group in merged.pop(key):
            group.gpu = merge_gpu(known, group.gpu)
            merged[partners[0]].append(group)
        for group in merged[partners[0]]:
            group.gpu = (
                merge_gpu(group.gpu, known) if index is None else merge_gpu(group.gpu, next((g.gpu for g in here if g.gpu), None))
            )


def _entity(context: Context, group: Group) -> tuple[object, ...]:
    if group.cls.startswith(_BY_ENTITY):
        node = group.node or (context.rank_node.get(group.rank) if group.rank is not None else None)
        gpu = group.gpu
        if gpu is None and group.rank is not None and group.cls.startswith(_OF_A_GPU):
            gpu = context.rank_gpu.get(group.rank)
            group.gpu = gpu
        local = group.events[0].local_rank
        if gpu is None and not group.whole_node and local is not None and group.cls.startswith(_OF_A_GPU):
            # a launcher that numbers its processes gives them the devices in order; a label, not an identity
            group.gpu = gpu = context.identify(node, Gpu(index=local))
        group.node = node
        device = (slot(gpu.pci) if gpu.pci else gpu.index) if gpu else None
        return group.cls, node, device
    return (group.cls,)


def _hypothesis(context: Context, groups: list[Group]) -> Hypothesis:
    strong = max(group.score for group in groups)
    counted = [group for group in groups if group.score >= 0.4 * strong]
    # of a lost node the line that names it says more than the accounting that came before
    nameless = groups[0].cls == "platform/node-lost" and any(group.node for group in counted)
    lead = min(counted, key=lambda g: (nameless and not g.node, g.first is None, g.first or 0.0, g.events[0].order))
    sources = {group.source for group in counted}
    score = min(0.99, strong + 0.04 * min(3, len(sources) - 1))
    events = _evidence(counted, lead)
    first = events[0]
    hypothesis = Hypothesis(
        lead.cls, score, rule=lead.signature, time=first.time, evidence=events, why=[note for g in counted for note in g.notes]
    )
    hypothesis.against = [event for group in groups if group not in counted for event in group.events[:1]]
    _culprit(context, hypothesis, counted, lead)
    advise(context, hypothesis, counted)
    return hypothesis


def _evidence(groups: list[Group], lead: Group) -> list[Event]:
    """
    Return the evidence, what carries the verdict first: the earliest line, the strongest one, and one of each further source.

    Repeats of the same message by other callers, and weaker lines of a source that already spoke, support (role `context`); they
    are the fault seen again, not the fault.
    """
    order = lambda e: (e.time is None, moment(e) or 0.0, e.order)  # noqa: E731
    first = min(lead.events, key=order)
    strongest = max(groups, key=lambda g: g.score)
    heads = [first]
    for group in [strongest, *sorted(groups, key=lambda g: (g.first is None, g.first or 0.0, g.events[0].order))]:
        head = min(group.events, key=order)
        known = {event.source for event in heads}
        if (
            head not in heads
            and not head.data.get("supports")
            and (head.source not in known or (group is strongest and group.score > lead.score + 0.1))
        ):
            heads.append(head)
    for event in sorted(lead.events, key=order):
        same = event.data.get("name") == first.data.get("name") and event.pid == first.pid and event.rank == first.rank
        near = event.time is None or first.time is None or event.time - first.time <= 1.0
        if event.data.get("supports"):
            continue
        if event not in heads and same and near and skeleton(event.text) != skeleton(first.text):
            heads.append(event)
    heads = sorted(heads[:4], key=order)
    rest = sorted((event for group in groups for event in group.events if event not in heads), key=order)
    for event in heads:
        event.data["carries"] = True
    return (heads + rest)[:40]


def _culprit(context: Context, hypothesis: Hypothesis, groups: list[Group], lead: Group) -> None:
    row = class_row(hypothesis.cls)
    signature = context.row(lead.events[0])
    own = signature.at_fault if signature.cls == hypothesis.cls else ""
    hypothesis.at_fault = (
        next((str(e.data["at_fault"]) for e in lead.events if e.data.get("at_fault")), "") or own or row.get("at_fault") or None
    )
    hypothesis.attempt = lead.events[0].attempt
    best = max(groups, key=lambda g: g.score)
    hypothesis.node = lead.node or best.node or next((g.node for g in groups if g.node), None)
    hypothesis.gpu = lead.gpu or best.gpu
    if any(group.whole_node for group in groups):
        hypothesis.gpu = None
    hypothesis.rank = lead.rank if lead.rank is not None else best.rank
    if hypothesis.rank is None and not any(group.whole_node for group in groups):
        ranks = {event.rank for group in groups for event in group.events if event.rank is not None}
        hypothesis.rank = next(iter(ranks)) if len(ranks) == 1 else None
    if (
        hypothesis.gpu is None
        and not lead.whole_node
        and lead is not best
        and best.gpu is not None
        and best.node == hypothesis.node
    ):
        hypothesis.gpu = best.gpu
    if hypothesis.cls.startswith(_OF_A_GPU) and (hypothesis.gpu is None or hypothesis.gpu.pci is None) and not lead.whole_node:
        hypothesis.gpu = _named_elsewhere(context, hypothesis)
    if hypothesis.at_fault == "node" and hypothesis.node is None and hypothesis.cls.startswith("platform/"):
        hypothesis.at_fault = "platform"  # nothing is blamed that cannot be named
    if hypothesis.cls.startswith(_BY_ENTITY):
        if hypothesis.gpu is not None:
            hypothesis.gpu = context.identify(hypothesis.node, hypothesis.gpu)
            rank = context.rank_on(hypothesis.node, hypothesis.gpu)
            if rank is None and hypothesis.rank is None:
                rank = _only_rank(context, hypothesis)
            if rank is not None:
                hypothesis.rank = rank
            if hypothesis.at_fault == "node" and signature.scope == "gpu":
                hypothesis.at_fault = "gpu"
        elif hypothesis.at_fault == "gpu" and not hypothesis.rank and hypothesis.node:
            hypothesis.at_fault = "node"
    else:
        _spread(context, hypothesis, groups, lead)
        if (
            hypothesis.cls == "user/illegal-memory-access"
            and hypothesis.rank is not None
            and (hypothesis.gpu is None or not hypothesis.gpu.pci)
        ):
            faults = [
                e
                for g in groups
                for e in g.events
                if e.source == "kernel" and e.gpu is not None and e.rank in (None, hypothesis.rank)
            ]
            if faults:  # the kernel says which GPU the program's fault was met on
                hypothesis.gpu, hypothesis.node = faults[0].gpu, faults[0].node or hypothesis.node


def _only_rank(context: Context, hypothesis: Hypothesis) -> int | None:
    """
    Return the one rank of the node whose CUDA call failed, or that its agent saw die, within a minute of the GPU's fault.

    Not one that ran on another GPU, as far as the indices tell; of a GPU that only its index names, the rank on that index. Indices tell
    nothing of a part of a GPU (MIG): each process sees its part as the first device.
    """
    parted = any(event.data.get("mig") for event in hypothesis.evidence)
    own = hypothesis.gpu.index if hypothesis.gpu is not None and not parted else None
    indices = {rank: gpu.index for rank, gpu in context.rank_gpu.items() if context.rank_node.get(rank) == hypothesis.node}
    if own is not None and hypothesis.gpu is not None and not hypothesis.gpu.pci and not hypothesis.gpu.uuid:
        there = [rank for rank, index in indices.items() if index == own]
        if len(there) == 1:
            return there[0]
    for prefixes in (("cuda-", "nvml-"), ("elastic-exit", "torchelastic-root-cause", "exit-sig")):
        ranks = {
            event.rank
            for event in context.events
            if event.rank is not None
            and event.node == hypothesis.node
            and event.signature.startswith(prefixes)
            and (event.time is None or hypothesis.time is None or abs(event.time - hypothesis.time) <= 60.0)
        }
        if own is not None:
            ranks = {rank for rank in ranks if indices.get(rank) in (None, own)}
        if len(ranks) == 1:
            return next(iter(ranks))
    return None


def _named_elsewhere(context: Context, hypothesis: Hypothesis) -> Gpu | None:
    """
    Complete the GPU with the address that the symptoms of the same class on that node all give, when it is one.

    On a node where every source together names one index and one address, these are the same device.
    """

    def named(same_class: bool) -> dict[str, Gpu]:
        return {
            slot(event.gpu.pci): event.gpu
            for event in context.events
            if event.gpu is not None
            and event.gpu.pci
            and (not same_class or (context.cls(event) == hypothesis.cls and context.role(event) in ("cause", "symptom")))
            and (event.node is None or hypothesis.node is None or event.node == hypothesis.node)
        }

    found = named(same_class=True)
    if len(found) != 1 and hypothesis.gpu is not None:
        indices = {event.gpu.index for event in context.events if event.gpu is not None and event.gpu.index is not None}
        found = named(same_class=False) if indices == {hypothesis.gpu.index} else {}
    if len(found) != 1:
        return hypothesis.gpu
    return merge_gpu(hypothesis.gpu, next(iter(found.values())))


def _spread(context: Context, hypothesis: Hypothesis, groups: list[Group], lead: Group) -> None:
    """Many ranks with the same message in the same moment are the job's fault, not the rank's that was logged first."""
    first = hypothesis.evidence[0]
    same = [
        event
        for group in groups
        for event in group.events
        if event.signature == first.signature
        and (first.data.get("exception") is None or event.data.get("exception") == first.data.get("exception"))
        and (first.time is None or event.time is None or abs(event.time - first.time) <= 10.0)
        and (event.signature != "python-exception" or skeleton(event.text) == skeleton(first.text))
    ]
    ranks = {event.rank for event in same if event.rank is not None}
    nodes = {event.node for event in same if event.node is not None}
    size = context.world_size or 0
    if len(ranks) >= 2 and (size == 0 or len(ranks) >= max(2, 0.6 * size)):
        hypothesis.rank = None
        hypothesis.gpu = None
        if len(nodes) > 1 or len(context.job_nodes) <= 1:
            if hypothesis.at_fault == "rank":
                hypothesis.at_fault = "job"
            if len(nodes) > 1:
                hypothesis.node = None
    elif len(ranks) >= 2 and len(nodes) == 1 and len(context.job_nodes) > 1 and ranks >= set(context.ranks_of(next(iter(nodes)))):
        hypothesis.rank = None
        hypothesis.gpu = None
        hypothesis.node = next(iter(nodes))
    elif hypothesis.rank is not None:
        hypothesis.node = hypothesis.node or context.rank_node.get(hypothesis.rank)
        hypothesis.gpu = hypothesis.gpu or context.rank_gpu.get(hypothesis.rank)


def rank_hypotheses(context: Context, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """
    Order hypotheses: strength, less what coming later than the earliest serious rival costs.

    The cost grows with the delay to `LATE_COST` at 30 s; what came first and explains the rest is the better explanation even
    when a later line is more specific.
    """
    serious = [h for h in hypotheses if h.score >= ANCHOR]
    times = [h.time for h in serious if h.time is not None and h.score >= 0.5 * max(s.score for s in serious)]
    earliest = min(times, default=None)

    def worth(hypothesis: Hypothesis) -> float:
        if earliest is None or hypothesis.time is None or context.windows is None:
            return hypothesis.score
        delay = max(0.0, hypothesis.time - earliest - context.windows.same_instant)
        if context.start is None and delay > _ANOTHER_JOB:
            delay = 0.0  # a node's log without a job in sight holds many jobs: hours apart, order says nothing
        return hypothesis.score - LATE_COST * float(min(1.0, delay / 30.0) ** 0.5)

    return sorted(hypotheses, key=lambda h: (-worth(h), h.time if h.time is not None else float("inf")))


def first_of_kind(best: Hypothesis, ordered: Sequence[Hypothesis]) -> Hypothesis:
    """
    Return, of the hypotheses of one class on one node, the one that showed first.

    The GPUs of a node share a clock and a fault spreads between them within a second, so the first is the culprit and the loudest
    is only a neighbour.
    """
    twins = [
        h
        for h in ordered
        if h.cls == best.cls and h.node == best.node and h.node is not None and h.score >= 0.6 * best.score and h.time is not None
    ]
    if best.time is None or not best.cls.startswith(_BY_ENTITY) or not twins:
        return best
    return min(twins, key=lambda h: h.time or 0.0)


def anchor(ordered: Sequence[Hypothesis]) -> Hypothesis | None:
    """Return the hypothesis that can carry the verdict, or None when none is strong enough."""
    for hypothesis in ordered:
        if hypothesis.score >= ANCHOR:
            return hypothesis
    return None


def merge_gpu(one: Gpu | None, other: Gpu | None) -> Gpu | None:
    """Return the union of two partial identities of one GPU."""
    if one is None or other is None:
        return one or other
    return Gpu(one.index if one.index is not None else other.index, one.uuid or other.uuid, one.pci or other.pci)
