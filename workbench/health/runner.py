"""Turn a node and a context into findings: reads what the checks need, all at once, each within its deadline, and lets them judge."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from workbench.errors import ConfigError
from workbench.health.devices import with_devices
from workbench.health.finding import Finding, rank, worst
from workbench.health.registry import CONTEXTS, Check, checks
from workbench.health.seen import Seen
from workbench.health.site_checks import executables
from workbench.sources.contract import Deadline
from workbench.sources.node.readers import all_readers
from workbench.sources.node.world import Reader, Reading, World

__all__ = ["CONTEXTS", "SECONDS", "fitness", "judged", "read", "run"]

SECONDS = 45.0  # for all that only looks, together: Slurm kills a HealthCheckProgram after 60 s
_GRACE = 0.5  # seconds that a reader may need to give up after its deadline
# (reading, root) → the thread that was left behind with it: who looks every minute must not leave one more each time
_LEFT: dict[tuple[str, str], Thread] = {}
# a program that does not go has 0.4 s after SIGTERM and as much after SIGKILL (`workbench.sources.command`): its reader is told an earlier
# deadline, so that what hung is named by whoever asked it, and dead before we end
_ENDING = 0.8


def run(
    context: str = "allocation",
    *,
    node: str | None = None,
    only: Sequence[str] = (),
    seconds: float | None = None,
    world: World | None = None,
    settings: Mapping[str, Any] | None = None,
    state: str | os.PathLike[str] | None = None,
) -> list[Finding]:
    """
    Check this node and return what was found, worst first.

    Parameters
    ----------
    context : str, optional
        ``allocation`` (before a job gets the node), ``running`` (nothing that disturbs a job), ``idle`` (may use the GPUs).
    node : str, optional
        Its name; default this host's.
    only : sequence of str, optional
        Ids of the checks to run; default all of the context.
    seconds : float, optional
        After this time whatever is still read, or was not begun, is unknown. Default 45 for what only looks, and for each probe that
        uses the GPUs as long as it takes at most.
    world : World, optional
        Where to look; default this machine.
    settings : mapping, optional
        The site's settings ``health.*`` by their last word.
    state : path, optional
        Folder of what earlier runs saw, as the node names it: with it findings last until they are mended, and some must be seen more than once
        (`workbench.health.settle`); this run is kept there, too. Default: this run alone counts.

    Returns
    -------
    list of Finding
        At least one for each check. What could not be read is ``unknown``, never ok.

    Raises
    ------
    ConfigError
        There is no such context or check.
    """
    if context not in CONTEXTS:
        raise ConfigError(f"{context!r} is no context", hint=f"there are {', '.join(CONTEXTS)}")
    world = world or World(settings=dict(settings or {}))
    known = checks()
    brought, readers = executables(world, taken=known)
    known |= brought
    if wrong := [name for name in only if name not in known]:
        raise ConfigError(f"there is no check {wrong[0]!r}", hint=f"there are {', '.join(sorted(known))}")
    wanted = [one for one in known.values() if (one.id in only if only else context in one.contexts)]
    name = node or world.node
    names = dict.fromkeys(name for one in wanted for name in (*one.needs, *one.wants))
    asked = [one.id for one in wanted]
    if state is not None:
        from workbench.health.settle import is_stuck
        from workbench.health.state import needed, with_history

        # without a choice what has stuck to other contexts' checks stands in the way of jobs, too
        mine = asked if only else list(known)
        world = replace(world, settings={**world.settings, "state": str(Path(state).absolute())})
        folder = world.path(world.settings["state"])
        names |= dict.fromkeys(needed(folder, mine))
    readings = read(names, world, seconds, context=context, readers=readers)
    findings: list[Finding] = []
    for one in wanted:
        findings += judged(one, name, context, readings, world)
    findings += misnamed(world, known, name)
    if state is not None:
        findings = with_history(findings, readings=readings, world=world, folder=folder, ran=asked, shown=mine, node=name)
        required = {one.id: _as_configured(one, world).required for one in known.values()}
        findings = [replace(one, required=required.get(one.check, one.required)) if is_stuck(one) else one for one in findings]
    findings = with_devices(findings, readings)
    findings.sort(key=rank)
    return findings


def misnamed(world: World, known: Mapping[str, Check], node: str) -> list[Finding]:
    """
    Return a finding for each name in ``health.required`` and ``health.optional`` that no check of this node has.

    A required check that does not exist was not run: the node is unfit, as with any other that could not be. An optional one is
    only told of, since the name that was meant still counts.
    """
    found = []
    for setting in ("required", "optional"):
        for name in world.settings.get(setting) or ():
            if name not in known:
                near = get_close_matches(str(name), known, n=1)
                found.append(
                    Finding(
                        "settings",
                        "unknown",
                        f"health.{setting} names {str(name)!r}, and there is no such check here",
                        node=node,
                        part=str(name),
                        required=setting == "required",
                        hint=f"did you mean {near[0]}?"
                        if near
                        else "see docs/reference/checks.md, or `workbench config` for the setting",
                    )
                )
    return found


def fitness(findings: Iterable[Finding]) -> str:
    """Return the status of the node: the worst of its required findings, and at most ``warning`` from the others."""
    statuses = [one.status if one.required or one.status in ("ok", "not-applicable") else "warning" for one in findings]
    return worst(statuses)


def read(
    names: Iterable[str],
    world: World,
    seconds: float | None = None,
    *,
    context: str = "allocation",
    readers: Mapping[str, Reader] | None = None,
) -> dict[str, Reading]:
    """
    Read all that only looks at once, then what uses the GPUs one after another: two probes at a time would measure each other.

    Who does not come back in time is left behind. While a job runs nothing that uses the GPUs is begun.

    Parameters
    ----------
    names : iterable of str
        Readings.
    world : World
    seconds : float, optional
        For all of them together; default see `run`.
    context : str, optional
        Of `CONTEXTS`.
    readers : mapping, optional
        Readers beside those of `all_readers`.
    """
    known = all_readers() | dict(readers or {})
    out: dict[str, Reading] = {}
    passive: list[Reader] = []
    active: list[Reader] = []
    begun = time.monotonic()
    for name in names:
        if name not in known:
            out[name] = Reading(name, "missing", detail=f"there is no reading {name!r}", hint="correct the check that needs it")
        else:
            (active if known[name].active else passive).append(known[name])
    out |= _at_once(passive, world, SECONDS if seconds is None else seconds)
    for reader in active:
        left = reader.seconds if seconds is None else seconds - (time.monotonic() - begun)
        if context == "running":
            out[reader.name] = Reading(
                reader.name, "missing", detail="it uses the GPUs: not while a job runs", hint="--context idle, between jobs"
            )
        elif seconds is not None and left < 1.0:
            detail = f"not begun: the {seconds:.0f} s were over"
            out[reader.name] = Reading(reader.name, "time-out", detail=detail, hint="--seconds gives it more time")
        else:
            out |= _at_once([reader], world, left)
    return out


def _at_once(readers: Sequence[Reader], world: World, seconds: float) -> dict[str, Reading]:
    done: SimpleQueue[Reading] = SimpleQueue()
    begun = time.monotonic()
    waiting: dict[str, float] = {}
    out: dict[str, Reading] = {}
    threads: dict[str, Thread] = {}
    for one in readers:
        left = _LEFT.get((one.name, str(world.root)))
        if left is not None and left.is_alive():
            out[one.name] = Reading(one.name, "time-out", detail="an earlier look at it still waits for an answer")
            continue
        limit = min(one.seconds, seconds)
        waiting[one.name] = begun + limit + _GRACE

        def ask(reader: Any = one, limit: float = limit) -> None:
            try:
                done.put(reader.read(world, Deadline(max(limit - _ENDING, limit / 2))))
            except BaseException as error:  # a thread that ends without a word would look like one that hangs
                done.put(Reading(reader.name, "garbage", detail=f"{type(error).__name__}: {error}"[:300]))

        threads[one.name] = Thread(target=ask, name=f"reading-{one.name}", daemon=True)
        threads[one.name].start()
    while waiting:
        now = time.monotonic()
        for name, end in list(waiting.items()):
            if end <= now:
                out[name] = Reading(
                    name, "time-out", detail=f"no answer within {end - begun - _GRACE:.0f} s", seconds=now - begun
                )
                del waiting[name]
                _LEFT[name, str(world.root)] = threads[name]
        if not waiting:
            break
        try:
            reading = done.get(timeout=max(min(waiting.values()) - time.monotonic(), 0.001))
        except Empty:
            continue
        if waiting.pop(reading.name, None) is not None:
            out[reading.name] = reading
    return out


def judged(one: Check, node: str, context: str, readings: Mapping[str, Reading], world: World) -> list[Finding]:
    mine = {name: readings[name] for name in (*one.needs, *one.wants)}
    seen = Seen(_as_configured(one, world), node, context, mine, world.settings, world.clock())
    if one.switch and not _is_set(one.switch, world):
        return [seen.absent(f"not asked for: {one.switch} is not set")]
    bad = [readings[name] for name in one.needs if not readings[name].usable]
    if bad and all(reading.ending == "absent" for reading in bad):
        return [seen.absent(bad[0].detail)]
    if bad:
        first = next(reading for reading in bad if reading.ending != "absent")
        return [seen.unknown(first.detail, hint=first.hint, code=f"unread-{first.ending}")]
    try:
        found = list(one.judge(seen))
    except Exception as error:  # a defect in one check must cost neither the others nor the truth
        return [seen.unknown(f"the check itself failed: {type(error).__name__}: {error}"[:400], code="check-failed")]
    if not found and "gpus" in one.needs and not seen.gpus.states:  # most judges go from GPU to GPU
        return [seen.unknown(f"{readings['gpus'].path} shows no GPU", hint="see what gpu-count says")]
    return found or [seen.unknown("the check came to no conclusion", code="check-failed")]


def _as_configured(one: Check, world: World) -> Check:
    if one.id in (world.settings.get("required") or ()):
        return replace(one, required=True)
    if one.id in (world.settings.get("optional") or ()):
        return replace(one, required=False)
    return replace(one, required=True) if any(_is_set(key, world) for key in one.required_when) else one


def _is_set(key: str, world: World) -> bool:
    return world.settings.get(key.removeprefix("health.")) not in (None, "", False, [], ())
