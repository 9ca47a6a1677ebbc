"""Turn judges into checks that can be found, listed and run: ours by decorator, a site's by entry point, all through one door."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.health.finding import Finding
    from workbench.health.seen import Seen

__all__ = ["CONTEXTS", "Check", "Judge", "check", "checks"]

# when a check is run: before a job gets the node, while one runs (nothing that disturbs it), between jobs (may use the GPUs)
CONTEXTS = ("allocation", "running", "idle")
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
        A setting without which the check does not apply: ``health.mounts``.
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


def checks() -> dict[str, Check]:
    """Return all checks by id: the shipped ones, and those that a site's entry points ``workbench.checks`` registered."""
    _ours()
    return dict(_CHECKS)
