"""Turn a report that quotes the output of several tools between Markdown fences into one document a quotation."""

from __future__ import annotations

from dataclasses import replace

from workbench.model import Line
from workbench.sources.files import Document
from workbench.sources.sniff import kind_of

__all__ = ["quotations"]

_FENCE = ("```", "~~~")
_MOST = 5_000  # lines of what a person pastes; logs of machines are longer and have no fences
# what has a parser of its own; kernel lines and tracebacks are found in any text
_OTHER = ("smi", "slurm-text", "kubernetes-text", "bmc", "stacks")


def quotations(document: Document) -> list[Document]:
    """
    Return the fenced parts of a text that are output of a tool with a parser of its own, lines numbered as in the text.

    What somebody writes into an issue or a ticket is prose with quotations; read as one log, a table of nvidia-smi or sacct in it
    would say nothing.
    """
    lines = document.lines
    if len(lines) > _MOST or sum(1 for line in lines if line.text.lstrip().startswith(_FENCE)) < 2:
        return []
    found: list[Document] = []
    block: list[Line] | None = None
    for line in lines:
        if line.text.lstrip().startswith(_FENCE):
            if block:
                text = "\n".join(row.text for row in block)
                kind = kind_of("", text.encode("utf-8", "replace"))
                if kind in _OTHER:
                    found.append(replace(document, kind=kind, lines=block, raw=None, data=None))
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
    return found
