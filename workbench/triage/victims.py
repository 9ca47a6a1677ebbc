"""Turn the context and the chosen hypothesis into the list of ranks that failed only because another did."""

from __future__ import annotations

from workbench.model import Hypothesis, Victim
from workbench.triage.context import Context

__all__ = ["find_victims"]


def find_victims(context: Context, best: Hypothesis) -> list[Victim]:
    """
    Return the ranks that failed as a consequence, each with the first sign of it.

    A rank is a victim when its first error is a symptom, or when the job had ranks that merely stopped; the culprit's ranks are
    none, and a fault of the whole job has no victims.
    """
    if best.cls == "none" or best.at_fault == "job":
        return []
    culprits = (
        {best.rank}
        if best.rank is not None
        else set(context.ranks_of(best.node))
        if best.node and best.at_fault == "node"
        else set()
    )
    first: dict[int, Victim] = {}
    for event in context.events:
        if (
            event.rank is None
            or event.rank in culprits
            or event.rank in first
            or event.source not in ("job", "launcher", "torchelastic")
        ):
            continue
        if context.role(event) in ("symptom", "cause") and context.weight(event) >= 0 and not event.data.get("handled"):
            if best.time is not None and event.time is not None and event.time < best.time - context.windows.simultaneous:
                continue
            meaning = context.row(event).meaning
            first[event.rank] = Victim(
                event.rank, event.node or context.rank_node.get(event.rank), event.time, meaning or event.signature
            )
    for rank, node in context.rank_node.items():
        if rank not in first and rank not in culprits and context.fail is not None:
            last = context.rank_last.get(rank, {}).get("last_time")
            recent = last is not None and best.time is not None and last > best.time - 600.0
            first[rank] = Victim(rank, node, last if recent else None, "no error of its own; it ended with the job")
    return [first[rank] for rank in sorted(first)]
