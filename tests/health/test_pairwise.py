"""Pairs of nodes: whatever set of nodes is bad is named exactly, a bad link is no bad node, and few runs are needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Set
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.health.test_bandwidth import nccl_output
from workbench.cli import main
from workbench.errors import ConfigError
from workbench.health import Finding, fitness
from workbench.health.pair_runs import judge_nccl, run_pairs
from workbench.health.pairwise import Hunt, Pair, Verdicts, expected_runs
from workbench.sources.command import Ran


def hunt(
    count: int, bad: Set[int], links: Set[frozenset[int]] = frozenset(), dead: Set[int] = frozenset()
) -> tuple[Verdicts, int, int]:
    """Play the model: a pair fails if one of its nodes is bad or the link between them; with a dead one it cannot be run."""
    nodes = [f"n{at}" for at in range(count)]
    one = Hunt(nodes)
    runs = 0
    while wave := one.wave():
        ends = [node for pair in wave for node in pair]
        assert len(ends) == len(set(ends)), "pairs of a wave run at the same time"
        assert not set(wave) & set(one.results), "no pair is run twice"
        runs += len(wave)
        outcomes: dict[Pair, bool | None] = {}
        for pair in wave:
            numbers = {nodes.index(node) for node in pair}
            outcomes[pair] = None if numbers & dead else not (numbers & bad or frozenset(numbers) in links)
        one.record(outcomes)
        assert one.rounds < 4 * count
    return one.verdicts(), runs, one.rounds


def names(some: Set[int]) -> set[str]:
    return {f"n{at}" for at in some}


@st.composite
def clusters(draw: st.DrawFn, good: int = 2) -> tuple[int, set[int]]:
    count = draw(st.integers(good, 24))
    bad = draw(st.sets(st.integers(0, count - 1), max_size=count - good))
    return count, bad


@given(clusters())
def test_every_set_of_bad_nodes_is_named_exactly_while_two_are_good(cluster: tuple[int, set[int]]) -> None:
    count, bad = cluster
    found, _, _ = hunt(count, bad)
    assert set(found.bad) == names(bad)
    assert set(found.good) == names(set(range(count)) - bad)
    assert (found.links, found.undecided) == ((), ())


@given(clusters(good=4), st.data())
def test_a_bad_link_between_good_nodes_is_named_as_a_link(cluster: tuple[int, set[int]], data: st.DataObject) -> None:
    count, bad = cluster
    good = sorted(set(range(count)) - bad)
    ends = frozenset(data.draw(st.lists(st.sampled_from(good), min_size=2, max_size=2, unique=True)))
    found, _, _ = hunt(count, bad, {ends})
    assert set(found.bad) == names(bad)
    assert not found.undecided
    # a link that no run had to take is not known to be bad; one that was taken is named, and nothing else
    assert {frozenset(pair) for pair in found.links} <= {frozenset(f"n{at}" for at in ends)}


@given(clusters(good=3), st.data())
def test_a_node_that_cannot_be_reached_makes_no_other_node_bad(cluster: tuple[int, set[int]], data: st.DataObject) -> None:
    count, bad = cluster
    good = sorted(set(range(count)) - bad)
    dead = {data.draw(st.sampled_from(good))}
    found, _, _ = hunt(count, bad, dead=dead)
    assert not set(found.bad) - names(bad)
    assert set(found.undecided) >= names(dead)
    assert not set(found.good) & names(bad | dead)


@given(st.integers(4, 40), st.data())
def test_two_rounds_and_a_third_look_are_enough_when_bad_nodes_are_few(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=max(0, count // 4 - 1)))
    _, runs, rounds = hunt(count, bad)
    failed = {at // 2 for at in bad if at // 2 < count // 2}
    both = sum(2 * pair in bad and 2 * pair + 1 in bad for pair in failed)
    assert runs <= expected_runs(count, len(failed), both)
    assert rounds <= 4


def test_without_a_bad_node_each_is_run_once() -> None:
    assert hunt(64, set())[1:] == (32, 1)
    assert hunt(5, set())[1:] == (3, 2)


def test_one_bad_node_of_many_takes_two_runs_more() -> None:
    found, runs, rounds = hunt(1024, {700})
    assert (found.bad, runs, rounds) == (("n700",), 514, 2)


def test_a_link_of_the_first_round_clears_both_ends() -> None:
    found, _, _ = hunt(8, set(), {frozenset({2, 3})})
    assert (found.bad, found.links) == ((), (("n2", "n3"),))


def test_two_nodes_that_fail_together_cannot_be_told_apart() -> None:
    found, runs, _ = hunt(2, {0})
    assert (found.bad, found.undecided, runs) == ((), ("n0", "n1"), 1)
    found, _, _ = hunt(6, {0, 1, 2, 3, 4})
    assert (found.bad, len(found.undecided)) == ((), 6)


def test_names_must_be_nodes_and_differ() -> None:
    for wrong in (["a"], ["a", "a"], []):
        with pytest.raises(ValueError, match="at least two"):
            Hunt(wrong)


# ---- runs of a real command


def command(tmp_path: Path, body: str) -> list[str]:
    """A program that is told two nodes, and keeps what it was told."""
    path = tmp_path / "pair"
    path.write_text(
        f"#!{sys.executable}\nimport sys, time\na, b = sys.argv[1].split(',')\nopen({str(tmp_path / 'log')!r}, 'a').write(sys.argv[1] + '\\n')\n{body}\n"
    )
    path.chmod(0o755)
    return [str(path), "{a},{b}"]


def by_code(findings: list[Finding]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for each in findings:
        out.setdefault(each.code or each.status, []).append(each.node)
    return out


def test_a_node_that_hangs_is_found_and_its_runs_are_ended(tmp_path: Path) -> None:
    argv = command(tmp_path, "if 'g3' in (a, b): time.sleep(60)")
    findings = run_pairs(["g1", "g2", "g3", "g4"], argv, seconds=2.5)
    assert by_code(findings) == {"pair-node-bad": ["g3"], "ok": ["g1", "g2", "g4"]}
    assert "did not answer within" in findings[0].summary
    assert findings[0].action == "drain"
    assert fitness(findings) == "critical"


def test_a_bad_link_is_a_warning_on_both_ends(tmp_path: Path) -> None:
    argv = command(tmp_path, "sys.exit({a, b} == {'g1', 'g2'})")
    findings = run_pairs(["g1", "g2", "g3", "g4"], argv, seconds=20)
    assert by_code(findings) == {"pair-link-bad": ["g1", "g2"], "ok": ["g3", "g4"]}
    assert {each.part for each in findings if each.code} == {"g1-g2"}


def test_a_program_that_is_not_there_blames_nobody(tmp_path: Path) -> None:
    findings = run_pairs(["g1", "g2", "g3", "g4"], [str(tmp_path / "none"), "{a}", "{b}"], seconds=5)
    assert by_code(findings) == {"pair-undecided": ["g1", "g2", "g3", "g4"]}
    assert fitness(findings) == "unknown"


def test_a_command_that_always_fails_blames_nobody(tmp_path: Path) -> None:
    findings = run_pairs(["g1", "g2", "g3"], command(tmp_path, "sys.exit('no such partition')"), seconds=20)
    assert by_code(findings) == {"pair-undecided": ["g1", "g2", "g3"]}
    assert "it, or the command, is bad" in findings[0].summary


@pytest.mark.parametrize("argv", [["srun", "hostname"], ["srun", "{a}"], ["srun", "{b}", "{c}"]])
def test_a_command_must_name_both(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="names no pair"):
        run_pairs(["a", "b"], argv)


@pytest.mark.parametrize("nodes", [["-oProxyCommand=x", "b"], ["a;b", "c"], ["a", "$(x)"], ["a"]])
def test_a_name_is_never_an_option_or_a_command(nodes: list[str]) -> None:
    with pytest.raises(ConfigError):
        run_pairs(nodes, ["true", "{a}", "{b}"])


def test_what_nccl_tests_print_is_judged() -> None:
    def ran(text: str, ending: str = "ok") -> Ran:
        return Ran(("x",), ending, 0 if ending == "ok" else 1, out=text.encode())

    assert judge_nccl(ran(nccl_output(300.0))).passed
    assert judge_nccl(ran(nccl_output(300.0)), least=290).passed
    assert judge_nccl(ran(nccl_output(100.0)), least=290).passed is False
    assert judge_nccl(ran(nccl_output(300.0, wrong=1))).passed is False
    assert judge_nccl(ran(nccl_output(300.0), "exit")).passed is False
    assert judge_nccl(ran("hello"), least=290).passed is None
    assert judge_nccl(ran("", "missing")).passed is None


def test_the_command_line_names_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = command(tmp_path, "sys.exit('g02' in (a, b))")
    assert main(["check", "--pairs", "g[01-05]", "--command", " ".join(argv)]) == 2
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "bad: g02"
    assert "→ drain" in out
    assert main(["check", "--pairs", "g[01-05]", "--command", " ".join(argv), "-o", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert [each["node"] for each in told["findings"] if each["code"] == "pair-node-bad"] == ["g02"]
    assert main(["check", "--pairs", "g[03-05]", "--command", " ".join(argv)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "every node passes with another"
    assert main(["check", "--pairs", "g[03-05]"]) == 78
    assert main(["check", "--pairs", "g[03-05]", "--command", "x {a} {b}", "-o", "prom"]) == 78
