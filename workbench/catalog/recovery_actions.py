"""Turn the words in which a driver asks for a recovery (Xid 154, nvidia-smi, NVML) into the remediation that they mean."""

from __future__ import annotations

from functools import lru_cache

from workbench.catalog import table

__all__ = ["remediation_of"]


@lru_cache(maxsize=1)
def _rows() -> dict[str, str]:
    return {row["words"]: row["remediation"] for row in table("recovery_actions")}


def remediation_of(words: str) -> str:
    """Return the remediation of ``catalog/recovery_actions.csv``; empty for words that are not known."""
    return _rows().get(words.strip().lower(), "")
