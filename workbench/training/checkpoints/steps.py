"""Turn the content or the name of a checkpoint into the training step it was saved at, and say where that was read."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from workbench.training.checkpoints.pickled import Storage, Thing

__all__ = ["FIELDS", "INSIDE", "facts_of_value", "number_of", "step_of_name", "step_of_value"]

# field → who writes it. In this order; the count of optimizer steps comes before what may count batches
FIELDS = (
    "global_step",  # Lightning, HF Trainer (trainer_state.json), OpenRLHF
    "global_steps",  # DeepSpeed engine._save_checkpoint
    "iteration",  # Megatron-LM training/checkpointing.py; MMEngine keeps it in meta as `iter`
    "step",  # torchtitan, most scripts
    "num_updates",  # fairseq
    "global_iter",
    "current_step",
    "train_step",
    "iter_num",  # nanoGPT
    "iter",
    "steps",
)
INSIDE = ("trainer_state", "train_state", "training_state", "trainer", "state", "extra_state", "meta", "metadata", "progress")
# the layout of one number by the class of its storage (little endian: so are all machines with GPUs)
_NUMBERS = {"LongStorage": "<q", "IntStorage": "<i", "ShortStorage": "<h", "FloatStorage": "<f", "DoubleStorage": "<d"}
# checkpoint-200, global_step200, iter_0000200, step=200, epoch=1-step=200, ckpt_step_200, model-200.pt
_NAMED = re.compile(r"(?:global_?step|steps?|iter(?:ation)?s?|checkpoint|ckpt|updates?)[-_=.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"[-_.=](\d{1,18})(?=\.(?:pt|pth|ckpt|bin|safetensors|tar|pkl|nemo)\b|$)", re.IGNORECASE)

Scalar = Callable[[Storage, int, int], bytes]


def step_of_value(value: Any, scalar: Scalar | None = None) -> tuple[int, str] | None:
    """
    Return step and field of what was pickled, or None.

    Parameters
    ----------
    value : Any
        As `pickled.read_pickle` returns it, or of JSON.
    scalar : callable, optional
        Reads bytes of a storage (storage, offset, count), for steps that are tensors of one number.
    """
    if not isinstance(value, Mapping):
        return None
    for place, inside in [("", value), *((f"{name}.", _mapping(value.get(name))) for name in INSIDE)]:
        if inside is None:
            continue
        for name in FIELDS:
            number = number_of(inside.get(name), scalar)
            if number is not None:
                return number, f"`{place}{name}`"
    return None


def _mapping(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Thing):
        value = value.state if isinstance(value.state, dict) else value.items
    return value if isinstance(value, Mapping) else None


def number_of(value: Any, scalar: Scalar | None = None) -> int | None:
    """Return a value as a step: a whole number, or a tensor that holds one; None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Thing) and scalar is not None:
        value = _tensor(value, scalar)
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < 1e15 else None
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else None


def _tensor(value: Thing, scalar: Scalar) -> int | float | None:
    """Return the number of a tensor without dimensions: `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …)`."""
    args = value.args
    if not str(value.fn).startswith("torch._utils._rebuild_tensor") or not isinstance(args, tuple) or len(args) < 3:
        return None
    storage, offset, size = args[:3]
    if not isinstance(storage, Storage) or storage.kind not in _NUMBERS or not isinstance(offset, int) or size not in ((), (1,)):
        return None
    layout = _NUMBERS[storage.kind]
    width = struct.calcsize(layout)
    raw = scalar(storage, offset * width, width) if 0 <= offset < 1 << 40 else b""
    number: int | float | None = struct.unpack(layout, raw)[0] if len(raw) == width else None
    return number


def step_of_name(name: str) -> int | None:
    """Return the step in a name of a file or folder, such as ``epoch=1-step=200.ckpt`` or ``global_step200``; None without."""
    found = _NAMED.findall(name)
    if found:
        # `epoch=3-step=200`: what is called a step counts more than what is called a checkpoint
        exact = re.search(r"(?:global_?step|steps?|iter(?:ation)?s?)[-_=.]?(\d{1,18})(?!\d)", name, re.IGNORECASE)
        return int(exact[1] if exact else found[-1])
    last = _LAST_NUMBER.search(name)
    return int(last[1]) if last and not re.search(r"rank|shard|-of-|part|epoch|_of_", name, re.IGNORECASE) else None


def facts_of_value(value: Any) -> dict[str, object]:
    """
    Return what a layout of many files must know of one of them: how large the parallel groups were that wrote it.

    ``dp``, ``mp`` and ``zero`` (stage) are of DeepSpeed's model states; ``world``, ``tp``, ``pp``, ``ep`` and ``zero`` of Megatron-LM's `args`.
    """
    out: dict[str, object] = {}
    if not isinstance(value, Mapping):
        return out

    def put(name: str, found: Any) -> None:
        if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 31:
            out[name] = found

    put("dp", value.get("dp_world_size"))
    put("mp", value.get("mp_world_size"))
    config = value.get("ds_config")
    zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
    put("zero", zero.get("stage") if isinstance(zero, Mapping) else None)
    args = value.get("args")
    names = {
        "world": "world_size",
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "ep": "expert_model_parallel_size",
    }
    if isinstance(args, Thing):
        for name, attribute in names.items():
            put(name, args.field(attribute))
        out["distributed_optimizer"] = args.field("use_distributed_optimizer") is True
    return out
