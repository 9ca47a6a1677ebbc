"""Whose a pod is: by the labels of sites and the queues of schedulers, the surest first, and nothing where nothing tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from workbench.casefile import open_path
from workbench.catalog import table
from workbench.inbox.kubernetes import signs_of_pod
from workbench.inbox.rows import facts_of
from workbench.parse.kubernetes_owners import owner_of


@pytest.mark.parametrize("row", table("owner_labels"), ids=lambda row: row["key"])
@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_each_key_of_the_table_tells_as_label_and_as_annotation(row: dict[str, str], part: str) -> None:
    """Every row says where it is known from."""
    assert owner_of({part: {row["key"]: "speech"}}) == {"user": None, "team": None} | {row["who"]: "speech"}
    assert row["source"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"])


def test_a_site_s_own_word_counts_before_a_queue_and_a_label_before_an_annotation() -> None:
    """A queue may be shared, a label of that name is meant."""
    assert owner_of({"labels": {"kai.scheduler/queue": "default-queue", "team": "speech"}})["team"] == "speech"
    assert owner_of({"annotations": {"team": "old"}, "labels": {"team": "speech"}})["team"] == "speech"


@pytest.mark.parametrize("meta", [{}, {"labels": None}, {"labels": ["team"]}, {"labels": {"team": ""}}])
def test_nothing_is_made_up(meta: dict[str, object]) -> None:
    """Odd objects tell nobody."""
    assert owner_of(meta) == {"user": None, "team": None}


def _pod(name: str, **meta: object) -> dict[str, object]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    ended = {
        "terminated": {
            "exitCode": 1,
            "reason": "Error",
            "startedAt": "2026-05-04T10:00:00Z",
            "finishedAt": "2026-05-04T11:02:00Z",
        }
    }
    labels = {"batch.kubernetes.io/job-name": "llm", "kai.scheduler/queue": "speech"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "uid": f"uid-{name}", "creationTimestamp": "2026-05-04T10:00:00Z", "labels": labels, **meta},
        "spec": {"nodeName": "gpu-1", "containers": [container]},
        "status": {"phase": "Failed", "startTime": "2026-05-04T10:00:00Z", "containerStatuses": [{"name": "main", "state": ended}]},
    }  # fmt: skip


def test_the_team_of_a_failed_job_is_told_by_the_watch_and_by_its_case(tmp_path: Path) -> None:
    """The row of the inbox has it while the job fails, and also when the evidence is opened years later."""
    pod = _pod("llm-0")
    (signs,) = [sign for sign, _ in signs_of_pod(pod, 1777892600.0)]
    assert (signs.job, signs.team) == ("llm", "speech")

    (tmp_path / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    (tmp_path / "llm-0.log").write_text(
        "[rank0]: 2026-05-04 11:01:58,000 INFO step 12\n[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "train.py", line 3, in <module>\n[rank0]: ValueError: no such data set\n'
    )
    facts = facts_of(open_path(str(tmp_path)))
    assert (facts["namespace"], facts["team"]) == ("train", "speech")
