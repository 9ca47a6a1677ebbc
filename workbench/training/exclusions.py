"""Turn what was ever left out of a job into what stays out: not what was given back to work since, nor what was blamed long ago."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.training.attempts import GPU_NAMES, Attempt, History
from workbench.training.policy import Policy

__all__ = ["ever_out", "left_out", "still_out"]


def left_out(past: Sequence[Attempt], now: float, policy: Policy | None = None) -> tuple[str, ...]:
    """Return the nodes that a run has left out so far, but those whose time is over (`exclude.age`)."""
    return still_out(ever_out(past), past, History(now=now), policy or Policy())[0]


def ever_out(past: Sequence[Attempt]) -> tuple[str, ...]:
    """Return what attempts were kept off, but what a later attempt was given again."""
    names: dict[str, None] = {}
    for before, one in zip((None, *past), past, strict=False):
        for name in before.excluded if before is not None else ():
            if name not in one.excluded:
                names.pop(name, None)
        names |= dict.fromkeys(one.excluded)
    return tuple(names)


def still_out(
    names: Iterable[str], past: Sequence[Attempt], history: History, policy: Policy
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """
    Return the nodes and the GPUs of what was left out that stay out.

    Back are those that somebody gave back to work since they were last to blame (`History.returned`), and those that were last to blame
    longer than ``exclude.age`` ago. A GPU that is out with its node comes back with it: repaired, or another one.
    """
    nodes, gpus = _split(names)
    since = _blamed(past)
    back = {
        name
        for name in (*nodes, *gpus)
        if (when := since.get(name)) is not None
        and (history.returned.get(name, when) > when or 0 < policy.exclude_age <= history.now - when)
    }
    home = {one.gpu_uuid: one.node for one in past if one.gpu_uuid and one.node}
    return (
        tuple(one for one in nodes if one not in back),
        tuple(one for one in gpus if one not in back and home.get(one, one.partition("/")[0]) not in back),
    )


def _blamed(past: Sequence[Attempt]) -> dict[str, float]:
    """Return when each node and GPU was last to blame: at the end of that attempt; where none says so, when the first began without it."""
    found: dict[str, float] = {}
    for one in past:
        if one.at_fault in ("gpu", "node") and one.cause in ("hardware", "driver", "platform") and one.ended is not None:
            found |= {name: max(found.get(name, one.ended), one.ended) for name in (one.node, one.gpu_uuid) if name}
    for one in past:
        for name in one.excluded:
            if one.started is not None:
                found.setdefault(name, one.started)
    return found


def _split(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return nodes and GPUs of what was left out, each once, in their order."""
    every = tuple(dict.fromkeys(names))
    gpus = tuple(one for one in every if one.startswith(GPU_NAMES) or "/" in one)
    return tuple(one for one in every if one not in gpus), gpus
