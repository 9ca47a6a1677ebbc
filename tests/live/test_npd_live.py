"""The shipped monitors under a real node-problem-detector and a real kube-apiserver: what each exit code becomes, and when."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.kubernetes_site import SERVICE, Site, control_plane, run, until
from tests.live.played_node import SETTINGS, XID, PlayedNode
from tests.live.servers import free_port
from workbench.cli import main
from workbench.health.conditions import FIT
from workbench.parse.kubernetes import parse_objects

pytestmark = pytest.mark.live

GOOD = ("False", "NoFaultFound", "nothing was found that makes the node unfit")
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running control plane."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with control_plane(folder):
        yield folder


@pytest.fixture(scope="module")
def site(work: Path) -> Site:
    """Nodes, and node-problem-detector's account with the rights that Kubernetes has for it."""
    site = Site(work / "admin.kubeconfig")
    for name in ("gpu-a", "gpu-b", "gpu-c", "gpu-d"):
        site.node(name)
    site.rbac.create_cluster_role_binding(
        {
            "metadata": {"name": "npd"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:node-problem-detector",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "npd", "namespace": "kube-system"}],
        }
    )
    return site


@pytest.fixture
def start(work: Path, site: Site, tmp_path: Path) -> Start:
    """What starts node-problem-detector for a node with monitors; it ends with the block."""
    binary = run(SERVICE / "npd" / "build")
    account = run(SERVICE / "kubeconfig-for", work, "kube-system", "npd")
    server = f"https://127.0.0.1:{(work / 'port').read_text().strip()}?inClusterConfig=false&auth={account}"

    @contextlib.contextmanager
    def begin(node: str, *monitors: dict[str, Any]) -> Iterator[str]:
        files = [tmp_path / f"monitor-{at}.json" for at in range(len(monitors))]
        for file, monitor in zip(files, monitors, strict=True):
            file.write_text(json.dumps(monitor))
        port = free_port()
        words = [binary, f"--hostname-override={node}", "--port=0", f"--prometheus-port={port}", f"--apiserver-override={server}"]
        words.append(f"--config.custom-plugin-monitor={','.join(map(str, files))}")
        with (tmp_path / "npd.log").open("a") as log, subprocess.Popen(words, stdout=log, stderr=log) as child:
            try:
                yield f"http://127.0.0.1:{port}/metrics"
                assert child.poll() is None, (tmp_path / "npd.log").read_text()[-2000:]
            finally:
                child.kill()

    return begin


@pytest.fixture
def shipped(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What `workbench config` prints, which runs another program where it is told, and oftener than once a minute."""

    def monitor(name: str, program: Path, timeout: str | None = None) -> dict[str, Any]:
        assert main(["config", name]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        document["pluginConfig"]["invoke_interval"] = "1s"
        (rule,) = document["rules"]
        rule["path"] = str(program)
        if timeout:
            document["pluginConfig"]["timeout"] = rule["timeout"] = timeout
        return document

    return monitor


def script(path: Path, text: str) -> Path:
    """Write a program."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def installed(node: PlayedNode, path: Path) -> Path:
    """Write the `workbench` of a played node: it waits for the file ``go`` beside it, and writes down what it told node-problem-detector."""
    env = " ".join(f"{name}='{value}'" for name, value in SETTINGS.items())
    tell = f"env {env} PATH='{node.root}/bin' LD_LIBRARY_PATH='{node.libraries}' '{sys.executable}' -m workbench \"$@\" --root '{node.root}'"
    wait = f"while [ ! -e '{path.parent}/go' ]; do sleep 0.1; done"
    return script(
        path, f"{wait}\n{tell} > '{path}.new'$$\ncode=$?\ncat '{path}.new'$$\nmv '{path}.new'$$ '{path}.said'\nexit $code"
    )


def condition(site: Site, node: str, kind: str = FIT) -> tuple[str, str, str] | None:
    """Return a condition's status, reason and message."""
    found = [one for one in site.core.read_node(node).status.conditions if one.type == kind]
    return (found[0].status, found[0].reason, found[0].message or "") if found else None


def told(metrics: str) -> str:
    """Return what node-problem-detector tells Prometheus; nothing while it starts."""
    with contextlib.suppress(OSError), urllib.request.urlopen(metrics, timeout=5) as answer:
        return str(answer.read().decode())
    return ""


def since(site: Site, node: str) -> Any:
    """Return when the node became fit or unfit by its condition."""
    return next(one for one in site.core.read_node(node).status.conditions if one.type == FIT).last_transition_time


def events(site: Site, node: str) -> list[Any]:
    """Return the events that our monitor made of a node."""
    found = site.core.list_namespaced_event("default").items
    return [one for one in found if one.involved_object.name == node and one.source.component == "gpu-workbench"]


def test_a_node_gets_its_condition_from_the_checks_and_from_nothing_else(
    site: Site, start: Start, shipped: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "node").mkdir()
    node = PlayedNode(tmp_path / "node")
    program = installed(node, tmp_path / "workbench")
    said = Path(f"{program}.said")
    with start("gpu-a", shipped("npd", program)) as metrics:
        # until the first check has come to its end nobody says that the node is well
        until("the monitor", lambda: "problem_gauge" in told(metrics))
        assert condition(site, "gpu-a") is None
        (tmp_path / "go").touch()
        until("the condition", lambda: condition(site, "gpu-a"), 60)
        assert condition(site, "gpu-a") == GOOD
        assert events(site, "gpu-a") == []

        node.log(XID)
        until("the fault", lambda: (condition(site, "gpu-a") or GOOD)[0] == "True", 60)
        status, reason, message = condition(site, "gpu-a") or GOOD
        assert (status, reason) == ("True", "FaultFound")
        assert message.startswith("xid [GPU 3]: Xid 79: ")
        assert message == until(
            "what was said", lambda: said.read_text().strip()
        )  # whole: node-problem-detector cuts at max_output_length
        assert len(message.encode()) <= 80
        (event,) = until("the event", lambda: events(site, "gpu-a"))
        assert (event.type, event.reason) == ("Warning", "FaultFound")
        assert message in event.message
        assert re.search(rf'problem_gauge\{{reason="FaultFound",type="{FIT}"\}} 1', told(metrics))

        # another fault comes to the front: the node has been unfit since the first
        moment, before = since(site, "gpu-a"), said.stat().st_mtime
        (node.root / "sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count").write_text("7\n")
        until("two more looks", lambda: said.stat().st_mtime > before + 4 and said.read_text(), 60)
        assert since(site, "gpu-a") == moment
        (node.root / "sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count").write_text("0\n")

        # what our own reader makes of it
        document = json.loads(site.core.read_node("gpu-a", _preload_content=False).data)
        (read,) = [one for one in parse_objects([document], file="nodes.json").conditions if one.name == FIT]
        assert read.bad is True

        node.boot()
        until("the mended node", lambda: condition(site, "gpu-a") == GOOD, 60)
        assert since(site, "gpu-a") > moment

        # without a kernel log nobody knows of its Xids
        (node.root / "bin/journalctl").unlink()
        until("the unknown", lambda: (condition(site, "gpu-a") or GOOD)[0] == "Unknown", 60)
        status, reason, message = condition(site, "gpu-a") or GOOD
        assert (status, reason) == ("Unknown", GOOD[1])  # node-problem-detector has one reason for both
        assert message != GOOD[2]
        assert message == until("what was said", lambda: said.read_text().strip())
        assert "kernel log" in message


def test_what_each_end_of_a_plugin_becomes(
    site: Site, start: Start, shipped: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The table of docs/health.md, by the real thing: only 0 is good, only 1 is bad, and all else is not known."""
    ends = {
        "0": ("echo fine; exit 0", GOOD),
        "1": ("echo broken; exit 1", ("True", "FaultFound", "broken")),
        "2": ("echo 'nobody knows'; exit 2", ("Unknown", "NoFaultFound", "nobody knows")),
        "3": ("echo 'nobody knows'; exit 3", ("Unknown", "NoFaultFound", "nobody knows")),
        "70": ("echo 'a line'; echo 'an error' >&2; exit 70", ("Unknown", "NoFaultFound", "a line")),
        "killed": ("echo half; kill -9 $$", ("Unknown", "NoFaultFound", "half")),
        "hang": (
            f"echo so far; echo $$ > '{tmp_path}/hung'; sleep 600",
            ("Unknown", "NoFaultFound", "Timeout when running plugin"),
        ),
        "long": (f"echo {'ü' * 100}; exit 1", ("True", "FaultFound", "ü" * 40)),
        "silent": (
            f"[ -e '{tmp_path}/said' ] && exit 78; touch '{tmp_path}/said'; echo broken; exit 1",
            ("Unknown", "NoFaultFound", "broken"),  # what it said before stays: an empty message is no message to the API server
        ),
    }
    base = shipped("npd", tmp_path, timeout="2s")
    (rule,), (default,) = base["rules"], base["conditions"]
    names = {end: f"Ends{at}" for at, end in enumerate(ends)}
    base["conditions"] = [{**default, "type": name} for name in names.values()]
    base["rules"] = [
        {**rule, "condition": names[end], "path": str(script(tmp_path / f"plugin-{at}", text))}
        for at, (end, (text, _)) in enumerate(ends.items())
    ]
    with start("gpu-b", base):
        for end, (_, (status, reason, message)) in ends.items():
            # the conditions are written together: the first one that comes still has what it was born with
            until(
                f"the end {end}", lambda end=end, status=status: (condition(site, "gpu-b", names[end]) or ("",))[0] == status, 60
            )
            found = condition(site, "gpu-b", names[end])
            assert found is not None
            assert found[:2] == (status, reason), end
            assert found[2].startswith(message) if end == "hang" else found[2] == message, (end, found)
        hung = (tmp_path / "hung").read_text().strip()
        until(
            "the end of what hung", lambda: not Path(f"/proc/{hung}").exists() or (tmp_path / "hung").read_text().strip() != hung
        )


def test_warnings_are_events_and_no_condition(
    site: Site, start: Start, shipped: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "node").mkdir()
    node = PlayedNode(tmp_path / "node")
    program = installed(node, tmp_path / "workbench")
    (tmp_path / "go").touch()
    (node.root / "sys/class/infiniband/mlx5_0/ports/1/rate").write_text("100 Gb/sec (2X HDR)\n")
    (node.root / "sys/devices/system/edac/mc/mc0/dimm0/dimm_ce_count").write_text("70000\n")
    with start("gpu-c", shipped("npd", program), shipped("npd-warnings", program)):
        until("the events", lambda: events(site, "gpu-c"), 60)
        until("the condition", lambda: condition(site, "gpu-c"), 60)
        assert condition(site, "gpu-c") == GOOD
        found = events(site, "gpu-c")
        assert {(one.type, one.reason) for one in found} == {("Warning", "WorkbenchWarning")}
        assert all(len(one.message.encode()) <= 80 for one in found)
        assert any(one.message.startswith("host-memory [mc0/dimm0]: 35000 corrected errors a day") for one in found)
        until("the count", lambda: any(one.count > 1 for one in events(site, "gpu-c")), 60)


def test_a_monitor_that_starts_anew_does_not_clear_a_sick_node(
    site: Site, start: Start, shipped: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    slow = script(tmp_path / "slow", f"[ ! -e '{tmp_path}/once' ] || sleep 600; touch '{tmp_path}/once'; echo broken; exit 1")
    wanted = ("True", "FaultFound", "broken")
    with start("gpu-d", shipped("npd", slow)):
        until("the fault", lambda: condition(site, "gpu-d") == wanted, 60)
    with start("gpu-d", shipped("npd", slow)) as metrics:
        until("the monitor", lambda: "problem_gauge" in told(metrics))
        with pytest.raises(AssertionError, match="did not come"):
            until("another condition", lambda: condition(site, "gpu-d") != wanted, 5)
