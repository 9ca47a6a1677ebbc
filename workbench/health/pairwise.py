"""
Turn runs of a command on pairs of nodes into which node is bad, or which link between two good ones.

One test over all nodes says that something is wrong and not where. A pair fails when one of its nodes is bad: so in round 1 each node
is run once, with another (whatever passes clears both), and in round 2 each node of a pair that failed with one that is good: what fails
now is the node. What failed with one good partner only gets a third look with another: a bad link is no bad node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Hunt", "Pair", "Verdicts", "expected_runs"]

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """
    What the runs showed.

    Attributes
    ----------
    good, bad : tuple of str
        Nodes, in the order in which they were given.
    links : tuple of Pair
        Pairs that fail though both nodes are good.
    undecided : tuple of str
        Nodes of which the runs do not say: all pairs failed (at most one node is good then), or could not be run.
    """

    good: tuple[str, ...]
    bad: tuple[str, ...]
    links: tuple[Pair, ...]
    undecided: tuple[str, ...]


@dataclass
class Hunt:
    """
    Plan the runs, one wave of disjoint pairs after another, from what the waves before it gave. Pure: it runs nothing.

    Given that a pair fails if and only if one of its nodes is bad, every set of bad nodes is named exactly as long as two nodes are good;
    with fewer bad nodes than pairs of round 1 (half of the nodes) in two rounds and the third look. A link between good nodes that is
    bad is named as a link, with three good nodes or more.

    Parameters
    ----------
    nodes : sequence of str
        At least two, without duplicates.

    Examples
    --------
    >>> hunt = Hunt(("a", "b", "c", "d"))
    >>> while pairs := hunt.wave():
    ...     hunt.record({pair: "b" not in pair for pair in pairs})
    >>> hunt.verdicts().bad
    ('b',)
    """

    nodes: Sequence[str]
    results: dict[Pair, bool | None] = field(default_factory=dict)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.nodes = tuple(self.nodes)
        if len(set(self.nodes)) != len(self.nodes) or len(self.nodes) < 2:
            raise ValueError("give at least two nodes, each once")

    def record(self, outcomes: Mapping[Pair, bool | None]) -> None:
        """Take what became of pairs: True passed, False failed, None could not be run."""
        for (a, b), outcome in outcomes.items():
            self.results[self._pair(a, b)] = outcome

    def wave(self) -> list[Pair]:
        """Return the pairs to run next, all at the same time; empty when there is nothing more to learn."""
        pairs = self._next()
        if pairs:
            self.rounds += 1
        return pairs

    def verdicts(self) -> Verdicts:
        """Return what is known now."""
        good = self._good()
        bad = {node for node in self.nodes if node not in good and self._strikes(node, good) >= self._needed(node, good)}
        links = tuple(pair for pair, passed in self.results.items() if passed is False and set(pair) <= good)
        undecided = tuple(node for node in self.nodes if node not in good and node not in bad)
        return Verdicts(self._in_order(good), self._in_order(bad), links, undecided)

    # ---- what the results say

    def _pair(self, a: str, b: str) -> Pair:
        order = {node: at for at, node in enumerate(self.nodes)}
        return (a, b) if order[a] < order[b] else (b, a)

    def _in_order(self, some: Iterable[str]) -> tuple[str, ...]:
        wanted = set(some)
        return tuple(node for node in self.nodes if node in wanted)

    def _good(self) -> set[str]:
        return {node for pair, passed in self.results.items() if passed for node in pair}

    def _strikes(self, node: str, good: set[str]) -> int:
        """With how many good partners a node failed."""
        return sum(
            passed is False and node in pair and bool((set(pair) - {node}) & good) for pair, passed in self.results.items()
        )

    def _needed(self, node: str, good: set[str]) -> int:
        """Two good partners that it fails with; one where there is no second, or the second could not be run."""
        tried = sum(node in pair and bool((set(pair) - {node}) & good) for pair in self.results)
        return 2 if len(good) - tried > 0 or self._strikes(node, good) >= 2 else 1

    # ---- what to ask next

    def _next(self) -> list[Pair]:
        if not self.results:
            return [(self.nodes[at], self.nodes[at + 1]) for at in range(0, len(self.nodes) - 1, 2)]
        good = self._good()
        if not good:
            return self._others()
        return self._against(good)

    def _against(self, good: set[str]) -> list[Pair]:
        """Each suspect with a good node that it was not run with; partners are shared out, so that all run at the same time."""
        free = [node for node in self.nodes if node in good]
        uses = {node: sum(node in pair for pair in self.results) for node in free}
        out: list[Pair] = []
        for node in self.nodes:
            if node in good or self._strikes(node, good) >= 2 or self._tries(node, good) >= 3:
                continue
            partner = min(
                (each for each in free if self._pair(node, each) not in self.results), key=lambda each: uses[each], default=None
            )
            if partner is not None:
                out.append(self._pair(node, partner))
                free.remove(partner)
        return out

    def _tries(self, node: str, good: set[str]) -> int:
        return sum(node in pair and bool((set(pair) - {node}) & good) for pair in self.results)

    def _others(self) -> list[Pair]:
        """Nobody passed yet: other pairs, each node once a wave, until one passes or all were tried (circle method)."""
        ring: list[str | None] = [*self.nodes, *([None] if len(self.nodes) % 2 else [])]
        for turn in range(len(ring) - 1):
            turned = [ring[0], *ring[1 + turn :], *ring[1 : 1 + turn]]
            half = len(turned) // 2
            both = zip(turned[:half], reversed(turned[half:]), strict=True)
            pairs = [self._pair(a, b) for a, b in both if a is not None and b is not None]
            if new := [pair for pair in pairs if pair not in self.results]:
                return new
        return []


def expected_runs(nodes: int, failed: int, both: int = 0) -> int:
    """
    Return how many runs it takes at most.

    Parameters
    ----------
    nodes : int
        How many nodes.
    failed : int
        Pairs of round 1 that fail; fewer than half as many as nodes.
    both : int, optional
        Those of them in which both nodes are bad: neither is then the second good partner of the other, and each needs one more run.
    """
    # half as many as nodes, two for each pair that failed; what is left over of an odd number needs two to be called bad
    return nodes // 2 + 2 * failed + 2 * both + 2 * (nodes % 2)
