"""
Turn a folder of DeepSpeed's checkpoints into parts: is the set of files whole that all ranks together write?

``latest`` is written last and names the folder that is loaded. In it: ``mp_rank_XX_model_states.pt`` a model-parallel rank, with ZeRO
``[bf16_]zero_pp_rank_D_mp_rank_XX_optim_states.pt`` a rank (with stage 3 also ``zero_pp_rank_D_mp_rank_XX_model_states.pt``), with pipelines
``layer_LL-model_TT-model_states.pt`` (deepspeed/runtime/engine.py: _get_ckpt_name, _get_rank_zero_ckpt_name, _save_checkpoint).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from workbench.training.checkpoints.files import Entry, TooMany, listing
from workbench.training.checkpoints.megatron import pointer
from workbench.training.checkpoints.record import Found, Part, Scan, join
from workbench.training.checkpoints.safetensors import safe_name
from workbench.training.checkpoints.single import judge_file, unreadable

__all__ = ["judge_tag", "root", "tag"]

_TAG = re.compile(r"global_step(\d+)$")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt$")
_ZERO_MODEL = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt$")
_OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
_LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt$")
_ANY = re.compile(r"(?:model|optim)_states\.pt$")


def root(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """Recognise a folder with ``latest`` and folders of steps."""
    latest = files.get("latest")
    steps = {name: entry for name, entry in files.items() if entry.folder and _TAG.match(name)}
    if latest is not None and (latest.folder or latest.size > 300):
        latest = None
    if latest is None and not steps:
        return None
    said, wrong = pointer(latest) if latest is not None else ("", "is not there")
    if latest is not None and not steps and (wrong or not _TAG.match(said)) and said not in files:
        return None  # a file of that name, of something else
    if not wrong and not safe_name(said):
        wrong = "names something outside of its folder: not followed"
    if not wrong and said in files and files[said].folder:
        steps[said] = files[said]
    out: list[Found] = []
    for name, entry in steps.items():
        try:
            part = judge_tag(listing(entry.path), scan)
        except (OSError, TooMany) as error:
            part = unreadable(error, "deepspeed")
        if wrong:
            part.notes.append(f"`latest` {wrong}: give DeepSpeed the tag {name}")
        elif said != name:
            part.notes.append(f"`latest` names {said[:80]}: to load this one give DeepSpeed the tag {name}")
        found = _TAG.match(name)
        if part.step is None and found:
            part.step, part.step_from = int(found[1]), "name"
        out.append(Found(entry.path, part))
    if not wrong and said not in steps:
        found = _TAG.match(said)
        part = Part(
            "deepspeed",
            "torn",
            f"`latest` names {said[:80]}, and there is no such folder",
            saved=latest.modified if latest else 0.0,
        )
        part.step, part.step_from = (int(found[1]), "`latest`") if found else (None, "")
        out.append(Found(f"{place.path}/{said}", part))
    return out, {"latest", *steps}


def tag(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """Recognise the folder of one step, asked for by itself."""
    if not any(_MODEL.match(name) or _OPTIM.match(name) or _ZERO_MODEL.match(name) or _LAYER.match(name) for name in files):
        return None
    return [Found(place.path, judge_tag(files, scan))], {name for name, entry in files.items() if not entry.folder}


def judge_tag(files: Mapping[str, Entry], scan: Scan) -> Part:
    """
    Judge the files of one step.

    Parameters
    ----------
    files : mapping of str to Entry
        What lies in the folder.
    scan : Scan
        Ranks of the next attempt: ZeRO's states are one part a rank, so that another number cannot load them (but for universal checkpoints).
    """
    model = {int(found[1]): entry for name, entry in files.items() if (found := _MODEL.match(name))}
    optim = _pairs(files, _OPTIM)
    zero_model = _pairs(files, _ZERO_MODEL)
    layers = _pairs(files, _LAYER)
    parts: list[tuple[str, Part]] = []
    facts: dict[str, object] = {}
    for entry in files.values():
        if entry.folder or not _ANY.search(entry.name):
            continue
        first = not facts and bool(_MODEL.match(entry.name) or _ZERO_MODEL.match(entry.name))
        judged = judge_file(entry, deep=scan.deep, certain=True, bare=not first) or Part("unknown", "unreadable", "no checkpoint")
        if first:
            facts = judged.facts
        judged.notes.clear()  # DeepSpeed keeps its own objects there, and loads with weights_only=False
        parts.append((entry.name, judged))
    dp = _size(facts.get("dp"), (rank for rank, _ in (*optim, *zero_model)))
    mp = _size(facts.get("mp"), (*model, *(rank for _, rank in (*optim, *zero_model))))
    stage = facts.get("zero")
    gaps = [] if zero_model and not model else _gaps("mp_rank_{0:02d}_model_states.pt", {(rank,) for rank in model}, [range(mp)])
    if optim or (isinstance(stage, int) and stage > 0):
        gaps += _gaps("zero_pp_rank_{0}_mp_rank_{1:02d}_optim_states.pt", set(optim), [range(dp), range(mp)])
    if zero_model:
        gaps += _gaps("zero_pp_rank_{0}_mp_rank_{1:02d}_model_states.pt", set(zero_model), [range(dp), range(mp)])
    if layers:
        shards = max(shard for _, shard in layers) + 1
        gaps += _gaps(
            "layer_{0:02d}-model_{1:02d}-model_states.pt", set(layers), [sorted({layer for layer, _ in layers}), range(shards)]
        )
    if gaps:
        parts.append(("", Part("deepspeed", "torn", f"{len(gaps)} file(s) are not there, such as {gaps[0]}")))
    if not parts:
        saved = max((entry.modified for entry in files.values()), default=0.0)
        return Part("deepspeed", "torn", "the folder holds no states: the save did not get far", saved=saved)
    part = join("deepspeed", parts, whole=f"the states of {dp} data-parallel × {mp} model-parallel ranks")
    part.facts, part.world_size = facts, dp * mp
    if scan.world_size and part.state == "complete":
        if (optim or zero_model) and scan.world_size != part.world_size:
            part.state = "wrong-world-size"
            part.why = f"ZeRO's states are one part for each of {part.world_size} ranks; convert it (ds_to_universal.py) for {scan.world_size}"
        elif scan.world_size % mp:
            part.state, part.why = (
                "wrong-world-size",
                f"saved by {mp} model-parallel ranks, of which {scan.world_size} is no multiple",
            )
    return part


def _pairs(files: Mapping[str, Entry], pattern: re.Pattern[str]) -> dict[tuple[int, int], Entry]:
    return {(int(found[1]), int(found[2])): entry for name, entry in files.items() if (found := pattern.match(name))}


def _size(said: object, ranks: Iterable[int]) -> int:
    """Return the size of a group: as its files say, else the highest rank there is and one."""
    highest = max(ranks, default=0) + 1
    return max(said, highest) if isinstance(said, int) and 0 < said < 1 << 20 else min(highest, 1 << 20)


def _gaps(name: str, seen: set[tuple[int, ...]], axes: list[Iterable[int]]) -> list[str]:
    """Return names of files that should be there; at most a thousand, as numbers in names can be anything."""
    wanted: list[tuple[int, ...]] = [()]
    for axis in axes:
        wanted = [(*head, number) for head in wanted[:50_000] for number in axis][:200_000]
    return [name.format(*numbers) for numbers in wanted if numbers not in seen][:1000]
