"""What findings and verdicts say is wrong: with whom, how surely, since when; and what says nothing about a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

import workbench
from tests.remediation.fleets import NOW, fleet, node, trouble, verbs_of
from workbench import remediation
from workbench.health.finding import Finding
from workbench.model import Gpu
from workbench.remediation.troubles import Report, of_findings, of_verdict, read_document, together
from workbench.report.verdict_json import to_json

GPU = Gpu(3, "GPU-3", "0000:3b:00.0")
XID = Finding(
    "xid",
    "critical",
    "Xid 79 on GPU 3",
    "xid-79",
    "gpu-001",
    GPU,
    cls="hardware/gpu-lost",
    action="reboot-node",
    evidence=("a", "b"),
    since=NOW - 99,
)
BLIND = Finding("gpu-count", "unknown", "nvidia-smi did not answer", "unread", "gpu-001", cls="hardware/gpu-lost")


def test_a_finding_becomes_a_trouble_with_its_evidence() -> None:
    (found,), checked = of_findings(Report("gpu-001", (XID,), NOW, "boot-1"))

    assert (found.cls, found.action, found.severity, found.confidence, found.gpu) == (
        "hardware/gpu-lost",
        "reboot-node",
        "critical",
        1.0,
        GPU,
    )
    assert (found.seen, found.since, found.boot) == (NOW, NOW - 99, "boot-1")
    assert [one.text for one in found.evidence] == ["a", "b"]
    assert checked is not None
    assert not checked.fit


def test_many_checks_that_could_not_look_are_one_trouble() -> None:
    blind = [Finding(name, "unknown", "no answer", "unread", "gpu-001") for name in ("xid", "ecc", "nvlink")]
    (found,), _ = of_findings(Report("gpu-001", tuple(blind), NOW))

    assert (found.severity, found.code, found.confidence) == ("unknown", "not-checked", 0.0)
    assert "ecc, nvlink, xid" in found.summary


@pytest.mark.parametrize(
    "finding",
    [
        Finding("xid", "ok", "fine", node="gpu-001"),
        Finding("mig", "not-applicable", "no MIG", node="gpu-001"),
        Finding("dcgm", "unknown", "not there", "unread", "gpu-001", required=False),
        Finding("clock", "warning", "3 ms off", "clock-off", "gpu-001", required=False, action="none"),
    ],
)
def test_what_calls_for_nothing_is_no_trouble(finding: Finding) -> None:
    found, checked = of_findings(Report("gpu-001", (finding,), NOW))

    assert not found
    assert checked is not None
    assert checked.fit


def test_no_findings_at_all_are_no_sign_of_health() -> None:
    _, checked = of_findings(Report("gpu-001", (), NOW))

    assert checked is not None
    assert not checked.fit


def test_findings_of_no_known_time_move_nothing() -> None:
    """A report without a time could be a year old."""
    plan = remediation.plan([Report("gpu-001", (XID,), None)], [], fleet())
    old = remediation.plan([Report("gpu-001", (XID,), NOW - 86400)], [], fleet())

    assert [one.guard for one in plan.refused] == ["stale"] or not plan.actions
    assert [one.guard for one in old.refused] == ["stale"]


def test_what_check_prints_is_read_back() -> None:
    document = {
        "schema": "workbench.findings/1",
        "node": "gpu-001",
        "time": "2026-05-28T20:26:40Z",
        "boot": "b",
        "findings": [XID.to_dict(), BLIND.to_dict()],
    }
    report = read_document(json.loads(json.dumps(document)))

    assert isinstance(report, Report)
    assert report.findings == (XID, BLIND)
    assert (report.time, report.boot) == (NOW, "b")


@pytest.mark.parametrize(
    "table",
    [
        None,
        [],
        {},
        {"schema": "workbench.plan/1"},
        {"schema": "workbench.findings/1"},
        {"schema": "workbench.findings/1", "node": "n", "findings": [{}]},
    ],
)
def test_what_is_neither_is_told(table: Any) -> None:
    with pytest.raises(ValueError, match=r"findings|verdict"):
        read_document(table)


@pytest.mark.parametrize("name", workbench.examples())
def test_of_every_shipped_verdict_the_record_and_its_json_say_the_same(name: str) -> None:
    verdict = workbench.load_example(name).triage()
    document = json.loads(json.dumps(to_json(verdict)))

    assert of_verdict(verdict) == of_verdict(document)
    assert (of_verdict(document) is not None) is (document["culprit"]["at_fault"] in ("gpu", "node"))


def test_a_verdict_moves_the_node_that_it_blames() -> None:
    verdict = workbench.load_example("gpu-memory").triage()
    blamed = verdict.node
    assert blamed is not None
    found = of_verdict(verdict, job="gpt-neo-20b")
    assert found is not None
    state = fleet(node(blamed, booted=found.newest - 9e5, boot=""), size=20)  # type: ignore[operator]
    state = type(state)(found.newest + 60, state.nodes, "test")  # type: ignore[operator]
    plan = remediation.plan([], [{**to_json(verdict), "job": "gpt-neo-20b"}], state)

    assert verbs_of(plan.actions, blamed)[:2] == ["cordon", "collect"]
    assert "exclude" in verbs_of(plan.actions, blamed)


def test_a_place_is_not_a_culprit() -> None:
    """User code fails somewhere, and the place where it does is innocent."""
    document = to_json(workbench.load_example("gpu-memory").triage())
    for at_fault in ("rank", "job", "platform", None):
        assert of_verdict({**document, "culprit": {**document["culprit"], "at_fault": at_fault}}) is None


@pytest.mark.parametrize("broken", [{}, {"culprit": {}}, {"class": "hardware/unheard", "culprit": {}}, {"class": 3}])
def test_what_is_no_verdict_is_told(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no verdict|none that"):
        of_verdict(broken)


def test_a_gpu_named_by_address_and_by_uuid_is_one() -> None:
    by_both, by_address = trouble(), trouble(gpu=Gpu(None, None, "0000:3b:00.0"), confidence=0.5, seen=NOW - 5)

    (found,) = together([by_both, by_address])
    assert (found.confidence, found.seen) == (1.0, NOW - 5)
    assert len(together([by_both, trouble(gpu=Gpu(5, "GPU-5"))])) == 2
