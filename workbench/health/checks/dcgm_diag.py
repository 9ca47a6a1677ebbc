"""Turn the subtests of a run of `dcgmi diag` into what failed on which GPU, what passed, and what was not tested at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import same
from workbench.model import CLASSES, Event, Gpu
from workbench.parse.dcgm_results import Subtest
from workbench.sources.node.dcgm import DiagRun

__all__ = ["dcgm_diag", "named"]

# severity of DCGM's error (dcgm_errors.h) → finding
_CODES = {
    "ISOLATE": "dcgm-diag-isolate",
    "RESET": "dcgm-diag-reset",
    "TRIAGE": "dcgm-diag-fail",
    "UNKNOWN": "dcgm-diag-fail",
    "MONITOR": "dcgm-diag-monitor",
    "CONFIG": "dcgm-diag-config",
}
# weight from which the parser takes a failure for this GPU's fault whatever DCGM calls it: minutes of thermal violations, or a limit
# that all other GPUs of the node keep
_SURE = 0.6


@check(
    "dcgm-diag",
    "the subtests of DCGM's diagnostic pass",
    needs=("dcgm-diag",),
    wants=("gpus",),
    contexts=("idle",),
    cls="hardware/gpu-other",
    required=False,
    required_when=("health.dcgm", "health.diag"),
)
def dcgm_diag(seen: Seen) -> Iterator[Finding]:
    """Judge each subtest: a failure by the severity of DCGM's error; one that was skipped or not run is said, and never ok."""
    run: DiagRun = seen.value("dcgm-diag")
    told: set[tuple[str, int | None]] = set()
    for event in run.events:
        if event.signature == "dcgmi-runtime-error":
            continue
        test, gpu = str(event.data.get("test") or ""), event.gpu
        told.add((test, gpu.index if gpu else None))
        yield _failed(seen, event, test, run.level)
    if run.diag.error:
        yield seen.unknown(f"the diagnostic broke off: {run.diag.error[:300]}", hint="see /var/log/nvidia-dcgm/nvvs.log")
    if not any(one.status in ("pass", "fail", "warn") for one in run.diag.subtests):
        yield seen.unknown(f"none of the {len(run.diag.subtests)} subtests of dcgmi diag -r {run.level} came to a result")
    tests: dict[str, list[Subtest]] = {}
    for one in run.diag.subtests:
        tests.setdefault(one.test, []).append(one)
    for test, mine in tests.items():
        yield from _test(seen, run.level, test, mine, told)


def _failed(seen: Seen, event: Event, test: str, level: int) -> Finding:
    message = str(event.data.get("message") or "").strip()
    error = str(event.data.get("error") or "")
    severity = str(event.data.get("severity") or "")
    warned = str(event.data.get("status") or "").lower().startswith("warn")
    code = _CODES.get(severity, "dcgm-diag-monitor" if warned else "dcgm-diag-fail")
    if event.role == "context" and severity != "CONFIG":
        code = "dcgm-diag-monitor"
    elif severity == "MONITOR" and not warned and event.role == "cause" and (event.weight or 0.0) >= _SURE:
        code = "dcgm-diag-fail"
    summary = f"{test} of dcgmi diag -r {level} failed" + (f": {message[:300]}" if message else "")
    evidence = [word for word in (f"{error} ({severity})" if error else "", event.text) if word]
    one = seen.found(code, summary, gpu=named(seen, event.gpu), part=test, evidence=evidence)
    return replace(
        one, cls=event.cls if event.cls in CLASSES else one.cls, action=str(event.data.get("remediation") or one.action)
    )


def _test(seen: Seen, level: int, test: str, mine: Sequence[Subtest], told: set[tuple[str, int | None]]) -> Iterator[Finding]:
    by: dict[str, list[Subtest]] = {}
    for one in mine:
        by.setdefault(one.status, []).append(one)
    for one in (*by.pop("fail", ()), *by.pop("warn", ())):
        # what has no event of its own: a CPU, a switch, the test as a whole
        if (test, one.gpu) in told or (one.gpu is None and not one.entity and any(name == test for name, _ in told)):
            continue
        said = f": {one.said[0][:300]}" if one.said else ""
        code = "dcgm-diag-fail" if one.status == "fail" else "dcgm-diag-monitor"
        gpu = Gpu(index=one.gpu) if one.gpu is not None else None
        yield seen.found(
            code, f"{test} of dcgmi diag -r {level} failed{said}", gpu=named(seen, gpu), part=f"{test} {one.entity}".strip()
        )
    passed = by.pop("pass", [])
    if passed:
        where = ", ".join(one.entity for one in passed if one.entity)
        yield seen.ok(f"{test} passed" + (f" on {where}" if where else ""), part=test)
    for one in by.pop("skip", []):
        why = f": {one.said[0][:200]}" if one.said else ", and does not say why"
        yield seen.absent(f"DCGM skipped {test}{why}", gpu=_gpu(seen, one), part=test)
    for status, rest in by.items():
        for one in rest:
            why = f": {one.said[0][:200]}" if one.said else ""
            yield seen.unknown(f"{test} has no result ({status}){why}", gpu=_gpu(seen, one), part=test)


def _gpu(seen: Seen, one: Subtest) -> Gpu | None:
    return named(seen, Gpu(index=one.gpu)) if one.gpu is not None else None


def named(seen: Seen, gpu: Gpu | None) -> Gpu | None:
    """Return a GPU of DCGM's with the names that the driver knows of it."""
    gpus = seen.value("gpus")
    if gpu is None or gpus is None:
        return gpu
    return next((state.gpu for state in gpus.states if same(state.gpu, gpu)), gpu)
