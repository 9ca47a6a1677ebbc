"""
Turn the watchdog time-outs and desync reports that many ranks logged into events that name the rank behind, different or silent.

Ranks that report a time-out are the healthy ones; comparing what they say they were in finds the one that was elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from workbench.detect.flight_groups import in_words
from workbench.model import Event

__all__ = ["analyse_watchdogs"]

_NAMED = 8  # at most so many ranks are named one by one; more than that is not "one rank differs"
_SHOWN = 64  # at most so many peers are listed in an event

# WorkNCCL(SeqNum=5406664, OpType=_ALLGATHER_BASE, NumelIn=2097152, NumelOut=67108864, Timeout(ms)=600000) ran for …
_WORK = re.compile(r"SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel_in>\d+))?(?:, NumelOut=(?P<numel_out>\d+))?")
# … detected by watchdog at work: 101, last enqueued NCCL work: 103, last completed NCCL work: 100.
_STATUS = re.compile(
    r"(?:at (?:\w+ )?work: (?P<seq>\d+), )?last enqueued (?:\w+ )?work: (?P<last_enqueued>-?\d+), "
    r"last completed (?:\w+ )?work: (?P<last_completed>-?\d+)"
)
# [PG ID 0 PG GUID 0(default_pg) Rank 24]      [PG 0 (default_pg) Rank 4]
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\d+) (?:PG GUID (?P<guid>\w+) ?)?\((?P<desc>[^)]*)\) Rank \d+\]")
# [0, 3] finished collective #41, but didn't join collective #42 (count from 1)
_LAGGING = re.compile(r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<done>\d+), but didn't join collective #(?P<next>\d+)")
# To our best knowledge, ranks [3, 5] are the lagging ranks that caused this timeout. They never joined any collectives
_NEVER_JOINED = re.compile(r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks")
_BY_RANK = re.compile(r"(?:all_?to_?all|gather(?!_base)|scatter|send|recv|coalesced)", re.IGNORECASE)


def analyse_watchdogs(events: Sequence[Event], world_size: int | None = None) -> list[Event]:
    """
    Compare the watchdog time-outs (and desync reports) that many ranks logged.

    Parameters
    ----------
    events : list of Event
        All events of one attempt; those whose signature starts with `c10d-watchdog-timeout` carry data seq, op, numel_in,
        numel_out, last_enqueued, last_completed and pg as far as their line says; other events only tell which ranks spoke at
        all.
    world_size : int, optional
        Number of ranks of the job.

    Returns
    -------
    list of Event
        `watchdog-mismatch` (same sequence number, another operation or size), `watchdog-rank-behind` (enqueued less than the
        others, or named by a desync report), `watchdog-silent-rank` (no time-out although the others have one); `text`, file
        and line are those of the line that shows it.
    """
    reports = [_filled(e) for e in events if e.rank is not None and _is_report(e)]
    out = _desync(events)
    by_group: dict[tuple[str, int | None], list[Event]] = defaultdict(list)
    for report in reports:
        by_group[(_group_of(report), report.attempt)].append(report)
    blamed: set[int] = {e.rank for e in out if e.rank is not None}
    for (group, _), members in sorted(by_group.items(), key=lambda item: str(item[0])):
        found = _watchdog_mismatch(group, members) or _watchdog_behind(group, members)
        out += [e for e in found if e.rank is None or e.rank not in blamed]
        blamed |= {e.rank for e in found if e.rank is not None}
    out += _silent(events, reports, world_size, explained=bool(out))
    return out


def _is_report(event: Event) -> bool:
    return event.signature.startswith("c10d-watchdog-timeout") or (
        event.signature.startswith("c10d-") and ("last_enqueued" in event.data or bool(_STATUS.search(event.text)))
    )


def _filled(event: Event) -> Event:
    """The same event with what its line says in `data`; what the parser put there has precedence."""
    said: dict[str, Any] = {}
    for pattern in (_WORK, _STATUS):
        match = pattern.search(event.text)
        said |= {key: value for key, value in match.groupdict().items() if value is not None} if match else {}
    group = _GROUP.search(event.text)
    if group:
        said |= {"pg_guid": group.group("guid"), "pg_id": group.group("id"), "pg_desc": group.group("desc")}
    return event.copy({**said, **{k: v for k, v in event.data.items() if v is not None}})


def _group_of(report: Event) -> str:
    """
    Name of the process group, the same on all its ranks.

    The description alone would mix groups (every tensor-parallel group may be `tp`), so the global name comes first; a time-out
    line without a group is taken to be about the default one.
    """
    for key in ("pg_guid", "pg_name", "pg", "pg_desc", "pg_id"):
        value = report.data.get(key)
        if value is not None:
            return "default" if str(value) in ("0", "default_pg", "") else str(value)
    return "default"


def _copy(signature: str, source: Event, rank: int | None, data: dict[str, Any]) -> Event:
    event = Event(signature, source.source, text=source.text, time=source.time, file=source.file, line=source.line, rank=rank)
    event.order, event.attempt, event.data = source.order, source.attempt, data
    if rank == source.rank:
        event.node, event.local_rank, event.gpu, event.pid = source.node, source.local_rank, source.gpu, source.pid
    return event


def _watchdog_mismatch(group: str, reports: list[Event]) -> list[Event]:
    at_seq: dict[int, dict[int, Event]] = defaultdict(dict)
    for report in reports:
        seq = _int(report.data.get("seq"))
        if seq is not None and report.data.get("op") and report.rank is not None:
            at_seq[seq].setdefault(report.rank, report)
    for seq in sorted(at_seq):
        did = {rank: _did(report) for rank, report in at_seq[seq].items()}
        kinds = Counter(did.values())
        if len(kinds) < 2:
            continue
        (top, most), (_, second) = kinds.most_common(2)
        odd = sorted(rank for rank in did if did[rank] != top)
        peers = sorted(rank for rank in did if did[rank] == top)
        data = {"seq": seq, "op": top[0], "pg": group, "peers": peers[:_SHOWN], "waiting": len(peers)}
        if most == second or len(odd) > _NAMED:
            return [
                _copy("watchdog-mismatch", at_seq[seq][odd[0]], None, {**data, "tie": True, "candidates": sorted(did)[:_SHOWN]})
            ]
        return [_copy("watchdog-mismatch", at_seq[seq][rank], rank, {**data, "did": did[rank][0]}) for rank in odd]
    return []


def _did(report: Event) -> tuple[str, int | None, int | None]:
    op = str(report.data["op"]).upper()
    if _BY_RANK.search(op) and "ALLGATHER" not in op.replace("_", "") and "REDUCESCATTER" not in op.replace("_", ""):
        return op, None, None  # sizes differ by rank in these on purpose
    return op, _int(report.data.get("numel_in")), _int(report.data.get("numel_out"))


def _watchdog_behind(group: str, reports: list[Event]) -> list[Event]:
    last: dict[int, tuple[int, Event]] = {}
    for report in reports:
        enqueued = _int(report.data.get("last_enqueued"))
        if enqueued is not None and report.rank is not None and (report.rank not in last or enqueued > last[report.rank][0]):
            last[report.rank] = (enqueued, report)
    top = max((n for n, _ in last.values()), default=0)
    late = sorted(rank for rank, (n, _) in last.items() if n < top)
    if not late or len(last) < 2:
        return []
    lowest = min(last[rank][0] for rank in late)
    slowest = [rank for rank in late if last[rank][0] == lowest]
    # Ranks run ahead of the GPU by a few enqueued collectives, each by its own count: only a rank that had not even enqueued
    # what the others timed out in is behind. Without that number, being alone at the bottom is a hint.
    stuck = min((n for r in reports if (n := _int(r.data.get("seq"))) is not None), default=None)
    if (stuck is not None and lowest >= stuck) or (stuck is None and len(slowest) > 1):
        return []
    out = []
    for rank in slowest[:_NAMED]:
        peers = sorted(r for r in last if r not in slowest)
        data = {
            "seq": lowest + 1,
            "last": lowest,
            "lead": top - lowest,
            "pg": group,
            "peers": peers[:_SHOWN],
            "waiting": len(peers),
        }
        event = _copy("watchdog-rank-behind", last[rank][1], rank, data)
        event.weight = None if stuck is not None else 0.3
        out.append(event)
    return out


def _desync(events: Sequence[Event]) -> list[Event]:
    """Ranks that a desync report names as lagging."""
    out: dict[int, Event] = {}
    for event in events:
        if "desync" not in event.signature:
            continue
        match = _LAGGING.search(event.text) or _NEVER_JOINED.search(event.text)
        named = event.data.get("lagging_ranks") or event.data.get("ranks") or (match.group("ranks") if match else "")
        ranks = [int(n) for n in re.findall(r"\d+", str(named))]
        seq = int(match["next"]) if match and "next" in match.groupdict() else _int(event.data.get("seq"))
        for rank in ranks if len(ranks) <= _NAMED else []:
            out.setdefault(rank, _copy("watchdog-rank-behind", event, rank, {"seq": seq, "desync": True, "candidates": ranks}))
    return [out[rank] for rank in sorted(out)]


def _silent(events: Sequence[Event], reports: list[Event], world_size: int | None, *, explained: bool) -> list[Event]:
    """
    Ranks without a time-out while most have one.

    A rank that nobody's log mentions may merely lack its log, so it weighs less than one that logged other things and then
    nothing.
    """
    spoke = {e.rank for e in reports if e.rank is not None}
    if len(spoke) < 2:
        return []
    logged = {e.rank for e in events if e.rank is not None}
    expected = logged | (set(range(world_size)) if world_size else set(range(max(spoke) + 1)))
    silent = sorted(expected - spoke)
    if not silent or len(silent) > max(1, min(_NAMED, len(expected) // 4)):
        return []
    first = min(reports, key=lambda e: (e.time is None, e.time or 0.0, e.order))
    out = []
    for rank in silent:
        mine = [e for e in events if e.rank == rank]
        event = _copy("watchdog-silent-rank", first, rank, {"silent": silent, "reported": len(spoke), "has_log": rank in logged})
        event.text = f"rank {rank} reported no time-out; {in_words(spoke)} did"
        event.node = next((e.node for e in mine if e.node), None)
        event.weight = round((0.1 if explained else 0.5 if rank in logged else 0.3) / len(silent), 3)
        out.append(event)
    return out


def _int(value: Any) -> int | None:
    try:
        return int(value) if value is not None and not isinstance(value, bool) else None
    except (TypeError, ValueError):
        return None
