"""Turn what `smartctl -j` prints of a disk into its own verdict, wear and error counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CRITICAL_WARNINGS", "Smart", "parse_smart"]

# NVMe base specification, SMART / Health Information log, byte 0 (as in libnvme's enum nvme_smart_crit)
CRITICAL_WARNINGS = {
    0x01: "spare blocks are below their threshold",
    0x02: "temperature outside its limits",
    0x04: "reliability is degraded by media or internal errors",
    0x08: "all media is read-only",
    0x10: "the backup of its volatile memory failed",
    0x20: "its persistent memory region is read-only or unreliable",
}
_HOT = 0x02
# ATA attributes by number: sectors that wait for a write to be replaced, and those that could not be read offline
_PENDING, _UNCORRECTABLE, _REALLOCATED = 197, 198, 5
_NOT_OPENED = 0b11  # smartctl(8), exit status: the command line was wrong, or the device could not be opened


@dataclass(frozen=True, slots=True)
class Smart:
    """
    SMART of one disk.

    Attributes
    ----------
    passed : bool or None
        Its own verdict; None when it gave none.
    warnings : tuple of str
        Critical warnings of an NVMe disk but heat, and attributes of another below their threshold now.
    hot : bool
        Whether it warns of its temperature.
    used : int or None
        Percent of the writes that it is made for; may be beyond 100.
    media_errors : int or None
        Errors that it could not correct, in its life.
    pending : int or None
        Sectors that could not be read and wait.
    reallocated : int or None
        Sectors replaced in its life.
    said : str
        What smartctl complained of.
    """

    passed: bool | None
    warnings: tuple[str, ...] = ()
    hot: bool = False
    used: int | None = None
    media_errors: int | None = None
    pending: int | None = None
    reallocated: int | None = None
    said: str = ""

    @property
    def told(self) -> bool:
        """Whether the disk told anything of its health."""
        return self.passed is not None or self.used is not None


def parse_smart(text: str) -> Smart | None:
    """
    Return what ``smartctl -H -A -j`` says; None for what is no whole answer.

    A disk that has no SMART, or that smartctl could not open, gives an answer that tells nothing: `Smart.told` is False and `Smart.said` why.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("smartctl"), dict):
        return None
    messages = document["smartctl"].get("messages")
    said = (
        "; ".join(str(one.get("string", "")) for one in messages if isinstance(one, dict)) if isinstance(messages, list) else ""
    )
    status = document["smartctl"].get("exit_status")
    if isinstance(status, int) and status & _NOT_OPENED:
        return Smart(None, said=said or f"smartctl ended with {status}")
    verdict = _below(document, "smart_status").get("passed")
    passed = verdict if isinstance(verdict, bool) else None
    if log := _below(document, "nvme_smart_health_information_log"):
        bits = _int(log, "critical_warning") or 0
        warnings = tuple(words for bit, words in CRITICAL_WARNINGS.items() if bits & bit and bit != _HOT)
        return Smart(passed, warnings, bool(bits & _HOT), _int(log, "percentage_used"), _int(log, "media_errors"), said=said)
    rows = _below(document, "ata_smart_attributes").get("table")
    table = {row.get("id"): row for row in rows if isinstance(row, dict)} if isinstance(rows, list) else {}
    failing = tuple(f"{row.get('name')} is below its threshold" for row in table.values() if row.get("when_failed") == "now")
    pending = [number for at in (_PENDING, _UNCORRECTABLE) if (number := _raw(table, at)) is not None]
    defects = _int(document, "scsi_grown_defect_list")
    return Smart(
        passed,
        failing,
        pending=max(pending, default=None),
        reallocated=defects if defects is not None else _raw(table, _REALLOCATED),
        said=said,
    )


def _below(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _int(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _raw(table: Mapping[Any, Mapping[str, Any]], number: int) -> int | None:
    return _int(_below(table[number], "raw"), "value") if number in table else None
