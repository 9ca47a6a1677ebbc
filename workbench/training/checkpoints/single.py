"""Turn one file, whatever its name, into a part: an archive of `torch.save`, its older form, a plain pickle, safetensors, or none of them."""

from __future__ import annotations

import os
import re

from workbench.errors import ParseError
from workbench.parse.safe_pickle import Cut
from workbench.training.checkpoints.files import Entry, NotAFile, Source, opened, trouble
from workbench.training.checkpoints.pickled import Pickled, Storage, Thing, read_pickle
from workbench.training.checkpoints.record import Part
from workbench.training.checkpoints.safetensors import judge_safetensors
from workbench.training.checkpoints.steps import facts_of_value, step_of_value
from workbench.training.checkpoints.zipped import begins, judge_zip, remarks

__all__ = ["SUFFIXES", "entry_of", "judge_file", "judge_source", "temporary", "unreadable"]

# torch/serialization.py: MAGIC_NUMBER, then PROTOCOL_VERSION, then what the machine is like
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_MAGIC_BYTES = b"\x8a\x0a" + _MAGIC.to_bytes(10, "little")
# what a checkpoint is called; only asked where its content does not tell (empty, zeros, damaged from the first byte on)
SUFFIXES = re.compile(r"\.(pt|pth|ckpt|bin|safetensors|distcp|nemo|tar|pkl)$", re.IGNORECASE)
# names that a writer uses before it renames: tmp-checkpoint-500 (transformers), .metadata.tmp (torch), x.pt.tmp, x.incomplete,
# x-unfinished (NeMo)
_TEMPORARY = re.compile(
    r"(^|[._-])(tmp|incomplete|partial|inprogress|in_progress|unfinished)([._-]|$)|^\.?_*tmp|\.(temp|part)$|_tmp\d*(\.|$)|~$",
    re.IGNORECASE,
)


def temporary(name: str) -> bool:
    """Tell whether a name is one that is used until the writing is done."""
    return bool(_TEMPORARY.search(name))


def unreadable(error: Exception, form: str = "unknown") -> Part:
    """Return the part for what the system does not let us read."""
    return Part(form, "unreadable", trouble(error), looked=False)


def judge_file(entry: Entry, *, deep: bool = False, certain: bool = False, bare: bool = False) -> Part | None:
    """
    Judge one file.

    Parameters
    ----------
    entry : Entry
        What the folder says of it.
    deep : bool
        Read all of it and compare checksums.
    certain : bool
        It is known to be (a part of) a checkpoint, so that unknown content is damage. Otherwise its name decides that.
    bare : bool
        It stands within a larger format: no step is looked for.

    Returns
    -------
    Part or None
        None: something else than a checkpoint.
    """
    supposed = certain or bool(SUFFIXES.search(_bare_name(entry.name)))
    if entry.trouble:
        return Part("unknown", "unreadable", entry.trouble, looked=False) if supposed else None
    try:
        with opened(entry.path) as source:
            part = judge_source(source, deep=deep, supposed=supposed, bare=bare)
            if part is not None:
                part.bytes, part.saved = source.size, source.modified
            return part
    except (OSError, NotAFile) as error:
        return unreadable(error) if supposed else None
    except ParseError as error:
        return Part("unknown", "unreadable", str(error), bytes=entry.size, saved=entry.modified) if supposed else None


def _bare_name(name: str) -> str:
    """Take what a writer hangs behind a name off it: ``x.pt.tmp`` is called ``x.pt``."""
    return re.sub(r"([._-](tmp|temp|incomplete|partial|part|inprogress|unfinished)[\w.]*|~)$", "", name, flags=re.IGNORECASE)


def judge_source(source: Source, *, deep: bool = False, supposed: bool = True, bare: bool = False) -> Part | None:
    """Judge bytes by their content; None when they are something else, and nobody supposes them to be a checkpoint."""
    head = source.read(0, 64)
    if begins(head):
        part = judge_zip(source, deep=deep, bare=bare)
        if part is not None or not supposed:
            return part
        return Part("unknown", "unreadable", "an archive, and not one of torch.save", bytes=source.size)
    if head[:1] == b"\x80" and head[2:14] == _MAGIC_BYTES:
        return _legacy(source, bare=bare)
    part = judge_safetensors(source, supposed=False)
    if part is not None or not supposed:
        return part
    if not head:
        return Part("unknown", "torn", "the file is empty")
    if not any(head) and not any(source.read(source.size // 2, 4096)) and not any(source.read(max(0, source.size - 4096), 4096)):
        return Part(
            "unknown", "torn", f"the file is {source.size} zeros: room was taken, and nothing was written", bytes=source.size
        )
    if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5":
        return _pickle(source, bare=bare)
    if len(head) < 64:
        return Part("unknown", "torn", f"the file has {source.size} bytes, too few for any format", bytes=source.size)
    if head[257:262] == b"ustar" or source.read(257, 5) == b"ustar":
        return _tar(source)
    return judge_safetensors(source, supposed=True) or Part(
        "unknown", "unreadable", "its content is of no format that is known here", bytes=source.size
    )


def _legacy(source: Source, *, bare: bool) -> Part:
    """Judge the form before PyTorch 1.6: pickles of magic, protocol, machine, object and storage keys; then each storage with its count."""
    part = Part("torch-legacy", "complete", "", bytes=source.size)
    try:
        magic = read_pickle(source)
        protocol = read_pickle(source, magic.end)
        machine = read_pickle(source, protocol.end)
        if magic.value != _MAGIC or protocol.value != _PROTOCOL or not isinstance(machine.value, dict):
            part.state, part.why = "unreadable", f"version {protocol.value!r} of the old form is not known"[:200]
            return part
        content = read_pickle(source, machine.end)
        keys = read_pickle(source, content.end)
    except Cut:
        part.state, part.why = "torn", f"the file ends after {source.size} bytes, within its pickle"
        return part
    except ParseError as bad:
        part.state, part.why = "unreadable", str(bad)
        return part
    bad_name = remarks(content, part)
    if bad_name:
        part.state, part.why = "unreadable", bad_name
        return part
    _legacy_storages(source, content, keys, part)
    part.facts = facts_of_value(content.value)
    found = None if bare else step_of_value(content.value)
    if found:
        part.step, part.step_from = found
    return part


def _legacy_storages(source: Source, content: Pickled, keys: Pickled, part: Part) -> None:
    names = keys.value
    if not isinstance(names, list) or {name for name in names if isinstance(name, str)} != set(content.storages):
        part.state, part.why = "unreadable", "the list of its tensors is not that of its pickle"
        return
    at = keys.end
    for name in names:
        storage: Storage = content.storages[name]
        raw = source.read(at, 8)
        if storage.bytes is None:
            part.state, part.why = "unreadable", f"a tensor of {storage.kind}, whose size is not known"
            return
        if len(raw) < 8 or at + 8 + storage.bytes > source.size:
            part.state, part.why = "torn", f"the file ends after {source.size} bytes, within tensor {name[:60]}"
            return
        if int.from_bytes(raw, "little") != storage.count:
            part.state, part.why = "torn", f"tensor {name[:60]} should have {storage.count} numbers, the file says something else"
            return
        at += 8 + storage.bytes
    part.why = f"its pickle and {len(names)} tensors fill the file"


def _pickle(source: Source, *, bare: bool) -> Part:
    part = Part("pickle", "complete", "", bytes=source.size)
    try:
        read = read_pickle(source)
    except Cut:
        part.state, part.why = "torn", f"the file ends after {source.size} bytes, within its pickle"
        return part
    except ParseError as bad:
        part.state, part.why = "unreadable", str(bad)
        return part
    bad_name = remarks(read, part)
    if bad_name or not isinstance(read.value, dict | Thing | list | tuple):
        part.state, part.why = "unreadable", bad_name or "a pickle of one value, no checkpoint"
        return part
    part.why = "a plain pickle, read to its end"
    part.facts = facts_of_value(read.value)
    found = None if bare else step_of_value(read.value)
    if found:
        part.step, part.step_from = found
    return part


def _tar(source: Source) -> Part:
    """Judge an archive of tar (.nemo, and torch before 0.4): it is whole when its members lead to two blocks of zeros."""
    part = Part("nemo", "complete", "", bytes=source.size)
    at = members = 0
    while members < 10_000:
        block = source.read(at, 512)
        if len(block) < 512:
            part.state, part.why = "torn", f"the archive ends after {source.size} bytes, without its end mark"
            return part
        if not any(block):
            part.why = f"{members} members and the archive's end mark"
            return part
        size = block[124:136]
        try:
            count = int.from_bytes(size[1:], "big") if size[0] & 0x80 else int(size.strip(b"\0 ") or b"0", 8)
        except ValueError:
            part.state, part.why = "torn", f"member {members + 1} of the archive is damaged"
            return part
        at, members = at + 512 + -(-count // 512) * 512, members + 1
    part.state, part.why = "unreadable", "an archive of more than 10,000 members"
    return part


def entry_of(path: str) -> Entry:
    """Return the entry of one path that is asked for by name."""
    try:
        seen = os.stat(path)
    except OSError as error:
        return Entry(os.path.basename(path), path, False, 0, 0.0, (0, 0), trouble(error))
    return Entry(os.path.basename(path), path, os.path.isdir(path), seen.st_size, seen.st_mtime, (seen.st_dev, seen.st_ino))
