"""
Turn a folder of torch.distributed.checkpoint into a part: whole, or which files and bytes are missing.

Each rank writes ``__RANK_N.distcp``; the coordinator writes ``.metadata`` last (as ``.metadata.tmp``, then renamed): a pickle that says of every
piece of every tensor in which file, at which byte and how long it is (torch/distributed/checkpoint/filesystem.py, 2.14).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.errors import ParseError
from workbench.parse.safe_pickle import Cut, Limits
from workbench.training.checkpoints.files import Entry, NotAFile, Window, opened, trouble
from workbench.training.checkpoints.pickled import Odd, Thing, read_pickle
from workbench.training.checkpoints.record import Found, Part, Scan, join
from workbench.training.checkpoints.safetensors import safe_name
from workbench.training.checkpoints.single import judge_file
from workbench.training.checkpoints.steps import FIELDS, INSIDE
from workbench.training.checkpoints.zipped import begins, judge_zip, step_of_archive

__all__ = ["folder", "judge_distributed"]

_SHARD = re.compile(r"__(\d+)_(\d+)\.distcp$")
_METADATA = re.compile(r"(?:__\d+)?\.metadata$")
_METADATA_TMP = re.compile(r"(?:__\d+)?\.metadata\.tmp$")
# the metadata of 16,384 ranks with 60 pieces each has a million entries; some 60 MB and 20 million values
_LIMITS = Limits(max_bytes=256 << 20, max_depth=200, max_items=25_000_000)
_LONGEST_STEP = 1 << 20  # bytes of a piece that is looked into for the step


def folder(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """Recognise a folder of torch.distributed.checkpoint."""
    if not any(_SHARD.match(name) or _METADATA.match(name) or _METADATA_TMP.match(name) for name in files):
        return None
    return [Found(place.path, judge_distributed(files, scan))], {name for name, entry in files.items() if not entry.folder}


def judge_distributed(files: Mapping[str, Entry], scan: Scan) -> Part:
    """
    Judge the files of one folder; what else of torch lies in it (``common.pt``, ``meta.pt``) must be whole, too.

    Parameters
    ----------
    files : mapping of str to Entry
        What lies in the folder.
    scan : Scan
        Whether to read all of it.
    """
    shards = {name: entry for name, entry in files.items() if _SHARD.match(name)}
    part = Part("dcp", "complete", "")
    part.bytes = sum(entry.size for entry in files.values() if not entry.folder)
    part.saved = max((entry.modified for entry in files.values() if not entry.folder), default=0.0)
    part.world_size = max((int(found[1]) + 1 for name in shards if (found := _SHARD.match(name))), default=None)
    metadata = [entry for name, entry in files.items() if _METADATA.match(name)]
    begun = [entry for name, entry in files.items() if _METADATA_TMP.match(name)]
    if not metadata:
        _without_metadata(part, begun, files, len(shards))
        return part
    for entry in metadata:
        _against(part, entry, files, deep=scan.deep)
        if part.state != "complete":
            return part
    others = [(name, entry) for name, entry in files.items() if re.search(r"\.(pt|pth)$", name) and not entry.folder]
    if others:
        judged = [
            (name, judge_file(entry, deep=scan.deep, certain=True) or Part("unknown", "unreadable", "no checkpoint"))
            for name, entry in others
        ]
        beside = join("dcp", judged)
        part.step, part.step_from = (beside.step, beside.step_from) if beside.step is not None else (part.step, part.step_from)
        part.notes += beside.notes
        for _, one in judged:
            part.facts.update(one.facts)
        if beside.state != "complete":
            part.state, part.why = beside.state, beside.why
    return part


def _without_metadata(part: Part, begun: list[Entry], files: Mapping[str, Entry], shards: int) -> None:
    part.state = "torn"
    part.why = f"{shards} files of ranks, and no .metadata, which is written last: the save did not end"
    if begun:
        tried = Part("dcp", "complete", "")
        _against(tried, begun[0], files, deep=False)
        if tried.state == "complete":
            part.state, part.step, part.step_from = "partly-renamed", tried.step, tried.step_from
            part.why = f"all that {begun[0].name} names is there, and it was not renamed: the save ended one step before its end"


def _against(part: Part, metadata: Entry, files: Mapping[str, Entry], *, deep: bool) -> None:
    """Compare what the metadata names with the files that are there."""

    def say(state: str, why: str, *, looked: bool = True) -> None:
        part.state, part.why, part.looked = state, why, looked

    try:
        with opened(metadata.path) as source:
            read = read_pickle(source, limits=_LIMITS, whole=True)
    except (OSError, NotAFile) as error:
        return say("unreadable", f"{metadata.name}: {trouble(error)}", looked=False)
    except Cut:
        return say("torn", f"{metadata.name} ends after {metadata.size} bytes, within its pickle")
    except ParseError as bad:
        return say("unreadable", f"{metadata.name}: {bad}")
    dangerous = sorted(str(name) for name in read.names if name.dangerous)
    if dangerous:
        return say("unreadable", f"{metadata.name}: loading it would call {dangerous[0]}: do not load it")
    storage = read.value.field("storage_data") if isinstance(read.value, Thing) else None
    if not isinstance(storage, dict) or not storage:
        return say("unreadable", f"{metadata.name} does not say where the numbers are")
    need: dict[str, int] = {}
    pieces: list[tuple[str, int, int]] = []
    steps: list[tuple[int, str, str, int, int]] = []
    for key, info in storage.items():
        name, offset, length = (
            (info.field(word) for word in ("relative_path", "offset", "length")) if isinstance(info, Thing) else (None,) * 3
        )
        if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or length < 0:
            return say("unreadable", f"{metadata.name}: a piece without file, place or length")
        if not isinstance(name, str) or not safe_name(name):
            return say("unreadable", f"{metadata.name} names a file outside of its folder ({str(name)[:80]}): not followed")
        need[name] = max(need.get(name, 0), offset + length)
        if deep:
            pieces.append((name, offset, length))
        rank = _step_rank(key)
        if rank is not None and length <= _LONGEST_STEP:
            steps.append((*rank, name, offset, length))
    missing = [name for name in need if name not in files or files[name].folder]
    if missing:
        return say("torn", f"{len(missing)} of {len(need)} files are not there, such as {min(missing)}")
    for name, end in need.items():
        if files[name].trouble:
            return say("unreadable", f"{name}: {files[name].trouble}", looked=False)
        if files[name].size < end:
            return say("torn", f"{name} should have {end} bytes and has {files[name].size}")
    part.why = f"{len(storage)} pieces in {len(need)} files, all as long as {metadata.name} says"
    try:
        if deep:
            _deep(part, pieces, files)
        if part.state == "complete" and steps:
            _step(part, min(steps), files)
    except (OSError, NotAFile) as error:
        say("unreadable", trouble(error), looked=False)
    return None


def _step_rank(key: Any) -> tuple[int, str] | None:
    """Return how much the name of a piece says "step", and the name; `MetadataIndex(fqn, offset, index)` is the key."""
    index = key.value if isinstance(key, Odd) else key
    name = index.field("fqn") if isinstance(index, Thing) else None
    if not isinstance(name, str) or name.count(".") > 2:
        return None
    last = name.rsplit(".", 1)[-1]
    first = name.split(".", 1)[0]
    if last in FIELDS and (first == last or first in INSIDE):
        return FIELDS.index(last) + 100 * name.count("."), name
    return (1000, name) if name in INSIDE else None


def _step(part: Part, found: tuple[int, str, str, int, int], files: Mapping[str, Entry]) -> None:
    _, name, file, offset, length = found
    with opened(files[file].path) as source:
        step = step_of_archive(Window(source, offset, length))
    if step is not None:
        part.step, part.step_from = step, f"`{name}` in {file}"


def _deep(part: Part, pieces: Iterable[tuple[str, int, int]], files: Mapping[str, Entry]) -> None:
    """Compare the checksums of all pieces; each is an archive of `torch.save` of its own."""
    checked = total = 0
    by_file: dict[str, list[tuple[int, int]]] = {}
    for name, offset, length in pieces:
        by_file.setdefault(name, []).append((offset, length))
    for name, spans in sorted(by_file.items()):
        with opened(files[name].path) as source:
            for offset, length in sorted(spans):
                total += 1
                window = Window(source, offset, length)
                if not begins(window.read(0, 4)):
                    continue
                judged = judge_zip(window, deep=True, bare=True)
                if judged is not None and judged.state != "complete":
                    part.state, part.why = judged.state, f"{name}, at byte {offset}: {judged.why}"
                    return
                checked += judged is not None
    part.why += f"; the checksums of {checked} of {total} pieces are right"
