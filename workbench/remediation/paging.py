"""
Turn actions whose end cannot be told into one page for a person, who is told once; and again when the page itself was lost.

A page is begun after the outcome it is about is in the journal, so a crash, the kill switch or a receiver that is down may come in between.
What the journal calls unknown and no page has told is therefore owed, and whoever resumes tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from workbench.remediation.flight import TELLS, Flight, Outcome, Runner
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action, digest

__all__ = ["page"]

AGAIN = (
    900.0  # seconds after which a page that did not get through is tried again: ours, so that a receiver that is down is no flood
)


def page(
    run: Runner,
    outcomes: Sequence[Outcome],
    plan: str,
    tell: Callable[[Outcome], None] | None,
    *,
    owed: bool = False,
) -> list[Outcome]:
    """
    Tell a person, once, of everything whose end cannot be told; return how that ended.

    Parameters
    ----------
    run : Runner
    outcomes : sequence of Outcome
        What just ended: of it, what is unknown is told.
    plan : str
        Id of the plan it is about; empty when it is of several.
    tell : callable or None
        Called with the outcome of the page.
    owed : bool, optional
        Also tell what the journal says is unknown and nobody was told of.
    """
    journal = run.journal
    unknown = {one.action.id: one for one in outcomes if one.status == "unknown" and not _about_others(one.action)}
    fresh = bool(unknown)
    if owed and "page" in run.executor.verbs and (fresh or not run.halted()[0]):
        unknown = _owed(journal, run.clock()) | unknown
    if not unknown:
        return []
    lines = [
        f"{one.action.node or one.action.target}: {'undo of ' if one.undo else ''}{one.action.verb}: {one.detail}"
        for one in unknown.values()
    ]
    text = "How these ended cannot be told; nothing does them again, a person must look and settle them:\n" + "\n".join(lines)
    action = _action(journal, plan, unknown.values(), text)
    if journal.status_of(action.id) in ("done", "open"):
        return []
    if "page" not in run.executor.verbs:
        journal.note(f"a person is needed and nothing here can page: {text}", plan=plan)
        return []
    run.check = None  # telling needs no guard
    outcome = run.drive(Flight(action, plan, "check", run.steady() + action.deadline, due=run.steady()))
    if outcome.status != "done":
        journal.note(f"a person is needed and the page is {outcome.status} ({outcome.detail}): {text}", plan=plan)
    if tell is not None:
        tell(outcome)
    return [outcome]


def _action(journal: Journal, plan: str, unknown: Iterable[Outcome], text: str) -> Action:
    found = list(unknown)
    ids = sorted(one.action.id for one in found)
    nodes = {one.action.node for one in found}
    number = 0  # a page that did not get through is tried again as another one: the receiver's key may be used up
    while journal.status_of(name := digest(["page", plan, ids, *([number] if number else [])])) in (
        "failed",
        "expired",
        "unknown",
    ):
        number += 1
    return Action(
        name,
        "page",
        "report",
        next(iter(nodes)) if len(nodes) == 1 else "",
        why=f"how {len(found)} actions ended cannot be told"
        if len(found) > 1
        else f"how {found[0].action.verb} ended cannot be told",
        args={"title": "GPU remediation needs a person", "text": text, "nodes": sorted(nodes - {""}), "actions": ids},
        approval="auto",
    )


def _about_others(action: Action) -> bool:
    """Whether it is one of these pages: when it is lost, what it was about is told again, and not that it was lost."""
    return action.verb == "page" and "actions" in action.args


def _owed(journal: Journal, now: float) -> dict[str, Outcome]:
    """Return what the journal calls unknown and no page has told, or not for a while."""
    told: set[str] = set()
    waits: set[str] = set()
    begun: dict[str, Action] = {}
    lost: dict[str, Outcome] = {}  # a refused undo in between makes nothing known
    for entry in journal.past():
        if entry.kind == "intent" and entry.verb == "page":
            about = ((entry.data.get("action") or {}).get("args") or {}).get("actions") or ()
            status = journal.status_of(entry.action)
            if status in ("done", "open"):
                told.update(about)
            elif status != "refused" and 0 <= now - entry.time < AGAIN:
                waits.update(about)
        elif entry.kind == "intent" and entry.verb not in TELLS and (action := entry.intended()) is not None:
            begun[entry.action] = action
        elif entry.kind == "outcome" and entry.status == "unknown" and entry.verb not in TELLS:
            action = begun.get(entry.action) or Action(entry.action, entry.verb, entry.rung, entry.node, trouble=entry.trouble)
            lost[entry.action] = Outcome(action, "unknown", entry.detail, undo=entry.undo)
    return {name: one for name, one in lost.items() if name not in told | waits and journal.status_of(name) == "unknown"}
