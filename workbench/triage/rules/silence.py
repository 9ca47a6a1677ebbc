"""Turn who spoke last into a lost node: all of one node fell silent, ranks and agent, while every other node tells that a peer is gone."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.model import Event
from workbench.triage.context import JOB_SOURCES, Context
from workbench.triage.rules.outcome import Outcome

__all__ = ["fell_silent", "supervisors_silent"]

# what a rank says whose peer closed its connection, and one whose peer never answered
_CLOSED = ("gloo-closed-by-peer", "nccl-closed-by-peer", "py-connection-reset", "nccl-remote-error")
_WAITED = ("gloo-timeout", "c10d-watchdog-timeout", "c10d-monitored-barrier")
_SURE = 0.35  # a cause that stands on its own
Voice = tuple[int, float | None]  # a line, and when it was written


def fell_silent(context: Context, outcome: Outcome) -> None:
    """
    A node that wrote into the same output as the others, and of which neither a rank nor the agent says a word once all others report that a
    peer is gone, was lost.

    A rank that dies or hangs alone does not leave such silence: its agent reports the death, and the ranks beside it wait in the same
    collective and run into the same deadline as those elsewhere (torchrun's agent, PyTorch 2.14, torch/distributed/elastic/agent/server/api.py:
    it logs each failure of its workers, and each signal that it gets). Peers that closed no connection but were waited for in vain are less:
    then the node must have had two ranks, and as long to speak as it takes to tell silence from order.

    Nothing is concluded when a cause stands on its own, when the node's ranks answered whoever took their stacks, or when lines were left out
    where it might have spoken.
    """
    if any(group.cls == "platform/node-lost" and group.node and group.score >= _SURE for group in outcome.alive()):
        return
    if any(
        group.score >= _SURE and group.cls not in ("unknown", "none") and group.source != "stacks" for group in outcome.alive()
    ):
        return
    spoke = _voices(context)
    errors = [event for event in context.events if _own_error(context, event) and event.node in spoke]
    telling = {event.node for event in errors if event.signature.startswith((*_CLOSED, *_WAITED))}
    quiet = set(spoke) - {event.node for event in errors}
    if len(spoke) < 2 or not telling or quiet | telling != set(spoke) or not 0 < len(quiet) <= max(1, len(spoke) // 8):
        return
    lost = [event for event in errors if event.signature.startswith(_CLOSED)]
    waited = [event for event in errors if event.signature.startswith(_WAITED)]
    agents = {
        event.node for event in errors if event.source in ("launcher", "torchelastic") and event.signature.startswith("elastic-")
    }
    for node in sorted(quiet):
        if _lives(context, node) or not _silent_since(context, spoke[node], errors):
            continue
        two = len(context.ranks_of(node)) >= 2
        if lost and (telling <= agents or (two and len(lost) >= 2)):
            weight, lines, what = 0.6, lost, "and the others lost their connections"
        elif waited and two and telling <= agents and _had_time(context, errors):
            weight, lines, what = 0.5, waited, "and the others waited for it in vain"
        else:
            continue
        for event in lines:
            event.data["promoted"] = True
        outcome.add(
            context,
            "node-silent",
            "platform/node-lost",
            weight,
            lines[:6],
            node=node,
            note=f"all of it fell silent at once, ranks and agent, without a last word, {what}",
        )


def supervisors_silent(context: Context, outcome: Outcome) -> None:
    """Many nodes whose supervisors fall silent at once are not lost one by one: what they share is, or the one who listens."""
    for group in outcome.alive("run-node-silent"):
        told = group.events[0].data
        if told.get("silent", 1) > max(1, told.get("of", 0) // 8):
            many = f"the supervisors of {told['silent']} of {told['of']} nodes fell silent at once"
            group.dismiss(f"{many}: what they share failed, not each of them")


def _own_error(context: Context, event: Event) -> bool:
    """Tell whether a node itself speaks of a failure; what a launcher elsewhere says of it is not its own voice."""
    return (
        event.source in JOB_SOURCES
        and event.node is not None
        and context.role(event) in ("cause", "symptom")
        and not event.signature.startswith("launch-")
        and context.row(event).cls != "platform/node-lost"
    )


def _voices(context: Context) -> dict[str, dict[str, Voice]]:
    """Return, for each node that wrote into the job's output, the last of its lines in each document and when it was written."""
    found: dict[str, dict[str, Voice]] = {}
    for document in context.incident.documents:
        if document.kind not in ("job-log", "text"):
            continue
        for name, voice in (document.facts.get("voices") or {}).items():
            node = context.node(name)
            if node is not None and (not context.job_nodes or node in context.job_nodes):
                mine = found.setdefault(node, {})
                mine[document.name] = max(voice, mine.get(document.name, voice), key=lambda each: each[0])
    return found


def _silent_since(context: Context, last: dict[str, Voice], errors: Iterable[Event]) -> bool:
    """
    Tell whether a node spoke until the first error of the others, and not after it.

    In a log that it shares with them the order of lines says so, where none was left out. A log of its own must reach up to the failure:
    one that was collected earlier, or cut, is silent for another reason.
    """
    first: dict[str, int] = {}
    for event in errors:
        if event.line is not None:
            first[event.file] = min(event.line, first.get(event.file, event.line))
    whole = {document.name: int(document.facts.get("whole_from") or 1) for document in context.incident.documents}
    shared = {name for name in last if name in first}
    if shared:
        return all(last[name][0] < first[name] and whole[name] <= first[name] for name in shared)
    began = min((event.time for event in errors if event.time is not None), default=None)
    until = max((when for _, when in last.values() if when is not None), default=None)
    return began is not None and until is not None and abs(began - (until - context.job_offset)) <= context.windows.before_start


def _lives(context: Context, node: str) -> bool:
    """Tell whether something shows that a node's processes came to a good end, or still answered afterwards."""
    mine = set(context.ranks_of(node))
    done = any(event.node == node or event.rank in mine for event in context.finished)
    agents = [agent for document in context.incident.documents for agent in document.facts.get("agents") or []]
    well = any(context.node(agent.get("node")) == node and agent.get("exit_code") == 0 for agent in agents)
    answered = any(
        event.source == "stacks" and event.signature != "ps-stopped" and (event.node == node or event.rank in mine)
        for event in context.events
    )
    spoke = {context.node(name) for document in context.incident.documents for name in document.facts.get("answered") or []}
    told = {rank for document in context.incident.documents for rank in document.facts.get("answered_ranks") or []}
    return done or well or answered or node in spoke or bool(mine & told)


def _had_time(context: Context, errors: Iterable[Event]) -> bool:
    """Tell whether the job's end was seen long enough after the others' last words."""
    said = max((event.last or event.time for event in errors if event.time is not None), default=None)
    ends = [
        event.time
        for event in context.events
        if event.signature.startswith(("run-hang", "launch-agent")) and event.time is not None
    ]
    ends += [job.end for job in context.incident.jobs if job.end]
    return said is not None and bool(ends) and max(ends) - said >= context.windows.simultaneous
