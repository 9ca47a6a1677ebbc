"""Turn the table of known consequences (catalog/explains.csv) into lower weights of what another group already explains."""

from __future__ import annotations

from functools import lru_cache

from workbench.catalog import table
from workbench.triage.context import Context, slot
from workbench.triage.groups import Group
from workbench.triage.rules.outcome import Outcome

__all__ = ["consequences"]

_SURE = 0.35  # a cause must stand on its own before it may explain anything
_LEFT = 0.3  # what is left of a consequence's weight


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[tuple[str, ...], tuple[str, ...], str, float, str], ...]:
    return tuple(
        (tuple(row["cause"].split("|")), tuple(row["effect"].split("|")), row["where"], float(row["within_s"]), row["why"])
        for row in table("explains")
    )


def consequences(context: Context, outcome: Outcome) -> None:
    """
    What another observation on the same node or GPU already explains is its consequence, however loud it is.

    Each row of the table says which signatures explain which, how near they must be, and for how long afterwards.
    """
    met: dict[int, list[Group]] = {}
    for causes, effects, where, within, why in _rows():
        sure = [group for group in outcome.alive(*causes) if group.score >= _SURE]
        if not sure:
            continue
        for effect in outcome.alive(*effects):
            cause = next((group for group in sure if group is not effect and _near(group, effect, where, within)), None)
            if cause is not None:
                effect.lower(_LEFT, f"{why} ({cause.signature})")
                if effect.rank is not None and effect.node == cause.node:
                    met.setdefault(id(cause), []).append(effect)
                for event in effect.events:
                    event.data["supports"] = cause.signature
    for group in outcome.alive():
        ran_into = met.get(id(group), [])
        ranks = {effect.rank for effect in ran_into}
        if group.rank is not None or group.gpu is not None or group.whole_node or not ran_into:
            continue
        timed = [effect for effect in ran_into if effect.first is not None]
        if len(ranks) == 1 or len(timed) == len(ran_into):
            # the one rank that ran into what failed on its node, or the first
            group.rank = min(ran_into, key=lambda effect: effect.first or 0.0).rank


def _near(cause: Group, effect: Group, where: str, within: float) -> bool:
    if where != "any" and cause.node is not None and effect.node is not None and cause.node != effect.node:
        return False
    if where == "gpu" and cause.gpu is not None and effect.gpu is not None:
        one, other = cause.gpu, effect.gpu
        if one.pci and other.pci and slot(one.pci) != slot(other.pci):
            return False
        if not (one.pci and other.pci) and one.index is not None and other.index is not None and one.index != other.index:
            return False
    if cause.first is None or effect.first is None:
        return True
    return -30.0 <= effect.first - cause.first <= within
