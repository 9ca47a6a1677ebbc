"""What a site deploys is shipped, parses, asks for no more than it needs, and does what it says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from workbench.catalog import table
from workbench.cli import main
from workbench.health import Finding
from workbench.health.conditions import FIT
from workbench.parse.kubernetes import parse_objects
from workbench.report.findings import FORMATS


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what `workbench config` prints."""
    assert main(["config", *words]) == 0
    return capsys.readouterr().out


def daemonset(text: str) -> Any:
    """Return the DaemonSet of the manifest."""
    (found,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "DaemonSet"]
    return found


def test_the_writer_may_read_nodes_write_their_status_and_tell_events(capsys: pytest.CaptureFixture[str]) -> None:
    documents = list(yaml.safe_load_all(printed(capsys, "rbac", "--writer")))
    rules = {
        (one["kind"], resource, verb)
        for one in documents
        for rule in one.get("rules") or []
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rules == {
        ("ClusterRole", "nodes", "get"),
        ("ClusterRole", "nodes/status", "patch"),
        ("Role", "events", "get"),
        ("Role", "events", "create"),
        ("Role", "events", "patch"),
    }
    assert "gpu-workbench-reader" not in json.dumps(documents)


def test_only_rbac_has_a_writer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "daemonset", "--writer"]) == 64
    assert "rbac --writer" in capsys.readouterr().err


def test_the_daemonset_is_not_privileged_and_asks_for_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    document = daemonset(printed(capsys, "daemonset"))
    spec = document["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["serviceAccountName"] == "gpu-workbench-writer"
    assert spec["hostPID"] is True
    security = container["securityContext"]
    assert not security.get("privileged")
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert mounts["host"]["readOnly"] is True
    (name,) = [one for one in container["env"] if one["name"] == "NODE_NAME"]
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert spec["terminationGracePeriodSeconds"] >= 20
    # the state is where the command looks for it below --root
    root = container["command"][container["command"].index("--root") + 1]
    assert mounts["state"]["mountPath"] == f"{root}/var/lib/workbench"


def test_its_command_is_one_that_we_have(capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli.entry import parser_for

    words = daemonset(printed(capsys, "daemonset"))["spec"]["template"]["spec"]["containers"][0]["command"]
    options = parser_for(words[1:]).parse_args(words[1:])
    assert (options.watch, options.publish, options.root) == (60.0, ["kubernetes"], "/host")
    for name in ("npd", "npd-warnings"):
        rule = json.loads(printed(capsys, name))["rules"][0]
        options = parser_for(rule["args"]).parse_args(rule["args"])
        assert (options.output, options.context) == (name, "running")


@pytest.mark.parametrize(("name", "kind", "condition"), [("npd", "permanent", [FIT]), ("npd-warnings", "temporary", [])])
def test_the_monitors_fit_node_problem_detector(
    name: str, kind: str, condition: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of pkg/custompluginmonitor/types; a plugin that is cut at its time-out would be Unknown without a finding."""
    document = json.loads(printed(capsys, name))
    assert document["plugin"] == "custom"
    assert set(document["pluginConfig"]) <= {
        "invoke_interval",
        "timeout",
        "max_output_length",
        "concurrency",
        "enable_message_change_based_condition_update",
        "skip_initial_status",
    }
    assert [one["type"] for one in document["conditions"]] == condition
    (rule,) = document["rules"]
    assert (rule["type"], [rule["condition"]] if "condition" in rule else []) == (kind, condition)
    seconds = float(rule["args"][rule["args"].index("--seconds") + 1])
    assert seconds + 5 < float(rule["timeout"].rstrip("s")) <= float(document["pluginConfig"]["timeout"].rstrip("s"))


# ---- node-problem-detector's numbers


@pytest.mark.parametrize(("gpus", "code"), [("0", {0}), ("4096", {1, 2}), ("", {0, 1, 2})])
def test_exit_codes_of_the_plugin_are_node_problem_detectors(
    gpus: str, code: set[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKBENCH_HEALTH_GPUS", gpus)
    assert main(["check", "gpu-count", "-o", "npd"]) in code
    out = capsys.readouterr().out
    assert len(out.strip().encode()) <= 80
    assert out.count("\n") == 1


def test_statuses_and_numbers() -> None:
    from workbench.cli.check import code_of

    told = {
        status: tuple(code_of([Finding("c", status, "s")], output) for output in ("npd", "nagios", "npd-warnings"))
        for status in ("not-applicable", "ok", "warning", "critical", "unknown")
    }
    assert told == {
        "not-applicable": (0, 0, 0),
        "ok": (0, 0, 0),
        "warning": (0, 1, 1),
        "critical": (1, 2, 0),
        "unknown": (2, 3, 0),
    }
    assert [code_of([], output) for output in ("npd", "nagios")] == [2, 3]
    assert code_of([Finding("c", "critical", "s", required=False)], "npd-warnings") == 1  # told of, since no condition tells it


def test_a_warning_fits_node_problem_detector_with_the_number_of_others() -> None:
    long = [Finding(f"check-{at}", "warning", "ü" * 90) for at in range(12)]
    assert FORMATS["npd-warnings"]([Finding("b", "critical", "s")], verbose=False) == "no warnings\n"
    for findings in (long, long[:1]):
        line = FORMATS["npd-warnings"](findings, verbose=False)
        assert len(line.rstrip("\n").encode()) in (79, 80)
        assert line.startswith("check-0: ü")
        assert line.endswith("ü… (and 11 more)\n" if len(findings) > 1 else "ü…\n")
    assert FORMATS["npd-warnings"]([Finding("c", "warning", "x" * 77)], verbose=False) == f"c: {'x' * 77}\n"


@pytest.mark.parametrize("output", ["npd", "npd-warnings"])
def test_the_plugin_says_why_it_could_not_check(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A silent plugin is shown with what it said last: `fit` as the message of a condition that is not known."""
    monkeypatch.setenv("WORKBENCH_HEALTH_GPUS", "many")
    assert main(["check", "-o", output]) == 78
    told = capsys.readouterr()
    assert told.out.startswith("workbench: ")
    assert "health.gpus" in told.out
    assert len(told.out.strip().encode()) <= 80
    assert "health.gpus" in told.err
    monkeypatch.setenv("WORKBENCH_HEALTH_GPUS", "8")
    monkeypatch.setattr("workbench.cli.check.look", lambda *_, **__: 1 / 0)
    assert main(["check", "-o", output]) == 70
    assert capsys.readouterr().out.startswith("internal error: ZeroDivisionError")


# ---- Slurm


@pytest.fixture
def hooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script under its four names, a `workbench` that ends as told, and Slurm commands that tell on who calls them."""
    script = tmp_path / "workbench-node"
    script.write_text(printed(capsys, "slurm"))
    script.chmod(0o755)
    for hook in ("health", "prolog", "epilog", "drain"):
        (tmp_path / f"workbench-{hook}").symlink_to(script)
    tools = tmp_path / "bin"
    tools.mkdir()
    texts = {
        "workbench": 'echo "$*" >> "$0.asked"; [ "$SAYS" ] && echo "$SAYS"; exit $ENDS',
        "scontrol": 'echo "scontrol $*" >> "$0.asked"',
        "sinfo": "echo ${STATE:-idle}",
    }
    for name, text in texts.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    return tmp_path


def call(hooks: Path, hook: str, ends: int, says: str = "gpu-7 NOT FIT: GPU 3 is lost", **env: str) -> Any:
    """Run one of the hooks as slurmd does: with next to no environment."""
    return subprocess.run(
        [hooks / f"workbench-{hook}"],
        env={
            "SLURMD_NODENAME": "gpu-7",
            "WORKBENCH_RUN": str(hooks / "run"),
            "WORKBENCH_PATH": str(hooks / "bin"),
            "ENDS": str(ends),
            "SAYS": says,
            **env,
        },
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(("ends", "drains"), [(0, False), (1, False), (2, True), (3, True), (70, True), (127, True)])
@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_a_prolog_drains_what_is_not_fit_and_lets_warnings_pass(hooks: Path, hook: str, ends: int, drains: bool) -> None:
    assert (call(hooks, hook, ends).returncode != 0) == drains
    assert (hooks / "run/unfit").exists() == drains
    assert not (hooks / "bin/scontrol.asked").exists()


def test_each_hook_looks_in_its_own_context_within_its_time(hooks: Path) -> None:
    for hook in ("prolog", "epilog", "health"):
        call(hooks, hook, 0)
    asked = (hooks / "bin/workbench.asked").read_text().splitlines()
    assert [line.split()[2] for line in asked] == ["allocation", "running", "running"]
    assert all("--seconds 40" in line and "--node gpu-7" in line for line in asked)


def test_the_health_program_ends_well_and_leaves_its_reason(hooks: Path) -> None:
    done = call(hooks, "health", 2)
    assert (done.returncode, done.stdout) == (0, "")
    assert (hooks / "run/unfit").read_text() == "gpu-7 NOT FIT: GPU 3 is lost\n"
    assert not (hooks / "bin/scontrol.asked").exists()
    call(hooks, "health", 0)
    assert not (hooks / "run/unfit").exists()


def test_a_check_that_says_nothing_is_not_fit(hooks: Path) -> None:
    assert call(hooks, "prolog", 2, says="").returncode == 1
    assert "said nothing" in (hooks / "run/unfit").read_text()


def test_the_timer_drains_with_the_finding_as_its_reason_once(hooks: Path) -> None:
    call(hooks, "drain", 0)
    assert not (hooks / "bin/scontrol.asked").exists()
    call(hooks, "health", 2)
    call(hooks, "drain", 0, STATE="drained")
    assert not (hooks / "bin/scontrol.asked").exists()
    call(hooks, "drain", 0)
    assert (hooks / "bin/scontrol.asked").read_text() == (
        "scontrol update nodename=gpu-7 state=drain reason=workbench check: gpu-7 NOT FIT: GPU 3 is lost\n"
    )


def test_another_name_is_refused(hooks: Path) -> None:
    done = subprocess.run(
        [hooks / "workbench-node"],
        env={"PATH": os.defpath, "WORKBENCH_RUN": str(hooks / "run")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 64


# ---- who reads what we wrote


def test_every_condition_that_we_publish_is_one_that_we_read() -> None:
    known = {row["name"]: row for row in table("conditions")}
    for name in {FIT, *(row["condition"] for row in table("conditions_published"))}:
        assert known[name]["polarity"] == "True = bad"
        assert known[name]["emitter"] == "GPU Reliability Workbench"


@pytest.mark.parametrize(("minutes", "bad"), [(5, True), (14, True), (16, None), (600, None)])
def test_a_condition_that_nobody_renews_is_stale(minutes: int, bad: bool | None) -> None:
    def one(name: str, status: str, beat: str) -> dict[str, str]:
        return {
            "type": name,
            "status": status,
            "reason": "X",
            "message": "m",
            "lastHeartbeatTime": beat,
            "lastTransitionTime": beat,
        }

    beat = f"2026-03-01T{10 + minutes // 60:02d}:{minutes % 60:02d}:00Z"
    node = {
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"conditions": [one("WorkbenchGpuLost", "True", "2026-03-01T10:00:00Z"), one("Ready", "True", beat)]},
    }
    parsed = parse_objects([node], file="x.json")
    (found,) = [each for each in parsed.conditions if each.name == "WorkbenchGpuLost"]
    (event,) = [each for each in parsed.events if each.data.get("condition") == "WorkbenchGpuLost"]
    assert found.bad is bad
    assert (event.role == "context", "stale" in found.message) == (bad is None, bad is None)
