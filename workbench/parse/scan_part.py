"""Turn one stretch of a log, read block by block into one buffer, into counted and kept lines: what one thread of a scan does."""

from __future__ import annotations

import contextlib
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from workbench.model import Line
from workbench.parse.text import TEXT, clean

__all__ = ["AHEAD", "BEHIND", "BLOCK", "SAMPLE", "TRACE", "Keeper", "Part", "Progress", "use_numpy"]

BLOCK = 1 << 19  # 256 KiB to 4 MiB measure nearly alike; more than half of a core's cache is a little slower
AHEAD = 64 << 10  # context after a hit, and the longest line that is kept whole
BEHIND = 4 << 10  # context before a hit
DETAIL = 32 << 20  # bytes of text of matched lines that are kept for one log
SAMPLE = 240  # bytes of a sampled line that are kept: its stamp, its rank and its step stand there
MARK = 1 << 20  # bytes between two entries of the index of lines
FLOOR = 20  # lines of a signature kept even when DETAIL is used up
PER_TOKEN = 4  # lines of a signature kept for one rank

# [rank3]:  |  37:  |  [1,3]<stdout>:  |  (Worker_TP0 pid=58215)  |  node-1:2918:4483
# gpu-worker-1: (pdsh)
_TOKEN = re.compile(
    rb"\s*(\[[\w,]{1,20}\](?:<\w+>)?:|\d{1,6}:(?= )|\([\w ]{1,30}pid=\d+[^)\n\r]{0,40}\)"
    rb"|[\w.-]{1,60}:\d+:\d+(?= \[)|(?=[\w.-]*\d)[\w.-]{1,60}: (?=\S))"
)
_numpy: Any = None
TRACE = b"Traceback (most recent call last)"
Progress = Callable[[int], None]
_Key = tuple[int, ...]  # the signatures of a line


def use_numpy() -> None:
    """Count line ends with numpy from now on: twice as fast and beside other threads, but 0.1 s to import."""
    global _numpy
    with contextlib.suppress(ImportError):
        import numpy as np

        _numpy = np


def _prefix(line: bytes | bytearray) -> bytes:
    token = _TOKEN.match(line)
    return bytes(token[1]) if token else b""


class Keeper:
    """Decides which matched lines are kept with their text; one per thread, so that no thread waits for another."""

    def __init__(self, ids: Sequence[str], per_signature: int) -> None:
        self.per = per_signature
        self.kept = [0] * (len(ids) + 1)
        self.full: set[int] = set()  # signatures of which nothing more is kept
        self.tokens: dict[tuple[int, bytes], int] = {}
        self.sets: dict[_Key, tuple[str, ...]] = {}  # lines with equal signatures share them
        self.shut: set[tuple[_Key, bytes]] = set()  # signatures and rank of which nothing more is kept,
        self.done: set[_Key] = set()  # or signatures whatever the rank: in a flood one look-up tells
        self.detail = 0
        self.flags: Any = None  # which bytes of a block are line ends

    def closed(self, indices: set[int], prefix: bytes) -> bool:
        """Tell whether no further line with these signatures and this rank prefix will be kept."""
        rest = indices - self.full
        return not rest or (bool(prefix) and all(self.tokens.get((index, prefix), 0) >= PER_TOKEN for index in rest))

    def wants(self, indices: _Key, prefix: bytes) -> bool:
        """Tell whether a line that starts with this rank prefix is kept for any of its signatures."""
        if (indices, prefix) in self.shut:
            return False
        if self.detail >= DETAIL:
            self.full.update(index for index, kept in enumerate(self.kept) if kept >= FLOOR)
        wanted = False
        for index in indices:
            if index in self.full:
                continue
            if prefix:
                # a flood of many ranks: the first words of each rank say who is alive, the rest says nothing new
                seen = self.tokens.get((index, prefix), 0)
                if seen >= PER_TOKEN:
                    continue
                self.tokens[index, prefix] = seen + 1
            self.kept[index] += 1
            wanted = True
            if self.kept[index] >= (self.per * 10 if prefix else self.per):
                self.full.add(index)
        if not wanted:
            self.shut.add((indices, prefix))
            if self.full.issuperset(indices):
                self.done.add(indices)
        return wanted


class Part:
    """One byte range (or a whole stream): reads, scans, keeps. Line numbers are relative to the range until merged."""

    def __init__(
        self,
        matcher: Any,
        readinto: Callable[[memoryview], int | None],
        keeper: Keeper,
        progress: Progress | None,
        memory: bytearray | None = None,
    ) -> None:
        self.engine = matcher
        self.readinto = readinto
        self.keeper = keeper
        self.progress = progress
        self.memory = memory if memory is not None else bytearray(BLOCK + AHEAD + BEHIND)
        self.lines: dict[int, Line] = {}
        self.known = len(keeper.kept) - 1  # number of signatures; the index after the last stands for a traceback
        self.tally: dict[_Key, int] = {}  # lines by the signatures that match them
        self.newlines = 0
        self.size = 0
        self.cut = 0
        self.open_end = False
        self.torn = False  # the range begins inside a line that is too long
        self.dense = False
        self.error = ""
        self.keep_head = self.keep_tail = 0
        self.head = bytearray()
        self.tail = bytearray()
        self.marks: list[tuple[int, int]] = []  # offset, line ends of this range before it: about one a megabyte
        self.samples: list[tuple[int, bytes]] = []  # offset and begin of a line every `every` bytes, whatever is in it
        self.every = self.next = 0
        self.most = 0  # samples; then every second goes. 0: all are kept

    def run(self, begin: int, stop: int | None) -> None:
        """Scan from `begin` (where the reader stands) to the line that holds byte `stop - 1`, or to the end."""
        buffer = self.memory
        view = memoryview(buffer)
        base = begin  # offset in the file of buffer[0]
        low = filled = 0  # what is not scanned yet starts at `low`
        partial = self.torn  # the line at `low` began earlier
        eof = False
        while not (eof and low >= filled):
            while not eof and filled < len(buffer):
                try:
                    got = self.readinto(view[filled:])
                except (OSError, EOFError, ValueError) as error:
                    self.error, got = str(error) or type(error).__name__, 0
                except Exception as error:  # zlib, zstd and tar have their own types
                    self.error, got = str(error) or type(error).__name__, 0
                if not got:
                    eof = True
                else:
                    if self.keep_head and len(self.head) < self.keep_head:
                        self.head += view[filled : filled + min(got, self.keep_head - len(self.head))]
                    if self.keep_tail:
                        self.tail += view[filled : filled + got]
                        if len(self.tail) > 2 * self.keep_tail + BLOCK:
                            del self.tail[: -self.keep_tail]
                    filled += got
            limit = filled if eof else filled - AHEAD
            last = False
            if stop is not None and base + limit >= stop - 1:
                edge = stop - 1 - base
                at = buffer.find(b"\n", max(edge, low), min(edge + AHEAD, filled)) if edge >= low else low - 1
                cut = at + 1 if at >= 0 else filled if edge + AHEAD > filled and eof else edge + 1
                last = True
            elif eof and limit == filled:
                cut = filled
                last = True
            else:
                cut = buffer.rfind(b"\n", low, limit) + 1
                if not cut:
                    cut = limit
                    self.cut += not partial
            if cut > low:
                if not partial and (not self.marks or base + low - self.marks[-1][0] >= MARK):
                    self.marks.append((base + low, self.newlines))
                if self.every and self.next < base + cut:
                    self._sample(low, cut, filled, base)
                self._block(view, low, cut, filled, base, partial)
                if self.progress:
                    self.progress(cut - low)
                self.size += cut - low
                partial = buffer[cut - 1] != 10
            if last:
                self.open_end = partial
                return
            keep = max(cut - BEHIND, 0)
            rest = filled - keep
            view[:rest] = view[keep:filled]
            base += keep
            low, filled = cut - keep, rest

    def _sample(self, low: int, cut: int, filled: int, base: int) -> None:
        buffer = self.memory
        while self.next < base + cut:
            start = buffer.find(b"\n", max(self.next - base, low), cut) + 1
            if not start or start >= cut:
                self.next = base + cut  # no line begins in the rest of the block
                return
            end = buffer.find(b"\n", start, min(start + SAMPLE, filled))
            self.samples.append((base + start, bytes(buffer[start : end if end >= 0 else min(start + SAMPLE, filled)])))
            self.next = max(self.next, base + start) + self.every
            if self.most and len(self.samples) > self.most:
                del self.samples[1::2]
                self.every *= 2

    def _block(self, view: memoryview, low: int, cut: int, filled: int, base: int, partial: bool) -> None:
        buffer = self.memory
        if self.dense and not partial and self._repeats(view[low:cut]):
            self.newlines += self.count(low, cut)
            return
        begin = max(low - 1024, 0) if partial else low  # a match may start in what was scanned
        found = self.engine.matches(buffer, begin, cut)
        self.dense = len(found) > (cut - low) >> 9
        if not found:
            self.newlines += self.count(low, cut)
            return
        counted = low  # newlines before here are in self.newlines
        find, tally, done = buffer.find, self.tally, self.keeper.done
        turns = find(b"\r", max(low - TEXT, 0), filled) >= 0  # one look for all lines
        key: _Key = ()
        end = spot = -1
        found.append((sys.maxsize, 0))
        for at, index in found:
            if at <= low:
                continue  # its line was done with the block before
            if turns and at <= filled and buffer[at - 1] == 13:
                at -= 1
            if at <= end:
                if index not in key:
                    key += (index,)
                continue
            if key:
                tally[key] = tally.get(key, 0) + 1
                if key not in done:
                    counted = self._line(key, spot, end, counted, filled, base, turns)
            spot, key = at, (index,)
            limit = min(spot + TEXT, filled)
            end = find(b"\n", spot, limit)
            if end < 0:
                end = limit
            if turns and (turn := find(b"\r", spot, end)) >= 0:
                end = turn
        self.newlines += self.count(counted, cut)

    def _repeats(self, block: memoryview) -> bool:
        """Count a block of few different lines by those, if it holds nothing that is still to be kept."""
        rows = bytes(block).replace(b"\r", b"\n").split(b"\n")
        different = Counter(rows)
        if len(different) * 8 > len(rows):
            return False
        each = list(different)
        edges = list(accumulate((len(row) + 1 for row in each), initial=0))
        hits: dict[int, set[int]] = {}
        for at, index in self.engine.matches(b"\n".join(each)):
            hits.setdefault(bisect_right(edges, max(at - 1, 0)) - 1, set()).add(index)
        if not all(self.keeper.closed(ids, _prefix(each[place])) for place, ids in hits.items()):
            return False
        for place, ids in hits.items():
            key = tuple(sorted(ids))
            self.tally[key] = self.tally.get(key, 0) + different[each[place]]
        return True

    def _line(self, key: _Key, spot: int, end: int, counted: int, filled: int, base: int, turns: bool) -> int:
        buffer, keeper = self.memory, self.keeper
        start = max(buffer.rfind(b"\n", max(spot - TEXT, 0), spot) + 1, spot - TEXT, 0)
        if turns:
            start = max(start, buffer.rfind(b"\r", start, spot) + 1)
        token = _TOKEN.match(buffer, start, min(end, start + 120))
        prefix = bytes(token[1]) if token else b""
        if not keeper.wants(key, prefix):
            return counted
        if start > counted:
            self.newlines += self.count(counted, start)
            counted = start
        number = self.newlines + 1
        text = self._text(start, end)
        keeper.detail += len(text)
        hits = keeper.sets.get(key)
        if hits is None:
            hits = keeper.sets[key] = tuple(str(index) for index in key if index < self.known)
        self.lines[base + start] = Line(number, text, hits, base + start)
        if keeper.detail < DETAIL and min(map(keeper.kept.__getitem__, key)) <= keeper.per:
            traced = self.known in key
            self._before(start, number, base)
            self._after(end, number, filled, base, prefix if traced else b"", 60 if traced else 5)
        return counted

    def count(self, start: int, stop: int) -> int:
        """Return the number of line ends in a part of the buffer."""
        if _numpy is None or stop - start < 4096:
            return self.memory.count(b"\n", start, stop)
        if self.keeper.flags is None:  # one array for all blocks: a new one of this size costs more than what is done in it
            self.keeper.flags = _numpy.empty(len(self.memory), bool)
        flags = self.keeper.flags[: stop - start]
        _numpy.equal(_numpy.frombuffer(self.memory, _numpy.uint8, stop - start, start), 10, out=flags)
        return int(_numpy.count_nonzero(flags))

    def _text(self, start: int, end: int) -> str:
        return clean(bytes(self.memory[start : min(end, start + TEXT)]).decode("utf-8", "replace")).rstrip("\r")

    def _before(self, start: int, number: int, base: int) -> None:
        at = start
        for back in range(1, 4):
            edge = at - 1
            at = self.memory.rfind(b"\n", 0, max(edge, 0)) + 1
            if edge <= 0 or at == 0 or number - back < 1:
                return
            if base + at in self.lines:
                return
            self._context(at, edge, number - back, base)

    def _after(self, end: int, number: int, filled: int, base: int, prefix: bytes, wanted: int) -> None:
        buffer = self.memory
        if end < filled and buffer[end] == 13:  # the rest of a rewritten line
            end = buffer.find(b"\n", end, filled)
            if end < 0:
                return
        limit = min(filled, end + AHEAD)
        while wanted and end + 1 < limit:
            start = end + 1
            end = buffer.find(b"\n", start, limit)
            if end < 0:
                return
            number += 1
            if prefix and not buffer.startswith(prefix, start, end):
                continue  # another rank's line in between
            wanted -= 1
            self._context(start, end, number, base)

    def _context(self, start: int, end: int, number: int, base: int) -> None:
        if base + start not in self.lines:
            text = self._text(start, end)
            self.keeper.detail += len(text)
            self.lines[base + start] = Line(number, text, (), base + start)
