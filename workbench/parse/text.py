"""Turn raw bytes of a log into lines as a reader sees them: no escape sequences, rewritten lines apart, bad UTF-8 replaced."""

from __future__ import annotations

import re
from itertools import accumulate

from workbench.model import Line

__all__ = ["MONTHS", "TEXT", "clean", "split_lines"]

MONTHS = {name: number for number, name in enumerate(re.findall("...", "JanFebMarAprMayJunJulAugSepOctNovDec"), 1)}
TEXT = 64 << 10  # bytes of a line that are kept

# \x1b[1;31m, \x1b]0;title\x07, \x1b(B
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][0-9A-Za-z]|[=>78cDEHM])")


def clean(text: str) -> str:
    """Return the text without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def split_lines(data: bytes, *, first: int = 1, offset: int = 0) -> tuple[list[Line], list[int]]:
    """
    Return the lines of a text (segments between carriage returns apart, without escape sequences) and where each starts.

    Progress bars rewrite one line with carriage returns; each rewriting becomes a line of the same number.
    """
    rows = data.split(b"\n")
    if not rows[-1]:
        rows.pop()
    if b"\r" not in data and b"\x1b" not in data and len(max(rows, key=len, default=b"")) <= TEXT:
        starts = [0, *accumulate([len(row) + 1 for row in rows[:-1]])] if rows else []
        texts = data.decode("utf-8", "replace").split("\n")
        return [Line(first + at, texts[at], (), offset + start) for at, start in enumerate(starts)], starts
    lines: list[Line] = []
    starts = []
    at = 0
    for number, row in enumerate(rows, first):
        begin = at
        pieces = row.rstrip(b"\r").split(b"\r")
        for place, piece in enumerate(pieces):
            if piece or len(pieces) == 1 or (place == 0 and not any(pieces)):
                lines.append(Line(number, clean(piece[:TEXT].decode("utf-8", "replace")), (), offset + begin))
                starts.append(begin)
            begin += len(piece) + 1
        at += len(row) + 1
    return lines, starts
