"""
Turn what many ranks recorded of their collectives into events that name the rank which did not do as the others.

Ranks that report a time-out are the healthy ones: the culprit is absent, behind, or did something else. All functions are pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.detect.flight_groups import Group, build_groups, comparable, in_words, newest_dumps
from workbench.detect.stack_compare import analyse_stacks
from workbench.detect.watchdogs import analyse_watchdogs
from workbench.model import Event
from workbench.parse.flight_recorder import FlightEntry

__all__ = ["analyse_flight", "analyse_stacks", "analyse_watchdogs"]

_NAMED = 8  # at most so many ranks are named one by one; more than that is not "one rank differs"
_SHOWN = 64  # at most so many peers are listed in an event


def analyse_flight(dumps: Sequence[Mapping[str, Any]], world_size: int | None = None) -> list[Event]:
    """
    Compare the flight-recorder dumps of one attempt.

    Parameters
    ----------
    dumps : list of dict
        `facts["flight"]` of `workbench.parse.flight_recorder.parse_dump`, one a rank.
    world_size : int, optional
        Number of ranks of the job, when the launcher says it.

    Returns
    -------
    list of Event
        `fr-collective-mismatch` (the first collective of a group at which ranks disagree in operation, elements or type),
        `fr-rank-not-started` (enqueued it, but its GPU never began), `fr-rank-behind` (never entered a collective that others
        wait in, and waits for nobody itself; one that does wait has the role symptom and `data["waits_for"]`), `fr-rank-absent`
        (expected, left no dump), `fr-all-consistent`. `data` has seq, op, pg, desc, peers, frame; `rank` is None when the
        evidence does not decide between ranks (then `data["tie"]` and `data["candidates"]`).
    """
    by_rank = newest_dumps(dumps)
    if not by_rank:
        return []
    groups = build_groups(by_rank, world_size)
    events: list[Event] = []
    disagreeing: set[tuple[str, ...]] = set()
    for group in groups:
        found = _mismatch(group, by_rank)
        if found:
            disagreeing.add(group.key)
            events += found
    behind = _behind([g for g in groups if g.key not in disagreeing], by_rank)
    events += behind
    expected = set(range(world_size)) if world_size else set()
    for group in groups:
        expected |= group.members
    events += _absent(sorted(expected - set(by_rank)), groups, by_rank, explained=bool(events))
    if not disagreeing and not behind and len(by_rank) > 1:
        events += _not_started(groups, by_rank)
        events.append(_consistent(groups, by_rank, whole=expected <= set(by_rank)))
    return events


def _event(signature: str, text: str, dump: Mapping[str, Any] | None, **fields: Any) -> Event:
    event = Event(signature, "flight-recorder", text=text[:2000], file=str(dump.get("file") or "") if dump else "", **fields)
    event.node = str(dump["host"]) if dump and dump.get("host") else None
    return event


def _mismatch(group: Group, by_rank: Mapping[int, Mapping[str, Any]]) -> list[Event]:
    """The first sequence number at which members of a group recorded different things."""
    ranks_at: dict[int, int] = Counter(seq for ops in group.ops.values() for seq in ops)
    for seq in sorted(s for s, n in ranks_at.items() if n > 1):
        did = {rank: comparable(ops[seq]) for rank, ops in group.ops.items() if seq in ops}
        kinds = Counter(did.values())
        if len(kinds) == 1:
            continue
        (top, most), (_, second) = kinds.most_common(2)
        odd = sorted(rank for rank, what in did.items() if what != top)
        peers = sorted(rank for rank, what in did.items() if what == top)
        data = {
            "seq": seq,
            "op": _name(top),
            "pg": group.name,
            "desc": group.desc,
            "peers": peers[:_SHOWN],
            "waiting": len(peers),
        }
        if most == second or len(odd) > _NAMED:
            entry = group.ops[odd[0]][seq][0]
            sides = [(_name(what), in_words(r for r in did if did[r] == what)) for what, _ in kinds.most_common(2)]
            both = " and ".join(f"{name} on {ranks}" for name, ranks in sides)
            text = f"collective {seq} of group {group.title}: {both}; the dumps do not say which is right"
            event = _event("fr-collective-mismatch", text, by_rank[odd[0]], time=entry.created)
            event.data = {**data, "tie": True, "candidates": sorted(did)[:_SHOWN]}
            return [event]
        out = []
        for rank in odd:
            entry = group.ops[rank][seq][0]
            where = f" in {entry.frame}" if entry.frame else ""
            text = (
                f"rank {rank} ran {_name(did[rank])} as collective {seq} of group {group.title}{where}, "
                f"where {in_words(peers)} ran {_name(top)}"
            )
            event = _event("fr-collective-mismatch", text, by_rank[rank], rank=rank, time=entry.created)
            event.data = {**data, "did": _name(did[rank]), "frame": entry.frame or None}
            out.append(event)
        return out
    return []


def _behind(groups: Sequence[Group], by_rank: Mapping[int, Mapping[str, Any]]) -> list[Event]:
    """
    Ranks that never entered a collective in which others are.

    A rank can be behind in one group because it waits in another, so the ranks form a graph of who waits for whom, and only one
    that is behind and waits for nobody is where it began.
    """
    waits: dict[int, set[int]] = defaultdict(set)
    missed: dict[int, tuple[Group, int]] = {}
    absent: set[int] = set()
    for group in groups:
        last, late = group.last, group.late()
        for rank in late:
            if rank not in missed or group.lead(rank) > missed[rank][0].lead(rank):
                missed[rank] = (group, last[rank] + 1)
        for rank, seq in group.front.items():
            waits[rank] |= {peer for peer in late if last[peer] < seq}
        gone = group.members - set(by_rank)
        if gone and not late:
            absent |= gone
            for rank in group.pending(by_rank):
                waits[rank] |= gone
        for rank, peer in group.point_to_point(by_rank):
            waits[rank].add(peer)
            if peer not in missed and peer in by_rank:
                missed[peer] = (group, 0)
    suspects = set(missed) | absent
    events = []
    for rank in sorted(missed):
        group, seq = missed[rank]
        waiting_for = sorted((waits[rank] & suspects) - {rank})
        events.append(_behind_event(rank, group, seq, by_rank[rank], waiting_for))
    roots = [event for event in events if event.role is None]
    if events and not roots and not absent:
        # Everybody who is behind waits for another who is behind: two groups were used in different order.
        cycle = sorted(missed)
        text = f"{in_words(cycle)} wait for each other in different groups: collectives of two groups in different order"
        event = _event("fr-collective-mismatch", text, by_rank[cycle[0]], time=events[0].time)
        event.data = {
            "tie": True,
            "candidates": cycle[:_SHOWN],
            "pg": events[0].data["pg"],
            "seq": events[0].data["seq"],
            "cycle": True,
        }
        return [event, *events[:_NAMED]]
    return roots[:_NAMED] + [event for event in events if event.role is not None][:_SHOWN]


def _behind_event(rank: int, group: Group, seq: int, dump: Mapping[str, Any], waiting_for: list[int]) -> Event:
    entered = [(ops[seq][0], peer) for peer, ops in group.ops.items() if seq in ops]
    first = min((entry.created for entry, _ in entered if entry.created is not None), default=None)
    own: list[FlightEntry] = dump["entries"]
    op = entered[0][0].op if entered else "point-to-point"
    frame = own[-1].frame if own else ""
    peers = sorted(peer for _, peer in entered)
    lead = group.lead(rank)
    text = f"rank {rank} never entered {op}, collective {seq} of group {group.title}, in which {in_words(peers)} waited"
    if not seq:
        text = f"rank {rank} never posted the point-to-point operation of group {group.title} that another rank waits for"
    if waiting_for:
        text += f"; it waits for {in_words(waiting_for)} itself"
    event = _event(
        "fr-rank-behind", text, dump, rank=rank, time=first if first is not None else (own[-1].created if own else None)
    )
    event.data = {
        "seq": seq, "last": group.last.get(rank, 0), "lead": lead, "op": op, "pg": group.name, "desc": group.desc,
        "peers": peers[:_SHOWN], "waiting": len(peers), "frame": frame or None,
        "last_entered": own[-1].created if own else None,
    }  # fmt: skip
    if waiting_for:
        event.role, event.weight = "symptom", 0.1
        event.data["waits_for"] = waiting_for[:_SHOWN]
    return event


def _absent(
    gone: list[int], groups: Sequence[Group], by_rank: Mapping[int, Mapping[str, Any]], *, explained: bool
) -> list[Event]:
    """
    Ranks without a dump.

    The rank that raised the first exception, or died, often leaves none, so absence is suspicion, shared among the absent; it
    weighs little once the dumps that exist name a rank.
    """
    if not gone:
        return []
    widest = max(groups, key=lambda g: len(g.members), default=None)
    seq = max(widest.last.values(), default=0) if widest else 0
    time = max((d["entries"][-1].created or 0.0 for d in by_rank.values() if d["entries"]), default=0.0) or None
    weight = 0.1 if explained else round(0.5 / len(gone), 3)
    peers = sorted(by_rank)
    data = {"seq": seq, "pg": widest.name if widest else "", "op": widest.op_at(seq) if widest else "", "peers": peers[:_SHOWN]}
    events = []
    for rank in gone[:_NAMED] if len(gone) <= _NAMED else []:
        text = f"rank {rank} left no flight-recorder dump; {in_words(peers)} did, and reached collective {seq}"
        events.append(_event("fr-rank-absent", text, by_rank[peers[0]], rank=rank, time=time, weight=weight))
        events[-1].data = {**data, "absent": gone}
    if not events:
        text = f"{len(gone)} ranks left no flight-recorder dump: {in_words(gone)}"
        events = [_event("fr-rank-absent", text, None, time=time, weight=0.05)]
        events[0].data = {**data, "absent": gone[:_SHOWN], "tie": True}
    if explained or len(gone) > 1:
        for event in events:
            event.role = "context"
    return events


def _not_started(groups: Sequence[Group], by_rank: Mapping[int, Mapping[str, Any]]) -> list[Event]:
    out = []
    for group in groups:
        for rank in group.not_started()[:_NAMED]:
            seq = min(group.front.values())
            entry = group.ops[rank][seq][-1]
            text = f"rank {rank} enqueued {entry.op}, collective {seq} of group {group.title}, but its GPU never began it"
            event = _event("fr-rank-not-started", text, by_rank[rank], rank=rank, time=entry.created)
            event.data = {"seq": seq, "op": entry.op, "pg": group.name, "desc": group.desc, "frame": entry.frame or None}
            out.append(event)
    return out


def _consistent(groups: Sequence[Group], by_rank: Mapping[int, Mapping[str, Any]], *, whole: bool) -> Event:
    widest = max(groups, key=lambda g: len(g.ops), default=None)
    seq = max(widest.last.values(), default=0) if widest else 0
    pending = sorted({rank for group in groups for rank in group.pending(by_rank)})
    started = sum(1 for d in by_rank.values() if d["entries"] and d["entries"][-1].state == "started")
    text = f"all {len(by_rank)} dumps agree up to collective {seq}"
    if pending and whole:
        text += f"; {len(pending)} ranks were still in it: the fault is below the order of collectives"
    event = _event("fr-all-consistent", text, by_rank[min(by_rank)])
    event.data = {
        "seq": seq, "op": widest.op_at(seq) if widest else "", "pg": widest.name if widest else "",
        "peers": sorted(by_rank)[:_SHOWN],
        "pending": pending[:_SHOWN], "started": started, "whole": whole,
    }  # fmt: skip
    if not whole:
        event.role, event.weight = "context", 0.0  # a rank without a dump may be the one that differs
    return event


def _name(what: tuple[tuple[str, int, str], ...]) -> str:
    shown = ", ".join(f"{op} of {numel} {dtypes}".rstrip() if numel >= 0 else op for op, numel, dtypes in what[:3])
    return shown + (f" and {len(what) - 3} more" if len(what) > 3 else "")
