"""Turn Kubernetes objects as the server has them into objects that may be kept and shown: without secrets, without ballast."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from workbench.catalog import table

__all__ = ["LEFT_OUT", "Cleaner"]

LEFT_OUT = "(left out: looks secret)"
_HARMLESS = re.compile(r"\d{0,9}|(?i:true|false|yes|no|on|off|none)")  # MAX_TOKENS=4096 is no secret
_OPTION = re.compile(r"^--?([\w.-]+)$")


@lru_cache(maxsize=4)
def _patterns(where: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(row["pattern"]) for row in table("kubernetes_secrets") if row["where"] == where)


@lru_cache(maxsize=4096)
def _named(name: str, where: str = "name") -> bool:
    return any(pattern.search(name) for pattern in _patterns(where))


@lru_cache(maxsize=16384)
def _cleaned(text: str) -> tuple[str, int]:
    """Return a text without what looks secret, and how much that was; the pods of a job say mostly the same."""
    secrets = 0
    for pattern in _patterns("value"):
        text, count = pattern.subn(LEFT_OUT, text)
        secrets += count
    return text, secrets


class Cleaner:
    """
    Takes out of objects what nobody should find in a bundle, and counts it.

    Which names and values look secret is the table ``catalog/kubernetes_secrets.csv``. A value that only looks secret is lost to the
    triage; that is the cheaper mistake.

    Attributes
    ----------
    secrets : int
        Values that were replaced by `LEFT_OUT`.
    """

    def __init__(self) -> None:
        self.secrets = 0

    def clean(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return one object without managed fields, copies of itself, lists of images, and values that look secret."""
        meta = item.get("metadata")
        if isinstance(meta, dict):
            notes = meta.get("annotations")
            meta = {key: value for key, value in meta.items() if key != "managedFields"}
            if isinstance(notes, dict):
                meta["annotations"] = {key: value for key, value in notes.items() if not _named(key, "annotation")}
            item = {**item, "metadata": meta}
        status = item.get("status")
        if item.get("kind") == "Node" and isinstance(status, dict) and "images" in status:
            # half of a node's size, and of no use here
            item = {**item, "status": {key: value for key, value in status.items() if key != "images"}}
        cleaned = self._walk(item)
        assert isinstance(cleaned, dict)
        return cleaned

    def said(self) -> str:
        """Return in words what was left out."""
        if not self.secrets:
            return "; managed fields and copies of objects left out"
        return f"; {self.secrets} value{'s' if self.secrets > 1 else ''} that look secret, managed fields and copies of objects left out"

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            name = value.get("name")
            held = value.get("value")
            if isinstance(name, str) and isinstance(held, str) and not _HARMLESS.fullmatch(held) and _named(name):  # an env entry
                self.secrets += 1
                return {**{key: self._walk(part) for key, part in value.items() if key != "value"}, "value": LEFT_OUT}
            return {key: self._walk(part) for key, part in value.items()}
        if isinstance(value, list):
            return (
                self._words(value)
                if value and all(isinstance(part, str) for part in value)
                else [self._walk(part) for part in value]
            )
        return value

    def _words(self, parts: list[str]) -> list[str]:
        """Clean a command line, where a secret may stand in the word after its option."""
        cleaned: list[str] = []
        follows = False
        for part in parts:
            if follows and not part.startswith("-"):
                self.secrets += 1
                cleaned.append(LEFT_OUT)
                follows = False
                continue
            option = _OPTION.match(part)
            follows = bool(option and _named(option[1]))
            cleaned.append(self._text(part))
        return cleaned

    def _text(self, text: str) -> str:
        if len(text) < 8:
            return text
        cleaned, count = _cleaned(text)
        self.secrets += count
        return cleaned
