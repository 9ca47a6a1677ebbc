"""Turn a verdict and the attempts so far into what happens next: start again (where, when, from which checkpoint), wait, or stop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from workbench.remediation.records import plain
from workbench.training.attempts import Attempt, History, Told, ended, told
from workbench.training.exclusions import ever_out, still_out
from workbench.training.policy import Policy

if TYPE_CHECKING:
    from workbench.model import Verdict

__all__ = ["ACTIONS", "Decision", "attempt_of", "certain", "decide"]

ACTIONS = ("restart", "wait", "stop")
_WHO = {"hardware": "hardware", "driver": "platform", "platform": "platform", "user": "user", "unknown": "user", "none": "user"}


class Restorable(Protocol):
    """What matters here of a checkpoint: see `workbench.training.checkpoints.Checkpoint`."""

    @property
    def path(self) -> Any: ...
    @property
    def step(self) -> int | None: ...
    @property
    def state(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """
    What happens next with a job that failed.

    Attributes
    ----------
    action : str
        ``restart``: begin the next attempt after `delay`. ``wait``: begin nothing; after `delay` ask again with the same history and a later
        `History.now` (and `History.others`). ``stop``: begin nothing any more.
    exclude_nodes, exclude_gpus : tuple of str
        All that the next attempt is kept off, those of earlier attempts included. A GPU is its UUID, or NODE/PCI.
    delay : float
        Seconds.
    resume_from : str or None
        Path of the checkpoint; None when the job finds its own, or begins anew: `reason` says which.
    cause, cls : str
        Of the verdict.
    budget : mapping of str to (int, int)
        Restarts used (this one included) and allowed, of this cause, of all, and in a row without progress.
    reason : str
        One sentence.
    who : str
        Who has to do something: ``nobody``, ``user``, ``platform`` or ``hardware`` (who mends or replaces it).
    todo : tuple of str
        What they have to do.
    evidence : tuple of str
        Lines that the verdict stands on, ``file:line: text``. Log text: clean it before it is shown.
    """

    action: str
    exclude_nodes: tuple[str, ...] = ()
    exclude_gpus: tuple[str, ...] = ()
    delay: float = 0.0
    resume_from: str | None = None
    cause: str = "unknown"
    cls: str = "unknown"
    budget: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reason: str = ""
    who: str = "nobody"
    todo: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    @property
    def excluded(self) -> tuple[str, ...]:
        """Nodes and GPUs in one list: `Attempt.excluded` of the next attempt."""
        return (*self.exclude_nodes, *self.exclude_gpus)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, with which JSON can do something."""
        return dict(plain(self))


def certain(verdict: Verdict | Mapping[str, Any] | Told | None, policy: Policy | None = None) -> bool:
    """
    Return whether a fault of the user is certain to come again: the verdict is sure enough, its class is one that the same code and data
    repeat, and the evidence itself does not ask for another try.
    """
    rules = policy or Policy()
    seen = verdict if isinstance(verdict, Told) else told(verdict)
    sure = seen.confidence >= rules.certain_confidence and seen.cls in rules.certain_classes
    return sure and seen.retry in (None, "fix-first")


def attempt_of(verdict: Verdict | Mapping[str, Any] | None, attempt: Attempt, policy: Policy | None = None) -> Attempt:
    """Return an attempt with what its verdict says: what the ledger keeps and `decide` wants last in the history."""
    seen = told(verdict)
    return ended(attempt, seen, certain=certain(seen, policy))


def decide(
    verdict: Verdict | Mapping[str, Any] | None,
    history: History,
    policy: Policy | None = None,
    *,
    checkpoint: Restorable | None = None,
) -> Decision:
    """
    Decide what happens next with a job that failed. Pure: the same arguments give the same decision.

    Parameters
    ----------
    verdict : Verdict, mapping or None
        On the last attempt; its JSON form (``workbench.verdict/1``) serves as well. None when nobody could be asked: then nothing is known.
    history : History
        Its last attempt is the one that just ended. An empty one means that this was the first.
    policy : Policy, optional
        Default: the shipped one.
    checkpoint : Checkpoint, optional
        The newest that can be restored; None when there is none, or nobody looked.

    Returns
    -------
    Decision
    """
    rules = policy or Policy()
    seen = told(verdict)
    past = history.attempts or (Attempt(1, ended=history.now),)
    past = (*past[:-1], ended(past[-1], seen, certain=certain(seen, rules)))
    return _Case(seen, past, history, rules, checkpoint).decide()


class _Case:
    """One decision in the making: what is asked of the past once, and the steps in their order."""

    def __init__(
        self, seen: Told, past: tuple[Attempt, ...], history: History, policy: Policy, checkpoint: Restorable | None
    ) -> None:
        self.seen, self.past, self.last = seen, past, past[-1]
        self.history, self.policy = history, policy
        self.checkpoint = checkpoint if checkpoint is not None and checkpoint.state == "complete" else None
        self.advanced = advances(past, policy)
        self.free = is_free(self.last, policy)
        names = ever_out(past)
        # what just failed blames nothing here yet: a node that came back and fails again is newly left out
        self.nodes, self.gpus = self.kept_off = still_out(names, past[:-1], history, policy)
        self.fresh: tuple[str, ...] = ()  # what this decision newly leaves out
        self.lacking = ""  # why what is to blame cannot be left out
        self.awaited = ""  # a lost node without which the job does not run: it is waited for
        self._exclude()
        self._take_back()

    # what is left out

    def _take_back(self) -> None:
        """
        Take a lost node back without which the job could not even begin: nothing took its place, so it has to be waited for.

        Not every launcher tells how many nodes there are; that nothing made a step without the node, and nothing else is seen to be wrong, does.
        """
        if len(self.past) < 2 or self.seen.cause not in ("unknown", "none") or self.last.step_last is not None:
            return
        before = self.past[-2]
        node = before.node
        if (
            before.cls == "platform/node-lost"
            and node in self.nodes
            and node in self.last.excluded
            and node not in before.excluded
        ):
            self.nodes = tuple(one for one in self.nodes if one != node)
            self.awaited = str(node)

    def _exclude(self) -> None:
        """Leave out what is to blame, when the verdict says so and enough remains; never a node that is merely where it happened."""
        seen, policy = self.seen, self.policy
        if seen.at_fault not in ("gpu", "node") or seen.cause not in ("hardware", "driver", "platform"):
            return
        if seen.cls == "platform/preemption" or seen.confidence < policy.exclude_confidence:
            return
        node = seen.node
        if seen.retry == "same-nodes":
            times = sum(1 for one in self.past if one.at_fault in ("gpu", "node") and node and one.node == node)
            if times < policy.exclude_repeat:
                return
        if node is None:
            if seen.at_fault == "gpu" and seen.gpu and seen.gpu not in self.gpus:
                self.gpus, self.fresh = (*self.gpus, seen.gpu), (seen.gpu,)
            return
        if node in self.nodes:
            return
        if self._spare_gpu():
            return
        if len(self.nodes) >= policy.exclude_most:
            self.lacking = f"{len(self.nodes)} nodes are left out already, as many as the policy allows"
            return
        have, least = policy.nodes_have, policy.nodes_min
        if have and have - len(self.nodes) - 1 < least:
            if seen.cls == "platform/node-lost":
                self.awaited = node  # it is gone rather than broken: most come back by a reboot, and nothing else can be taken
                return
            self.lacking = f"without {node} only {have - len(self.nodes) - 1} of {have} nodes remain and the job needs {least}"
            return
        if not have and seen.retry == "fix-first":
            return  # the verdict knows of no other nodes: the node has to be put right
        self.nodes, self.fresh = (*self.nodes, node), (node,)
        if seen.at_fault == "gpu" and seen.gpu and seen.gpu not in self.gpus:
            self.gpus, self.fresh = (*self.gpus, seen.gpu), (node, seen.gpu)

    def _spare_gpu(self) -> bool:
        """Leave out one GPU of the job's only node where the job can do with fewer; a policy without `gpus.have` and `gpus.min` never does."""
        seen, policy = self.seen, self.policy
        if seen.at_fault != "gpu" or not seen.gpu or seen.gpu in self.gpus or not policy.gpus_min:
            return False
        if policy.gpus_have - len(self.gpus) - 1 < policy.gpus_min:
            return False
        self.gpus, self.fresh = (*self.gpus, seen.gpu), (seen.gpu,)
        return True

    # counting

    def used(self, cause: str) -> int:
        """Restarts that failures of a cause got so far."""
        since = self.history.now - self.policy.budget_window
        return sum(
            1
            for one in self.past[:-1]
            if not is_free(one, self.policy)
            and (one.cause or "unknown") == cause
            and (cause == "user" or one.ended is None or one.ended > since)
        )

    def total(self) -> int:
        """Restarts that all failures got so far."""
        return sum(1 for one in self.past[:-1] if not is_free(one, self.policy))

    def stuck(self) -> int:
        """Failures in a row, this one included, that made no progress and left nothing new out."""
        count = 0
        for index in range(len(self.past) - 1, -1, -1):
            one = self.past[index]
            if self.advanced[index]:
                break
            grew = (
                bool(self.fresh) if index == len(self.past) - 1 else bool(set(self.past[index + 1].excluded) - set(one.excluded))
            )
            if not (is_free(one, self.policy) or is_outage(one) or grew):
                count += 1
        return count

    def streak(self, cause: str = "") -> int:
        """Attempts in a row without progress, of one cause where it is given: what the back-off grows by."""
        count = 0
        for one, gained in zip(reversed(self.past), reversed(self.advanced), strict=True):
            if gained or (cause and one.cause != cause):
                break
            count += 1
        return count

    # the decision

    def decide(self) -> Decision:
        seen, policy, cause = self.seen, self.policy, self.seen.cause
        if self.last.state == "completed" or (cause == "none" and self.last.exit_code == 0):
            return self._stop("It ended well", "nobody")
        if seen.cls == "user/stopped" or (self.last.state == "cancelled" and cause in ("none", "unknown")):
            return self._stop("The user stopped it", "nobody")
        if self.free:
            return self._go("It was preempted, which is no failure and costs no budget")
        if stop := self._ended_by_user():
            return stop
        used, allowed = self.used(cause), policy.budget(cause)
        if used >= allowed:
            return self._stop(f"All {allowed} restarts after failures of cause {cause} are used", _WHO[cause])
        if self.total() >= policy.budget_total:
            return self._stop(f"All {policy.budget_total} restarts of this job are used", _WHO[cause])
        if self.lacking:
            return self._short_of_nodes()
        if self.stuck() > policy.progress_restarts:
            where = f"step {best}" if (best := furthest(self.past)) is not None else "where it was"
            return self._stop(f"{self.stuck()} failures in a row did not get it beyond {where}", _WHO[cause])
        return self._go(self._why())

    def _ended_by_user(self) -> Decision | None:
        """A fault of the user ends the job at once when it is certain, and when it came a second time."""
        code = self.last.exit_code
        if (
            self.seen.cause in ("user", "unknown", "none")
            and code in self.policy.certain_exit_codes
            and self.last.step_last is None
        ):
            return self._stop(f"Exit code {code} before any step: the command itself is wrong", "user")
        if self.seen.cause != "user":
            return None
        if self.last.certain:
            return self._stop(
                f"{self.seen.cls} with confidence {self.seen.confidence:.2f}: starting again would only repeat it", "user"
            )
        for one in self.past[:-1]:
            same_step = one.reached is not None and one.reached == self.last.reached and one.cause in ("user", "unknown")
            if one.cls == self.seen.cls or same_step:
                at = f" at step {one.reached}" if same_step else ""
                return self._stop(f"It failed the same way in attempt {one.number}{at}: {self.seen.cls} is confirmed", "user")
        return None

    def _short_of_nodes(self) -> Decision:
        since = self.last.ended if self.last.ended is not None else self.history.now
        left = since + self.policy.wait_patience - self.history.now
        if self.policy.nodes_exhausted == "wait" and left > 0:
            return self._make("wait", f"Capacity is used up: {self.lacking}", "hardware", delay=min(self.policy.wait_cap, left))
        return self._stop(f"Capacity is used up: {self.lacking}", "hardware")

    def _why(self) -> str:
        seen = self.seen
        if self.fresh:
            part = f" with {self.fresh[1]}" if len(self.fresh) > 1 else ""
            return f"{self.fresh[0]}{part} is to blame ({seen.cls}) and is left out"
        if seen.cause in ("hardware", "driver") and seen.at_fault in ("gpu", "node") and seen.node in self.nodes:
            return f"{seen.node} is blamed again ({seen.cls}) though it is left out already"
        if seen.cause == "user":
            return f"{seen.cls} is not certain: one more attempt confirms or refutes it"
        if seen.cause == "unknown":
            return "The evidence does not decide"
        if seen.cause == "none":
            return f"It ended with exit code {self.last.exit_code} and nothing is seen to have failed"
        if seen.retry == "same-nodes":
            return f"{seen.cls} leaves its part fit for another attempt"
        if seen.at_fault in ("gpu", "node") and seen.confidence < self.policy.exclude_confidence:
            return f"{seen.cls} is not sure enough ({seen.confidence:.2f}) to leave anything out"
        if seen.at_fault in ("gpu", "node") and seen.node is None:
            return f"Nobody told which node {seen.cls} is on, so none is left out"
        return f"{seen.cls} is no fault of one node, so none is left out"

    def _go(self, why: str) -> Decision:
        """Start again, unless something is waited for or no checkpoint can be restored."""
        policy = self.policy
        who, resume, start = "nobody", None, "from what the job itself restores, or from the beginning"
        if self.checkpoint is not None:
            resume = str(self.checkpoint.path)
            start = (
                f"from the checkpoint of step {self.checkpoint.step}" if self.checkpoint.step is not None else f"from {resume}"
            )
        else:
            saved = [one.checkpoint_step for one in self.past if one.checkpoint_step is not None]
            if policy.checkpoint_scratch == "never" or (policy.checkpoint_scratch == "unsaved" and saved):
                had = f"; there was one of step {max(saved)}" if saved else ""
                rule = f"checkpoint.scratch = {policy.checkpoint_scratch!r}"
                return self._stop(
                    f"No checkpoint can be restored{had}, and the policy starts nothing from the beginning ({rule})", "user"
                )
            if saved:
                start = f"from the beginning, since the checkpoint of step {max(saved)} cannot be restored"
        since = self.last.ended
        broken = self.seen.cause in ("platform", "driver") and self.seen.retry == "fix-first"
        if (broken or self.awaited) and not self.fresh and not self.free:
            who = "platform" if self.seen.remediation != "fix-user-code" else "user"
            tries = max(1, self.streak(self.seen.cause))
            span = _grown(policy.wait_first, policy.backoff_factor, tries, policy.wait_cap) * self._jitter()
            left = self._left(span)
            if left > 0:
                what = (
                    f"{self.awaited} has to come back first, no other node is left"
                    if self.awaited
                    else f"{self.seen.cls} has to be put right first"
                )
                return self._make("wait", what, who, delay=left)
            why = f"{self.awaited} had time to come back" if self.awaited else f"{self.seen.cls} had time to be put right"
        if wait := self._storm(since):
            return wait
        delay = _grown(policy.backoff_first, policy.backoff_factor, max(1, self.streak()), policy.backoff_cap) * self._jitter()
        if self.fresh:
            who = "hardware" if self.seen.cause == "hardware" else "platform"
        if since is not None:
            delay = self._left(delay)
        return self._make(
            "restart", f"{why}; attempt {self.last.number + 1} starts {start}", who, delay=delay, resume_from=resume
        )

    def _left(self, span: float) -> float:
        """Return what is left of a time since the attempt ended; all of it at most, should somebody have set the clock back."""
        since = self.last.ended
        return 0.0 if since is None else min(span, max(0.0, since + span - self.history.now))

    def _storm(self, since: float | None) -> Decision | None:
        """Hold back while the whole cluster starts again, but not for ever."""
        policy, now, others = self.policy, self.history.now, self.history.others
        waited = 0.0 if since is None else now - since
        patience = (policy.storm_patience if others is not None else policy.storm_pause) * self._jitter()
        if (others is not None and others <= policy.storm_limit) or since is None or waited >= patience:
            return None
        what = (
            f"{others} restarts of other jobs within {policy.storm_window:.0f} s (limit {policy.storm_limit}): one cause for all is likely"
            if others is not None
            else "The restarts of other jobs could not be counted"
        )
        return self._make("wait", what, "platform", delay=min(policy.storm_pause * self._jitter(), patience - waited))

    def _stop(self, reason: str, who: str) -> Decision:
        return self._make("stop", reason, who)

    def _make(self, action: str, reason: str, who: str, *, delay: float = 0.0, resume_from: str | None = None) -> Decision:
        cause = self.seen.cause
        if action == "wait":
            delay = max(math.ceil(delay * 1000) / 1000, 1.0)  # asked again earlier it would say the same
        more = 1 if action == "restart" and not self.free else 0
        budget = {
            cause: (self.used(cause) + more, self.policy.budget(cause)),
            "total": (self.total() + more, self.policy.budget_total),
            "no-progress": (max(0, self.stuck() - 1 + more) if self.stuck() else 0, self.policy.progress_restarts),
        }
        stopped = action == "stop"
        # what a decision that starts nothing leaves out is what was left out before
        nodes, gpus = (self.nodes, self.gpus) if not stopped else self.kept_off
        return Decision(
            action=action,
            exclude_nodes=nodes,
            exclude_gpus=gpus,
            delay=round(delay, 3),
            resume_from=resume_from,
            cause=cause,
            cls=self.seen.cls,
            budget=budget,
            reason=reason + ".",
            who=who,
            todo=self._todo(action, who),
            evidence=self.seen.evidence,
        )

    def _todo(self, action: str, who: str) -> tuple[str, ...]:
        if who == "nobody" and not self.fresh:
            return ()
        return self.seen.next_steps

    def _jitter(self) -> float:
        """1 ± the policy's share, by the job and the attempt: the same again when asked again."""
        seed = hashlib.sha256(f"{self.history.job}\0{self.last.number}".encode("utf-8", "surrogatepass")).digest()
        share = int.from_bytes(seed[:8], "big") / 2**64
        return 1.0 + self.policy.backoff_jitter * (2.0 * share - 1.0)


def is_free(attempt: Attempt, policy: Policy) -> bool:
    """
    Return whether an attempt was ended on purpose by the platform, which is no failure: what its logs say of the end is noise.

    The scheduler said so, or the verdict is sure of it: what costs no budget must not be a guess.
    """
    sure = attempt.cls == "platform/preemption" and (attempt.confidence or 0.0) >= policy.certain_preemption
    return sure or attempt.state == "preempted"


def is_outage(attempt: Attempt) -> bool:
    """Return whether an attempt failed by what is broken outside the job, and is waited for."""
    return attempt.cause == "platform" or (attempt.cause == "driver" and attempt.retry == "fix-first")


def furthest(past: Sequence[Attempt]) -> int | None:
    """Return the furthest step that any attempt was known to be at."""
    return max((one.reached for one in past if one.reached is not None), default=None)


def advances(past: Sequence[Attempt], policy: Policy) -> list[bool]:
    """Return for each attempt whether it got beyond all earlier ones; without steps, whether it ran long enough to have."""
    found: list[bool] = []
    best: int | None = None
    for one in past:
        reached = one.step_last if one.step_last is not None else one.checkpoint_step
        if reached is None:
            ran = one.ended - one.started if one.started is not None and one.ended is not None else 0.0
            found.append(ran >= policy.progress_unseen)
            continue
        found.append(best is None or reached > best)
        best = reached if best is None else max(best, reached)
    return found


def _grown(first: float, factor: float, times: int, cap: float) -> float:
    """Return ``first × factor^(times-1)``, never above the cap and without overflow."""
    value = first
    for _ in range(times - 1):
        if value >= cap:
            break
        value *= factor
    return min(value, cap)
