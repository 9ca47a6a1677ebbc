"""A rack without a scheduler: a list of nodes that others read, the site's commands, and what nobody can know said and never guessed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack, soon
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack
from tests.remediation.fleets import trouble
from workbench.errors import ConfigError
from workbench.remediation.executors import roster as roster_module
from workbench.remediation.executors.contract import ExecutorError
from workbench.remediation.executors.roster import SCHEMA, Asks, Roster
from workbench.remediation.model import OWNER, Action, NodeState
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import load_policy

ALL = ("cordon", "drain", "uncordon")


def program(folder: Path, name: str, body: str) -> str:
    """Write a program of the site."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


class RosterWorld:
    """A list in a folder, and two commands that tell of nodes by files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes = folder / "state", folder / "nodes"
        self.nodes.mkdir()
        boot = program(folder, "boot", f'cat {self.nodes}/"$1".boot')
        work = program(folder, "work", f'cat {self.nodes}/"$1".work')
        self.asks = Asks((boot, "{node}"), (work, "{node}"))
        self.file = self.folder / "out-of-service.json"
        self._count = itertools.count(1)
        self.names: list[str] = []
        self.executor = self.again()

    def again(self) -> Roster:
        return Roster(self.file, self.names, self.asks)

    def node(self, name: str = "", boot: str = "boot-1", work: str = "") -> str:
        name = name or f"node-{next(self._count)}"
        (self.nodes / f"{name}.boot").write_text(f"{boot}\nbtime {time.time() - 86400:.0f}\n")
        (self.nodes / f"{name}.work").write_text(work)
        self.names.append(name)
        self.executor.listed = tuple(self.names)
        return name

    def action(self, verb: str) -> Action:
        name = self.node()
        expects: dict[str, Any] = {"uid": name, "boot": "boot-1"}
        args: dict[str, Any] = {"reason": "xid-79", "expires": 2e9}
        if verb == "uncordon":
            first = Action(f"first-{name}", "cordon", "cordon", name, expects=expects, args=args)
            assert self.executor.begin(first, soon()).status == "done"
            expects |= {"owner": OWNER, "op": first.id}
            args = {"op": first.id}
        return Action(f"act-{name}", verb, "cordon", name, name, expects=expects, args=args, undo="uncordon")

    def table(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_text())) if self.file.exists() else {"schema": SCHEMA, "nodes": {}}

    def writes(self) -> Any:
        return self.file.read_bytes() if self.file.exists() else b""

    def shape(self, action: Action) -> Any:
        return self.table()["nodes"].get(action.node)

    def settle(self, action: Action) -> None:
        pass

    def hand(self, name: str, entry: dict[str, Any] | None) -> None:
        """Write into the list as a person with an editor does."""
        table = self.table()
        table["nodes"].pop(name, None)
        if entry is not None:
            table["nodes"][name] = entry
        self.folder.mkdir(exist_ok=True)
        self.file.write_text(json.dumps(table))

    def foreign(self, action: Action) -> None:
        self.hand(action.node, {"owner": "bob", "reason": "dimm 3"})

    def differ(self, action: Action) -> None:
        (self.nodes / f"{action.node}.boot").write_text("boot-2\n")

    def meddle(self, action: Action) -> None:
        self.foreign(action)

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        """The list is written, and the disk fails before anybody hears of it."""
        patch, real = pytest.MonkeyPatch(), roster_module.write_whole

        def lost(path: Path, value: Any) -> None:
            real(path, value)
            raise OSError("the disk does not answer")

        patch.setattr(roster_module, "write_whole", lost)
        try:
            yield
        finally:
            patch.undo()

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        aside = self.folder.with_name("aside")
        self.folder.rename(aside)
        self.folder.write_text("no folder")
        try:
            yield
        finally:
            self.folder.unlink()
            shutil.move(aside, self.folder)


@pytest.fixture
def world(tmp_path: Path) -> RosterWorld:
    return RosterWorld(tmp_path)


class TestRoster(Acts, TakesBack, RespectsOthers):
    """What every executor promises."""

    VERBS = UNDONE = ALL


class TestRosterDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = UNDONE = TestRoster.VERBS


def test_a_node_says_its_boot_what_runs_and_who_has_it(world: RosterWorld) -> None:
    name = world.node(work="train rank 0\ntrain rank 1\n")
    world.hand(name, {"owner": "bob", "reason": "dimm 3", "since": 5.0})

    node = world.executor.node(name, soon())

    assert node is not None
    assert (node.boot, node.ready, node.owner, node.reason, node.restricted) == ("boot-1", True, "bob", "dimm 3", 5.0)
    assert [one.id for one in node.work] == ["train rank 0", "train rank 1"]
    assert node.booted is not None
    assert node.unseen == ()
    assert world.executor.fleet(soon()).nodes[name] == node


def test_a_line_without_a_name_is_somebody_s(world: RosterWorld) -> None:
    name = world.node()
    world.hand(name, {})
    node = world.executor.node(name, soon())
    assert node is not None
    assert (node.owner, node.foreign) == ("somebody", True)


@pytest.mark.parametrize("how", ["exit 1", "sleep 60", "kill -9 $$"])
def test_a_command_that_does_not_tell_is_no_idle_node(how: str, tmp_path: Path) -> None:
    bad = program(tmp_path, "bad", how)
    rack = Roster(tmp_path / "list.json", ["gpu-1"], Asks((bad, "{node}"), (bad, "{node}"), 0.5))

    node = rack.node("gpu-1", soon())

    assert node is not None
    assert (node.unseen, node.ready, node.boot) == (("boot", "work"), None, "")


def test_a_drain_is_over_when_nothing_runs_and_not_when_nobody_can_tell(world: RosterWorld) -> None:
    action = world.action("drain")
    (world.nodes / f"{action.node}.work").write_text("train\n")
    assert world.executor.begin(action, soon()).status == "pending"
    (world.nodes / f"{action.node}.work").unlink()
    with pytest.raises(ExecutorError):
        world.again().look(action, soon())
    (world.nodes / f"{action.node}.work").write_text("")
    assert world.again().look(action, soon()).status == "done"


def test_without_a_command_that_tells_what_runs_nothing_that_ends_work_is_planned_or_done(world: RosterWorld) -> None:
    name = world.node()
    blind = Roster(world.file, [name, world.node(), world.node()], Asks(world.asks.boot))
    fleet = blind.fleet(soon())
    wrong = trouble(name, boot="boot-1", seen=fleet.time - 5, since=fleet.time - 5)

    plan = make_plan([wrong], fleet, verbs=blind.verbs | {"reboot", "collect", "ticket", "evict", "validate"})

    assert not any(one.destructive for one in plan.actions)
    assert {one.guard for one in plan.refused} == {"unseen"}
    assert "drain" not in blind.verbs
    assert any("what runs on the nodes" in one for one in plan.notes)


def test_two_processes_write_one_list(world: RosterWorld) -> None:
    from concurrent.futures import ThreadPoolExecutor

    actions = [world.action("cordon") for _ in range(12)]
    with ThreadPoolExecutor(6) as pool:
        assert {one.status for one in pool.map(lambda one: world.again().begin(one, soon()), actions)} == {"done"}
    assert set(world.table()["nodes"]) == {one.node for one in actions}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "x"}', f'{{"schema": "{SCHEMA}", "nodes": {{"a": 3}}}}'])
def test_a_list_that_cannot_be_read_is_no_empty_list(text: str, world: RosterWorld) -> None:
    action = world.action("cordon")
    world.file.write_text(text)
    with pytest.raises(ExecutorError):
        world.executor.fleet(soon())
    with pytest.raises(ExecutorError):
        world.executor.begin(action, soon())
    assert world.file.read_text() == text


def test_a_name_that_a_program_could_take_for_an_option_is_given_to_none(world: RosterWorld) -> None:
    rack = Roster(world.file, ["-oProxyCommand=x"], Asks(("/bin/true", "{node}"), ("/bin/true", "{node}")))
    node = rack.node("-oProxyCommand=x", soon())
    assert isinstance(node, NodeState)
    assert node.unseen == ("boot", "work")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("nodes = 3", "has boot, names, seconds, work"),
        ("[nodes]\nnamed = []", "has boot, names"),
        ('[nodes]\nboot = "ssh"', "is a list of words"),
        ('[nodes]\nboot = ["ssh"]', "with {node} in one"),
        ('[nodes]\nboot = ["{node}"]', "names its program itself"),
        ('[nodes]\nnames = ["-x"]', "no name of a node"),
        ("[nodes]\nseconds = 0", "above 0"),
    ],
)
def test_a_policy_whose_nodes_are_wrong_names_the_entry(table: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(f'schema = "workbench.policy/1"\n{table}\n')
    with pytest.raises(ConfigError, match=why):
        load_policy(tmp_path / "policy.toml")


# as two people with one rack type it


@pytest.fixture
def rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without Kubernetes and Slurm."""
    for name in [name for name in os.environ if name.startswith(("KUBE", "WORKBENCH", "PROM", "ELASTIC", "ES_", "OPENSEARCH"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    tools = tmp_path / "bin"  # and no sacct
    tools.mkdir()
    for name in ("cat", "date"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("WORKBENCH_REMEDIATION_FOLDER", str(tmp_path / "state"))
    monkeypatch.setenv("WORKBENCH_REMEDIATION_JOURNAL", str(tmp_path / "journal.jsonl"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verdict(folder: Path, cls: str = "hardware/gpu-memory", remediation: str = "replace-node") -> str:
    from datetime import UTC, datetime

    stamp = datetime.now(UTC).isoformat()
    gpu = {"index": 3, "uuid": "GPU-3", "pci": "0000:3b:00.0"}
    line = {"role": "cause", "signature": "xid-64", "time": stamp, "source": "kernel", "file": "dmesg", "line": 7}
    table = {
        "schema": "workbench.verdict/1",
        "cause": cls.partition("/")[0],
        "class": cls,
        "confidence": 0.97,
        "summary": "rows of GPU 3 cannot be remapped any more",
        "culprit": {"node": "rack1-7", "gpu": gpu, "at_fault": "gpu"},
        "time": stamp,
        "remediation": remediation,
        "retry": "exclude-node",
        "evidence": [{**line, "node": "rack1-7", "gpu": gpu, "text": "NVRM: Xid (PCI:0000:3b:00): 64, row remapping failure"}],
    }
    (folder / "verdict.json").write_text(json.dumps(table))
    return "verdict.json"


def test_a_verdict_is_planned_and_applied_without_any_scheduler(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli import main

    assert main(["plan", "--from", verdict(rack), "--save", "plan.json"]) == 0
    said = capsys.readouterr().out
    assert "rack1-7  report  (needs a yes)" in said
    for word in (
        "whoever starts jobs must read it",
        "which nodes there are",
        "what runs on the nodes",
        "which boot the nodes are in",
    ):
        assert word in said, said
    assert main(["apply", "plan.json"]) == 0
    assert not (rack / "journal.jsonl").exists()
    assert main(["apply", "plan.json", "--yes"]) == 0, capsys.readouterr()

    listed = json.loads((rack / "state" / "out-of-service.json").read_text())["nodes"]["rack1-7"]
    assert (listed["owner"], "rows of GPU 3" in listed["reason"]) == (OWNER, True)
    (ticket,) = (rack / "state" / "reports").glob("*.md")
    assert "row remapping failure" in ticket.read_text()
    (kept,) = (rack / "state" / "evidence").glob("rack1-7-*.json")
    assert "row remapping failure" in kept.read_text()

    assert main(["undo", "rack1-7", "--yes"]) in (0, 3)
    assert json.loads((rack / "state" / "out-of-service.json").read_text())["nodes"] == {}


def test_a_rack_with_commands_empties_reboots_checks_and_gives_back(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The site's programs stand for ssh; the second boot is another one because the reboot's command says so."""
    from workbench.cli import main

    (rack / "boot").write_text("boot-1\n")
    (rack / "work").write_text("")
    tells = program(rack, "tells", f'cat {rack}/boot; echo "btime {int(time.time()) - 86400}"')
    runs = program(rack, "runs", f"cat {rack}/work")
    reboots = program(rack, "reboots", f'echo "$1" >> {rack}/rebooted; echo boot-2 > {rack}/boot')
    checks = program(rack, "checks", f'echo "$1" >> {rack}/checked')
    (rack / "policy.toml").write_text(
        f"""schema = "workbench.policy/1"
[nodes]
names = ["rack1-6", "rack1-7", "rack1-8"]
boot = ["{tells}", "{{node}}"]
work = ["{runs}", "{{node}}"]
[commands.reboot]
argv = ["{reboots}", "{{node}}"]
[commands.validate]
argv = ["{checks}", "{{node}}"]
"""
    )
    file = verdict(rack, "hardware/gpu-lost", "reboot-node")
    site = ["--policy", "policy.toml"]

    (rack / "work").write_text("somebody's training\n")
    assert main(["plan", "--from", file, "--save", "plan.json", *site]) == 0
    assert "rack1-7  reboot-node  (needs a yes)" in capsys.readouterr().out
    (rack / "work").write_text("")
    assert main(["apply", "plan.json", "--yes", *site]) == 0, capsys.readouterr()

    said = [line.split()[2] for line in capsys.readouterr().out.splitlines()]
    assert said == ["cordon", "collect", "drain", "reboot", "validate", "uncordon"]
    assert (rack / "rebooted").read_text() == "rack1-7\n"
    assert (rack / "checked").read_text() == "rack1-7\n"
    assert json.loads((rack / "state" / "out-of-service.json").read_text())["nodes"] == {}


def test_work_that_came_since_the_plan_is_not_rebooted_away(rack: Path, world: RosterWorld) -> None:
    name = world.node()
    action = Action("a1", "cordon", "cordon", name, expects={"uid": name, "work": []})
    (world.nodes / f"{name}.work").write_text("training\n")
    assert world.executor.begin(action, soon()).status == "changed"
    assert world.executor.begin(replace(action, expects={"uid": name}), soon()).status == "done"


def test_a_loop_asks_nobody_which_nodes_there_are(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli import main

    assert main(["loop", "--once"]) != 0
    assert "does not say which nodes there are" in capsys.readouterr().err
