"""What `workbench run` is made of: the next attempt's command, the log on a full disk, a triage that fails, what failures cost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from workbench.sources.command import Ran
from workbench.training import judging
from workbench.training.account import Told, cost_of, rows
from workbench.training.attempts import Attempt
from workbench.training.evidence import collect
from workbench.training.launchers import filled, here, least_nodes, next_command, nodes_of
from workbench.training.output import KEEP, Record
from workbench.training.rundir import RunFolder, default_folder


def planned(command: str, folder: Path, exclude: tuple[str, ...] = ("b",), **more: Any) -> Any:
    words: dict[str, Any] = {"attempt": 2, "resume_from": None, "spares": (), "env": {}} | more
    return next_command(command.split(), exclude=exclude, folder=folder, **words)


# Commands --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("srun -N2 train.sh", "srun --exclude=b -N2 train.sh"),
        ("srun --exclude=x -N2 train.sh", "srun --exclude=x,b -N2 train.sh"),
        ("srun -x x -N2 train.sh", "srun -x x,b -N2 train.sh"),
        ("srun -N2 python train.py --exclude=layers", "srun --exclude=b -N2 python train.py --exclude=layers"),
        ("env A=1 timeout 3h srun -N2 train.sh", "env A=1 timeout 3h srun --exclude=b -N2 train.sh"),
        ("sbatch --wait job.sh", "sbatch --exclude=b --wait job.sh"),
        ("deepspeed --hostfile /none train.py", "deepspeed --exclude=b --hostfile /none train.py"),
        ("mpirun -H a:8,b:8,c:8 ./train", "mpirun -H a:8,c:8 ./train"),
        ("mpiexec -hosts a,b ./train", "mpiexec -hosts a ./train"),
        ("horovodrun -H a:4,b:4 python train.py", "horovodrun -H a:4 python train.py"),
        ("/opt/my-launcher --skip={exclude}", "/opt/my-launcher --skip=b"),
    ],
)
def test_each_launcher_is_told_in_its_own_way_which_node_to_leave_out(command: str, wanted: str, tmp_path: Path) -> None:
    plan = planned(command, tmp_path)
    assert " ".join(plan.command) == wanted
    assert plan.how
    assert not plan.unable


def test_a_spare_node_takes_the_place_and_the_slots_of_an_excluded_one(tmp_path: Path) -> None:
    hosts = tmp_path / "hostfile"
    hosts.write_text("# the pool\na slots=8\nb slots=8\n")
    plan = planned(f"mpirun --hostfile {hosts} ./train", tmp_path, spares=("b", "s1"))
    assert plan.command == ["mpirun", "--hostfile", str(tmp_path / "hosts"), "./train"]
    assert (tmp_path / "hosts").read_text() == "a slots=8\ns1 slots=8\n"
    assert hosts.read_text().count("b slots=8") == 1
    assert "s1 in place of it" in plan.how


def test_a_node_that_cannot_be_left_out_is_not_used_again_without_a_word(tmp_path: Path) -> None:
    here = os.uname().nodename
    plan = planned("torchrun --standalone train.py", tmp_path, exclude=(here,))
    assert "starts its ranks on this node" in plan.unable
    assert "cannot be left out" in planned("mpirun -n 4 ./train", tmp_path).unable


def test_within_an_allocation_an_elastic_job_asks_for_the_nodes_that_are_left(tmp_path: Path) -> None:
    env = {"SLURM_JOB_NODELIST": "n[1-3]"}
    plan = planned("srun torchrun --nnodes=2:3 train.py", tmp_path, exclude=("n2",), env=env)
    assert " ".join(plan.command) == "srun --nodes=2 --exclude=n2 torchrun --nnodes=2:3 train.py"
    plan = planned("srun -N2 train.sh", tmp_path, exclude=("n2",), env=env)
    assert " ".join(plan.command) == "srun --exclude=n2 -N2 train.sh"
    assert nodes_of(["srun", "-N2", "x"], env) == ("n1", "n2", "n3")
    assert nodes_of(["python", "train.py"], env) == (here(env),)
    # a script that is told whom to leave out has others to take
    assert nodes_of(["python", "start_everywhere.py", "--exclude={exclude}", "torchrun", "train.py"], env) == ()
    assert least_nodes(["srun", "-N2", "x"], env) == 2
    assert least_nodes(["srun", "torchrun", "--nnodes", "2:3", "x"], env) == 2


def test_a_placeholder_without_a_value_takes_its_option_with_it() -> None:
    command = ["train", "--n={attempt}", "--resume", "{resume_from}", "--from={resume_from}", "-v", '{"a": 1}', "{other}"]
    assert filled(command, attempt=1, resume_from=None, exclude=()) == ["train", "--n=1", "-v", '{"a": 1}', "{other}"]
    assert filled(command, attempt=2, resume_from="/c; rm -rf /", exclude=())[2:5] == [
        "--resume",
        "/c; rm -rf /",
        "--from=/c; rm -rf /",
    ]


# The log ---------------------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_for_a_while_costs_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = os.write, []

    def write(file: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:1000])

    monkeypatch.setattr(os, "write", write)
    record = Record(tmp_path / "log")
    record.write(b"a" * 5000)
    full.append(1)
    record.write(b"b" * 5000)
    assert (tmp_path / "log").read_bytes() == b"a" * 5000
    full.clear()
    record.write(b"c")
    record.close()
    assert (tmp_path / "log").read_bytes() == b"a" * 5000 + b"b" * 5000 + b"c"
    assert (record.size, record.lost) == (10001, 0)


def test_of_what_no_disk_takes_the_end_is_kept_elsewhere_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    record = Record(tmp_path / "not" / "there" / "log")
    for number in range(20):
        record.write(bytes([number]) * (1 << 20))
    record.close()
    assert record.lost == (20 << 20) - KEEP
    (rest,) = tmp_path.glob("workbench-run-*.log")
    assert rest.read_bytes()[-1:] == bytes([19])
    assert rest.stat().st_size == KEEP
    assert str(rest) in record.trouble


# Judging ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ran",
    [
        Ran(("python",), "time-out", seconds=300.0),
        Ran(("python",), "signal", signal=11, err=b"Segmentation fault"),
        Ran(("python",), "exit", code=70, out=b'{"schema": "something/1"}'),
        Ran(("python",), "ok", code=0, out=b"[]"),
        Ran(("python",), "ok", code=0, out=b"{ torn"),
    ],
    ids=["hangs", "crashes", "another document", "no document", "torn"],
)
def test_a_triage_that_fails_gives_no_verdict_and_says_why(ran: Ran, tmp_path: Path) -> None:
    verdict, trouble = judging.judge(tmp_path, runner=lambda *_, **__: ran)
    assert verdict is None
    assert trouble.startswith("triage ")
    (row,) = judging.gather(tmp_path / "x.json", runner=lambda *_, **__: ran)
    assert row["status"] == "failed"
    found, why = judging.checkpoint(["/x"], runner=lambda *_, **__: ran)
    assert found["chosen"] is None
    assert why


def test_evidence_at_hand_is_copied_and_what_an_earlier_job_left_is_not(tmp_path: Path) -> None:
    attempt, logs = tmp_path / "attempt-1", tmp_path / "elastic-logs"
    (attempt / "logs").mkdir(parents=True)
    for name in ("run_0/attempt_0/1/error.json", "run_0/attempt_0/1/stderr.log", "run_0/attempt_0/0/old.log", "run_0/core"):
        path = logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    os.utime(logs / "run_0/attempt_0/0/old.log", (1000, 1000))
    (tmp_path / "trace_0").write_bytes(b"\x80\x02}.")
    about = {
        "command": ["torchrun", "--log-dir", str(logs), "train.py"],
        "env": {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")},
        "started": os.stat(logs).st_mtime - 5,
        "ended": os.stat(logs).st_mtime + 5,
        "nodes": ["another-machine"],
    }
    answers = {(one.source, one.status) for one in collect(about, attempt, 5)}
    copied = sorted(path.relative_to(attempt).as_posix() for path in attempt.rglob("*") if path.is_file())
    assert copied == ["elastic/run_0/attempt_0/1/error.json", "elastic/run_0/attempt_0/1/stderr.log", "flight/trace_0"]
    assert ("job", "ok") in answers
    assert ("flight-recorder", "ok") in answers
    assert ("kernel", "missing") in answers  # this machine is none of the job's: said, not passed over


# Cost ------------------------------------------------------------------------------------------------------------------------


def test_a_failure_costs_the_time_since_the_step_that_the_next_attempt_began_from() -> None:
    first = Attempt(
        1, started=0.0, ended=100.0, state="failed", step_first=1, step_last=40, cause="hardware", cls="hardware/gpu-lost"
    )
    second = Attempt(2, started=130.0, ended=200.0, state="completed", step_first=31, step_last=80)
    steps = {step: 10.0 + 2 * step for step in range(1, 41)}
    told = [
        Told(first, steps, detected=100.0, diagnosed=110.0, resumed=30, gpus=8),
        Told(second, {step: 140.0 + step - 30 for step in range(31, 81)}, detected=200.0, gpus=8),
    ]
    cost = cost_of(told)
    assert cost.steps == 10
    assert cost.seconds == pytest.approx(130.0 - 70.0)
    assert cost.gpu_hours == pytest.approx(8 * 60 / 3600)
    assert cost.all_gpu_hours == pytest.approx(8 * 200 / 3600)
    tables = rows(told, run=Path("/runs/a"), env={"SLURM_JOB_ID": "7", "USER": "me"}, name="", state="completed")
    phases = [(row["kind"], row["begin"], row["end"]) for row in tables["phases"] if row["attempt"] == 1]
    assert phases == [
        ("start", 0.0, 12.0),
        ("step", 12.0, 70.0),
        ("lost", 70.0, 90.0),
        ("detect", 90.0, 100.0),
        ("diagnose", 100.0, 110.0),
        ("recover", 110.0, 130.0),
    ]
    assert tables["jobs"][0]["job"] == "7"
    assert tables["jobs"][0]["cause"] == ""


# Folders ---------------------------------------------------------------------------------------------------------------------


def test_a_requeued_job_of_slurm_finds_its_folder_again() -> None:
    assert default_folder({"SLURM_JOB_ID": "4711"}) == Path("workbench-runs/slurm-4711")
    assert default_folder({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3"}) == Path(
        "workbench-runs/slurm-8_3"
    )


def test_a_folder_that_cannot_be_made_does_not_keep_a_job_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    folder = RunFolder(tmp_path / "file" / "run")
    assert "cannot be used" in folder.trouble
    assert folder.path.parent == tmp_path
    folder.close()


# From Python -----------------------------------------------------------------------------------------------------------------


def test_a_program_runs_a_job_and_keeps_its_own_signals_and_children(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import signal
    import subprocess
    import sys

    import workbench.training
    from workbench.training import supervise

    other = subprocess.Popen([sys.executable, "-c", "pass"])
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    outcome = supervise(["sh", "-c", "echo hello; (sleep 1000 &)"], run_dir=tmp_path / "run")
    assert (outcome.state, outcome.exit_code, outcome.summary) == ("completed", 0, ())
    assert capfd.readouterr().out == "hello\n"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == handlers
    assert other.wait(30) == 0
    assert callable(workbench.training.supervise)  # also after the module of that name was imported


def test_a_job_runs_in_a_thread_whose_signals_are_not_ours(tmp_path: Path) -> None:
    from threading import Thread

    from workbench.training import supervise

    found: list[Any] = []
    thread = Thread(target=lambda: found.append(supervise(["sh", "-c", "exit 0"], run_dir=tmp_path / "run")))
    thread.start()
    thread.join(60)
    assert found[0].state == "completed"


def test_a_defect_of_ours_costs_neither_the_job_nor_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.training import after, supervise, watching

    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(after.After, "next", broken)
    monkeypatch.setattr(watching.Watching, "feed", broken)
    monkeypatch.setattr(watching.Watching, "tick", broken)
    said: list[str] = []
    outcome = supervise(["sh", "-c", "echo a; sleep 1.5; echo b; exit 3"], run_dir=tmp_path / "run", say=said.append)
    assert (outcome.exit_code, outcome.state) == (3, "failed")
    assert (tmp_path / "run/attempt-1/logs/launcher.log").read_bytes() == b"a\nb\n"
    assert len([line for line in said if "defect of the workbench" in line]) == 3


def test_without_a_known_checkpoint_the_next_attempt_s_first_step_tells_what_was_lost() -> None:
    """A job that restores by itself: attempt 2 begins with step 16, so 16 and 17 of attempt 1 are made again."""
    first = Attempt(1, started=0.0, ended=20.0, state="failed", step_first=1, step_last=17)
    second = Attempt(2, started=25.0, ended=60.0, state="completed", step_first=16, step_last=40)
    told = [Told(first, {step: float(step) for step in range(1, 18)}, gpus=1), Told(second, {16: 26.0, 40: 60.0}, gpus=1)]

    cost = cost_of(told)
    tables = rows(told, run=Path("/runs/a"), env={}, name="", state="completed")

    assert cost.steps == 2
    assert cost.seconds == pytest.approx(25.0 - 15.0)
    assert [(row["kind"], row["begin"], row["end"]) for row in tables["phases"] if row["attempt"] == 1][1:3] == [
        ("step", 1.0, 15.0),
        ("lost", 15.0, 17.0),
    ]
