"""Turn an executed notebook into what its outputs say."""

from __future__ import annotations

from typing import Any


def said(document: Any) -> str:
    """All texts of all outputs but scripts."""
    parts = []
    for cell in document.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            parts += [str(text) for kind, text in data.items() if kind in ("text/plain", "text/html")] + [output.get("text", "")]
    return "\n".join(parts)
