"""Turn a few words into verdicts, attempts and whole lives of jobs for the tests of retries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workbench.training.attempts import Attempt, History
from workbench.training.policy import Policy
from workbench.training.retry import Decision, attempt_of, decide

START = 1_790_000_000.0
RETRY = {"hardware": "exclude-node", "driver": "exclude-node", "platform": "fix-first", "user": "fix-first"}
AT_FAULT = {"hardware": "gpu", "driver": "node", "platform": "platform", "user": "rank"}


def verdict(
    cls: str, confidence: float = 0.9, *, node: str | None = "n1", uuid: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return a verdict's JSON form as far as a decision reads it."""
    cause = cls.split("/")[0]
    return {
        "schema": "workbench.verdict/1",
        "cause": cause,
        "class": cls,
        "confidence": confidence,
        "summary": f"{cls} it was",
        "culprit": {
            "node": node,
            "gpu": {"index": 0, "uuid": uuid, "pci": None} if uuid else None,
            "rank": 3,
            "at_fault": more.pop("at_fault", AT_FAULT.get(cause)),
        },
        "evidence": [{"role": "cause", "file": "logs/rank3.log", "line": 7, "text": "the line as it was"}],
        "retry": more.pop("retry", RETRY.get(cause, "same-nodes")),
        "remediation": more.pop("remediation", None),
        "next_steps": ["look at it"],
        **more,
    }


def failed(number: int = 1, **more: Any) -> Attempt:
    """Return an attempt that ended badly after ten minutes and made ten steps each."""
    began = START + (number - 1) * 1000.0
    row = {"started": began, "ended": began + 600.0, "exit_code": 1, "step_first": 10 * number - 9, "step_last": 10 * number}
    return Attempt(number, **{**row, **more})


class Life:
    """A job that fails as it is told to, supervised: each decision is obeyed, and the clock goes on by what it says."""

    def __init__(self, policy: Policy | None = None, *, job: str = "7", step: int = 0) -> None:
        self.policy, self.job = policy or Policy(), job
        self.now, self.step = START, step
        self.past: tuple[Attempt, ...] = ()
        self.decisions: list[Decision] = []
        self.waits = 0

    def fail(
        self, said: dict[str, Any] | None, *, steps: int | None = 0, seconds: float = 60.0, others: Any = 0, **more: Any
    ) -> Decision:
        """Run an attempt that ends like this, and ask until something other than wait is said."""
        before = self.decisions[-1] if self.decisions else None
        assert before is None or before.action == "restart", "a job that was stopped runs no more"
        began, self.now = self.now, self.now + seconds
        if steps is not None:
            self.step += steps
        attempt = Attempt(
            len(self.past) + 1,
            started=began,
            ended=self.now,
            exit_code=more.pop("exit_code", 1),
            step_last=self.step if steps is not None else None,
            excluded=before.excluded if before else (),
            **more,
        )
        self.past = (*self.past, attempt_of(said, attempt, self.policy))
        asked: Callable[[], int | None] = others if callable(others) else lambda: others
        for _ in range(10_000):
            decision = decide(said, History(self.past, asked(), self.now, self.job), self.policy)
            if decision.action != "wait":
                break
            self.waits += 1
            self.now += decision.delay
        else:
            raise AssertionError("it waits for ever")
        self.decisions.append(decision)
        self.now += decision.delay
        return decision

    @property
    def restarts(self) -> int:
        return sum(1 for one in self.decisions if one.action == "restart")


def after(said: dict[str, Any] | None, *past: Attempt, policy: Policy | None = None, **more: Any) -> Decision:
    """Decide right after the last of these attempts (one that failed at step 10 when none is given)."""
    attempts = past or (failed(),)
    rules = policy or Policy()
    now = more.pop("now", (attempts[-1].ended or START))
    checkpoint = more.pop("checkpoint", None)
    return decide(said, History(attempts, more.pop("others", 0), now, more.pop("job", "7")), rules, checkpoint=checkpoint)


def told(attempt: Attempt, said: dict[str, Any] | None) -> Attempt:
    """Return an attempt with a verdict's words."""
    return attempt_of(said, attempt)


__all__ = ["START", "Life", "after", "failed", "replace", "told", "verdict"]
