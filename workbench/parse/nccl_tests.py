"""Turn the output of a program of nccl-tests (all_reduce_perf and its like) into bandwidth by size, wrong values, and how it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NcclRun", "NcclSize", "parse_nccl"]

# mpirun --tag-output: "[1,0]<stdout>:…" | srun -l: "0: …"
_TAG = re.compile(r"^(?:\[\d+,\d+\]<std(?:out|err)>: ?|\d{1,5}: (?=[ #]))")
# size, count, type, redop, root, and for each of out-of-place and in-place: time, algbw, busbw, #wrong
_NUMBER = r"(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)"
_SIDE = rf"\s+{_NUMBER}\s+{_NUMBER}\s+({_NUMBER})\s+({_NUMBER}|N/A)"
_LINE = re.compile(rf"^\s*(\d+)\s+\d+\s+\w+\s+(?:\w+\s+(?:-?\d+\s*)?)?{_SIDE}(?:{_SIDE})?")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+(\d+)")
_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)")
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*([\d.]+)")
_FAILED = re.compile(r"Test (?:NCCL|CUDA) failure|Test failure|NCCL WARN|unhandled \w+ error|NCCL failure|CUDA failure", re.I)


@dataclass(frozen=True, slots=True)
class NcclSize:
    """One line: bytes, the lower bus bandwidth of its sides in GB/s, and the wrong values of both (None: not checked)."""

    size: int
    busbw: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class NcclRun:
    """
    What one run said.

    `began` tells that the program came so far that it named its devices or its parameters, `whole` that it came to its summary;
    `wrong` counts values that were not what they must be, None when it did not check; `failures` are lines of errors.
    """

    sizes: tuple[NcclSize, ...]
    ranks: int
    began: bool
    whole: bool
    wrong: int | None
    average: float | None
    failures: tuple[str, ...]

    @property
    def largest(self) -> NcclSize | None:
        """The line of the largest message: where bandwidth counts and latency does not."""
        return max(self.sizes, key=lambda one: one.size, default=None)


def parse_nccl(text: str) -> NcclRun:
    """Parse what a program of nccl-tests printed, prefixes of mpirun and srun taken off."""
    sizes: list[NcclSize] = []
    failures: list[str] = []
    ranks = 0
    began = whole = False
    bounds: int | None = None
    average: float | None = None
    for raw in text.splitlines():
        line = _TAG.sub("", raw)
        if found := _LINE.match(line):
            bands = [float(each) for each in (found[2], found[4]) if each is not None]
            wrongs = [float(each) for each in (found[3], found[5]) if each not in (None, "N/A")]
            if all(each == each for each in bands):  # a time that is no number is no measurement
                sizes.append(NcclSize(int(found[1]), min(bands), int(sum(wrongs)) if wrongs else None))
        elif _RANK.match(line):
            ranks, began = ranks + 1, True
        elif line.startswith("# nThread") or re.match(r"#\s*Collective test starting", line):
            began = True
        elif found := _BOUNDS.match(line):
            bounds, whole = int(found[1]), True
        elif found := _AVERAGE.match(line):
            average, whole = float(found[1]), True
        elif _FAILED.search(line):
            failures.append(line.strip()[:300])
    checked = [one.wrong for one in sizes if one.wrong is not None]
    wrong = max(bounds or 0, sum(checked)) if checked or bounds else None
    return NcclRun(tuple(sizes), ranks, began, whole, wrong, average, tuple(failures[:10]))
