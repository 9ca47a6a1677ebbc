"""What was seen before decides with what is seen now: no flapping, and nothing is forgotten before it was mended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.health.finding import STATUSES, Finding
from workbench.health.settle import Past, settle
from workbench.model import Gpu

NOW = 1.8e9
GPU = Gpu(3, "GPU-1", "0000:3b:00.0")
XID = Finding("xid", "critical", "Xid 79", "xid-79", "n", GPU, cls="hardware/gpu-lost", action="reboot-node")
WELL = Finding("xid", "ok", "no Xid", "", "n", GPU)
HOT = Finding("thermal-power", "critical", "92 C", "smi-throttle-thermal", "n", GPU, action="drain")
FABRIC = Finding("fabric", "critical", "in progress", "smi-fabric-not-ready", "n", GPU, action="reboot-node")


def _run(findings: list[Finding], past: Past, at: float, boot: str = "b1", **more: object) -> tuple[list[Finding], Past]:
    found, kept = settle(findings, past, now=at, boot=boot, **more)  # type: ignore[arg-type]
    return found, Past.of(json.loads(json.dumps(kept.to_dict())))  # as it comes back from the disk


def test_a_fatal_xid_outlives_the_log_that_held_it() -> None:
    _, past = _run([XID], Past(), NOW)
    (again,), past = _run([WELL], past, NOW + 3600)
    assert (again.status, again.code, again.gpu, again.since, again.action) == ("critical", "xid-79", GPU, NOW, "reboot-node")
    assert "last seen" in again.summary
    (still,), _ = _run([WELL], past, NOW + 90 * 86400)
    assert still.status == "critical"


def test_a_boot_clears_what_is_sticky_and_a_restart_of_ours_does_not() -> None:
    _, past = _run([XID], Past(), NOW)
    (same,), past = _run([WELL], past, NOW + 60, boot="b1")
    assert same.status == "critical"
    (unsure,), past = _run([WELL], past, NOW + 120, boot="")  # the boot id could not be read
    assert unsure.status == "critical"
    (after,), _ = _run([WELL], past, NOW + 180, boot="b2")
    assert after.status == "ok"


@pytest.mark.parametrize(("name", "at", "cleared"), [("GPU-1", 30, True), ("GPU-2", 30, False), ("0000:3b:00.0", -30, False)])
def test_a_reset_clears_only_this_gpu_and_only_what_was_before(name: str, at: float, cleared: bool) -> None:
    _, past = _run([XID], Past(), NOW)
    (found,), _ = _run([WELL], past, NOW + 60, resets={name: NOW + at})
    assert (found.status == "ok") == cleared


def test_strikes_within_their_window() -> None:
    past, told = Past(), []
    for at in (0, 300, 600):
        (found,), past = _run([HOT], past, NOW + at)
        told.append((found.status, found.action, found.since))
    assert told == [("warning", "none", NOW), ("warning", "none", NOW), ("critical", "drain", NOW)]
    rare, past = [], Past()
    for at in (0, 1000, 2000, 3000):
        (found,), past = _run([HOT], past, NOW + at)
        rare.append(found.status)
    assert set(rare) == {"warning"}


def test_a_strike_counts_though_a_good_run_lies_between() -> None:
    past = Past()
    for at, seen in ((0, [HOT]), (200, []), (400, [HOT]), (600, []), (800, [HOT])):
        found, past = _run(seen, past, NOW + at)
    assert [one.status for one in found] == ["critical"]


def test_a_node_that_comes_up_is_not_judged_and_not_fit() -> None:
    (early,), past = _run([FABRIC], Past(), NOW, booted=NOW - 60)
    assert (early.status, early.action, early.unfit) == ("unknown", "none", True)
    (late,), _ = _run([FABRIC], past, NOW + 400, booted=NOW - 60)
    assert (late.status, late.action) == ("critical", "reboot-node")


def test_a_clock_that_jumped_back_gives_no_grace() -> None:
    (found,), _ = _run([FABRIC], Past(), NOW, booted=NOW + 999)
    assert found.status == "critical"


@pytest.mark.parametrize("document", [None, {}, {"seen": 3}, {"seen": {"k": 1}}, {"seen": {"k": {"times": 1}}}, {"boot": 5}])
def test_a_state_that_is_none_of_ours_is_no_past(document: dict[str, object] | None) -> None:
    found, _ = settle([XID], Past.of(document), now=NOW, boot="b1")
    assert [one.status for one in found] == ["critical"]


_FINDINGS = st.lists(
    st.builds(
        Finding,
        check=st.sampled_from(["xid", "fabric", "thermal-power", "mounts"]),
        status=st.sampled_from(STATUSES),
        summary=st.just("s"),
        code=st.sampled_from(["xid-79", "smi-fabric-not-ready", "smi-throttle-thermal", "unread-time-out", "mount-hangs"]),
        gpu=st.sampled_from([None, GPU, Gpu(1)]),
    ),
    max_size=4,
)


@given(st.lists(_FINDINGS, max_size=6))
def test_nothing_critical_becomes_ok_and_history_stays_small(runs: list[list[Finding]]) -> None:
    past = Past()
    for at, findings in enumerate(runs):
        found, past = _run(findings, past, NOW + 60 * at)
        for one in findings:
            if one.status in ("critical", "unknown", "warning"):
                mine = [each for each in found if (each.check, each.code, each.gpu) == (one.check, one.code, one.gpu)]
                assert mine
                assert all(each.status not in ("ok", "not-applicable") for each in mine if each.since is not None)
        assert len(past.seen) <= 60
    again, same = settle([], Past.of(past.to_dict()), now=NOW + 1e9, boot="another")
    assert again == []
    assert same.seen == {}


def test_the_same_finding_twice_is_one_series() -> None:
    found, past = _run([XID, replace(XID, gpu=Gpu(4, "GPU-2"))], Past(), NOW)
    assert len(found) == len(past.seen) == 2
