"""Turn the bandwidths that `nvbandwidth` measured into the GPU or pair that is slow, against its peers and what its product is known for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from workbench.catalog.bandwidth import usual_bandwidth
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.slow_pairs import PEERS, slow_of
from workbench.model import Gpu
from workbench.parse.gpu_state import GpuState
from workbench.parse.nvbandwidth import Bandwidths, Matrix
from workbench.sources.node.bandwidth import TESTS

__all__ = ["EXPECTED", "gpu_bandwidth"]

# Share of what a product is known for below which all of a node's GPUs together are slow. Most of the table is what Azure's node checks ask
# of each of its own machines (a GPU below it fails there); other hosts reach less, so ours is wider (our own measure). What Azure asks of
# all_reduce_perf on H100 and H200 (460 and 431 GB/s) is not in it: that is at 16 GB and with NVSwitches adding up, ours runs up to 1 GB.
EXPECTED = 0.8
_WORDS = {TESTS[0]: "from the host", TESTS[1]: "to the host"}


@check(
    "gpu-bandwidth",
    "GPUs, the host and each other are reached at the usual bandwidth",
    needs=("nvbandwidth",),
    wants=("gpus",),
    contexts=("idle",),
    cls="hardware/pcie",
    required=False,
)
def gpu_bandwidth(seen: Seen) -> Iterator[Finding]:
    """
    Judge each test: a GPU or pair below 70 % of its peers' median is slow; all below 80 % of the product's known figure are a warning.

    ``bandwidth*.csv`` in the folder of ``WORKBENCH_CATALOG`` says what a site's own good nodes reach.
    """
    found: Bandwidths = seen.value("nvbandwidth")
    for test in TESTS:
        matrix = found.tests.get(test)
        if matrix is None:
            said = found.others.get(test, "")
            if said.lower().startswith("waived"):
                yield seen.absent(f"nvbandwidth waived it: {said}", part=test)
            else:
                yield seen.unknown(f"nvbandwidth measured nothing: {said or 'the test is not in its output'}", part=test)
        elif test in _WORDS:
            yield from _host(seen, found, test, matrix)
        else:
            yield from _pairs(seen, found, test, matrix)


def _host(seen: Seen, found: Bandwidths, test: str, matrix: Matrix) -> Iterator[Finding]:
    row = matrix[0]
    values = [value for value in row if value is not None]
    sound = True
    for at, value in enumerate(row):
        gpu = _gpu(seen, found, at)
        if value is None:
            sound = False
            yield seen.unknown(f"nvbandwidth gave no figure {_WORDS[test]}", gpu=gpu, part=test)
            continue
        others = [each for place, each in enumerate(row) if place != at and each is not None]
        usual = median(others) if others else 0.0
        if value < PEERS * usual:
            sound = False
            summary = f"{value:.1f} GB/s {_WORDS[test]}, its peers {usual:.1f}"
            yield seen.found("gpu-host-slow", summary, gpu=gpu, part=test, evidence=[_line(test, row)])
    yield from _whole(seen, found, test, values, [_line(test, row)], sound)


def _pairs(seen: Seen, found: Bandwidths, test: str, matrix: Matrix) -> Iterator[Finding]:
    fabric = any((sku := seen.sku(state)) is not None and sku.fabric for state in _states(seen))
    lines = [_line(str(at), row) for at, row in enumerate(matrix)]
    count = len(matrix)
    missing = [(a, b) for a in range(count) for b in range(a + 1, count) if matrix[a][b] is None and matrix[b][a] is None]
    if len(matrix[0]) != count:
        yield seen.unknown(f"the matrix has {count} rows and {len(matrix[0])} columns", part=test)
        return
    if missing and fabric:
        for a, b in missing[:8]:
            yield seen.found(
                "gpu-pair-unreachable", f"GPU {a} and GPU {b} do not reach each other", part=f"{a}-{b}", evidence=lines
            )
    slow = slow_of(matrix)
    for at, (value, usual) in slow.gpus.items():
        summary = f"{value:.0f} GB/s with nearly every peer, the others {usual:.0f} with each other"
        yield seen.found("gpu-peers-slow", summary, gpu=_gpu(seen, found, at), part=test, evidence=lines)
    for (a, b), (value, usual) in slow.pairs.items():
        summary = f"{value:.0f} GB/s between GPU {a} and GPU {b}, others reach {usual:.0f}: neither is slow with the rest"
        yield seen.found("gpu-pair-slow", summary, part=f"{a}-{b}", evidence=lines)
    if slow.mixed and fabric:
        summary = "pairs of GPUs behind NVSwitches differ so much that no one GPU or pair explains it"
        yield seen.found("gpu-fabric-uneven", summary, part=test, evidence=lines)
    elif slow.mixed:
        yield seen.absent("the node's GPUs are connected in different ways: a pair has no peers to compare with", part=test)
    values = [value for row in matrix for value in row if value is not None]
    sound = not (slow.gpus or slow.pairs or slow.mixed or (missing and fabric))
    yield from _whole(seen, found, test, values, lines, sound)


def _whole(
    seen: Seen, found: Bandwidths, test: str, values: Sequence[float], lines: Sequence[str], sound: bool
) -> Iterator[Finding]:
    """Compare all with what the product is known for; say ok only for what had something to be compared with."""
    if not values:
        yield seen.unknown("nvbandwidth gave no figures", part=test)
        return
    states = _states(seen)
    skus = {sku.product for state in states if (sku := seen.sku(state)) is not None}
    product = next(iter(skus)) if len(skus) == 1 else ""
    usual = usual_bandwidth(product, test) if product else None
    middle = median(values)
    if usual is not None and middle < EXPECTED * usual:
        summary = f"{middle:.1f} GB/s in the middle, {product} is known for {usual:.0f}"
        yield seen.found("bandwidth-below-usual", summary, part=test, evidence=lines)
    elif sound and usual is not None:
        yield seen.ok(f"{min(values):.1f} to {max(values):.1f} GB/s, {product} is known for {usual:.0f}", part=test)
    elif sound and len(values) > 1 and (test in _WORDS or len(values) > 2):
        yield seen.ok(f"{min(values):.1f} to {max(values):.1f} GB/s: none stands out", part=test)
    elif sound:
        summary = f"{middle:.1f} GB/s, and neither peers nor a known figure of this product to compare with"
        yield seen.unknown(
            summary, part=test, hint="say what your good nodes reach: bandwidth.csv in the folder of WORKBENCH_CATALOG"
        )


def _states(seen: Seen) -> Sequence[GpuState]:
    gpus = seen.value("gpus")
    return gpus.states if gpus is not None else ()


def _gpu(seen: Seen, found: Bandwidths, at: int) -> Gpu:
    """The GPU of a row: by the address that nvbandwidth printed, else by its number, since it was told to count in the order of the bus."""
    address = found.devices.get(at)
    for state in _states(seen):
        if address and state.gpu.pci and state.gpu.pci.rsplit(".", 1)[0] == address.rsplit(".", 1)[0]:
            return state.gpu
    if address:
        return Gpu(index=at, pci=address)
    return next((state.gpu for state in _states(seen) if state.gpu.index == at), Gpu(index=at))


def _line(name: str, row: Sequence[float | None]) -> str:
    return f"{name}: " + " ".join("N/A" if value is None else f"{value:.1f}" for value in row)
