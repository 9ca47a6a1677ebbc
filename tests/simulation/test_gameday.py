"""A game day's evidence is native and without the truth; verdict and plan are judged against it, right or wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import workbench
from workbench.catalog import table
from workbench.cli import main
from workbench.gameday import play, write_failures
from workbench.model import Verdict
from workbench.simulation import Spec, simulate
from workbench.simulation.evidence import DECOYS

CLASSES = list(dict.fromkeys(row["class"] for row in table("simulated_evidence")))


def test_every_class_is_told_from_its_evidence_alone(tmp_path: Path) -> None:
    """With a harmless line of an innocent node beside it in most rounds."""
    card = play(Spec.read().clean(), len(CLASSES), tmp_path, ranks_most=32)

    assert sorted(one.truth for one in card.rounds) == sorted(CLASSES)
    assert [one for one in card.rounds if one.said != one.truth or one.innocent or not (one.retry_right and one.plan_right)] == []


def test_no_folder_holds_the_truth(tmp_path: Path) -> None:
    """Also where its evidence is dirty."""
    play(Spec.read(), 12, tmp_path, ranks_most=32)

    text = "".join(file.read_text() for file in tmp_path.rglob("round-*/**/*") if file.is_file())
    assert text
    assert not [cls for cls in CLASSES if cls in text]


def test_a_wrong_verdict_is_scored_as_wrong(tmp_path: Path) -> None:
    """One that blames the first node it sees for everything."""

    def careless(folder: Path) -> Verdict:
        right = workbench.load(folder).triage()
        node = sorted(file.stem for file in (folder / "kernel").iterdir())[0]
        return Verdict(
            "hardware/gpu-lost", 0.99, "always that", node=node, at_fault="node", retry="exclude-node", time=right.time
        )

    card = play(Spec.read().clean(), 6, tmp_path, ranks_most=64, judge=careless, only=["user", "platform/storage"])

    assert card.share("cause_right") == (0, 6)
    assert card.share("innocent") == (6, 6)
    assert card.share("retry_right") == (0, 6)
    assert card.share("plan_right")[0] == 0


def test_a_card_is_written_and_played_again_alike(tmp_path: Path) -> None:
    first = play(Spec.read().clean(), 3, tmp_path / "a", seed=5, ranks_most=16).to_dict()
    again = play(Spec.read().clean(), 3, tmp_path / "b", seed=5, ranks_most=16).to_dict()

    assert json.loads((tmp_path / "a" / "scorecard.json").read_text()) == json.loads(json.dumps(first))
    assert [one["truth"] for one in first["rounds"]] == [one["truth"] for one in again["rounds"]]
    assert first["schema"] == "workbench.gameday/1"


def test_decoys_alone_are_nobody_s_fault(tmp_path: Path) -> None:
    """Each of them in the kernel log of a job that a user's defect ended."""
    for number, decoy in enumerate(DECOYS):
        folder = tmp_path / str(number)
        play(Spec.read().clean(), 1, folder, only=["user/exception"], ranks_most=16)
        kernel = sorted((folder / "round-001" / "kernel").iterdir())[0]
        kernel.write_text(f"2026-01-05T00:00:00Z {kernel.stem} kernel: {decoy}\n")
        assert workbench.load(folder / "round-001").triage().cls == "user/exception", decoy


def test_failures_of_a_simulation_become_folders(tmp_path: Path) -> None:
    """Named by their job, on the node that really was it, and triaged to it."""
    spec = Spec.read().with_(nodes__count=64, days=20, faults__per_1000_node_days=60).clean()
    truth = simulate(spec).truth

    written = write_failures(truth.faults, spec, tmp_path, 6)

    assert len(written) == 6
    for folder, one in written:
        verdict = workbench.load(folder).triage()
        assert str(one["jobs"][0]) in folder.name
        assert verdict.cls == one["cls"], folder
        if isinstance(one["node"], str):
            assert verdict.node == one["node"]


class TestCommand:
    def test_gameday_ends_with_0_when_all_is_right(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code = main(
            [
                "gameday",
                "--rounds",
                "2",
                "--only",
                "hardware/gpu-lost",
                "user/gpu-oom",
                "--ranks",
                "16",
                "--clean",
                "--into",
                str(tmp_path / "day"),
            ]
        )

        out = capsys.readouterr().out
        assert code == 0
        assert "2 of 2    cause named" in out
        assert "0 of 2    an innocent node blamed" in out

    def test_a_class_that_is_not_known_is_said(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["gameday", "--only", "hardware/imaginary", "--into", str(tmp_path)]) == 64
        assert "none of hardware/imaginary has known evidence" in capsys.readouterr().err

    def test_simulate_writes_account_evidence_and_truth(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The account is a ledger that the fleet's commands read."""
        from workbench.fleet.ledger import Ledger

        words = ["simulate", "--days", "3", "--set", "nodes.count=64", "--set", "faults.per_1000_node_days=80"]
        words += [
            "--ledger",
            str(tmp_path / "l.sqlite"),
            "--truth",
            str(tmp_path / "truth.jsonl"),
            "--incidents",
            str(tmp_path / "inc"),
            "--most",
            "2",
        ]
        assert main(words) == 0

        assert "simulated, nothing of it happened" in capsys.readouterr().out
        lines = (tmp_path / "truth.jsonl").read_text().splitlines()
        assert "lemons" in json.loads(lines[0])
        assert {"time", "cls", "node"} <= set(json.loads(lines[1]))
        told = [json.loads(line) for line in lines if "incident" in line]
        assert {one["incident"] for one in told} == {path.name for path in (tmp_path / "inc").iterdir()}
        assert all("kinds" in one["dirt"] for one in told)
        with Ledger.open(tmp_path / "l.sqlite", "ro") as ledger:
            jobs = ledger.frame("jobs")
        assert len(jobs) > 50
        assert len(list((tmp_path / "inc").iterdir())) == 2

    def test_vary_compares_on_the_same_faults(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["simulate", "--days", "3", "--set", "nodes.count=32", "--vary", "policy.interval=10m,2h", "-o", "json"]
        assert main(words) == 0

        rows = json.loads(capsys.readouterr().out)
        assert [row["policy.interval"] for row in rows] == ["10m", "2h"]
        assert rows[0]["faults"] == rows[1]["faults"]
        assert rows[0]["gpu_hours"]["save"] > rows[1]["gpu_hours"]["save"]

    def test_a_wrong_key_names_the_right_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["simulate", "--set", "policy.intervals=10m"]) == 78
        assert "did you mean 'policy.interval'" in capsys.readouterr().err

    def test_the_shipped_fleet_can_be_printed_and_given_back(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["simulate", "--print-spec"]) == 0
        (tmp_path / "fleet.toml").write_text(capsys.readouterr().out)

        assert main(["simulate", str(tmp_path / "fleet.toml"), "--days", "1", "--set", "nodes.count=16"]) == 0
