"""Turn what ``scontrol show node`` says of a node into a NodeState, and whose restriction of it is whose into its reason and back."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from workbench.parse.slurm_words import local_epoch, split_reason
from workbench.remediation.executors.contract import ExecutorError
from workbench.remediation.model import OWNER, Action, NodeState, Work

__all__ = ["CHECK", "Ours", "by_itself", "flags_of", "gpus_of", "node_of", "reason_of"]

# the shipped drain timer (workbench/deploy/slurm.sh): a drain of ours, but of no action of a plan, so remediation leaves it alone unless told
CHECK = "workbench check"
_CHECK = re.compile(r"(?:workbench check|gpu-workbench): ")  # the second is what the timer wrote at first
_PREFIX = "gpu-workbench:"
_ID = r"[A-Za-z0-9][A-Za-z0-9-]*"
# whoever writes anything else behind the id has made it his own. Slurm adds " : reboot issued" by itself
_OURS = re.compile(
    rf"gpu-workbench:({_ID})(?: until (\d{{4}}-\d\d-\d\dT\d\d:\d\d)Z)?(?: reboot ({_ID}) of (\d+))?(?:: .*| : .*)?", re.S
)
# flags of a state that say that new work does not come (slurm.conf(5), sinfo(1): node state codes), and who is behind it when no reason tells
_AWAY = {
    **dict.fromkeys(("DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "BLOCKED", "PLANNED_DOWN"), ""),
    **dict.fromkeys(("MAINT", "MAINTENANCE"), "a maintenance reservation"),
    **dict.fromkeys(("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"), "power saving"),
}
_DRAIN = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_DOWN = frozenset({"DOWN", "UNKNOWN", "FUTURE", "NOT_RESPONDING", "NO_RESPOND", "ERROR"})
_SIGNS = {"*": "NOT_RESPONDING", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "~": "POWERED_DOWN", "$": "MAINT"}
# root and the slurm user write for hooks and by hand alike
_NOBODY = frozenset({"root", "slurm", "unknown", "nobody"})
# reasons that slurmctld writes by itself for a node that is away (node_mgr.c, ping_nodes.c): nobody's decision
_BY_ITSELF = re.compile(r"(?i)(?:not responding|node unexpectedly rebooted|node failure|reboot (?:issued|timed out))")


@dataclass(frozen=True, slots=True)
class Ours:
    """What a reason of ours says: the action, until when, the action that had the node rebooted under it, and since when that boot ran."""

    op: str
    expires: float | None
    reboot: str
    booted: float | None

    @classmethod
    def read(cls, reason: str) -> Ours | None:
        """Return it, or None when the reason is not ours."""
        found = _OURS.fullmatch(reason)
        if not found:
            return None
        until = local_epoch(f"{found[2]}:00") if found[2] else None
        return cls(found[1], until, found[3] or "", float(found[4]) if found[4] else None)


def by_itself(reason: str) -> bool:
    """Whether slurmctld writes such a reason on its own account."""
    return bool(_BY_ITSELF.match(reason))


def flags_of(record: Mapping[str, str]) -> frozenset[str]:
    """Return the words of a node's state, those of its signs included: ``DOWN*+DRAIN`` gives DOWN, NOT_RESPONDING, DRAIN."""
    state = record.get("State", "").upper().split(" ")[0]
    words = {part.strip("*@^~#%$!-") for part in state.split("+")}
    return frozenset(words | {word for sign, word in _SIGNS.items() if sign in state})


def gpus_of(gres: str) -> tuple[int, tuple[str, ...]]:
    """
    Return how many GPUs a list of generic resources has, and of which types.

    >>> gpus_of("gpu:h100:8(S:0-1),gpu:a100:2,shard:64")
    (10, ('h100', 'a100'))
    >>> gpus_of("gres/gpu:4"), gpus_of("gres:gpu"), gpus_of("gres/gpu=8"), gpus_of("(null)")
    ((4, ()), (1, ()), (8, ()), (0, ()))
    """
    count, kinds = 0, []
    for part in re.split(r",(?![^(]*\))", gres):
        found = re.match(r"(?:gres[:/])?gpu(?::([A-Za-z][\w.-]*|\d+g\.[\w.]+))?(?:[:=](\d+))?(?![\w/])", part.strip())
        if found:
            count += int(found[2]) if found[2] else 1
            kinds += [found[1]] if found[1] else []
    return count, tuple(dict.fromkeys(kinds))


def reason_of(action: Action, op: str, *, expires: float | None = None, reboot: str = "", booted: float = 0.0) -> str:
    """
    Return the reason that is written: whose it is, until when, which reboot of a boot since when, and why.

    One line without quotes, equal signs and ``@``: it passes through files and mail programs, and Slurm itself puts ``[user@time]`` behind it.

    Raises
    ------
    ExecutorError
        An id could not be told from other words there.
    """
    for one in (op, reboot):
        if one and not re.fullmatch(_ID, one):
            raise ExecutorError(f"{one!r} cannot stand in a reason: letters, digits and dashes can", sent=False)
    until = f" until {datetime.fromtimestamp(expires, UTC):%Y-%m-%dT%H:%MZ}" if expires is not None else ""
    why = re.sub(r"[^\w .,:;/()%+\[\]-]", "_", " ".join(str(action.args.get("reason") or action.why).split()))
    head = f"{_PREFIX}{op}{until}{f' reboot {reboot} of {booted:.0f}' if reboot else ''}"
    return f"{head}: {why}"[:240].rstrip() if why else head


def node_of(record: Mapping[str, str], work: tuple[Work, ...] = (), adopt: Collection[str] = ()) -> NodeState:
    """
    Return a node as its scheduler sees it.

    Parameters
    ----------
    record : mapping
        As ``scontrol show node`` writes it.
    work : tuple of Work
        What runs there.
    adopt : collection of str
        Owners whose restriction we may take over: it then counts as nobody's.
    """
    flags = flags_of(record)
    reason, who, when = split_reason(record.get("Reason") if record.get("Reason") not in (None, "none", "(null)") else "")
    away, down = flags & set(_AWAY), bool(flags & _DOWN)
    # from 24.11 on a reason stays when nothing is restricted any more, and nobody can take it away
    mine = Ours.read(reason) if flags & _DRAIN else None
    owner = ""
    if mine:
        owner = OWNER
    elif away or ("DOWN" in flags and reason and not by_itself(reason) and not Ours.read(reason)):
        because = next((_AWAY[one] for one in sorted(away) if _AWAY[one]), "") if not flags & _DRAIN else ""
        writer = who if who and who not in _NOBODY else f"somebody as {who}" if who else "somebody"
        owner = CHECK if _CHECK.match(reason) else because or writer
    instance = record.get("InstanceId", "")
    gpus, kinds = gpus_of(record.get("Gres", ""))
    return NodeState(
        name=record.get("NodeName", ""),
        uid="" if instance in ("", "(null)") else instance,
        booted=local_epoch(record.get("BootTime")),  # no id: it is told anew, and a second off, whenever slurmd is asked
        ready=not down,
        schedulable=not (away or down),
        owner="" if owner in adopt else owner,
        op=mine.op if mine else "",
        reason=reason,
        restricted=when,
        expires=mine.expires if mine else None,
        pool=record.get("Partitions", "").split(",")[0],
        sku=",".join(kinds),
        gpus=gpus,
        version=record.get("LastBusyTime", ""),
        work=work,
    )
