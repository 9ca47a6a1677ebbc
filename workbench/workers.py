"""
Turn documents into what their parsers found, in processes beside this one, so that the logs of thousands of ranks use all cores.

The processes are started as programs and spoken to over pipes, not forked: forking beside the threads that read files can lock up, and
the spawn of `multiprocessing` runs the main script of whoever calls us a second time.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from workbench.model import Parsed
    from workbench.sources.files import Document

__all__ = ["Workers", "serve"]

_PROGRAM = "import sys; sys.path[:] = {path!r}; from workbench.workers import serve; serve()"


class _Pipe(Protocol):
    stdin: Any
    stdout: Any


class Workers:
    """
    Processes that parse batches of documents.

    Parameters
    ----------
    count : int
        How many; each costs about half a second of CPU to start and 60 MB.
    """

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

    def submit(self, documents: Sequence[Document]) -> Future[list[Parsed | Exception]]:
        """Return, in time, one result a document: what its parser found, or the exception that it met."""
        return self._threads.submit(self._ask, list(documents))

    def _ask(self, documents: list[Document]) -> list[Parsed | Exception]:
        process = self._idle.get()
        try:
            pipe = cast(_Pipe, process)
            pickle.dump(documents, pipe.stdin, pickle.HIGHEST_PROTOCOL)
            pipe.stdin.flush()
            return cast("list[Parsed | Exception]", pickle.load(pipe.stdout))  # noqa: S301 - our own process wrote it
        except (OSError, EOFError, pickle.PickleError):
            return [_parse(document) for document in documents]  # the process died (killed for memory, say): do its work here
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
    import os
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked; it closes our stdin
    ask, answer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints may get into the answers
    while True:
        try:
            documents = pickle.load(ask)  # noqa: S301 - the process that started us wrote it
        except EOFError:
            return
        pickle.dump([_parse(document) for document in documents], answer, pickle.HIGHEST_PROTOCOL)
        answer.flush()


def _parse(document: Document) -> Parsed | Exception:
    from workbench.incident import parse_document

    try:
        return parse_document(document)
    except Exception as error:  # a parser's defect must not cost the rest of the evidence
        return RuntimeError(f"{type(error).__name__}: {error}")
