"""Which rung a fault has come to: where it begins, when it climbs, waits, comes down, and what is impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remediation.fleets import NOW, fleet, node, ours, tried, trouble, verbs_of, work
from workbench.catalog.findings import findings_table
from workbench.errors import CatalogError
from workbench.model import CLASSES, Gpu
from workbench.remediation.ladder import ladders, offenders
from workbench.remediation.model import VERBS, Plan, Trouble
from workbench.remediation.planner import make_plan


def rung_of(plan: Plan, name: str = "gpu-001") -> str:
    """Return the rung that the plan takes on a node; ``nothing`` for none."""
    return next((one.rung for one in plan.actions if one.node == name and one.verb != "exclude"), "nothing")


def reasons(plan: Plan) -> set[str]:
    return {one.guard for one in plan.refused}


@pytest.mark.parametrize(
    ("cls", "action", "severity", "first"),
    [
        ("hardware/gpu-lost", "reboot-node", "critical", "reboot-node"),
        ("hardware/gpu-memory", "reset-gpu", "critical", "reset-gpu"),
        ("hardware/gpu-memory", "replace-node", "critical", "replace-node"),
        ("hardware/network-link", "drain", "critical", "evacuate"),
        ("hardware/sdc", "drain", "critical", "evacuate"),
        ("driver/missing", "fix-platform", "critical", "cordon"),
        ("platform/storage", "fix-platform", "critical", "cordon"),
        ("platform/preemption", "restart-task", "critical", "nothing"),
        ("user/gpu-oom", "fix-user-code", "critical", "nothing"),
        ("unknown", "none", "critical", "nothing"),
        ("hardware/gpu-other", "none", "warning", "nothing"),
    ],
)
def test_a_fault_begins_at_the_rung_that_it_calls_for(cls: str, action: str, severity: str, first: str) -> None:
    wrong = trouble(cls=cls, cause=cls.split("/")[0], action=action, severity=severity)

    assert rung_of(make_plan([wrong], fleet(node(claim="claim-1")))) == first


def test_every_finding_and_class_has_a_ladder() -> None:
    """No row of the catalog falls through, and what is no node's fault moves no node."""
    table = ladders()
    for row in findings_table().values():
        wrong = Trouble("n", row.code, row.cls, row.action, row.status, cause=row.cls.split("/")[0])
        assert table.of(wrong).climb
        if row.action == "none" and row.status != "unknown":
            assert table.of(wrong).climb[0] in ("tolerate", "cordon", "evacuate")
    for cls in CLASSES:
        if cls.startswith("user/"):
            assert table.of(Trouble("n", "x", cls, "fix-user-code", cause="user")).climb == ("tolerate",)


def test_it_climbs_when_its_tries_are_used_up() -> None:
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory")
    once = tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, 7200)
    twice = once + tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, 5400)

    assert rung_of(make_plan([wrong], fleet(), past=once)) == "reset-gpu"
    assert rung_of(make_plan([wrong], fleet(), past=twice)) == "reboot-node"


@pytest.mark.parametrize("ending", ["failed", "expired"])
def test_it_climbs_at_once_when_a_rung_failed_or_expired(ending: str) -> None:
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory")
    past = tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, 600, ending)

    assert rung_of(make_plan([wrong], fleet(), past=past)) == "reboot-node"


def test_it_climbs_when_the_check_under_load_failed_after_it() -> None:
    """The reset itself was done; the node was not well after it."""
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory")
    past = tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, 900) + tried(
        "gpu-001", "validate", "reset-gpu", wrong.id, 600, "failed"
    )

    assert rung_of(make_plan([wrong], fleet(), past=past)) == "reboot-node"


def test_a_fault_that_says_another_code_is_the_same_fault() -> None:
    """Xid 48 today and Xid 95 tomorrow are one sick memory."""
    first, second = (trouble(action="reset-gpu", cls="hardware/gpu-memory", code=code) for code in ("xid-48", "xid-95"))
    past = [entry for ago in (7200, 5400) for entry in tried("gpu-001", "reset-gpu", "reset-gpu", first.id, ago)]

    assert rung_of(make_plan([second], fleet(), past=past)) == "reboot-node"


def test_another_gpu_of_the_node_begins_anew_until_the_node_itself_is_the_suspect() -> None:
    other = trouble(gpu=Gpu(5, "GPU-5"), action="reset-gpu", cls="hardware/gpu-memory")
    two, four = (
        [e for number in range(count) for e in tried("gpu-001", "reset-gpu", "reset-gpu", f"gpu-{number}", 7200)]
        for count in (2, 4)
    )

    assert rung_of(make_plan([other], fleet(), past=two)) == "reset-gpu"
    assert rung_of(make_plan([other], fleet(), past=four)) == "reboot-node"


def test_it_comes_down_again_when_the_fault_stayed_away() -> None:
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory")
    past = [entry for ago in (30 * 3600, 28 * 3600) for entry in tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, ago)]

    assert rung_of(make_plan([wrong], fleet(), past=past)) == "reset-gpu"


def test_a_rung_cools_down_before_it_is_tried_again() -> None:
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory")
    plan = make_plan([wrong], fleet(), past=tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, 600))

    assert rung_of(plan) == "nothing"
    (refusal,) = plan.refused
    assert (refusal.guard, refusal.until) == ("cool-down", NOW - 540 + 1800)


def test_a_rung_that_goes_on_keeps_its_ids() -> None:
    """A plan made while the reboot is under way names the same reboot, so nobody does it twice."""
    wrong = trouble()
    first = make_plan([wrong], fleet())
    (reboot,) = [one for one in first.actions if one.verb == "reboot"]
    past = tried("gpu-001", "reboot", "reboot-node", wrong.id, 30, "", reboot.id)
    again = make_plan([wrong], fleet(), past=past)

    assert [one.id for one in again.actions if one.verb == "reboot"] == [reboot.id]


def test_after_an_end_that_nobody_knows_a_person_must_look() -> None:
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory")
    plan = make_plan([wrong], fleet(), past=tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, 7200, "unknown"))

    assert rung_of(plan) == "nothing"
    assert reasons(plan) == {"unknown-outcome"}


def test_at_the_top_a_person_must_look() -> None:
    wrong = trouble()
    past = [
        entry
        for verb, rung in (("reboot", "reboot-node"), ("replace", "replace-node"), ("ticket", "report"))
        for entry in tried("gpu-001", verb, rung, wrong.id, 3600, "failed")
    ]

    assert reasons(make_plan([wrong], fleet(), past=past)) == {"exhausted"}


@pytest.mark.parametrize(
    ("confidence", "job", "rung"),
    [(0.95, "j", "reboot-node"), (0.7, "j", "cordon"), (0.55, "j", "exclude-node"), (0.55, "", "nothing"), (0.3, "j", "nothing")],
)
def test_slowly_on_doubt_quickly_on_certainty(confidence: float, job: str, rung: str) -> None:
    plan = make_plan([trouble(confidence=confidence, job=job)], fleet())

    assert rung_of(plan) == rung or {one.rung for one in plan.actions} == {rung}
    if confidence < 0.85:
        assert "doubt" in reasons(plan)


def test_what_could_not_be_checked_is_waited_out_first() -> None:
    blind = trouble(code="not-checked", cls="", cause="", action="none", severity="unknown", confidence=0.0, gpu=None)
    later = trouble(
        code="not-checked", cls="", cause="", action="none", severity="unknown", confidence=0.0, gpu=None, since=NOW - 1200
    )

    assert reasons(make_plan([blind], fleet())) == {"unseen-yet"}
    assert verbs_of(make_plan([later], fleet()).actions, "gpu-001") == ["cordon"]


def test_a_warning_never_ends_running_work() -> None:
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory", severity="warning", code="remap-pending")
    plan = make_plan([wrong], fleet(node(work=(work(),))))

    assert verbs_of(plan.actions, "gpu-001") == ["cordon", "collect", "drain", "reset-gpu", "validate", "uncordon"]


@pytest.mark.parametrize(
    ("change", "without", "rung"),
    [
        ({"gpu": None}, (), "reboot-node"),  # a reset needs to know which
        ({}, ("reset-gpu",), "reboot-node"),
        ({}, ("reset-gpu", "reboot"), "report"),  # no claim either
        ({}, ("reset-gpu", "reboot", "collect"), "nothing"),  # without evidence first nothing is done for good
    ],
)
def test_what_is_impossible_is_passed_over(change: dict[str, None], without: tuple[str, ...], rung: str) -> None:
    wrong = trouble(action="reset-gpu", cls="hardware/gpu-memory", **change)

    assert rung_of(make_plan([wrong], fleet(), verbs=set(VERBS) - set(without))) == rung


def test_on_metal_nothing_is_replaced_by_an_api() -> None:
    wrong = trouble(action="replace-node", cls="hardware/gpu-memory")

    assert rung_of(make_plan([wrong], fleet(node(claim="c", environment="cloud")))) == "replace-node"
    assert rung_of(make_plan([wrong], fleet(node(claim="c", environment="metal")))) == "report"


def test_evidence_is_kept_before_anything_that_cannot_be_taken_back() -> None:
    """Whatever the ladder: in each plan `collect` stands before the first destructive step."""
    for action in ("reset-gpu", "reboot-node", "replace-node", "drain"):
        plan = make_plan([trouble(action=action)], fleet(node(claim="c", work=(work(),))))
        verbs = verbs_of(plan.actions, "gpu-001")
        destructive = [number for number, one in enumerate(plan.actions) if one.destructive]
        assert destructive, action
        assert verbs.index("collect") < destructive[0], action


def test_a_site_replaces_a_rung_and_asks_its_own_ladder_first(tmp_path: Path) -> None:
    (tmp_path / "ladders-ours.toml").write_text(
        'schema = "workbench.ladders/1"\n'
        '[rung.reset-gpu]\nmeaning = "ours"\nsteps = ["cordon", "collect", "leave", "reset-gpu"]\nsure = 0.5\nattempts = 9\nwindow = "1d"\n'
        'cool_down = "0s"\ndeadline = "5m"\ndown = 1\nneeds = []\nsource = "runbook 7"\n'
        '[[ladder]]\nname = "lost means replace here"\ncodes = ["xid-79"]\nclimb = ["replace-node", "report"]\nsource = "runbook 8"\n'
    )
    table = ladders(str(tmp_path))

    assert table.rungs["reset-gpu"].attempts == 9
    assert rung_of(make_plan([trouble()], fleet(node(claim="c")), table=table)) == "replace-node"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rung.reset]\n", "none of tolerate"),
        ("[rung.cordon]\nmeaning = 3\n", "meaning is a str"),
        ('[rung.cordon]\nmeaning = "x"\n', "has no steps"),
        ('[[ladder]]\nname = "x"\nclimb = ["reset"]\nsource = ""\n', "'reset' is none of"),
        ('[[ladder]]\nname = "x"\nclimb = []\nsource = ""\n', "climb is empty"),
        ('[[ladder]]\nname = "x"\nclimb = ["cordon"]\nsource = ""\ncauses = ["hardwear"]\n', "'hardwear' is none of"),
        ('[[ladder]]\nname = "x"\nclimb = ["cordon"]\nsource = ""\nunseen_for = "soon"\n', "no time span"),
        ("[[ladder]\n", "ladders-x.toml"),
    ],
)
def test_a_wrong_table_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "ladders-x.toml").write_text('schema = "workbench.ladders/1"\n' + text)

    with pytest.raises(CatalogError, match=r"ladders-x\.toml") as raised:
        ladders(str(tmp_path))
    assert said in str(raised.value)


def test_who_had_to_be_mended_more_than_once_is_listed() -> None:
    """What only waited, was refused, or is long ago does not count."""
    past = [
        *tried("gpu-001", "reboot", "reboot-node", "a", 86400),
        *tried("gpu-001", "reset-gpu", "reset-gpu", "b", 3600, "failed"),
        *tried("gpu-002", "reboot", "reboot-node", "a", 86400),
        *tried("gpu-002", "cordon", "cordon", "a", 3600),
        *tried("gpu-003", "reboot", "reboot-node", "a", 86400, "refused"),
        *tried("gpu-003", "reboot", "reboot-node", "a", 3600),
        *tried("gpu-004", "reboot", "reboot-node", "a", 90 * 86400),
        *tried("gpu-004", "reboot", "reboot-node", "a", 3600),
    ]

    ((name, tries),) = offenders(past, NOW)
    assert name == "gpu-001"
    assert [one.rung for one in tries] == ["reboot-node", "reset-gpu"]


def test_after_the_node_came_back_its_cordon_is_another_one() -> None:
    """Else the journal would say that it is done already, and the node would keep its work for ever."""
    wrong = trouble()
    first = make_plan([wrong], fleet()).actions
    cordoned = tried("gpu-001", "cordon", "reboot-node", wrong.id, 7200, action=first[0].id)
    going_on = make_plan([wrong], fleet(ours("gpu-001", op=first[0].id)), past=cordoned).actions
    again = make_plan([wrong], fleet(), past=cordoned).actions

    assert {one.id for one in going_on} < {one.id for one in first}
    assert not {one.id for one in again} & {one.id for one in first}
