"""A running site and the folder that was collected from it give the same verdict; a site that lacks something says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import workbench
from workbench.cli import exits, main
from workbench.config import load_config
from workbench.errors import SourceUnavailable
from workbench.live import collect, examine, load_job, scope_for, unseen
from workbench.report.verdict_json import to_json
from workbench.shipped import example_path
from workbench.sources.contract import Reach, Scope
from workbench.testing import FolderSource, sources_from

CONFIG = load_config(environ={})
WINDOW = {"since": 1.7e9, "until": 1.9e9}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    shutil.unpack_archive(example_path("nvlink-switch"), tmp_path / "site", filter="data")
    return tmp_path / "site"


def _scope() -> Scope:
    return scope_for("llm-pretrain", CONFIG, **WINDOW)


def test_the_verdict_of_the_site_is_that_of_the_folder_and_of_the_bundle(site: Path, tmp_path: Path) -> None:
    folder = to_json(workbench.load(site).triage())
    live = to_json(load_job(_scope(), CONFIG, keep=tmp_path / "kept.tar.zst", sources=sources_from(site)).triage())
    bundle = to_json(workbench.load(tmp_path / "kept.tar.zst").triage())

    for key in ("cause", "class", "culprit", "victims", "retry", "remediation", "time"):
        assert live[key] == folder[key], key
        assert bundle[key] == folder[key], key
    assert live["confidence"] == pytest.approx(folder["confidence"])
    assert not (tmp_path / "kept.tar.zst.partial").exists()


def test_without_keep_nothing_is_left(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    load_job(_scope(), CONFIG, sources=sources_from(site))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_source_that_fails_is_named_and_the_others_still_tell(site: Path) -> None:
    sources = sources_from(site)
    for source in sources:
        if source.name == "prometheus":
            source.error = SourceUnavailable("http://prometheus:9090: connection refused", hint="is it up?")
    verdict = load_job(_scope(), CONFIG, sources=sources).triage()

    assert verdict.cls == "hardware/nvlink"
    metrics = next(entry for entry in verdict.coverage if entry.source == "metrics")
    assert metrics.status == "failed"
    assert "connection refused" in metrics.detail


def test_what_an_interrupted_collection_left_is_not_asked_again(site: Path, tmp_path: Path) -> None:
    left = tmp_path / "incident.tar.gz.partial"
    shutil.copytree(site, left)
    kernel = next((left / "kernel").iterdir())
    kernel.write_text("kept as it was\n", encoding="utf-8")
    (left / "logs" / "torn.log.partial").write_text("half", encoding="utf-8")

    done = collect(_scope(), tmp_path / "incident.tar.gz", CONFIG, sources=sources_from(site))

    names = {document.name.rsplit("!", 1)[-1]: document for document in workbench.load(done.path).documents}
    assert names[f"kernel/{kernel.name}"].size == len("kept as it was\n")
    assert "logs/torn.log.partial" not in names
    manifest = next(document for name, document in names.items() if name == "manifest.json")
    assert manifest.facts["scope"]["job"] == "llm-pretrain"


def test_a_site_without_a_scheduler_or_metrics_says_what_is_not_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("WORKBENCH_NODE_ENABLED", "false")
    for name in ("KUBECONFIG", "PROMETHEUS_URL", "ELASTICSEARCH_URL"):
        monkeypatch.delenv(name, raising=False)
    incident = load_job(_scope(), load_config())
    told = {problem.message: problem.hint for problem in incident.problems}
    assert "export PROMETHEUS_URL" in told["prometheus is not configured"]
    assert any("no scheduler is configured" in message for message in told)
    assert incident.triage().cause == "unknown"


def test_doctor_lists_what_answers_and_what_does_not(site: Path) -> None:
    sources = [*sources_from(site), FolderSource("slurm", site, error=SourceUnavailable("slurmdbd: refused", hint="start it"))]
    rows = {(row.source, row.status) for row in examine(CONFIG, sources=sources)}
    assert ("prometheus", "ok") in rows
    assert ("slurm", "critical") in rows


def test_a_class_is_unseen_only_when_nobody_can_speak_for_it() -> None:
    lacks = Reach("prometheus", "field X", "critical", "not here", "", ("hardware/gpu-memory", "hardware/thermal-power"))
    node = Reach("node", "kernel log", "ok", "/dev/kmsg")
    assert unseen([lacks]) == ["hardware/gpu-memory", "hardware/thermal-power"]
    assert "hardware/gpu-memory" not in unseen([lacks, node])
    blind_too = Reach("node", "nvml", "warning", "no driver", "", ("hardware/gpu-memory",))
    assert "hardware/gpu-memory" in unseen([lacks, node, blind_too])


class TestCommands:
    def test_config_show_names_the_origin(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "workbench.toml").write_text('[prometheus]\nurl = "http://prometheus:9090"\n', encoding="utf-8")
        code = main(["config", "show", "--config", str(tmp_path / "workbench.toml"), "-o", "json"])
        rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
        assert code == exits.OK
        assert rows["prometheus.url"]["origin"].endswith("workbench.toml:2")
        assert rows["deadline"]["origin"] == "default"

    def test_config_rbac_prints_what_to_apply(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "rbac"]) == exits.OK
        rules = [rule for item in yaml.safe_load_all(capsys.readouterr().out) for rule in (item or {}).get("rules", [])]
        assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}

    @pytest.mark.parametrize(
        ("words", "code", "says"),
        [
            (["triage"], exits.USAGE, "nothing to triage"),
            (["triage", "--job", "a", "folder"], exits.USAGE, "either paths or --job"),
            (["triage", "--job", "a", "--since", "tomorrow"], exits.USAGE, "'tomorrow' is no time"),
            (["triage", "--job", "a", "--since", "1h", "--until", "2h"], exits.USAGE, "the window is empty"),
            (["triage", "--job", "a", "--config", "/nowhere.toml"], exits.CONFIG, "no such configuration file"),
            (["collect", "--job", "a", "--deadline", "soon"], exits.CONFIG, "flag --deadline: deadline: 'soon' is no time span"),
            (["doctor", "--profile", "west"], exits.CONFIG, "there is no profile 'west'"),
        ],
    )
    def test_what_is_wrong_ends_before_any_server_is_asked(
        self, words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(words) == code
        out, err = capsys.readouterr()
        assert says in err
        assert out == ""

    def test_collect_prints_the_path_and_what_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("WORKBENCH_NODE_ENABLED", "0")
        for name in ("KUBECONFIG", "PROMETHEUS_URL", "ELASTICSEARCH_URL"):
            monkeypatch.delenv(name, raising=False)
        code = main(["collect", "--job", "llm/a b", "-o", str(tmp_path / "out.zip")])
        out, err = capsys.readouterr()
        assert (code, out.strip()) == (exits.OK, str(tmp_path / "out.zip"))
        assert "missing: prometheus is not configured (export PROMETHEUS_URL" in err
        assert f"workbench triage {tmp_path / 'out.zip'}" in err
