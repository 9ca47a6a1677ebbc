"""
Turn actions into changes of a `workbench.testing.fleet.Fleet`, over requests that may fail, arrive late, or lose their answer.

It keeps what `workbench.remediation.executors.contract` promises, as a real executor does: a change is conditional on what the action expects,
carries the action's id, and is made once. It also counts what a caller should not do: `Operation.repeats` are requests for what has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.model import OWNER, VERBS, Action, FleetState, NodeState, Step
from workbench.testing.fleet import Crash, Effect, Fleet, Machine, Operation

__all__ = ["FAULTS", "FleetExecutor", "FleetLock"]

FAULTS = (
    "refused",  # no connection: nothing was sent
    "busy",  # 429 with Retry-After: nothing was done
    "conflict",  # somebody else's write came first: nothing was done
    "timeout",  # sent, never arrives; nobody knows
    "late",  # sent, arrives after the caller has given up
    "lost",  # done, the answer is lost
    "crash-before",  # the controller dies before it asks
    "crash-after",  # the controller dies after the change
    "crash-late",  # the controller dies after it has asked, and the request arrives
    "blind",  # the answer makes no sense: nobody knows
)
T = TypeVar("T")
LATENCY = 0.05  # seconds of a request that goes well
_SHORT = {"reset-gpu": 30.0, "validate": 60.0}


class FleetExecutor:
    """
    An executor of every verb on a fleet in memory.

    Parameters
    ----------
    fleet : Fleet
    by : str, optional
        Which controller it belongs to.
    verbs : frozenset of str, optional
    """

    name = "fleet"

    def __init__(self, fleet: Fleet, by: str = "controller", verbs: frozenset[str] = frozenset(VERBS)) -> None:
        self._fleet = fleet
        self.by = by
        self.verbs = verbs
        self._sent = 0.0  # when the request that is being answered was sent

    # requests

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return all nodes."""
        return self._ask("fleet", deadline, self._fleet.look)

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return one node."""

        def answer() -> NodeState | None:
            machine = self._fleet.nodes.get(name)
            return None if machine is None else self._fleet.state(machine)

        return self._ask("node", deadline, answer)

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Make the change, once."""
        if action.verb not in self.verbs:
            raise ExecutorError(f"{action.verb} is none of mine", sent=False)
        return self._ask(f"begin {action.verb}", deadline, lambda: self._begin(action))

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell how far it is."""
        return self._ask(f"look {action.verb}", deadline, lambda: self._look(action))

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Take it back, if it still is as the action made it."""
        return self._ask(f"undo {action.verb}", deadline, lambda: self._undo(action))

    def _ask(self, call: str, deadline: Deadline, reply: Callable[[], T]) -> T:
        fleet = self._fleet
        sent = fleet.now

        def answer() -> T:
            self._sent = sent  # another request may have been answered while this one was on its way
            return reply()

        fault = fleet.fault(call) if fleet.fault is not None else ""
        reads = not call.startswith(("begin", "undo"))
        if fault == "crash-before":
            raise Crash(call)
        if not reads:
            if fleet.pause is not None:
                fleet.pause(self.by)
            fence(deadline)
            sent = fleet.now
        fleet.changing = not reads
        try:
            fleet.sleep(LATENCY)
            if not fault:
                return answer()
            if fault in ("lost", "crash-after"):
                answer()
        finally:
            fleet.changing = False
        if fault == "refused":
            raise ExecutorError("connection refused", sent=False, again=1.0)
        if fault == "busy":
            raise ExecutorError("too many requests", sent=False, again=15.0)
        if fault == "conflict" and not reads:
            raise ExecutorError("the object has been modified", sent=False, again=0.1)
        if fault == "lost":
            fleet.sleep(deadline.left(10.0))
            raise ExecutorError("the answer was lost")
        if fault == "late" and not reads:
            fleet.later(fleet.late, lambda: _quietly(answer))
            fleet.sleep(deadline.left(5.0))
            raise ExecutorError("timed out")
        if fault == "crash-late" and not reads:
            fleet.later(fleet.late, lambda: _quietly(answer))
        if fault.startswith("crash"):
            raise Crash(call)
        if fault == "blind" and call.startswith("look"):
            return cast("T", Step("unknown", "the answer makes no sense"))
        fleet.sleep(deadline.left(30.0))
        raise ExecutorError("timed out")

    # the other side

    def _effect(
        self, action: Action, machine: Machine | None, operation: Operation, lost: tuple[str, ...] = (), *, undo: bool = False
    ) -> None:
        fleet = self._fleet
        effect = Effect(
            fleet.now,
            fleet.clock(),
            action.id,
            action.verb,
            action.node,
            self.by,
            "" if machine is None else machine.owner,
            lost,
            None if machine is None else fleet.state(machine),
            undo,
            self._sent,
        )
        if not undo:
            operation.effects += 1
        if fleet.on_effect is not None:
            fleet.on_effect(effect)
        fleet.effects.append(effect)

    def _begin(self, action: Action) -> Step:
        fleet = self._fleet
        known = fleet.operations.get(action.id)
        if known is not None and known.undone:
            return Step("changed", "it was done and taken back before")
        if known is not None and known.state != "blocked":
            known.repeats += known.by == self.by
            return self._look(action)
        machine = fleet.nodes.get(action.node)
        operation = known or Operation(action.id, action.verb, action.node, "pending", by=self.by)
        if action.verb in ("page", "ticket", "exclude", "collect"):
            return self._tell(action, machine, operation)
        if machine is None:
            return Step("changed", "no such node")
        if why := _differs(action, fleet.state(machine)):
            return Step("changed", why)
        return getattr(self, "_" + action.verb.replace("-", "_"))(action, machine, operation)  # type: ignore[no-any-return]

    def _keep(self, operation: Operation, state: str, detail: str = "") -> Step:
        operation.state, operation.detail = state, detail
        self._fleet.operations[operation.action] = operation
        return Step(state, detail, dict(operation.before))

    def _tell(self, action: Action, machine: Machine | None, operation: Operation) -> Step:
        fleet = self._fleet
        self._effect(action, machine, operation)
        if action.verb == "exclude":
            fleet.excluded.append((str(action.args.get("job", "")), action.node))
        elif action.verb in ("page", "ticket"):
            (fleet.pages if action.verb == "page" else fleet.tickets).append(action.id)
        return self._keep(operation, "done")

    def _cordon(self, action: Action, machine: Machine, operation: Operation) -> Step:
        fleet = self._fleet
        if machine.owner and machine.owner != OWNER:
            return Step("changed", f"{machine.owner} has restricted it")
        self._effect(action, machine, operation)
        operation.before = {
            one: getattr(machine, one) for one in ("schedulable", "owner", "op", "reason", "restricted", "expires")
        }
        machine.schedulable, machine.owner, machine.op = False, OWNER, action.id
        machine.reason, machine.restricted = str(action.args.get("reason") or action.why), fleet.clock()
        machine.expires = action.args.get("expires")
        fleet.changed(machine)
        return self._keep(operation, "done")

    def _drain(self, action: Action, machine: Machine, operation: Operation) -> Step:
        if machine.owner != OWNER:
            step = self._cordon(action, machine, operation)
            if step.status != "done":
                return step
        else:
            self._effect(action, machine, operation)
        for number, name in enumerate(list(machine.work)):
            if not machine.work[name].ignored:  # running work ends by itself
                self._fleet.later(600.0 * (number + 1), lambda name=name: self._fleet.end(machine, name))  # type: ignore[misc]
        return self._keep(operation, "pending", "running work ends by itself")

    def _evict(self, action: Action, machine: Machine, operation: Operation) -> Step:
        fleet, held = self._fleet, []
        for work in self._fleet.state(machine).busy():
            leaving = operation.before.setdefault("leaving", [])
            if work.uid in leaving:
                continue
            if work.disruptions == 0:
                held.append(work)
                continue
            self._effect(action, machine, operation, (work.id,))
            leaving.append(work.uid)
            fleet.disrupt(work)
            fleet.later(work.grace, lambda name=work.id, uid=work.uid: self._gone(machine, name, uid))  # type: ignore[misc]
        if held:
            return self._keep(operation, "blocked", f"budget {held[0].budgets[0]} allows no disruption")
        return self._keep(operation, "pending" if machine.work else "done")

    def _gone(self, machine: Machine, name: str, uid: str) -> None:
        if (work := machine.work.get(name)) is not None and work.uid == uid:
            self._fleet.end(machine, name)

    def _restart_task(self, action: Action, machine: Machine, operation: Operation) -> Step:
        if action.target not in machine.work:
            return Step("changed", "the task is not there any more")
        self._effect(action, machine, operation, (action.target,))
        work = machine.work.pop(action.target)
        self._fleet.run(machine.name, work.id, job=work.job, gpus=work.gpus, budgets=work.budgets)
        return self._keep(operation, "done")

    def _reset_gpu(self, action: Action, machine: Machine, operation: Operation) -> Step:
        if self._fleet.state(machine).busy():
            return Step("failed", "the GPU is in use")
        return self._wait(action, machine, operation, lambda: self._after_reset(machine, operation))

    def _after_reset(self, machine: Machine, operation: Operation) -> None:
        if machine.reset_works:
            self._fleet.mend(machine, "reset-gpu")
            operation.state = "done"
        else:
            operation.state, operation.detail = "failed", "the GPU did not come back"

    def _validate(self, action: Action, machine: Machine, operation: Operation) -> Step:
        def over() -> None:
            operation.state = "failed" if machine.faults or not machine.ready else "done"
            operation.detail = ", ".join(sorted(machine.faults))

        return self._wait(action, machine, operation, over)

    def _wait(self, action: Action, machine: Machine, operation: Operation, over: Callable[[], None]) -> Step:
        self._effect(action, machine, operation)
        self._fleet.later(_SHORT[action.verb], over)
        return self._keep(operation, "pending")

    def _reboot(self, action: Action, machine: Machine, operation: Operation) -> Step:
        lost = tuple(one.id for one in self._fleet.state(machine).busy())
        self._effect(action, machine, operation, lost)
        operation.before = {"boot": machine.boot}
        self._fleet.go_down(machine.name, by="reboot")
        return self._keep(operation, "pending", "it goes down")

    def _replace(self, action: Action, machine: Machine, operation: Operation) -> Step:
        lost = tuple(one.id for one in self._fleet.state(machine).busy())
        self._effect(action, machine, operation, lost)
        operation.before = {"uid": machine.uid}
        self._fleet.another(machine, 300.0)
        return self._keep(operation, "pending", "another machine is on its way")

    def _taint(self, action: Action, machine: Machine, operation: Operation) -> Step:
        """A taint keeps new work away and is a restriction like a cordon, with owner, reason and expiry."""
        step = self._cordon(action, machine, operation)
        if step.status == "done":
            machine.marks["taint:unfit"] = action.id
        return step

    def _label(self, action: Action, machine: Machine, operation: Operation) -> Step:
        self._effect(action, machine, operation)
        name = f"{action.verb}:{action.args.get('key', 'unfit')}"
        operation.before = {"key": name, "value": machine.marks.get(name)}
        machine.marks[name] = action.id
        self._fleet.changed(machine)
        return self._keep(operation, "done")

    def _uncordon(self, action: Action, machine: Machine, operation: Operation) -> Step:
        if machine.owner != OWNER or (action.args.get("op") and machine.op != action.args["op"]):
            return Step("changed", "the restriction is not the one that it is about")
        self._effect(action, machine, operation)
        self._free(machine)
        return self._keep(operation, "done")

    def _free(self, machine: Machine) -> None:
        for name in [one for one in machine.marks if one.startswith(("taint:", "label:"))]:
            del machine.marks[name]
        machine.schedulable, machine.owner, machine.op, machine.reason = True, "", "", ""
        machine.restricted = machine.expires = None
        self._fleet.changed(machine)

    def _look(self, action: Action) -> Step:
        fleet = self._fleet
        operation = fleet.operations.get(action.id)
        if operation is None or operation.undone:
            return Step("absent")
        machine = fleet.nodes.get(action.node)
        if operation.state == "pending":
            before, expected = operation.before, action.expects.get("uid")
            if machine is not None and expected and machine.uid != expected and action.verb != "replace":
                return Step("changed", "the machine is another one")
            back = machine is not None and machine.ready and machine.boot != before.get("boot")
            another = machine is not None and machine.uid != before.get("uid")
            empty = machine is None or not fleet.state(machine).busy()
            if {"reboot": back, "replace": another, "evict": empty, "drain": empty}.get(action.verb):
                operation.state = "done"
        ours = machine is not None and machine.op == action.id
        if operation.state == "done" and not ours and action.verb in ("cordon", "drain", "taint") and operation.before:
            return Step("changed", "somebody has changed it since")
        if (
            operation.state == "done"
            and action.verb == "label"
            and (machine is None or machine.marks.get(str(operation.before["key"])) != action.id)
        ):
            return Step("changed", "the mark is not there any more")
        return Step(operation.state, operation.detail, dict(operation.before))

    def _undo(self, action: Action) -> Step:
        operation = self._fleet.operations.get(action.id)
        machine = self._fleet.nodes.get(action.node)
        if operation is None:
            return Step("absent", "nothing of it has happened")
        if operation.undone:
            return Step("done", "it was taken back before")
        if machine is None:
            return Step("changed", "no such node")
        if action.verb in ("cordon", "drain", "taint"):
            if machine.owner != OWNER or machine.op != action.id:
                return Step("changed", f"it is restricted by {machine.owner or 'nobody'}")
            self._effect(action, machine, operation, undo=True)
            machine.marks.pop("taint:unfit", None)
            for name, value in operation.before.items():
                setattr(machine, name, value)
        elif action.verb == "label":
            name = str(operation.before["key"])
            if machine.marks.get(name) != action.id:
                return Step("changed", "somebody has changed it since")
            self._effect(action, machine, operation, undo=True)
            if operation.before["value"] is None:
                del machine.marks[name]
            else:
                machine.marks[name] = operation.before["value"]
        elif action.verb == "exclude":
            self._effect(action, machine, operation, undo=True)
            self._fleet.excluded.remove((str(action.args.get("job", "")), action.node))
        else:
            return Step("failed", f"nothing takes back {action.verb}")
        operation.undone = True
        self._fleet.changed(machine)
        return Step("done")


class FleetLock:
    """
    A lease on the fleet's server that one controller holds at a time.

    Parameters
    ----------
    fleet : Fleet
    by : str
    lasts : float, optional
        Seconds after which it is anybody's.
    """

    def __init__(self, fleet: Fleet, by: str, lasts: float = 60.0) -> None:
        self._fleet, self.by, self._lasts = fleet, by, lasts
        self.token = ""
        self._until = float("-inf")

    def acquire(self, deadline: Deadline) -> bool:
        """Take it, if nobody has it."""
        holder, token, until = self._fleet.lease
        if holder not in ("", self.by) and until > self._fleet.now:
            return False
        self._until = self._fleet.now + self._lasts
        self._fleet.lease = (self.by, token + 1, self._until)
        self.token = str(token + 1)
        self._fleet.taken = self._fleet.now
        return True

    def held(self) -> bool:
        """Whether it is still ours, with room for one request."""
        holder, token, _ = self._fleet.lease
        left = self._until - self._fleet.now
        if left <= 0 or holder != self.by or str(token) != self.token:
            return False
        if left < self._lasts / 2:
            self._until = self._fleet.now + self._lasts
            self._fleet.lease = (self.by, token, self._until)
        return True

    def confirm(self, deadline: Deadline) -> bool:
        """Whether the server says that it is ours."""
        return self.held()

    def release(self) -> None:
        """Give it back."""
        if self._fleet.lease[0] == self.by:
            self._fleet.lease = ("", self._fleet.lease[1], 0.0)
        self._until = float("-inf")


def _differs(action: Action, state: NodeState) -> str:
    """Say how the node differs from what the action expects, as a server's precondition does."""
    expects = action.expects
    for name in ("uid", "boot"):
        if expects.get(name) and getattr(state, name) != expects[name]:
            return f"{name} is another"
    if "owner" in expects and state.owner != expects["owner"]:
        return f"restricted by {state.owner or 'nobody'}"
    if "schedulable" in expects and state.schedulable != expects["schedulable"]:
        return "schedulable is another"
    if "work" in expects and {one.uid or one.id for one in state.busy()} - set(expects["work"]):
        return "other work runs there"
    return ""


def _quietly(answer: Callable[[], Any]) -> None:
    try:
        answer()
    except ExecutorError:
        pass
