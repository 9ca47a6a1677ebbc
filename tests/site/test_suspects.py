"""Turn past incidents, findings and repairs into an order of suspects, and check that what is nobody's fault makes nobody suspect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.site.frames import frame
from workbench.site.model import ACTIONS, FINDINGS, INCIDENTS, SUSPECTS
from workbench.site.suspects import HALF, MOST, NOTE, WINDOW, suspects

NOW = 1_796_000_000.0


def incident(node: str = "gpu-1", days: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "id": "i",
        "time": NOW - days * 86400,
        "node": node,
        "gpu_index": 3,
        "cause": "hardware",
        "class": "hardware/gpu-memory",
        "at_fault": "gpu",
        **more,
    }


def ranked(
    incidents: Sequence[dict[str, Any]] = (), findings: Sequence[dict[str, Any]] = (), actions: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    return suspects(frame(incidents, INCIDENTS), frame(findings, FINDINGS), frame(actions, ACTIONS), NOW).to_dict("records")


def test_nothing_gives_an_empty_frame_with_its_columns() -> None:
    empty = suspects(None, frame([], FINDINGS), frame([], ACTIONS), NOW)
    assert (len(empty), list(empty.columns)) == (0, list(SUSPECTS))


def test_three_incidents_weigh_more_than_one_and_never_reach_certainty() -> None:
    rows = ranked([incident("a"), *[incident("b")] * 3, *[incident("c")] * 500])
    assert [row["node"] for row in rows] == ["c", "b", "a"]
    assert rows[1]["incidents"] == 3
    assert rows[1]["why"] == "3 × blamed for an incident"
    assert rows[0]["score"] <= 1.0


def test_what_is_long_ago_counts_less_and_then_not_at_all() -> None:
    fresh, older = ranked([incident("a"), incident("b", HALF / 86400)])
    assert fresh["node"] == "a"
    assert round(older["score"] / fresh["score"], 2) == 0.5
    assert ranked([incident("a", WINDOW / 86400 + 1)]) == []


def test_what_the_user_or_the_platform_did_makes_no_node_suspect() -> None:
    assert (
        ranked([incident(cause="user", at_fault="rank"), incident(cause="platform", at_fault="platform"), incident(cause="none")])
        == []
    )


def test_where_it_merely_happened_is_less_suspect_than_who_is_blamed() -> None:
    (there,) = ranked([incident("a", at_fault="")])
    (blamed,) = ranked([incident("a")])
    assert there["score"] < blamed["score"] / 2
    assert (
        there["gpu_index"] != there["gpu_index"] or there["gpu_index"] is None or str(there["gpu_index"]) == "<NA>"
    )  # the GPU is not blamed


def test_a_repair_that_had_to_be_repeated_counts_and_the_first_does_not() -> None:
    act = {"node": "gpu-1", "verb": "reset-gpu", "status": "done", "time": NOW - 3600}
    assert ranked(actions=[act]) == []
    (row,) = ranked(actions=[act, {**act, "time": NOW - 7200}, {**act, "status": "failed"}])
    assert row["why"] == "repaired again"


def test_findings_that_are_well_or_could_not_be_made_say_nothing() -> None:
    assert ranked(findings=[{"node": "a", "check": "x", "status": "ok"}, {"node": "a", "check": "x", "status": "unknown"}]) == []
    (row,) = ranked(findings=[{"node": "a", "check": "xid", "code": "xid-95", "status": "critical", "time": NOW}])
    assert row["why"] == "critical finding xid-95"


def test_the_list_is_as_long_as_a_person_reads_and_says_what_it_is_not() -> None:
    assert len(ranked([incident(f"n{i}") for i in range(500)])) == MOST
    assert "does not test against chance" in NOTE
