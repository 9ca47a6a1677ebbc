"""Turn a command and a list of nodes into runs on pairs, and what they show into findings: one for each node, and for each bad link."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from workbench.catalog.findings import finding_row
from workbench.errors import ConfigError
from workbench.health.finding import STATUSES, Finding
from workbench.health.pairwise import Hunt, Pair
from workbench.parse.nccl_tests import parse_nccl
from workbench.sources.command import Ran, run

__all__ = ["CHECK", "Outcome", "judge_nccl", "run_pairs"]

CHECK = "pairs"
# what a host list or DNS may hold; a name must never be an option of srun or ssh
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")
_MARKS = re.compile(r"\{(a|b)\}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pair: passed, failed, or not run (None), and why in a sentence."""

    passed: bool | None
    why: str
    seconds: float = 0.0


Judge = Callable[[Ran], Outcome]


def judge_nccl(ran: Ran, *, least: float | None = None) -> Outcome:
    """
    Return what a run says: by its exit code, and of nccl-tests by what it printed.

    Parameters
    ----------
    ran : Ran
        As `workbench.sources.command.run` gave it.
    least : float, optional
        Bus bandwidth at the largest size, GB/s, below which it failed.
    """
    if ran.ending in ("missing", "not-executable", "too-much"):
        return Outcome(None, ran.sentence, ran.seconds)
    found = parse_nccl(ran.text)
    if found.wrong:
        return Outcome(False, f"{found.wrong} values are wrong", ran.seconds)
    if not ran.ok:
        return Outcome(False, found.failures[0] if found.failures else ran.sentence, ran.seconds)
    largest = found.largest
    if least is not None:
        if largest is None:
            return Outcome(None, "it printed no bandwidth, as nccl-tests do", ran.seconds)
        if largest.busbw < least:
            return Outcome(False, f"{largest.busbw:g} GB/s at {largest.size} B, should be {least:g}", ran.seconds)
    return Outcome(True, f"{largest.busbw:g} GB/s at {largest.size} B" if largest else "it ended with 0", ran.seconds)


def run_pairs(
    nodes: Sequence[str],
    command: Sequence[str],
    *,
    seconds: float = 300.0,
    at_once: int = 16,
    judge: Judge = judge_nccl,
    progress: Callable[[int, Sequence[Pair]], None] | None = None,
) -> list[Finding]:
    """
    Run a command on pairs of nodes until it is clear which nodes are bad; worst first.

    Parameters
    ----------
    nodes : sequence of str
        At least two.
    command : sequence of str
        Program and arguments, never a shell: ``{a}`` and ``{b}`` in an argument become the names of the two nodes.
    seconds : float, optional
        After this time a run hangs: its process group is killed, and the pair failed.
    at_once : int, optional
        Runs at the same time; pairs of a wave have no node in common.
    judge : callable, optional
        What a run says.
    progress : callable, optional
        Told each wave's number and pairs before it is run.

    Raises
    ------
    ConfigError
        The command names no pair, or a name is none of a node.
    """
    if {found for word in command for found in _MARKS.findall(word)} != {"a", "b"}:
        raise ConfigError("the command names no pair of nodes", hint="write {a} and {b} where the names of the two nodes belong")
    if wrong := [node for node in nodes if not _NODE.match(node)]:
        raise ConfigError(f"{wrong[0]!r} is no name of a node", hint="letters, digits, dots and dashes")
    if len(dict.fromkeys(nodes)) < 2:
        raise ConfigError("one node is no pair", hint="give at least two, three to tell a node from its partner")
    hunt = Hunt(tuple(dict.fromkeys(nodes)))
    told: dict[Pair, Outcome] = {}

    def ask(pair: Pair) -> Outcome:
        names = dict(zip("ab", pair, strict=True))
        argv = [_MARKS.sub(lambda found: names[found[1]], word) for word in command]
        return judge(run(argv, seconds=seconds, limit=4 << 20))

    with ThreadPoolExecutor(max(1, at_once)) as pool:
        while wave := hunt.wave():
            if progress is not None:
                progress(hunt.rounds, wave)
            outcomes = dict(zip(wave, pool.map(ask, wave), strict=True))
            told |= outcomes
            hunt.record({pair: outcome.passed for pair, outcome in outcomes.items()})
            if all(outcome.passed is None for outcome in told.values()):
                break  # the command itself cannot be run: not one more of them can
    findings = list(_findings(hunt, told))
    return sorted(findings, key=lambda one: (-STATUSES.index(one.status), one.node))


def _findings(hunt: Hunt, told: dict[Pair, Outcome]) -> Iterator[Finding]:
    found = hunt.verdicts()
    good = set(found.good)
    for node in found.bad:
        mine = _lines(told, node)
        failed = [
            (other, one.why)
            for pair, one in told.items()
            for other in (set(pair) - {node}) & good
            if node in pair and one.passed is False
        ]
        who = " and ".join(other for other, _ in failed)
        summary = f"fails with {who}, which pass{'es' if len(failed) == 1 else ''} with others: {failed[-1][1]}"
        yield _one("pair-node-bad", summary, node, "", mine)
    for a, b in found.links:
        for node, other in ((a, b), (b, a)):
            why = told[a, b].why
            yield _one(
                "pair-link-bad",
                f"fails with {other} only, and both pass with others: {why}",
                node,
                f"{a}-{b}",
                _lines(told, node),
            )
    for node in found.undecided:
        mine = _lines(told, node)
        ran = [one for pair, one in told.items() if node in pair and one.passed is False]
        if ran:
            summary = "every pair with it failed, and no pair passed that could clear a partner: it, or the command, is bad"
        else:
            why = next((one.why for pair, one in told.items() if node in pair), "it was in no pair that could be run")
            summary = f"could not be run: {why}"
        yield _one("pair-undecided", summary, node, "", mine)
    linked = {node for pair in found.links for node in pair}
    for node in found.good:
        if node not in linked:
            yield Finding(
                CHECK, "ok", f"passes ({_passed(told, node)})", node=node, evidence=_lines(told, node), path="pairs of nodes"
            )


def _passed(told: dict[Pair, Outcome], node: str) -> str:
    return next(one.why for pair, one in told.items() if node in pair and one.passed)


def _lines(told: dict[Pair, Outcome], node: str) -> tuple[str, ...]:
    words = {True: "passed", False: "failed", None: "not run"}
    return tuple(f"{a} with {b}: {words[one.passed]}, {one.why}"[:300] for (a, b), one in told.items() if node in (a, b))[:10]


def _one(code: str, summary: str, node: str, part: str, evidence: tuple[str, ...]) -> Finding:
    row = finding_row(code)
    return Finding(
        CHECK,
        row.status,
        summary[:400],
        code,
        node,
        part=part,
        cls=row.cls,
        action=row.action,
        evidence=evidence,
        path="pairs of nodes",
    )
