"""Evidence is as dirty as the fleet's file says, of each kind by itself; seeds stay what they are, and the score tells the kinds apart."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import workbench
from workbench.cli import main
from workbench.errors import ConfigError
from workbench.gameday import draw, play
from workbench.simulation import Spec
from workbench.simulation.dirt import KINDS, draw_dirt, write_evidence
from workbench.simulation.evidence import Failure

CRASH = "hardware/gpu-memory"


def only(kind: str, **more: object) -> Spec:
    """A fleet whose evidence always has this trouble and no other."""
    return Spec.read().clean().with_(**{f"dirt__{kind}": 1.0}, **more)


def failed(cls: str = CRASH) -> Failure:
    return draw(1, cls, Spec.read(), random.Random("x"), 32)


def written(kind: str, folder: Path, cls: str = CRASH) -> tuple[Failure, Path, Path]:
    """The failure, its clean evidence and the dirty one."""
    failure = failed(cls)
    dirt = draw_dirt(failure, only(kind), "1 1")
    assert dirt.kinds == (kind,)
    return failure, write_evidence(failure, folder / "clean"), write_evidence(failure, folder / "dirty", dirt)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_failures_come_with_and_without_dirt(tmp_path: Path) -> None:
    """And a share that is changed changes no other kind."""
    clean = play(Spec.read().clean(), 4, tmp_path / "a", seed=4, ranks_most=16)
    dirty = play(Spec.read(), 4, tmp_path / "b", seed=4, ranks_most=16)
    cut = play(Spec.read().with_(dirt__truncated=1.0), 4, tmp_path / "c", seed=4, ranks_most=16)

    assert [(one.truth, one.node, one.ranks) for one in clean.rounds] == [
        (one.truth, one.node, one.ranks) for one in dirty.rounds
    ]
    assert any(one.dirt for one in dirty.rounds)
    without = [tuple(kind for kind in one.dirt if kind != "truncated") for one in dirty.rounds]
    assert without == [tuple(kind for kind in one.dirt if kind != "truncated") for one in cut.rounds]
    assert all("truncated" in one.dirt for one in cut.rounds)


def test_without_dirt_nothing_is_wrong(tmp_path: Path) -> None:
    failure = failed()
    dirt = draw_dirt(failure, Spec.read().clean(), "1 1")

    assert dirt.to_dict() == {"kinds": [], "skew": {}, "story": "", "cut": {}, "second": None}
    assert files(write_evidence(failure, tmp_path / "a", dirt)) == files(write_evidence(failure, tmp_path / "b"))


def test_a_skewed_clock_moves_all_stamps_of_its_node_alike(tmp_path: Path) -> None:
    failure, clean, dirty = written("clock_skew", tmp_path)
    skew = draw_dirt(failure, only("clock_skew"), "1 1").skew
    before, after = files(clean), files(dirty)

    assert skew
    assert max(map(abs, skew.values())) <= 30
    for node in failure.nodes:
        for name in (f"logs/{node}.log", f"kernel/{node}.log"):
            assert (before[name] != after[name]) == (node in skew), name
    assert before["metrics/dcgm.prom"] == after["metrics/dcgm.prom"], "a server's clock stamps those"


@pytest.mark.parametrize(("kind", "gone"), [("no_metrics", "metrics/"), ("no_kernel", "kernel/")])
def test_what_nobody_kept_is_not_there(tmp_path: Path, kind: str, gone: str) -> None:
    _, clean, dirty = written(kind, tmp_path)

    assert any(name.startswith(gone) for name in files(clean))
    assert files(dirty) == {name: text for name, text in files(clean).items() if not name.startswith(gone)}


def test_a_foreign_xid_stands_in_an_innocent_node_s_kernel_log_only(tmp_path: Path) -> None:
    failure, clean, dirty = written("foreign_xid", tmp_path, "user/exception")
    changed = [name for name, text in files(dirty).items() if text != files(clean)[name]]

    assert len(changed) == 1
    assert changed[0].startswith("kernel/")
    assert failure.node not in changed[0]
    assert "NVRM: Xid" in files(dirty)[changed[0]]
    assert workbench.load(dirty).triage().cls == "user/exception"


def test_a_second_fault_is_told_by_its_own_node_and_comes_later(tmp_path: Path) -> None:
    failure, clean, dirty = written("second_fault", tmp_path)
    second = draw_dirt(failure, only("second_fault"), "1 1").second
    changed = {name for name, text in files(dirty).items() if text != files(clean)[name]}

    assert second is not None
    assert second.node != failure.node
    assert 2 <= second.time - failure.time <= 15
    assert second.cls != failure.cls
    assert changed <= {f"logs/{second.node}.log", f"kernel/{second.node}.log"}
    assert changed


def test_no_second_fault_where_nobody_could_say_which_came_first() -> None:
    for cls in ("driver/hang", "platform/node-lost", "platform/storage", "user/exception"):
        assert draw_dirt(failed(cls), only("second_fault"), "1 1").kinds == (), cls


def test_a_cut_log_is_a_beginning_of_the_whole_one(tmp_path: Path) -> None:
    _, clean, dirty = written("truncated", tmp_path)
    before, after = files(clean), files(dirty)
    cut = [name for name in before if before[name] != after[name]]

    assert cut
    assert all(before[name].startswith(after[name]) for name in cut)


@pytest.mark.slow
def test_a_foreign_xid_lets_no_innocent_node_be_blamed(tmp_path: Path) -> None:
    """In every class, on several seeds, whatever the Xid's story."""
    for seed in (1, 2, 3):
        card = play(only("foreign_xid"), 18, tmp_path / str(seed), seed=seed, ranks_most=32)
        assert [(one.truth, one.blamed) for one in card.rounds if one.innocent] == []
        assert card.share("cause_right") == (18, 18)


def test_the_card_counts_by_kind(tmp_path: Path) -> None:
    card = play(Spec.read(), 8, tmp_path, seed=2, ranks_most=16)
    told = card.to_dict()

    assert set(told["by_dirt"]) <= {"clean", *KINDS}
    for kind, score in told["by_dirt"].items():
        rounds = [one for one in card.rounds if (not one.dirt if kind == "clean" else kind in one.dirt)]
        assert score["cause_right"] == {"count": sum(one.cause_right for one in rounds), "of": len(rounds)}
        assert score["unknown"]["count"] == sum(one.said == "unknown" for one in rounds)
    assert sum(not one.dirt for one in card.rounds) == told["by_dirt"].get("clean", {"innocent": {"of": 0}})["innocent"]["of"]


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dirt\.no_kernel: it is a share"):
        Spec.read().with_(dirt__no_kernel=1.5)


def test_the_command_tells_by_kind_and_clean_leaves_it_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gameday", "--rounds", "4", "--ranks", "16", "--only", "user/gpu-oom", "--into", str(tmp_path)]
    main(words)
    dirty = capsys.readouterr().out
    main([*words, "--clean"])
    clean = capsys.readouterr().out

    assert "by what is wrong with the evidence" in dirty
    assert re.search(r"an innocent node shows an Xid +\d", dirty)
    assert "by what is wrong" not in clean
