"""Services: those that the site names, those that are enabled here, and what a node without systemd can still tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.catalog.node_units import node_units
from workbench.health import fitness
from workbench.parse.units import parse_units

_OFF = {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "UnitFileState": "", "NRestarts": "0"}
_ON = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "Type": "simple", "Result": "success",
       "NRestarts": "0", "ExecMainStatus": "0", "ActiveEnterTimestampMonotonic": "42000000"}  # fmt: skip
_FAILED = {
    **_ON,
    "ActiveState": "failed",
    "SubState": "failed",
    "Result": "exit-code",
    "ExecMainStatus": "1",
    "ActiveEnterTimestampMonotonic": "0",
}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.path("/run/systemd/system").mkdir(parents=True)
    return host


def systemctl(host: Host, units: dict[str, dict[str, str]], *, first: tuple[str, ...] = ()) -> str:
    """What `systemctl show` answers: first the units that the site named, then those of the table."""
    blocks = []
    for name in dict.fromkeys((*first, *node_units())):
        told = {"Id": f"{name}.service", **units.get(name, _OFF)}
        blocks.append("".join(f"{key}={value}\n" for key, value in told.items()))
    text = "\n".join(blocks)
    host.tool("systemctl", text)
    return text


def test_a_node_without_any_of_them_needs_none(host: Host) -> None:
    systemctl(host, {})
    assert codes(host.run("services")) == {("", "not-applicable")}


def test_what_is_enabled_and_does_not_run_is_a_warning(host: Host) -> None:
    systemctl(
        host, {"containerd": _ON, "nvidia-dcgm": _FAILED, "docker": {**_OFF, "LoadState": "loaded", "UnitFileState": "disabled"}}
    )
    findings = host.run("services")
    assert codes(findings) == {("containerd", "ok"), ("nvidia-dcgm", "unit-down")}
    assert fitness(findings) == "warning"
    assert "exit code 1" in findings[0].summary


def test_what_the_site_names_must_run(host: Host) -> None:
    systemctl(host, {"slurmd": _FAILED, "lustre-client": _ON}, first=("slurmd", "lustre-client", "weka"))
    findings = host.run("services", units=["slurmd.service", "lustre-client", "weka"])
    assert codes(findings) == {("slurmd", "unit-wanted-down"), ("lustre-client", "ok"), ("weka", "unit-wanted-down")}
    assert fitness(findings) == "critical"


def test_one_that_comes_and_goes(host: Host) -> None:
    minute_ago = str((2592000 - 60) * 1_000_000)
    systemctl(
        host,
        {
            "kubelet": {**_ON, "NRestarts": "7", "ActiveEnterTimestampMonotonic": minute_ago},
            "containerd": {**_ON, "NRestarts": "900"},
        },
    )
    assert codes(host.run("services")) == {("kubelet", "unit-restarts"), ("containerd", "ok")}


def test_one_that_runs_once_and_ended_well_runs(host: Host) -> None:
    once = {**_ON, "Type": "oneshot", "ActiveState": "inactive", "SubState": "dead"}
    systemctl(host, {"setup-nics": once}, first=("setup-nics",))
    assert codes(host.run("services", units=["setup-nics"])) == {("setup-nics", "ok")}


@pytest.mark.parametrize("script", ["exit 1", "exit 0", "echo garbage", "sleep 60", "echo 'Id=slurmd.service'"])
def test_a_broken_systemctl_says_nothing_of_what_the_site_wants(host: Host, script: str) -> None:
    host.tool("systemctl", script=script)
    assert fitness(host.run("services", units=["slurmd"])) == "unknown"


def test_without_systemd_the_processes_are_looked_through(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert codes(host.run("services")) == {("", "not-applicable")}
    host.file("/proc/812/stat", "812 (slurmd) S 1 812 812 0 -1 4194560 1 2 3 4 5\n")
    findings = host.run("services", units=["slurmd", "munge"])
    assert codes(findings) == {("slurmd", "ok"), ("munge", "unit-wanted-down")}
    assert findings[0].path == "process list"


def test_an_option_is_no_unit(host: Host) -> None:
    systemctl(host, {}, first=("-Hroot@elsewhere",))
    assert fitness(host.run("services", units=["--host=root@elsewhere"])) == "unknown"


def test_an_alias_answers_under_its_own_name() -> None:
    text = "Id=cri-o.service\nLoadState=loaded\nActiveState=active\n\nId=b.service\nLoadState=not-found\nActiveState=inactive\n"
    assert parse_units(text, ("crio", "b"))["crio"].runs
    assert not parse_units(text[:40], ("crio", "b"))
