"""
Turn a safetensors file, or a folder of its shards with an index, into a part: whole or torn.

The layout is that of the format's README (huggingface/safetensors): 8 bytes with the header's length (little endian), a JSON header, then the
numbers; the offsets of all tensors, in order, cover what follows the header without a hole and to the last byte.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from workbench.training.checkpoints.files import Entry, NotAFile, Source, opened, trouble
from workbench.training.checkpoints.record import Part, join
from workbench.training.checkpoints.steps import step_of_value

__all__ = ["INDEX", "bounded_json", "judge_index", "judge_safetensors", "judge_unindexed", "safe_name"]

_MOST_HEADER = 32 << 20  # the format allows 100 MB; 32 MiB are 200,000 tensors
INDEX = re.compile(r"\.(safetensors|bin)\.index(\.\w+)?\.json$")
_SHARD = re.compile(r"^(.*)-(\d{5,6})-of-(\d{5,6})\.(safetensors|bin)$")
# bits of one element; safetensors/src/tensor.rs, enum Dtype, 0.6
_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip


class _Wrong(Exception):
    """The header contradicts itself."""


def bounded_json(raw: bytes) -> Any:
    """
    Read JSON that may be hostile.

    Raises
    ------
    ValueError
        It is no JSON, or nested too deep.
    """
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deep") from None


def safe_name(name: object) -> bool:
    """Tell whether a name in an index names a file in the index's own folder, and nothing outside."""
    return isinstance(name, str) and 0 < len(name) < 256 and not re.search(r"[/\\\0]", name) and name not in (".", "..")


def judge_safetensors(source: Source, *, supposed: bool = True, names: set[str] | None = None) -> Part | None:
    """
    Judge one safetensors file.

    Parameters
    ----------
    source : Source
    supposed : bool
        It is known to be one (by its name): what does not look like one is damage. Otherwise that gives None.
    names : set of str, optional
        Filled with the names of its tensors.
    """
    part = Part("safetensors", "torn", "", bytes=source.size)
    head = source.read(0, 9)
    if len(head) < 9 or head[8:] != b"{":
        if not supposed:
            return None
        part.why = "the file is empty" if not head else f"the file has {source.size} bytes, too few for its header"
        if len(head) == 9:
            if any(source.read(0, 4096)):
                part.state, part.why = "unreadable", "it does not begin with a header of safetensors"
            else:
                part.why = "the file begins with zeros: room was taken, and its header was not written"
        return part
    size = int.from_bytes(head[:8], "little")
    if size > 100_000_000:  # the format's own limit: no file of it
        if not supposed:
            return None
        part.state, part.why = "unreadable", f"its header claims {size} bytes, more than the format allows"
        return part
    if size > _MOST_HEADER:
        part.state, part.why = "unreadable", f"its header has {size} bytes, more than is looked into"
        return part
    raw = source.read(8, size)
    if len(raw) < size:
        part.why = f"the file ends after {source.size} bytes, within its header"
        return part
    try:
        header = bounded_json(raw)
        end, count = _covered(header)
    except (ValueError, UnicodeError) as bad:
        part.state, part.why = "unreadable", f"its header is no JSON ({type(bad).__name__})"
        return part if supposed or raw[:2] in (b'{"', b"{}") else None
    except _Wrong as wrong:
        part.state, part.why = "unreadable", str(wrong)
        return part
    if names is not None:
        names.update(header)
    there = source.size - 8 - size
    if there != end:
        part.why = f"its tensors need {end} bytes and the file has {there} for them"
        return part
    part.state, part.why = "complete", f"{count} tensors cover the file to its last byte"
    metadata = header.get("__metadata__")
    found = step_of_value(_numbers(metadata)) if isinstance(metadata, Mapping) else None
    if found:
        part.step, part.step_from = found
    return part


def _numbers(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the format's metadata are texts."""
    return {key: int(value) for key, value in metadata.items() if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value)}


def _covered(header: Any) -> tuple[int, int]:
    """Return how many bytes the tensors cover and how many they are; wrong offsets, sizes or holes are errors."""
    if not isinstance(header, dict):
        raise _Wrong("its header is no object")
    spans = []
    for name, row in header.items():
        if name == "__metadata__":
            continue
        try:
            kind, shape, (begin, end) = row["dtype"], row["shape"], row["data_offsets"]
            plain = all(type(number) is int and 0 <= number < 1 << 62 for number in (*shape, begin, end)) and len(shape) < 64
        except (TypeError, KeyError, ValueError):
            raise _Wrong(f"tensor {name[:80]} in its header is incomplete") from None
        if not plain or end < begin:
            raise _Wrong(f"tensor {name[:80]} has no sensible shape or offsets")
        bits = _BITS.get(kind) if isinstance(kind, str) else None
        if bits is not None and (math.prod(shape) * bits + 7) // 8 != end - begin:
            raise _Wrong(f"tensor {name[:80]} has {end - begin} bytes, not what its shape and type make")
        spans.append((begin, end))
    spans.sort()
    at = 0
    for begin, end in spans:
        if begin != at:
            raise _Wrong(f"its tensors leave a hole or overlap at byte {begin}")
        at = end
    return at, len(spans)


def judge_index(index: Entry, files: Mapping[str, Entry], judge: Any) -> tuple[Part, set[str]]:
    """
    Judge the shards that an index names (``model.safetensors.index.json``: `weight_map` of tensor → file).

    Parameters
    ----------
    index : Entry
    files : mapping of str to Entry
        What lies beside it.
    judge : callable
        Judges one file: Entry → Part or None.

    Returns
    -------
    tuple
        The part, and the names of the files that belong to it.
    """
    form = "safetensors" if ".safetensors." in index.name else "torch-zip"
    bad = Part(form, "unreadable", "", bytes=index.size, saved=index.modified)
    try:
        with opened(index.path) as source:
            if source.size > _MOST_HEADER:
                bad.why = f"{index.name} has {source.size} bytes, more than is looked into"
                return bad, {index.name}
            raw = source.read(0, source.size)
        parsed = bounded_json(raw)
    except (OSError, NotAFile) as error:
        bad.why = f"{index.name}: {trouble(error)}"
        return bad, {index.name}
    except (ValueError, UnicodeError):
        bad.state, bad.why = "torn", f"{index.name} is no whole JSON"
        return bad, {index.name}
    weights = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weights, dict) or not weights:
        bad.why = f"{index.name} has no weight_map"
        return bad, {index.name}
    wanted: dict[str, set[str]] = {}
    for tensor, shard in weights.items():
        if not safe_name(shard):
            bad.why = f"{index.name} names a file outside of its folder ({str(shard)[:80]}): not followed"
            return bad, {index.name}
        wanted.setdefault(shard, set()).add(tensor)
    if len(wanted) > 100_000:
        bad.why = f"{index.name} names {len(wanted)} files, more than are looked at"
        return bad, {index.name}
    used = {index.name, *wanted}
    missing = [shard for shard in wanted if shard not in files]
    if missing:
        suffix = ".safetensors" if form == "safetensors" else ".bin"
        others = [name for name in files if name not in used and suffix in name and not INDEX.search(name)]
        bad.state = "partly-renamed" if others else "torn"
        bad.why = f"{index.name} names {len(missing)} file(s) that are not there, such as {sorted(missing)[0][:80]}"
        if others:
            bad.why += f", and {others[0][:80]} lies beside it"
        return bad, used | set(others)
    parts = [(index.name, Part(form, "complete", "", bytes=index.size, saved=index.modified))]
    for shard, tensors in sorted(wanted.items()):
        parts.append((shard, _shard(files[shard], tensors, judge)))
    return join(form, parts, whole=f"{len(wanted)} shards with the {len(weights)} tensors of {index.name}"), used


def _shard(entry: Entry, tensors: set[str], judge: Any) -> Part:
    if not entry.name.endswith(".safetensors"):
        return judge(entry) or Part("unknown", "unreadable", "it is no checkpoint")
    names: set[str] = set()
    try:
        with opened(entry.path) as source:
            part = judge_safetensors(source, names=names)
    except (OSError, NotAFile) as error:
        return Part("safetensors", "unreadable", trouble(error), looked=False)
    assert part is not None
    part.saved = entry.modified
    if part.state == "complete" and not tensors <= names:
        part.state, part.why = "torn", f"tensor {sorted(tensors - names)[0][:80]} is not in it, against the index"
    return part


def judge_unindexed(files: Mapping[str, Entry], judge: Any) -> list[tuple[str, Part, set[str]]]:
    """Judge shards ``NAME-00001-of-00004.safetensors`` that no index names: they cannot be put together without one."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for name, entry in files.items():
        found = _SHARD.match(name)
        if found and not entry.folder:
            groups.setdefault((found[1], found[3], found[4]), []).append(entry)
    out = []
    for (stem, total, suffix), entries in groups.items():
        form = "safetensors" if suffix == "safetensors" else "torch-zip"
        part = join(
            form, [(entry.name, judge(entry) or Part("unknown", "unreadable", "it is no checkpoint")) for entry in entries]
        )
        if part.state == "complete":
            part.state = "torn"
            part.why = f"{len(entries)} of {int(total)} shards are there, and the index that names their tensors is not"
        out.append((f"{stem}.{suffix}", part, {entry.name for entry in entries}))
    return out
