"""Turn the conditions that checks show on nodes into troubles, and into the word that a node was checked: how a controller sees a fleet."""

from __future__ import annotations

import re
from functools import lru_cache

from workbench.catalog import signatures, table
from workbench.catalog.findings import FindingRow, findings_table
from workbench.catalog.xid_rules import XidContext, rule_for
from workbench.health.conditions import FIT, NodeCondition, camel, is_stale
from workbench.remediation.model import Evidence, FleetState, NodeState, Trouble, digest
from workbench.remediation.troubles import Checked

__all__ = ["of_fleet", "of_node"]


@lru_cache(maxsize=4)
def _by_reason(site: str | None = None) -> dict[str, FindingRow]:
    """Return the rows of findings by the one word that a condition's reason is."""
    return {camel(code): row for code, row in findings_table(site).items()}


@lru_cache(maxsize=4)
def _signature_by_reason(site: str | None = None) -> dict[str, tuple[str, str, str]]:
    """
    Return (code, class, remediation) by the same word of what has no row of its own there: Xids and SXids.

    Of an Xid it is the rule that holds when nothing more is known; on the node itself more was, and stands in the message.
    """
    found = {camel(code): (code, row.cls, row.remediation or "none") for code, row in signatures(site).items()}
    for word, (code, _, _) in list(found.items()):
        if number := re.fullmatch(r"xid-(\d+)", code):
            rule = rule_for(XidContext(int(number[1])))
            found[word] = (code, rule.cls, rule.action)
    return found


def of_node(node: NodeState, now: float) -> tuple[list[Trouble], Checked | None]:
    """
    Return what the conditions of a node say is wrong, and when it was last found fit or unfit.

    A condition that nobody renewed for `workbench.health.conditions.STALE_AFTER` says that the checker is gone: a trouble of severity
    ``unknown``. A node without any was never checked, which is no trouble of the node, and no sign that it is fit either.

    Parameters
    ----------
    node : NodeState
    now : float
        Seconds since the epoch.
    """
    classes = {row["condition"]: row["class"] for row in table("conditions_published")}
    shown = [NodeCondition.of(one) for one in node.conditions]
    fit = next((one for one in shown if one.type == FIT), None)
    if fit is None:
        return [], None
    troubles: list[Trouble] = []
    if is_stale(fit, now) or fit.status == "Unknown":
        said = "nobody has checked it since" if is_stale(fit, now) else fit.message
        since = fit.heartbeat if is_stale(fit, now) else fit.transition
        troubles.append(_trouble(node, fit, "not-checked", "", "none", "unknown", f"{node.name}: {said}", since=since))
    for one in shown:
        if one.type == FIT or one.status != "True" or is_stale(one, now):
            continue
        row, cls = _by_reason().get(one.reason), classes.get(one.type, "")
        if row is not None:
            troubles.append(_trouble(node, one, row.code, row.cls or cls, row.action, "critical", one.message))
        else:
            # of a site's own check the class is known by the condition's name, what to do about it is not
            code, own, action = _signature_by_reason().get(one.reason, (one.reason or one.type, "", "none"))
            troubles.append(_trouble(node, one, code, own or cls, action, "critical", one.message))
    checked = None if is_stale(fit, now) else Checked(node.name, fit.heartbeat, fit.status == "False", "running")
    return troubles, checked


def _trouble(
    node: NodeState, one: NodeCondition, code: str, cls: str, action: str, severity: str, said: str, *, since: float | None = None
) -> Trouble:
    text = f"{one.type}={one.status} {one.reason}: {one.message}"
    return Trouble(
        node=node.name,
        code=code,
        cls=cls,
        action=action,
        severity=severity,
        cause=cls.split("/")[0],
        confidence=0.0 if severity == "unknown" else 1.0,
        seen=one.heartbeat,
        since=one.transition if since is None else since,
        boot=node.checked_boot,
        summary=said,
        evidence=(
            Evidence(
                digest(["condition", node.name, one.type, one.reason, one.message, one.transition]),
                "kubernetes",
                text[:300],
                one.heartbeat,
            ),
        ),
    )


def of_fleet(fleet: FleetState) -> tuple[list[Trouble], list[Checked]]:
    """Return `of_node` of all nodes of a fleet."""
    troubles: list[Trouble] = []
    checked: list[Checked] = []
    for node in fleet.nodes.values():
        found, seen = of_node(node, fleet.time)
        troubles += found
        checked += [seen] if seen is not None else []
    return troubles, checked
