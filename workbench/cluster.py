"""
Turn a Dask cluster into workers that read, parse and triage what lies on storage which all its machines share.

The functions and the answers are those of one machine; what is lost with a worker is done again by another. Nothing of Dask is imported
before an address is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        if not self._client.scheduler_info(n_workers=-1)["workers"]:
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
        """How many workers there are now."""
        return len(self._client.scheduler_info(n_workers=-1)["workers"])

    def read(self, files: Sequence[Found], about: Survey) -> Future[list[Outcome]]:
        """Return, in time, what some files hold, in their order, without the text itself."""
        return cast("Future[list[Outcome]]", _Answer(self._client, work, about, list(files)))

    def triage(self, path: str) -> Future[dict[str, Any]]:
        """Return, in time, the verdict on one incident as JSON."""
        return cast("Future[dict[str, Any]]", _Answer(self._client, _triage, path))

    def close(self) -> None:
        """Leave the cluster; it goes on without us."""
        self._client.close()


def _version() -> str:
    return __version__


def _triage(path: str) -> dict[str, Any]:
    return cast("dict[str, Any]", work("triage", [path])[0])


class _Answer:
    """A result that is on its way; when the cluster loses it again and again (a worker dies of it each time), it is made here."""

    def __init__(self, client: Any, function: Callable[..., Any], *arguments: Any) -> None:
        self._work = function, arguments
        self._future = client.submit(function, *arguments, pure=False)

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        self._future.add_done_callback(lambda _: function(self))

    def result(self) -> Any:
        from concurrent.futures import CancelledError

        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            return self._future.result()
        except (KilledWorker, CommClosedError, CancelledError, TimeoutError, OSError):
            function, arguments = self._work
            return function(*arguments)
        finally:
            self._future.release()
