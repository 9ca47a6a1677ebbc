"""What a failure cost, and what asks a server for the same."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from workbench.casefile import case_file
from workbench.incident import load
from workbench.shipped import examples, load_example

SACCT = (
    "JobID|JobName|User|State|ExitCode|Start|End|Elapsed|NodeList|AllocTRES\n"
    "4711|{name}|ada|FAILED|1:0|2026-05-04T10:00:00|2026-05-04T11:30:00|01:30:00|gpu-1|billing=8,cpu=64,gres/gpu=8,mem=1T,node=1\n"
)


def _case(tmp_path: Path, log: str, name: str = "llama"):
    (tmp_path / "logs").mkdir(parents=True)
    (tmp_path / "logs" / "rank-0.log").write_text(log)
    (tmp_path / "sacct.txt").write_text(SACCT.format(name=name))
    return case_file(load(tmp_path), source=str(tmp_path))


STEP = "2026-05-04 10:{minute:02d}:00,000 - t - INFO - step {step} loss 2.0\n"
FAIL = '2026-05-04 11:00:00,000 - t - ERROR - train failed\nTraceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: bad\n'
STEPS = "".join(STEP.format(minute=minute, step=minute) for minute in range(60))
SAVED = "2026-05-04 10:30:00,000 - checkpoint - INFO - saved /ckpt/step-0000030 in 3s\n"


def test_held_hours_count_from_the_failure_to_the_end_of_the_job(tmp_path):
    case = _case(tmp_path, STEPS + FAIL)
    assert case.job["gpus"] == 8
    assert case.job["user"] == "ada"
    assert case.impact["gpu_hours"] == pytest.approx(8 * 0.5, abs=0.1)


def test_work_since_the_last_checkpoint_is_lost(tmp_path):
    case = _case(tmp_path, STEPS[: len(STEPS) // 2] + SAVED + STEPS[len(STEPS) // 2 :] + FAIL)
    assert case.impact["gpu_hours_lost"] == pytest.approx(8 * 1.0, abs=0.2)


def test_a_checkpoint_that_was_only_begun_saves_nothing(tmp_path):
    case = _case(tmp_path, STEPS + SAVED.replace("saved", "saving").replace("10:30", "10:59") + FAIL)
    assert case.impact["gpu_hours_lost"] is None
    assert "checkpoint" in case.impact["why"]["gpu_hours_lost"]


def test_a_saved_line_without_a_stamp_has_the_time_of_its_step(tmp_path):
    said = "[default0]:  successfully saved checkpoint from iteration      30 to /ckpt/x\n"
    case = _case(tmp_path, STEPS + said + FAIL)
    assert case.impact["gpu_hours_lost"] == pytest.approx(8 * 1.0, abs=0.2)


@pytest.mark.parametrize("name", examples())
def test_each_number_is_known_or_says_why_it_is_not(name):
    impact = case_file(load_example(name), source="x").impact
    for key in ("ranks", "nodes", "gpus", "gpu_hours", "gpu_hours_lost", "detection_seconds"):
        assert (impact[key] is None) == (key in impact["why"])
        assert impact[key] is None or impact[key] >= 0
    assert all(len(text) > 10 for text in impact["why"].values())


def test_of_a_log_alone_nothing_is_invented(tmp_path):
    (tmp_path / "job.log").write_text("ValueError: bad\n")
    case = case_file(load(tmp_path / "job.log"), source="x")
    assert [case.impact[key] for key in ("gpus", "gpu_hours", "gpu_hours_lost", "detection_seconds")] == [None] * 4
    assert case.job["end"] is None


def test_queries_name_the_culprit_in_each_language():
    queries = case_file(load_example("gpu-memory"), source="x").queries
    assert queries["DCGM_FI_DEV_GPU_TEMP"]["promql"].startswith('DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-node-054",UUID="GPU-')
    assert "gpt-neo-20b-worker-2" in shlex.split(queries["logs"]["kubectl"])
    json.loads(queries["kernel"]["es"])
    slurm = case_file(load_example("hang-data-loader"), source="x").queries
    assert "--jobs=560098" in shlex.split(slurm["gpu_hours"]["slurm"])
    assert queries["window"]["since"] < "2025-05-15T09:26:19" < queries["window"]["until"]


@pytest.mark.parametrize("name", ["$(touch x)", "a'b", "x; rm -rf /", '"}]}'])
def test_a_hostile_name_stays_one_word_of_a_command_and_one_text_of_a_query(name, tmp_path):
    case = _case(tmp_path, STEPS + FAIL, name=name)
    assert case.job["name"] == name
    for languages in case.queries.values():
        for language, text in languages.items():
            if language in ("slurm", "kubectl"):
                assert all(char not in word for word in shlex.split(text) for char in "\n;`") or name in shlex.split(text)
            elif language == "es":
                json.loads(text)


def test_a_node_named_like_an_option_gets_into_no_command():
    from workbench.casefile.queries import queries_for

    case = case_file(load_example("hang-data-loader"), source="x")
    made = queries_for(case, nodes=["--eval=x", "g1146"])
    assert shlex.split(made["conditions"]["slurm"])[-1] == "g1146"
