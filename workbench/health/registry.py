"""Turn judges into checks that can be found, listed and run: ours by decorator, a site's by entry point, all through one door."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from workbench.sources.node.readers import all_readers

if TYPE_CHECKING:
    from workbench.health.finding import Finding
    from workbench.health.seen import Seen

__all__ = ["CONTEXTS", "GROUP", "QUICK", "Check", "Judge", "broken", "check", "checks", "disturbs"]

# when a check is run: before a job gets the node, while one runs (nothing that disturbs it), between jobs (may use the GPUs)
CONTEXTS = ("allocation", "running", "idle")
GROUP = "workbench.checks"  # the group of entry points by which a package of the site's brings checks
QUICK = 20.0  # seconds that something which uses the GPUs may take before a job: who starts the job waits for it
Judge = Callable[["Seen"], "Iterable[Finding]"]


@dataclass(frozen=True, slots=True)
class Check:
    """
    One thing that an operator can name.

    Attributes
    ----------
    id : str
        Its name on the command line.
    title : str
        What it asks, as a question or a few words.
    judge : callable
        Pure: takes what was `Seen`, yields findings; at least one.
    needs : tuple of str
        Readings without which it is ``unknown``.
    wants : tuple of str
        Readings that it uses when they are there.
    contexts : tuple of str
        Of `CONTEXTS`.
    cls : str
        The failure class it looks for.
    required : bool
        Whether the node is unfit while it is unknown or critical. A site's setting ``health.required`` and ``health.optional`` overrule it.
    switch : str
        A setting without which the check does not apply: ``health.<name>``.
    required_when : tuple of str
        Settings any of which makes it required, when it is not by itself: a site that says how many network ports there must be wants to know.
    origin : str
        Who brought it: ``workbench``, or the name of an entry point or executable.
    """

    id: str
    title: str
    judge: Judge
    needs: tuple[str, ...]
    wants: tuple[str, ...] = ()
    contexts: tuple[str, ...] = CONTEXTS
    cls: str = ""
    required: bool = True
    switch: str = ""
    required_when: tuple[str, ...] = ()
    origin: str = "workbench"


_CHECKS: dict[str, Check] = {}


def check(
    id: str,
    title: str,
    *,
    needs: Sequence[str],
    wants: Sequence[str] = (),
    contexts: Sequence[str] = CONTEXTS,
    cls: str = "",
    required: bool = True,
    switch: str = "",
    required_when: Sequence[str] = (),
    origin: str = "workbench",
) -> Callable[[Judge], Judge]:
    """
    Register a judge as a check; the arguments are those of `Check`.

    Raises
    ------
    ValueError
        A check of this id exists, or a context is none of `CONTEXTS`.
    """
    if id in _CHECKS:
        raise ValueError(f"there is a check {id!r} already")
    if wrong := set(contexts) - set(CONTEXTS):
        raise ValueError(f"check {id!r}: {', '.join(sorted(wrong))} is no context; there are {', '.join(CONTEXTS)}")

    def register(judge: Judge) -> Judge:
        _CHECKS[id] = Check(
            id, title, judge, tuple(needs), tuple(wants), tuple(contexts), cls, required, switch, tuple(required_when), origin
        )
        return judge

    return register


@lru_cache(maxsize=1)
def _ours() -> None:
    package = import_module("workbench.health.checks")
    for module in sorted(each.name for each in iter_modules(package.__path__)):
        import_module(f"workbench.health.checks.{module}")
    assert not (wrong := [why for one in _CHECKS.values() if (why := disturbs(one))]), wrong


@lru_cache(maxsize=1)
def _theirs() -> None:
    for point in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        _load(point)


def _load(point: EntryPoint) -> None:
    """Load one entry point; what goes wrong in it, whatever it is, becomes a check that says so."""
    before = dict(_CHECKS)
    origin = f"entry point {point.name} ({point.value})"
    wrong: list[str] = []
    try:
        point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a package that ends the interpreter when it is imported ends no node's check
        wrong.append(f"{type(error).__name__}: {error}")
    for name, one in list(_CHECKS.items()):
        if name in before:
            _CHECKS[name] = before[name]
        elif why := disturbs(one):
            wrong.append(why)
            del _CHECKS[name]
        elif one.origin == "workbench":
            _CHECKS[name] = replace(one, origin=origin)
    if not wrong and len(_CHECKS) == len(before):
        wrong.append("it registered no check")
    if wrong:
        one = broken(f"entry-point-{point.name}", origin, f"the {origin} is broken: {'; '.join(wrong)}"[:400])
        _CHECKS[one.id] = one


def broken(id: str, origin: str, why: str) -> Check:
    """Return the check that stands for one which could not be loaded: always unknown, so that nobody takes its silence for health."""

    def judge(seen: Seen) -> Iterable[Finding]:
        yield seen.unknown(why, code="check-failed", hint=f"mend or remove it: {origin}")

    return Check(id, "a check of the site could be loaded", judge, (), origin=origin)


def disturbs(one: Check) -> str:
    """
    Return why a check must not be run in a context that it names; empty when it may.

    While a job runs nothing may use its GPUs; before a job only what is over within `QUICK` seconds.
    """
    readers = all_readers()
    active = [readers[name] for name in (*one.needs, *one.wants) if name in readers and readers[name].active]
    for reader in active:
        if "running" in one.contexts:
            return f"check {one.id!r} must not run while a job runs: its reading {reader.name!r} uses the GPUs"
        if "allocation" in one.contexts and reader.seconds > QUICK:
            return f"check {one.id!r} must not run before a job: {reader.name!r} may use the GPUs for {reader.seconds:.0f} s"
    return ""


def checks() -> dict[str, Check]:
    """
    Return all checks by id: the shipped ones, and those that a site's entry points ``workbench.checks`` registered.

    An entry point names a module that registers checks with the decorator `check` when it is imported (and readings with
    `workbench.sources.node.world.reader`). One that cannot be loaded, registers nothing, takes the id of another or would disturb a job
    is a check of its own, ``entry-point-NAME``, and always unknown.
    """
    _ours()
    _theirs()
    return dict(_CHECKS)
