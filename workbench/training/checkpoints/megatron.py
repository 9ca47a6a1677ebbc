"""
Turn a folder of Megatron-LM's checkpoints into parts: ``iter_NNNNNNN`` with a file a model-parallel rank, or in the distributed format.

``latest_checkpointed_iteration.txt`` is written last and names the one that is loaded; without it Megatron-LM begins from scratch
(megatron/training/checkpointing.py: get_checkpoint_name, read_metadata).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workbench.training.checkpoints.distributed import judge_distributed
from workbench.training.checkpoints.files import Entry, NotAFile, TooMany, listing, opened, trouble
from workbench.training.checkpoints.record import Found, Part, Scan, join
from workbench.training.checkpoints.safetensors import bounded_json
from workbench.training.checkpoints.single import judge_file, unreadable

__all__ = ["iteration", "judge_dist", "pointer", "root"]

TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_(\d{7,12})$")
_RANK = re.compile(r"mp_rank_(\d{2,4})(?:_(\d{3}))?(?:_(\d{3}))?$")
_MODEL = ("model_optim_rng.pt", "model_rng.pt")


def pointer(entry: Entry) -> tuple[str, str]:
    """Return the first line of a small file that names the newest checkpoint, and what is wrong with it (empty: nothing)."""
    try:
        with opened(entry.path) as source:
            raw = source.read(0, 300)
    except (OSError, NotAFile) as error:
        return "", trouble(error)
    text = raw.decode("utf-8", "replace").strip("\0 \r\n\t")
    if not text:
        return "", "is empty"
    return (text, "") if len(text) < 256 and text.isprintable() else ("", "holds no name")


def root(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """Recognise a folder of iterations."""
    iterations = {name: entry for name, entry in files.items() if entry.folder and (_ITERATION.match(name) or name == "release")}
    tracker = files.get(TRACKER)
    if tracker is None and not any(_ITERATION.match(name) for name in iterations):
        return None
    said, wrong = pointer(tracker) if tracker is not None else ("", "is not there")
    if not wrong and not (said.isdigit() or said == "release"):
        wrong = f"says {said[:40]!r}, no iteration"
    out: list[Found] = []
    for name, entry in iterations.items():
        part = _of_folder(entry, scan)
        found = _ITERATION.match(name)
        number = int(found[1]) if found else None
        if part.step is None and number is not None:
            part.step, part.step_from = number, "name"
        if wrong:
            part.notes.append(f"{TRACKER} {wrong}: Megatron-LM would begin from scratch")
        elif number is not None and said.isdigit() and int(said) != number:
            if int(said) < number and part.state == "complete":
                part.notes.append(
                    f"{TRACKER} still says {said}: the save was not declared finished, Megatron-LM would load {said}"
                )
            else:
                part.notes.append(f"{TRACKER} says {said}: Megatron-LM loads that one unless it is changed")
        out.append(Found(entry.path, part))
    if not wrong and said.isdigit() and f"iter_{int(said):07d}" not in iterations:
        part = Part(
            "megatron",
            "torn",
            f"{TRACKER} says {said}, and there is no folder iter_{int(said):07d}",
            step=int(said),
            step_from=TRACKER,
        )
        part.saved = tracker.modified if tracker is not None else 0.0
        out.append(Found(f"{place.path}/iter_{int(said):07d}", part))
    return out, {TRACKER, *iterations}


def iteration(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """Recognise one iteration, asked for by itself."""
    if not any(_RANK.match(name) for name in files) and not _dist(files):
        return None
    return [Found(place.path, _judge(files, scan))], set(files)


def _of_folder(entry: Entry, scan: Scan) -> Part:
    try:
        return _judge(listing(entry.path), scan)
    except (OSError, TooMany) as error:
        return unreadable(error, "megatron")


def _judge(files: Mapping[str, Entry], scan: Scan) -> Part:
    if _dist(files) or any(name.endswith(".distcp") or name.startswith(".metadata") for name in files):
        return judge_dist(files, scan)
    ranks = {name: entry for name, entry in files.items() if entry.folder and _RANK.match(name)}
    if ranks:
        return _ranks(ranks, scan)
    saved = max((entry.modified for entry in files.values()), default=0.0)
    return Part("megatron", "torn", "the folder holds no files of ranks: the save did not get far", saved=saved)


def _dist(files: Mapping[str, Entry]) -> dict[str, Any] | None:
    """Return what ``metadata.json`` of Megatron Core's distributed format says; None without."""
    entry = files.get("metadata.json")
    if entry is None:
        return None
    try:
        with opened(entry.path) as source:
            said = bounded_json(source.read(0, 1 << 16))
    except (OSError, NotAFile, ValueError, UnicodeError):
        return {} if "common.pt" in files else None
    return said if isinstance(said, dict) and "sharded_backend" in said else None


def judge_dist(files: Mapping[str, Entry], scan: Scan) -> Part:
    """Judge a folder of Megatron Core's distributed format: ``metadata.json`` names what wrote the tensors; ``common.pt`` holds the rest."""
    said = _dist(files)
    if said is not None and said.get("sharded_backend") not in ("torch_dist", "fsdp_dtensor"):
        part = Part("megatron-dist", "unreadable", f"format {str(said.get('sharded_backend'))[:40]!r} is not looked into")
        if not said:
            part.state, part.why = "torn", "metadata.json is no whole JSON"
        part.bytes = sum(entry.size for entry in files.values())
        part.saved = max((entry.modified for entry in files.values()), default=0.0)
        return part
    part = judge_distributed(files, scan)
    part.format = "megatron-dist"
    if part.state == "complete" and (said is None or "common.pt" not in files):
        missing = "common.pt" if said is not None else "metadata.json"
        part.state, part.why = (
            "torn",
            f"{missing} is not there: the tensors are whole, and what tells Megatron-LM of them is missing",
        )
    world = part.facts.get("world")
    if isinstance(world, int):
        part.world_size = world
    return part


def _ranks(ranks: Mapping[str, Entry], scan: Scan) -> Part:
    parts: list[tuple[str, Part]] = []
    held: dict[str, set[str]] = {}
    facts: dict[str, object] = {}
    for name, folder in ranks.items():
        try:
            files = {
                one.name: one for one in listing(folder.path).values() if not one.folder and re.search(r"\.pt(\.\w+)?$", one.name)
            }
        except (OSError, TooMany) as error:
            parts.append((name, unreadable(error, "megatron")))
            continue
        held[name] = {one for one in files if one.endswith(".pt")}
        if not held[name] & set(_MODEL):
            saved = max((one.modified for one in files.values()), default=folder.modified)
            parts.append((name, Part("megatron", "torn", f"{_MODEL[0]} is not there", saved=saved)))
        for one in files.values():
            if not one.name.endswith(".pt"):
                continue
            judged = judge_file(one, deep=scan.deep, certain=True, bare=bool(facts)) or Part(
                "unknown", "unreadable", "no checkpoint"
            )
            facts = facts or judged.facts
            judged.notes.clear()  # Megatron-LM always keeps its `args` there, and loads with weights_only=False
            parts.append((f"{name}/{one.name}", judged))
    all_names = set().union(*held.values())
    for name, names in held.items():
        if names and all_names - names:
            parts.append((name, Part("megatron", "torn", f"{min(all_names - names)} is not there, which other ranks have")))
    missing = _missing(ranks, facts)
    if missing:
        parts.append(("", Part("megatron", "torn", missing)))
    part = join("megatron", parts, whole=f"{len(ranks)} model-parallel ranks, each with {', '.join(sorted(all_names))}")
    part.facts = facts
    world, groups = facts.get("world"), _group(facts) or len(ranks)
    part.world_size = world if isinstance(world, int) else None
    if scan.world_size and part.state == "complete" and scan.world_size % groups:
        part.state = "wrong-world-size"
        part.why = f"saved by {groups} model-parallel ranks, of which {scan.world_size} is no multiple"
    return part


def _group(facts: Mapping[str, object]) -> int:
    """Return tensor × pipeline (× expert) parallel size as `args` has them; 0 when it does not."""
    tp, pp = facts.get("tp"), facts.get("pp")
    return tp * pp if isinstance(tp, int) and isinstance(pp, int) else 0


def _missing(ranks: Mapping[str, Entry], facts: Mapping[str, object]) -> str:
    seen = {
        tuple(int(number) for number in found.groups() if number is not None) for name in ranks if (found := _RANK.match(name))
    }
    group, ep = _group(facts), facts.get("ep")
    expected = group * (ep if isinstance(ep, int) and ep > 1 else 1)
    if group and len(seen) < expected:
        return f"{len(seen)} of {expected} model-parallel ranks are there"
    grid = 1
    for axis in zip(*seen, strict=False):
        grid *= max(axis) + 1
    return f"{len(seen)} of {grid} model-parallel ranks are there" if len(seen) < grid else ""
