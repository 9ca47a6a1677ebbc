"""torchelastic: error files in their forms, and the agent's list of failures behind launchers' prefixes."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.model import Line
from workbench.parse.torchelastic import exception_of, parse_elastic_summary, parse_error_file

_STACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/errors/__init__.py", line 355, in wrapper\n'
    "    return f(*args, **kwargs)\n"
    '  File "/workspace/model.py", line 31, in forward\n    return self.emb(x)\n'
    '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/sparse.py", line 190, in forward\n'
    "IndexError: index out of range in self\n"
)


def test_error_file() -> None:
    data = {
        "message": {
            "message": "IndexError: index out of range in self",
            "extraInfo": {"py_callstack": _STACK, "timestamp": "1780000000"},
        }
    }
    (event,) = parse_error_file(data, file="errors/rank-3.attempt-1.json").events
    assert (event.signature, event.rank, event.attempt, event.time) == ("torchelastic-error-file", 3, 1, 1_780_000_000.0)
    assert event.text == "IndexError: index out of range in self"
    assert event.data["exception"] == "IndexError"
    assert event.data["frame"] == "forward (model.py:31)"


@pytest.mark.parametrize(
    ("data", "exception", "code"),
    [
        ({"message": "RuntimeError: NCCL error\nmore"}, "RuntimeError", None),
        ({"message": {"message": "exit", "errorCode": 42, "extraInfo": {}}}, None, 42),
        ({"message": {"message": "", "extraInfo": {"py_callstack": _STACK}}}, "IndexError", None),
        (
            {"message": {"message": "torch.distributed.DistStoreError: wait timeout", "extraInfo": {}}},
            "torch.distributed.DistStoreError",
            None,
        ),
        ({"error": {"message": {"message": "KeyError: 3"}}}, "KeyError", None),
    ],
)
def test_forms(data: Any, exception: str | None, code: int | None) -> None:
    (event,) = parse_error_file(data, file="error.json").events
    assert (event.data["exception"], event.code, event.rank) == (exception, code, None)


def test_the_path_of_torchelastic_has_the_local_rank() -> None:
    (event,) = parse_error_file({"message": "KeyError: 1"}, file="/tmp/torchelastic_ab/none_cd/attempt_2/5/error.json").events
    assert (event.rank, event.local_rank, event.attempt) == (None, 5, 2)


@pytest.mark.parametrize(
    "data", [None, [], {}, {"message": None}, {"message": {"message": ""}}, 3, {"message": {"extraInfo": 3}}]
)
def test_nothing_in_it_is_a_problem(data: Any) -> None:
    parsed = parse_error_file(data, file="rank-1.json")
    assert len(parsed.problems) == 1
    assert not parsed.events


def test_exception_of() -> None:
    assert exception_of("json.decoder.JSONDecodeError: Expecting value: line 1") == (
        "json.decoder.JSONDecodeError",
        "Expecting value: line 1",
    )
    assert exception_of("torch.cuda.OutOfMemoryError: CUDA out of memory") is not None
    assert exception_of("INFO: all fine") is None
    assert exception_of("step 3 done") is None


_SUMMARY = """\
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/workspace/train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-05-04_11:02:05
  host      : gpu-a
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 502)
  error_file: /tmp/torchelastic_x/none_y/attempt_1/1/error.json
  traceback : Traceback (most recent call last):
    File "/workspace/train.py", line 88, in step
      loss.backward()
  RuntimeError: Connection closed by peer

------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-05-04_11:02:03
  host      : gpu-a
  rank      : 11 (local_rank: 3)
  exitcode  : -9 (pid: 504)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 504
============================================================
"""


@pytest.mark.parametrize(
    "prefix", ["", "[pod/job-worker-0/pytorch] ", "2026-05-04T11:02:06.123456Z ", "gpu-a: ", "[1,0]<stderr>:", "0: "]
)
def test_summary_behind_any_prefix(prefix: str) -> None:
    lines = [Line(n, prefix + text) for n, text in enumerate(_SUMMARY.split("\n"), 1)]
    other, root = parse_elastic_summary(lines, file="job.log")
    assert (root.signature, root.rank, root.local_rank, root.node, root.pid, root.code) == (
        "torchelastic-root-cause",
        11,
        3,
        "gpu-a",
        504,
        -9,
    )
    assert root.time == 1_777_892_523.0
    assert root.data["signal"] == 9
    assert root.line == 24
    assert root.text == prefix + "  exitcode  : -9 (pid: 504)"
    assert (other.signature, other.rank, other.attempt) == ("torchelastic-failure", 9, 1)
    assert other.data["exception_text"] == "RuntimeError: Connection closed by peer"
    assert other.data["frame"] == "step (train.py:88)"


def test_two_agents_woven_into_one_log() -> None:
    one = ["a: " + text for text in _SUMMARY.split("\n")]
    two = ["b: " + text.replace("gpu-a", "gpu-b").replace("rank      : 11", "rank      : 21") for text in _SUMMARY.split("\n")]
    woven = [text for pair in zip(one, two, strict=True) for text in pair]
    events = parse_elastic_summary([Line(n, text) for n, text in enumerate(woven, 1)], file="job.log")
    assert {(e.node, e.rank) for e in events if e.signature == "torchelastic-root-cause"} == {("gpu-a", 11), ("gpu-b", 21)}
    assert len(events) == 4


def test_the_form_of_old_versions() -> None:
    text = """\
Root Cause:
[0]:
  time: 2021-10-15_18:26:06
  rank: 0 (local_rank: 0)
  exitcode: 1 (pid: 3283)
  error_file: <N/A>
  msg: "Process failed with exitcode 1"
=============================="""
    (event,) = parse_elastic_summary([Line(n, t) for n, t in enumerate(text.split("\n"), 1)], file="x")
    assert (event.rank, event.code, event.pid) == (0, 1, 3283)
