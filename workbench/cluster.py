"""
Turn a Dask cluster into workers that read, parse and triage what lies on storage which all its machines share.

The functions and the answers are those of one machine; what is lost with a worker is done again by another. Nothing of Dask is imported
before an address is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from workbench import __version__
from workbench.errors import SourceUnavailable
from workbench.workers import work

if TYPE_CHECKING:
    from concurrent.futures import Future

    from workbench.sources.survey import Survey
    from workbench.sources.walk import Found
    from workbench.workers import Outcome

__all__ = ["Cluster"]

# Seconds
_LOOK = 1.0  # between looks at the cluster while a result is waited for
_ALONE = 10.0  # without any worker until the work is done here: a site that replaces its workers has some by then
_FETCH = 60.0  # for one result, compact as it is, to come from its worker


class Cluster:
    """
    The workers of a Dask cluster.

    Parameters
    ----------
    address : str
        Of the scheduler: ``tcp://scheduler:8786``.
    seconds : float
        How long to wait for it.

    Raises
    ------
    SourceUnavailable
        `dask.distributed` is not installed, the scheduler does not answer or has no workers, or its workers lack the workbench or have
        another version of it.
    """

    takes_large = True

    def __init__(self, address: str, *, seconds: float = 30.0) -> None:
        self._next = 0.0  # when to look again whether there are workers
        self._alone: float | None = None  # since when there has been none
        self._gone = False
        try:
            from distributed import Client
        except ImportError:
            raise SourceUnavailable(
                "a cluster needs dask.distributed, which is not installed here",
                hint="pip install 'gpu-reliability-workbench[cluster]'",
            ) from None
        try:
            client: Any = Client
            self._client = client(address, timeout=seconds, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise SourceUnavailable(
                f"{address}: the scheduler does not answer: {error}", hint="give the address that `dask scheduler` prints"
            ) from error
        try:
            self._check(address)
        except BaseException:
            self._client.close()
            raise

    def _check(self, address: str) -> None:
        """Every worker must be able to do the work, and do it as we would."""
        self._first = self._workers()
        if not self._first:
            raise SourceUnavailable(f"{address}: the cluster has no workers", hint=f"start some: dask worker {address}")
        versions = self._client.run(_version, on_error="return")
        wrong = {where: told for where, told in versions.items() if told != __version__}
        if wrong:
            where, told = next(iter(wrong.items()))
            raise SourceUnavailable(
                f"{len(wrong)} of {len(versions)} workers have another workbench than {__version__}: {where} has {told}",
                hint=f"install it there: pip install gpu-reliability-workbench=={__version__}",
            )

    @property
    def size(self) -> int:
        """How many workers there are now; none when the scheduler does not answer."""
        return len(self._workers())

    def said(self) -> str:
        """Return one sentence on what was lost on the way, or nothing."""
        if self._gone:
            return "the cluster had no workers any more; what they had not done was done here"
        lost = len(self._first - self._workers())
        return f"{lost} of the cluster's {len(self._first)} workers went away; others did their work again" if lost else ""

    def is_gone(self) -> bool:
        """Tell whether there has been no worker for so long that the work is done here."""
        if self._gone:
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _LOOK
        self._alone = None if self.size else self._alone or now
        self._gone = self._alone is not None and now - self._alone >= _ALONE
        return self._gone

    def _workers(self) -> set[str]:
        if self._client.status != "running":  # while it looks for a lost scheduler, calls would wait with it
            return set()
        try:
            return set(self._client.scheduler_info(n_workers=-1)["workers"])
        except Exception:  # Dask ends calls to a lost scheduler in many ways, `TypeError` among them
            return set()

    def read(self, files: Sequence[Found], about: Survey) -> Future[list[Outcome]]:
        """Return, in time, what some files hold, in their order, without the text itself."""
        return cast("Future[list[Outcome]]", _Answer(self, work, about, list(files)))

    def triage(self, path: str) -> Future[dict[str, Any]]:
        """Return, in time, the verdict on one incident as JSON."""
        return cast("Future[dict[str, Any]]", _Answer(self, _triage, path))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a future of Dask's: a function of this package, called by one of the workers."""
        return self._client.submit(function, *arguments, pure=False)

    def close(self) -> None:
        """Leave the cluster; it goes on without us."""
        self._client.close()


def _version() -> str:
    return __version__


def _triage(path: str) -> dict[str, Any]:
    return cast("dict[str, Any]", work("triage", [path])[0])


class _Answer:
    """
    A result that is on its way.

    It is fetched as soon as it is there, so that a worker holds nothing that would be lost with it. When the cluster loses it again and
    again (a worker dies of it each time), or has no workers any more, it is made here.
    """

    def __init__(self, cluster: Cluster, function: Callable[..., Any], *arguments: Any) -> None:
        self._cluster = cluster
        self._work = function, arguments
        self._done: list[Callable[[Any], object]] = []
        self._fetched: tuple[Any] | None = None
        self._ended = Event()
        self._future = cluster.submit(function, *arguments)
        self._future.add_done_callback(self._fetch)

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        self._done.append(function)
        if self._ended.is_set():
            self._tell()

    def _fetch(self, future: Any) -> None:
        """Run in a thread of Dask's: take the result, or leave it to whoever asks."""
        with suppress(Exception):  # lost, or the function's own error: `result` makes it here, and meets the error again
            self._fetched = (future.result(timeout=_FETCH),)
        self._end()

    def _end(self) -> None:
        self._future.release()
        self._ended.set()
        self._tell()

    def _tell(self) -> None:
        while self._done:
            try:
                function = self._done.pop()
            except IndexError:  # the other thread had it
                return
            function(self)

    def result(self) -> Any:
        while not self._cluster.is_gone() and not self._ended.wait(_LOOK):
            continue
        if self._fetched is None:
            function, arguments = self._work
            self._fetched = (function(*arguments),)
            if not self._ended.is_set():
                self._end()
        return self._fetched[0]
