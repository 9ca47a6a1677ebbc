"""Turn what a hypothesis stands on into what to do next: for an Xid by the rules that `workbench check` goes by, else by the catalog's rows."""

from __future__ import annotations

from workbench.catalog import table
from workbench.catalog.climbs import climbed
from workbench.catalog.xid_facts import facts_of, neighbours
from workbench.catalog.xid_rules import XidContext, rule_for
from workbench.model import Event, Hypothesis
from workbench.triage.context import Context
from workbench.triage.groups import Group

__all__ = ["advise", "class_row"]

_SEVERITY = {"replace-node": 6, "drain": 5, "reboot-node": 4, "reset-gpu": 3, "restart-task": 1}
_STATES = ("driver/missing", "driver/version-mismatch", "driver/fabric-manager")


def class_row(cls: str) -> dict[str, str]:
    """Return the row of catalog/classes.csv: default advice, who is to blame, which sources can show the class."""
    for row in table("classes"):
        if row["class"] == cls:
            return row
    return {}


def advise(context: Context, hypothesis: Hypothesis, groups: list[Group]) -> None:
    """Fill in retry and remediation: those of the leading evidence, or a heavier one that other evidence of the same fault asks for."""
    row = class_row(hypothesis.cls)
    best = max(groups, key=lambda g: g.score)
    concluded = context.catalog[best.signature]  # a rule's conclusion may have a row of its own
    lead = concluded if concluded.cls == hypothesis.cls else context.row(best.events[0])
    own = lead.cls == hypothesis.cls  # a rule may have given the line another meaning than its row has
    if not own:  # then what else speaks for it says what to do
        others = [context.row(group.events[0]) for group in sorted(groups, key=lambda g: -g.score)]
        lead = next((each for each in others if each.cls == hypothesis.cls), lead)
        own = lead.cls == hypothesis.cls
    hypothesis.retry = (lead.retry if own else "") or row.get("retry") or None
    ruled = {id(group): _ruled(context, group.events[0], hypothesis.cls) for group in groups}
    hypothesis.remediation = ruled[id(best)] or (lead.remediation if own else "") or row.get("remediation") or None
    wanted = [
        ruled[id(group)] or context.row(group.events[0]).remediation
        for group in groups
        if group.score >= 0.5 * best.score and (ruled[id(group)] or context.row(group.events[0]).cls == hypothesis.cls)
    ]
    wanted += [str(event.data["remediation"]) for group in groups for event in group.events if event.data.get("remediation")]
    alone = not context.has_job and len(context.job_nodes) <= 1
    if alone and hypothesis.retry == "exclude-node" and hypothesis.cls in _STATES:
        hypothesis.retry = "fix-first"  # leaving the node out helps when the job has others; its state alone has to be put right
    # what the platform has to put right is no lighter form of a reboot
    if hypothesis.cls.startswith(("hardware/", "driver/")) and hypothesis.remediation != "fix-platform":
        worst = max((name for name in wanted if name in _SEVERITY), key=lambda name: _SEVERITY[name], default=None)
        if worst and _SEVERITY[worst] > _SEVERITY.get(hypothesis.remediation or "", 0):
            hypothesis.remediation = worst
        lead_events = [event for group in groups if group.score >= 0.5 * best.score for event in group.events]
        too_little = next(
            filter(None, (climbed(hypothesis.remediation or "", event, context.events) for event in lead_events)), None
        )
        if too_little is not None:
            hypothesis.remediation = too_little.to


def _ruled(context: Context, event: Event, cls: str) -> str:
    """What the first rule for an Xid that fits asks for; empty when it asks for nothing, or means another class."""
    code = event.data.get("stands_for") or event.code
    if not event.signature.startswith("xid-") or code is None:
        return ""
    gpu = str(event.gpu.pci or event.gpu.uuid or event.gpu.index) if event.gpu else ""
    mine = [
        other
        for other in context.events
        if other.node == event.node
        and (other.gpu == event.gpu or (other.gpu is not None and event.gpu is not None and other.gpu.means(event.gpu)))
    ]
    others = sorted({other.code for other in mine if other.code is not None and other.code != event.code})
    near = neighbours(mine).get((event.node, gpu), [])
    rule = rule_for(XidContext(int(code), facts=facts_of(event, near, others)))
    fits = (rule.cls or context.cls(event)) == cls
    return rule.action if fits and rule.action != "none" and rule.status in ("critical", "warning") else ""
