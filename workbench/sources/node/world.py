"""Turn the machine we run on into readings: each one thing that can be looked at, how it was got, or why it was not."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from workbench.errors import SourceError
from workbench.sources.command import ENDINGS, Ran, run
from workbench.sources.contract import Deadline

__all__ = ["READERS", "Reader", "Reading", "Unread", "Way", "World", "first_of", "lines_of", "reader", "tool"]


@dataclass(frozen=True, slots=True)
class World:
    """
    Where to look: this machine, or a tree of files and a folder of programs that stand for one.

    Attributes
    ----------
    node : str
        The node's name.
    root : Path
        What stands for ``/``: ``/proc``, ``/sys``, ``/dev``, ``/var/log`` and ``/etc`` are looked up below it. In a container that is
        where the host's root is mounted.
    env : mapping
        Added to the small environment that tools get (`workbench.sources.command.environment`).
    clock : callable
        Seconds since the epoch.
    settings : mapping
        The site's settings ``health.*``, by their last word.
    """

    node: str = field(default_factory=lambda: socket.gethostname().split(".")[0])
    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    settings: Mapping[str, Any] = field(default_factory=dict)
    _kept: dict[str, Future[Any]] = field(default_factory=dict, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def once(self, key: str, read: Callable[[], Any]) -> Any:
        """Return what `read` gives; who asks for the same key in this world waits for the first and gets the same."""
        with self._lock:
            mine = key not in self._kept
            kept = self._kept.setdefault(key, Future())
        if mine:
            try:
                kept.set_result(read())
            except BaseException as error:
                kept.set_exception(error)
                raise
        return kept.result()

    def path(self, name: str) -> Path:
        """Return where an absolute path lies in this world."""
        return self.root / name.lstrip("/")

    def text(self, name: str, most: int = 1 << 20) -> str:
        """
        Return a file's text; for files of the kernel that answer at once. What may hang belongs into `tool`, a process of its own.

        Raises
        ------
        Unread
        """
        try:
            with self.path(name).open("rb") as stream:
                return stream.read(most).decode("utf-8", "replace")
        except OSError as error:
            raise Unread.of(error, name) from None

    def names(self, name: str) -> list[str]:
        """Return the sorted names in a folder; raises `Unread`."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError as error:
            raise Unread.of(error, name) from None


class Unread(Exception):
    """
    A way that gave nothing.

    Parameters
    ----------
    ending : str
        ``absent`` (there is no such hardware or feature here, and that is sure), or one of `workbench.sources.command.ENDINGS` but ok.
    detail, hint : str
        What happened and the way out.
    """

    def __init__(self, ending: str, detail: str, hint: str = "") -> None:
        assert ending == "absent" or ending in ENDINGS
        super().__init__(detail)
        self.ending, self.detail, self.hint = ending, detail, hint

    @classmethod
    def of(cls, error: OSError, name: str) -> Unread:
        """Return what an error of the file system means."""
        if isinstance(error, FileNotFoundError):
            return cls("missing", f"there is no {name}")
        if isinstance(error, PermissionError):
            return cls(
                "not-executable", f"{name} may not be read", "run as root, or give the service account the right to read it"
            )
        return cls("exit", f"{name} cannot be read: {error.strerror}")


@dataclass(frozen=True, slots=True)
class Reading:
    """
    One thing that was looked at.

    Attributes
    ----------
    name : str
        Which: a key of `READERS`.
    ending : str
        ``ok``, ``absent``, or why there is no value.
    value : Any
        What was read, parsed; None unless ok.
    path : str
        The way that gave it.
    detail, hint : str
        Why there is none, and the way out.
    tried : tuple of str
        What the ways before it said: a sentence each.
    blind : tuple of str
        What the way taken cannot show.
    seconds : float
        How long it took.
    """

    name: str
    ending: str
    value: Any = None
    path: str = ""
    detail: str = ""
    hint: str = ""
    tried: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def usable(self) -> bool:
        """Whether there is a value."""
        return self.ending == "ok"


@dataclass(frozen=True, slots=True)
class Way:
    """One way of getting a reading: its name as a person says it, the call (raises `Unread`), and what it cannot show."""

    name: str
    read: Callable[[World, Deadline], Any]
    blind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """How a reading is got: its ways, best first, the seconds they have together, whether asking disturbs a job, and what it is."""

    name: str
    ways: tuple[Way, ...]
    seconds: float
    about: str
    active: bool = False

    def read(self, world: World, deadline: Deadline) -> Reading:
        """Return what the first way that works gives; never raises."""
        return first_of(self, world, deadline)


READERS: dict[str, Reader] = {}


def reader(name: str, about: str, *, seconds: float, ways: Sequence[Way], active: bool = False) -> Reader:
    """
    Register how one reading is got.

    Parameters
    ----------
    name : str
        What checks call it.
    about : str
        What it is, a few words.
    seconds : float
        The most that all ways may take together.
    ways : sequence of Way
        Best first.
    active : bool, optional
        Whether it uses the GPUs: never while a job runs.
    """
    assert name not in READERS, name
    READERS[name] = Reader(name, tuple(ways), seconds, about, active)
    return READERS[name]


def first_of(reader: Reader, world: World, deadline: Deadline) -> Reading:
    """
    Return the reading of the first way that works.

    A way that hangs does not take the time of those after it: each but the last gets half of what is left. Something is absent when one
    way is sure of it and the others have no tool to ask with; a way that failed may have failed to see it.
    """
    began = time.monotonic()
    tried: list[str] = []
    endings: list[Unread] = []
    for at, way in enumerate(reader.ways):
        try:
            limit = deadline if at == len(reader.ways) - 1 else Deadline(deadline.left() / 2)
            value = way.read(world, limit)
        except Unread as error:
            tried.append(f"{way.name}: {error.detail}")
            endings.append(error)
        except SourceError as error:
            tried.append(f"{way.name}: {error}")
            endings.append(Unread("time-out", str(error), error.hint))
        except Exception as error:  # a reader's defect on odd input must not look like a healthy node
            tried.append(f"{way.name}: {type(error).__name__}: {error}"[:300])
            endings.append(Unread("garbage", f"{type(error).__name__}: {error}"[:300]))
        else:
            seconds = time.monotonic() - began
            return Reading(reader.name, "ok", value, way.name, tried=tuple(tried), blind=way.blind, seconds=seconds)
    seconds = time.monotonic() - began
    sure = next((one for one in endings if one.ending == "absent"), None)
    if sure and all(one.ending in ("absent", "missing") for one in endings):
        return Reading(reader.name, "absent", detail=sure.detail, tried=tuple(tried), seconds=seconds)
    first = next(one for one in endings if one.ending != "absent")  # the first real failure says more than those of its stand-ins
    detail = "; ".join(tried) if len(tried) > 1 else first.detail
    return Reading(reader.name, first.ending, None, "", detail, first.hint, tuple(tried), seconds=seconds)


def tool(
    world: World,
    argv: Sequence[str],
    deadline: Deadline,
    *,
    codes: Iterable[int] = (0,),
    limit: int = 8 << 20,
    seconds: float = 30.0,
) -> Ran:
    """
    Run a program and return what it printed, if it ended as it should.

    Parameters
    ----------
    world : World
    argv : sequence of str
        The program and its arguments.
    deadline : Deadline
    codes : iterable of int, optional
        Exit codes that are an answer.
    limit : int, optional
        Bytes it may print.
    seconds : float, optional
        The most it may take, whatever the deadline leaves.

    Raises
    ------
    Unread
        It is missing, cannot be run, failed, hung, or printed nothing or too much.
    """
    ran = run(argv, seconds=deadline.left(seconds), limit=limit, env=world.env)
    if ran.ending == "exit" and ran.code in set(codes):
        ran = replace(ran, ending="ok")
    if not ran.ok:
        raise Unread(ran.ending, f"{ran.asked} {ran.sentence}", _hint(ran))
    if not ran.out.strip():
        raise Unread("garbage", f"{ran.asked} ended with {ran.code} and printed nothing", "run it by hand as the same user")
    return ran


def _hint(ran: Ran) -> str:
    if ran.ending == "missing":
        return f"install {ran.argv[0]}, or put it on the PATH of this service"
    if ran.ending == "time-out":
        return "a driver or a file server that does not answer: see the kernel log"
    return f"run `{ran.asked}` by hand as the same user"


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without their ends."""
    return text.replace("\r\n", "\n").rstrip("\n").split("\n") if text else []
