"""Turn a place in the evidence into the lines around it, and a text into the lines that hold it: the way back from a case to its logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from workbench.casefile.model import LogLine, LogWindow
from workbench.casefile.reading import PIECE, Gone, Marks, Source, Text
from workbench.parse.text import clean

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LONGEST", "EvidenceLogs"]

LONGEST = 4_000  # characters of a line that are shown
WIDEST = 2_000_000  # characters of a line that somebody asks to see whole
MOST_LINES = 5_000  # lines of a window
SEARCH_SECONDS = 20.0  # a search ends then and says what it has not looked at
_FAR = 8 * PIECE  # how far a window looks for the begin or end of an endless line
# Kind of document → begins of the names of the catalog's tables that its parser reads it by. Metrics and states are told by values, not by
# lines, and a kind that is not here by no table: only their events are marked
_TABLES: dict[str, tuple[str, ...]] = {
    "job-log": ("signatures_job", "signatures_slurm"),
    "kernel-log": ("signatures_kernel",),
    "fabricmanager-log": ("signatures_kernel",),
    "slurm-text": ("signatures_slurm",),
    "kubernetes-text": ("signatures_kubernetes",),
    "kubernetes": ("signatures_kubernetes",),
    "smi": ("signatures_smi",),
    "bmc": ("signatures_bmc",),
}
_COLUMNS = {"file": "string", "line": "Int64", "rank": "Int64", "node": "string", "text": "string"}


class EvidenceLogs:
    """
    The logs of a case, read from its evidence when asked for; see `workbench.casefile.model.Logs`.

    Line numbers are those of the verdict's evidence: line ends of the unpacked document, counted from 1.

    Parameters
    ----------
    source : str
        Folder, file or archive of the evidence.
    documents : DataFrame
        What was read of it: name, kind, node, size, lines.
    ranks : Mapping
        Document → the rank that wrote it, for documents that are one rank's.
    verdict : Mapping
        The verdict, whose evidence is marked in windows.
    marks : Mapping, optional
        Document → index of its lines, so that the end of a large log opens at once.
    events : DataFrame, optional
        The case's events: their lines are called what the verdict calls them.
    """

    def __init__(
        self,
        source: str,
        documents: pd.DataFrame,
        ranks: Mapping[str, int],
        verdict: Mapping[str, Any],
        marks: Mapping[str, Marks] | None = None,
        events: pd.DataFrame | None = None,
    ) -> None:
        self.source = source
        self.marks = dict(marks or {})
        self._documents = documents
        self._ranks = dict(ranks)
        self._names = {str(name): row for row, name in enumerate(documents["name"])}
        self._evidence: dict[tuple[str, int], tuple[int, str]] = {}
        for number, row in enumerate(verdict.get("evidence") or ()):
            if row.get("file") and row.get("line"):
                self._evidence.setdefault((row["file"], row["line"]), (number, row["signature"]))
        self._known: dict[tuple[str, int], str] = {}
        if events is not None and len(events):
            named = events[events["file"].notna() & events["line"].notna() & events["signature"].notna()]
            for file, line, signature in zip(named["file"], named["line"], named["signature"], strict=True):
                self._known.setdefault((str(file), int(line)), str(signature))
        self._reader = Source(source, self.marks)
        self._lock = Lock()

    def files(self) -> pd.DataFrame:
        """Return the documents: file, kind, node, rank, size (bytes), lines."""
        import pandas as pd

        frame = self._documents[["name", "kind", "node", "size", "lines"]].rename(columns={"name": "file"})
        ranks = [self._ranks.get(str(name), pd.NA) for name in frame["file"]]
        frame.insert(3, "rank", pd.Series(pd.array(ranks, dtype="Int64")))
        return frame

    def window(self, file: str, line: int, *, before: int = 40, after: int = 40, width: int = LONGEST) -> LogWindow:
        """
        Return the lines around a line.

        Parameters
        ----------
        file : str
            Name of a document.
        line : int
            1-based; one past the end shows the end, and says so.
        before, after : int
            How many lines around it, at most 2,500 each.
        width : int
            Characters of a line, at most two million; a longer one is cut, and says so.

        Returns
        -------
        LogWindow
            Its `problem` says why there are no lines, or that the document ends earlier.
        """
        if file not in self._names:
            return LogWindow(file, problem=f"{file} is no document of this case")
        line = max(int(line), 1)
        first = max(line - min(max(before, 0), MOST_LINES // 2), 1)
        last = line + min(max(after, 0), MOST_LINES // 2)
        try:
            with self._lock:
                text = self._reader.text(file)
                rows, more, total = _rows(text, first, last, min(max(width, 1), WIDEST))
        except Gone as error:
            return LogWindow(file, problem=str(error))
        except OSError as error:
            return LogWindow(file, problem=f"{file} cannot be read: {error.strerror or error}")
        problem = ""
        if total is not None and line > total:
            problem = f"{file} has {total:,} lines; line {line:,} is not there" if total else f"{file} is empty"
            if total and not rows:  # its end is nearest to what was asked for
                end = self.window(file, total, before=before, after=0)
                return LogWindow(file, end.lines, end.before, end.after, problem)
        hits = _signatures([row for _, row, _ in rows], str(self._documents["kind"].iloc[self._names[file]]))
        lines = []
        for (number, raw, cut), known in zip(rows, hits, strict=True):
            evidence = self._evidence.get((file, number))
            called = evidence[1] if evidence else self._known.get((file, number), known)
            lines.append(LogLine(number, raw, called, evidence[0] if evidence else None, cut))
        return LogWindow(file, tuple(lines), bool(rows) and rows[0][0] > 1, more, problem)

    def search(
        self, text: str, *, file: str | None = None, rank: int | None = None, node: str | None = None, limit: int = 200
    ) -> pd.DataFrame:
        """
        Return lines that hold a text; letter case is ignored.

        Parameters
        ----------
        text : str
            Plain text, no expression.
        file, rank, node : optional
            Only this document's, rank's or node's lines.
        limit : int
            How many lines at most.

        Returns
        -------
        DataFrame
            file, line, rank, node, text. ``attrs``: ``more`` (there may be further ones), ``searched`` and ``left_out`` (how many
            documents were and were not looked at), ``problems`` (document → why it could not be read).
        """
        rows: list[tuple[str, int, int | None, str | None, str]] = []
        problems: dict[str, str] = {}
        names = self._chosen(file, rank, node)
        stop = time.monotonic() + SEARCH_SECONDS
        searched, more = 0, False
        for name in names if text else []:
            if len(rows) >= limit or time.monotonic() > stop:
                more = True
                break
            try:
                for number, found in self._found(name, text, stop):
                    who = self._ranks.get(name)
                    if who is None:
                        who = _rank_of(found)
                    if rank is not None and who != rank:
                        continue
                    if len(rows) >= limit:
                        more = True
                        break
                    rows.append((name, number, who, self._node(name), found))
                searched += 1
            except Gone as error:
                problems[name] = str(error)
            except OSError as error:
                problems[name] = f"{name} cannot be read: {error.strerror or error}"
            except TimeoutError:
                more = True
        frame = _frame(rows)
        frame.attrs.update(more=more, searched=searched, left_out=len(names) - searched - len(problems), problems=problems)
        return frame

    def _chosen(self, file: str | None, rank: int | None, node: str | None) -> list[str]:
        if file is not None:
            return [file] if file in self._names else []
        names = [name for name, row in self._names.items() if self._documents["lines"].iloc[row] is not None]
        if node is not None:
            names = [name for name in names if self._node(name) == node]
        if rank is not None:
            names = [name for name in names if self._ranks.get(name, rank) == rank]
            names.sort(key=lambda name: name not in self._ranks)  # its own log first
        return names

    def _node(self, name: str) -> str | None:
        node = self._documents["node"].iloc[self._names[name]]
        return node if isinstance(node, str) else None

    def _found(self, name: str, text: str, stop: float) -> Iterator[tuple[int, str]]:
        with self._lock:
            document = self._reader.text(name)
        needle = text.encode("utf-8", "replace").lower() if text.isascii() else b""
        folded = text.casefold()
        number, rest = 0, b""  # line ends before `rest`, and the begin of a line that the piece cut
        piece = 0
        while True:
            with self._lock:
                block = document.piece(piece)
            piece += 1
            if not block and not rest:
                return
            data = rest + block
            cut = data.rfind(b"\n") + 1 if block and len(data) < _FAR else len(data)
            part, rest = data[:cut], data[cut:]
            yield from _matches(part, number, needle, folded)
            number += part.count(b"\n")
            if not block:
                return
            if time.monotonic() > stop:
                raise TimeoutError


def _matches(part: bytes, number: int, needle: bytes, folded: str) -> Iterator[tuple[int, str]]:
    if needle:
        lowered = part.lower()
        at, counted, here = lowered.find(needle), 0, number
        while at >= 0:
            start = part.rfind(b"\n", 0, at) + 1
            end = part.find(b"\n", at)
            end = len(part) if end < 0 else end
            here += part.count(b"\n", counted, start)
            counted = start
            shown = start if at - start < LONGEST - 200 else at - 200  # of an endless line the part that holds the text
            yield here + 1, _shown(part[shown:end])[0]
            at = lowered.find(needle, end)
        return
    for offset, row in enumerate(part.split(b"\n")):
        whole = row.decode("utf-8", "replace")
        if folded in whole.casefold():
            yield number + offset + 1, _shown(row)[0]


def _rows(text: Text, first: int, last: int, width: int) -> tuple[list[tuple[int, str, bool]], bool, int | None]:
    """Return (number, text, cut) of lines, whether there are more behind them, and how many there are in all when the end was met."""
    piece = text.piece_of(first)
    number = text.first_line(piece) + 1  # of the line that goes on, or begins, where the piece begins
    rows: list[tuple[int, str, bool]] = []
    begun = b""  # of the line that goes on into the next piece
    long = False
    while True:
        block = text.piece(piece)
        if not block:
            ends = number - 1 + bool(begun)
            if begun and first <= number <= last:
                rows.append((number, *_shown(begun, long, width)))
            return rows, False, ends
        skip = 0
        if number < first:
            skip, number = _skip(block, first, number)
            if number < first:
                begun, piece = block[-1:] if block[-1:] != b"\n" else b"", piece + 1
                continue
            begun = b""
        while number <= last:
            end = block.find(b"\n", skip)
            if end < 0:
                long = long or len(begun) > width * 4
                begun = (begun + block[skip:])[: width * 8] if not long else begun
                skip = len(block)
                break
            rows.append((number, *_shown((begun + block[skip:end])[: width * 8], long, width)))
            begun, long, skip, number = b"", False, end + 1, number + 1
        if number > last:
            return rows, skip < len(block) or bool(text.piece(piece + 1)), None
        piece += 1


def _skip(block: bytes, first: int, number: int) -> tuple[int, int]:
    """Return where line `first` begins in a block whose begin belongs to line `number`, and the number reached."""
    at = 0
    while number < first:
        end = block.find(b"\n", at)
        if end < 0:
            return len(block), number
        at, number = end + 1, number + 1
    return at, number


def _shown(raw: bytes, long: bool = False, width: int = LONGEST) -> tuple[str, bool]:
    text = clean(raw[: width * 8].decode("utf-8", "replace").rstrip("\r\n"))
    if "\r" in text:
        text = text.rsplit("\r", 1)[1] if len(text) > width else text
    return text[:width], long or len(text) > width or len(raw) > width * 8


def _signatures(texts: list[str], kind: str) -> list[str]:
    """Return what the catalog's tables of a kind of document know each line as, what says most first; nothing for most lines."""
    from workbench.catalog import signatures
    from workbench.parse.job_signatures import rank_of
    from workbench.parse.job_state import SOFT
    from workbench.sources.files import scanner

    tables = _TABLES.get(kind)
    if not texts or not tables:
        return [""] * len(texts)
    rows = signatures()
    data = "\n".join(text.replace("\n", " ").replace("\r", " ") for text in texts).encode("utf-8", "replace")
    found = [""] * len(texts)
    for line in scanner().lines(data)[0]:
        # a kernel's line may hold words that a job's table knows, and the other way round: triage reads each by its own tables
        own = [row for name in line.hits if (row := rows.get(name)) is not None and row.origin.startswith(tables)]
        best = max(own, key=rank_of, default=None)
        if best is not None and best.layer != "noise" and best.id not in SOFT and 0 < line.no <= len(found):
            found[line.no - 1] = best.id
    return found


def _rank_of(text: str) -> int | None:
    from workbench.parse.prefix import split_prefix

    return split_prefix(text).rank


def _frame(rows: list[tuple[str, int, int | None, str | None, str]]) -> pd.DataFrame:
    import pandas as pd

    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [() for _ in _COLUMNS]
    return pd.DataFrame(
        {
            name: pd.array([pd.NA if value is None else value for value in values], dtype=dtype)  # type: ignore[call-overload]
            for (name, dtype), values in zip(_COLUMNS.items(), columns, strict=True)
        }
    )
