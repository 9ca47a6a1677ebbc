"""
Turn files and documents into what their parsers found, in processes beside this one, so that the logs of thousands of ranks use all cores.

The processes are started as programs and spoken to over pipes, not forked: forking beside the threads that read files can lock up, and
the spawn of `multiprocessing` runs the main script of whoever calls us a second time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from workbench.collector import no_collector

if TYPE_CHECKING:
    from workbench.model import Parsed, Problem
    from workbench.sources.files import Document, Progress
    from workbench.sources.survey import Survey
    from workbench.sources.walk import Found

__all__ = ["BATCH", "Outcome", "Pool", "Workers", "cores", "read_parsed", "serve", "work"]

Outcome: TypeAlias = (
    "tuple[Document, Parsed | Exception] | Problem"  # a document and what its parser found or met; or what could not be read
)

BATCH = 64  # documents handed to a process at a time
_LARGE = 256 << 20  # a file that this process scans itself, with threads
# Of each batch the first files of a naming are looked at closely, and each costs a round trip: batches of 64 small logs take a quarter
# more CPU than those of 512. Eight for each worker keep all of them busy to the end, and little is done again when one is lost.
_FILES = range(16, 513)
_SIZES = range(1 << 20, _LARGE + 1)  # bytes
_EACH = 8

_PROGRAM = "import sys; sys.path[:] = {path!r}; from workbench.workers import serve; serve()"


class _Pipe(Protocol):
    stdin: Any
    stdout: Any


class Pool(Protocol):
    """Workers elsewhere: processes beside this one (`Workers`), or the machines of a cluster (`workbench.cluster.Cluster`)."""

    takes_large: bool  # one large file, too, is read there rather than by threads of this process

    @property
    def size(self) -> int:
        """How many workers there are."""

    def read(self, files: Sequence[Found], about: Survey) -> Future[list[Outcome]]:
        """Return, in time, what some files hold, in their order, without the text itself."""

    def triage(self, path: str) -> Future[dict[str, Any]]:
        """Return, in time, the verdict on one incident as JSON; whatever goes wrong becomes an `unknown` that says so."""

    def close(self) -> None:
        """Let the workers go."""


class Workers:
    """
    Processes that read, parse or triage.

    Parameters
    ----------
    count : int
        How many; each costs about half a second of CPU to start and 60 MB.
    """

    takes_large = False

    def __init__(self, count: int) -> None:
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._all = [
            subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(path=[entry for entry in sys.path if entry] or [""])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(count)
        ]
        for process in self._all:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count)

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self._all)

    def parse(self, documents: Sequence[Document]) -> Future[list[Parsed | Exception]]:
        """Return, in time, one result a document: what its parser found, or the exception that it met."""
        return self._threads.submit(self._ask, None, list(documents))

    def read(self, files: Sequence[Found], about: Survey) -> Future[list[Outcome]]:
        """Return, in time, what some files hold, in their order, without the text itself."""
        return self._threads.submit(self._ask, about, list(files))

    def triage(self, path: str) -> Future[dict[str, Any]]:
        """Return, in time, the verdict on one incident as JSON."""
        return self._threads.submit(lambda: cast("dict[str, Any]", self._ask("triage", [path])[0]))

    def _ask(self, about: Survey | str | None, items: list[Any]) -> list[Any]:
        process = self._idle.get()
        try:
            pipe = cast(_Pipe, process)
            pickle.dump((about, items), pipe.stdin, pickle.HIGHEST_PROTOCOL)
            pipe.stdin.flush()
            return cast("list[Any]", pickle.load(pipe.stdout))  # noqa: S301 - our own process wrote it
        except (OSError, EOFError, pickle.PickleError):
            return work(about, items)  # the process died (killed for memory, say): do its work here
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Let the processes end."""
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:  # what was still to be written to a process that died
                        continue
        for process in self._all:
            process.wait()


def serve() -> None:
    """Answer batches from stdin on stdout until there are no more: what a worker process runs."""
    import signal

    from workbench.parse.scan_part import use_numpy

    global _alone
    _alone = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked; it closes our stdin
    use_numpy()  # its import pays here: whoever starts a process has a lot to read
    ask, answer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints may get into the answers
    while True:
        try:
            about, items = pickle.load(ask)  # noqa: S301 - the process that started us wrote it
        except EOFError:
            return
        pickle.dump(work(about, items), answer, pickle.HIGHEST_PROTOCOL)
        answer.flush()


_alone = False  # a worker has one core: it starts no workers of its own


def cores() -> int:
    """Return how many cores this process may use."""
    if _alone:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_parsed(
    found: Sequence[Found], about: Survey, progress: Progress | None = None, pool: Pool | None = None
) -> Iterator[Outcome]:
    """
    Yield what the files of a large incident hold, in their order: logs are read and parsed by processes, the rest by this one.

    Metrics and structured documents cost more to send than to parse, and one large log is read faster by threads. `pool` (default:
    processes of this machine, which end with it) is not closed.
    """
    from workbench.sources.survey import has_no_lines

    lock = Lock()
    done = 0

    def advance(more: int, name: str) -> None:
        nonlocal done
        with lock:
            done += more
            if progress:
                progress(done, about.total, name)

    parts: list[Future[list[Outcome]] | list[Outcome]] = []
    own: list[tuple[int, Found]] = []
    batch: list[Found] = []
    filled = 0  # bytes
    workers = pool or Workers(min(cores(), 16))
    most_files, most_bytes = _batch(found, about, workers.size)

    def send() -> None:
        nonlocal filled
        if batch:
            size, name = filled, batch[-1].name
            answer = workers.read(tuple(batch), about)
            answer.add_done_callback(lambda _: advance(size, name))
            parts.append(answer)
            batch.clear()
            filled = 0

    try:
        for each in found:
            if has_no_lines(each.name) or each.path == "-" or (each.size >= _LARGE and not workers.takes_large):
                send()
                own.append((len(parts), each))
                parts.append([])
                continue
            batch.append(each)
            filled += each.size
            if len(batch) >= most_files or filled >= most_bytes:
                send()
        send()
        for place, each in own:
            parts[place] = list(_read([each], about))
            advance(each.size, each.name)
        for part in parts:
            yield from part if isinstance(part, list) else part.result()
    finally:
        if pool is None:
            workers.close()


def _batch(found: Sequence[Found], about: Survey, workers: int) -> tuple[int, int]:
    """Return how many files, and how many bytes, a worker gets at a time."""
    parts = _EACH * max(workers, 1)
    files, size = -(-len(found) // parts), -(-about.total // parts)
    return min(max(files, _FILES[0]), _FILES[-1]), min(max(size, _SIZES[0]), _SIZES[-1])


def work(about: Survey | str | None, items: Sequence[Any]) -> list[Any]:
    """Do what a worker was asked for: parse documents, triage incidents, or read files and parse what they hold."""
    if isinstance(about, str):
        from workbench.incident import triage_path

        return [triage_path(path) for path in items]
    with no_collector():
        if about is None:
            return [_parse(document) for document in items]
        return list(_read(items, replace(about, limits=replace(about.limits, workers=1))))


def _read(files: Sequence[Found], about: Survey) -> Iterator[Outcome]:
    from workbench.incident import needs_year, without_input
    from workbench.model import Parsed, Problem
    from workbench.sources.files import read_files

    for document in read_files(files, about):
        if isinstance(document, Problem):
            yield document
            continue
        result = _parse(document)
        if not (isinstance(result, Parsed) and needs_year(result)):
            without_input(result, document)
        yield document, result


def _parse(document: Document) -> Parsed | Exception:
    from workbench.incident import parse_document

    try:
        return parse_document(document)
    except Exception as error:  # a parser's defect must not cost the rest of the evidence
        return RuntimeError(f"{type(error).__name__}: {error}")
