"""Turn the PCIe ports above GPUs into one reading: which of them send the traffic between peers through the processor."""

from __future__ import annotations

import re
from collections.abc import Mapping

from workbench.parse.ids import pci
from workbench.parse.pci_config import PciPort, parse_config
from workbench.sources.contract import Deadline
from workbench.sources.node.gpus import on_bus
from workbench.sources.node.world import Unread, Way, World, reader

__all__: list[str] = []

_DEVICES = "/sys/bus/pci/devices"


def _ports(world: World, deadline: Deadline) -> Mapping[str, PciPort]:
    """The ports above any GPU by address."""
    gpus = on_bus(world)
    if not gpus:
        raise Unread("absent", "no NVIDIA GPU on the PCI bus")
    above: dict[str, PciPort] = {}
    cut = 0
    for one in gpus:
        parts = world.path(f"{_DEVICES}/{one['pci']}").resolve().parts[:-1]
        for address in (
            pci(part) for part in parts if re.fullmatch(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", part)
        ):
            if address is None or address in above:
                continue
            try:
                config = world.path(f"{_DEVICES}/{address}/config").read_bytes()
            except OSError as error:
                raise Unread.of(error, f"{_DEVICES}/{address}/config") from None
            port = parse_config(config)
            if port is None:
                cut += 1
            else:
                above[address] = port
    if cut:
        raise Unread("not-executable", f"the kernel shows only the begin of {cut} ports' configuration", "run as root")
    return above


reader("pci-access", "the PCIe ports above GPUs and their access control", seconds=5.0, ways=(Way("/sys/bus/pci", _ports),))
