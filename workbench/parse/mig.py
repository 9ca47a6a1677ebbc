"""Turn `nvidia-smi -L` and the wish of a site into MIG instances by profile: what there is, and what there should be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from workbench.parse.ids import uuid

__all__ = ["instances_of", "layout_of", "profile_words"]

# GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-4a1f…)
_GPU = re.compile(r"GPU \d{1,3}: .*?\(UUID: (GPU-\S+?)\)\s*$")
# "  MIG 1g.10gb     Device  0: (UUID: MIG-c1d3…)"; a compute instance of its own is 1c.3g.40gb, one with media engines 1g.10gb+me
_MIG = re.compile(r"\s+MIG (\d\S*)\s+Device\s+(\d{1,2}): \(UUID: (MIG-[^)]*)\)")
_PROFILE = re.compile(r"(?:\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb(?:[+-][\w.+-]+)?$")


def instances_of(lines: Iterable[str]) -> dict[str | None, list[dict[str, Any]]]:
    """
    Return for each GPU's UUID its MIG instances, with the keys of NVML's document: ``{"index", "uuid", "profile"}``.

    Parameters
    ----------
    lines : iterable of str
        What `nvidia-smi -L` printed.
    """
    found: dict[str | None, list[dict[str, Any]]] = {}
    mine: list[dict[str, Any]] | None = None
    for line in lines:
        if gpu := _GPU.match(line):
            mine = found.setdefault(uuid(gpu[1]), [])
        elif mine is not None and (one := _MIG.match(line)):
            mine.append({"index": int(one[2]), "uuid": one[3], "profile": one[1]})
    return found


def layout_of(text: str) -> Counter[str] | None:
    """
    Return how many instances of each profile a text asks for, ``1g.10gb=4,3g.40gb`` (without a number: one); None when it is none such.

    Names are those of NVIDIA's MIG user guide, in lower case.
    """
    wanted: Counter[str] = Counter()
    for part in re.split(r"[\s,;]+", text.strip().lower()):
        name, _, number = part.partition("=")
        name, number = name.removeprefix("mig-"), number or "1"
        if not _PROFILE.match(name) or not number.isdigit() or not int(number):
            return None
        wanted[name] += int(number)
    return wanted


def profile_words(profiles: Counter[str]) -> str:
    """Return ``4 × 1g.10gb, 1 × 3g.40gb``; ``none`` for an empty one."""
    return ", ".join(f"{count} × {name}" for name, count in sorted(profiles.items())) or "none"
