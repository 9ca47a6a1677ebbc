"""Turn an incident's records into the frames of a case file: events in lanes, ranks, documents, problems; of a large one what matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench import frames
from workbench.casefile.model import LANES, RANKS, UTC
from workbench.parse.ids import pci as canonical_pci

if TYPE_CHECKING:
    import pandas as pd

    from workbench.model import Event, Evidence, Gpu, Problem, Series, Verdict
    from workbench.triage.context import Context

__all__ = [
    "DOCUMENTS", "EVENTS_KEPT", "PROBLEMS", "SAMPLES_KEPT", "choose_events", "choose_series", "documents_frame", "events_frame",
    "problems_frame", "ranks_frame",
]  # fmt: skip

EVENTS_KEPT = 5_000
SAMPLES_KEPT = 400_000  # samples of metrics: below, all are kept
_PER_KIND = 200  # events of one signature on one node
_HEALTHY = 4  # ranks to compare with
DOCUMENTS: dict[str, str] = {
    "name": "string", "kind": "string", "node": "string", "size": "Int64", "lines": "Int64", "complete": "boolean", "events": "Int64",
}  # fmt: skip
PROBLEMS: dict[str, str] = {
    "file": "string", "line": "Int64", "message": "string", "hint": "string", "source": "string", "status": "string",
}  # fmt: skip
_PLATFORM = ("kubernetes", "slurm", "launcher")


def choose_events(context: Context, verdict: Verdict, most: int = EVENTS_KEPT) -> tuple[list[Event], int]:
    """Return the evidence, then of all other events those that matter most, `most` in all, in order of time; and how many are left out."""
    evidence = [*verdict.evidence_records, *verdict.counter_records]
    taken = {_key(event) for event in evidence}
    others: list[tuple[int, int, Event]] = []
    kinds: dict[tuple[str, str | None], int] = {}
    for number, event in enumerate(context.events):
        if _key(event) in taken:
            continue
        seen = kinds[event.signature, event.node] = kinds.get((event.signature, event.node), 0) + 1
        role = context.role(event)
        weighs = role in ("cause", "symptom") and context.weight(event) > 0
        ours = verdict.node is not None and event.node == verdict.node
        # the first of each kind on each node, what could be a cause, the culprit's own: then the rest in order of time
        place = (0 if weighs and seen == 1 else 1 if ours else 2 if weighs else 3) + (4 if seen > _PER_KIND else 0)
        others.append((place, number, event))
    others.sort(key=lambda row: row[:2])
    room = max(most - len(evidence), 0)
    return evidence + [event for _, _, event in others[:room]], max(len(others) - room, 0)


def _key(event: Event) -> tuple[Any, ...]:
    return event.signature, event.file, event.line, event.node, event.rank, event.time


def events_frame(context: Context, verdict: Verdict, chosen: Sequence[Event], left_out: int) -> pd.DataFrame:
    """Return events with `lane` and `evidence`, in order of time; ``attrs["left_out"]`` is how many are not there."""
    import pandas as pd

    position = {id(event): number for number, event in enumerate(verdict.evidence_records)}
    victims = {victim.rank for victim in verdict.victim_records if victim.rank is not None}
    ordered = sorted(chosen, key=lambda e: (e.time is None, e.time or 0.0, e.order))
    frame = frames.events_frame(ordered, ordered=False)
    frame["lane"] = pd.array([lane_of(context, verdict, event, victims) for event in ordered], dtype="string")
    frame["evidence"] = pd.array([position.get(id(event), pd.NA) for event in ordered], dtype="Int64")
    frame.attrs["left_out"] = left_out
    return frame


def lane_of(context: Context, verdict: Verdict, event: Event, victims: set[int]) -> str:
    """Return the lane of an event: how far it is from what is blamed."""
    gpu = _slot(event.gpu)
    if verdict.rank is not None and event.rank == verdict.rank:
        return LANES[0]
    if gpu is not None and event.node == verdict.node and gpu == _slot(verdict.gpu):
        return LANES[0]
    if verdict.node is not None and event.node == verdict.node and event.rank not in victims:
        return LANES[0] if verdict.at_fault == "node" else LANES[1]
    if event.rank is not None and event.rank in victims:
        return LANES[2]
    if event.source in _PLATFORM:
        return LANES[3]
    return LANES[2] if event.rank is not None and context.in_job(event.node) else LANES[4]


def _slot(gpu: Gpu | None) -> Any:
    if gpu is None:
        return None
    return canonical_pci(gpu.pci) or gpu.uuid or gpu.index


def choose_series(
    incident: Evidence, context: Context, verdict: Verdict, nodes: Iterable[str], most: int = SAMPLES_KEPT
) -> tuple[list[Series], int]:
    """Return all series of a small incident; of a large one the culprit's node's, those of `nodes` with events, of a few healthy ranks."""
    if sum(len(one.times) for one in incident.series) <= most:
        return list(incident.series), 0
    by_node: dict[str | None, list[Series]] = {}
    for one in incident.series:
        by_node.setdefault(context.node(one.node), []).append(one)
    victims = {victim.rank for victim in verdict.victim_records}
    first = [verdict.node, *[context.rank_node.get(rank) for rank in ([verdict.rank] if verdict.rank is not None else [])]]
    told = [node for node in dict.fromkeys(nodes) if node in by_node]
    healthy = [
        node
        for rank, node in sorted(context.rank_node.items())
        if node in by_node and node not in told and (rank not in victims or len(victims) > len(context.rank_node) // 2)
    ]
    order = dict.fromkeys([*first, *list(dict.fromkeys(healthy))[:_HEALTHY], *told])
    chosen: list[Series] = []
    room = most
    for node in order:
        own = by_node.get(node, [])
        need = sum(len(one.times) for one in own)
        if own and (need <= room or not chosen):
            chosen += own
            room -= need
    return chosen, len(incident.series) - len(chosen)


def documents_frame(incident: Evidence) -> pd.DataFrame:
    """Return what was read (columns of `DOCUMENTS`)."""
    return _typed({name: [getattr(document, name) for document in incident.documents] for name in DOCUMENTS}, DOCUMENTS)


def problems_frame(problems: Iterable[Problem]) -> pd.DataFrame:
    """Return what could not be read (columns of `PROBLEMS`)."""
    rows = list(problems)
    return _typed({name: [getattr(row, name) for row in rows] for name in PROBLEMS}, PROBLEMS)


def ranks_frame(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return the frame of `RANKS`; times as seconds since the epoch, None where not known."""
    return _typed(columns, RANKS)


def _typed(columns: Mapping[str, Sequence[Any]], contract: Mapping[str, str]) -> pd.DataFrame:
    import pandas as pd

    made: dict[str, Any] = {}
    for name, dtype in contract.items():
        values = list(columns[name])
        if dtype == UTC:
            seconds = pd.Series([float("nan") if value is None else value for value in values], dtype="float64")
            made[name] = pd.to_datetime(seconds, unit="s", utc=True, errors="coerce").dt.as_unit("us")
        else:
            known = [pd.NA if value is None else value for value in values]
            try:
                column = pd.array(known, dtype=dtype)  # type: ignore[call-overload]
            except UnicodeEncodeError:
                column = pd.array([frames.whole_text(value) for value in known], dtype=dtype)  # type: ignore[call-overload]
            made[name] = pd.Series(column)
    return pd.DataFrame(made)
