"""Turn `nvidia-smi nvlink -s` into the links of each GPU, with the keys that NVML's document has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from workbench.parse.ids import uuid

__all__ = ["links_of"]

# GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-4a1f…)
_GPU = re.compile(r"GPU (\d{1,3}): .*?(?:\(UUID: (\S+?)\))?\s*$")
# "\t Link 0: 26.562 GB/s" | "\t Link 3: <inactive>"
_LINK = re.compile(r"\s+Link (\d{1,2}): (?:([\d.]+) GB/s|(<?inactive>?))\s*$", re.I)


def links_of(lines: Iterable[str]) -> list[tuple[int, str | None, list[dict[str, Any]]]]:
    """
    Return (index, UUID, links) for each GPU that the text names; a link is ``{"link": 3, "active": True}``.

    Parameters
    ----------
    lines : iterable of str
        What the tool printed.
    """
    found: list[tuple[int, str | None, list[dict[str, Any]]]] = []
    for line in lines:
        if gpu := _GPU.match(line):
            found.append((int(gpu[1]), uuid(gpu[2]) if gpu[2] else None, []))
        elif found and (link := _LINK.match(line)):
            # 0 GB/s is what some drivers print for a link that is down
            active = link[3] is None and float(link[2]) > 0
            found[-1][2].append({"link": int(link[1]), "active": active})
    return found
