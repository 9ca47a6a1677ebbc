"""Turn an all-reduce over the node's GPUs into wrong values, a hang, a failure or too little bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.catalog.bandwidth import usual_bandwidth
from workbench.health.checks.gpu_bandwidth import EXPECTED
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.sources.node.bandwidth import NcclOutcome

__all__ = ["nccl"]

_TEST = "all_reduce_perf"


@check(
    "nccl",
    "an all-reduce over the node's GPUs is right, and fast",
    needs=("nccl-tests",),
    wants=("gpus",),
    contexts=("idle",),
    cls="hardware/nvlink",
    required=False,
)
def nccl(seen: Seen) -> Iterator[Finding]:
    """Judge one run of all_reduce_perf: values that are wrong count more than anything else it says."""
    outcome: NcclOutcome = seen.value("nccl-tests")
    run, gpus = outcome.run, outcome.gpus
    lines = [
        f"{one.size} B: {one.busbw:g} GB/s, wrong {one.wrong if one.wrong is not None else 'not checked'}" for one in run.sizes
    ]
    if run.wrong:
        sizes = [str(one.size) for one in run.sizes if one.wrong]
        where = f" (at {', '.join(sizes[:3])} B)" if sizes else ""
        yield seen.found("nccl-wrong", f"{run.wrong} values of an all-reduce over {gpus} GPUs are wrong{where}", evidence=lines)
    if outcome.hung:
        last = f", the last size that came back was {run.sizes[-1].size} B" if run.sizes else ""
        yield seen.found(
            "nccl-hang", f"an all-reduce over {gpus} GPUs did not end within {outcome.seconds:.0f} s{last}", evidence=lines
        )
        return
    # it ends with 1 also when values were wrong: said already
    if (run.failures or outcome.code != 0) and not run.wrong:
        why = run.failures[0] if run.failures else outcome.said or f"exit code {outcome.code}"
        if outcome.code != 0:
            yield seen.found("nccl-failed", f"an all-reduce over {gpus} GPUs failed: {why[:300]}", evidence=run.failures)
            return
    if run.wrong is None:
        yield seen.unknown("the values were not checked by this build of all_reduce_perf", part="values")
    elif not run.wrong:
        yield seen.ok(f"no value of an all-reduce over {gpus} GPUs is wrong", part="values")
    yield from _bandwidth(seen, outcome, lines)


def _bandwidth(seen: Seen, outcome: NcclOutcome, lines: list[str]) -> Iterator[Finding]:
    largest = outcome.run.largest
    gpus = seen.value("gpus")
    skus = {sku.product for state in (gpus.states if gpus is not None else ()) if (sku := seen.sku(state)) is not None}
    usual = usual_bandwidth(next(iter(skus)), _TEST) if len(skus) == 1 else None
    if largest is None:
        yield seen.unknown("no size was measured", part="bandwidth")
        return
    told = f"{largest.busbw:.0f} GB/s at {largest.size} B over {outcome.gpus} GPUs"
    if usual is None:
        hint = "say what your good nodes reach: bandwidth.csv in the folder of WORKBENCH_CATALOG"
        yield seen.unknown(f"{told}, and no known figure of this product to compare with", part="bandwidth", hint=hint)
    elif largest.busbw < EXPECTED * usual:
        yield seen.found(
            "bandwidth-below-usual", f"{told}, {next(iter(skus))} is known for {usual:.0f}", part="bandwidth", evidence=lines
        )
    else:
        yield seen.ok(f"{told}, {next(iter(skus))} is known for {usual:.0f}", part="bandwidth")
