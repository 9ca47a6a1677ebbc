"""A site's own checks: executables that speak Nagios or node-problem-detector, and packages by entry point; a broken one is a finding."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.health.host_tree import Host
from workbench.errors import ConfigError
from workbench.health import Finding, checks, fitness, registry, run
from workbench.sources.node.world import READERS


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.path("/etc/workbench/checks").mkdir(parents=True)
    host.settings["checks_folder"] = ("/etc/workbench/checks",)
    return host


def plugin(host: Host, name: str, body: str, header: str = "", mode: int = 0o755) -> Path:
    path = host.file(f"/etc/workbench/checks/{name}", f"#!/bin/sh\n{header}{body}\n")
    path.chmod(mode)
    return path


def only(host: Host, id: str, context: str = "allocation") -> Finding:
    (found,) = host.run(id, context)
    return found


@pytest.mark.parametrize(
    ("code", "status", "finding"), [(0, "ok", ""), (1, "warning", "site-warning"), (2, "critical", "site-critical"), (3, "unknown", "site-unknown"),
                                    (4, "unknown", "site-unknown"), (77, "unknown", "site-unknown"), (255, "unknown", "site-unknown")]
)  # fmt: skip
def test_a_nagios_plugin_works_unchanged(host: Host, code: int, status: str, finding: str) -> None:
    plugin(host, "check_disk.sh", f"echo 'DISK OK - free space: / 3326 MB (56%) | /=2643MB;5948;5958;0;5968'; exit {code}")
    found = only(host, "check_disk")
    assert (found.status, found.code, found.summary) == (status, finding, "DISK OK - free space: / 3326 MB (56%)")
    assert "/=2643MB;5948;5958;0;5968" in found.evidence
    assert found.path == "/etc/workbench/checks/check_disk.sh"
    assert found.required


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("exit 0", "ok"),
        ("echo 'ntp is not running'; exit 1", "critical"),
        ("echo what; exit 2", "unknown"),
        ("exit 1", "unknown"),
    ],
)
def test_a_plugin_of_node_problem_detector_works_unchanged(host: Host, body: str, status: str) -> None:
    plugin(host, "ntp", body, "# protocol: npd\n")
    assert only(host, "ntp").status == status


def test_what_the_header_says_counts(host: Host) -> None:
    header = "# contexts: idle, running\n#required:no\n# class: hardware/network-link\n# action: reboot-node\n# timeout: 1m\n"
    plugin(host, "switch", "echo 'port 3 is gone'; exit 2", header)
    found = only(host, "switch", "running")
    assert (found.cls, found.action, found.required) == ("hardware/network-link", "reboot-node", False)
    assert "switch" not in {each.check for each in run("allocation", world=host.world())}


@pytest.mark.parametrize(
    "header", ["contexts: sometimes", "required: perhaps", "class: hardware/mouse", "action: pray", "timeout: 0s", "timeout: 9h", "timeout: x", "protocol: snmp"]
)  # fmt: skip
def test_a_header_that_cannot_be_is_said_and_nothing_is_run(host: Host, header: str) -> None:
    ran = host.path("/ran")
    plugin(host, "mine", f"touch {ran}; echo ok", f"# {header}\n")
    found = only(host, "mine")
    assert (found.status, found.code) == ("unknown", "check-failed")
    assert header.partition(": ")[2] in found.summary
    assert not ran.exists()


@pytest.mark.parametrize(
    "body",
    ["exit 0", "exit 2", "printf '\\377\\376\\001'", "printf '\\001\\002'", "kill -9 $$", "echo out >&2",
     "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"],
)  # fmt: skip
def test_silence_and_garbage_are_never_ok(host: Host, body: str) -> None:
    plugin(host, "mine", body)
    assert only(host, "mine").status == "unknown"


def test_one_that_hangs_is_killed_with_its_children(host: Host) -> None:
    mark = host.path("/mark")
    plugin(host, "mine", f"(sleep 4; echo alive > {mark}) & sleep 100", "# timeout: 1s\n")
    begun = time.monotonic()
    found = only(host, "mine")
    assert found.status == "unknown"
    assert time.monotonic() - begun < 30
    time.sleep(4.5)
    assert not mark.exists()


def test_what_cannot_be_run_is_a_finding(host: Host, tmp_path: Path) -> None:
    plugin(host, "forgotten.sh", "echo ok", mode=0o644)
    plugin(host, "anybody", "echo ok", mode=0o757)
    plugin(host, "driver.sh", "echo 'all is well'")  # would take the place of one of ours
    host.file("/etc/workbench/checks/no-interpreter", "#!/no/such/thing\n").chmod(0o755)
    host.file("/etc/workbench/checks/empty", "").chmod(0o755)
    (host.path("/etc/workbench/checks") / "gone").symlink_to("/nowhere")
    for name in ("README.md", "old.bak", ".hidden", "mine~", "settings.toml"):
        host.file(f"/etc/workbench/checks/{name}", "")
    found = {each.check: each for each in run("allocation", world=host.world()) if each.check not in checks()}
    assert set(found) == {"forgotten", "anybody", "driver-of-the-site", "no-interpreter", "empty", "gone"}
    assert {each.status for each in found.values()} == {"unknown"}
    assert "chmod +x" in found["forgotten"].summary
    assert "written by everybody" in found["anybody"].summary


def test_a_folder_that_is_not_there_is_a_finding(host: Host) -> None:
    host.settings["checks_folder"] = ("/etc/workbench/checks", "/nowhere")
    found = only(host, "checks-folder")
    assert found.status == "unknown"
    assert "/nowhere" in found.summary


def test_the_site_can_make_one_optional_and_names_are_known(host: Host) -> None:
    plugin(host, "mine", "echo no; exit 2")
    host.settings["optional"] = ("mine",)
    assert fitness(host.run("mine")) == "warning"
    with pytest.raises(ConfigError, match="no check 'other'"):
        host.run("other")


def test_one_for_idle_alone_is_run_alone(host: Host) -> None:
    log = host.path("/log")
    for name in "ab":
        plugin(host, name, f"echo begin >> {log}; sleep 1; echo end >> {log}; echo ok", "# contexts: idle\n")
    world = host.world()
    run("idle", only=["a", "b"], world=world)
    assert log.read_text().split() == ["begin", "end", "begin", "end"]
    (found,) = run("running", only=["a"], world=host.world())
    assert found.status == "unknown"


# ---- entry points


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that entry points name; what they register is forgotten after the test."""
    checks()
    before, readers = dict(registry._CHECKS), dict(READERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)
    yield tmp_path
    registry._CHECKS.clear()
    registry._CHECKS.update(before)
    READERS.clear()
    READERS.update(readers)
    registry._theirs.cache_clear()
    for name in set(sys.modules) - modules:
        if name.startswith("site_"):
            del sys.modules[name]


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    points = [EntryPoint(name.removeprefix("site_"), name, registry.GROUP) for name in modules]
    monkeypatch.setattr(registry, "entry_points", lambda group: [point for point in points if point.group == group])
    registry._theirs.cache_clear()


GOOD = """
from workbench.health import check
from workbench.sources.node.world import Way, reader
reader("licence", "what the licence server says", seconds=5.0, ways=(Way("a file", lambda world, deadline: world.text("/licence")),))
@check("our-licence", "the licence server answers", needs=("licence",), contexts=("allocation",), cls="platform/config")
def judge(seen):
    yield seen.ok(seen.value("licence").strip())
"""


def test_a_package_brings_a_check_and_its_reading(host: Host, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, packages, site_good=GOOD)
    assert checks()["our-licence"].origin == "entry point good (site_good)"
    assert only(host, "our-licence").status == "unknown"
    host.file("/licence", "12 seats\n")
    found = only(host, "our-licence")
    assert (found.status, found.summary, found.path) == ("ok", "12 seats", "a file")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("this is no python", "SyntaxError"),
        ("x = 1", "registered no check"),
        (
            "from workbench.health import check\n@check('driver', 'x', needs=())\ndef j(seen): yield seen.ok('')",
            "a check 'driver' already",
        ),
        (
            "from workbench.health import check\n@check('mine', 'x', needs=(), contexts=('often',))\ndef j(seen): yield seen.ok('')",
            "no context",
        ),
        (
            "from workbench.health import check\n@check('mine', 'x', needs=('nvbandwidth',))\ndef j(seen): yield seen.ok('')",
            "while a job runs",
        ),
        (
            "from workbench.health import check\n@check('mine', 'x', needs=('nvbandwidth',), contexts=('allocation',))\ndef j(seen): yield seen.ok('')",
            "before a job",
        ),
    ],
)
def test_a_broken_package_is_a_finding_and_costs_no_other_check(
    host: Host, packages: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    install(monkeypatch, packages, site_bad=text, site_good=GOOD)
    known = checks()
    assert {"our-licence", "entry-point-bad"} <= set(known)
    assert known["driver"].origin == "workbench"
    assert "mine" not in known
    found = only(host, "entry-point-bad")
    assert (found.status, found.code, found.required) == ("unknown", "check-failed", True)
    assert why in found.summary


def test_a_judge_that_fails_costs_only_itself(host: Host, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        packages,
        site_good="from workbench.health import check\n@check('mine', 'x', needs=())\ndef j(seen): yield 1 / 0\n",
    )
    assert only(host, "mine").code == "check-failed"


def test_a_name_in_the_settings_that_no_check_has_is_told(host: Host) -> None:
    """A slip in health.required would leave out what the site asked for, in health.optional it would leave the node unfit."""
    plugin(host, "mine", "echo fine; exit 0")
    host.settings["required"] = ("driverr",)
    host.settings["optional"] = ("mine", "memori")
    found = run("allocation", only=["mine"], world=host.world())
    told = {each.part: each for each in found if each.check == "settings"}
    assert {name: (each.status, each.required) for name, each in told.items()} == {
        "driverr": ("unknown", True),
        "memori": ("unknown", False),
    }
    assert "driver" in told["driverr"].hint
    assert fitness(found) == "unknown"
