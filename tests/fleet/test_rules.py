"""Rules for Prometheus: their shape, what is left out, and what the real promtool says of them and of the alerts they give."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fleet.account_frames import frame
from workbench.fleet.budgets import DEFAULTS, Objective
from workbench.fleet.exporter import PREFIX, fleet_metrics
from workbench.fleet.rules import ALERT, INDICATORS, queries, rules, rules_yaml

STRICT = (Objective("infra-job-success", "infra-job-success", 0.99), Objective("availability", "availability", 0.99))
NOW = 1_777_000_000.0


def test_every_objective_has_ratios_of_its_windows_a_target_what_is_left_and_alerts() -> None:
    file, left_out = rules(STRICT)
    assert left_out == []
    (jobs, nodes) = file["groups"]
    records = [one["record"] for one in jobs["rules"] if "record" in one]
    assert records == [
        *(f"workbench_fleet:error_ratio:rate{name}" for name in ("5m", "30m", "1h", "2h", "6h", "1d", "3d")),
        "workbench_fleet:objective:target",
        "workbench_fleet:error_budget:left",
    ]
    alerts = [one for one in jobs["rules"] if "alert" in one]
    assert [(one["labels"]["window"], one["labels"]["severity"]) for one in alerts] == [
        ("1h", "page"),
        ("6h", "page"),
        ("1d", "ticket"),
        ("3d", "ticket"),
    ]
    assert '{objective="infra-job-success"} > 0.144 and' in alerts[0]["expr"]
    assert all("increase(" in one["expr"] for one in alerts)
    assert not any("increase(" in one["expr"] for one in nodes["rules"])  # node-seconds are no events


def test_what_can_never_fire_and_what_is_not_ours_is_left_out_and_said() -> None:
    loose, foreign = Objective("loose", "job-success", 0.9), Objective("web", "", 0.9)
    hostile = Objective('x"} or vector(1) #', "job-success", 0.99)
    file, left_out = rules([loose, foreign, hostile])
    assert [group["name"] for group in file["groups"]] == ["workbench-fleet-loose"]
    windows = [one["labels"]["window"] for one in file["groups"][0]["rules"] if "alert" in one]
    assert windows == ["6h", "1d", "3d"]
    assert left_out[0] == "loose: no alert over 1h: with 0.1 allowed, all bad is a burn of 10, never above 14.4"
    assert left_out[1].startswith("web: its indicator is not one of")
    assert "no name for a rule" in left_out[2]
    text = rules_yaml([loose, foreign, hostile])
    assert text.count("# left out:") == 3
    assert yaml.safe_load(text) == file


def test_matchers_are_added_to_every_selector() -> None:
    for name in INDICATORS:
        bad, everything = queries(name, 'cluster="a"')
        assert 'cluster="a"' in bad
        assert 'cluster="a"' in everything
    assert queries("job-start")[1] == "workbench_fleet_job_starts_total"


def jobs_frame() -> Any:
    base = {"submitted": NOW - 100, "started": NOW - 90, "source": "run", "ended": NOW - 10}
    return frame(
        "jobs",
        [
            {"job": "1", "state": "completed", "first_step": NOW - 80, **base},
            {"job": "2", "state": "failed", "cause": "hardware", **base},
            {"job": "3", "state": "failed", **base},
            {"job": "4", "state": "running", **base, "ended": None},
        ],
    )


def test_metrics_have_every_combination_from_the_beginning_so_that_a_first_failure_is_an_increase() -> None:
    states = frame(
        "node_states",
        [
            {"node": "n1", "begin": NOW - 3600, "state": "usable"},
            {"node": "n2", "begin": NOW - 3600, "end": NOW - 600, "state": "down", "cause": "driver"},
        ],
    )
    page = fleet_metrics(jobs_frame(), states, now=NOW)
    values = dict(re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", page, re.M))
    assert values['workbench_fleet_jobs_ended_total{state="completed",cause=""}'] == "1"
    assert values['workbench_fleet_jobs_ended_total{state="failed",cause="hardware"}'] == "1"
    assert values['workbench_fleet_jobs_ended_total{state="failed",cause="unknown"}'] == "1"
    assert values['workbench_fleet_jobs_ended_total{state="timeout",cause="user"}'] == "0"
    assert values['workbench_fleet_job_starts_total{outcome="not-reached"}'] == "2"
    assert values['workbench_fleet_node_seconds_total{state="usable",cause=""}'] == "3600"
    assert values['workbench_fleet_node_seconds_total{state="down",cause="driver"}'] == "3000"
    assert values["workbench_fleet_jobs_open"] == "1"
    empty = fleet_metrics(frame("jobs", []), frame("node_states", []), now=NOW)
    assert empty.count('jobs_ended_total{state="failed"') == 5


def test_rules_ask_only_for_metrics_and_labels_that_are_exported() -> None:
    page = fleet_metrics(jobs_frame(), frame("node_states", []), now=NOW)
    text = rules_yaml([*STRICT, *DEFAULTS])
    for name in set(re.findall(rf"{PREFIX}\w+", text)):
        assert f"# TYPE {name} counter" in page
    for key, value in re.findall(r'(state|cause|outcome)=~?"([^"]*)"', text):
        for one in value.split("|"):
            assert f'{key}="{one}"' in page


def promtool(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    assert tool is not None, "tests/services/prometheus/start installs promtool"
    return subprocess.run([tool, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def series(state: str, cause: str, values: str) -> dict[str, str]:
    return {"series": f'workbench_fleet_jobs_ended_total{{state="{state}",cause="{cause}",instance="a"}}', "values": values}


def alert_test(inputs: list[dict[str, str]], at: str, expected: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Alerts that stand at a moment, as (objective, window, severity); what they say is compared as well."""
    by_key = {
        (one["labels"]["objective"], one["labels"]["window"]): one
        for group in rules(STRICT)[0]["groups"]
        for one in group["rules"]
        if "alert" in one
    }
    wanted = []
    for objective, window, severity in expected:
        one = by_key[objective, window]
        assert one["labels"]["severity"] == severity
        told = {
            **one["annotations"],
            "description": one["annotations"]["description"].replace("{{ $value | humanizePercentage }}", "50%"),
        }
        wanted.append({"exp_labels": dict(one["labels"]), "exp_annotations": told})
    return {
        "interval": "1m",
        "input_series": inputs,
        "alert_rule_test": [{"eval_time": at, "alertname": ALERT, "exp_alerts": wanted}],
    }


@pytest.mark.live
def test_the_real_promtool_takes_the_rules_and_their_alerts_fire_when_they_should_and_not_else(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules_yaml(STRICT))
    (tmp_path / "defaults.yml").write_text(rules_yaml(DEFAULTS))
    for name in ("rules.yml", "defaults.yml"):
        checked = promtool("check", "rules", name, folder=tmp_path)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "SUCCESS" in checked.stdout
    every = [("infra-job-success", "1h", "page"), ("infra-job-success", "6h", "page")]
    every += [("infra-job-success", "1d", "ticket"), ("infra-job-success", "3d", "ticket")]
    tests = [
        # half of all jobs fail by hardware, one a minute: all windows see it
        alert_test([series("completed", "", "0+1x120"), series("failed", "hardware", "0+1x120")], "2h", every),
        # as many fail by their users: no alert of infrastructure
        alert_test(
            [series("completed", "", "0+1x120"), series("failed", "user", "0+1x120"), series("failed", "hardware", "0x120")],
            "2h",
            [],
        ),
        # two jobs of two: too few
        alert_test([series("completed", "", "0x120"), series("failed", "hardware", "0x115 1 2x4")], "2h", []),
        # nothing ended: absent, not well and not ill
        alert_test([series("completed", "", "7x120"), series("failed", "hardware", "7x120")], "2h", []),
        # it was over an hour ago: neither the 5 nor the 30 minutes see it, the tickets' short windows still do
        alert_test(
            [series("completed", "", "0+1x60 60x60"), series("failed", "hardware", "0+1x60 60x60")],
            "2h",
            [("infra-job-success", "1d", "ticket"), ("infra-job-success", "3d", "ticket")],
        ),
    ]
    down = {"series": 'workbench_fleet_node_seconds_total{state="down",cause="hardware"}', "values": "0+60x120"}
    up = {"series": 'workbench_fleet_node_seconds_total{state="usable",cause=""}', "values": "0+60x120"}
    plan = {"series": 'workbench_fleet_node_seconds_total{state="maintenance",cause="platform"}', "values": "0+600x120"}
    tests.append(
        alert_test(
            [down, up, plan],
            "2h",
            [("availability", name, how) for name, how in (("1h", "page"), ("6h", "page"), ("1d", "ticket"), ("3d", "ticket"))],
        )
    )
    tests.append(alert_test([{**down, "values": "0x120"}, up, plan], "2h", []))
    tests[0]["promql_expr_test"] = [
        {
            "expr": 'workbench_fleet:error_budget:left{objective="infra-job-success"}',
            "eval_time": "2h",
            "exp_samples": [{"labels": 'workbench_fleet:error_budget:left{objective="infra-job-success"}', "value": -49}],
        }
    ]
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}, sort_keys=False)
    )
    done = promtool("test", "rules", "tests.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # the same files, and an expectation that is wrong: the tool does compare
    wrong = alert_test([series("completed", "", "0+1x120"), series("failed", "hardware", "0+1x120")], "2h", [])
    (tmp_path / "wrong.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [wrong]})
    )
    assert promtool("test", "rules", "wrong.yml", folder=tmp_path).returncode != 0


@pytest.mark.live
def test_the_real_promtool_takes_the_metrics(tmp_path: Path) -> None:
    page = fleet_metrics(jobs_frame(), frame("node_states", []), now=NOW)
    tool = shutil.which("promtool")
    assert tool is not None
    checked = subprocess.run([tool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60, check=False)
    # what it says against them is that they have no help text, as none of our own pages has
    assert [line for line in (checked.stdout + checked.stderr).splitlines() if "no help text" not in line] == []
