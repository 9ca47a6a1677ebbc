"""Who became slow, told by the looks at a running job: against jobs whose truth is known."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import load
from workbench.catalog import signatures
from workbench.training.hangs import Progress
from workbench.training.looking import Looks
from workbench.training.pace import NOTHING, judged, look, sentence


def job(
    *, ranks: int = 8, steps: int = 240, slow: Sequence[int] = (), ratio: float = 1.5, at: int = 120, until: int = 10_000, turns: bool = False,
    meets: bool = True, after: bool = False, own: bool = False, work: bool = False, seed: int = 0,
) -> list[Progress]:  # fmt: skip
    """Calls of ranks that meet at the end of each step (or never), made before they meet (or after), with the truth put into them."""
    random = np.random.default_rng(seed)
    begins, out = np.full(ranks, 1.7e9), []
    for step in range(1, steps + 1):
        samples = np.full(ranks, 1000)
        takes = 0.2 * np.clip(1 + 0.05 * random.standard_normal(ranks), 0.5, None)
        if at <= step < until:
            takes[list(slow)] *= ratio
            samples[list(slow)] = int(1000 * ratio)
        if turns:
            takes[step % ranks] *= 2
        arrives = begins + takes
        leaves = np.full(ranks, arrives.max()) if meets else arrives
        for rank in random.permutation(ranks):
            when = (leaves if after else arrives)[rank] + 1e-4 * random.random()
            seconds = float(takes[rank]) if own else None
            out.append(Progress(step, when, int(rank), int(samples[rank]) if work else None, None, seconds, f"node-{rank // 2}"))
        begins = leaves
    return out


def looks(told: Sequence[Progress], at: Sequence[int] = (60, 120, 180, 240)) -> dict[str, Any]:
    """Return what is known after looks at these steps."""
    state = NOTHING
    for step in at:
        state = judged([one for one in told if one.step <= step], state)
    return state


@pytest.mark.parametrize(
    "how", [{}, {"meets": False}, {"after": True, "own": True}], ids=["before they meet", "they never meet", "by its own seconds"]
)
def test_a_rank_that_became_slow_is_named_once_later_steps_say_the_same(how: dict[str, bool]) -> None:
    told = job(slow=(5,), **how)
    assert looks(told, (60, 120, 140))["told"] == []
    (one,) = looks(told)["told"]
    assert (one["kind"], one["ranks"], one["node"], one["confirmed"]) == ("rank", [5], "node-2", True)
    assert abs(one["since_step"] - 120) <= 3
    assert one["low"] <= 1.5 <= one["high"]
    assert looks(told, (60, 120, 180, 240, 240))["told"] == [one]


def test_all_ranks_of_a_node_are_the_node() -> None:
    (one,) = looks(job(ranks=16, slow=(4, 5)))["told"]
    assert (one["kind"], one["ranks"], one["node"]) == ("node", [4, 5], "node-2")
    assert "node node-2 (ranks 4, 5) takes" in sentence(one)


@pytest.mark.parametrize(
    "how", [{"turns": True}, {"slow": range(8)}, {"slow": (5,), "work": True}, {}], ids=["in turn", "all", "more work", "nothing"]
)
def test_what_the_work_makes_slow_names_nobody(how: dict[str, Any]) -> None:
    for seed in range(6):
        assert looks(job(seed=seed, **how))["told"] == []


def test_all_ranks_together_are_the_job() -> None:
    state = looks(job(slow=range(8), ratio=1.8))
    assert state["job"]["kind"] == "job"
    assert abs(state["job"]["since_step"] - 120) <= 3


def test_one_that_recovered_is_told_as_such() -> None:
    (one,) = looks(job(slow=(5,), at=60, until=150), (60, 120, 160, 240))["told"]
    assert abs(one["until_step"] - 150) <= 3
    assert "as fast as before again" in sentence(one)


def test_ranks_that_call_after_they_met_cannot_be_told_apart_and_it_is_said() -> None:
    state = looks(job(slow=(5,), after=True))
    assert state["told"] == []
    assert "wait for each other" in state["why"]


def test_who_is_seen_in_the_last_steps_of_a_job_is_named_as_seen_once() -> None:
    told = job(slow=(5,), at=205, ratio=2.0)
    state = looks(told, (60, 120, 180))
    (one,) = judged(told, state, last=True)["told"]
    assert (one["ranks"], one["confirmed"]) == ([5], False)
    assert "seen once; chance makes this of one healthy job in" in sentence(one)


def test_few_steps_or_ranks_tell_nothing_and_it_is_said() -> None:
    assert "too few" in looks(job(steps=30), (30,))["why"]
    assert "too few" in looks(job(ranks=2))["why"]
    assert looks([], (10,))["told"] == []


def write(path: Path, told: Sequence[Progress]) -> None:
    with path.open("a") as file:
        for one in told:
            file.write(f"{one.step} {one.rank} {one.time:.6f} - - - {one.node}\n")


def test_looks_begin_beside_the_job_and_what_they_find_is_said_once_and_kept_for_triage(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launcher.log").write_text("step 1/9 loss 1.0\nstep 2/9 loss 1.0\nKeyError: 'labels'\n")
    said: list[str] = []
    watched = Looks(tmp_path, said.append)
    told, now = job(slow=(5,)), 0.0
    for begin in range(0, 240, 60):
        part = [one for one in told if begin < one.step <= begin + 60]
        write(tmp_path / "progress", part)
        for one in part:
            watched.note(one)
        now += 1e4
        watched.tick(now)
        until = time.monotonic() + 60
        while watched.pid:
            assert time.monotonic() < until
            watched.tick(now + 1)
            time.sleep(0.05)
    (text,) = said
    assert text.startswith("straggler: rank 5 on node node-2 takes 1.")
    found = json.loads((tmp_path / "stragglers.json").read_text())
    assert [one["ranks"] for one in found["told"]] == [[5]]
    verdict = load(tmp_path).triage().to_dict()
    (row,) = verdict["degraded"]
    assert (row["node"], row["rank"], row["sign"]) == ("node-2", 5, "run-straggler")
    assert row["slowdown"] == pytest.approx(found["told"][0]["factor"], abs=0.01)
    assert "run-straggler" in {one["signature"] for one in verdict["evidence"] if one["role"] == "context"}
    assert verdict["class"] == "user/exception"


def test_no_look_begins_while_ranks_tell_nothing(tmp_path: Path) -> None:
    watched = Looks(tmp_path, lambda _: None)
    for step in range(500):
        watched.note(Progress(step))
        watched.note(Progress(step, 1.7e9, 0))
    watched.tick(1e9)
    assert not watched.pid
    assert look(tmp_path, last=True)["told"] == []
    assert not (tmp_path / "stragglers.json").exists()


def test_the_sentence_is_the_one_that_the_catalog_knows() -> None:
    row = signatures()["run-straggler"]
    for ranks in ((5,), (4, 5)):
        (one,) = looks(job(ranks=16, slow=ranks))["told"]
        found = re.search(row.pattern, "workbench run: " + sentence(one))
        assert found is not None
        assert float(found["times"]) == pytest.approx(one["factor"], abs=0.01)
