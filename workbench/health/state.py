"""Turn the findings of a run and the state folder of the node into findings with history, and keep what the next run must know."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from workbench.catalog.findings import finding_row
from workbench.errors import SourceError
from workbench.health import inventory, port_history, row_history
from workbench.health.finding import Finding
from workbench.health.history import recall, remember
from workbench.health.resets import asking_now, resets_of
from workbench.health.settle import Past, is_stuck, persistence, settle
from workbench.parse.gpu_state import NodeGpus
from workbench.sources.node.kernel_events import KernelLog, booted
from workbench.sources.node.world import Reading, Unread, World

__all__ = ["CHECK", "NAME", "boot_id", "forget", "needed", "with_history"]

CHECK = "history"  # what findings about the state itself are filed under
NAME = "findings"  # of the state, see `workbench.health.history`
_SECONDS = 5.0  # a disk that is slower is broken, and a check must not wait for it
_LOCK = 2.0  # seconds; another run holds the lock for the milliseconds of one write
_MOST = 700_000  # bytes of findings; `history.recall` takes a megabyte for none of ours
_LONG = 400  # characters of a kept line


@dataclass
class _Box:
    """What the thread that may hang has got so far."""

    past: Past | None = None
    troubles: list[tuple[str, str, str]] = field(default_factory=list)


def boot_id(world: World) -> str:
    """Return the boot id of the kernel; empty when it cannot be read."""
    try:
        return world.text("/proc/sys/kernel/random/boot_id", 100).strip()
    except Unread:
        return ""


def needed(folder: Path, ran: Collection[str], *, seconds: float = 1.0) -> tuple[str, ...]:
    """Return the readings that history wants beside those of the checks: the kernel log and the GPUs when something has stuck."""
    found: list[tuple[str, ...]] = []

    def look() -> None:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            past = Past.of(recall(NAME, folder=folder))
            stuck = any(
                one["as"].get("check") in ran and persistence(str(one["as"].get("code"))).sticky == "reset"
                for one in past.seen.values()
            )
            found.append(("kernel", "gpus") if stuck or past.asking else ())

    _within(look, seconds)
    return found[0] if found else ()


def forget(folder: Path, checks: Collection[str] = ()) -> int:
    """
    Forget what was seen: somebody has mended it, or it was never so.

    Parameters
    ----------
    folder : Path
        Where the state is.
    checks : collection of str, optional
        Of these checks only; default all. With ``gpu-inventory`` the GPUs that are here are taken for right, with ``gpu-memory`` what they
        have lost of their memory so far.

    Returns
    -------
    int
        How many findings.

    Raises
    ------
    SourceError
        The state cannot be read or written.
    """
    box, gone = _Box(), 0
    with _locked(folder, box) as locked:
        if locked and _recalled(folder, box, locked) and box.past is not None:
            kept = {key: one for key, one in box.past.seen.items() if checks and one["as"].get("check") not in checks}
            gone = len(box.past.seen) - len(kept)
            try:
                remember(NAME, Past(box.past.boot, kept, box.past.asking).to_dict(), folder=folder)
                if not checks or "gpu-inventory" in checks:
                    (folder / f"{inventory.NAME}.json").unlink(missing_ok=True)
                if not checks or "gpu-memory" in checks:
                    (folder / f"{row_history.NAME}.json").unlink(missing_ok=True)
            except OSError as error:
                box.troubles.append(("state-unwritable", f"{folder} cannot be written: {error.strerror or error}", _CURE))
    if box.troubles:
        raise SourceError(box.troubles[0][1], hint=box.troubles[0][2])
    return gone


def with_history(
    findings: Sequence[Finding],
    *,
    readings: Mapping[str, Reading],
    world: World,
    folder: Path,
    ran: Collection[str],
    shown: Collection[str],
    node: str,
    seconds: float = _SECONDS,
) -> list[Finding]:
    """
    Return the findings as they stand with what earlier runs saw, and keep them for later ones.

    A state that cannot be read or written is a warning (`CHECK`), and then nothing is taken for an accident that may go by itself: the
    result is never better than that of a run without a state.

    Parameters
    ----------
    findings : sequence of Finding
        Of this run.
    readings : mapping
        What was read; the kernel log and the GPUs tell of resets.
    world : World
    folder : Path
        Where the state is.
    ran : collection of str
        Ids of the checks that were run.
    shown : collection of str
        Ids of the checks of which one wants to know what has stuck.
    node : str
        Its name.
    seconds : float, optional
        After this time a disk that does not answer is left behind.
    """
    now, boot, box = world.clock(), boot_id(world), _Box()
    log, gpus = (_usable(readings, name, kind) for name, kind in (("kernel", KernelLog), ("gpus", NodeGpus)))
    came_up = booted(world)

    def settled(past: Past, strikes: bool) -> tuple[list[Finding], Past]:
        resets, asking = resets_of(log, gpus, asked=past.asking if past.boot == boot else {})
        found, kept = settle(findings, past, now=now, boot=boot, booted=came_up, resets=resets, ran=ran, strikes=strikes)
        kept.asking = asking | asking_now(gpus, now)
        return found, kept

    def work() -> None:
        try:
            with _locked(folder, box) as locked:
                readable = _recalled(folder, box, locked)
                if not (readable and locked and box.past is not None):
                    return
                try:
                    kept = _fitting(settled(box.past, True)[1])
                except Exception as error:  # a state that somebody wrote by hand costs neither this run nor the truth
                    said = f"what earlier runs kept in {folder} cannot be used: {type(error).__name__}: {error}"
                    box.troubles.append(("state-unreadable", said[:_LONG], "workbench check --forget"))
                    box.past = None
                    return
                remember(NAME, kept, folder=folder)
                _keep_others(findings, readings, world, folder, boot, now)
        except Exception as error:
            said = str(error.strerror or error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            box.troubles.append(("state-unwritable", f"{folder} cannot be written: {said}"[:_LONG], _CURE))

    if not _within(work, seconds):
        box.troubles.append(
            ("state-unreadable", f"{folder} did not answer within {seconds:.0f} s", "look at the disk that holds it")
        )
    found, _ = settled(box.past or Past(boot), strikes=not box.troubles)
    found = [one for one in found if one.check in shown or not is_stuck(one)]
    return [*found, *(_trouble(one, node) for one in dict.fromkeys(box.troubles))]


_CURE = "run as root, or name a folder that can be written: health.state, --state DIR; --no-state does without history"


def _within(work: Callable[[], None], seconds: float) -> bool:
    """Run `work` in a thread that can be left behind: a disk that is gone holds whoever asks in the kernel."""
    thread = Thread(target=work, name="state", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@contextlib.contextmanager
def _locked(folder: Path, box: _Box) -> Iterator[bool]:
    """Hold the folder's lock; gives False (and says why) when it cannot be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # nobody else may hold it
    except OSError as error:
        box.troubles.append(("state-unwritable", f"{folder} cannot be written: {error.strerror or error}", _CURE))
        yield False
        return
    try:
        end = time.monotonic() + _LOCK
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= end:
                    why = f"another run holds the lock of {folder} for more than {_LOCK:.0f} s"
                    box.troubles.append(("state-unwritable", why, "find it: fuser -v " + str(folder / ".lock")))
                    yield False
                    return
                time.sleep(0.01)
        yield True
    finally:
        os.close(handle)


def _recalled(folder: Path, box: _Box, locked: bool) -> bool:
    """Read the past into the box; tells whether a new one may take its place."""
    try:
        box.past = Past.of(recall(NAME, folder=folder))
        return True
    except OSError as error:
        box.troubles.append(("state-unreadable", f"{folder} cannot be read: {error.strerror or error}", _CURE))
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        box.troubles.append(("state-unreadable", f"what earlier runs kept is damaged, and begun anew: {said}", ""))
        if locked:
            with contextlib.suppress(OSError):
                os.replace(folder / f"{NAME}.json", folder / f"{NAME}.damaged")  # for whoever wants to know how that came
                remember(NAME, Past().to_dict(), folder=folder)
    return False


def _usable(readings: Mapping[str, Reading], name: str, kind: type[Any]) -> Any:
    reading = readings.get(name)
    return reading.value if reading is not None and reading.usable and isinstance(reading.value, kind) else None


def _fitting(past: Past) -> dict[str, Any]:
    """Return what is kept, small enough to be read again: what is sticky first, then what was seen last."""

    def rank(item: tuple[str, dict[str, Any]]) -> tuple[bool, float]:
        told = item[1]["as"]
        sticky = told.get("status") == "critical" and bool(persistence(str(told.get("code") or "")).sticky)
        return not sticky, -float(item[1].get("last") or 0.0)

    kept, size = {}, 0
    for key, entry in sorted(past.seen.items(), key=rank):
        told = dict(entry["as"])
        told["summary"] = str(told.get("summary"))[:_LONG]
        told["evidence"] = [str(line)[:_LONG] for line in told.get("evidence") or ()][:3]
        told["tried"], told["blind"] = [], []
        one = entry | {"as": told}
        size += len(json.dumps(one, ensure_ascii=False).encode("utf-8", "replace")) + len(key.encode("utf-8", "replace")) + 8
        if size > _MOST:
            break
        kept[key] = one
    return {"boot": past.boot, "seen": kept, "asking": past.asking}


def _keep_others(
    findings: Sequence[Finding], readings: Mapping[str, Reading], world: World, folder: Path, boot: str, now: float
) -> None:
    """Keep what each GPU has lost of its memory; which GPUs were here, when the node was found whole, and how its ports are, by boot."""
    gpus, network = _usable(readings, "gpus", NodeGpus), readings.get("network")
    if gpus is not None and any(row_history.count(state) for state in gpus.states):
        before = _or_none(row_history.NAME, folder)
        rows = row_history.next_state(before, gpus.states, now=now)
        if before is None or before.get("gpus") != rows["gpus"]:  # it changes once in months: nothing is written in between
            remember(row_history.NAME, rows, folder=folder)
    if not boot:
        return
    if gpus is not None and inventory.whole(findings, gpus, world.settings.get("gpus")):
        kept = _or_none(inventory.NAME, folder)
        new = inventory.next_inventory(kept, inventory.inventory(gpus, boot_id=boot, now=now))
        if new is not None:
            remember(inventory.NAME, new, folder=folder)
    if network is not None and network.usable and network.value.ports:
        before = _or_none(port_history.NAME, folder)
        remember(port_history.NAME, port_history.next_state(before, network.value.ports, boot_id=boot, now=now), folder=folder)


def _or_none(name: str, folder: Path) -> dict[str, Any] | None:
    try:
        return recall(name, folder=folder)
    except (ValueError, RecursionError):  # the check that reads it says that it is damaged; here begins a new one
        return None


def _trouble(one: tuple[str, str, str], node: str) -> Finding:
    code, summary, hint = one
    row = finding_row(code)
    return Finding(
        CHECK, row.status, summary, code, node, cls=row.cls, action=row.action, required=False, path="state folder", hint=hint
    )
