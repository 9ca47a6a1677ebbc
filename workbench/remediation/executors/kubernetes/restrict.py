"""Turn a cordon, taint, label, exclusion or its end into one conditional patch of a node, and a marked node into how far it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workbench.remediation.executors.kubernetes.marks import (
    EXCLUDES,
    EXPIRES,
    LAST,
    OP,
    OWNED_BY,
    PREFIX,
    REASON,
    RESTRICTING,
    SINCE,
    Change,
    Mark,
    annotations_of,
    did,
    labels_of,
    mark_of,
    marks_of,
    stamp,
    taints_of,
)
from workbench.remediation.executors.kubernetes.nodes import restriction
from workbench.remediation.model import OWNER, Action, Step, digest
from workbench.sources.kubernetes.errors import words

__all__ = ["TAINT", "Patch", "excluded", "is_lifted", "lifted", "lifts", "made", "restored", "seen", "slot", "taken_back"]

TAINT = PREFIX + "unfit"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?")
_OURS = (OWNED_BY, OP, REASON, SINCE, EXPIRES)

Patch = tuple[dict[str, Any], dict[str, Any]]  # the body, and what an undo needs


def slot(action: Action) -> str:
    """Return under which name the mark of an action stands: its verb, and for an exclusion its job, since a node can have several."""
    return f"exclude-{digest(_job(action), 8)}" if action.verb == "exclude" else action.verb


def excluded(job: str) -> str:
    """
    Return the label of a node that a job's retries leave out.

    The job's pod template must say so once, and the scheduler does the rest::

        nodeAffinity: requiredDuringSchedulingIgnoredDuringExecution: nodeSelectorTerms:
          - matchExpressions: [{key: exclude.gpu-workbench/JOB, operator: DoesNotExist}]
    """
    return EXCLUDES + (job if _NAME.fullmatch(job) else digest(job, 16))


# ---- making


def made(action: Action, node: Mapping[str, Any], now: float) -> Patch | Step:
    """Return the patch that makes a change, or the step that says why there is none to make."""
    try:
        change, more = _change(action, node)
    except ValueError as error:
        return Step("failed", str(error))
    for name, there, _, after in change.fields(node):
        if there is not None and there is not False and after != there:
            return Step("changed", f"{name} is {there or 'there'} already, and not by us")
    held = restriction(node)
    other = marks_of(node).get(slot(action))
    if other is not None and other.op and held.owner == OWNER and not other.change.stands(node):
        return Step("changed", f"we did the same already by action {other.op}")
    notes: dict[str, str | None] = {did(slot(action)): Mark(action.id, now, change, more).text()}
    if (
        action.verb in RESTRICTING and held.owner != OWNER
    ):  # a second restriction of ours leaves the first one's reason and expiry
        expires = action.args.get("expires")
        notes |= {
            OWNED_BY: OWNER,
            OP: action.id,
            REASON: words(str(action.args.get("reason") or action.why), 500),
            SINCE: stamp(now),
            EXPIRES: stamp(float(expires)) if expires is not None else None,
        }
        notes = {key: value for key, value in notes.items() if value is not None or key in annotations_of(node)}
    return change.patch(node, notes), change.to_dict()


def _change(action: Action, node: Mapping[str, Any]) -> tuple[Change, dict[str, Any]]:
    args, labels, taints = action.args, labels_of(node), taints_of(node)
    wanted: dict[str, str] = {str(key): str(value) for key, value in dict(args.get("labels") or {}).items()}
    tainted: dict[str, str] = {}
    unschedulable = None
    if action.verb in ("cordon", "drain"):
        cordoned = bool((node.get("spec") or {}).get("unschedulable"))
        unschedulable = None if cordoned else (False, True)
    if action.verb == "label" and not wanted:
        wanted = {PREFIX + "suspect": "true"}
    if action.verb == "exclude":
        if not _job(action):
            raise ValueError("an exclusion needs the job that it is for: args.job, or the target")
        wanted = {excluded(_job(action)): "true"}
    if action.verb == "taint" or args.get("taint"):
        key, value, effect = _taint(args.get("taint"))
        tainted = {f"{key}:{effect}": value}
    return (
        Change(
            {key: (labels.get(key), value) for key, value in wanted.items()},
            {key: (taints.get(key), value) for key, value in tainted.items()},
            unschedulable,
        ),
        {"job": _job(action)} if action.verb == "exclude" else {},
    )


def _job(action: Action) -> str:
    return str(action.args.get("job") or action.target or "")


def _taint(value: Any) -> tuple[str, str, str]:
    """Return key, value and effect of ``key=value:Effect``, of a mapping, or of nothing: ours."""
    if isinstance(value, Mapping):
        key, said, effect = (
            str(value.get("key") or TAINT),
            str(value.get("value") or ""),
            str(value.get("effect") or "NoSchedule"),
        )
    elif isinstance(value, str):
        head, _, effect = value.rpartition(":")
        key, _, said = head.partition("=")
    else:
        key, said, effect = TAINT, "", "NoSchedule"
    if not key or effect not in _EFFECTS:
        raise ValueError(f"{value!r} is no taint: key=value:{'|'.join(_EFFECTS)}")
    return key, said, effect


# ---- looking


def seen(action: Action, node: Mapping[str, Any]) -> Step:
    """Return how far a change is, by what stands on the node."""
    mark = mark_of(node, slot(action))
    if mark is None or mark.op != action.id:
        return Step("absent", "nothing of it is on the node")
    before = mark.change.to_dict()
    if gone := mark.change.stands(node):
        return Step("changed", f"somebody changed what it made: {gone}", before)
    held = restriction(node)
    if held.owner not in ("", OWNER):
        return Step("changed", f"{held.owner} holds the node since", before)
    return Step("done", "", before)


# ---- taking back


def taken_back(action: Action, node: Mapping[str, Any]) -> Patch | Step:
    """Return the patch that takes back what one action made, or the step that says why there is none."""
    mark = mark_of(node, slot(action))
    held = restriction(node)
    if held.owner not in ("", OWNER):
        return Step("changed", f"{held.owner} holds the node{f' ({held.reason})' if held.reason else ''}: it stays as it is")
    if mark is None or mark.op != action.id:
        return Step("done", "nothing of it is on the node")
    if strange := mark.change.foreign(node):
        return Step("changed", f"somebody changed what it made: {strange}")
    back, notes = _back([(slot(action), mark)], node)
    return back.patch(node, notes), back.to_dict()


def lifted(action: Action, node: Mapping[str, Any], now: float) -> Patch | Step:
    """Return the patch that takes back every restriction of ours, or the step that says why there is none."""
    marks = {verb: one for verb, one in marks_of(node).items() if verb in (*RESTRICTING, "evict", "replace")}
    if broken := [verb for verb, one in marks.items() if not one.op]:
        return Step("changed", f"somebody edited our mark {did(broken[0])}")
    held = restriction(node)
    if held.owner not in ("", OWNER):
        return Step("changed", f"{held.owner} holds the node{f' ({held.reason})' if held.reason else ''}: it stays as it is")
    if not marks:
        return Step("done", "nothing of ours is on the node")
    for one in marks.values():
        if strange := one.change.foreign(node):
            return Step("changed", f"somebody changed what we made: {strange}")
    back, notes = _back(list(marks.items()), node)
    there = annotations_of(node)
    before = {**back.to_dict(), "annotations": {key: there[key] for key in notes if key in there}}
    notes[LAST] = Mark(action.id, now).text()
    return back.patch(node, notes), before


def restored(action: Action, node: Mapping[str, Any], before: Mapping[str, Any]) -> Patch | Step:
    """Return the patch that puts back what an uncordon lifted, or the step that says why there is none."""
    held = restriction(node)
    if not lifts(action, node):
        return (
            Step("changed", f"{held.owner} holds the node")
            if held.owner not in ("", OWNER)
            else Step("done", "it was not lifted")
        )
    if held.owner:
        return Step("changed", f"{held.owner} restricted the node since")
    try:
        change = Change.of(before).turned()
    except ValueError as error:
        return Step("failed", str(error))
    if strange := change.foreign(node):
        return Step("changed", f"somebody changed the node since: {strange}")
    notes: dict[str, str | None] = {**dict(before.get("annotations") or {}), LAST: None}
    return change.patch(node, notes), {}


def is_lifted(action: Action, node: Mapping[str, Any]) -> Step:
    """Return whether an uncordon has been made."""
    if lifts(action, node):
        return Step("done")
    if any(verb in marks_of(node) for verb in RESTRICTING):
        return Step("absent", "our restriction stands")
    return Step("done", "nothing of ours is on the node")


def lifts(action: Action, node: Mapping[str, Any]) -> bool:
    """Tell whether this action was the last that lifted a restriction of ours from a node."""
    found = re.search(r'"op":"([^"]*)"', annotations_of(node).get(LAST, ""))
    return action.verb == "uncordon" and found is not None and found[1] == action.id


def _back(marks: list[tuple[str, Mark]], node: Mapping[str, Any]) -> tuple[Change, dict[str, str | None]]:
    """Return the change that takes back marks, and the annotations that go with them."""
    labels: dict[str, tuple[str | None, str | None]] = {}
    taints: dict[str, tuple[str | None, str | None]] = {}
    unschedulable = None
    for _, one in marks:
        back = one.change.turned()
        labels |= back.labels
        taints |= back.taints
        unschedulable = back.unschedulable or unschedulable
    there = annotations_of(node)
    gone = {did(verb) for verb, _ in marks}
    rest = [one for verb, one in marks_of(node).items() if verb in RESTRICTING and did(verb) not in gone]
    notes: dict[str, str | None] = dict.fromkeys(gone)
    if any(verb in RESTRICTING for verb, _ in marks):
        # what else of ours restricts the node keeps its owner
        notes |= {OP: rest[0].op} if rest else {key: None for key in _OURS if key in there}
    change = Change(labels, taints, unschedulable)
    now = {name: value for name, value, _, _ in change.fields(node)}
    return Change(
        {key: pair for key, pair in labels.items() if now[f"label {key}"] != pair[1]},
        {key: pair for key, pair in taints.items() if now[f"taint {key}"] != pair[1]},
        unschedulable if unschedulable is not None and now["unschedulable"] != unschedulable[1] else None,
    ), notes
