"""Turn a set of regular expressions into a matcher over blocks of text: Hyperscan, else google-re2, else the standard library."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Engine", "cache_folder", "engine"]

_SMALL = 8 << 10  # bytes below which a first stage does not pay
_REACH = 64 << 10  # how far a signature reaches within a line that is longer
_PER_SPOT = 1200  # a line put to the expressions by itself costs about as much as so many bytes of a whole block
_FORMAT = 9  # counts up when `patterns.for_blocks`, `gate`, `gate_fit` or the layout of the cached file changes


class Engine(Protocol):
    """Finds which patterns match in a block; `rejected` lists the patterns it cannot run, by index, with the reason."""

    name: str
    rejected: list[tuple[int, str]]
    weights: list[int]  # of each pattern: length of the longest text that every match contains

    def matches(self, text: bytes | bytearray, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """Return (end of the match, index of the pattern) in a part of a text: one or more for each line and pattern that match."""


def cache_folder() -> Path:
    """Return the folder for compiled pattern databases: ``$XDG_CACHE_HOME/workbench``, by default ``~/.cache/workbench``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workbench"


def engine(patterns: Sequence[str], *, name: str | None = None, cache: bool = True) -> Engine:
    """
    Return the fastest engine that is installed, or the one of this name (``hyperscan``, ``re2``, ``re``).

    Parameters
    ----------
    patterns : sequence of str
        Regular expressions in the syntax of `re`.
    name : str, optional
        Which engine; default the first that can be imported.
    cache : bool
        Keep the compiled Hyperscan database in `cache_folder`.
    """
    if name in (None, "hyperscan"):
        try:
            return _Hyperscan(patterns, cache=cache)
        except ImportError:
            if name:
                raise
    if name in (None, "re2"):
        try:
            return _Re2(patterns)
        except ImportError:
            if name:
                raise
    return _Re(patterns)


def _weight(pattern: str) -> int:
    """Return how specific a pattern is: the length of the shortest text that a match must contain."""
    from workbench.parse.patterns import needles

    return min(map(len, needles(pattern)), default=0)


class _Thread(threading.local):
    """What each thread has for itself."""

    scratch: Any = None  # memory to scan in
    dense = False  # the block before was full of matches


class _Hyperscan:
    name = "hyperscan"

    def __init__(self, patterns: Sequence[str], *, cache: bool) -> None:
        import hyperscan

        self._hs: Any = hyperscan
        self._local = _Thread()
        self.rejected: list[tuple[int, str]] = []
        self.weights: list[int] = []
        file = self._file(patterns) if cache else None
        databases = self._load(file) if file else None
        if databases is None:
            databases = self._compile(patterns)
            if file:
                self._save(file, databases)
        self._gate, self._full = databases

    def _file(self, patterns: Sequence[str]) -> Path | None:
        # a database fits one version of the library and one instruction set
        key = repr((_FORMAT, self._hs.__version__, sys.version_info[:2], sys.platform, _cpu(), tuple(patterns)))
        try:
            return cache_folder() / f"scan-{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:32]}.hs"
        except (RuntimeError, OSError):  # no home directory
            return None

    def _load(self, file: Path) -> tuple[Any, Any] | None:
        # The library runs a database as it is: only one that this user wrote, whole, is taken.
        try:
            if hasattr(os, "getuid") and file.stat().st_uid != os.getuid():
                return None
            digest, raw = (content := file.read_bytes())[:32], content[32:]
            if hashlib.sha256(raw).digest() != digest:
                return None
            head, body = raw.split(b"\n", 1)
            about = json.loads(head)
            mode = self._hs.HS_MODE_BLOCK
            gate_, full = (self._hs.loadb(part, mode=mode) for part in (body[: about["gate"]], body[about["gate"] :]))
            self._local.scratch = self._hs.Scratch(gate_), self._hs.Scratch(full)
            self.rejected = [(index, reason) for index, reason in about["rejected"]]
            self.weights = about["weights"]
            return gate_, full
        except (OSError, ValueError, KeyError, TypeError, self._hs.error):
            return None

    def _save(self, file: Path, databases: tuple[Any, Any]) -> None:
        import tempfile

        with contextlib.suppress(OSError, self._hs.error):
            first, second = (self._hs.dumpb(database) for database in databases)
            about = json.dumps({"rejected": self.rejected, "weights": self.weights, "gate": len(first)})
            raw = about.encode() + b"\n" + first + second
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as stream:
                stream.write(hashlib.sha256(raw).digest() + raw)
            os.replace(stream.name, file)

    def _compile(self, patterns: Sequence[str]) -> tuple[Any, Any]:
        from workbench.parse.gate import gate  # what rewrites patterns is imported only where no compiled ones are in the cache
        from workbench.parse.patterns import Unsupported, for_blocks

        self.weights = [_weight(pattern) for pattern in patterns]
        usable: list[tuple[int, bytes, bool]] = []
        for index, pattern in enumerate(patterns):
            try:
                usable.append((index, *for_blocks(pattern)))
            except Unsupported as error:
                self.rejected.append((index, str(error)))
        try:
            full = self._build(usable)
        except self._hs.error:
            sound = []
            for each in usable:
                try:
                    self._build([each])
                except self._hs.error as error:
                    self.rejected.append((each[0], str(error)))
                else:
                    sound.append(each)
            usable, full = sound, self._build(sound)
        first = gate([patterns[index] for index, _, _ in usable])
        return self._build([(0, expression, caseless) for expression, caseless in first]), full

    def _build(self, usable: list[tuple[int, bytes, bool]]) -> Any:
        hs = self._hs
        database = hs.Database(mode=hs.HS_MODE_BLOCK)
        usable = usable or [(0, b"\\x00{255}", False)]
        flags = [hs.HS_FLAG_MULTILINE | (hs.HS_FLAG_CASELESS if caseless else 0) for _, _, caseless in usable]
        expressions, indices = [expression for _, expression, _ in usable], [index for index, _, _ in usable]
        database.compile(expressions=expressions, ids=indices, elements=len(usable), flags=flags)
        return database

    def matches(self, text: bytes | bytearray, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        stop = len(text) if stop is None else stop
        if start >= stop:
            return []
        scratches = self._local.scratch
        if scratches is None:
            scratches = self._local.scratch = self._hs.Scratch(self._gate), self._hs.Scratch(self._full)
        view = memoryview(text)
        found: list[tuple[int, int]] = []
        if stop - start < _SMALL:
            self._run(view, start, stop, scratches[1], found)
        else:
            spots = None if self._local.dense else self._spots(view, start, stop, scratches[0])
            if spots is None:
                self._run(view, start, stop, scratches[1], found)
                # a flood goes on: while there are this many matches the first stage would only be in the way
                self._local.dense = len(found) * _PER_SPOT > stop - start
            else:
                if text[stop - 1] != 10:
                    spots.append(stop - start)  # a text of the first stage may need the line end that is missing here
                self._lines(text, view, start, stop, spots, scratches[1], found)
        found.sort()
        return found

    def _spots(self, view: memoryview, start: int, stop: int, scratch: Any) -> list[int] | None:
        """Return where the first stage found something; None when in so many places that the expressions had better see it all."""
        spots: list[int] = []
        spot = spots.append
        most = (stop - start) // _PER_SPOT

        def on_spot(index: int, begin: int, end: int, flags: int, context: object) -> bool:
            spot(end)
            return len(spots) > most  # ends the scan

        try:
            self._gate.scan(view[start:stop], match_event_handler=on_spot, scratch=scratch)
        except self._hs.ScanTerminated:
            return None
        return spots

    def _lines(
        self,
        text: bytes | bytearray,
        view: memoryview,
        start: int,
        stop: int,
        spots: list[int],
        scratch: Any,
        found: list[tuple[int, int]],
    ) -> None:
        # The lines of a block together: the first call after a block of the first stage finds its tables out of the cache.
        done = start
        begins: list[int] = []
        rows: list[memoryview] = []
        edges: list[int] = []  # where each begins in the joined text
        total = 0
        for spot in sorted(spots):
            at = start + spot
            if text[at - 1] == 10:
                at -= 1
            if at <= done:
                continue
            begin = max(text.rfind(b"\n", max(done, at - _REACH), at - 1) + 1, done, at - _REACH)
            done = text.find(b"\n", at - 1, min(stop, at + _REACH))
            if done < 0:
                done = min(stop, at + _REACH)
            begins.append(begin)
            rows.append(view[begin:done])
            edges.append(total)
            total += done - begin + 1
        if not rows:
            return
        joined: list[tuple[int, int]] = []
        self._run(memoryview(b"\n".join(rows)), 0, total - 1, scratch, joined)
        for end, index in joined:
            place = bisect_left(edges, end) - 1
            found.append((end - edges[place] + begins[place], index))

    def _run(self, view: memoryview, start: int, stop: int, scratch: Any, found: list[tuple[int, int]]) -> None:
        append = found.append

        def on_match(index: int, begin: int, end: int, flags: int, context: object) -> None:
            append((start + end, index))

        self._full.scan(view[start:stop], match_event_handler=on_match, scratch=scratch)


def _cpu() -> str:
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        return " ".join(sorted(word for word in ("avx2", "avx512bw", "avx512vbmi", "sve", "sve2") if f" {word} " in text))
    return ""


class _Lines:
    """What the two fall-backs share: walk over the lines of a block."""

    rejected: list[tuple[int, str]]
    weights: list[int]

    def line(self, line: bytes) -> list[int]:
        raise NotImplementedError

    def matches(self, text: bytes | bytearray, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        found = []
        for line in re.split(rb"[\n\r]", bytes(memoryview(text)[start:stop])):
            end = start + len(line)
            found += [(end, index) for index in self.line(line)]
            start = end + 1
        return found


class _Re2(_Lines):
    name = "re2"

    def __init__(self, patterns: Sequence[str]) -> None:
        import re2  # type: ignore[import-not-found, import-untyped, unused-ignore]

        from workbench.parse.patterns import Unsupported, for_blocks

        options = re2.Options()
        options.max_mem = 512 << 20
        options.encoding = re2.Options.Encoding.LATIN1
        options.log_errors = False
        self._set = re2.Set.SearchSet(options)
        self._index: list[int] = []
        self.rejected = []
        self.weights = [_weight(pattern) for pattern in patterns]
        for index, pattern in enumerate(patterns):
            try:
                expression, caseless = for_blocks(pattern)
                self._set.Add((b"(?i)" if caseless else b"") + expression)
                self._index.append(index)
            except (Unsupported, re2.error) as error:
                self.rejected.append((index, str(error)))
        self._set.Compile()

    def line(self, line: bytes) -> list[int]:
        return [self._index[each] for each in self._set.Match(line) or ()]


class _Re(_Lines):
    name = "re"

    def __init__(self, patterns: Sequence[str]) -> None:
        from workbench.parse.patterns import Unsupported, for_blocks, needles

        self._patterns: list[tuple[int, tuple[bytes, ...], re.Pattern[bytes]]] = []
        self.rejected = []
        self.weights = [_weight(pattern) for pattern in patterns]
        for index, pattern in enumerate(patterns):
            try:
                expression, caseless = for_blocks(pattern)
            except Unsupported as error:
                self.rejected.append((index, str(error)))
            else:
                # `re` treats high bytes literally too, so the block form serves both.
                sought = tuple(text.encode("utf-8", "replace").lower() for text in needles(pattern)) or (b"",)
                self._patterns.append((index, sought, re.compile(expression, re.IGNORECASE if caseless else 0)))

    def line(self, line: bytes) -> list[int]:
        lower = line.lower()
        return [
            index for index, sought, pattern in self._patterns if any(text in lower for text in sought) and pattern.search(line)
        ]
