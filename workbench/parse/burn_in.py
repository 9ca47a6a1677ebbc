"""Turn output of burn-in tools (gpu-burn, cuda_memtest) into the GPUs that computed wrong results or stopped."""

from __future__ import annotations

import re

from workbench.model import Gpu
from workbench.parse.smi_doc import Document, Out

__all__ = ["read_burn_in"]

# 41.3%  proc'd: 2652 (30291 Gflop/s) - 2652 (30266 Gflop/s)   errors: 0 - 1481  (WARNING!)   temps: 72 C - 73 C
_PROGRESS = re.compile(r"\s*[\d.]+%\s+proc'd: .*?errors: (.*?)(?:\s+temps: (.*?))?\s*$")
# 	GPU 2: FAULTY
_VERDICT = re.compile(r"\s*GPU (\d{1,3}): (OK|FAULTY)\s*$")
# [03/01/2026 10:00:00][gpu-7][0]:ERROR: 12 errors found in block 3
_MEMTEST = re.compile(r"\[[^\]]+\]\[([\w.-]+)\]\[(\d{1,3})\]:ERROR: .*?(\d+) errors? found")


def read_burn_in(doc: Document, at: int, out: Out) -> int:
    """Read one line of a burn-in tool at row `at`; returns the row after it, or the same."""
    row = doc.rows[at]
    if found := _PROGRESS.match(row.text):
        # a device's number of errors since the last line; -1 when its process died
        for place, cell in enumerate(found[1].split(" - ")):
            count = re.match(r"\s*(-?\d+)", cell)
            if count and "DIED" in cell:
                out.event("burn-died", row, Gpu(index=place))
            elif count and int(count[1]) > 0:
                out.event("burn-wrong-results", row, Gpu(index=place), errors=int(count[1]))
        return at + 1
    if found := _VERDICT.match(row.text):
        gpu = out.see(Gpu(index=int(found[1])))
        if found[2] == "FAULTY":
            out.event("burn-wrong-results", row, gpu)
        return at + 1
    if found := _MEMTEST.match(row.text):
        out.event("burn-memory-errors", row, Gpu(index=int(found[2])), errors=int(found[3]), host=found[1])
        return at + 1
    return at
