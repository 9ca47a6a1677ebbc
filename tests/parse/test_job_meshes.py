"""Gloo says which of a group's ranks it connected: of the whole job's group that places ranks, of any other it does not."""

from __future__ import annotations

import pytest

from workbench.model import Line, Parsed
from workbench.parse.job import parse_job

NOW = "{node}: [./gloo/transport/tcp/context.cc:243] INFO Rank {rank} is connected to {peers}. Expected number of connected peers is: {peers}"
EARLIER = "{node}: [Gloo] Rank {rank} is connected to {peers} peer ranks. Expected number of connected peer ranks is : {peers}"


def parsed(*lines: str) -> Parsed:
    """Parse lines of a log that a launcher wrote for two nodes."""
    head = [f"node-{name}: loading step {number}" for number in range(3) for name in "ab"]
    return parse_job(
        [Line(number, text, number * 80) for number, text in enumerate([*head, *lines], 1)], file="logs/launcher.log"
    )


def homes(out: Parsed) -> dict[int | None, str | None]:
    return {one.rank: one.node for one in out.placements}


@pytest.mark.parametrize("form", [NOW, EARLIER], ids=["now", "earlier"])
def test_ranks_of_the_whole_group_are_placed(form: str) -> None:
    out = parsed(*(form.format(node=f"node-{'ab'[rank // 2]}", rank=rank, peers=3) for rank in range(4)))
    assert homes(out) == {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}
    assert out.facts["world_size"] == 4


def test_numbers_of_smaller_groups_are_their_own() -> None:
    """Two groups of two ranks, one a node, after that of all; and groups that are smaller than the job are all that is told."""
    whole = [NOW.format(node=f"node-{'ab'[rank // 2]}", rank=rank, peers=3) for rank in range(4)]
    small = [NOW.format(node=f"node-{name}", rank=rank, peers=1) for name in "ab" for rank in range(2)]
    assert homes(parsed(*whole, *small)) == {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}
    assert homes(parsed(*small)) == {}
    assert homes(parsed("WORLD_SIZE=4", *small[:2])) == {}


def test_a_group_that_is_not_complete_places_nobody() -> None:
    assert (
        homes(parsed("node-a: [Gloo] Rank 0 is connected to 2 peer ranks. Expected number of connected peer ranks is : 3")) == {}
    )
