"""Stacks of a job that hangs: real processes, py-spy's place taken by a program that prints what it printed for another."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import workbench
from workbench.training.flight import collect_flight, flight_environment
from workbench.training.hangs import Watch
from workbench.training.processes import caught, end_in_order, members, same
from workbench.training.stacks import SIGNAL, Stacks, collect_stacks, grouped, stacks_environment

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests/data/training/job_that_hangs.py"
# what py-spy 0.3.14 printed for a rank whose prefetcher thread holds a lock of a file system
PYSPY = """Process 88123: /opt/conda/bin/python -u train.py
Python v3.11.9 (/opt/conda/bin/python3.11)

Thread 88123 (idle): "MainThread"
    _wait_for_tstate_lock (threading.py:1169)
    wait (threading.py:331)
    get (queue.py:171)
    __next__ (prefetch.py:58)
    train_epoch (train.py:133)
    <module> (train.py:219)
"""
COLLECTIVE = """Process 88120: /opt/conda/bin/python -u train.py
Python v3.11.9 (/opt/conda/bin/python3.11)

Thread 88120 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    wrapper (torch/distributed/c10d_logger.py:83)
    reduce_stats (train.py:117)
    <module> (train.py:219)
"""


@pytest.fixture
def start():
    """Start Python processes that wait, and end them afterwards."""
    running = []

    def begin(code, ready=True, **environ):
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("SLURM_", "OMPI_", "PMI")) and k not in ("RANK", "LOCAL_RANK")
        }
        job = subprocess.Popen([sys.executable, "-c", code], env=env | environ, stdout=subprocess.PIPE, start_new_session=True)
        running.append(job)
        if ready:
            assert job.stdout.readline()
        return job

    yield begin
    for job in running:
        for one in members(job.pid):
            os.kill(one.pid, signal.SIGKILL)
        job.wait()
        job.stdout.close()


WAITS = "import time\nprint('ready', flush=True)\ndef fetch():\n    time.sleep(600)\nfetch()"
# a launcher with two ranks, one of which has a forked loader and Python's own resource tracker; all are there once it says so
TREE = """
import os, subprocess, sys, time
rank = '''
import os, time
from multiprocessing import resource_tracker
if os.environ["RANK"] == "1":
    resource_tracker.ensure_running()
    if not os.fork():
        time.sleep(600)
print("x", flush=True)
time.sleep(600)
'''
for n in '01':
    p = subprocess.Popen([sys.executable, '-c', rank], env=os.environ | {'RANK': n, 'LOCAL_RANK': n}, stdout=subprocess.PIPE)
    p.stdout.readline()
print('ready', flush=True)
time.sleep(600)
"""


def fake_pyspy(tmp_path, body):
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_ranks_loaders_helpers_and_the_launcher_are_told_apart(start):
    # as in a pod of PyTorchJob, the launcher has a RANK of its own, which numbers the node
    found = members(start(TREE, RANK="0").pid)
    assert [(one.role, one.rank, one.local_rank) for one in found][:4] == [
        ("rank", 0, 0), ("rank", 1, 1), ("worker", 1, 1), ("launcher", None, None),
    ]  # fmt: skip
    assert [one.role for one in found[4:]] == ["other"]


def test_a_process_without_a_handler_never_gets_the_signal(start, tmp_path):
    job = start(WAITS, RANK="0")
    (tmp_path / f"{job.pid}.dump").touch()  # even when something claims that it registered
    found = collect_stacks(job.pid, tmp_path / "stacks", dumps=tmp_path, pyspy="", deadline=5)
    assert not caught(job.pid, SIGNAL)
    assert job.poll() is None
    assert found[0].how == ""
    assert "no handler" in found[0].why
    assert grouped(found)[0].startswith("rank 0: no stack (")


def test_a_signal_tells_the_function_of_main_thread_and_of_a_forked_loader(start, tmp_path):
    code = (
        "import os, time\n"
        "def load(): time.sleep(600)\n"
        "def next_batch(): time.sleep(600)\n"
        "if os.fork() == 0:\n    load()\n"
        "print('ready', flush=True)\nnext_batch()"
    )
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    job = start(code, RANK="4", LOCAL_RANK="0", **stacks_environment({"PYTHONPATH": "/nowhere"}, dumps))
    time.sleep(0.2)
    found = collect_stacks(job.pid, tmp_path / "stacks", dumps=dumps, pyspy="", deadline=20)
    assert [(one.role, one.rank, one.how) for one in found] == [("rank", 4, "faulthandler"), ("worker", 4, "faulthandler")]
    assert "next_batch" in Path(found[0].file).read_text()
    assert "load" in Path(found[1].file).read_text()
    assert Path(found[1].file).name == "rank-4-worker0.txt"
    assert job.poll() is None
    again = collect_stacks(job.pid, tmp_path / "again", dumps=dumps, pyspy="", deadline=20)
    assert Path(again[0].file).read_text().count("in next_batch") == 1  # the second answer, not both


def test_a_sitecustomize_of_the_jobs_own_still_runs(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.own = 'here'\n")
    job = start("print(own, flush=True)", ready=False, **stacks_environment({"PYTHONPATH": str(tmp_path)}, tmp_path))
    assert job.stdout.read() == b"here\n"
    job = start("print('runs', flush=True)", ready=False, **stacks_environment({}, tmp_path / "no" / "such"))
    assert job.stdout.read() == b"runs\n"


def test_py_spys_words_become_the_dump_and_its_refusal_the_reason(start, tmp_path):
    job = start(WAITS, RANK="3")
    tool = fake_pyspy(tmp_path, f"cat <<'END'\n{PYSPY}END")
    found = collect_stacks(job.pid, tmp_path / "a", pyspy=tool)
    assert (found[0].how, found[0].kind, found[0].frame) == ("py-spy", "stack-lock-wait", "__next__ (prefetch.py:58)")
    tool = fake_pyspy(tmp_path, "echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    found = collect_stacks(job.pid, tmp_path / "b", pyspy=tool)
    assert found[0].how == ""
    assert "py-spy: Error: Permission Denied" in found[0].why
    tool = fake_pyspy(tmp_path, "exec sleep 60")
    began = time.monotonic()
    found = collect_stacks(job.pid, tmp_path / "c", pyspy=tool, deadline=2)
    assert "did not answer in time" in found[0].why
    assert time.monotonic() - began < 20


def test_a_stopped_process_is_told_by_its_state(start, tmp_path):
    job = start(WAITS, RANK="0")
    os.kill(job.pid, signal.SIGSTOP)
    found = collect_stacks(job.pid, tmp_path, pyspy="")
    assert found[0].state == "T"
    assert "state T" in grouped(found)[0]
    (table,) = tmp_path.glob("ps-*.txt")
    text = table.read_text()
    assert "do_signal_stop" in text
    verdict = workbench.load(tmp_path).triage()
    assert [one.signature for one in verdict.evidence_records] == ["ps-stopped"]


def test_a_folder_that_cannot_be_made_is_said(start, tmp_path):
    (tmp_path / "file").touch()
    found = collect_stacks(start(WAITS).pid, tmp_path / "file" / "stacks", pyspy="")
    assert "Not a directory" in found[0].why


def test_equal_places_are_one_sentence():
    there = [
        Stacks(10 + n, "rank", n, kind="stack-in-collective", where="all_reduce (c10d.py:1)", frame="f (train.py:5)")
        for n in range(7)
    ]
    other = Stacks(17, "rank", 7, kind="stack-dataloader-wait", where="next (dataloader.py:9)", frame="g (train.py:2)")
    launcher = Stacks(9, "launcher", state="S")
    assert grouped([other, *there, launcher]) == [
        "ranks 0-6, in a collective: all_reduce (c10d.py:1), from f (train.py:5)",
        "rank 7, waiting for the data loader: next (dataloader.py:9), from g (train.py:2)",
    ]


def test_triage_tells_a_hang_outside_a_collective_from_what_is_taken(start, tmp_path):
    ranks = {n: start(WAITS, RANK=str(n)).pid for n in range(4)}
    cases = "\n".join(
        f"  {pid}) cat <<'END'\n{(PYSPY if n == 3 else COLLECTIVE).replace('8812', '9')}END\n;;" for n, pid in ranks.items()
    )
    tool = fake_pyspy(tmp_path, f'case "$3" in\n{cases}\nesac')
    found = collect_stacks(list(ranks.values()), tmp_path / "run/stacks", pyspy=tool)
    assert [one.how for one in found] == ["py-spy"] * 4
    verdict = workbench.load(tmp_path / "run").triage()
    assert verdict.cls == "user/hang"
    assert verdict.rank == 3


def test_the_order_of_ending_is_ranks_launcher_and_force_last(start):
    stubborn = TREE.replace(
        "import os, subprocess, sys, time\n",
        "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        1,
    )
    job = start(stubborn)
    born = members(job.pid)
    said = end_in_order(job.pid, grace=0.5)
    job.wait(5)
    assert said[0] == "SIGTERM to ranks: 2 processes"
    assert said[1].startswith("SIGTERM to the launcher and what else was left: ")
    assert said[2].startswith("SIGKILL to ")
    assert not any(same(one) for one in born)


def test_the_flight_recorder_is_asked_through_its_pipes(tmp_path):
    given = flight_environment({"TORCH_FR_BUFFER_SIZE": "5"}, tmp_path)
    assert "TORCH_FR_BUFFER_SIZE" not in given  # the job's own stays
    pipe = Path(given["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "0.pipe")
    os.mkfifo(pipe)
    code = f"import time\nopen({str(pipe)!r}).read(1)\ntime.sleep(.3)\nopen({given['TORCH_FR_DUMP_TEMP_FILE'] + '0'!r}, 'w').write('dump')"
    rank = subprocess.Popen([sys.executable, "-c", code])
    while "wait_for_partner" not in (wchan := Path(f"/proc/{rank.pid}/wchan").read_text()) and "fifo" not in wchan:
        time.sleep(0.02)
    # opened without waiting it is only once the reader is there
    dumps, problems = collect_flight(tmp_path, deadline=10)
    rank.wait()
    assert [path.name for path in dumps] == ["nccl_trace_rank_0"]
    assert problems == []
    dumps, problems = collect_flight(tmp_path, deadline=1)
    assert len(dumps) == 1  # the old one
    assert any("No such device" in problem for problem in problems)
    assert any("only the NCCL backend" in problem for problem in problems)


@pytest.mark.parametrize(
    ("version", "own", "left"),
    [("2.14.1+debian", "2000", None), ("2.6.0", "2000", "2000"), ("2.14.1", "77", "77")],
    ids=["torch knows the new name", "torch knows the old one only", "the job's own"],
)
def test_torch_is_not_made_to_warn_of_a_name_that_nobody_wrote(start, tmp_path, version, own, left):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(f"from typing import Optional\n\n__version__ = '{version}'\ndebug = False\n")
    given = flight_environment({"TORCH_NCCL_TRACE_BUFFER_SIZE": own} if own != "2000" else {}, tmp_path)
    env = {"TORCH_NCCL_TRACE_BUFFER_SIZE": own, **given, **stacks_environment({"PYTHONPATH": str(tmp_path)}, tmp_path)}
    job = start(
        "import os; print(os.environ.get('TORCH_NCCL_TRACE_BUFFER_SIZE'), flush=True)", False, **env, WORKBENCH_RUN="/runs/a"
    )
    assert job.stdout.read().decode() == f"{left}\n"


@pytest.mark.slow
def test_a_real_job_that_hangs_in_a_lock_is_seen_explained_and_ended(tmp_path):
    run, dumps = tmp_path / "run", tmp_path / "dumps"
    dumps.mkdir()
    env = os.environ | {"WORKBENCH_PROGRESS": str(tmp_path / "progress"), "PYTHONPATH": str(ROOT)}
    env |= stacks_environment(env, dumps)
    job = subprocess.Popen([sys.executable, str(JOB)], env=env, start_new_session=True)
    watch = Watch(floor=3, warm_up=3, start_limit=120, progress=tmp_path / "progress")
    try:
        while (hang := watch.tick(time.monotonic())) is None:
            time.sleep(0.05)
        assert hang.last_step == 11
        assert hang.certain
        found = collect_stacks(job.pid, run / "stacks", dumps=dumps, deadline=60)
        assert {one.how for one in found if one.role == "rank"} <= {"py-spy", "faulthandler"}
        said = grouped(found)
        assert said[0].startswith("ranks 0-1, 3, idle in the job's own code: wait_for_others (")
        assert said[1].startswith("rank 2, ")
        assert "tokenize_batch" in said[1]
    finally:
        said = end_in_order(job.pid, grace=5)
        job.wait(10)
    assert said == ["SIGTERM to ranks: 4 processes"]  # the launcher ended by itself
    assert job.returncode == 0
    assert workbench.load(run).triage().cls == "user/hang"
