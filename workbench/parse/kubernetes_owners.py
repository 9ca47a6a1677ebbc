"""Turn the labels and annotations of an object of Kubernetes into whose it is: a user and a team, as far as they tell."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from workbench.catalog import table

__all__ = ["owner_of"]


@lru_cache(maxsize=1)
def _keys() -> dict[str, tuple[str, ...]]:
    rows = table("owner_labels")
    return {who: tuple(row["key"] for row in rows if row["who"] == who) for who in ("user", "team")}


def owner_of(meta: Mapping[str, Any]) -> dict[str, str | None]:
    """
    Return ``user`` and ``team`` of an object, None where nothing tells.

    Which keys tell them, the surest first, is the table ``catalog/owner_labels.csv``; of the same key a label counts before an annotation.

    Parameters
    ----------
    meta : mapping
        The object's ``metadata``.
    """
    both: dict[str, Any] = {}
    for part in ("annotations", "labels"):
        if isinstance(found := meta.get(part), Mapping):
            both |= found
    return {who: next((str(both[key]) for key in keys if both.get(key)), None) for who, keys in _keys().items()}
