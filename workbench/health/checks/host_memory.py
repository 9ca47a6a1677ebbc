"""Turn the host's memory into whether all of it is there and can be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.sources.node.memory import Dimm, HostMemory

__all__ = ["host_memory"]

# mcelog counts a module as failing from 10 corrected errors in 24 hours (mcelog.conf, dimm, ce-error-threshold)
_CORRECTED_A_DAY = 10.0
_TOLERANCE = 0.01  # another kernel reserves a little more or less; one of 32 modules is 3 %
_GIB = 1 << 30


@check("host-memory", "the host's memory is all there and has no errors", needs=("host-memory",), cls="hardware/host")
def host_memory(seen: Seen) -> Iterator[Finding]:
    """Judge the size by ``health.memory``, and each module by what its controller counted since boot."""
    memory: HostMemory = seen.value("host-memory")
    wanted = seen.setting("memory")
    if wanted and memory.total < wanted * (1 - _TOLERANCE):
        missing = (wanted - memory.total) / _GIB
        summary = f"{memory.total / _GIB:.0f} GiB of memory, {missing:.0f} GiB less than there should be"
        yield seen.found("memory-missing", summary, evidence=[f"health.memory = {wanted / _GIB:.0f} GiB"])
    else:
        huge = f", {memory.huge / _GIB:.0f} GiB of it reserved as huge pages" if memory.huge else ""
        yield seen.ok(f"{memory.total / _GIB:.0f} GiB of memory{huge}")
    if memory.corrupted:
        summary = f"{memory.corrupted >> 10} KiB of memory were taken out of use after errors"
        yield seen.found("memory-retired", summary, evidence=[f"HardwareCorrupted: {memory.corrupted >> 10} kB"])
    if not memory.dimms:
        yield seen.absent(f"errors of memory modules are not counted here: {memory.why}", part="EDAC")
        return
    bad = [finding for dimm in memory.dimms for finding in _judged(seen, dimm)]
    yield from bad
    if not bad:
        corrected = sum(dimm.corrected or 0 for dimm in memory.dimms)
        yield seen.ok(f"no uncorrected errors in {len(memory.dimms)} modules, {corrected} corrected ones", part="EDAC")


def _judged(seen: Seen, dimm: Dimm) -> Iterator[Finding]:
    who = f"{dimm.name} ({dimm.label})" if dimm.label else dimm.name
    said = [
        f"{dimm.name}: ce_count {dimm.corrected}, ue_count {dimm.uncorrected}"
        + (f" in {dimm.days:.1f} days" if dimm.days else "")
    ]
    if dimm.uncorrected:
        yield seen.found("edac-uncorrected", f"{dimm.uncorrected} uncorrected errors in {who}", part=dimm.name, evidence=said)
    elif dimm.uncorrected is None or dimm.corrected is None:
        yield seen.unknown(f"the error counters of {who} were not read", part=dimm.name)
    elif dimm.corrected / max(dimm.days or 1.0, 1.0) > _CORRECTED_A_DAY:
        each = dimm.corrected / max(dimm.days or 1.0, 1.0)
        yield seen.found("edac-corrected", f"{each:.0f} corrected errors a day in {who}", part=dimm.name, evidence=said)
