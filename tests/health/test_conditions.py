"""Findings become conditions whose times tell since when, and which are written no oftener than they must."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from workbench.health.conditions import FIT, HEARTBEAT, NodeCondition, conditions_of, is_stale, to_write
from workbench.health.finding import STATUSES, Finding
from workbench.model import Gpu

NOW = 1.8e9
BAD = Finding("gpu-memory", "critical", "uncorrected errors", "smi-ecc-uncorrectable", "n", Gpu(3), cls="hardware/gpu-memory")
OTHER = replace(BAD, code="smi-remap-failure", summary="no spare row")
GOOD = Finding("gpu-memory", "ok", "no errors", "", "n", Gpu(3))
BLIND = Finding("driver", "unknown", "no answer", "unread-time-out", "n", cls="driver/other")


def _by_type(conditions: list[NodeCondition]) -> dict[str, NodeCondition]:
    return {one.type: one for one in conditions}


def test_true_is_bad_and_unknown_is_not_good() -> None:
    found = _by_type(conditions_of([BAD, BLIND], now=NOW))
    assert (found["WorkbenchGpuMemoryProblem"].status, found["WorkbenchGpuMemoryProblem"].reason) == (
        "True",
        "SmiEccUncorrectable",
    )
    assert found["WorkbenchDriverProblem"].status == "Unknown"
    assert (found[FIT].status, "GPU 3" in found[FIT].message, "1 more" in found[FIT].message) == ("True", True, True)


def test_the_reason_is_the_finding_that_asks_for_most() -> None:
    more = replace(BAD, code="smi-sram-threshold", summary="replace it", action="replace-node")
    found = _by_type(conditions_of([BAD, more], now=NOW))
    assert {found[name].reason for name in (FIT, "WorkbenchGpuMemoryProblem")} == {"SmiSramThreshold"}


def test_what_is_well_is_said_under_the_condition_it_was_looked_for() -> None:
    found = _by_type(conditions_of([GOOD], now=NOW))
    assert found["WorkbenchGpuMemoryProblem"].status == "False"
    assert found["WorkbenchGpuMemoryProblem"].reason == "GpuMemoryHealthy"
    assert found[FIT].status == "False"


def test_nothing_checked_is_not_fit() -> None:
    assert [one.status for one in conditions_of([], now=NOW)] == ["Unknown"]
    assert [one.status for one in conditions_of([replace(GOOD, status="not-applicable")], now=NOW)] == ["Unknown"]


def test_warnings_and_optional_findings_make_no_condition_bad() -> None:
    for one in (replace(BAD, status="warning"), replace(BAD, required=False), replace(BLIND, required=False)):
        assert {each.status for each in conditions_of([one, GOOD], now=NOW)} == {"False"}


def test_unchanged_conditions_wait_for_their_heartbeat() -> None:
    there = conditions_of([BAD], now=NOW)
    assert to_write(conditions_of([BAD], now=NOW + 60), there) == []
    renewed = to_write(conditions_of([BAD], now=NOW + HEARTBEAT), there)
    assert {one.type for one in renewed} == {one.type for one in there}
    assert {(one.heartbeat, one.transition) for one in renewed} == {(NOW + HEARTBEAT, NOW)}


def test_reasons_that_take_turns_do_not_start_the_clock_again() -> None:
    """Who waits for a node to be bad for ten minutes would wait for ever."""
    there, now = conditions_of([BAD], now=NOW), NOW
    for turn in range(20):
        now += 60
        written = {one.type: one for one in to_write(conditions_of([OTHER if turn % 2 == 0 else BAD], now=now), there)}
        assert written
        there = [written.get(one.type, one) for one in there]
    assert {one.transition for one in there} == {NOW}


def test_a_kind_that_is_no_longer_looked_for_does_not_stay_good() -> None:
    there = [*conditions_of([GOOD, BLIND], now=NOW), NodeCondition("Ready", "True", "KubeletReady", "", NOW, NOW)]
    written = _by_type(to_write(conditions_of([BLIND], now=NOW + 9), there))
    assert (written["WorkbenchGpuMemoryProblem"].status, written["WorkbenchGpuMemoryProblem"].reason) == (
        "Unknown",
        "NoLongerChecked",
    )
    assert "Ready" not in written


def test_a_checker_that_died_leaves_stale_conditions() -> None:
    (one, *_) = conditions_of([GOOD], now=NOW)
    assert not is_stale(one, NOW + HEARTBEAT)
    assert is_stale(one, NOW + 4 * HEARTBEAT)


def test_kubernetes_form_and_back() -> None:
    (one, *_) = conditions_of([BAD], now=NOW)
    assert NodeCondition.of(one.to_dict()) == one
    assert one.to_dict()["lastHeartbeatTime"] == "2027-01-15T08:00:00Z"


_FINDINGS = st.builds(
    Finding,
    check=st.sampled_from(["driver", "gpu-memory", "gpu-count", "xid", "of-a-site"]),
    status=st.sampled_from(STATUSES),
    summary=st.text(max_size=900),
    code=st.sampled_from(["", "xid-79", "unread-time-out"]),
    required=st.booleans(),
    cls=st.sampled_from(["", "hardware/gpu-lost", "driver/hang"]),
)


@given(st.lists(_FINDINGS, max_size=12))
def test_an_unfit_node_never_looks_fit(findings: list[Finding]) -> None:
    found = _by_type(conditions_of(findings, now=NOW))
    assert (found[FIT].status == "False") == (
        any(one.status != "not-applicable" for one in findings) and not any(one.unfit for one in findings)
    )
    assert all(len(one.message) <= 520 and one.reason.isalnum() for one in found.values() if one.status != "False")
    assert to_write(list(found.values()), list(found.values())) == []
