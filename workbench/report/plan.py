"""Turn a plan, its outcomes and reports for providers into what a person reads before saying yes: table, Markdown, ticket text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from workbench.remediation.model import Action, Plan, Refusal, Trouble
from workbench.remediation.words import VERBS
from workbench.report.markdown import quoted
from workbench.report.text import clean, iso, plural, shorten
from workbench.report.ticket import markdown, of_action

__all__ = ["FORMATS", "gpu_name", "how_it_ended", "ticket"]

_WIDE = 110


def _who(action: Action) -> str:
    return action.node or action.target


def gpu_name(action: Action) -> str:
    """Return the GPU as people say it: index, UUID, address; empty without one."""
    if action.gpu is None:
        return ""
    index = f"GPU {action.gpu.index}" if action.gpu.index is not None else "GPU"
    rest = " ".join(one for one in (action.gpu.uuid, action.gpu.pci) if one)
    return f"{index} ({rest})" if rest else index


def _groups(plan: Plan) -> list[tuple[str, str, list[Action]]]:
    """Return the actions by node and rung, in the plan's order."""
    found: dict[tuple[str, str], list[Action]] = {}
    for one in plan.actions:
        found.setdefault((_who(one), one.rung), []).append(one)
    return [(node, rung, actions) for (node, rung), actions in found.items()]


def _hours(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _cost(actions: Sequence[Action]) -> str:
    """Return what acting now costs against an hour of waiting."""
    now = max((one.cost.now for one in actions if one.cost.now is not None), default=None)
    wait = max((one.cost.wait for one in actions if one.cost.wait is not None), default=None)
    if now is None and wait is None:
        return ""
    return f"{_hours(now)} GPU-hours now, {_hours(wait)} for each hour of waiting"


def _blast(action: Action) -> str:
    blast = action.blast
    if not blast.work:
        return ""
    jobs = f" of {', '.join(blast.jobs)}" if blast.jobs else ""
    lost = (
        "an unknown part of their work"
        if blast.gpu_hours is None
        else f"{blast.gpu_hours:.1f} GPU-hours since the last checkpoint"
    )
    said = (
        f"ends {plural(len(blast.work), 'task')}{jobs}: {plural(blast.ranks, 'rank')}, {plural(blast.gpus, 'GPU')} here, {lost}"
    )
    if action.verb == "drain":
        said = f"waits for {plural(len(blast.work), 'task')}{jobs}"
    if blast.budgets:
        said += f"; held up by {', '.join(blast.budgets)}"
    return said


def _until(refusal: Refusal) -> str:
    return f" (until {iso(refusal.until)})" if refusal.until is not None else ""


def _wrong(plan: Plan, node: str) -> list[Trouble]:
    return [one for one in plan.troubles if one.node == node]


def _headline(plan: Plan) -> str:
    groups = [group for group in _groups(plan) if any(not one.recovery for one in group[2])]
    back = {one.node for one in plan.actions if one.verb == "uncordon"} - {node for node, _, _ in groups}
    parts = [plural(len(groups), "rung")] if groups else ["nothing to do"]
    if back:
        parts.append(f"{plural(len(back), 'node')} on the way back")
    if plan.refused:
        parts.append(f"{len(plan.refused)} refused")
    return f"Plan {plan.id} for {plan.cluster or 'this cluster'}: {', '.join(parts)}"


def _table(plan: Plan) -> str:
    lines = [_headline(plan)]
    if plan.breaker:
        lines += ["", f"BREAKER OPEN  {plan.breaker}"]
    lines += [f"note    {one}" for one in plan.notes]
    for node, rung, actions in _groups(plan):
        needs = "no person needed" if all(one.approval == "auto" for one in actions) else "needs a yes"
        lines += ["", f"{node}  {rung}  ({needs})"]
        gpu = gpu_name(actions[0])
        lines.append(f"  why     {shorten(actions[0].why, _WIDE)}")
        if gpu:
            lines.append(f"  gpu     {gpu}")
        for one in _wrong(plan, node)[:1]:
            lines += [f"  saw     {iso(piece.time) or 'no time':24} {shorten(piece.text, 80)}" for piece in one.evidence[:3]]
        if cost := _cost(actions):
            lines.append(f"  cost    {cost}")
        for number, action in enumerate(actions, 1):
            said = _blast(action) or action.waits
            mark = "!" if action.destructive else " "
            lines.append(f"  {number}.{mark} {action.id}  {action.verb:<12} {shorten(said or VERBS[action.verb], 80)}")
        undo = [one.verb for one in actions if one.undo]
        lines.append(f"  undo    {', '.join(undo)}" if undo else "  undo    nothing of it can be taken back")
    if plan.refused:
        lines += ["", "Not done"]
        seen: dict[tuple[str, str], list[Refusal]] = {}
        for refusal in plan.refused:
            seen.setdefault((refusal.guard, refusal.why), []).append(refusal)
        for (guard, why), some in seen.items():
            names = list(dict.fromkeys(refusal.node for refusal in some))
            nodes = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            lines.append(f"  {guard:<12} {nodes}: {some[0].rung}: {why}{_until(some[0])}")
    moved = {one.node for one in plan.actions} | {one.node for one in plan.refused}
    quiet = [one for one in plan.troubles if one.node not in moved]
    if quiet:
        lines += ["", "Nothing is called for"]
        lines += [f"  {one.node}: {shorten(one.summary or one.code, _WIDE)}" for one in quiet[:10]]
        lines += [f"  and {len(quiet) - 10} more"] if len(quiet) > 10 else []
    lines += ["", f"! cannot be taken back. It may be begun until {iso(plan.expires)}. Policy: {plan.policy}."]
    if plan.actions:
        lines.append(
            "Nothing has been done. To do exactly this: workbench plan … --save plan.json; workbench apply plan.json --yes"
        )
    return "\n".join(clean(line) for line in lines) + "\n"


def _json(plan: Plan) -> str:
    return json.dumps(plan.to_dict(), indent=2, ensure_ascii=False) + "\n"


def _markdown(plan: Plan) -> str:
    lines = [f"# {quoted(_headline(plan))}", ""]
    if plan.breaker:
        lines += [f"**The breaker is open.** {quoted(plan.breaker)}", ""]
    lines += [f"> {quoted(one)}" for one in plan.notes]
    for node, rung, actions in _groups(plan):
        lines += ["", f"## {quoted(node)}: {rung}", "", quoted(actions[0].why), ""]
        if gpu := gpu_name(actions[0]):
            lines.append(f"- GPU: {quoted(gpu)}")
        if cost := _cost(actions):
            lines.append(f"- Cost: {quoted(cost)}")
        for wrong in _wrong(plan, node)[:1]:
            lines += [f"- Seen {iso(piece.time) or 'at an unknown time'}: {quoted(piece.text)}" for piece in wrong.evidence[:3]]
        lines += ["", "| # | action | what | cannot be undone | approval |", "|---|---|---|---|---|"]
        for number, action in enumerate(actions, 1):
            said = _blast(action) or action.waits or VERBS[action.verb]
            final = "yes" if action.destructive else ""
            lines.append(f"| {number} | {action.verb} `{action.id}` | {quoted(said)} | {final} | {action.approval} |")
    if plan.refused:
        lines += ["", "## Not done", ""]
        lines += [
            f"- {quoted(one.node)}: {one.rung}: **{one.guard}**: {quoted(one.why)}{_until(one)}" for one in plan.refused[:50]
        ]
        lines += [f"- and {len(plan.refused) - 50} more"] if len(plan.refused) > 50 else []
    lines += ["", f"May be begun until {iso(plan.expires)}. Policy: {quoted(plan.policy)}. Plan `{plan.id}`."]
    return "\n".join(lines) + "\n"


FORMATS = {"table": _table, "json": _json, "md": _markdown}


def how_it_ended(outcomes: Iterable[Any]) -> str:
    """
    Return a line for each action that was executed, refused or left open.

    Parameters
    ----------
    outcomes : iterable of workbench.remediation.engine.Outcome
    """
    lines = []
    for one in outcomes:
        guard = f" [{one.guard}]" if one.guard else ""
        verb = f"undo {one.action.verb}" if one.undo else one.action.verb
        lines.append(f"{one.status:<9} {_who(one.action)}  {verb}  {one.action.id}{guard}  {shorten(one.detail, _WIDE)}".rstrip())
    return "".join(clean(line) + "\n" for line in lines)


def ticket(action: Action) -> str:
    """
    Return the report of a fault for a provider or the data centre as Markdown: what they ask for, and what is not known said so.

    Parameters
    ----------
    action : Action
        With the verb ``ticket`` or ``page``.
    """
    if action.verb == "page":
        return f"# {quoted(shorten(action.why, 200))}\n\n{quoted(action.why)}\n"
    return markdown(of_action(action))
