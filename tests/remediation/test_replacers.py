"""A machine is given back by whoever knows it: Karpenter, Cluster API, a plug-in of the site, or the site's own command, and by nobody twice."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from tests.remediation.fake_apiserver import STAMP, FakeApiServer, FakeWorld
from workbench.errors import ConfigError
from workbench.remediation.executors import replacers
from workbench.remediation.executors.combined import Combined
from workbench.remediation.executors.command import Commands, commands_of
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.executors.replacers import Claim, instance_of
from workbench.remediation.model import Action, NodeState, Step, Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Limits, Policy
from workbench.testing.faults import FaultServer

NOTES = {"cluster.x-k8s.io/machine": "gpu-x7k2p", "cluster.x-k8s.io/cluster-namespace": "fleet"}
SET = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachineSet", "name": "gpu", "uid": "u", "controller": True}
ROOMY = Policy(limits=Limits(out_percent=100, pool_percent=100, keep=0, keep_percent=0))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    """An API server with what a test puts there."""
    api = FakeApiServer()
    with FaultServer(api.answer) as server:
        yield FakeWorld(api, server, tmp_path)


def soon() -> Deadline:
    return Deadline(20)


def machine(world: FakeWorld, name: str = "node-a", **meta: Any) -> dict[str, Any]:
    """Make a node with its Machine."""
    world.node(name, annotations=dict(NOTES))
    meta = {
        "name": "gpu-x7k2p",
        "namespace": "fleet",
        "finalizers": ["machine.cluster.x-k8s.io"],
        "ownerReferences": [SET],
        **meta,
    }
    spec = {"clusterName": "gpu", "providerID": f"aws:///{name}"}
    return world.api.put("machines", {"metadata": meta, "spec": spec, "status": {"nodeRef": {"name": name}}})


def swap(world: FakeWorld, name: str = "node-a", target: str = "cluster-api:fleet/gpu-x7k2p") -> Action:
    uid = world.api.objects["nodes"][name]["metadata"]["uid"]
    return Action("act-1", "replace", "replace-node", name, target, why="xid-79", expects={"uid": uid, "owner": ""})


def given_back(world: FakeWorld, kind: str = "machines") -> list[str]:
    return [name for name, one in world.api.objects[kind].items() if "deletionTimestamp" in one["metadata"]]


def test_a_machine_of_cluster_api_is_deleted_by_its_uid_and_the_look_says_what_holds_it(world: FakeWorld) -> None:
    machine(world)
    node = world.executor.node("node-a", soon())
    assert node is not None
    assert (node.claim, node.provider) == ("cluster-api:fleet/gpu-x7k2p", "aws:///node-a")
    assert world.executor.fleet(soon()).nodes["node-a"].claim == node.claim
    action = swap(world)

    assert world.executor.rehearse(action, soon()).status == "pending"
    assert given_back(world) == []
    step = world.executor.begin(action, soon())
    assert (step.status, step.before["by"], step.before["claim"]) == ("pending", "cluster-api", "fleet/gpu-x7k2p")
    assert given_back(world) == ["gpu-x7k2p"]

    again = world.again()  # another process, which has only the node's mark
    looked = again.look(action, soon())
    assert (looked.status, looked.detail) == (
        "pending",
        "Machine fleet/gpu-x7k2p is being deleted, held by machine.cluster.x-k8s.io",
    )
    del world.api.objects["machines"]["gpu-x7k2p"], world.api.objects["nodes"]["node-a"]
    assert again.look(action, soon()).status == "done"
    assert again.begin(action, soon()).status == "done"


def test_a_machine_that_was_asked_to_go_before_is_not_asked_again(world: FakeWorld) -> None:
    """Its answer was lost; what another controller then makes under the same name stays."""
    machine(world)
    action = swap(world)
    world.executor.begin(action, soon())
    world.api.objects["machines"].pop("gpu-x7k2p")
    machine_of_others = {"name": "gpu-x7k2p", "namespace": "fleet", "ownerReferences": [SET]}
    world.api.put("machines", {"metadata": machine_of_others, "spec": {}, "status": {"nodeRef": {"name": "node-a"}}})

    assert world.executor.begin(action, soon()).status == "pending"
    assert given_back(world) == []


@pytest.mark.parametrize(
    ("meta", "status", "why"),
    [
        ({"labels": {"cluster.x-k8s.io/control-plane": ""}}, "failed", "control plane"),
        ({"ownerReferences": []}, "failed", "nothing would make another"),
        ({"ownerReferences": [{**SET, "kind": "KubeadmControlPlane"}]}, "failed", "nothing would make another"),
        ({"ownerReferences": [{**SET, "controller": False}]}, "failed", "nothing would make another"),
        ({"annotations": {"cluster.x-k8s.io/paused": "true"}}, "failed", "paused"),
        ({"deletionTimestamp": STAMP}, "pending", "being deleted"),
    ],
)
def test_a_machine_that_nothing_would_make_again_is_not_given_back(
    world: FakeWorld, meta: dict[str, Any], status: str, why: str
) -> None:
    machine(world, **meta)
    before = given_back(world)

    step = world.executor.begin(swap(world), soon())

    assert (step.status, why in step.detail) == (status, True), step
    assert given_back(world) == before
    assert "gpu-workbench/did-replace" not in (world.api.objects["nodes"]["node-a"]["metadata"].get("annotations") or {})


def test_a_machine_of_another_node_is_not_given_back(world: FakeWorld) -> None:
    machine(world)
    world.api.objects["machines"]["gpu-x7k2p"]["spec"]["providerID"] = "aws:///another"

    assert world.executor.begin(swap(world), soon()).status == "changed"
    assert given_back(world) == []


def test_without_cluster_api_on_the_server_its_claims_are_gone_and_karpenter_s_go_on(world: FakeWorld) -> None:
    world.node("node-a", annotations=dict(NOTES))
    assert world.executor.begin(swap(world), soon()).status == "changed"
    action = world.action("replace")
    assert world.executor.begin(action, soon()).status == "pending"
    assert given_back(world, "claims") == [action.target]


# plug-ins


class Cloud:
    """What a package of a site brings: instances of a cloud by the provider's id."""

    name = "our-cloud"
    kind = "instance"
    instances: dict[str, str] = {}
    ended: list[str] = []

    def __init__(self, asks: Any) -> None:
        self.asks = asks

    def named(self, node: Mapping[str, Any]) -> str:
        return instance_of(str((node.get("spec") or {}).get("providerID") or ""))

    def get(self, name: str, deadline: Deadline) -> Claim | None:
        state = self.instances.get(name)
        return (
            None if state is None else Claim(name, name, f"aws:///{name}", going="" if state == "running" else f"it is {state}")
        )

    def give_back(self, claim: Claim, action: str, deadline: Deadline, *, dry: bool) -> bool:
        if not dry:
            self.ended.append(claim.uid)
            self.instances[claim.name] = "shutting-down"
        return True


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> type[Cloud]:
    """An environment with that package."""
    Cloud.instances, Cloud.ended = {"node-a": "running"}, []
    point = EntryPoint("our-cloud", f"{__name__}:Cloud", replacers.GROUP)
    monkeypatch.setattr(replacers, "entry_points", lambda group: [point] if group == replacers.GROUP else [])
    return Cloud


def test_a_plug_in_of_the_site_gives_a_machine_back_once_and_is_asked_before_our_own(
    plugin: type[Cloud], world: FakeWorld
) -> None:
    machine(world)
    executor = world.again()
    node = executor.node("node-a", soon())
    assert node is not None
    assert node.claim == "our-cloud:node-a"
    action = swap(world, target=node.claim)

    assert executor.begin(action, soon()).status == "pending"
    assert executor.begin(action, soon()).status == "pending"
    assert plugin.ended == ["node-a"]
    assert executor.look(action, soon()).detail == "instance node-a is being deleted, it is shutting-down"
    plugin.instances.clear()
    assert executor.look(action, soon()).status == "pending", "the node is still there"
    del world.api.objects["nodes"]["node-a"]
    assert executor.look(action, soon()).status == "done"
    assert given_back(world) == []


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plug-in of docs/remediation.md as an installed package, and a program `aws` that keeps what it was called with."""
    page = (Path(__file__).parents[2] / "docs" / "remediation.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    points = page.rpartition("```toml\n[project.entry-points.")[2].partition("```")[0]
    assert points.startswith('"workbench.replacers"]')
    site, program = tmp_path / "site", tmp_path / "bin"
    (site / "our_cloud").mkdir(parents=True)
    (site / "our_cloud" / "__init__.py").touch()
    (site / "our_cloud" / "replacer.py").write_text(code)
    info = site / "our_cloud-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-cloud\nVersion: 1.0\n")
    line = points.splitlines()[1].replace('"', "")
    (info / "entry_points.txt").write_text(f"[{replacers.GROUP}]\n{line}\n")
    program.mkdir()
    (tmp_path / "state").write_text("InService\tus-east-1a\n")
    aws = program / "aws"
    aws.write_text(
        f"""#!/bin/sh
printf '%s\n' "$@" -- >> {tmp_path}/log
case $2 in
describe*) cat {tmp_path}/state ;;
terminate*) printf 'Terminating\tus-east-1a\n' > {tmp_path}/state ;;
esac
"""
    )
    aws.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(site))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "our_cloud"]:
        del sys.modules[name]


def test_the_plug_in_of_the_guide_gives_an_instance_back_to_its_group_by_its_program(group: Path, world: FakeWorld) -> None:
    node = world.node("node-a", labels={"eks.amazonaws.com/nodegroup": "gpu"})
    node["spec"]["providerID"] = "aws:///us-east-1a/i-0abc"
    executor = world.again()
    state = executor.node("node-a", soon())
    assert state is not None
    assert state.claim == "aws-group:i-0abc"
    assert not (group / "log").exists(), "nobody is asked about each node of a fleet"
    action = swap(world, target=state.claim)

    assert executor.rehearse(action, soon()).status == "pending"
    assert executor.begin(action, soon()).status == "pending"
    assert world.again().begin(action, soon()).status == "pending"
    calls = [call.splitlines() for call in (group / "log").read_text().split("--\n") if call]
    ended = [call for call in calls if call[1].startswith("terminate")]
    assert ended == [
        [
            "autoscaling",
            "terminate-instance-in-auto-scaling-group",
            "--instance-id",
            "i-0abc",
            "--no-should-decrement-desired-capacity",
        ]
    ]
    assert calls[0][1:4] == ["describe-auto-scaling-instances", "--instance-ids", "i-0abc"]
    assert world.again().look(action, soon()).detail == "instance i-0abc is being deleted, it is Terminating"
    (group / "state").write_text("None\n")
    del world.api.objects["nodes"]["node-a"]
    world.node("node-a")
    assert world.again().look(action, soon()).status == "done"


def test_the_plug_in_of_the_guide_leaves_the_nodes_of_others_and_instances_of_no_group(group: Path, world: FakeWorld) -> None:
    machine(world)
    executor = world.again()
    state = executor.node("node-a", soon())
    assert state is not None
    assert state.claim == "cluster-api:fleet/gpu-x7k2p"
    world.node("node-b", labels={"eks.amazonaws.com/nodegroup": "gpu"})["spec"]["providerID"] = "aws:///us-east-1a/i-0abc"
    (group / "state").write_text("None\n")
    assert executor.begin(swap(world, "node-b", "aws-group:i-0abc"), soon()).status == "changed"
    (group / "bin" / "aws").write_text("#!/bin/sh\nexit 254\n")
    with pytest.raises(ExecutorError, match="describe-auto-scaling-instances"):
        executor.begin(swap(world, "node-b", "aws-group:i-0abc"), soon())
    assert "terminate" not in (group / "log").read_text()


def test_a_plug_in_that_fails_on_a_node_is_told_and_takes_no_node_out_of_sight(
    plugin: type[Cloud], world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(world)
    monkeypatch.setattr(plugin, "named", lambda self, node: 1 / 0)

    fleet = world.again().fleet(soon())

    assert fleet.nodes["node-a"].claim == "cluster-api:fleet/gpu-x7k2p"
    assert fleet.complete
    assert fleet.problems == ("replacer our-cloud: ZeroDivisionError: division by zero",)


def test_what_a_plug_in_began_and_nobody_here_knows_any_more_is_no_machine_that_stands(
    plugin: type[Cloud], world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(world)
    action = swap(world, target="our-cloud:node-a")
    world.again().begin(action, soon())
    monkeypatch.setattr(replacers, "entry_points", lambda group: [])

    with pytest.raises(Exception, match="'our-cloud' that gave the machine back is not installed"):
        world.again().look(action, soon())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:make", "ModuleNotFoundError"),
        (f"{__name__}:Nothing", "AttributeError"),
        (f"{__name__}:STAMP", "TypeError"),
        (f"{__name__}:Twin", "two replacers are named karpenter"),
        (f"{__name__}:Empty", "has no named"),
    ],
)
def test_a_broken_plug_in_is_told_before_anything_is_done(
    value: str, why: str, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacers, "entry_points", lambda group: [EntryPoint("odd", value, group)])

    with pytest.raises(ConfigError, match=why):
        world.again()


class Twin(Cloud):
    name = "karpenter"


class Empty:
    name, kind = "empty", "nothing"

    def __init__(self, asks: Any) -> None:
        pass


# the site's command


def test_an_autoscaling_group_is_a_command_that_gets_the_instance_from_the_provider_s_id(
    world: FakeWorld, tmp_path: Path
) -> None:
    """As docs/remediation.md has it; the program is a stand-in for the cloud's own and keeps what it was called with."""
    log = tmp_path / "log"
    aws = tmp_path / "aws"
    aws.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {log}\n')
    aws.chmod(0o755)
    table = {
        "replace": {
            "argv": [
                str(aws),
                "autoscaling",
                "terminate-instance-in-auto-scaling-group",
                "--instance-id",
                "{instance}",
                "--no-should-decrement-desired-capacity",
            ],
            "seconds": 60,
        }
    }
    for name in ("node-a", "node-b", "node-c"):
        world.node(name)
        world.api.objects["nodes"][name]["spec"]["providerID"] = f"aws:///us-east-1a/i-{name}"
    kubernetes = Kubernetes(world.kubeconfig)
    commands = Commands(commands_of(table, "policy.toml"), tmp_path / "commands", node=kubernetes.node)
    site = Combined(kubernetes, commands)
    fleet = site.fleet(soon())
    assert {one.claim for one in fleet.nodes.values()} == {f"command:aws:///us-east-1a/i-node-{x}" for x in "abc"}
    trouble = Trouble("node-a", "row-remap-failed", "hardware/gpu-memory", "replace-node", cause="hardware", seen=time.time())
    trouble = Trouble(**{**_fields(trouble), "boot": fleet.nodes["node-a"].boot})
    plan = make_plan([trouble], fleet, policy=ROOMY, verbs=site.verbs | {"collect"})
    action = next(one for one in plan.actions if one.verb == "replace")
    assert action.args["provider"] == "aws:///us-east-1a/i-node-a"
    alone = Action(**{**_fields(action), "expects": {"uid": action.expects["uid"]}})

    assert site.of(alone) is commands
    step = _ended(site, alone)
    assert step.detail == "the machine of node-a is still there"
    assert log.read_text().splitlines() == [*table["replace"]["argv"][1:4], "i-node-a", table["replace"]["argv"][5]]  # type: ignore[index]
    assert site.begin(alone, soon()).status == "pending"
    del world.api.objects["nodes"]["node-a"]
    world.node("node-a")
    assert site.look(alone, soon()).detail == "a new machine has its name"
    assert len(log.read_text().splitlines()) == 5, "asked for once"


def test_a_claim_goes_its_own_way_although_the_site_has_a_command(world: FakeWorld, tmp_path: Path) -> None:
    machine(world)
    commands = Commands(commands_of({"replace": {"argv": ["false"]}}, "p"), tmp_path / "commands")
    kubernetes = Kubernetes(world.kubeconfig)
    site = Combined(kubernetes, commands)

    assert site.fleet(soon()).nodes["node-a"].claim == "cluster-api:fleet/gpu-x7k2p"
    assert site.of(swap(world)) is kubernetes


def test_without_a_command_a_node_of_nobody_is_not_planned_to_be_replaced(world: FakeWorld) -> None:
    for name in ("node-a", "node-b", "node-c"):
        world.node(name)
    site = Combined(Kubernetes(world.kubeconfig))
    fleet = site.fleet(soon())
    trouble = Trouble("node-a", "row-remap-failed", "hardware/gpu-memory", "replace-node", cause="hardware", seen=time.time())

    plan = make_plan([trouble], fleet, policy=ROOMY, verbs=site.verbs | {"collect", "ticket"})

    assert "replace" not in {one.verb for one in plan.actions}


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def _ended(site: Combined, action: Action) -> Step:
    step = site.begin(action, soon())
    until = time.monotonic() + 60
    while "command" in step.detail:
        assert time.monotonic() < until, step
        time.sleep(0.05)
        step = site.look(action, soon())
    return step


def test_a_state_with_a_provider_is_the_same_after_it_was_a_file() -> None:
    from workbench.remediation.records import plain, record

    state = NodeState("n", claim="command:n", provider="aws:///z/i-0")
    assert record(NodeState, json.loads(json.dumps(plain(state)))) == state
    assert os.path.basename(state.provider) == instance_of(state.provider)
