"""The product's own loop, with a queue and people who decide, under all that the chaos does: nothing happens that nobody allowed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.remediation import chaos_turns
from tests.remediation.chaos_turns import CrashingQueue, Turns
from workbench.remediation.model import VERBS
from workbench.remediation.queue import Proposal

SEEDS = 100


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_the_invariants_hold_over_random_sequences_of_turns(first: int, tmp_path: Path) -> None:
    broken = {seed: found for seed in range(first, first + 25) if (found := Turns(seed, tmp_path / str(seed)).run())}

    assert not broken


def test_every_verb_and_every_end_of_a_proposal_comes_up(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(120, 280):
        sequence = Turns(seed, tmp_path / str(seed))
        assert sequence.run() == []
        counts += sequence.invariants.counts

    assert set(VERBS) - set(counts) == set()
    ends = {name for name in counts if name.startswith("queue:")}
    assert ends == {f"queue:{state}" for state in ("proposed", "applied", "refused", "rejected", "withdrawn", "expired")}
    assert min(counts[name] for name in ("yes", "no", "tampered", "undo", "crash", "freeze")) > 0


def test_the_same_seed_is_the_same_sequence_of_turns(tmp_path: Path) -> None:
    one, two = Turns(11, tmp_path / "one", nodes=9, rounds=4), Turns(11, tmp_path / "two", nodes=9, rounds=4)
    one.run()
    two.run()

    assert one.fleet.effects
    assert [(effect.time, effect.verb, effect.node) for effect in one.fleet.effects] == [
        (effect.time, effect.verb, effect.node) for effect in two.fleet.effects
    ]


class Gullible(CrashingQueue):
    """A queue that takes every proposal for approved, and believes its files."""

    def approved(self) -> list[Proposal]:
        return [one for one in self.proposals() if one.state in ("proposed", "approved", "applying")]

    def begin(self, id: str, *, by: str) -> Proposal:
        return self.get(id)


def test_what_nobody_allowed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_turns, "CrashingQueue", Gullible)
    broken = [found[0] for seed in range(40) if (found := Turns(seed, tmp_path / str(seed)).run())]

    assert any("neither a rule of the policy nor a person allowed it" in one for one in broken)


# what the chaos found on the way


@pytest.mark.parametrize("seed", [78, 96, 103])
def test_found_a_loop_whose_lock_had_run_out_looked_on_for_ever_and_never_acted_again(seed: int, tmp_path: Path) -> None:
    """What people had said yes to stayed approved, and the controller called itself ready; see test_loop."""
    assert Turns(seed, tmp_path).run() == []


@pytest.mark.parametrize("seed", [13, 24, 45])
def test_found_a_controller_that_died_while_it_proposed_left_every_later_turn_with_a_problem(seed: int, tmp_path: Path) -> None:
    """A plan without its first event, or with a torn one, made no loop ready any more; see test_queue."""
    assert Turns(seed, tmp_path).run() == []


def test_found_a_yes_to_what_is_being_done_let_a_no_follow_that_stopped_nothing(tmp_path: Path) -> None:
    """The node was rebooted and given back although somebody had said no to it and had been told that this is so; see test_queue."""
    assert Turns(1000085, tmp_path).run() == []


def test_found_an_undo_took_a_label_off_a_node_that_somebody_had_taken_over(tmp_path: Path) -> None:
    """What is theirs is not touched, also not by what was ours on it."""
    assert Turns(1014611, tmp_path).run() == []


def test_found_an_eviction_that_was_held_was_counted_only_for_the_work_that_was_left(tmp_path: Path) -> None:
    """A budget held one of two pods; begun again for that one, the journal's last word no longer named the job whose pod had been ended."""
    assert Turns(9325, tmp_path).run() == []


@pytest.mark.parametrize("seed", [29169, 33207])
def test_found_a_page_that_a_stop_held_back_was_told_as_the_end_of_the_plan(seed: int, tmp_path: Path) -> None:
    """Its own steps had ended (an answer made no sense); that the page could not be sent in that moment says nothing of the plan."""
    assert Turns(seed, tmp_path).run() == []
