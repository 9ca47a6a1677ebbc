"""Turn the PCIe link of each GPU and the errors that the kernel logged on its way into whether it moves data as fast as its peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from workbench.health.finding import Finding
from workbench.health.link_log import link_troubles
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import codes, same, since_boot
from workbench.model import Event
from workbench.parse.gpu_state import GpuState

__all__ = ["pcie"]

_BUSY = 50.0  # percent; an idle GPU lowers its link's generation by design, never its width
# DCGM's background health check warns above 8 replays a minute (DCGM_LIMIT_MAX_PCIREPLAY_RATE in dcgm_structs.h)
_REPLAYS_A_MINUTE = 8.0


@check(
    "pcie",
    "each GPU's PCIe link has its width and counts no errors",
    needs=("gpus",),
    wants=("kernel", "pcie-paths"),
    cls="hardware/pcie",
)
def pcie(seen: Seen) -> Iterator[Finding]:
    """Compare width and generation with what GPU and slot can do, with the product and with the peers; take AER from the kernel log."""
    states = seen.gpus.states
    widths = Counter((state.product, state.number("pcie.width")) for state in states if state.number("pcie.width"))
    errors = _errors(seen)
    for state in states:
        found = [*_link(seen, state, widths), *_replays(seen, state), *_logged(seen, state, errors)]
        yield from found
        if any(finding.status in ("critical", "warning", "unknown") for finding in found):
            continue
        if found:
            continue
        generation, width = state.number("pcie.generation"), state.number("pcie.width")
        log = seen.readings["kernel"]
        more = "" if log.usable else "; the kernel log could not be read for AER"
        speed = f" at generation {generation:.0f}" if generation and _busy(state) else ""
        sku = seen.sku(state)
        # a slot of fewer lanes, or a GPU beside its own CPU (GH200, GB200), is built so: known, and no fault
        built = f", the product can do x{sku.pcie_width}" if sku and sku.pcie_width and (width or 0) < sku.pcie_width else ""
        yield seen.ok(f"x{width:.0f}{built}{speed}, no errors{more}", gpu=state.gpu)


def _busy(state: GpuState) -> bool:
    return (state.number("utilization.gpu") or 0.0) >= _BUSY


def _link(seen: Seen, state: GpuState, widths: Mapping[tuple[str, float | None], int]) -> Iterator[Finding]:
    width, most = state.number("pcie.width"), state.number("pcie.width_max")
    if width is None:
        if state.can("pcie.width"):
            yield seen.unknown(f"the width of its link was not told: {state.reason('pcie.width')}", gpu=state.gpu)
        else:
            yield seen.absent("this GPU is on no PCIe link that can be seen", gpu=state.gpu)
        return
    peers = {value: count for (product, value), count in widths.items() if product == state.product and value}
    usual = max(peers, key=lambda value: (peers[value], value))
    evidence = [f"pcie.width = {width:.0f}", f"pcie.width_max = {most}", f"peers: {peers}"]
    if width < usual:
        yield seen.found(
            "pcie-narrower-than-peers", f"x{width:.0f}, its peers have x{usual:.0f}", gpu=state.gpu, evidence=evidence
        )
    elif most is not None and width < most:
        # a card in a narrow slot is built so, and then its peers are narrow, too
        code = "pcie-narrow" if sum(peers.values()) > 1 and peers[width] > 1 else "smi-link-degraded"
        yield seen.found(code, f"x{width:.0f} where GPU and slot can do x{most:.0f}", gpu=state.gpu, evidence=evidence)
    now, able = state.number("pcie.generation"), state.number("pcie.generation_max")
    if now is not None and able is not None and now < able and _busy(state):
        summary = f"generation {now:.0f} of {able:.0f} while it is busy"
        yield seen.found(
            "smi-link-gen-low", summary, gpu=state.gpu, evidence=[f"utilization {state.number('utilization.gpu'):.0f} %"]
        )
    ables = Counter(other.number("pcie.generation_max") for other in seen.gpus.states if other.product == state.product)
    best = max((value for value in ables if value is not None), default=None)
    if able is not None and best is not None and able < best:
        yield seen.found(
            "pcie-slower-than-peers", f"its link can do generation {able:.0f}, those of its peers {best:.0f}", gpu=state.gpu
        )


def _replays(seen: Seen, state: GpuState) -> Iterator[Finding]:
    count, log = state.number("pcie.replays"), seen.value("kernel")
    if not count or log is None or log.boot is None:
        return
    minutes = max((seen.now - log.boot) / 60.0, 1.0)
    if count / minutes > _REPLAYS_A_MINUTE:
        summary = f"{count:.0f} replays since the driver counts, {count / minutes:.0f} a minute since boot"
        yield seen.found("smi-pcie-replay", summary, gpu=state.gpu)


def _errors(seen: Seen) -> list[Event]:
    log = seen.value("kernel")
    return since_boot(log, codes("pcie")) if log is not None else []


def _logged(seen: Seen, state: GpuState, errors: Sequence[Event]) -> Iterator[Finding]:
    paths = seen.value("pcie-paths") or {}
    above = set(paths.get(state.gpu.pci, ()))
    silent = _silent(seen)
    mine: dict[str, list[Event]] = {}
    for event in errors:
        device = str(event.data.get("device") or "")
        own = state.gpu.pci and device.rsplit(".", 1)[0] == state.gpu.pci.rsplit(".", 1)[0]
        # which port is above which GPU was not kept: a port in trouble and one GPU that does not answer belong together
        guessed = not paths and event.gpu is None and len(silent) == 1 and state in silent
        # the port at the other end logs the link's errors, too; so does a switch above, which its other GPUs share
        if own or same(event.gpu, state.gpu) or device in above or guessed:
            mine.setdefault(event.signature, []).append(event)
    known = state.number("pcie.width") is not None
    for code, summary, events in link_troubles(mine, seen.now, width_known=known, silent=state in silent):
        yield seen.found(code, summary, gpu=state.gpu, evidence=[event.text for event in events[:3]], since=events[0].time)


def _silent(seen: Seen) -> list[GpuState]:
    """The GPUs that the driver's tool knows of and cannot open."""
    refused = [event for event in seen.gpus.events if event.signature.startswith("smi-handle")]
    return [state for state in seen.gpus.states if any(same(event.gpu, state.gpu) for event in refused)]
