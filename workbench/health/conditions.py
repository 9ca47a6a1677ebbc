"""Turn the findings of a node into the conditions that it shows to its cluster, and what of them has to be written now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from workbench.catalog import table
from workbench.health.finding import Finding, rank
from workbench.parse.kubernetes_reasons import STALE_AFTER
from workbench.sources.kubernetes.errors import words

__all__ = ["FIT", "HEARTBEAT", "STALE_AFTER", "NodeCondition", "camel", "conditions_of", "is_stale", "to_write"]

FIT = "WorkbenchNodeUnfit"
# kubelet and node-problem-detector renew theirs every five minutes: unchanged ones are written no oftener, since each write of a node wakes
# everyone who watches nodes
HEARTBEAT = 300.0
assert STALE_AFTER >= 3 * HEARTBEAT  # two that were lost are no dead checker
_MESSAGE = 512  # characters; a condition is a headline, the findings have the rest


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """
    One condition of a node. Polarity: ``True`` is bad, ``False`` is good, ``Unknown`` could not be checked.

    `reason` is one word in CamelCase, `message` a sentence; `heartbeat` and `transition` are seconds since the epoch: when it was last
    known, and when `status` last changed (never when only reason or message did).
    """

    type: str
    status: str
    reason: str
    message: str
    heartbeat: float
    transition: float

    def to_dict(self) -> dict[str, str]:
        """Return it as Kubernetes writes it."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastHeartbeatTime": _stamp(self.heartbeat),
            "lastTransitionTime": _stamp(self.transition),
        }

    @classmethod
    def of(cls, item: Mapping[str, object]) -> NodeCondition:
        """Return the condition that an item of a node's ``status.conditions`` is."""
        return cls(
            str(item.get("type") or ""),
            str(item.get("status") or "Unknown"),
            str(item.get("reason") or ""),
            str(item.get("message") or ""),
            _moment(item.get("lastHeartbeatTime")),
            _moment(item.get("lastTransitionTime")),
        )


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def camel(code: str) -> str:
    """Return a code as the one word that Kubernetes wants for a reason."""
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", code) if word)


def conditions_of(findings: Sequence[Finding], *, now: float) -> list[NodeCondition]:
    """
    Return one condition for each kind of trouble that was looked for, and `FIT` for the node.

    A kind is bad when one of its required findings is critical, not known when one is unknown and none critical; warnings and findings
    that are not required do not make it bad. A kind of which every check is not applicable has no condition.

    Parameters
    ----------
    findings : sequence of Finding
        Of one run, all checks.
    now : float
        Seconds since the epoch.
    """
    rows = {row["class"]: row for row in table("conditions_published")}
    kinds: dict[str, list[Finding]] = {}
    healthy: dict[str, str] = {}
    for one in findings:
        row = rows.get(_looked_for(one), rows[""])
        healthy[row["condition"]] = row["healthy_reason"]
        if one.status != "not-applicable":
            kinds.setdefault(row["condition"], []).append(one)
    out = [_condition(name, mine, healthy[name], now) for name, mine in sorted(kinds.items())]
    return [_condition(FIT, [one for one in findings if one.status != "not-applicable"], "NodeFit", now), *out]


def _looked_for(one: Finding) -> str:
    """The class of a finding, and of one that is well the class its check looks for."""
    from workbench.health.registry import checks

    check = checks().get(one.check)
    return one.cls or (check.cls if check else "")


def _condition(name: str, findings: Sequence[Finding], healthy: str, now: float) -> NodeCondition:
    bad = sorted((one for one in findings if one.unfit), key=lambda one: (*rank(one), one.code))
    if not findings:
        return NodeCondition(name, "Unknown", "NothingChecked", "no check applied to this node", now, now)
    if not bad:
        return NodeCondition(name, "False", healthy, "nothing was found that makes the node unfit", now, now)
    first = bad[0]
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    # logs are hostile, and what the server would store otherwise than we sent would differ from what we want for ever
    message = words(f"{first.check}: {first.who}{first.summary}", 4096).encode("utf-8", "replace").decode()
    message = (message if len(message) + len(more) <= _MESSAGE else message[: _MESSAGE - len(more) - 1] + "…") + more
    return NodeCondition(
        name, "True" if first.status == "critical" else "Unknown", camel(first.code) or camel(first.check), message, now, now
    )


def to_write(
    wanted: Sequence[NodeCondition], there: Sequence[NodeCondition], *, heartbeat: float = HEARTBEAT
) -> list[NodeCondition]:
    """
    Return the conditions that must be written: changed ones at once, unchanged ones when their heartbeat is due.

    The time of transition is kept while the status stays, whatever happens to the reason: what waits for a node to be bad for ten
    minutes would else wait for ever on one whose faults take turns. A condition of ours that is no longer looked for is not left as it
    was: it becomes ``Unknown``.

    Parameters
    ----------
    wanted : sequence of NodeCondition
        What holds now.
    there : sequence of NodeCondition
        The node's conditions, of others, too.
    heartbeat : float, optional
        Seconds after which an unchanged one is renewed.
    """
    known = {one.type: one for one in there}
    mine = {one.type for one in wanted} | {row["condition"] for row in table("conditions_published")}
    out = []
    now = max((one.heartbeat for one in wanted), default=0.0)
    for one in wanted:
        before = known.get(one.type)
        if before is None:
            out.append(one)
            continue
        kept = replace(one, transition=before.transition) if before.status == one.status else one
        changed = (before.status, before.reason, before.message) != (one.status, one.reason, one.message)
        if changed or one.heartbeat - before.heartbeat >= heartbeat:
            out.append(kept)
    asked = {one.type for one in wanted}
    gone = {"status": "Unknown", "reason": "NoLongerChecked", "message": "no check of this kind applies here now"}
    out += [
        replace(before, **gone, heartbeat=now, transition=now)
        for before in there
        if before.type in mine - asked and before.status != "Unknown"
    ]
    return out


def is_stale(condition: NodeCondition, now: float) -> bool:
    """Tell whether nobody renewed a condition for `STALE_AFTER` seconds: then it says nothing of the node as it is."""
    return now - condition.heartbeat > STALE_AFTER
