"""Turn the configuration space of a PCIe device into what kind of port it is and which access control it does."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DOWNSTREAM", "PciPort", "parse_config"]

# PCI Express base specification: capability 0x10, bits 7:4 of its flags
_KINDS = {0: "endpoint", 4: "root port", 5: "upstream port", 6: "downstream port"}
DOWNSTREAM = "downstream port"  # of a switch: where GPUs that share the switch meet
_ACS = 0x000D  # extended capability: Access Control Services
_REDIRECT = 0b1100  # its control register: P2P request redirect, P2P completion redirect


@dataclass(frozen=True, slots=True)
class PciPort:
    """A PCIe function: its kind, and whether it sends what peers say to each other up to the processor (None without access control)."""

    kind: str
    redirects: bool | None


def parse_config(config: bytes) -> PciPort | None:
    """
    Return what a configuration space says; None when it is cut off (only root is shown more than 64 bytes) or reads as all ones, as that of a
    device that is gone. A device of conventional PCI has 256 bytes and no access control.
    """
    if len(config) < 256 or config[:2] == b"\xff\xff":
        return None
    kind, at = "", config[0x34] & 0xFC if config[0x06] & 0x10 else 0
    for _ in range(48):  # a chain that closes upon itself would never end
        if at < 0x40:
            break
        if config[at] == 0x10:
            kind = _KINDS.get(config[at + 2] >> 4, "other")
        at = config[at + 1] & 0xFC
    if len(config) < 4096:
        return None if kind else PciPort("", None)
    at = 0x100
    for _ in range(480):
        head = int.from_bytes(config[at : at + 4], "little")
        if head in (0, 0xFFFFFFFF):
            break
        if head & 0xFFFF == _ACS:
            return PciPort(kind, bool(config[at + 6] & _REDIRECT))
        at = head >> 20 & 0xFFC
        if at < 0x100:
            break
    return PciPort(kind, None)
