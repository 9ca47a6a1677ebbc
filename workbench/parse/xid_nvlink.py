"""Turn the register words of NVLink errors (Xid 74 and 144-150) into what they mean and what NVIDIA's tables say to do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from workbench import catalog

__all__ = ["register_bits", "unit_error"]

# Xid 74 up to Hopper: (register, bits) → kind, meaning. Registers 1, 3, 4 and 5 of the seven are valid.
# Source: NVIDIA Xid catalog, workflow for NVLink errors (docs.nvidia.com/deploy/xid-errors, WORKFLOW_NVLINK_ERR), own words.
_BITS: tuple[tuple[int, tuple[int, ...], str, str], ...] = (
    (0, (0, 23, 30), "ignore", "no consequence"),
    (0, (1, 20), "secondary", "follows another error"),
    (0, (4, 5), "ecc", "ECC or parity fault of the link unit"),
    (0, (8, 9, 12, 16, 17, 24, 28), "link", "possible fault of the link: connection, seating"),
    (0, (21, 22), "signal", "marginal signal on the channel"),
    (0, (27, 29), "repeat", "matters when it repeats"),
    (2, (0, 1, 2, 6), "ecc", "ECC or parity fault of the link unit"),
    (2, (13,), "unexpected", "not expected in production"),
    (2, (16, 19), "repeat", "field diagnostics when it repeats"),
    (2, (17, 18), "repeat", "matters when it repeats"),
    (3, (16, 17), "secondary", "follows another error"),
    (3, (18,), "secondary", "follows another error; the fabric needs a reset"),
    (4, (18, 19, 21, 22, 24, 25, 27, 28), "ecc", "ECC or parity fault of the link unit"),
    (4, (20, 23, 26, 29), "threshold", "corrected errors passed a threshold; work goes on"),
)


def register_bits(words: Sequence[int]) -> list[tuple[str, str]]:
    """Return (kind, meaning) of the bits set in the seven words of an Xid 74; unknown bits give nothing."""
    found: list[tuple[str, str]] = []
    for register, bits, kind, meaning in _BITS:
        if register < len(words) and any(words[register] >> bit & 1 for bit in bits) and (kind, meaning) not in found:
            found.append((kind, meaning))
    return found


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[int, frozenset[str], tuple[tuple[int, int], ...], int, dict[str, str]], ...]:
    rows = []
    for row in catalog.table("xid_nvlink5_decode"):
        layouts = []
        for key in ("intrinfo_pattern_r575_on", "intrinfo_pattern_before_r575"):
            pattern = row.get(key, "")
            care = int("".join("0" if bit == "-" else "1" for bit in pattern) or "0", 2)
            value = int(pattern.replace("-", "0") or "0", 2)
            layouts.append((care, value))
        rows.append((int(row["xid"]), frozenset(row["unit"].split("/")), tuple(layouts), int(row["error_status"], 16), dict(row)))
    return tuple(rows)


def _rank(row: dict[str, str]) -> int:
    action = row.get("action_immediate", "")
    return {"IGNORE": 0, "": 0, "XID_154_EVAL": 1}.get(action, 2)


def unit_error(code: int, unit: str, words: Sequence[int]) -> dict[str, Any]:
    """
    Return what the table of NVLink 5 errors says of one event.

    Parameters
    ----------
    code : int
        144 to 150.
    unit : str
        Unit as printed, e.g. ``NETIR_LINK_EVT``.
    words : sequence of int
        The words in parentheses: interrupt information, error status, then detail.

    Returns
    -------
    dict
        ``layout`` (``r575`` or ``before-r575``), ``action``, ``follow_up``, ``table_severity``, ``side`` (HW, SW …); empty
        when no row fits. The sub-code moved from bits 9:5 to bits 6:0 in R575: the layout whose pattern fits the word is taken.
    """
    if not words:
        return {}
    info, status = words[0], words[1] if len(words) > 1 else 0
    best: tuple[int, int, dict[str, str]] | None = None
    for xid, units, layouts, mask, row in _rows():
        if xid != code or unit.upper() not in units:
            continue
        if not (status & mask if mask and status else status == mask):
            continue
        for number, (care, value) in enumerate(layouts):
            if info & care == value:
                candidate = (_rank(row), -number, row)
                if best is None or candidate[:2] > best[:2]:
                    best = candidate
    if best is None:
        return {}
    row = best[2]
    return {
        "layout": "r575" if best[1] == 0 else "before-r575",
        "action": row["action_immediate"] or None,
        "follow_up": row["action_investigatory"] or None,
        "table_severity": row["severity"],
        "side": row["hw_or_sw"],
    }
