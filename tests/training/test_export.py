"""What a scheduler can do of a policy is written in its own words, and what it cannot is said beside it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.jobs import START, failed
from workbench.cli import main
from workbench.errors import ConfigError
from workbench.training.attempts import RunLedger
from workbench.training.export import JOB_KINDS, Shape, export
from workbench.training.policy import Policy, load_policy

CAUSES = ("hardware", "driver", "platform", "user", "unknown")


def manifest(kind: str, policy: Policy | None = None, **shape: Any) -> dict[str, Any]:
    """Return the exported object."""
    found: dict[str, Any] = yaml.safe_load(export("kubernetes", policy or Policy(), Shape(**shape), job_kind=kind))
    return found


def pods_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod specs of an exported object, wherever its kind keeps them."""
    if found["kind"] == "Job":
        return [found["spec"]["template"]["spec"]]
    if found["kind"] == "JobSet":
        return [one["template"]["spec"]["template"]["spec"] for one in found["spec"]["replicatedJobs"]]
    return [one["template"]["spec"] for one in found["spec"]["pytorchReplicaSpecs"].values()]


class TestKubernetes:
    def test_a_job_ignores_disruptions_fails_at_once_for_a_wrong_command_and_counts_the_rest(self) -> None:
        """In this order: an evicted pod has an exit code, too."""
        spec = manifest("Job", replace(Policy(), budget_unknown=4), nodes=3)["spec"]

        assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore", "FailJob"]
        assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [2, 126, 127]
        assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (4, 3, 3)
        assert spec["template"]["spec"]["restartPolicy"] == "Never"

    def test_a_job_set_starts_all_again_and_does_not_count_preemptions(self) -> None:
        """One pod that fails ends its Job, since the others would only hang."""
        spec = manifest("JobSet", nodes=2)["spec"]
        rules = spec["failurePolicy"]["rules"]

        assert [rule["action"] for rule in rules] == ["FailJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
        assert spec["failurePolicy"]["maxRestarts"] == 6
        assert spec["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0

    def test_a_pytorch_job_is_elastic_only_where_the_policy_says_so(self, tmp_path: Path) -> None:
        """Most launchers cannot go on with fewer nodes."""
        file = tmp_path / "retry.toml"
        file.write_text('schema = "workbench.retry/1"\n[nodes]\nmin = 2\n', encoding="utf-8")
        fixed, elastic = manifest("PyTorchJob", nodes=4), manifest("PyTorchJob", load_policy(file), nodes=4)

        assert "elasticPolicy" not in fixed["spec"]
        assert {name: one["replicas"] for name, one in fixed["spec"]["pytorchReplicaSpecs"].items()} == {"Master": 1, "Worker": 3}
        assert elastic["spec"]["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 6, "rdzvBackend": "c10d"}
        assert {name: one["replicas"] for name, one in elastic["spec"]["pytorchReplicaSpecs"].items()} == {"Worker": 4}

    @pytest.mark.parametrize("kind", JOB_KINDS)
    def test_nodes_are_kept_off(self, kind: str) -> None:
        """In every pod."""
        for pod in pods_of(manifest(kind, nodes=2, exclude=("n1", "n2", "n1"))):
            terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert terms == [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}]}
            ]
        assert all("affinity" not in pod for pod in pods_of(manifest(kind)))

    @pytest.mark.parametrize("kind", JOB_KINDS)
    def test_no_exit_codes_make_no_rule(self, kind: str) -> None:
        """An empty list would be refused by the server."""
        text = export("kubernetes", replace(Policy(), certain_exit_codes=()), job_kind=kind)

        assert "onExitCodes" not in text
        assert "failed with exit code" not in text
        yaml.safe_load(text)


@pytest.mark.parametrize(("target", "kind"), [*(("kubernetes", kind) for kind in JOB_KINDS), ("slurm", "Job")])
def test_what_it_cannot_express_is_said(target: str, kind: str) -> None:
    """Budgets by cause with their numbers, the blamed node, progress, waiting, the storm guard."""
    comments = " ".join(
        line.lstrip("# ") for line in export(target, Policy(), job_kind=kind).splitlines() if line.startswith("#")
    )

    for words in (
        "budgets by cause (hardware 60, driver 20, platform 20, user 1, unknown 6)",
        "node that is to blame",
        "progress",
        "storm guard",
    ):
        assert words in comments


@pytest.mark.parametrize(
    "shape",
    [
        Shape(name="x\nkind: Pod"),
        Shape(name="Train"),
        Shape(image="a b"),
        Shape(image='x"\n'),
        Shape(exclude=('n1"]\n',)),
        Shape(exclude=("n1,n2",)),
        Shape(exclude=("-n1",)),
        Shape(exclude=("$(id)",)),
    ],
)
@pytest.mark.parametrize("target", ["kubernetes", "slurm"])
def test_a_name_cannot_break_out_of_its_place(target: str, shape: Shape) -> None:
    """Names of nodes come from logs, in the end."""
    with pytest.raises(ConfigError):
        export(target, Policy(), shape)


def test_fewer_nodes_than_the_job_needs_are_refused() -> None:
    """The policy says how many."""
    with pytest.raises(ConfigError, match=r"fewer than nodes\.min"):
        export("slurm", replace(Policy(), nodes_min=3), Shape(nodes=2))


class TestSlurm:
    def test_the_options_stand_before_the_first_command(self) -> None:
        """Behind it sbatch does not read them."""
        lines = export("slurm", Policy(), Shape(nodes=4, exclude=("n1", "n2"))).splitlines()
        options = [line for line in lines if line.startswith("#SBATCH")]
        first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))

        assert "#SBATCH --requeue" in options
        assert "#SBATCH --exclude=n1,n2" in options
        assert "#SBATCH --nodes=4" in options
        assert "#SBATCH --no-kill" not in options
        assert lines.index(options[-1]) < first
        assert lines[0] == "#!/bin/bash"

    def test_an_elastic_job_goes_on_without_a_lost_node(self, tmp_path: Path) -> None:
        """With as few nodes as the policy lets it."""
        file = tmp_path / "retry.toml"
        file.write_text('schema = "workbench.retry/1"\n[nodes]\nmin = 2\n', encoding="utf-8")
        text = export("slurm", load_policy(file), Shape(nodes=4))

        assert "#SBATCH --nodes=2-4" in text
        assert "#SBATCH --no-kill" in text
        assert str(file) in text

    @pytest.mark.parametrize(("ages", "held"), [([], False), ([10.0] * 6, False), ([10.0] * 7, True), ([5000.0] * 20, False)])
    def test_a_job_that_is_restarted_without_end_is_held(self, tmp_path: Path, ages: list[float], held: bool) -> None:
        """More than the budget within the hour; the starts are in a file, since Slurm does not tell when they were."""
        import time

        script = tmp_path / "job.sh"
        script.write_text(export("slurm", Policy()), encoding="utf-8")
        for name in ("workbench", "scontrol"):
            (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n', encoding="utf-8")
            (tmp_path / name).chmod(0o755)
        starts = tmp_path / ".workbench-starts-7"
        starts.write_text("".join(f"{time.time() - age:.0f}\n" for age in ages), encoding="utf-8")
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        done = subprocess.run(["bash", str(script)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)

        if held:
            assert (done.returncode, done.stdout) == (75, "scontrol requeuehold 7\n")
            assert "scontrol release 7 goes on" in done.stderr
        else:
            assert (done.returncode, done.stdout) == (0, "workbench run -- srun --kill-on-bad-exit=1 python train.py\n")


def test_a_run_gives_the_nodes_that_it_has_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of all its attempts whose time is not over, and no GPUs."""
    monkeypatch.setattr("time.time", lambda: START + 3600)
    with RunLedger(tmp_path / "attempts.jsonl") as ledger:
        ledger.put(failed(1))
        ledger.put(failed(2, excluded=("n4", "GPU-4", "n5/0000:3b:00.0")))
        ledger.put(failed(3, excluded=("n4", "n6", "GPU-4")))

    assert main(["policy", "export", "slurm", "--run", str(tmp_path), "--exclude", "n1"]) == 0
    assert "#SBATCH --exclude=n1,n4,n6\n" in capsys.readouterr().out
    assert main(["policy", "export", "slurm", "--run", str(tmp_path / "none")]) == 69
    assert main(["policy", "export", "kubernetes", "--job-kind", "JobSet", "--run", str(tmp_path)]) == 0
    assert '["n4", "n6"]' in capsys.readouterr().out
    monkeypatch.setattr("time.time", lambda: START + 30 * 86400)
    assert main(["policy", "export", "slurm", "--run", str(tmp_path), "--exclude", "n1"]) == 0
    assert "#SBATCH --exclude=n1\n" in capsys.readouterr().out
