"""Turn a folder, an archive or a file of evidence into documents (kind, lines, data) and problems (what could not be read)."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import Any, BinaryIO

from workbench.catalog import scan_patterns
from workbench.model import Line, Problem
from workbench.parse.ids import same_node
from workbench.parse.scan import Scanner
from workbench.sources.archive import Budget, Member, NotReadable, Stream, opened
from workbench.sources.documents import load_json, load_yaml, unwrapped, unwrapped_line
from workbench.sources.naming import node_of
from workbench.sources.sniff import is_json, kind_of, looks_binary
from workbench.sources.survey import Limits, Survey, survey
from workbench.sources.walk import Found, find

__all__ = ["Document", "Limits", "Progress", "Utf16", "locate", "nothing", "read_evidence", "read_files", "scanner"]

MIB = 1 << 20
_DIGITS = re.compile(r"\d+")
_KERNEL = (
    16 << 10
)  # bytes of a kernel log kept whole at least: its lines cost little to parse, and what stands around an event explains it
_ALIKE = 16  # files of one naming that are looked at closely
Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, name of the file

_JSON_KINDS = frozenset(
    {
        "metrics-json",
        "kubernetes",
        "kubelet-devices",
        "flight-recorder",
        "torchelastic-error",
        "bmc",
        "launch",
        "manifest",
        "smi",
        "slurm-text",
        "text",
    }
)


@dataclass(slots=True)
class Document:
    """
    One file of evidence, or one member of an archive (``archive.tar!inner``).

    `lines` has every line of a log when `complete`, else its begin, its end and the lines that match a signature with their
    neighbours; `counts` says how many lines of the whole log each signature matched. `data` is the content of JSON and YAML
    (a list when there are several documents), `raw` the bytes of metrics, dumps and structured documents. Of a log that is not complete
    `samples` are lines from all over it, and `marks`, of one that lies unpacked on disk, an index: (offset, lines before it).
    """

    name: str
    kind: str
    node: str | None = None
    size: int = 0
    lines: list[Line] = field(default_factory=list)
    total_lines: int = 0
    complete: bool = True
    data: Any = None
    raw: bytes | None = None
    counts: dict[str, int] = field(default_factory=dict)
    mtime: float | None = None
    marks: list[tuple[int, int]] = field(default_factory=list)
    samples: list[tuple[int, bytes]] = field(default_factory=list)


@lru_cache(maxsize=2)
def scanner(site: str | None = None) -> Scanner:
    """Return the scanner for all signatures of the catalog."""
    return Scanner(scan_patterns(site))


def locate(raw: bytes | None, needle: str) -> tuple[int, str] | None:
    """Return number and text of the first line of a document that contains a text, e.g. to cite the place in a JSON file."""
    if not raw or not needle:
        return None
    at = raw.find(needle.encode("utf-8", "replace"))
    if at < 0:
        return None
    start = raw.rfind(b"\n", 0, at) + 1
    end = raw.find(b"\n", at)
    return raw.count(b"\n", 0, start) + 1, raw[start : end if end >= 0 else len(raw)][:65536].decode("utf-8", "replace").strip(
        "\r"
    )


def read_evidence(
    paths: Sequence[str | os.PathLike[str]],
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
    scan: Scanner | None = None,
) -> Iterator[Document | Problem]:
    """
    Yield what the files of one incident hold, in order of their names; what cannot be read becomes a problem.

    Parameters
    ----------
    paths : sequence of paths
        Folders, archives or files that belong to one incident; ``-`` is `stdin`. Call once for each incident.
    limits : Limits, optional
        How much is read.
    progress : callable, optional
        Called with (bytes done, bytes in all, name of the file).
    stdin : binary stream, optional
        What ``-`` reads; default the process's standard input.
    scan : Scanner, optional
        Default the one for the catalog's signatures.
    """
    limits = limits or Limits()
    found, problems = find(paths, limits.files)
    yield from problems
    if not found and not problems:
        yield nothing(paths)
    yield from read_files(found, survey(found, limits), progress=progress, stdin=stdin, scan=scan)


def nothing(paths: Sequence[str | os.PathLike[str]]) -> Problem:
    """Return the problem of paths under which no file was found."""
    return Problem(
        ", ".join(os.fspath(path) for path in paths) or "(nothing)",
        "there is no evidence in it",
        "give a folder with logs, kernel logs, metrics or scheduler output, or a single log file",
        status="missing",
    )


def read_files(
    found: Sequence[Found],
    about: Survey,
    *,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
    scan: Scanner | None = None,
) -> Iterator[Document | Problem]:
    """Yield what some of the surveyed files hold, in their order; the other parameters are those of `read_evidence`."""
    workers = about.limits.workers
    reader = _Reader(about, scan or scanner(), progress, stdin)
    if len(found) <= workers or workers < 2:
        for each in found:
            yield from reader.file(each)
        return
    # Files are read ahead by threads and handed out in order; a few at a time, so that memory stays bounded.
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future[list[Document | Problem]]] = deque()
        rest = iter(found)
        try:
            while True:
                for each in islice(rest, 4 * workers - len(ahead)):
                    ahead.append(pool.submit(lambda each: list(reader.file(each)), each))
                if not ahead:
                    return
                yield from ahead.popleft().result()
        finally:
            for job in ahead:
                job.cancel()


class _Reader:
    def __init__(self, about: Survey, scan: Scanner, progress: Progress | None, stdin: BinaryIO | None) -> None:
        self.limits = about.limits
        self.stdin = stdin
        self.lock = Lock()
        self.scan = scan
        self.progress = progress
        self.share = about.share
        self.samples = about.samples
        self.total = about.total
        self.nodes = about.nodes
        self.kinds: dict[str, tuple[str, int]] = {}
        self.done = 0

    def file(self, found: Found) -> Iterator[Document | Problem]:
        """Yield what one file holds."""
        part = [0]  # bytes of this file that were reported as done
        try:
            if found.path == "-":
                import sys

                stream: Any = self.stdin or sys.stdin.buffer
                yield from self._members(found, stream, part)
            else:
                with open(found.path, "rb", buffering=0) as raw:
                    yield from self._members(found, raw, part)
        except OSError as error:
            yield Problem(found.name, f"it cannot be read: {error.strerror or error}", "check its permissions and the disk")
        self.advance(found, part, found.size)

    def advance(self, found: Found, part: list[int], count: int) -> None:
        """Report progress: `count` more bytes, at most the size of the file (of a compressed one more bytes come out)."""
        count = min(count, found.size - part[0])
        part[0] += count
        with self.lock:
            self.done += count
            if self.progress:
                self.progress(self.done, self.total, found.name)

    def _members(self, found: Found, stream: BinaryIO, part: list[int]) -> Iterator[Document | Problem]:
        budget = Budget(expanded=self.limits.expanded, members=self.limits.members)
        readable = stream if hasattr(stream, "readinto") else _Reading(stream)
        for each in opened(found.name, readable, budget, size=found.size, mtime=found.mtime):  # type: ignore[arg-type]
            if isinstance(each, Problem):
                yield each
                continue
            if not each.packed and found.path != "-":
                each.path = found.path
            try:
                yield from self.document(each, lambda count: self.advance(found, part, count))
            except NotReadable as error:
                yield Problem(each.name, str(error), error.hint)

    def document(self, member: Member, advance: Callable[[int], None]) -> Iterator[Document | Problem]:
        """Yield the document that a member holds, and the problems met on the way."""
        stream = member.stream
        head = stream.peek(65536)
        kind = self._kind(member.name, head)
        document = Document(member.name, kind, node_of(member.name, kind, self.nodes), mtime=member.mtime)
        if kind == "job-log" and document.node and not _speaks_of(document.node, head):
            document.node = None
        if not head and stream.failed is None:
            if re.search(r"\.(?:json|prom|ya?ml|gz|zst|om)$", member.name):
                yield Problem(member.name, "the file is empty", "collect it again", status="missing")
            yield document
            return
        if kind == "binary":
            yield _binary(member.name, head)
            return
        if kind == "metrics-text" or head[:1] == b"\x80":
            yield from self._raw(member, document)
        elif kind in _JSON_KINDS and is_json(head):
            yield from self._data(member, document, load_json)
        elif kind == "kubernetes":
            yield from self._data(member, document, load_yaml)
        else:
            yield from self._log(member, document, head, advance)

    def _kind(self, name: str, head: bytes) -> str:
        """Return the kind; of files named alike but for digits (`rank-0001.log` …) many that agree stand for the rest."""
        alike = _DIGITS.sub("", name)
        kind, agreed = self.kinds.get(alike, ("", 0))
        if agreed >= _ALIKE and head and head[:1] not in b"\x80{[\xff\xfe" and not looks_binary(head[:1024]):
            return kind
        found = kind_of(name, head)
        self.kinds[alike] = (found, agreed + 1 if found == kind else 1)
        return found

    def _raw(self, member: Member, document: Document) -> Iterator[Document | Problem]:
        document.raw = member.stream.peek(self.limits.raw + 1)
        document.size = len(document.raw)
        if document.size > self.limits.raw:
            cut = document.raw.rfind(b"\n", 0, self.limits.raw) + 1
            document.raw, document.complete = document.raw[:cut], False
            yield Problem(
                member.name,
                f"it is larger than {self.limits.raw // MIB} MiB; only its begin is used",
                "give a shorter time range around the failure",
                status="partial",
            )
        yield from self._failed(member, document)
        yield document

    def _data(
        self, member: Member, document: Document, load: Callable[[bytes], tuple[Any, tuple[int, str] | None]]
    ) -> Iterator[Document | Problem]:
        raw = member.stream.peek(self.limits.data + 1)
        document.raw, document.size = raw, len(raw)
        if document.size > self.limits.data:
            document.complete = False
            yield Problem(
                member.name,
                f"it is larger than {self.limits.data // MIB} MiB; only its begin is used",
                "give a shorter time range, or fewer objects",
                status="partial",
            )
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raw = document.raw = raw.decode("utf-16", "replace").encode()
        failed = list(self._failed(member, document))
        yield from failed
        document.data, wrong = load(raw)
        document.total_lines = raw.count(b"\n") + (not raw.endswith(b"\n"))
        if wrong and not failed and document.size <= self.limits.data:
            document.complete = False
            line, what = wrong
            used = "what is whole before it is used" if document.data is not None else "nothing of it can be used"
            yield Problem(
                member.name,
                f"{what}; {used}",
                "collect it again; it was probably cut off while it was written",
                line=line,
                status="partial",
            )
        if document.kind in ("bmc", "torchelastic-error", "launch", "text", "smi") and len(raw) <= MIB:
            document.lines, document.counts = self.scan.lines(raw)
        yield document

    def _failed(self, member: Member, document: Document) -> Iterator[Problem]:
        error = member.stream.failed
        if error is None:
            return
        document.complete = False
        if isinstance(error, NotReadable):
            yield Problem(member.name, str(error), error.hint, status="partial")
        else:
            yield Problem(
                member.name,
                f"it is damaged or cut off: {str(error) or type(error).__name__}; what came before is used",
                "copy it again from where it came",
                status="partial",
            )

    def _log(
        self, member: Member, document: Document, head: bytes, advance: Callable[[int], None]
    ) -> Iterator[Document | Problem]:
        stream = member.stream
        utf16 = head[:2] in (b"\xff\xfe", b"\xfe\xff")
        if utf16:
            stream = Stream(Utf16(stream).readinto)
        share = max(self.share, _KERNEL) if document.kind == "kernel-log" else self.share
        data = stream.peek(share + 1) if member.path is None or utf16 or (member.size or 0) <= share else b""
        failed = stream.failed or member.stream.failed
        if data and len(data) <= share:
            document.size = len(data)
            inner = unwrapped(data) if data[:1] == b"{" or b" F " in head[:256] or b" P " in head[:256] else None
            if inner:
                document.lines, document.counts = self.scan.lines(inner[0])
                for line in document.lines:
                    line.no = inner[1][min(line.no, len(inner[1])) - 1]
            else:
                document.lines, document.counts = self.scan.lines(data)
            document.total_lines = data.count(b"\n") + (not data.endswith(b"\n"))
            data, inner = b"", None  # whoever reads the document may need the memory
            if failed is not None:
                member.stream.failed = failed
                yield from self._failed(member, document)
            yield document
            return
        # where a job's log begins (who am I) costs little; how it ends says most
        head_size = min(self.limits.head, max(share // 8, 256))
        tail_size = min(self.limits.tail, max(share - head_size, 512))

        source: Any = member.path if member.path is not None and not utf16 else stream
        result = self.scan.scan(
            source,
            workers=self.limits.workers,
            progress=advance,
            per_signature=self.limits.per_signature,
            head=head_size,
            tail=tail_size,
            samples=self.samples if document.kind == "job-log" else 0,
        )
        document.samples = result.samples
        document.marks = result.marks if isinstance(source, str) and len(result.marks) > 1 else []
        document.size, document.total_lines, document.counts = result.total_bytes, result.total_lines, result.counts
        document.complete = False
        lines = {line.offset: line for line in result.lines}
        cut = result.head.rfind(b"\n") + 1
        for line in self.scan.lines(result.head[:cut])[0]:
            lines[line.offset] = line
        begin = result.tail.find(b"\n") + 1
        rest = result.tail[begin:]
        if begin and rest:
            rows = rest.count(b"\n") + (not rest.endswith(b"\n"))
            for line in self.scan.lines(rest, first=result.total_lines - rows + 1, offset=result.total_bytes - len(rest))[0]:
                lines[line.offset] = line
        document.lines = [lines[offset] for offset in sorted(lines)]
        cut_lines, error = result.cut, result.error
        del lines, rest, result  # whoever reads the document may need the memory
        if head[:1] == b"{":
            for line in document.lines:
                line.text = unwrapped_line(line.text)
        if cut_lines:
            yield Problem(
                member.name,
                f"{cut_lines} lines are longer than 64 KiB; only their begin, their end and the place of a match are kept",
                "",
                status="ok",
            )
        if error:
            yield Problem(
                member.name,
                f"reading stopped after {document.size} bytes: {error}; what came before is used",
                "copy it again from where it came",
                line=document.total_lines,
                status="partial",
            )
        yield document


# gpu-worker-1:2918:4483 [4] NCCL INFO …
_NCCL_HOST = re.compile(rb"(?:^|[\s>:])([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")


def _speaks_of(node: str, head: bytes) -> bool:
    """Tell whether a job log may be the node's: its lines, where they name a host, name this one."""
    hosts = {found.decode() for found in _NCCL_HOST.findall(head)}
    return not hosts or any(same_node(host, node) for host in hosts)


def _binary(name: str, head: bytes) -> Problem:
    if head.startswith(b"LPKSHHRH"):
        return Problem(
            name,
            "it is a journal in systemd's own format",
            f"export it: journalctl --file {os.path.basename(name)} -o short-iso > kernel.log",
        )
    if head.startswith(b"\x7fELF"):
        return Problem(
            name,
            "it is a core dump or a program",
            "give its stack as text: gdb -batch -ex 'thread apply all bt' PROGRAM CORE > stacks.txt",
        )
    return Problem(name, "it is no text and no known kind of dump", "leave it out, or export it as text")


class _Reading:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readinto(self, view: memoryview) -> int:
        data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)


class Utf16:
    """Hands out UTF-16 text (Windows tools and some BMCs write it) as UTF-8."""

    def __init__(self, stream: Stream) -> None:
        import codecs

        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""
        self._ended = False

    def readinto(self, view: memoryview) -> int:
        while not self._ready and not self._ended:
            block = bytearray(65536)
            got = self._stream.readinto(block)
            self._ended = not got
            self._ready = self._decoder.decode(bytes(block[:got]), final=not got).encode("utf-8", "replace")
        size = min(len(view), len(self._ready))
        view[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size
