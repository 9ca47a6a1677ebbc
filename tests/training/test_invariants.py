"""Whatever happens to a job, and in whatever order: restarts are bounded, preemptions are free, only what is to blame is left out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.jobs import Life, verdict
from workbench.model import CAUSES, CLASSES, RETRIES
from workbench.training.policy import Policy
from workbench.training.retry import ACTIONS, is_free

# one draw a failure and one a policy: drawing every field apart costs ten times the deciding
_DICE = random.Random(8)
_ENDS: dict[str, tuple[Any, ...]] = {
    "cls": tuple(CLASSES),
    "confidence": (0.3, 0.6, 0.75, 0.9, 0.98),
    "node": ("n1", "n2", "n3", "n4", None),
    "uuid": ("GPU-a", "GPU-b", None),
    "at_fault": ("gpu", "node", "rank", "job", "platform", None),
    "retry": (*RETRIES, None),
}
_FAILURES: dict[str, tuple[Any, ...]] = {
    "steps": (None, 0, 0, 1, 50),
    "seconds": (0.0, 5.0, 600.0, 7200.0, 3 * 86400.0),
    "others": (0, 0, 0, 8, 9, 500, None),
    "state": ("failed", "failed", "failed", "preempted", "timeout", "cancelled"),
    "exit_code": (1, 1, 2, 127, -9, None),
}
_POLICIES: dict[str, tuple[Any, ...]] = {
    "budget_total": (0, 1, 5, 12),
    "budget_user": (0, 1, 3),
    "budget_hardware": (0, 2, 8),
    "budget_driver": (0, 4),
    "budget_platform": (0, 2, 8),
    "budget_unknown": (0, 2, 5),
    "budget_none": (0, 3),
    "budget_window": (3600.0, 7 * 86400.0, 1e9),
    "progress_restarts": (0, 1, 4),
    "backoff_first": (0.0, 10.0),
    "backoff_jitter": (0.0, 0.2, 1.0),
    "exclude_confidence": (0.0, 0.5, 0.95),
    "exclude_most": (0, 1, 5),
    "exclude_repeat": (1, 2, 3),
    "nodes_have": (0, 3, 4),
    "nodes_min": (1, 3),
    "nodes_exhausted": ("stop", "wait"),
    "storm_pause": (0.0, 60.0),
}


def _thrown(table: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {key: _DICE.choice(values) for key, values in table.items()}


FAILURES = st.sampled_from([{"said": _thrown(_ENDS), **_thrown(_FAILURES)} for _ in range(2000)])
SMALL = [Policy(**_thrown(_POLICIES)) for _ in range(500)]
POLICIES = st.sampled_from([Policy(), *SMALL])


def lived(policy: Policy, failures: list[dict[str, Any]]) -> Life:
    """Let a job fail like this until it is stopped, or no failure is left."""
    life = Life(policy)
    for failure in failures:
        row = dict(failure)
        said = dict(row.pop("said"))
        if life.fail(verdict(said.pop("cls"), said.pop("confidence"), **said), **row).action == "stop":
            break
    return life


@settings(max_examples=60, deadline=None)
@given(POLICIES, st.lists(FAILURES, max_size=20))
def test_restarts_never_pass_their_budgets(policy: Policy, failures: list[dict[str, Any]]) -> None:
    """Of all, of each cause within the window, and in a row without anything new."""
    life = lived(policy, failures)
    given_to = [one for one, decision in zip(life.past, life.decisions, strict=True) if decision.action == "restart"]
    paid = [one for one in given_to if not is_free(one, policy)]

    assert len(paid) <= policy.budget_total
    assert sum(1 for one in paid if one.cause == "user") <= policy.budget_user
    for cause in CAUSES:
        times = [one.ended or 0.0 for one in paid if one.cause == cause]
        for last in times:
            assert sum(1 for one in times if last - policy.budget_window < one <= last) <= policy.budget(cause)


@settings(max_examples=60, deadline=None)
@given(POLICIES, st.lists(FAILURES, max_size=20))
def test_only_what_is_to_blame_is_left_out_and_it_stays_out(policy: Policy, failures: list[dict[str, Any]]) -> None:
    """Exclusions grow while nobody gives a node back, never beyond what the job can spare; each was blamed by the verdict of its decision."""
    policy = replace(policy, exclude_age=0.0)
    life = lived(policy, failures)
    before: tuple[str, ...] = ()

    for attempt, decision in zip(life.past, life.decisions, strict=True):
        assert set(before) <= set(decision.exclude_nodes)
        for node in set(decision.exclude_nodes) - set(before):
            assert node == attempt.node
            assert attempt.at_fault in ("gpu", "node")
            assert attempt.cause in ("hardware", "driver", "platform")
            assert attempt.cls != "platform/preemption"
            assert (attempt.confidence or 0.0) >= policy.exclude_confidence
            assert decision.action == "restart"
        assert len(decision.exclude_nodes) <= policy.exclude_most
        assert (
            not policy.nodes_have
            or policy.nodes_have - len(decision.exclude_nodes) >= policy.nodes_min
            or not decision.exclude_nodes
        )
        before = decision.exclude_nodes


@settings(max_examples=50, deadline=None)
@given(POLICIES, st.lists(FAILURES, max_size=15), st.integers(1, 5))
def test_preemptions_cost_nothing(policy: Policy, failures: list[dict[str, Any]], many: int) -> None:
    """However many come after each failure, the same failures are survived and the same budgets used."""
    preempted = {
        "said": {"cls": "platform/preemption", "confidence": 0.98, "retry": "same-nodes"},
        "steps": None,
        "seconds": 0.0,
        "others": 0,
    }
    quiet = [{**one, "others": 0, "seconds": 0.0, "said": {**one["said"]}} for one in failures]
    among = [one for failure in quiet for one in (*([preempted] * many), failure)]
    same_clock = replace(policy, budget_window=1e9, wait_patience=1e6, progress_unseen=1e9)
    plain, mixed = lived(same_clock, quiet), lived(same_clock, among)

    def outcome(life: Life) -> list[tuple[str, tuple[str, ...]]]:
        pairs = zip(life.past, life.decisions, strict=True)
        return [(decision.action, decision.exclude_nodes) for one, decision in pairs if one.cls != "platform/preemption"]

    wanted = outcome(plain)
    assert outcome(mixed)[: len(wanted)] == wanted


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(SMALL), st.lists(FAILURES, min_size=1, max_size=6))
def test_every_sequence_that_goes_on_for_ever_ends(policy: Policy, failures: list[dict[str, Any]]) -> None:
    """Unless all of it are preemptions, the job is stopped within its 12 restarts; and `Life` itself fails when a wait has no end."""
    life = lived(policy, failures * 14)

    if life.decisions[-1].action != "stop":
        assert all(is_free(one, policy) for one in life.past)


@settings(max_examples=50, deadline=None)
@given(POLICIES, st.lists(FAILURES, max_size=10))
def test_the_same_past_gives_the_same_decision(policy: Policy, failures: list[dict[str, Any]]) -> None:
    """Each says what, when and why."""
    first, second = lived(policy, failures), lived(policy, failures)

    assert first.decisions == second.decisions
    for decision in first.decisions:
        assert decision.action in ACTIONS
        assert decision.delay >= 0.0
        assert decision.reason.endswith(".")
        assert decision.action != "stop" or decision.who == "nobody" or decision.todo
