"""Turn the NVLinks of each GPU into whether all are there and up, as many as the product has and as its peers, and without errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.parse.gpu_state import GpuState

__all__ = ["nvlink"]

# Errors that the hardware repaired by sending again or by bringing the link back: a trend. A recovery that failed is none.
_REPAIRED = ("replay_errors", "crc_flit_errors", "crc_data_errors", "receive_errors", "malformed_packet_errors")
_SERIOUS = ("recovery_errors", "integrity_errors")  # the link was down for a moment: worth a line from the first on
_FAILED = ("recovery_failed",)
# DCGM 3 and 4 call a link bad from one replay or recovery error on, and from 100 CRC errors a second on (common/DcgmGPUHardwareLimits.h);
# gcm from the first of any kind; links that work for weeks have some. Our own measure for a warning: this many repaired errors on one link
# since the counters began.
_MANY = 1000


@check("nvlink", "all NVLinks are up and count no errors", needs=("gpus",), cls="hardware/nvlink")
def nvlink(seen: Seen) -> Iterator[Finding]:
    """Compare each GPU's links with the product and with its peers."""
    states = seen.gpus.states
    usual: dict[str, int] = {}
    for product in {state.product for state in states}:
        counts = Counter(_up(state) for state in states if state.product == product and isinstance(state.get("nvlink"), list))
        usual[product] = max(counts, key=lambda count: (counts[count], count), default=0)
    for state in states:
        yield from _one(seen, state, usual.get(state.product, 0))


def _up(state: GpuState) -> int:
    return sum(1 for link in state.get("nvlink") or () if link.get("active") is True)


def _one(seen: Seen, state: GpuState, usual: int) -> Iterator[Finding]:
    sku, links = seen.sku(state), state.get("nvlink")
    if sku is not None and sku.nvlinks == 0:
        yield seen.absent(f"{state.product} has no NVLink", gpu=state.gpu)
        return
    if state.flag("mig.mode.current") and _up(state) == 0:
        yield seen.absent("MIG is on: its instances do not use NVLink", gpu=state.gpu)
        return
    if not isinstance(links, list):
        if not state.can("nvlink") and (sku is None or sku.nvlinks is None):
            yield seen.absent("this GPU has no NVLink, or no bridge", gpu=state.gpu)
        elif not state.can("nvlink") and sku is not None:
            yield seen.found(
                "nvlink-missing", f"{state.product} has {sku.nvlinks} links, and the driver says none", gpu=state.gpu
            )
        else:
            yield seen.unknown(f"the state of its links was not read: {state.reason('nvlink')}", gpu=state.gpu)
        return
    sound = True
    down = [link["link"] for link in links if link.get("active") is False]
    silent = [link for link in links if link.get("active") is None]
    wanted = sku.nvlinks if sku and sku.nvlinks else usual
    up = _up(state)
    if silent:
        sound = False
        said = f"links {_list(link['link'] for link in silent)} did not tell their state: {silent[0].get('error')}"
        yield seen.unknown(said, gpu=state.gpu)
    elif up == 0 and usual == 0 and (sku is None or not sku.fabric):
        yield seen.absent("no link is up on any GPU of this product: no bridge is plugged", gpu=state.gpu)
        return
    elif up < wanted:
        sound = False
        who = f"{sku.product} has" if sku and sku.nvlinks else "its peers have"
        code = "smi-nvlink-inactive" if down else "nvlink-missing"
        which = f"links {_list(down)} are down: " if down else ""
        yield seen.found(
            code, f"{which}{up} of {wanted} links are up ({who} {wanted})", gpu=state.gpu, evidence=_lines(links, down)
        )
    for link in links:
        failed = {key: link[key] for key in _FAILED if isinstance(link.get(key), int) and link[key]}
        repaired = sum(link[key] for key in _REPAIRED if isinstance(link.get(key), int))
        part = f"link {link['link']}"
        if failed:
            sound = False
            evidence = [f"{key} {value}" for key, value in failed.items()]
            yield seen.found(
                "smi-nvlink-recovery-failed", f"{part}: a recovery failed", gpu=state.gpu, part=part, evidence=evidence
            )
        elif repaired >= _MANY or any(link.get(key) for key in _SERIOUS):
            sound = False
            repaired += sum(link[key] for key in _SERIOUS if isinstance(link.get(key), int))
            evidence = [f"{key} {link[key]}" for key in (*_REPAIRED, *_SERIOUS) if link.get(key)]
            yield seen.found(
                "smi-nvlink-errors", f"{part}: {repaired} errors that were repaired", gpu=state.gpu, part=part, evidence=evidence
            )
    if sound:
        counted = any(isinstance(link.get(key), int) for link in links for key in (*_REPAIRED, *_SERIOUS, *_FAILED))
        more = "" if counted else "; their error counters cannot be had on this way"
        yield seen.ok(f"{up} links are up{more}", gpu=state.gpu)


def _list(numbers: Any) -> str:
    return ", ".join(str(number) for number in numbers)


def _lines(links: list[dict[str, Any]], down: list[int]) -> list[str]:
    return [f"link {link['link']} active={link.get('active')}" for link in links if not down or link["link"] in down]
