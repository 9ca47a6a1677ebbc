"""plan, apply, undo, journal and loop as a person types them, on a fleet in memory behind the real command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import workbench.cli.remedy
import workbench.cli.stopping
from workbench.cli import main
from workbench.testing.fleet import Fleet
from workbench.testing.fleet_executor import FleetExecutor

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fleet() -> Fleet:
    found = Fleet(seed=3, start=datetime.now(UTC).timestamp())
    for number in range(20):
        found.add(f"gpu-{number:02}", pool="h100")
    found.run("gpu-07", "ml/train-0", job="train", ranks=8, gpus=8, job_gpus=64)
    return found


@pytest.fixture
def run(
    fleet: Fleet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Return what runs a command and gives its exit code and what it said."""
    verbs = frozenset({"cordon", "drain", "evict", "reset-gpu", "reboot", "validate", "uncordon"})
    monkeypatch.setattr(workbench.cli.remedy, "_scheduler", lambda *_: FleetExecutor(fleet, verbs=verbs))
    monkeypatch.setattr(workbench.cli.remedy, "_keeper", lambda config: lambda action, path, deadline: kept(path))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    pace = {"clock": fleet.clock, "steady": fleet.steady, "sleep": fleet.sleep}
    monkeypatch.setattr(workbench.cli.remedy, "PACE", pace)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_REMEDIATION_FOLDER", str(tmp_path / "state"))
    monkeypatch.setenv("WORKBENCH_REMEDIATION_JOURNAL", str(tmp_path / "journal.jsonl"))

    def kept(path: Path) -> Any:
        from workbench.remediation.executors.bundles import Kept

        path.write_text("evidence")
        return Kept(str(path), 3)

    def go(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    yield go
    for number, handler in handlers.items():  # the commands catch them, and this process has other tests
        signal.signal(number, handler)


def findings(fleet: Fleet, path: Path, node: str = "gpu-07", ago: float = 30.0, **more: Any) -> str:
    """Write what `workbench check -o json` says of a GPU that is lost, and return the file's name."""
    stamp = datetime.fromtimestamp(fleet.clock() - ago, UTC).isoformat()
    finding = {
        "check": "xid",
        "status": "critical",
        "summary": "Xid 79 on GPU 3: fell off the bus",
        "code": "xid-79",
        "node": node,
        "gpu": {"index": 3, "uuid": "GPU-aaaa", "pci": "0000:3b:00.0"},
        "class": "hardware/gpu-lost",
        "action": "reboot-node",
        "evidence": ["NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus. \x1b[31m<script>"],
    }
    boot = fleet.nodes[node].boot if node in fleet.nodes else ""
    table = {"schema": "workbench.findings/1", "node": node, "time": stamp, "boot": boot, "findings": [finding], **more}
    path.write_text(json.dumps(table))
    return str(path)


def test_from_a_finding_to_a_node_that_works_again(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    fleet.break_down("gpu-07", "xid-79", ("reboot",))
    file = findings(fleet, tmp_path / "f.json")

    code, out, _ = run("plan", "--from", file, "--save", "plan.json")
    assert code == 0
    assert "gpu-07  reboot-node  (needs a yes)" in out
    assert "ends 1 task of train" in out
    assert "workbench apply plan.json --yes" in out
    assert "\x1b" not in out
    assert not fleet.effects

    code, out, _ = run("apply", "plan.json")
    assert "Nothing was changed" in out
    assert not fleet.effects
    assert not (tmp_path / "journal.jsonl").exists()

    code, out, err = run("apply", "plan.json", "--yes")
    assert code == 0, out + err
    assert [line.split()[2] for line in out.splitlines()] == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    assert fleet.nodes["gpu-07"].schedulable

    code, out, _ = run("apply", "plan.json", "--yes")
    assert len([one for one in fleet.effects if one.verb == "reboot"]) == 1  # the same plan again does nothing again

    code, out, _ = run("journal", "--node", "gpu-07")
    assert out.count("done") == 6
    code, out, _ = run("journal", "open")
    assert out == "nothing\n"


def test_undo_takes_back_the_cordon(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    run("plan", "--from", findings(fleet, tmp_path / "f.json"), "--save", "plan.json")
    cordon = json.loads((tmp_path / "plan.json").read_text())["actions"][0]
    run("apply", "plan.json", "--yes", "--only", cordon["id"])
    assert not fleet.nodes["gpu-07"].schedulable

    _, out, _ = run("undo", "gpu-07")
    assert "would undo cordon of gpu-07" in out
    assert not fleet.nodes["gpu-07"].schedulable
    code, out, _ = run("undo", "gpu-07", "--yes")
    assert code == 0, out
    assert fleet.nodes["gpu-07"].schedulable


def test_a_plan_that_was_changed_by_hand_is_refused(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    run("plan", "--from", findings(fleet, tmp_path / "f.json"), "--save", "plan.json")
    text = (tmp_path / "plan.json").read_text().replace("gpu-07", "gpu-08")
    (tmp_path / "plan.json").write_text(text)

    code, _, err = run("apply", "plan.json", "--yes")
    assert code == 65
    assert "was changed after it was made" in err
    assert not fleet.effects


def test_a_world_that_changed_is_told(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    run("plan", "--from", findings(fleet, tmp_path / "f.json"), "--save", "plan.json")
    fleet.hand("gpu-07", "cordon", "alice")

    code, out, _ = run("apply", "plan.json", "--yes")
    assert code == 3
    assert "refused" in out
    assert "alice" in out
    assert not fleet.effects


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ('{"schema": "workbench.plan/1"}', "neither a verdict"),
        ('{"schema": "workbench.findings/1"}', "no findings of ours"),
    ],
)
def test_what_is_no_finding_is_told_with_its_file(fleet: Fleet, run: Run, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    code, _, err = run("plan", "--from", "bad.json")

    assert code == 65
    assert "bad.json" in err
    assert said in err


def test_findings_without_a_time_move_nothing_and_say_so(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    file = findings(fleet, tmp_path / "f.json", time=None)
    code, out, err = run("plan", "--from", file)

    assert code == 0
    assert "nobody knows when these checks ran" in err
    assert "stale" in out


def test_a_person_settles_what_nobody_knows(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    code, _, err = run("journal", "settle", "abc", "done")
    assert code == 64
    assert "workbench journal settle ID" in err
    code, _, _ = run("journal", "note", "row", "7", "is", "being", "recabled", "--node", "gpu-07")
    assert code == 0
    assert "recabled" in run("journal")[1]


class Never:
    """Nobody asks to stop, and waiting for that takes the fleet's time."""

    def __init__(self, fleet: Fleet) -> None:
        self.wait, self.is_set = fleet.sleep, lambda: False


def test_one_turn_of_the_loop_does_what_the_policy_lets_it(
    fleet: Fleet, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench.cli.stopping, "stopping", lambda: Never(fleet))
    fleet.break_down("gpu-03", "xid-79", ("reboot",))
    (tmp_path / "inbox").mkdir()
    findings(fleet, tmp_path / "inbox" / "gpu-03.json", "gpu-03")
    (tmp_path / "inbox" / "torn.json").write_text('{"schema": "workb')
    (tmp_path / "policy.toml").write_text(
        f'schema = "workbench.policy/1"\nstop_file = "{tmp_path}/stop"\n[[auto]]\nup_to = "reboot-node"\nconfidence = 0.9\n'
    )
    code, out, err = run("loop", "--once", "--verdicts", "inbox", "--policy", "policy.toml")

    assert code == 0, out + err
    assert "torn.json" in err
    assert fleet.nodes["gpu-03"].schedulable
    assert [one.verb for one in fleet.effects if one.node == "gpu-03"][:1] == ["cordon"]


@pytest.mark.parametrize(
    "words",
    [
        ("loop", "--every", "1s"),
        ("loop", "--every", "soon"),
        ("loop", "--once", "--verdicts", "nowhere"),
        ("plan", "--no-conditions"),
        ("plan", "--node", "gpu-99"),
    ],
)
def test_a_wrong_command_line_is_told(run: Run, words: tuple[str, ...]) -> None:
    code, _, err = run(*words)

    assert code == 64
    assert err.startswith("workbench: ")


def test_a_plan_is_proposed_approved_and_done_once(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    fleet.break_down("gpu-07", "xid-79", ("reboot",))
    code, out, _ = run("plan", "--from", findings(fleet, tmp_path / "f.json"), "--queue")
    assert code == 0
    id = out.splitlines()[-1].split()[0]
    code, out, _ = run("queue")
    assert (id in out, "proposed" in out, "gpu-07" in out) == (True, True, True)
    code, _, err = run("apply", f"queue:{id}", "--yes")
    assert (code, "nobody has said yes" in err) == (3, True)
    assert not fleet.effects

    code, _, err = run("queue", "approve", id, "--digest", "0" * 32)
    assert (code, "not the one that was shown" in err) == (3, True)
    assert run("queue", "reject", id)[0] == 64
    assert run("queue", "approve", id, "--by", "maria", "--reason", "go")[0] == 0
    assert run("apply", f"queue:{id}")[0] == 0
    assert not fleet.effects
    code, out, err = run("apply", f"queue:{id}", "--yes")
    assert code == 0, out + err
    assert [one.verb for one in fleet.effects] == ["cordon", "evict", "reboot", "validate", "uncordon"]
    code, _, err = run("apply", f"queue:{id}", "--yes")
    assert (code, "is applied" in err) == (3, True)
    assert len(fleet.effects) == 5

    code, out, _ = run("queue", "show", id)
    assert "approved  by maria: go" in out
    code, out, _ = run("journal")
    assert f"plan {id} approved by maria: go" in out
    assert run("queue")[1] == "nothing waits\n"
    assert json.loads(run("queue", "--all", "-o", "json")[1])["state"] == "applied"


def test_an_undo_is_proposed_from_the_journal(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    run("plan", "--from", findings(fleet, tmp_path / "f.json"), "--save", "plan.json")
    cordon = json.loads((tmp_path / "plan.json").read_text())["actions"][0]
    run("apply", "plan.json", "--yes", "--only", cordon["id"])
    assert not fleet.nodes["gpu-07"].schedulable

    assert run("queue", "undo", "gpu-99")[0] == 64
    code, out, _ = run("queue", "undo", "gpu-07", "--reason", "wrong node")
    assert code == 0
    id = out.split()[0]
    assert run("queue", "approve", id)[0] == 0
    code, out, _ = run("apply", f"queue:{id}", "--yes")
    assert (code, fleet.nodes["gpu-07"].schedulable) == (0, True)


def test_the_loop_does_what_was_approved_in_the_queue(fleet: Fleet, run: Run, tmp_path: Path) -> None:
    fleet.break_down("gpu-07", "xid-79", ("reboot",))
    verdicts = tmp_path / "verdicts"
    verdicts.mkdir()
    findings(fleet, verdicts / "f.json")
    run("loop", "--once", "--verdicts", str(verdicts))
    id = json.loads(run("queue", "-o", "json")[1])["id"]
    assert not fleet.effects
    run("queue", "approve", id)
    run("loop", "--once", "--verdicts", str(verdicts))
    assert fleet.effects[-1].verb == "uncordon"
