"""
Turn the eviction of a node's work, or the restart of one task, into Evictions of exactly the pods that were meant, and what is left of them
into how far it is.

Never a force: no pod is deleted past its budget or its grace. A pod that is held is asked again whenever the action is begun again; which
pods were meant stands on the node (``gpu-workbench/did-evict``: name and uid), so another pod of the same name is never asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.parse.kubernetes_reasons import epoch
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.kubernetes.calls import Calls, Held
from workbench.remediation.executors.kubernetes.marks import Change, Mark, did, mark_of
from workbench.remediation.executors.kubernetes.pods import Budgets, finished
from workbench.remediation.model import Action, NodeState, Step

__all__ = ["ask", "checked", "left", "marked", "meant", "noted", "restart", "restarted"]

_SHOWN = 3
_LATE = 30.0  # seconds after its grace from which a pod that still ends is told of


def meant(action: Action, state: NodeState) -> dict[str, str]:
    """Return the pods that an eviction is for: id → uid."""
    allowed = action.expects.get("work")
    return {one.id: one.uid for one in state.busy() if allowed is None or one.uid in allowed or one.id in allowed}


def noted(action: Action, node: Mapping[str, Any], pods: Mapping[str, str], now: float) -> dict[str, Any]:
    """Return the patch that writes on the node which pods are meant."""
    text = Mark(action.id, now, more={"pods": dict(pods)}).text()
    return Change().patch(node, {did("evict"): text})


def marked(action: Action, node: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return which pods the action was begun for; None when it was not."""
    mark = None if node is None else mark_of(node, "evict")
    if mark is None or mark.op != action.id:
        return None
    return {str(key): str(one) for key, one in dict(mark.more.get("pods") or {}).items()}


def ask(calls: Calls, pods: Mapping[str, str], there: list[dict[str, Any]], deadline: Deadline, *, dry: bool) -> Step:
    """Ask every pod that is meant and still runs to leave, and return how far that is."""
    held: list[Held] = []
    asked = 0
    for pod in _left(pods, there):
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            continue
        try:
            asked += calls.evict(_id(pod), pods[_id(pod)], deadline, dry=dry)
        except Held as error:
            held.append(error)
    if held:
        said = "; ".join(str(one) for one in held[:_SHOWN]) + (f"; and {len(held) - _SHOWN} more" if len(held) > _SHOWN else "")
        others = f"; {asked} were let go" if asked else ""
        return Step("blocked", said + others, again=min(one.again for one in held))
    return Step("pending" if asked else "done", f"{asked} pods were asked to leave" if asked else "")


def left(pods: Mapping[str, str] | None, there: list[dict[str, Any]], budgets: Budgets, now: float) -> Step:
    """Return how far an eviction is: `pods` are those that are meant, None when it was not begun."""
    if pods is None:
        return Step("absent", "no pod was asked to leave")
    rest = _left(pods, there)
    if not rest:
        return Step("done", "", {"pods": dict(pods)})
    ending = [pod for pod in rest if pod["metadata"].get("deletionTimestamp")]
    staying = [pod for pod in rest if pod not in ending]
    if staying:
        held = {_id(pod): names for pod in staying for names, allowed in [budgets.over(pod)] if allowed == 0}
        if held:
            said = "; ".join(f"{id}: held by {' and '.join(names)}" for id, names in list(held.items())[:_SHOWN])
            return Step("blocked", said, {"pods": dict(pods)}, again=10.0)
        if len(staying) == len(pods):
            return Step("absent", "no pod was asked to leave", {"pods": dict(pods)})
        return Step("blocked", f"{len(staying)} pods were not asked yet: begin again", {"pods": dict(pods)}, again=1.0)
    return Step("pending", _ending(ending, now), {"pods": dict(pods)})


def _left(pods: Mapping[str, str], there: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of the pods that are meant that still hold the node."""
    return [pod for pod in there if pods.get(_id(pod)) == str(pod["metadata"].get("uid")) and not finished(pod)]


def _ending(pods: list[dict[str, Any]], now: float) -> str:
    late = []
    for pod in pods:
        end = epoch(pod["metadata"].get("deletionTimestamp"))  # when its grace is over
        if end is not None and now - end > _LATE:
            held = pod["metadata"].get("finalizers")
            why = f", held by {', '.join(held)}" if held else ": its kubelet does not say that it ended"
            late.append(f"{_id(pod)} is {now - end:.0f} s past its grace{why}")
    said = f"{len(pods)} pods end"
    return said + (f"; {'; '.join(late[:_SHOWN])}; nothing is deleted by force" if late else "")


def _id(pod: Mapping[str, Any]) -> str:
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace')}/{meta.get('name')}"


# ---- one task


def restart(action: Action, calls: Calls, deadline: Deadline, *, dry: bool) -> Step:
    """Ask one pod to leave, so that its controller makes another."""
    pod = calls.pod(action.target, deadline)
    if pod is None or not _is_it(action, pod) or finished(pod):
        return Step("done", "the pod is gone")
    uid = str(pod["metadata"]["uid"])
    if str((pod.get("spec") or {}).get("nodeName")) != action.node:
        return Step("changed", f"{action.target} runs on {(pod.get('spec') or {}).get('nodeName') or 'no node'}")
    if not any(one.get("controller") for one in pod["metadata"].get("ownerReferences") or []):
        return Step("changed", f"nothing would start {action.target} again: it has no controller")
    before = {"pod": action.target, "uid": uid}
    if pod["metadata"].get("deletionTimestamp"):
        return Step("pending", "it ends", before)
    try:
        calls.evict(action.target, uid, deadline, dry=dry)
    except Held as error:
        return Step("blocked", str(error), before, again=error.again)
    return Step("pending", "it was asked to leave", before)


def restarted(action: Action, calls: Calls, now: float, deadline: Deadline) -> Step:
    """Return how far the restart of a task is: that its pod is gone; the next one is its controller's."""
    pod = calls.pod(action.target, deadline)
    if pod is None or not _is_it(action, pod) or finished(pod):
        return Step("done", "the pod is gone")
    if pod["metadata"].get("deletionTimestamp"):
        return Step("pending", _ending([pod], now))
    return Step("absent", "the pod runs")


def checked(action: Action) -> None:
    """Raise `ExecutorError` when an action does not say which pod it means: by ``args.uid``, or by uids in ``expects.work``."""
    work = action.expects.get("work") or ()
    if "/" not in action.target or action.target in work or not (action.args.get("uid") or work):
        raise ExecutorError(
            "restart-task needs the pod as its target (namespace/name) and its uid as args.uid or among expects.work: without it "
            "another pod of the same name could be meant",
            sent=False,
        )


def _is_it(action: Action, pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod of the target's name is the very one that is meant, and not its successor."""
    uid = str((pod.get("metadata") or {}).get("uid"))
    wanted = action.args.get("uid")
    return uid == wanted if wanted else uid in (action.expects.get("work") or ())
