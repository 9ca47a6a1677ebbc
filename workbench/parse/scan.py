"""Turn a log of any size into the lines that matter: those that match a signature, with their neighbours and exact counts."""

from __future__ import annotations

import io
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from workbench.model import Line
from workbench.parse.engines import engine
from workbench.parse.scan_part import AHEAD, BEHIND, BLOCK, TRACE, Keeper, Part, Progress, use_numpy
from workbench.parse.text import clean, split_lines

__all__ = ["ScanResult", "Scanner", "clean", "split_lines"]

RANGE = 32 << 20  # bytes a thread takes at a time
_FIRST = 16 << 10  # bytes between two samples of a stream, whose length nobody knows; twice as many when there are too many
LONG = 192 << 20  # a file from which on numpy saves more than its import costs


@dataclass(slots=True)
class ScanResult:
    """
    What a scan found.

    `lines` are the matched lines and their neighbours (which have no `hits`) in order; `counts` says how many lines each
    signature matched, also those that `lines` leaves out; `cut` how many lines were too long to be kept whole. `marks` is an index:
    (offset, lines before it), about one a megabyte; `samples` are lines from all over the text: (offset, begin of the line).
    """

    lines: list[Line] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    total_lines: int = 0
    total_bytes: int = 0
    matched_lines: int = 0
    cut: int = 0
    error: str = ""  # why reading ended early
    head: bytes = b""
    tail: bytes = b""
    marks: list[tuple[int, int]] = field(default_factory=list)
    samples: list[tuple[int, bytes]] = field(default_factory=list)


class Scanner:
    """
    Finds the lines of a log that match any of a set of signatures.

    Parameters
    ----------
    patterns : sequence of (id, regular expression)
        Signatures. Of those that match a line the most specific comes first: the one with the longest text that each of its
        matches must contain.
    engine_name : str, optional
        ``hyperscan``, ``re2`` or ``re``; default the fastest one that is installed.
    cache : bool
        Keep the compiled patterns in the user's cache folder.
    """

    def __init__(self, patterns: Sequence[tuple[str, str]], *, engine_name: str | None = None, cache: bool = True) -> None:
        self.ids = [name for name, _ in patterns]
        self._local = threading.local()
        self._engine = engine([pattern for _, pattern in patterns] + [re.escape(TRACE.decode())], name=engine_name, cache=cache)
        order = sorted(range(len(self.ids)), key=lambda index: -self._engine.weights[index])
        self._rank = [0] * len(order)
        for place, index in enumerate(order):
            self._rank[index] = place
        self.rejected = [(self.ids[index], reason) for index, reason in self._engine.rejected if index < len(self.ids)]

    @property
    def engine_name(self) -> str:
        """Which engine does the work."""
        return self._engine.name

    def hits(self, text: str) -> tuple[str, ...]:
        """Return the signatures that match a text, most specific first."""
        raw = clean(text).encode("utf-8", "replace")
        return self._named({index for _, index in self._engine.matches(raw)})

    def _named(self, indices: Iterable[int]) -> tuple[str, ...]:
        rank, known = self._rank, len(self.ids)
        return tuple(self.ids[index] for index in sorted((index for index in indices if index < known), key=rank.__getitem__))

    def lines(self, data: bytes, *, first: int = 1, offset: int = 0) -> tuple[list[Line], dict[str, int]]:
        """
        Return every line of a text with its hits, and how many lines each signature matched.

        Parameters
        ----------
        data : bytes
            UTF-8 text, small enough to be kept whole; bytes that are no UTF-8 are replaced.
        first : int
            Number of the first line.
        offset : int
            Byte offset of `data` in its file.
        """
        result, starts = split_lines(data, first=first, offset=offset)
        counts: dict[str, int] = {}
        known = len(self.ids)
        found: dict[int, set[int]] = {}
        if b"\x1b" in data:  # match what a reader sees
            joined = "\n".join(line.text for line in result).encode("utf-8", "replace")
            edges, total = [], 0
            for line in result:
                edges.append(total)
                total += (len(line.text) if line.text.isascii() else len(line.text.encode("utf-8", "replace"))) + 1
            data, starts = joined, edges
        for end, index in self._engine.matches(data):
            if index < known:
                if end and data[end - 1] == 13:
                    end -= 1
                found.setdefault(bisect_right(starts, max(end - 1, 0)) - 1, set()).add(index)
        for at, indices in found.items():
            names = self._named(indices)
            result[at].hits = names
            for name in names:
                counts[name] = counts.get(name, 0) + 1
        return result, counts

    def scan(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        workers: int = 2,
        progress: Progress | None = None,
        per_signature: int = 2000,
        head: int = 0,
        tail: int = 0,
        samples: int = 0,
    ) -> ScanResult:
        """
        Scan a file (by path: with threads over byte ranges) or a stream, in bounded memory.

        Parameters
        ----------
        source : path or binary stream
            Uncompressed UTF-8 (or any ASCII superset) text.
        workers : int
            Threads for a plain file.
        progress : callable, optional
            Called with the number of bytes done since the last call.
        per_signature : int
            Lines kept of each signature; the rest is only counted.
        head, tail : int
            Bytes of the begin and the end of the text to hand back as they are.
        samples : int
            Lines to take from all over the text, at equal distances in bytes, whatever they say.
        """
        if isinstance(source, (str, os.PathLike)):
            return self._scan_file(os.fspath(source), max(workers, 1), progress, per_signature, head, tail, samples)
        keeper = Keeper(self.ids, per_signature)
        part = Part(self._engine, source.readinto if hasattr(source, "readinto") else _reading(source), keeper, progress)
        part.keep_head, part.keep_tail = head, tail
        part.every, part.most = (_FIRST, samples) if samples else (0, 0)
        part.run(0, None)
        result = self._merged([part], per_signature)
        result.head, result.tail = bytes(part.head), bytes(part.tail[-tail:] if tail else b"")
        return result

    def _buffer(self) -> bytearray:
        memory: bytearray | None = getattr(self._local, "memory", None)
        if memory is None:
            memory = self._local.memory = bytearray(BLOCK + AHEAD + BEHIND)
        return memory

    def _scan_file(
        self, path: str, workers: int, progress: Progress | None, per: int, head: int, tail: int, samples: int
    ) -> ScanResult:
        size = os.stat(path).st_size
        every = max(size // (samples + 1), 1) if samples else 0
        if size >= LONG:
            use_numpy()
        starts = range(0, size, RANGE)
        parts: list[Part | None] = [None] * len(starts)
        # The end first: there is the flood of what failed, which takes one thread as long as much of the rest takes the others.
        turn = iter([*range(len(starts))[-1:], *range(len(starts) - 1)])
        lock = threading.Lock()

        def work() -> None:
            first = Keeper(self.ids, per)
            memory = self._buffer()
            with open(path, "rb", buffering=0) as stream:
                while True:
                    with lock:
                        at = next(turn, None)
                    if at is None:
                        return
                    start, stop = starts[at], min(starts[at] + RANGE, size)
                    begin, torn = _line_start(stream, start, size)
                    # what is kept of the end must not take the place of what comes before it
                    keeper = first if stop < size else Keeper(self.ids, per)
                    part = Part(self._engine, stream.readinto, keeper, progress, memory)
                    part.torn = torn
                    if every:
                        part.every, part.next = every, max(-(-start // every), 1) * every
                    parts[at] = part
                    if begin < size:
                        stream.seek(begin)
                        part.run(begin, stop if stop < size else None)

        if workers == 1 or len(starts) <= 1:
            work()
        else:
            from concurrent.futures import ThreadPoolExecutor  # brings logging and more: only for who uses it

            with ThreadPoolExecutor(workers) as pool:
                for job in [pool.submit(work) for _ in range(workers)]:
                    job.result()
        result = self._merged([part for part in parts if part], per)
        if head or tail:
            with open(path, "rb") as stream:
                result.head = stream.read(head)
                stream.seek(max(size - tail, 0))
                result.tail = stream.read(tail)
        return result

    def _merged(self, parts: Sequence[Part], per_signature: int) -> ScanResult:
        result = ScanResult()
        ids = self.ids
        kept: dict[int, int] = {}
        totals: dict[int, int] = {}
        names: dict[tuple[str, ...], tuple[list[int], tuple[str, ...]]] = {}
        for part in parts:
            result.marks += [(offset, lines + result.total_lines) for offset, lines in part.marks]
            result.samples += part.samples
            for _, line in sorted(part.lines.items()):
                line.no += result.total_lines
                if line.hits:
                    known = names.get(line.hits)
                    if known is None:
                        indices = [int(each) for each in line.hits]
                        known = names[line.hits] = indices, self._named(indices)
                    indices = known[0]
                    if all(kept.get(index, 0) >= per_signature * 10 for index in indices):
                        continue
                    for index in indices:
                        kept[index] = kept.get(index, 0) + 1
                    line.hits = known[1]
                result.lines.append(line)
            part.lines = {}
            for key, count in part.tally.items():
                result.matched_lines += count * (len(key) > 1 or part.known not in key)
                for index in key:
                    totals[index] = totals.get(index, 0) + count
            result.total_lines += part.newlines
            result.total_bytes += part.size
            result.cut += part.cut
            result.error = result.error or part.error
        result.counts = {ids[index]: totals[index] for index in sorted(totals) if index < len(ids)}
        used = [part for part in parts if part.size]
        if used and used[-1].open_end:
            result.total_lines += 1
        return result


def _reading(stream: Any) -> Callable[[memoryview], int]:
    def readinto(view: memoryview) -> int:
        data = stream.read(len(view))
        view[: len(data)] = data
        return len(data)

    return readinto


def _line_start(stream: io.RawIOBase, start: int, size: int) -> tuple[int, bool]:
    # The same rule as at the end of a range: the line that holds the byte before `start` belongs to the range before, unless
    # it is longer than AHEAD; then it is cut here.
    if start == 0:
        return 0, False
    stream.seek(start - 1)
    window = b""
    while len(window) < AHEAD:
        more = stream.read(AHEAD - len(window))
        if not more:
            break
        window += more
    at = window.find(b"\n")
    if at >= 0:
        return start + at, False
    return (size, False) if start - 1 + len(window) >= size else (start, True)
