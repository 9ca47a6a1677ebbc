"""
Turn the question "what do you know of this job?" into files of an incident folder: what all live sources have in common.

A live source does not judge and does not parse. It writes what its server said, in the server's own format, under the names that an
incident folder has; whoever triages the folder gets the same answer as whoever triages the site, because it is the same code.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

from workbench.errors import SourceError

__all__ = ["STATUSES", "Answer", "Deadline", "File", "Folder", "FolderFull", "Reach", "Scope", "Source", "SourceTimeout"]

STATUSES = ("ok", "partial", "missing", "stale", "failed")


class SourceTimeout(SourceError):
    """A source did not answer within its deadline."""


class FolderFull(SourceError):
    """What was collected reached the size that the folder may have."""


@dataclass(frozen=True, slots=True)
class Scope:
    """
    Which job, when and where; what is not known is None or empty.

    Attributes
    ----------
    job : str
        Name (or, with Slurm, number) of the job as its scheduler knows it.
    since, until : float
        Seconds since the epoch, UTC: the window in which evidence counts.
    namespace : str, optional
        Kubernetes namespace; None means that it is not known.
    attempt : int, optional
        One start of the job; None means all within the window.
    nodes, pods : tuple of str
        Where it ran. Empty until a scheduler told it; a source that can do without them must.
    names : tuple of str
        What its scheduler calls it beside `job`: the name of a job that was asked for by number, the numbers of one asked for by name.
    user : str
        Whose job it is, when the scheduler tells.
    paths : tuple of str
        Files that it writes its output to, by the scheduler's word.
    addresses : tuple of (address, node)
        At which addresses its nodes are known to others, by the scheduler's word.
    """

    job: str
    since: float
    until: float
    namespace: str | None = None
    attempt: int | None = None
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    user: str = ""
    paths: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What became of one question to a source; empty answers and failures are answers, too.

    Attributes
    ----------
    source : str
        Word of the coverage: ``metrics``, ``kubernetes``, ``job``, ``slurm``, ``kernel`` or ``smi``.
    status : str
        One of `STATUSES`. ``missing``: answered, but has nothing where something must be. ``stale``: what it has is too old.
    detail : str
        One sentence a tired person understands: what was asked, what came, in the server's own words where they help.
    hint : str
        The way out, when there is one.
    asked : str
        The query, path or command; never with a secret in it.
    file : str
        File of the incident folder that holds the answer, when there is one.
    rows : int
        Series, objects, lines or records that came.
    seconds : float
        How long it took.
    note : str
        What a reader of the verdict must know of an answer although it is well: how the lines were found, what was left there on purpose.
    nodes : str
        Nodes for which the question was answered although nothing of them had to come, as a host list (``gpu-[01-64]``).
    """

    source: str
    status: str
    detail: str
    hint: str = ""
    asked: str = ""
    file: str = ""
    rows: int = 0
    seconds: float = 0.0
    note: str = ""
    nodes: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"{self.status!r} is no status: {', '.join(STATUSES)}")


@dataclass(frozen=True, slots=True)
class Reach:
    """
    One line of ``workbench doctor``: something this site has or lacks.

    Attributes
    ----------
    source : str
        The backend: ``prometheus``, ``kubernetes``, ``elasticsearch``, ``slurm`` or ``node``.
    item : str
        What was looked at, e.g. ``version``, ``rights: list pods``, ``clock``, ``data age``, ``field DCGM_FI_DEV_ECC_DBE_VOL_TOTAL``.
    status : str
        ``ok``, ``warning``, ``critical`` or ``unknown`` (could not be checked, which is never ok).
    detail : str
        What was found.
    fix : str
        The line of configuration or the command that would change it.
    blind_to : tuple of str
        Failure classes that this cluster therefore cannot show.
    """

    source: str
    item: str
    status: str
    detail: str
    fix: str = ""
    blind_to: tuple[str, ...] = ()


class Deadline:
    """
    A moment after which nobody waits any more.

    Parameters
    ----------
    seconds : float
        From now.
    clock : callable, optional
        Returns seconds that only grow; default `time.monotonic`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self, most: float = float("inf")) -> float:
        """Return the seconds left, at most `most`; raise `SourceTimeout` when there are none."""
        seconds = self._end - self._clock()
        if seconds <= 0:
            raise SourceTimeout("the deadline is over", hint="give it more time: --deadline 60s")
        return min(seconds, most)

    @property
    def over(self) -> bool:
        """Whether there is no time left."""
        return self._end <= self._clock()


@dataclass(frozen=True, slots=True)
class File:
    """A file that was collected: its name in the folder, its size in bytes and its SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass
class Folder:
    """
    The incident folder that sources write to, from several threads; it holds at most `limit` bytes.

    A file appears under its name when it is whole. A name that was written before is kept, so a collection that was interrupted
    goes on where it was: ask `has` before asking the server again.
    """

    root: Path
    limit: int = 2 << 30
    files: dict[str, File] = field(default_factory=dict)
    closed: bool = False  # nothing is written any more, also not by a source that comes back after its deadline
    _lock: Lock = field(default_factory=Lock, repr=False)
    _size: int = 0
    _growing: int = 0  # bytes of files that are being written

    @classmethod
    def resume(cls, root: Path, limit: int = 2 << 30) -> Folder:
        """Return a folder that goes on with what an interrupted collection left in `root`."""
        folder = cls(root, limit)
        for path in sorted(root.rglob("*")):
            if path.suffix == ".partial":
                path.unlink(missing_ok=True)
            elif path.is_file():
                with path.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
                name = path.relative_to(root).as_posix()
                folder.files[name] = File(name, path.stat().st_size, digest)
                folder._size += path.stat().st_size
        return folder

    def has(self, name: str) -> bool:
        """Tell whether a file is there, from this or an earlier collection."""
        return (self.root / name).is_file()

    def write(self, name: str, content: bytes | Iterable[bytes]) -> File:
        """
        Write one file and return what became of it.

        Raises
        ------
        FolderFull
            The folder would grow beyond its limit; nothing is left of the file.
        SourceTimeout
            The collection is over.
        ValueError
            The name leads out of the folder.
        """
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise ValueError(f"{name!r} leads out of the incident folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        digest, size = hashlib.sha256(), 0
        try:
            with open(partial, "wb") as stream:
                for block in (content,) if isinstance(content, bytes) else content:
                    with self._lock:  # what several threads write at once counts together, before it is whole
                        if self._size + self._growing + len(block) > self.limit:
                            raise FolderFull(
                                f"the incident folder would hold more than {self.limit >> 20} MiB",
                                hint="ask for a shorter window, or allow more with --limit",
                            )
                        self._growing += len(block)
                    size += len(block)
                    digest.update(block)
                    stream.write(block)
            file = File(name, size, digest.hexdigest())
            with self._lock:
                if self.closed:
                    raise SourceTimeout("the collection is over")
                os.replace(partial, path)
                before = self.files.get(name)
                self._size += size - (before.size if before else 0)
                self.files[name] = file
        finally:
            with self._lock:
                self._growing -= size
            partial.unlink(missing_ok=True)
        return file

    def close(self) -> None:
        """Let nothing be written any more."""
        with self._lock:
            self.closed = True

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size


class Source(Protocol):
    """A place that knows something of a job: one backend a file in `workbench.sources`, one instance a server."""

    name: str

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        """
        Return the scope with what this source knows of the job's nodes, pods, namespace and times, or None when it does not know it.

        Only schedulers (Kubernetes, Slurm) and sources with job labels know; `SourceError` when the server did not answer.
        """

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """Write what the source knows of the job into the folder; every failure is an `Answer`, none is raised."""

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return what ``workbench doctor`` says of this source; never raises."""
