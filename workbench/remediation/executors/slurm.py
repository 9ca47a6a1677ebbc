"""
Turn a Slurm cluster into the fleet that plans are made of, and cordons, drains, reboots and their way back into calls of ``scontrol``.

Slurm keeps one thing about a node that is ours to write: its reason. It begins with ``gpu-workbench:ID`` and names the action, so that
after a crash it is known what was begun. slurmctld has no conditional change: the node is read once more right before each one, also after
the jobs were asked for, and again right after it. A reason that somebody else wrote before is left, one that he wrote after us is told; what
he writes while one ``scontrol`` starts, some milliseconds, is lost.
What is done to a job and not to its node is in slurm_jobs.py.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.parse.nodeset import expand
from workbench.parse.slurm_scontrol import show_records
from workbench.parse.slurm_words import local_epoch, split_reason
from workbench.remediation.executors import slurm_jobs as jobs
from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.executors.expects import misfit, same_boot
from workbench.remediation.executors.slurm_node import Ours, by_itself, flags_of, gpus_of, node_of, reason_of
from workbench.remediation.model import OWNER, Action, FleetState, NodeState, Step, Work
from workbench.sources.command import Ran, run

__all__ = ["Slurm"]

# jobs that hold a node: also those whose prolog runs (CF), whose epilog runs (CG), and that are stopped; squeue(1)
_HOLDING = "CF,R,CG,S,ST,SI,SO,RS"
_FIELDS = "%A|%u|%t|%S|%D|%N|%b|%j"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # one node: no list of nodes, no option
_HELD = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_ASK = 20.0  # seconds that one command may take: Slurm's own give up after 9 to 10


class _WouldError(Exception):
    """In a rehearsal: all has been asked, and now slurmctld would be told."""


class Slurm:
    """
    Changes nodes of one cluster; see `workbench.remediation.executors.contract.Executor`.

    Parameters
    ----------
    prefix : sequence of str
        Put in front of every command, as an argument list: ``("ssh", "login-1")``.
    adopt : collection of str, optional
        Owners whose restrictions we may take over: ``workbench check`` is the shipped drain timer.
    env : mapping, optional
        Added to the commands' environment, e.g. ``SLURM_CONF``.
    clock : callable, optional
        Returns the seconds since the epoch.
    """

    name = "slurm"
    verbs = frozenset({"cordon", "drain", "uncordon", "reboot"}) | jobs.JOB_VERBS

    def __init__(
        self,
        prefix: Sequence[str] = (),
        *,
        adopt: Collection[str] = (),
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._prefix, self._adopt, self._clock = tuple(prefix), frozenset(adopt), clock
        # Slurm's commands print local times without a zone; in UTC they need none
        self._env = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"} | dict(env or {})
        self._asks = jobs.Asks(lambda words, deadline: self._ask(words, deadline).text, self._tell, self._job)
        self._sends = True

    # ---- reading

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return all nodes and what runs on them; without the list of jobs the fleet is not seen whole."""
        records = {one["NodeName"]: one for one in show_records(self._ask(("scontrol", "-d", "show", "node"), deadline).text)}
        problems: list[str] = []
        work: dict[str, list[Work]] = {}
        try:
            work = self._work(records, deadline)
            again = jobs.again(self._asks, deadline)
            work = {name: [replace(one, controlled=one.uid in again) for one in some] for name, some in work.items()}
        except ExecutorError as error:
            problems.append(f"what runs on the nodes is not known: {error}")
        nodes = {name: node_of(one, tuple(work.get(name, ())), self._adopt) for name, one in records.items()}
        if not nodes:
            problems.append("slurmctld told of no node at all")
        return FleetState(self._clock(), nodes, "slurm", not problems, tuple(problems))

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return one node as slurmctld has it at this moment; None when it has none of that name."""
        record = self._record(name, deadline)
        return None if record is None else self._state(record, deadline)

    # ---- changing

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Make the change of an action, unless it has been made."""
        record = self._looked_at(action, deadline)
        if record is None:
            return Step("changed", f"slurmctld knows no node {action.node}")
        state = self._state(record, deadline)
        if action.verb in jobs.JOB_VERBS:
            # what a job leaves out is its own affair, also where the node is somebody else's
            return jobs.begin(
                action, self._asks, deadline, lambda: misfit(action.expects, state, foreign=action.verb != "exclude")
            )
        step = _seen(action, record, state)
        if step.status != "absent":
            return step
        if why := misfit(action.expects, state):
            return Step("changed", why)
        kept = {"state": record.get("State", ""), "reason": record.get("Reason", "")}
        return getattr(self, f"_{action.verb}")(action, record, state, kept, deadline)  # type: ignore[no-any-return]

    def rehearse(self, action: Action, deadline: Deadline) -> Step:
        """Return what `begin` would: all is asked that it asks, and nothing is told to slurmctld, which has no dry run."""
        return self._rehearsed(lambda dry: dry.begin(action, deadline))

    def rehearse_undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Return what `undo` would, in the same way."""
        return self._rehearsed(lambda dry: dry.undo(action, before, deadline))

    def _rehearsed(self, what: Callable[[Slurm], Step]) -> Step:
        dry = Slurm(self._prefix, adopt=self._adopt, env=self._env, clock=self._clock)
        dry._sends = False
        try:
            return what(dry)
        except _WouldError:
            return Step("done", "slurmctld checks nothing in advance: all that can be asked was")

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell how far an action is by the node's state and reason, or by its job's."""
        if action.verb in jobs.JOB_VERBS:
            return jobs.look(action, self._asks, deadline)
        record = self._looked_at(action, deadline)
        if record is None:
            return Step("changed", f"slurmctld knows no node {action.node}")
        return _seen(action, record, self._state(record, deadline) if action.verb == "drain" else node_of(record))

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """
        Give the node work again, when its restriction still is the action's.

        A reason that was there before is written anew, so it bears our account and the time of the undo.
        """
        if action.verb in jobs.JOB_VERBS:
            return jobs.undo(action, before, self._asks, deadline)
        if action.verb not in ("cordon", "drain"):
            return Step("failed", f"{action.verb} cannot be taken back")
        record = self._looked_at(action, deadline)
        if record is None:
            return Step("changed", f"slurmctld knows no node {action.node}")
        state = node_of(record)
        if state.op != action.id:
            if state.ours and action.verb == "drain":
                return Step("absent", f"it only waited: the node is held by {state.op}")
            if state.owner:
                return Step("changed", f"{state.owner} holds the node by now ({state.reason})")
            return Step("absent", "nothing of ours is on the node")
        reason, _, _ = split_reason(str(before.get("reason") or ""))
        drained = (
            "DRAIN" in flags_of({"State": str(before["state"])}) if "state" in before else before.get("schedulable") is False
        )
        if drained and reason and Ours.read(reason) is None and not by_itself(reason):
            self._update(action.node, ("state=drain", f"reason={reason}"), deadline)  # what we had taken over
            return Step("done", f"drained with {reason} again")
        words = ["state=undrain"]
        if "DOWN" in flags_of(record):
            # with our reason left on it slurmctld would not take it back when it answers again (ReturnToService=1 goes by the reason)
            words.append(f"reason={reason if by_itself(reason) else 'Not responding'}")
        return self._given_back(action.node, words, deadline)

    # ---- one verb each

    def _cordon(
        self, action: Action, record: Mapping[str, str], state: NodeState, kept: Mapping[str, Any], deadline: Deadline
    ) -> Step:
        if state.ours:
            return Step("changed", f"we restricted it already, with {state.op}")
        if why := self._moved(record, deadline):
            return Step("changed", why)
        until = action.args.get("expires")
        reason = reason_of(action, action.id, expires=float(until) if isinstance(until, int | float) else None)
        self._update(action.node, ("state=drain", f"reason={reason}"), deadline)
        after = self._record(action.node, deadline)
        now = node_of(after) if after else state
        if now.op != action.id:
            return Step("changed", f"somebody else wrote the node's reason at the same moment: {now.reason}")
        return Step("done", f"drained with {now.reason}", kept)

    def _drain(
        self, action: Action, record: Mapping[str, str], state: NodeState, kept: Mapping[str, Any], deadline: Deadline
    ) -> Step:
        step = self._cordon(action, record, state, kept, deadline)
        return replace(self.look(action, deadline), before=kept) if step.status == "done" else step

    def _uncordon(
        self, action: Action, record: Mapping[str, str], state: NodeState, kept: Mapping[str, Any], deadline: Deadline
    ) -> Step:
        op = action.args.get("op")
        if op and state.op != op:
            return Step("changed", f"it is held by {state.op or 'nobody'}, not by {op}")
        flags = flags_of(record)
        if flags & {"NOT_RESPONDING", "NO_RESPOND"}:
            # given back now, a node that is away would get work as soon as slurmctld tries it
            return Step("blocked", f"it does not answer slurmctld ({record.get('State')})", again=15.0)
        if "REBOOT" in " ".join(flags):
            return Step("blocked", f"it reboots ({record.get('State')})", again=15.0)
        if why := self._moved(record, deadline):
            return Step("changed", why)
        # a node that died under our drain and is back stays DOWN until somebody resumes it; undrain leaves that as it is
        words = ("state=resume",) if "DOWN" in flags else ("state=undrain",)
        return replace(self._given_back(action.node, words, deadline), before=kept)

    def _reboot(
        self, action: Action, record: Mapping[str, str], state: NodeState, kept: Mapping[str, Any], deadline: Deadline
    ) -> Step:
        if not state.ours:
            return Step(
                "changed", "only a node that we have drained is rebooted: another would take work at once when it is back"
            )
        if state.booted is None:
            return Step("blocked", "slurmctld does not know since when it is up, so nobody could tell when that has ended")
        if flags_of(record) & {"NOT_RESPONDING", "NO_RESPOND"}:
            if "DOWN" in flags_of(record):  # it would take the request, and nothing would ever come of it (seen with 22.05)
                return Step("failed", "slurmd does not answer, so Slurm cannot reboot the node: it takes a command of the site")
            return Step("blocked", f"slurmd does not answer ({record.get('State')})", again=15.0)
        if why := self._moved(record, deadline):
            return Step("changed", why)
        # without ASAP and nextstate a drained node comes back drained, with our reason (seen with 22.05); with ASAP it takes work at once
        reason = reason_of(action, state.op, expires=state.expires, reboot=action.id, booted=state.booted)
        self._scontrol(("reboot", f"reason={reason}", action.node), deadline)
        return Step("pending", "slurmctld reboots it", {**kept, "booted": state.booted}, again=15.0)

    def _moved(self, record: Mapping[str, str], deadline: Deadline) -> str:
        """Say what somebody changed since a node was read: its jobs were asked for meanwhile, and that takes longest."""
        now = self._record(record["NodeName"], deadline)
        if now is None:
            return f"slurmctld knows no node {record['NodeName']} any more"
        was, state = node_of(record), node_of(now)
        if (state.owner, state.op, state.reason) == (was.owner, was.op, was.reason):
            return ""
        return f"{state.owner or 'somebody'} changed the node at this moment: {state.reason or now.get('State', '')}"

    def _given_back(self, name: str, words: Sequence[str], deadline: Deadline) -> Step:
        self._update(name, words, deadline)
        record = self._record(name, deadline)
        state = node_of(record) if record else None
        if state is None or not state.owner:
            return Step("done", "it takes work again" if state is None or state.ready else "nothing holds it but that it is down")
        return Step("changed", f"{state.owner} restricted it at the same moment: {state.reason}")

    # ---- words to slurmctld

    def _looked_at(self, action: Action, deadline: Deadline) -> dict[str, str] | None:
        if action.verb not in self.verbs:
            raise ExecutorError(f"slurm cannot do {action.verb!r}", sent=False)
        return self._record(action.node, deadline)

    def _state(self, record: Mapping[str, str], deadline: Deadline) -> NodeState:
        name = record["NodeName"]
        return node_of(record, tuple(self._work({name: record}, deadline, name).get(name, ())), self._adopt)

    def _work(self, records: Mapping[str, Mapping[str, str]], deadline: Deadline, node: str = "") -> dict[str, list[Work]]:
        """Return what runs on each node; a job's name may hold anything, also what looks like another job."""
        mark = f"<{secrets.token_hex(8)}>"  # begins each job: no name can have guessed it
        only = ("-w", node) if node else ()
        ran = self._ask(("squeue", "-h", "-a", "-t", _HOLDING, "-o", f"{mark}{_FIELDS}", *only), deadline)
        found: dict[str, list[Work]] = {}
        for row in ran.text.split(mark)[1:]:
            fields = row.rstrip("\n").split("|", 7)
            if len(fields) != 8:
                raise ExecutorError(f"squeue said {row[:80]!r}, which is no job", sent=False)
            job, user, _, start, count, names, gres, name = fields
            each, _ = gpus_of(gres)
            shown = re.sub(r"[^\x20-\x7e\xa0-\uffff]", "?", name)
            for where in expand(names):
                found.setdefault(where, []).append(
                    Work(
                        id=f"{job} ({shown[:40]}, {user})",
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
        return {name: _shared(records[name], work) if name in records else work for name, work in found.items()}

    def _record(self, name: str, deadline: Deadline) -> dict[str, str] | None:
        if not _NAME.fullmatch(name):
            return None
        ran = self._run(("scontrol", "-d", "show", "node", name), deadline)
        if re.search(r"(?i)node \S+ not found|invalid node name", _said(ran)):
            return None
        if not ran.ok:
            raise _error(ran, sent=False)
        found = [one for one in show_records(ran.text) if one.get("NodeName") == name]
        if not found:
            raise ExecutorError(f"scontrol show node {name} said nothing of it", sent=False)
        return found[0]

    def _job(self, number: str, deadline: Deadline) -> str | None:
        ran = self._run(("scontrol", "show", "job", number), deadline)
        if not ran.ok and re.search(r"(?i)invalid job id", _said(ran)):
            return None
        if not ran.ok:
            raise _error(ran, sent=False)
        return ran.text

    def _tell(self, words: tuple[str, ...], deadline: Deadline) -> None:
        self._scontrol(words[1:], deadline)

    def _update(self, name: str, words: Sequence[str], deadline: Deadline) -> None:
        self._scontrol(("update", f"nodename={name}", *words), deadline)

    def _scontrol(self, words: Sequence[str], deadline: Deadline) -> None:
        if not self._sends:
            raise _WouldError
        fence(deadline)
        ran = self._run(("scontrol", *words), deadline)
        if not ran.ok:
            # refused in words, or it was not reached; all else (also ssh that broke off) may have been heard
            refused = ran.ending == "exit" and re.search(
                r"(?i)denied|invalid (?:user|node|job)|not found|connect failure|no longer pending|presently disabled", _said(ran)
            )
            raise _error(ran, sent=not (refused or ran.ending in ("missing", "not-executable")))

    def _ask(self, argv: Sequence[str], deadline: Deadline) -> Ran:
        ran = self._run(argv, deadline)
        if not ran.ok:
            raise _error(ran, sent=False)
        return ran

    def _run(self, argv: Sequence[str], deadline: Deadline) -> Ran:
        return run(argv, seconds=deadline.left(_ASK), prefix=self._prefix, env=self._env)


def _shared(record: Mapping[str, str], work: list[Work]) -> list[Work]:
    """Return the work with the GPUs of what squeue does not tell (``--gpus`` of a whole job): what the node says is in use, less the others'."""
    used, _ = gpus_of(record.get("GresUsed", ""))
    silent = [one for one in work if not one.gpus]
    rest = used - sum(one.gpus for one in work)
    if len(silent) != 1 or rest <= 0:
        return work
    return [replace(one, gpus=rest, ranks=rest, job_gpus=max(one.job_gpus, rest)) if one is silent[0] else one for one in work]


def _said(ran: Ran) -> str:
    """Return what a command said, its complaints last."""
    return ran.text + ran.err.decode("utf-8", "replace")


def _error(ran: Ran, *, sent: bool) -> ExecutorError:
    shown = " ".join(ran.argv[ran.argv.index("scontrol") if "scontrol" in ran.argv else 0 :][:4])
    denied = re.search(r"(?i)access|permission|privilege|invalid user", ran.said)
    hint = "the account must be an operator or SlurmUser: sacctmgr modify user NAME set adminlevel=operator" if denied else ""
    return ExecutorError(f"{shown}: {ran.sentence}", hint=hint, sent=sent)


def _seen(action: Action, record: Mapping[str, str], state: NodeState) -> Step:
    """How far an action is, by the node as it is now."""
    drained = "DRAIN" in flags_of(record)
    if action.verb == "cordon":
        held = drained and state.op == action.id
        return Step("done", state.reason) if held else Step("absent", "it is not drained with this reason")
    if action.verb == "uncordon":
        if not state.owner and not drained:
            return Step("done", "it takes work" if state.schedulable else f"nobody restricts it ({record.get('State')})")
        return Step("absent", f"{state.owner or 'another'} holds it ({state.reason})")
    if action.verb == "reboot":
        return _rebooted(action, record, state)
    if state.op != action.id:
        if not (state.ours and action.expects.get("owner") == OWNER):
            return Step("absent", "it is not drained by us")
        if misfit({key: one for key, one in action.expects.items() if key != "work"}, state):
            return Step("absent", "it is not as the action expects")
    # DRAIN alone is not drained: jobs, their steps and epilogs still end
    if state.busy() or flags_of(record) & _HELD:
        names = ", ".join(one.id for one in state.busy()[:3])
        return Step("pending", f"work still runs: {names or 'steps or epilogs end'}", again=15.0)
    return Step("done", "drained, and no work runs")


def _rebooted(action: Action, record: Mapping[str, str], state: NodeState) -> Step:
    mine = Ours.read(state.reason)
    asked = mine is not None and mine.reboot == action.id
    if mine is None or not asked:
        if "REBOOT" in " ".join(flags_of(record)):
            return Step("blocked", "another reboot is under way", again=15.0)
        return Step("absent", "slurmctld was not asked for this reboot")
    if "REBOOT" in " ".join(flags_of(record)):
        return Step("pending", f"slurmctld says {record.get('State')}", again=15.0)
    if state.reason.endswith("reboot timed out"):
        return Step("failed", "it did not come back within ResumeTimeout")
    if state.ready is not True or state.booted is None:
        return Step("pending", f"it is not back yet ({record.get('State')})", again=15.0)
    if mine.booted is None or same_boot(state.booted, mine.booted) or state.booted < mine.booted:
        return Step("pending", f"it still runs the boot of {record.get('BootTime')}", again=15.0)
    return Step("done", f"it is back, up since {record.get('BootTime')}")
