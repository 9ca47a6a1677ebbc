"""
Turn flight-recorder dumps into process groups: who belongs to each, and what each member recorded under each sequence number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.parse.flight_recorder import FlightEntry

__all__ = ["Group", "build_groups", "comparable", "in_words", "newest_dumps"]

# nccl:recv 0<-1      nccl:send 1->0: ranks inside the group
_PEERS = re.compile(r":(?P<kind>send|recv) (?P<me>\d+)(?:<-|->)(?P<peer>\d+)")
# Operations whose sizes differ by rank on purpose, so that only their name can be compared.
_UNEVEN = re.compile(r"(?:all_?to_?all|(?<!all_)(?<!all)gather$|(?<!reduce_)scatter$|send|recv|coalesced|_oop$)", re.IGNORECASE)


@dataclass(slots=True)
class Group:
    """One process group over all dumps."""

    key: tuple[str, ...]
    name: str
    desc: str
    members: set[int] = field(default_factory=set)
    ops: dict[int, dict[int, list[FlightEntry]]] = field(default_factory=dict)  # rank -> sequence number -> entries
    p2p: dict[int, list[FlightEntry]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # rank -> highest sequence number it enqueued
    front: dict[int, int] = field(default_factory=dict)  # rank -> the collective that it stands in, as far as its backend says

    @property
    def title(self) -> str:
        return f"{self.name} ({self.desc})" if self.desc and self.desc != self.name else self.name

    def lead(self, rank: int) -> int:
        """How many collectives the first rank is ahead of this one."""
        return max(self.last.values(), default=0) - self.last.get(rank, 0)

    def late(self) -> set[int]:
        """
        Members that have not enqueued the collective in which another member stands.

        Not simply those that enqueued least: NCCL runs on its own, and a CPU may be a few collectives ahead of its GPU or not.
        """
        top = max(self.front.values(), default=0)
        return {rank for rank, seq in self.last.items() if seq < top}

    def not_started(self) -> list[int]:
        """Members whose GPU never began the collective that most others' GPUs are in: something before it holds their stream."""
        seq = min(self.front.values(), default=0)
        states = {rank: ops[seq][-1].state for rank, ops in self.ops.items() if seq in ops}
        waiting = [rank for rank, state in states.items() if state == "scheduled"]
        started = [rank for rank, state in states.items() if state == "started"]
        return sorted(waiting) if 0 < len(waiting) < len(started) else []

    def op_at(self, seq: int) -> str:
        return next((ops[seq][0].op for ops in self.ops.values() if seq in ops), "")

    def pending(self, by_rank: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Members that were still in the newest collective of this group when they dumped."""
        return [
            rank
            for rank, seq in self.last.items()
            if rank in by_rank and any(e.pending for e in self.ops.get(rank, {}).get(seq, []))
        ]

    def point_to_point(self, by_rank: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
        """Pairs (rank, peer) in which the rank waits for a message that the peer has not posted."""
        order = sorted(self.members)
        posted: dict[tuple[int, int, str], int] = {}
        open_ops: list[tuple[int, int, str, int]] = []
        for rank, entries in self.p2p.items():
            for entry in entries:
                match = _PEERS.search(entry.op)
                if not match or int(match.group("peer")) >= len(order):
                    continue
                peer, kind = order[int(match.group("peer"))], match.group("kind")
                posted[(rank, peer, kind)] = max(posted.get((rank, peer, kind), 0), entry.p2p_seq)
                if entry.pending:
                    open_ops.append((rank, peer, kind, entry.p2p_seq))
        for rank, peer, kind, seq in open_ops:
            other = "send" if kind == "recv" else "recv"
            if peer in by_rank and posted.get((peer, rank, other), 0) < seq:
                yield rank, peer


def newest_dumps(dumps: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """
    One dump with entries for each rank: the newest, when a rank has several.

    Parameters
    ----------
    dumps : list of dict
        As `parse_dump` makes them.

    Returns
    -------
    dict
        By global rank; dumps without a rank or without entries are left out (an empty dump counts as absent).
    """
    out: dict[int, Mapping[str, Any]] = {}
    for dump in dumps:
        rank, entries = dump.get("rank"), dump.get("entries")
        if not isinstance(rank, int) or not entries:
            continue
        known = out.get(rank)
        if known is None or (entries[-1].created or 0.0) > (known["entries"][-1].created or 0.0):
            out[rank] = dump
    return out


def build_groups(by_rank: Mapping[int, Mapping[str, Any]], world_size: int | None = None) -> list[Group]:
    """
    The process groups of all dumps.

    Parameters
    ----------
    by_rank : dict
        Of `newest_dumps`.
    world_size : int, optional
        Membership of the default group when the dumps do not say it.

    Returns
    -------
    list of Group
        Sorted by key. A member whose ring no longer reaches back to a group is left out of its `last`, since nothing is known
        of it.
    """
    groups: dict[tuple[str, ...], Group] = {}
    for rank, dump in by_rank.items():
        entries: list[FlightEntry] = dump["entries"]
        config = dump.get("pg_config") or {}
        wrapped = entries[0].record > 0  # the ring is full: its oldest entries are gone
        mine: dict[str, Group] = {}
        for entry in entries:
            group = mine.get(entry.group)
            if group is None:
                members = _members(entry.group, entry.desc, config)
                key = (entry.group, entry.desc, ",".join(map(str, members)))
                group = groups.setdefault(key, Group(key, entry.group, entry.desc, set(members)))
                group.members.add(rank)
                mine[entry.group] = group
            if entry.p2p:
                group.p2p.setdefault(rank, []).append(entry)
            else:
                group.ops.setdefault(rank, {}).setdefault(entry.seq, []).append(entry)
        for group in mine.values():
            _close(group, rank, entries, dump, wrapped)
    for group in groups.values():
        if world_size and _is_default(group.name, group.desc):
            group.members |= set(range(world_size))
        for rank in group.members & set(by_rank):
            if rank not in group.last and group.ops and by_rank[rank]["entries"][0].record == 0:
                group.last[rank] = 0  # its ring goes back to the start, and it never entered
    return [groups[key] for key in sorted(groups)]


def _close(group: Group, rank: int, entries: list[FlightEntry], dump: Mapping[str, Any], wrapped: bool) -> None:
    ops = group.ops.get(rank)
    if not ops:
        return
    group.last[rank] = max(ops)
    first_pending = min((seq for seq, same in ops.items() if any(e.pending for e in same)), default=None)
    # Gloo keeps no states, and retires what failed: there the newest is the best that is known.
    tracked = any(e.state != "scheduled" or e.completed is not None for e in entries)
    if first_pending is not None:
        group.front[rank] = first_pending
    elif not tracked:
        group.front[rank] = max(ops)
    if rank not in group.p2p:  # with point-to-point operations in the group, some versions count those in the status
        index = next(e.group_index for e in reversed(entries) if e.group == group.name)
        enqueued = (dump.get("pg_status") or {}).get(str(index), {}).get("enqueued", -1)
        group.last[rank] = max(group.last[rank], enqueued)
    if wrapped and len(ops) > 1:
        del ops[min(ops)]  # may have lost a part to the ring


def _members(name: str, desc: str, config: Mapping[str, Mapping[str, Any]]) -> list[int]:
    own = config.get(name)
    if own is None and _is_default(name, desc):
        own = config.get("") or config.get("default_pg")  # Gloo leaves the name of the default group empty
    return list(own["ranks"]) if own else []


def _is_default(name: str, desc: str) -> bool:
    return desc == "default_pg" or (not desc and name in ("0", "", "default_pg"))


def comparable(entries: Iterable[FlightEntry]) -> tuple[tuple[str, int, str], ...]:
    """
    What must be equal on all members under one sequence number: operation, elements, types.

    Parameters
    ----------
    entries : iterable of FlightEntry
        Entries that share the number (more than one when operations were coalesced).

    Returns
    -------
    tuple
        (operation, elements or -1, types) of each. Elements, not shapes: backends flatten tensors, so [4, 8] meets [32].
    """
    return tuple((e.op, -1, "") if _UNEVEN.search(e.op) else (e.op, e.numel, e.dtypes) for e in entries)


def in_words(ranks: Iterable[int]) -> str:
    """
    Ranks as a person writes them: `rank 3`, or `ranks 0-2, 5`.

    Parameters
    ----------
    ranks : iterable of int

    Returns
    -------
    str
        At most 12 runs.
    """
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:12]) + (", …" if len(runs) > 12 else "")
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text}"
