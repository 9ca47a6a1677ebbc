"""Turn folders of the Hugging Face Trainer, of NeMo and of sharded models into parts: all that belongs to one checkpoint must be whole."""

from __future__ import annotations

import re
from collections.abc import Mapping

from workbench.training.checkpoints import deepspeed, distributed, megatron
from workbench.training.checkpoints.files import Entry, NotAFile, TooMany, listing, opened, trouble
from workbench.training.checkpoints.record import Found, Part, Scan, join
from workbench.training.checkpoints.safetensors import INDEX, bounded_json, judge_index, judge_unindexed
from workbench.training.checkpoints.single import judge_file, unreadable
from workbench.training.checkpoints.steps import step_of_value

__all__ = ["nemo", "sharded", "trainer"]

_CHECKPOINT = re.compile(r"(?:tmp-)?checkpoint-(\d+)$")
_RNG = re.compile(r"rng_state(?:_(\d+))?\.pth$")
_WEIGHTS = re.compile(r"(pytorch_)?(adapter_)?model.*\.(safetensors|bin)$|consolidated.*\.(pth|safetensors)$")
_STATES = re.compile(r"(optimizer|scheduler|scaler)(_\d+)?\.(pt|bin)$")
_MOST_STATE = 64 << 20  # trainer_state.json grows with its log history


def trainer(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """
    Recognise a folder ``checkpoint-N`` of transformers' Trainer.

    It is written in this order: weights, optimizer, scheduler, random states, ``trainer_state.json`` (Trainer._save_checkpoint); so the last one
    says that the others were written.
    """
    there = any(_WEIGHTS.match(name) or _STATES.match(name) or _RNG.match(name) for name in files)
    if "trainer_state.json" not in files and not (_CHECKPOINT.match(place.name) and there):
        return None
    if "trainer_state.json" in files and not there and not any(entry.folder for entry in files.values()):
        return None  # the output folder's own copy
    if any(_CHECKPOINT.match(name) for name in files):
        return None  # the output folder
    parts: list[tuple[str, Part]] = [("trainer_state.json", _state(files.get("trainer_state.json")))]
    weights = states = False
    left = {name: entry for name, entry in files.items() if not entry.folder}
    for shards, part, names in _sharded(place, left, scan):
        parts.append((shards, part))
        left = {name: entry for name, entry in left.items() if name not in names}
        weights = True
    for name, entry in left.items():
        if not (_WEIGHTS.match(name) or _STATES.match(name) or _RNG.match(name)) or INDEX.search(name):
            continue
        judged = judge_file(entry, deep=scan.deep, certain=True, bare=True) or Part("unknown", "unreadable", "no checkpoint")
        judged.notes.clear()  # random states hold numpy's; the Trainer loads them as it wrote them
        weights = weights or bool(_WEIGHTS.match(name))
        states = states or name.startswith("optimizer")
        parts.append((name, judged))
    for name, part in _inside(files, scan):
        parts.append((name, part))
        weights = weights or not name.startswith("optimizer")
        states = states or name.startswith(("optimizer", "global_step"))
    if not weights:
        parts.append(("", Part("huggingface", "torn", "no weights are there")))
    if not states and "scheduler.pt" in files:
        parts.append(("", Part("huggingface", "torn", "scheduler.pt is there and no state of the optimizer")))
    part = join(
        "huggingface",
        parts,
        whole=f"trainer_state.json, written last, is there; so are weights{' and optimizer' if states else ''}",
    )
    ranks = [int(found[1]) for name in files if (found := _RNG.match(name)) and found[1]]
    if ranks:
        part.world_size = max(ranks) + 1
    elif part.world_size is None and "rng_state.pth" in files:
        part.world_size = 1
    if ranks and len(ranks) < max(ranks) + 1:
        part.notes.append(f"random states of {max(ranks) + 1 - len(ranks)} ranks are missing: training goes on, not bit for bit")
    if not states and part.state == "complete":
        part.notes.append("no state of the optimizer (save_only_model): training cannot go on from it as if nothing had happened")
    return [Found(place.path, part)], set(files)


def _state(entry: Entry | None) -> Part:
    if entry is None:
        return Part("huggingface", "torn", "it is written last, and is not there")
    part = Part("huggingface", "complete", "", bytes=entry.size, saved=entry.modified)
    try:
        with opened(entry.path) as source:
            if source.size > _MOST_STATE:
                return Part("huggingface", "unreadable", f"it has {source.size} bytes, more than is looked into")
            said = bounded_json(source.read(0, source.size))
    except (OSError, NotAFile) as error:
        return Part("huggingface", "unreadable", trouble(error), looked=False)
    except (ValueError, UnicodeError):
        part.state, part.why = "torn", "it is no whole JSON"
        return part
    found = step_of_value(said)
    if found:
        part.step, part.step_from = found
    return part


def _inside(files: Mapping[str, Entry], scan: Scan) -> list[tuple[str, Part]]:
    """Judge what DeepSpeed (``latest``, ``global_stepN``) and FSDP (``pytorch_model_fsdp_0``, ``optimizer_0``) put into the Trainer's folder."""
    out: list[tuple[str, Part]] = []
    inner_deepspeed = deepspeed.root(Entry("", "", True, 0, 0.0, (0, 0)), files, scan)
    out += [(found.path.rsplit("/", 1)[-1], found.part) for found in (inner_deepspeed[0] if inner_deepspeed else [])]
    for name, entry in files.items():
        if not entry.folder or re.match(r"global_step\d+$", name):
            continue
        try:
            inner = listing(entry.path)
        except (OSError, TooMany) as error:
            out.append((name, unreadable(error)))
            continue
        if distributed.folder(entry, inner, Scan()) is not None:
            out.append((name, distributed.judge_distributed(inner, scan)))
    return out


def nemo(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """Recognise NeMo 2's folders of ``weights`` (Megatron Core's distributed format) and ``context``; ``NAME-unfinished`` marks one."""
    out: list[Found] = []
    used: set[str] = set()
    own = files.get("weights")
    if own is not None and own.folder and ("context" in files or re.search(r"step=\d+", place.name)):
        return [Found(place.path, _weights(own, scan))], {"weights", "context"}
    for name, entry in files.items():
        if not name.endswith("-unfinished") or entry.folder:
            continue
        used.add(name)
        folder = files.get(name.removesuffix("-unfinished"))
        if folder is None or not folder.folder:
            continue
        used.add(folder.name)
        part = Part("nemo", "torn", f"{name} lies beside it: the save did not end", saved=max(folder.modified, entry.modified))
        out.append(Found(folder.path, part))
    return (out, used) if out or used else None


def _weights(folder: Entry, scan: Scan) -> Part:
    try:
        part = megatron.judge_dist(listing(folder.path), scan)
    except (OSError, TooMany) as error:
        return unreadable(error, "nemo")
    part.format = "nemo"
    return part


def sharded(place: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]] | None:
    """Recognise a model of many files with an index of them, or without the index that it needs."""
    out, used = [], set()
    found = _sharded(place, {name: entry for name, entry in files.items() if not entry.folder}, scan)
    for name, part, names in found:
        path = place.path if len(found) == 1 and INDEX.search(name) else f"{place.path}/{name}"
        out.append(Found(path, part))
        used |= names
    return (out, used) if out else None


def _sharded(place: Entry, files: Mapping[str, Entry], scan: Scan) -> list[tuple[str, Part, set[str]]]:
    def judge(entry: Entry) -> Part | None:
        return judge_file(entry, deep=scan.deep, certain=True, bare=True)

    out: list[tuple[str, Part, set[str]]] = []
    used: set[str] = set()
    for name, entry in files.items():
        if INDEX.search(name):
            part, names = judge_index(entry, files, judge)
            out.append((name, part, names))
            used |= names
    return out + judge_unindexed({name: entry for name, entry in files.items() if name not in used}, judge)
