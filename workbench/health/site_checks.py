"""Turn executables of the site (Nagios plugins, plugins of node-problem-detector, scripts) into checks like ours, one a file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from workbench.health.finding import Finding
from workbench.health.registry import CONTEXTS, Check, broken
from workbench.health.seen import Seen
from workbench.model import CLASSES, REMEDIATIONS
from workbench.sources.command import Ran, run
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Reader, Unread, Way, World

__all__ = ["executables"]

_HEAD = 8192  # bytes of a file in which the comments are looked for
_COMMENT = re.compile(rb"^[ \t]*#[ \t]*(contexts|required|class|action|timeout|protocol)[ \t]*:[ \t]*(.*?)[ \t\r]*$", re.I | re.M)
_SECONDS = 10.0  # as Nagios and node-problem-detector give a plugin that says nothing
_MOST_SECONDS = 3600.0
_PATIENCE = 5.0  # seconds that a folder has to show what is in it
_LIMIT = 64 << 10  # bytes of output; both protocols read a few KiB
# what lies beside programs, and is none
_BESIDE = re.compile(r"\.|.*(?:~|\.(?:bak|orig|rpmsave|rpmnew|dpkg-\w+|disabled|md|txt|rst|toml|ya?ml|json|csv|ini|conf|cfg))$")
_PROTOCOLS = {
    "nagios": {0: "ok", 1: "warning", 2: "critical"},  # 3 and all others: unknown
    "npd": {0: "ok", 1: "critical"},  # node-problem-detector: 1 is a problem, all others unknown
}


@dataclass(frozen=True, slots=True)
class _Header:
    """What the comments at the begin of an executable say; those that say nothing stand here as they count then."""

    contexts: tuple[str, ...] = CONTEXTS
    required: bool = True
    cls: str = ""
    action: str = ""
    timeout: float = _SECONDS
    protocol: str = "nagios"


@dataclass(frozen=True, slots=True)
class _Said:
    status: str
    line: str
    more: tuple[str, ...]
    code: int


def executables(world: World, *, taken: Collection[str]) -> tuple[dict[str, Check], dict[str, Reader]]:
    """
    Return a check, and the reading that it needs, for each executable in the folders of ``health.checks_folder``.

    The exit code is the status (Nagios: 0 ok, 1 warning, 2 critical, all else unknown; with ``# protocol: npd`` 1 is critical and all
    but 0 and 1 unknown), the first line the summary. Comments at the begin of the file may say more::

        # contexts: allocation, idle     (default all; one for idle alone may use the GPUs, and is run alone)
        # required: no                   (default yes: the node is unfit while it is critical or unknown)
        # class: hardware/network-link
        # action: drain
        # timeout: 30s                   (default 10s; then its whole process group is killed)

    Parameters
    ----------
    world : World
        Its settings name the folders.
    taken : collection of str
        Ids of checks that exist: an executable does not take the place of one.

    Returns
    -------
    checks, readers : dict
        By id, and by name of the reading. What cannot be run is a check that is always unknown.
    """
    if not world.settings.get("checks_folder"):
        return {}, {}
    done: SimpleQueue[tuple[dict[str, Check], dict[str, Reader]]] = SimpleQueue()
    Thread(target=lambda: done.put(_found(world, taken)), name="checks-folder", daemon=True).start()
    try:
        return done.get(timeout=_PATIENCE)
    except Empty:  # it lies on a file server that is dead
        why = f"health.checks_folder did not answer within {_PATIENCE:.0f} s: none of its checks was run"
        return {"checks-folder": broken("checks-folder", "health.checks_folder", why)}, {}


def _found(world: World, taken: Collection[str]) -> tuple[dict[str, Check], dict[str, Reader]]:
    checks: dict[str, Check] = {}
    readers: dict[str, Reader] = {}
    folders = world.settings.get("checks_folder") or ()
    for folder in [folders] if isinstance(folders, str) else folders:
        for name, why in _listed(world, str(folder)):
            place = f"{folder.rstrip('/')}/{name}" if name else str(folder)
            id = re.sub(r"\.[A-Za-z0-9]{1,4}$", "", name) or "checks-folder"
            if id in taken or id in checks:
                why = why or f"there is a check {id!r} already: {place} was not run"
                id = f"{id}-of-the-site"
            try:
                header = _header(world.path(place)) if not why else _Header()
            except ValueError as error:
                why, header = f"{place}: {error}", _Header()
            if why:
                checks[id] = broken(id, place, why)
                continue
            reading = f"site:{place}"
            active = header.contexts == ("idle",)
            way = Way(place, partial(_read, place=place, header=header))
            readers[reading] = Reader(reading, (way,), header.timeout + 2.0, f"what {place} says", active)
            checks[id] = Check(
                id,
                f"{place} says that all is well",
                partial(_judged, reading=reading, header=header),
                (reading,),
                contexts=header.contexts,
                cls=header.cls,
                required=header.required,
                origin=place,
            )
    return checks, readers


def _listed(world: World, folder: str) -> Iterable[tuple[str, str]]:
    """Yield each file's name, and why it is not run; a folder that cannot be listed has an empty name."""
    try:
        names = world.names(folder)
    except Unread as error:
        yield "", f"{folder}: {error.detail}: none of its checks was run"
        return
    for name in names:
        if _BESIDE.match(name):
            continue
        path = world.path(f"{folder}/{name}")
        try:
            info = path.stat()
        except OSError as error:
            yield name, f"{folder}/{name} cannot be looked at: {error.strerror}"
            continue
        if stat.S_ISDIR(info.st_mode):
            continue
        if not stat.S_ISREG(info.st_mode):
            yield name, f"{folder}/{name} is no file"
        elif info.st_mode & stat.S_IWOTH:
            yield name, f"{folder}/{name} can be written by everybody: what it runs could be anybody's"
        elif not os.access(path, os.X_OK):
            yield name, f"{folder}/{name} is not executable: chmod +x, or take it away"
        else:
            yield name, ""


def _header(path: Path) -> _Header:
    """Read the comments of a script; raises ValueError for what is none of the words that they may have."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if not head.startswith(b"#!"):
        return _Header()
    header = _Header()
    for key, raw in _COMMENT.findall(head):
        word, text = key.decode().lower(), raw.decode("utf-8", "replace")
        if word == "contexts":
            names = tuple(re.split(r"[,\s]+", text))
            if wrong := set(names) - set(CONTEXTS):
                raise ValueError(f"{', '.join(sorted(wrong))!r} is no context; there are {', '.join(CONTEXTS)}")
            header = replace(header, contexts=tuple(each for each in CONTEXTS if each in names))
        elif word == "required":
            if text.lower() not in ("yes", "no", "true", "false"):
                raise ValueError(f"required is {text!r}, and can be yes or no")
            header = replace(header, required=text.lower() in ("yes", "true"))
        elif word == "class":
            if text not in CLASSES:
                raise ValueError(f"{text!r} is no class; there are {', '.join(CLASSES)}")
            header = replace(header, cls=text)
        elif word == "action":
            if text not in REMEDIATIONS:
                raise ValueError(f"{text!r} is no action; there are {', '.join(REMEDIATIONS)}")
            header = replace(header, action=text)
        elif word == "protocol":
            if text.lower() not in _PROTOCOLS:
                raise ValueError(f"{text!r} is no protocol; there are {', '.join(_PROTOCOLS)}")
            header = replace(header, protocol=text.lower())
        else:
            found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min)?", text)
            seconds = float(found[1]) * (60 if (found[2] or "s") != "s" else 1) if found else 0.0
            if not 0 < seconds <= _MOST_SECONDS:
                raise ValueError(f"timeout is {text!r}, and can be 1s to {_MOST_SECONDS / 60:.0f}m")
            header = replace(header, timeout=seconds)
    return header


def _read(world: World, deadline: Deadline, place: str, header: _Header) -> _Said:
    path = str(world.path(place))
    ran = run([path], seconds=deadline.left(header.timeout), limit=_LIMIT, env=world.env, cwd="/")
    if ran.ending not in ("ok", "exit"):
        raise Unread(ran.ending, f"{place} {ran.sentence}", f"run {place} by hand as the same user")
    assert ran.code is not None
    status = _PROTOCOLS[header.protocol].get(ran.code, "unknown")
    lines = _lines(ran)
    if lines is None:
        raise Unread("garbage", f"{place} ended with {ran.code} and printed something that is no text", f"run {place} by hand")
    # node-problem-detector asks for no line when all is well; Nagios does
    if not lines and not (header.protocol == "npd" and status == "ok"):
        detail = f"{place} ended with {ran.code} and printed nothing" + (f": {ran.said}" if ran.said else "")
        raise Unread("garbage", detail, f"run {place} by hand")
    return _Said(status, lines[0] if lines else "no problem", tuple(lines[1:]), ran.code)


def _lines(ran: Ran) -> list[str] | None:
    """Lines of text, figures behind a ``|`` as lines of their own; None when it is no text."""
    try:
        text = ran.out.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = [line.strip() for line in text.replace("\t", " ").splitlines() if line.strip()]
    if lines and not lines[0].isprintable():
        return None
    if lines:
        first, _, figures = lines[0].partition("|")  # Nagios: "DISK OK - 3 GB left | /=2643MB;5948;5958;0;5968"
        lines = [each for each in (first.strip(), figures.strip(), *lines[1:]) if each]
    return lines


def _judged(seen: Seen, reading: str, header: _Header) -> Iterable[Finding]:
    said = seen.value(reading)
    assert isinstance(said, _Said)
    evidence = (f"exit code {said.code}", *said.more)
    line = said.line[:300]
    if said.status == "ok":
        yield seen.ok(line, evidence=evidence)
    elif said.status == "unknown":
        yield replace(seen.unknown(line, code="site-unknown"), evidence=evidence)
    else:
        found = seen.found(f"site-{said.status}", line, evidence=evidence)
        yield replace(found, action=header.action) if header.action else found
