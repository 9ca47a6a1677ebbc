"""
Turn a Slurm cluster into the fleet that plans are made of, and cordons, drains, reboots and their way back into calls of ``scontrol``.

Slurm keeps one thing about a node that is ours to write: its reason. It begins with ``gpu-workbench:ID`` and names the action, so that
after a crash it is known what was begun. slurmctld has no conditional change: the node is read just before and just after each one, and a
reason that somebody else wrote in between is told.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from workbench.parse.nodeset import expand
from workbench.parse.slurm_scontrol import show_records
from workbench.parse.slurm_words import local_epoch, split_reason
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.expects import misfit
from workbench.remediation.model import OWNER, Action, FleetState, NodeState, Step, Work
from workbench.sources.command import Ran, run

__all__ = ["Slurm"]

_PREFIX = "gpu-workbench:"
_OURS = re.compile(
    r"gpu-workbench:([A-Za-z0-9-]+)(?: until (\d{4}-\d\d-\d\dT\d\d:\d\d)Z)?(?: reboot ([A-Za-z0-9-]+))? ?(.*)", re.S
)
# flags of a state that say that new work does not come, by whomever (slurm.conf(5), sinfo(1): node state codes)
_AWAY = frozenset(
    {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "PLANNED_DOWN", "POWERED_DOWN", "POWERING_DOWN", "BLOCKED"}
)
_DOWN = frozenset({"DOWN", "UNKNOWN", "FUTURE", "NOT_RESPONDING", "ERROR"})
_REBOOTS = frozenset({"REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT@", "REBOOT^"})
# who slurmctld writes a reason as when nobody did
_ITSELF = frozenset({"root", "slurm", "unknown", "nobody"})
# reasons that slurmctld writes by itself for a node that is away (read_config.c, node_mgr.c, ping_nodes.c): nobody's decision
_BY_ITSELF = re.compile(
    r"(?i)^(not responding|node unexpectedly rebooted|reboot timed out|node failure|.*: reboot (issued|timed out|complete))"
)
_SQUEUE = "%A|%u|%t|%S|%D|%N|%b|%j"  # a name may hold anything, so it is the last
_ASK = 20.0  # seconds that one command may take


class Slurm:
    """
    Changes nodes of one cluster; see `workbench.remediation.executors.contract.Executor`.

    Parameters
    ----------
    prefix : sequence of str
        Put in front of every command, as an argument list: ``("ssh", "login-1")``.
    env : mapping, optional
        Added to the commands' environment, e.g. ``SLURM_CONF``.
    clock : callable, optional
        Returns the seconds since the epoch.
    """

    name = "slurm"
    verbs = frozenset({"cordon", "drain", "uncordon", "reboot"})

    def __init__(
        self, prefix: Sequence[str] = (), *, env: Mapping[str, str] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._prefix, self._clock = tuple(prefix), clock
        # Slurm's commands print local times without a zone; in UTC they need none
        self._env = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"} | dict(env or {})

    # ---- reading

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return all nodes and what runs on them; without the list of jobs the fleet is not seen whole."""
        records = show_records(self._show("node", deadline))
        problems: list[str] = []
        work: dict[str, list[Work]] = {}
        try:
            work = self._work(deadline)
        except ExecutorError as error:
            problems.append(f"what runs on the nodes is not known: {error}")
        nodes = {}
        for one in records:
            state = _node(one, tuple(work.get(one.get("NodeName", ""), ())))
            nodes[state.name] = state
        if not nodes:
            problems.append("slurmctld told of no node at all")
        return FleetState(self._clock(), nodes, "slurm", not problems, tuple(problems))

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return one node as slurmctld has it at this moment; None when it has none of that name."""
        found = self._record(name, deadline)
        if found is None:
            return None
        return _node(found, tuple(self._work(deadline, name).get(name, ())))

    # ---- changing

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Make the change of an action, unless it has been made."""
        if action.verb not in self.verbs:
            raise ExecutorError(f"slurm cannot do {action.verb!r}", sent=False)
        before = self._record(action.node, deadline)
        if before is None:
            return Step("changed", f"slurmctld knows no node {action.node}")
        state = _node(before, tuple(self._work(deadline, action.node).get(action.node, ())))
        step = self._seen(action, before, state)
        if step.status != "absent":
            return step
        if why := misfit(action.expects, state):
            return Step("changed", why)
        kept = {"state": before.get("State", ""), "reason": before.get("Reason", "")}
        return getattr(self, f"_{action.verb}")(action, state, kept, deadline)  # type: ignore[no-any-return]

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell how far an action is by the node's state and reason."""
        if action.verb not in self.verbs:
            raise ExecutorError(f"slurm cannot do {action.verb!r}", sent=False)
        record = self._record(action.node, deadline)
        if record is None:
            return Step("changed", f"slurmctld knows no node {action.node}")
        work = self._work(deadline, action.node).get(action.node, ()) if action.verb == "drain" else ()
        return self._seen(action, record, _node(record, tuple(work)))

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Give the node work again, when its restriction still is the action's."""
        if action.verb not in ("cordon", "drain"):
            return Step("failed", f"{action.verb} cannot be taken back")
        record = self._record(action.node, deadline)
        if record is None:
            return Step("changed", f"slurmctld knows no node {action.node}")
        state = _node(record)
        if state.op == action.id:
            return self._resumed(action.node, deadline)
        if state.owner:
            return Step("changed", f"{state.owner} holds the node by now ({state.reason})")
        return Step("absent", "nothing of ours is on the node")

    # ---- one verb each

    def _cordon(self, action: Action, state: NodeState, kept: Mapping[str, Any], deadline: Deadline) -> Step:
        if state.ours:
            return Step("changed", f"we restricted it already, with {state.op}")
        self._update(action.node, ("state=drain", f"reason={_reason(action, action.id)}"), deadline)
        after = self._record(action.node, deadline)
        now = _node(after) if after else state
        if now.op != action.id:
            return Step("changed", f"somebody else wrote the node's reason at the same moment: {now.reason}")
        return Step("done", f"drained with {now.reason}", kept)

    def _drain(self, action: Action, state: NodeState, kept: Mapping[str, Any], deadline: Deadline) -> Step:
        if not state.ours:
            step = self._cordon(action, state, kept, deadline)
            if step.status != "done":
                return step
        step = self.look(action, deadline)
        return replace(step, before=kept)

    def _uncordon(self, action: Action, state: NodeState, kept: Mapping[str, Any], deadline: Deadline) -> Step:
        return replace(self._resumed(action.node, deadline), before=kept)

    def _reboot(self, action: Action, state: NodeState, kept: Mapping[str, Any], deadline: Deadline) -> Step:
        # without ASAP and nextstate a drained node comes back drained, with our reason (seen with 22.05); with ASAP it takes work at once
        reason = _reason(action, state.op or action.id, reboot=action.id)
        self._scontrol(("reboot", f"reason={reason}", action.node), deadline)
        return Step("pending", "slurmctld reboots it", {**kept, "boot": state.boot}, again=15.0)

    def _resumed(self, name: str, deadline: Deadline) -> Step:
        self._update(name, ("state=resume",), deadline)
        record = self._record(name, deadline)
        state = _node(record) if record else None
        if state is None or not state.owner:
            return Step("done", "it takes work again")
        return Step("changed", f"{state.owner} restricted it at the same moment: {state.reason}")

    def _seen(self, action: Action, record: Mapping[str, str], state: NodeState) -> Step:
        """How far the action is, by the node as it is now."""
        if action.verb == "cordon":
            return Step("done", state.reason) if state.op == action.id else Step("absent", "it does not have this reason")
        if action.verb == "uncordon":
            if state.owner == "" and state.schedulable:
                return Step("done", "it takes work")
            return Step("absent", f"{state.owner or 'slurmctld'} holds it ({state.reason})")
        if action.verb == "reboot":
            return _rebooted(action, record, state)
        mine = state.op == action.id or (state.ours and action.expects.get("owner") == OWNER)
        if not mine:
            return Step("absent", "it is not drained by us")
        if state.op != action.id and misfit({key: one for key, one in action.expects.items() if key != "work"}, state):
            return Step("absent", "it is not as the action expects")
        flags = _flags(record)
        if state.busy() or flags & {"COMPLETING", "ALLOCATED", "MIXED"}:
            names = ", ".join(one.id for one in state.busy()[:3])
            return Step("pending", f"work still runs: {names or 'steps end'}", again=15.0)
        return Step("done", "drained, and no work runs")

    # ---- words to slurmctld

    def _work(self, deadline: Deadline, node: str = "") -> dict[str, list[Work]]:
        ran = self._ask(("squeue", "-h", "-a", "-t", "R,CG,S,SO,SI", "-o", _SQUEUE, *(("-w", node) if node else ())), deadline)
        found: dict[str, list[Work]] = {}
        for line in ran.text.splitlines():
            fields = line.strip().split("|", 7)
            if len(fields) != 8:
                raise ExecutorError(f"squeue said {line[:80]!r}, which is no job", sent=False)
            job, user, _, start, count, names, gres, name = fields
            each = sum(int(one) for one in re.findall(r"gpu(?::[A-Za-z][\w.-]*)?[:=](\d+)", gres))
            for where in expand(names):
                found.setdefault(where, []).append(
                    Work(
                        id=f"{job} ({name}, {user})"[:80],
                        uid=job,
                        job=job,
                        ranks=each or 1,
                        gpus=each,
                        job_gpus=each * (int(count) if count.isdigit() else 1),
                        since=local_epoch(start),
                        gang=True,
                        controlled=False,
                    )
                )
        return found

    def _record(self, name: str, deadline: Deadline) -> dict[str, str] | None:
        ran = self._run(("scontrol", "show", "node", name), deadline)
        if not ran.ok:
            if re.search(r"(?i)node \S+ not found|invalid node name", _said(ran)):
                return None
            raise _error(ran, sent=False)
        found = [one for one in show_records(ran.text) if one.get("NodeName") == name]
        if not found:
            if re.search(r"(?i)not found", _said(ran)):
                return None
            raise ExecutorError(f"scontrol show node {name} said nothing of it", sent=False)
        return found[0]

    def _show(self, what: str, deadline: Deadline) -> str:
        return self._ask(("scontrol", "show", what), deadline).text

    def _update(self, name: str, words: Sequence[str], deadline: Deadline) -> None:
        self._scontrol(("update", f"nodename={name}", *words), deadline)

    def _scontrol(self, words: Sequence[str], deadline: Deadline) -> None:
        ran = self._run(("scontrol", *words), deadline)
        if not ran.ok:
            # slurmctld refused in words, or nobody knows whether it heard us
            refused = ran.ending == "exit" and re.search(r"(?i)access|permission|invalid|not found|unable to", _said(ran))
            raise _error(ran, sent=not (refused or ran.ending in ("missing", "not-executable", "unreachable")))

    def _ask(self, argv: Sequence[str], deadline: Deadline) -> Ran:
        ran = self._run(argv, deadline)
        if not ran.ok:
            raise _error(ran, sent=False)
        return ran

    def _run(self, argv: Sequence[str], deadline: Deadline) -> Ran:
        return run(argv, seconds=deadline.left(_ASK), prefix=self._prefix, env=self._env)


def _said(ran: Ran) -> str:
    """Return what a command said, its complaints last."""
    return ran.text + ran.err.decode("utf-8", "replace")


def _error(ran: Ran, *, sent: bool) -> ExecutorError:
    said = _said(ran).strip().splitlines()
    what = " ".join(ran.argv[-4:])
    hint = "the account must be an operator or SlurmUser: sacctmgr modify user NAME set adminlevel=operator"
    denied = bool(said) and re.search(r"(?i)access|permission|privilege", said[-1])
    return ExecutorError(f"{what}: {said[-1] if said else ran.ending}", hint=hint if denied else "", sent=sent)


def _flags(record: Mapping[str, str]) -> frozenset[str]:
    state = record.get("State", "").upper().split(" ")[0]
    marked = {"*": "NOT_RESPONDING", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "~": "POWERED_DOWN"}
    return frozenset(part.rstrip("*@^~#%$!-") for part in state.split("+")) | {
        word for sign, word in marked.items() if sign in state
    }


def _reason(action: Action, op: str, *, reboot: str = "") -> str:
    """Return the reason that is written: whose it is, until when, and why; one line without quotes, since it passes through files and shells."""
    until = action.args.get("expires")
    expires = f" until {datetime.fromtimestamp(until, UTC):%Y-%m-%dT%H:%MZ}" if isinstance(until, int | float) else ""
    again = f" reboot {reboot}" if reboot else ""
    why = re.sub(r"[^\w .,:;/()%+@\[\]-]", "_", str(action.args.get("reason") or action.why))
    return f"{_PREFIX}{op}{expires}{again} {why}"[:240].rstrip()


def _rebooted(action: Action, record: Mapping[str, str], state: NodeState) -> Step:
    found = _OURS.match(split_reason(record.get("Reason"))[0])
    asked = found is not None and found[3] == action.id
    flags, boot = _flags(record), action.expects.get("boot")
    if flags & _REBOOTS or "REBOOT" in " ".join(flags):
        return (
            Step("pending", f"slurmctld says {record.get('State')}", again=15.0)
            if asked
            else Step("blocked", "another reboot is under way")
        )
    if not asked:
        return Step("absent", "slurmctld was not asked for this reboot")
    if boot and state.boot == boot:
        if state.ready is not True:
            return Step("pending", "it has not come back", again=15.0)
        return Step("pending", f"it still runs the boot of {boot}", again=15.0)
    if state.ready is not True:
        return Step("pending", "it is not back yet", again=15.0)
    return Step("done", f"it is back, up since {state.boot}")


def _node(record: Mapping[str, str], work: tuple[Work, ...] = ()) -> NodeState:
    """Return a record of ``scontrol show node`` as its scheduler sees it."""
    flags = _flags(record)
    reason, who, when = split_reason(record.get("Reason") if record.get("Reason") not in (None, "none", "(null)") else "")
    ours = _OURS.match(reason)
    away = bool(flags & _AWAY)
    down = bool(flags & _DOWN)
    owner = op = ""
    expires: float | None = None
    if ours and (away or down):
        owner, op = OWNER, ours[1]
        expires = local_epoch(f"{ours[2]}:00") if ours[2] else None
    elif away or (down and reason and not _BY_ITSELF.match(reason)):
        # root and the slurm user write for hooks and by hand alike: whoever it was, it was not us
        owner = who if who and who not in _ITSELF else f"somebody as {who}" if who else "somebody"
        if not reason and not away:
            owner = ""
    boot = record.get("BootTime", "")
    gpus = sum(int(one) for one in re.findall(r"gpu(?::[A-Za-z][\w.-]*)?:(\d+)", record.get("Gres", "")))
    kinds = re.findall(r"gpu:([A-Za-z][\w.-]*):\d+", record.get("Gres", ""))
    instance = record.get("InstanceId", "")
    return NodeState(
        name=record.get("NodeName", ""),
        uid="" if instance in ("", "(null)") else instance,
        boot="" if boot in ("", "None", "Unknown") else boot,
        booted=local_epoch(boot),
        ready=not down,
        schedulable=not (away or down),
        owner=owner,
        op=op,
        reason=reason,
        restricted=when,
        expires=expires,
        pool=record.get("Partitions", "").split(",")[0],
        sku=kinds[0] if kinds else "",
        gpus=gpus,
        version=record.get("LastBusyTime", ""),
        work=work,
    )
