"""Turn the many spellings of PCI addresses, UUIDs and node names into one canonical form each."""

from __future__ import annotations

import re

__all__ = ["pci", "same_node", "same_pci", "short_node", "uuid"]

# 0000:3b:00.0 | 00000000:3B:00.0 | 0000:3b:00 | 3b:00.0 | PCI:0000:3b:00 | 0009:01:00 | 103b:00:00.0
_PCI = re.compile(r"(?:PCI:)?(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?$")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def pci(text: str | None) -> str | None:
    """
    Return the canonical PCI address, e.g. ``0000:3b:00.0``, or None when the text is none.

    The domain keeps four digits when it fits in them; a missing function is 0, since a GPU is function 0 of its slot.
    """
    if not text:
        return None
    found = _PCI.search(text.strip())
    if not found:
        return None
    domain = (found[1] or "0").lstrip("0").lower().rjust(4, "0")
    return f"{domain}:{found[2].lower()}:{found[3].lower()}.{found[4] or '0'}"


def same_pci(one: str | None, other: str | None) -> bool:
    """Tell whether two addresses name the same device, whatever their spelling and function number."""
    a, b = pci(one), pci(other)
    return a is not None and b is not None and a.rsplit(".", 1)[0] == b.rsplit(".", 1)[0]


def uuid(text: str | None) -> str | None:
    """Return the GPU or MIG UUID in a text, or None."""
    found = _UUID.search(text or "")
    return found[0] if found else None


def short_node(name: str) -> str:
    """Return the host part of a node name: ``gpu-1.cluster.local`` becomes ``gpu-1``; addresses stay whole."""
    return name if re.fullmatch(r"[\d.]+|[0-9a-fA-F:]+", name) else name.split(".")[0]


def same_node(one: str | None, other: str | None) -> bool:
    """Tell whether two names mean the same node: equal, or equal in their host part when one of them has no domain."""
    if not one or not other:
        return False
    if one == other:
        return True
    return ("." not in one or "." not in other) and short_node(one) == short_node(other)
