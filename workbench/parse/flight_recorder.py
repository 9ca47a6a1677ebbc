"""
Turn a dump of PyTorch's collective flight recorder (pickle or JSON, NCCL or Gloo, versions 1 and 2) into compact entries of one
rank.

The recorder keeps the last collectives of one rank in a ring; what they mean together is judged in
`workbench.detect.collectives`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from sys import intern
from typing import Any, NamedTuple

from workbench.errors import ParseError
from workbench.model import Event, Parsed, Problem
from workbench.parse.safe_pickle import Limits, salvage

__all__ = ["FlightEntry", "parse_dump", "rank_of_file"]

# Frames inside these are machinery: the frame that a person wrote is the first one outside them.
_MACHINERY = ("/torch/", "/lib/python3", "/site-packages/", "<frozen", "<string>", "/dist-packages/")

# fr_trace_rank_3   nccl_trace_rank_12   comm_lib_trace_rank_0.json   rank-4.json   rank4.pickle
_RANK = re.compile(r"rank[-_. ]?(\d{1,7})(?!\d)", re.IGNORECASE)
# nccl_trace_0   tcp_fr_dump_17   flight-recorder.5.json
_TRAILING = re.compile(r"(?:trace|dump|flight|recorder|fr)[a-z_-]*?[-_.]?(\d{1,7})(?:\.[a-z]+)*$", re.IGNORECASE)


class FlightEntry(NamedTuple):
    """One collective or point-to-point operation as one rank recorded it."""

    record: int  # position in the order in which this rank enqueued
    group: str  # name of the process group, the same on all its ranks
    desc: str  # its description: default_pg, tp_0 …
    group_index: int  # number of the group on this rank only
    seq: int  # collective sequence number in the group
    p2p_seq: int
    op: str  # backend:operation, such as nccl:all_reduce
    sizes_in: str
    sizes_out: str
    numel: int  # elements of all inputs together
    dtypes: str
    state: str  # scheduled | started | completed
    retired: bool
    p2p: bool
    created: float | None  # seconds since the epoch
    started: float | None
    completed: float | None
    timeout: float | None  # seconds
    frame: str  # innermost frame outside PyTorch and the standard library: "train (train.py:117)"

    @property
    def pending(self) -> bool:
        """Whether this rank was still waiting for the operation when it dumped, as far as the backend records it."""
        return self.state != "completed" and not self.retired and self.completed is None


def parse_dump(raw: bytes, *, file: str, rank: int | None = None, limits: Limits | None = None) -> Parsed:
    """
    Read one dump.

    Parameters
    ----------
    raw : bytes
        The file, decompressed.
    file : str
        Its name; the rank is taken from it when the dump does not say it and `rank` is None.
    rank : int, optional
        The global rank, when the caller knows better.
    limits : Limits, optional
        Bounds for the pickle reader.

    Returns
    -------
    Parsed
        `facts["flight"]` = {rank, file, version, entries: list of FlightEntry, pg_status, pg_config, host, cut}. An empty or
        cut dump is a problem and an event `fr-dump-empty`: the rank that raised the first exception often leaves none
        (pytorch/pytorch #196968).
    """
    out = Parsed()
    if rank is None:
        rank = rank_of_file(file)
    value, trouble = _decode(raw, file, limits)
    document = value if isinstance(value, Mapping) else {"entries": value} if isinstance(value, list) else {}
    if rank is None:
        rank = _int(document.get("rank"))
    rows = document.get("entries")
    entries: list[FlightEntry] = []
    for row in rows if isinstance(rows, (list, tuple)) else ():
        if isinstance(row, Mapping):
            entries.append(_entry(row, len(entries)))
    entries.sort(key=lambda e: e.record)  # the ring is written from its oldest slot, but not by every version
    if trouble:
        out.problems.append(
            Problem(
                file,
                trouble,
                "copy the dump again from the node, or take a new one",
                source="flight-recorder",
                status="partial" if entries else "failed",
            )
        )
    if not entries and "refers to the class" not in trouble:
        out.events.append(
            Event(
                "fr-dump-empty",
                "flight-recorder",
                text=trouble or "the flight-recorder dump holds no entries",
                file=file,
                rank=rank,
                data={"bytes": len(raw)},
            )
        )
    out.facts["flight"] = {
        "rank": rank,
        "file": file,
        "version": str(document.get("version") or ""),
        "entries": entries,
        "pg_status": _status(document.get("pg_status")),
        "pg_config": _config(document.get("pg_config")),
        "host": str(document.get("host_name") or document.get("hostname") or "") or None,
        "cut": bool(trouble),
    }
    return out


def rank_of_file(file: str) -> int | None:
    """
    The global rank that the name of a dump or side file carries.

    Parameters
    ----------
    file : str
        A path; only its last part is looked at, then its folder (`rank_3/dump.pkl`).

    Returns
    -------
    int or None
        None when the name has no rank.
    """
    path = PurePosixPath(file.replace("\\", "/"))
    found = _RANK.findall(path.name) or _TRAILING.findall(path.name) or _RANK.findall(path.parent.name)
    return int(found[-1]) if found else None


def _decode(raw: bytes, file: str, limits: Limits | None) -> tuple[Any, str]:
    """The value and, when it is not whole, why."""
    head = raw[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not raw.strip(b" \t\r\n\0"):
        return None, "the flight-recorder dump is empty"
    if head[:1] in b"{[" and raw[:1] != b"\x80":
        try:
            return json.loads(raw.decode("utf-8", "replace")), ""
        except (ValueError, RecursionError):
            return _cut_json(raw), "the flight-recorder dump is cut: its JSON does not end"
    try:
        value, error = salvage(raw, limits, file=file)
    except ParseError as refused:
        return None, str(refused)
    return value, str(error) if error else ""


def _cut_json(raw: bytes) -> dict[str, Any]:
    """What a cut JSON dump still says: every whole entry of its list, and the maps that were whole before the cut."""
    text = raw.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    for key in ("pg_config", "pg_status", "version"):
        at = re.search(rf'"{key}"\s*:\s*', text)
        if at:
            try:
                found[key] = decoder.raw_decode(text, at.end())[0]
            except (ValueError, RecursionError):
                continue
    start = re.search(r'"entries"\s*:\s*\[\s*', text)
    entries: list[Any] = []
    at_char = start.end() if start else len(text)
    while at_char < len(text):
        try:
            entry, at_char = decoder.raw_decode(text, at_char)
        except (ValueError, RecursionError):
            break
        entries.append(entry)
        gap = re.compile(r"\s*,\s*").match(text, at_char)
        if not gap:
            break
        at_char = gap.end()
    found["entries"] = entries
    return found


def _entry(row: Mapping[Any, Any], position: int) -> FlightEntry:
    group, desc = _group(row)
    op = str(row.get("profiling_name") or "?")
    sizes_in, sizes_out = row.get("input_sizes"), row.get("output_sizes")
    dtypes = row.get("input_dtypes") or row.get("dtypes") or row.get("output_dtypes") or ()
    p2p = row.get("is_p2p")
    if p2p is None:
        p2p = bool(re.search(r":(?:send|recv)\b", op))
    index = _int(row.get("pg_id"))
    seq = _int(row.get("collective_seq_id"))
    return FlightEntry(
        record=_first(_int(row.get("record_id")), _int(row.get("id")), position),
        group=intern(group),
        desc=intern(desc),
        group_index=_first(index, 0),
        seq=_first(seq, _int(row.get("seq_id")), 0),  # seq_id before version 2.0
        p2p_seq=_first(_int(row.get("p2p_seq_id")), 0),
        op=intern(op),
        sizes_in=intern(_sizes(sizes_in)),
        sizes_out=intern(_sizes(sizes_out)),
        numel=_numel(sizes_in),
        dtypes=intern(",".join(sorted({str(d) for d in dtypes})) if isinstance(dtypes, (list, tuple)) else str(dtypes)),
        state=intern(str(row.get("state") or "scheduled").lower()),
        retired=bool(row.get("retired")),
        p2p=bool(p2p),
        created=_seconds(row.get("time_created_ns")),
        started=_seconds(row.get("time_discovered_started_ns")),
        completed=_seconds(row.get("time_discovered_completed_ns")),
        timeout=(_int(row.get("timeout_ms")) or 0) / 1000 or None,
        frame=intern(_user_frame(row.get("frames"))),
    )


def _group(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Name and description of the process group: `("0", "default_pg")` from 2.0 on, only a number before."""
    group = row.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return str(group[0]), str(group[1]) if len(group) > 1 else ""
    if isinstance(group, str):
        return group, ""
    return str(row.get("pg_name") or row.get("pg_id") or "0"), str(row.get("pg_desc") or "")


def _user_frame(frames: Any) -> str:
    if not isinstance(frames, (list, tuple)):
        return ""
    for frame in frames:
        if not isinstance(frame, Mapping):
            continue
        name = str(frame.get("filename") or "")
        if name and not any(part in name for part in _MACHINERY):
            return f"{frame.get('name')} ({PurePosixPath(name).name}:{frame.get('line')})"
    return ""


def _sizes(sizes: Any) -> str:
    try:
        return str(sizes).replace(" ", "")[:400] if isinstance(sizes, (list, tuple)) else ""
    except RecursionError:  # JSON nested a thousand deep: not sizes
        return ""


def _numel(sizes: Any, depth: int = 0) -> int:
    """Elements of all tensors together; a nested list of whatever depth the version writes."""
    if not isinstance(sizes, (list, tuple)) or not sizes or depth > 8:
        return 0
    if all(isinstance(n, int) for n in sizes):
        product = 1
        for n in sizes[:16]:
            product = min(product * n, 2**63)
        return product
    return sum(_numel(inner, depth + 1) for inner in sizes)


def _status(status: Any) -> dict[str, dict[str, int]]:
    """Per group number of this rank: last collective enqueued, started, completed; -1 is "never"."""
    out: dict[str, dict[str, int]] = {}
    for key, value in status.items() if isinstance(status, Mapping) else ():
        if isinstance(value, Mapping):
            numbers = {str(k).replace("last_", "").replace("_collective", ""): _int(v) for k, v in value.items()}
            out[str(key)] = {k: n for k, n in numbers.items() if n is not None}
    return out


def _config(config: Any) -> dict[str, dict[str, Any]]:
    """Per group name: description and member ranks, of `{"ranks": "[0, 1]"}` (2.x) and of `[0, 1]` (1.x)."""
    out: dict[str, dict[str, Any]] = {}
    for key, value in config.items() if isinstance(config, Mapping) else ():
        ranks = value.get("ranks") if isinstance(value, Mapping) else value
        name = str(value.get("name") or key) if isinstance(value, Mapping) else str(key)
        desc = str(value.get("desc") or "") if isinstance(value, Mapping) else ""
        out[name] = {"desc": desc, "ranks": _ranks(ranks)}
    return out


def _ranks(ranks: Any) -> list[int]:
    if isinstance(ranks, str):
        return sorted({int(n) for n in re.findall(r"\d{1,7}", ranks)})
    if isinstance(ranks, Sequence):
        return sorted({n for n in map(_int, ranks) if n is not None})
    return []


def _int(value: Any) -> int | None:
    """A number, also when written as text; nothing in a dump needs more than 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (isinstance(value, str) and len(value) > 24):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**64 else None


def _first(*values: int | None) -> int:
    return next((v for v in values if v is not None), 0)


def _seconds(value: Any) -> float | None:
    number = _int(value)
    return number / 1e9 if number else None
