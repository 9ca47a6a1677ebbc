"""
Turn a plan and one of its actions into the moment from which that action is not begun any more.

A plan expires so that nothing is done because of what was true long ago. What of it was begun in time is brought to its end all the same: a node
that was emptied for a reboot is no better off half mended, and a drain alone may take longer than a plan lives. So the first step of a chain
must begin before the plan expires, and each later one has in addition the time that the steps before it may take. The guards are asked
before each all the same: evidence that is too old by then, another boot or other work on the node still stop it.
"""

from __future__ import annotations

from workbench.remediation.model import Action, Plan

__all__ = ["until"]


def until(plan: Plan, action: Action) -> float:
    """Return the seconds since the epoch from which an action of a plan is not begun: its expiry, and the deadlines of what comes before."""
    known = {one.id: one for one in plan.actions}
    before: set[str] = set()
    waiting = list(action.after)
    while waiting:
        if (name := waiting.pop()) in known and name not in before:
            before.add(name)
            waiting += known[name].after
    return plan.expires + sum(known[name].deadline for name in before)
