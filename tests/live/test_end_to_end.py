"""A shipped incident, put into a real kube-apiserver, Prometheus and Elasticsearch: the site gives, on the command line and in notebooks, the verdict of the folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

import workbench
from tests.conftest import ROOT
from tests.lab.executed import said
from tests.live.restored import Site, into_kubernetes, same, text_of
from tests.live.servers import SERVICES, free_port, run, stop
from workbench.report.verdict_json import to_json

pytestmark = pytest.mark.live

EXAMPLE, JOB = "nvlink-switch", "whisper-ft-large"
WINDOW = ("--since", "2025-08-05T00:00Z", "--until", "2025-08-05T21:00Z")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, archive: dict[str, str], held: dict[str, Path]) -> Iterator[Site]:
    """A control plane with the objects of the incident, beside the servers that hold its metrics and logs."""
    kubernetes = tmp_path_factory.mktemp("kubernetes")
    try:
        run(SERVICES / "kubernetes" / "start", kubernetes, "--controllers", "none")
        port = int((kubernetes / "port").read_text(encoding="utf-8"))
        assert into_kubernetes(f"http://127.0.0.1:{port + 1}", held[EXAMPLE]) >= 12
        yield Site(
            {
                **archive,
                "KUBECONFIG": str(kubernetes / "admin.kubeconfig"),
                "WORKBENCH_ELASTICSEARCH_INDEX": f"filebeat-{EXAMPLE}",
                "WORKBENCH_SLURM_ENABLED": "false",
            },
            held,
        )
    finally:
        stop(SERVICES / "kubernetes" / "stop", kubernetes)


def test_the_site_gives_the_verdict_of_the_folder(site: Site, tmp_path: Path) -> None:
    kept = tmp_path / "kept.tar.zst"
    done = site.workbench("triage", "--job", JOB, *WINDOW, "-o", "json", "--keep", str(kept))
    assert done.returncode in (0, 3), done.stderr
    live, folder = json.loads(done.stdout), to_json(workbench.load(site.folders[EXAMPLE]).triage())
    same(live, folder)
    same(to_json(workbench.load(kept).triage()), live)


@pytest.mark.parametrize("kin", ["victoria", "thanos"])
def test_the_verdict_is_the_same_where_another_server_holds_the_metrics(
    site: Site, start_victoria: Callable[..., str], histories: list[Path], tmp_path: Path, kin: str
) -> None:
    """VictoriaMetrics instead of Prometheus; Thanos in front of it."""
    try:
        if kin == "victoria":
            url = start_victoria(*histories)
        else:
            port = free_port(1, 2, 3)
            run(
                SERVICES / "prometheus" / "start-thanos",
                "--dir",
                tmp_path / "thanos",
                "--port",
                port,
                site.environ["PROMETHEUS_URL"],
            )
            url = f"http://127.0.0.1:{port}"
        done = site.workbench("triage", "--job", JOB, *WINDOW, "-o", "json", "--keep", str(tmp_path / kin), PROMETHEUS_URL=url)
    finally:
        stop(SERVICES / "prometheus" / "stop", "--dir", tmp_path / "thanos")
    assert done.returncode in (0, 3), done.stderr
    live = json.loads(done.stdout)
    same(live, to_json(workbench.load(site.folders[EXAMPLE]).triage()))
    assert "failed" not in {row["status"] for row in live["coverage"] if row["source"] == "metrics"}, live["coverage"]
    assert site.workbench("collect", "--job", JOB, *WINDOW, "-o", str(tmp_path / "prometheus")).returncode in (0, 3)
    mine, theirs = samples(tmp_path / "prometheus"), samples(tmp_path / kin)
    assert len(mine) > 100
    assert mine == theirs


def samples(root: Path) -> dict[tuple[object, ...], tuple[list[float], list[float]]]:
    """The metrics of a collection: which series → times, values; Thanos adds the server's own label, which the others keep to themselves."""
    return {
        (one.field, *sorted(item for item in one.labels.items() if item[0] != "cluster")): (
            one.times.tolist(),
            one.values.tolist(),
        )
        for one in workbench.load(root).series
    }


def test_collect_then_triage(site: Site, tmp_path: Path) -> None:
    out = tmp_path / "incident.tar.zst"
    done = site.workbench("collect", "--job", JOB, *WINDOW, "-o", str(out))
    assert done.stdout.strip() == str(out), done.stderr
    same(to_json(workbench.load(out).triage()), to_json(workbench.load(site.folders[EXAMPLE]).triage()))


@pytest.mark.parametrize("missing", ["PROMETHEUS_URL", "ELASTICSEARCH_URL", "KUBECONFIG"])
def test_each_source_may_be_down(site: Site, missing: str, tmp_path: Path) -> None:
    """Whatever is down is named; none of it makes another node guilty."""
    down = f"http://127.0.0.1:{free_port()}"
    if missing == "KUBECONFIG":
        config = tmp_path / "kubeconfig"
        config.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{down}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n",
            encoding="utf-8",
        )
        value = str(config)
    else:
        value = down
    done = site.workbench("triage", "--job", JOB, *WINDOW, "-o", "json", "--deadline", "20s", **{missing: value})
    verdict = json.loads(done.stdout)
    word = {"PROMETHEUS_URL": "metrics", "ELASTICSEARCH_URL": "job", "KUBECONFIG": "kubernetes"}[missing]
    assert "failed" in {row["status"] for row in verdict["coverage"] if row["source"] == word}, done.stderr
    assert verdict["culprit"]["node"] in ("dgx-46", None)
    assert done.returncode == 3


def test_doctor_sees_the_three(site: Site) -> None:
    """All answer; of the GPUs nothing was scraped for a year, which is told first."""
    done = site.workbench("doctor", "-o", "json")
    rows = json.loads(done.stdout)
    critical = {(row["source"], row["item"]) for row in rows if row["status"] == "critical"}
    assert {"kubernetes", "prometheus", "elasticsearch"} <= {row["source"] for row in rows}
    assert ("prometheus", "data age") in critical
    assert {source for source, _ in critical} <= {"prometheus", "elasticsearch"}, done.stdout
    assert done.returncode == 69


class TestNotebooks:
    """Executed by `workbench notebook` with the parameters that name the site, as a cron job does."""

    WHAT = ("--param", f"job={JOB}", "--param", f"since={WINDOW[1]}", "--param", f"until={WINDOW[3]}")

    def executed(self, site: Site, name: str, out: Path, *words: str) -> str:
        """All that its outputs say; the kernel's errors end the command, and what went to stderr is in none of them."""
        made = site.workbench(
            "notebook", name, *words, "-o", str(out / f"{name}.ipynb"), PYTHONPATH=str(ROOT), XDG_CACHE_HOME=str(out / "cache")
        )
        assert made.returncode == 0, made.stderr
        document = nbformat.read(out / f"{name}.ipynb", as_version=4)
        assert not [one for cell in document.cells for one in cell.get("outputs", []) if one.get("name") == "stderr"]
        return said(document)

    def test_triage_collects_the_job_and_gives_the_verdict_of_the_folder(self, site: Site, tmp_path: Path) -> None:
        """Class, culprit and its lines, with metrics and logs of the servers; what it kept is triaged once more."""
        text = self.executed(site, "triage", tmp_path, *self.WHAT)
        folder = to_json(workbench.load(site.folders[EXAMPLE]).triage())

        assert folder["class"] in text
        assert folder["culprit"]["node"] in text
        assert next(row["signature"] for row in folder["evidence"] if row["role"] == "cause") in text
        assert "no metrics came with it" not in text
        (kept,) = (tmp_path / "cache").rglob("*.tar.zst")
        same(to_json(workbench.load(kept).triage()), folder)

    def test_a_postmortem_has_the_facts_of_the_site(self, site: Site, tmp_path: Path) -> None:
        """Written from what was collected, with what nobody can know left to be filled."""
        out = tmp_path / "postmortem.md"
        self.executed(site, "postmortem", tmp_path, *self.WHAT, "--param", f"out={out}")

        document = out.read_text(encoding="utf-8")
        assert "dgx-46" in document
        assert "to be filled" in document

    def test_a_plan_is_made_on_the_fleet_of_the_site(self, site: Site, tmp_path: Path) -> None:
        """The node that the verdict names, as the API server has it; nothing is done."""
        text = self.executed(site, "remediation_plan", tmp_path, *self.WHAT, "--param", "source=live")

        assert "dgx-46" in text
        assert "Nothing has been done" in text

    def test_fleet_and_node_are_those_of_the_api_server(self, site: Site, tmp_path: Path) -> None:
        """Not the invented ones; which source was asked, and what it said."""
        nodes = {item["metadata"]["name"] for item in json.loads(text_of(site.folders[EXAMPLE] / "nodes.json"))["items"]}
        text = self.executed(site, "fleet_health", tmp_path, "--param", "source=live")
        assert f"{len(nodes):,} nodes" in text
        assert "Demo fleet" not in text
        assert {"kubernetes", "prometheus"} <= set(text.split())

        text = self.executed(
            site, "node_health", tmp_path, "--param", "source=live", "--param", "node=dgx-46", "--param", f"kept={EXAMPLE}"
        )
        assert "dgx-46" in text
        assert "gpu-a0" not in text
