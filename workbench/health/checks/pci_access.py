"""Turn the access control of the PCIe switches above GPUs into whether peers can talk past the processor."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.parse.pci_config import DOWNSTREAM

__all__ = ["pci_access"]


@check(
    "pci-access",
    "PCIe switches let GPUs and network adapters talk to each other",
    needs=("pci-access", "machine"),
    contexts=("allocation", "idle"),
    cls="platform/config",
    required=False,
)
def pci_access(seen: Seen) -> Iterator[Finding]:
    """Judge the switch ports above GPUs; in a virtual machine the switches are the host's, and it needs their access control."""
    ports = {address: port for address, port in seen.value("pci-access").items() if port.kind == DOWNSTREAM}
    if seen.value("machine").kind == "vm":
        yield seen.absent("a virtual machine: its host decides")
    elif not ports:
        yield seen.absent("no PCIe switch above a GPU")
    elif bad := sorted(address for address, port in ports.items() if port.redirects):
        summary = f"{len(bad)} of {len(ports)} ports of PCIe switches send the traffic between peers through the processor"
        hint = "switch off IO virtualization in the firmware, or access control by setpci at each boot, as NCCL's guide says"
        yield seen.found(
            "acs-redirects", summary, evidence=[f"{address}: ACSCtl ReqRedir or CmpltRedir" for address in bad], hint=hint
        )
    else:
        yield seen.ok(f"{len(ports)} ports of PCIe switches above GPUs redirect nothing")
