"""A site that serves a shipped incident gives the verdict of the incident's folder, with all of its servers and with any of them down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")
pytest.importorskip("prometheus_api_client")
pytest.importorskip("elasticsearch")

import workbench
import workbench.testing
from workbench.live import examine, load_job, scope_for
from workbench.report.verdict_json import to_json
from workbench.shipped import example_path, examples
from workbench.testing import Site


def verdict(here: Site) -> dict[str, Any]:
    scope = scope_for(here.job, here.config, since=here.since, until=here.until)
    return to_json(load_job(scope, here.config).triage())


def same(live: dict[str, Any], folder: dict[str, Any]) -> None:
    for key in ("cause", "class", "retry", "remediation"):
        assert live[key] == folder[key], key
    assert (live["culprit"]["node"], live["culprit"]["at_fault"]) == (folder["culprit"]["node"], folder["culprit"]["at_fault"])
    assert {row["rank"] for row in live["victims"]} == {row["rank"] for row in folder["victims"]}


@pytest.mark.parametrize("name", list(examples()))
def test_the_site_gives_the_verdict_of_the_folder(name: str) -> None:
    folder = to_json(workbench.load(example_path(name)).triage())
    with workbench.testing.site(example_path(name)) as here:
        same(verdict(here), folder)
        assert here.elasticsearch is not None
        assert here.elasticsearch.open == {}  # no point in time is left
    assert all(server.requests for server in here.servers.values())


def test_the_command_line_works_with_its_environment() -> None:
    """As in the documentation: nothing but the environment says where the servers are."""
    with workbench.testing.site(example_path("preempted")) as here:
        done = subprocess.run(
            [sys.executable, "-m", "workbench", "triage", *here.words, "-o", "json"],
            env=os.environ | here.environ, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
    told = json.loads(done.stdout)
    assert (told["class"], told["culprit"]["node"]) == ("platform/preemption", "g1152")
    assert {row["source"] for row in told["coverage"] if row["status"] == "ok"} >= {"slurm", "job", "kernel"}


@pytest.mark.parametrize("name", ["prometheus", "kubernetes", "elasticsearch"])
def test_a_server_that_fails_is_named(name: str) -> None:
    with workbench.testing.site(example_path("nvlink-switch")) as here:
        here.servers[name].fault = "401"
        told = verdict(here)
    word = {"prometheus": "metrics", "kubernetes": "kubernetes", "elasticsearch": "job"}[name]
    assert "failed" in {row["status"] for row in told["coverage"] if row["source"] == word}
    assert told["culprit"]["node"] in ("dgx-46", None)


def test_doctor_sees_the_servers_of_the_site() -> None:
    with workbench.testing.site(example_path("hang-data-loader")) as here:
        rows = examine(here.config)
    assert {(row.source, row.status) for row in rows if row.item in ("version", "reachable")} == {
        ("prometheus", "ok"),
        ("elasticsearch", "ok"),
        ("slurm", "ok"),
    }


def test_what_a_folder_has_nothing_of_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("2026-05-04 11:02:03 step 1\n2026-05-04 11:02:04 ValueError: no tokens\n")
    with workbench.testing.site(tmp_path, job="tiny") as here:
        assert set(here.servers) == {"elasticsearch"}
        assert (here.environ["KUBECONFIG"], here.environ["PROMETHEUS_URL"]) == ("", "")
        assert verdict(here)["class"] == "user/exception"


def test_importing_it_loads_no_server() -> None:
    """What is asked for is what is imported."""
    code = "import workbench.testing, sys; print(sorted(name for name in sys.modules if name.startswith('workbench.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['workbench.testing']"
