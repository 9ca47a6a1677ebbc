"""Turn the GPUs that are here and those that were here at an earlier boot into what was swapped, moved, added or lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.inventory import changes, inventory
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.model import Gpu

__all__ = ["gpu_inventory"]

_CODES = {
    "gone": "gpu-gone",
    "new": "gpu-new",
    "swapped": "gpu-swapped",
    "moved": "gpu-moved",
    "serial": "gpu-serial-differs",
}


@check(
    "gpu-inventory",
    "the GPUs are those that were here before, all of one product, numbered without gaps",
    needs=("gpus",),
    wants=("kept-gpus", "machine"),
    required=False,
    cls="platform/config",
)
def gpu_inventory(seen: Seen) -> Iterator[Finding]:
    """Compare with what an earlier run kept (`workbench.health.history`); nothing is written here."""
    states = seen.gpus.states
    products = Counter(state.product for state in states if state.product)
    if len(products) > 1:
        mix = ", ".join(f"{count} × {product}" for product, count in products.most_common())
        yield seen.found("gpu-product-mix", f"GPUs of different products: {mix}", evidence=[mix])
    numbers = sorted(state.gpu.index for state in states if state.gpu.index is not None)
    # an output of some of the GPUs (`nvidia-smi -i 3`) says nothing of the others
    whole = seen.gpus.count is not None
    if gaps := sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers)) if whole else []:
        yield seen.found("smi-index-gap", f"no GPU has the number {', '.join(map(str, gaps))}", evidence=[f"numbers {numbers}"])
    reading = seen.readings["kept-gpus"]
    if reading.ending == "absent":
        yield seen.absent(f"{reading.detail}: nothing to compare with")
        return
    if not reading.usable:
        yield seen.unknown(reading.detail, hint=reading.hint)
        return
    machine = seen.value("machine")
    boot = machine.boot_id if machine else ""
    now = inventory(seen.gpus, boot_id=boot, now=seen.now)
    if nameless := [one for one in now["gpus"] if not one["uuid"]]:
        yield seen.unknown(f"{len(nameless)} GPUs do not tell their UUID, so they cannot be compared")
        return
    kept = reading.value
    when = "in this boot" if boot and kept.get("boot_id") == boot else "at an earlier boot"
    found = changes([one for one in kept["gpus"] if isinstance(one, dict)], now["gpus"])
    for kind, one, said in found:
        gpu = next((state.gpu for state in states if state.gpu.uuid == one["uuid"]), Gpu(None, one["uuid"], one.get("pci")))
        yield seen.found(_CODES[kind], f"{said} {when}", gpu=gpu, part=f"serial {one['serial']}" if one.get("serial") else "")
    if not found and len(products) < 2 and not gaps:
        yield seen.ok(f"the same {len(states)} GPUs as {when}")
