"""Turn what the firmware and the kernel say of the machine into one reading: virtual or not, which model, since when it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["Machine"]

# systemd, src/basic/virt.c: vendors and products of firmware that mean a virtual machine
_VIRTUAL = re.compile(
    r"KVM|QEMU|VMware|VirtualBox|Xen|Bochs|Parallels|Virtual Machine|Google Compute Engine|OpenStack|Alibaba Cloud ECS|HVM domU",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """`kind` is ``vm``, ``bare-metal`` or empty when not known; `model` vendor and product; `boot_id` that of the kernel."""

    kind: str
    model: str
    boot_id: str


def _said(world: World, name: str) -> str:
    try:
        return world.text(name, 1 << 16).strip()
    except Unread:
        return ""


def _machine(world: World, deadline: Deadline) -> Machine:
    vendor, product = (_said(world, f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    flags = re.search(r"^flags\s*:(.*)$", _said(world, "/proc/cpuinfo"), re.M)
    metal = re.search(r"\.metal(?:-\w+)?$", product)  # p5.48xlarge is a guest, m5.metal is none
    kind = ""
    if flags:
        kind = "vm" if "hypervisor" in flags[1].split() else "bare-metal"
    elif vendor or product:
        virtual = _VIRTUAL.search(f"{vendor} {product}") or (vendor == "Amazon EC2" and not metal)
        kind = "vm" if virtual else "bare-metal"
    boot = _said(world, "/proc/sys/kernel/random/boot_id")
    if not (kind or boot):
        raise Unread("missing", "neither the firmware's nor the processor's words about this machine can be read")
    return Machine(kind, " ".join(word for word in (vendor, product) if word), boot)


reader("machine", "whether it is a virtual machine, and its boot", seconds=3.0, ways=(Way("/proc and /sys", _machine),))
