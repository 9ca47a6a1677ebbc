"""`workbench check` on a machine without a GPU: never fit by accident, and the exit code says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import workbench
from workbench.cli import main
from workbench.health import Finding, checks, fitness, run
from workbench.sources.node.world import World


def _bare(tmp_path: Path, **settings: object) -> World:
    """A tree with an empty PCI bus and an empty PATH."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    return World("gpu-7", tmp_path, {"PATH": str(tmp_path / "bin"), "LD_LIBRARY_PATH": ""}, lambda: 1.8e9, settings)


def _of(findings: list[Finding], check: str) -> list[Finding]:
    return [one for one in findings if one.check == check]


def test_a_node_without_gpus_is_fit_only_when_the_site_says_so(tmp_path: Path) -> None:
    (a, b, c) = (tmp_path / name for name in "abc")
    assert [one.status for one in _of(run(world=_bare(a)), "gpu-count")] == ["unknown"]
    (missing,) = _of(run(world=_bare(b, gpus=8)), "gpu-count")
    assert (missing.status, missing.code, missing.cls) == ("critical", "gpu-missing", "hardware/gpu-lost")
    assert [one.status for one in _of(run(world=_bare(c, gpus=0)), "gpu-count")] == ["not-applicable"]


def test_every_check_says_something(tmp_path: Path) -> None:
    findings = run(world=_bare(tmp_path))
    assert {one.check for one in findings} == {one.id for one in checks().values() if "allocation" in one.contexts}
    assert all(one.summary and one.node == "gpu-7" for one in findings)


def test_an_optional_check_makes_no_node_unfit(tmp_path: Path) -> None:
    findings = run(world=_bare(tmp_path, optional=["gpu-count"]), only=["gpu-count"])
    assert fitness(findings) == "warning"


def test_no_findings_are_no_health() -> None:
    assert fitness([]) == "unknown"


@pytest.mark.parametrize("form", ["table", "json", "nagios", "npd", "prom"])
def test_each_form_and_its_exit_code(form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HEALTH_GPUS", "4096")
    code = main(["check", "gpu-count", "-o", form, "--node", "gpu-7"])
    out = capsys.readouterr().out
    # more GPUs than any machine has; where the bus cannot be read it is not known
    assert code in ((1, 2) if form == "npd" else (2, 3))  # node-problem-detector has numbers of its own
    if form == "json":
        told = json.loads(out)
        assert told["schema"] == "workbench.findings/1"
        assert told["status"] in ("critical", "unknown")
        assert told["context"] == "allocation"
        assert told["time"].endswith("Z")
    else:
        assert "gpu-count" in out or "4096" in out


@pytest.mark.parametrize("form", ["table", "json", "npd"])
def test_a_reader_that_goes_away_does_not_make_the_node_fit(form: str, tmp_path: Path) -> None:
    """`workbench check | head -1` in a script with pipefail."""
    words = [sys.executable, "-m", "workbench", "check", "gpu-count", "-v", "-o", form, "--no-state"]
    env = {**os.environ, "WORKBENCH_HEALTH_GPUS": "4096"}
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            words, stdout=write, stderr=subprocess.PIPE, env=env, timeout=60, cwd=Path(workbench.__file__).parents[1]
        )
    finally:
        os.close(write)
    assert done.returncode in ((1, 2) if form == "npd" else (2, 3))
    assert done.stderr == b""


def test_an_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "gpu-kount"]) == 78
    assert "there is no check 'gpu-kount'" in capsys.readouterr().err


def test_the_list_of_checks_stays_a_function() -> None:
    """The package that holds our checks has its name; loading it must not take its place."""
    code = "import workbench.health as h; h.checks(); h.run(only=['gpu-count']); from workbench.health import checks; assert checks()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(workbench.__file__).parents[1])


_REFUSED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def _smi(world: World, code: int) -> World:
    tool = world.root / "bin/nvidia-smi"
    tool.write_text(f'#!/bin/sh\necho "{_REFUSED}"\nexit {code}\n')
    tool.chmod(0o755)
    (world.root / "bin/sh").symlink_to("/bin/sh")
    return world


@pytest.mark.parametrize(("code", "status"), [(9, "not-applicable"), (12, "not-applicable"), (6, "unknown"), (1, "unknown")])
def test_a_node_without_gpus_may_have_the_drivers_tools(code: int, status: str, tmp_path: Path) -> None:
    """They are in the image of many sites; nvidia-smi says by its exit code that there is no driver to ask."""
    world = _smi(_bare(tmp_path, gpus=0), code)
    findings = run(only=["gpu-count", "gpu-memory", "recovery", "agreement"], world=world)
    assert {one.status for one in findings if one.check != "gpu-count"} == {status}
    assert [one.status for one in findings if one.check == "gpu-count"] == ["not-applicable"]
    assert fitness(findings) == ("not-applicable" if code in (9, 12) else "unknown")


def test_with_a_gpu_on_the_bus_the_same_answer_is_no_absence(tmp_path: Path) -> None:
    world = _smi(_bare(tmp_path, gpus=1), 9)
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (memory,) = run(only=["gpu-memory"], world=world)
    assert memory.status == "unknown"
    assert "ended with 9" in memory.summary
    assert fitness(run(only=["driver", "gpu-count"], world=world)) == "critical"


def _told(node: str, driver: str) -> str:
    finding = {"check": "versions", "status": "ok", "evidence": [f"driver {driver}", "cuda 12.8"]}
    return json.dumps({"schema": "workbench.findings/1", "node": node, "findings": [finding]}, indent=2) + "\n"


def test_the_nodes_of_a_job_are_compared_by_what_each_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{name}.json" for name in ("n1", "n2", "rest")]
    files[0].write_text(_told("n1", "570.133.20"))
    files[1].write_text(_told("n2", "565.57.01"))
    files[2].write_text(_told("n3", "570.133.20") + _told("n4", "570.133.20"))
    assert main(["check", "--compare", *map(str, files)]) == 2
    assert "driver 565.57.01 here, 570.133.20 on 3 of the job's nodes" in capsys.readouterr().out
    assert main(["check", "--compare", str(files[0]), str(files[2])]) == 0
    assert "3 nodes have the same versions" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"findings": 3}', "\0"])
def test_a_node_that_told_nothing_is_not_one_that_agrees(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n1.json").write_text(_told("n1", "570.133.20"))
    (tmp_path / "n2.json").write_text(text)
    assert main(["check", "--compare", str(tmp_path / "n1.json"), str(tmp_path / "n2.json"), str(tmp_path / "n3.json")]) == 3
    out, err = capsys.readouterr()
    assert "are not known" in out
    assert "n2.json" in err
    assert "n3.json: No such file" in err
