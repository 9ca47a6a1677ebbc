"""Turn the state of the NVLink fabric and of its software into whether GPUs can reach each other over NVSwitches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import told
from workbench.parse.gpu_state import GpuState
from workbench.sources.node.fabric_services import FabricServices

__all__ = ["fabric"]


@check(
    "fabric",
    "the NVLink fabric is set up, and its services run",
    needs=("gpus",),
    wants=("fabric-services",),
    cls="driver/fabric-manager",
)
def fabric(seen: Seen) -> Iterator[Finding]:
    """Judge each GPU's fabric state, the clique that all should share, and the services where the machine needs them."""
    behind = [state for state in seen.gpus.states if _behind(seen, state)]
    services: FabricServices | None = seen.value("fabric-services")
    switches = services.switches if services else None
    if not behind and not switches:
        known = all(seen.sku(state) for state in seen.gpus.states)
        if known or services is not None:
            yield seen.absent("no GPU here is behind an NVSwitch")
        else:
            yield seen.unknown("whether these products are behind an NVSwitch is not known", hint="add them to skus.csv")
    for state in behind:
        yield from _state(seen, state)
    cliques = Counter(state.get("fabric.clique") for state in behind if state.get("fabric.clique") is not None)
    if len(cliques) > 1:
        usual = cliques.most_common(1)[0][0]
        for state in behind:
            if (mine := state.get("fabric.clique")) not in (None, usual):
                yield seen.found("fabric-clique-differs", f"it is in clique {mine}, its peers in {usual}", gpu=state.gpu)
    if behind or switches:
        yield from _services(seen, services, behind)


def _behind(seen: Seen, state: GpuState) -> bool:
    told = str(state.get("fabric.state") or "")
    if told:
        return told.lower() != "not supported"
    sku = seen.sku(state)
    return bool(sku and sku.fabric and state.can("fabric", "fabric.state"))


def _state(seen: Seen, state: GpuState) -> Iterator[Finding]:
    bad = [finding for finding in told(seen, state) if finding.status != "ok"]
    yield from bad
    said, status = state.get("fabric.state"), state.get("fabric.status")
    if bad:
        return
    if said is None:
        yield seen.unknown(f"the state of the fabric was not told: {state.reason('fabric')}", gpu=state.gpu)
    elif str(said).lower() != "completed":
        yield seen.unknown(f"the fabric's state is {said!r}", gpu=state.gpu)
    elif status not in (0, None):
        yield seen.found("smi-fabric-error", f"the fabric was set up with an error: {status}", gpu=state.gpu)
    elif status is None:
        yield seen.unknown("whether the fabric was set up without error was not told", gpu=state.gpu)
    else:
        clique = state.get("fabric.clique")
        yield seen.ok("the fabric is set up" + (f", clique {clique}" if clique is not None else ""), gpu=state.gpu)


def _services(seen: Seen, services: FabricServices | None, behind: list[GpuState]) -> Iterator[Finding]:
    if services is None:
        yield seen.unknown(
            "whether Fabric Manager runs is not known: " + seen.readings["fabric-services"].detail, part="services"
        )
        return
    manager, imex = services.manager, services.imex
    if manager.runs:
        yield seen.ok("Fabric Manager runs", part=manager.unit)
    elif services.switches or manager.state == "failed" or manager.enabled:
        what = f"{manager.state} {manager.said}".strip()
        yield seen.found(
            "fabric-manager-inactive", f"Fabric Manager does not run ({what}): no new job can use NVLink", part=manager.unit
        )
    elif services.switches is None:
        yield seen.unknown("Fabric Manager does not run, and whether there are NVSwitches could not be seen", part=manager.unit)
    else:  # a guest, or an NVLink rack whose switches are elsewhere
        yield seen.absent("no NVSwitch of its own: Fabric Manager runs elsewhere", part=manager.unit)
    if imex.runs:
        yield seen.ok("IMEX runs", part=imex.unit)
    elif imex.state == "failed" or imex.enabled:
        yield seen.found(
            "imex-inactive", f"IMEX should run and does not ({imex.state} {imex.said})".replace(" )", ")"), part=imex.unit
        )
