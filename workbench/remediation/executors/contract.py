"""
Turn an action of a plan into a change of the world, once: what every executor promises.

An executor judges nothing and has no policy. It reads the fleet, makes exactly one change for one action, tells how far that is, and
takes it back. Every change carries the action's id, so that whoever looks later (after a crash, another controller) sees whether it has
happened: `begin` with the same action twice is one change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from workbench.errors import WorkbenchError
from workbench.remediation.model import Action, FleetState, NodeState, Step
from workbench.sources.contract import Deadline

__all__ = ["Deadline", "Executor", "ExecutorError", "Fenced", "Lock", "fence"]


class ExecutorError(WorkbenchError):
    """
    The world did not answer properly: whether the change happened is not known until somebody looks.

    Attributes
    ----------
    sent : bool
        Whether the request may have reached the other side; when false, nothing has happened for sure.
    again : float
        Seconds after which a repetition is worth it (Retry-After).
    """

    exit_code = 69

    def __init__(self, message: str, *, hint: str = "", sent: bool = True, again: float = 5.0) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent
        self.again = again


class Fenced(Deadline):
    """
    The deadline of a change, which also knows whether it may still be made: a controller can stand still between its decision and its request.

    Parameters
    ----------
    seconds : float
    clock : callable
    why_not : callable
        Asked right before each request that changes something; returns why it must not be sent, empty when it may. It raises when that cannot
        be told.

    Attributes
    ----------
    passed : int
        How many requests were let through.
    barred : str
        Why the last one was not; empty when it was, or when that could not be told.
    """

    def __init__(self, seconds: float, clock: Callable[[], float], why_not: Callable[[Deadline], str]) -> None:
        super().__init__(seconds, clock)
        self._why_not = why_not
        self.passed = 0
        self.barred = ""

    def fence(self) -> None:
        """Raise `ExecutorError` when the request that comes next must not be sent."""
        sent = self.passed > 0  # of this action something may have been changed already
        try:
            why = self._why_not(self)
        except Exception as error:  # what cannot be asked says no
            raise ExecutorError(f"nothing is sent, since whether it may be cannot be told: {error}", sent=sent) from error
        self.barred = why
        if why:
            raise ExecutorError(f"nothing is sent: {why}", sent=sent)
        self.left()
        self.passed += 1


def fence(deadline: Deadline) -> None:
    """
    Ask once more whether a change may be made; every executor does so right before each request that changes something.

    Raises
    ------
    ExecutorError
        It may not: the lock was lost, the kill switch thrown, or nobody can tell.
    SourceTimeout
        The deadline is over.
    """
    if isinstance(deadline, Fenced):
        deadline.fence()


class Executor(Protocol):
    """
    One way to change a cluster.

    Attributes
    ----------
    name : str
        ``kubernetes``, ``slurm``, ``command``, ``ticket`` …
    verbs : frozenset of str
        What of `workbench.remediation.model.VERBS` it can do.
    """

    name: str
    verbs: frozenset[str]

    def fleet(self, deadline: Deadline) -> FleetState:
        """
        Return all nodes and their work; what could not be seen makes it incomplete, never empty.

        Raises
        ------
        ExecutorError
            Nothing could be seen at all.
        """
        ...

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """
        Return one node as it is at this moment, not from a cache; None when there is none of that name.

        Raises
        ------
        ExecutorError
            It cannot be seen, which is not the same as not being there.
        """
        ...

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """
        Make the change if it has not been made, conditional on what `action.expects` says, in one request where the server allows it.

        Returns ``done``, ``pending``, ``blocked`` or ``changed`` (the world is not what the action expects: nothing was done), with what was
        there `before`. Calls `fence` right before each request that changes something. What is ``blocked`` is asked for again by beginning it
        again. Raises `ExecutorError` when the answer is lost; then `look` decides.
        """
        ...

    def look(self, action: Action, deadline: Deadline) -> Step:
        """
        Tell how far the action is without changing anything: also after a crash, when only the journal knows that it was intended.

        ``absent`` only when it is sure that nothing of it has happened; ``unknown`` when that cannot be told.
        """
        ...

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """
        Take back exactly what the action changed, if it still is what the action made; what somebody changed since stays (``changed``).
        """
        ...


class Lock(Protocol):
    """
    What only one controller of a cluster holds at a time.

    Attributes
    ----------
    token : str
        Grows with each new holder: a change made by an older holder can be told from ours.
    """

    token: str

    def acquire(self, deadline: Deadline) -> bool:
        """Take it, if nobody holds it or its holder let it expire; False when another holds it."""
        ...

    def held(self) -> bool:
        """Whether it is surely still ours, by our own clock and with a margin; asked before each change, renews it after half its time."""
        ...

    def confirm(self, deadline: Deadline) -> bool:
        """
        Whether it is still ours by what its keeper says at this moment: asked right before each request that changes something.

        Raises
        ------
        ExecutorError
            The keeper does not answer.
        """
        ...

    def release(self) -> None:
        """Give it back."""
        ...
