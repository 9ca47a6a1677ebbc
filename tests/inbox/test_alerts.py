"""Alerts find the incident that they ring for; those of nothing known begin one; what is no alert is refused in clear words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inbox.conftest import START, World, sign, verdict_of
from workbench.inbox.alerts import AlertsRefused, Received, receive
from workbench.inbox.store import Inbox


def alert(name: str = "GpuXid", *, starts: float = START, status: str = "firing", **labels: str) -> dict[str, Any]:
    """Return one alert as Alertmanager posts it."""
    from datetime import UTC, datetime

    return {
        "status": status, "labels": {"alertname": name, "severity": "critical", **labels}, "annotations": {"summary": f"{name} rings"},
        "startsAt": datetime.fromtimestamp(starts, UTC).isoformat().replace("+00:00", "Z"), "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph", "fingerprint": f"{abs(hash((name, tuple(sorted(labels.items()))))):016x}"[:16],
    }  # fmt: skip


def payload(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what Alertmanager posts."""
    return {
        "version": "4", "groupKey": "{}:{}", "truncatedAlerts": 0, "status": "firing", "receiver": "workbench", "groupLabels": {},
        "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://am", "alerts": list(alerts), **more,
    }  # fmt: skip


def actions(found: list[Received]) -> list[str]:
    """Return the words alone."""
    return [one.action for one in found]


@pytest.fixture
def failed(world: World) -> World:
    """A job failed on two nodes, was triaged and told."""
    world.scheduler.show(sign("llm", time=START, nodes=("gpu-1.cluster", "gpu-2.cluster"), pods=("llm-0", "llm-1")))
    world.run(60)
    assert len(world.bell.rung) == 1
    return world


@pytest.mark.parametrize(
    "labels",
    [
        {"job_name": "llm", "namespace": "ml"},
        {"exported_job_id": "llm"},
        {"pod": "llm-1", "namespace": "ml"},
        {"exported_pod": "llm-0", "exported_namespace": "ml", "namespace": "monitoring"},
        {"Hostname": "gpu-1", "gpu": "3"},
        {"node": "gpu-2.cluster"},
        {"job_name": "llm-worker-0", "namespace": "ml"},
        {"instance": "gpu-2:9400", "job": "dcgm-exporter"},
    ],
)
def test_an_alert_of_the_job_its_pods_or_nodes_attaches_and_tells_nobody(failed: World, labels: dict[str, str]) -> None:
    found = receive(failed.inbox, payload(alert(starts=START + 120, **labels)))
    failed.run(600)
    (entry,) = failed.inbox.entries()

    assert actions(found) == ["attached"]
    assert len(entry.alerts) == 1
    assert len(failed.bell.rung) == 1
    assert failed.collections == ["llm"]
    assert "alert" in [line["what"] for line in failed.inbox.history(entry.id)]


@pytest.mark.parametrize(
    ("labels", "starts"),
    [
        ({"job_name": "other", "namespace": "ml", "node": "gpu-1"}, START),
        ({"job_name": "llm", "namespace": "other"}, START),
        ({"node": "gpu-9"}, START),
        ({"node": "gpu-1"}, START - 7200),
        ({"node": "gpu-1"}, START + 7200),
        ({"pod": "llm-0", "namespace": "other"}, START),
    ],
)
def test_an_alert_of_something_else_begins_its_own(failed: World, labels: dict[str, str], starts: float) -> None:
    failed.now = START + 7300
    assert actions(receive(failed.inbox, payload(alert(starts=starts, **labels)))) == ["started"]
    assert len(failed.inbox.entries()) == 2


def test_the_same_alert_again_changes_nothing(failed: World) -> None:
    one = payload(alert(node="gpu-1"))
    assert actions(receive(failed.inbox, one)) == ["attached"]
    before = failed.inbox.history(failed.inbox.entries()[0].id)
    assert actions(receive(failed.inbox, one)) == ["repeated"]

    assert failed.inbox.history(failed.inbox.entries()[0].id) == before


def test_a_resolved_alert_is_recorded_and_one_of_nothing_ignored(failed: World) -> None:
    receive(failed.inbox, payload(alert(node="gpu-1")))
    found = receive(
        failed.inbox, payload(alert(node="gpu-1", status="resolved"), alert("Other", node="gpu-7", status="resolved"))
    )
    (entry,) = failed.inbox.entries()

    assert actions(found) == ["resolved", "ignored"]
    assert [one["status"] for one in entry.data["alerts"].values()] == ["resolved"]
    assert entry.state == "new", "an alert that is over does not mend anything"


def test_an_alert_of_nothing_known_begins_a_collection_and_is_told_with_its_verdict(world: World) -> None:
    found = receive(
        world.inbox,
        payload(alert(starts=world.now, Hostname="gpu-5", gpu="2"), alert("GpuHot", starts=world.now, Hostname="gpu-5")),
    )
    assert actions(found) == ["started", "attached"]
    assert found[0].entry == found[1].entry
    world.run(60)
    (entry,) = world.inbox.entries()

    assert (entry.source, entry.cls) == ("alert", "hardware/gpu-memory")
    assert len(world.bell.rung) == 1
    assert world.bell.rung[0].lines[0].startswith("Alert GpuXid, GpuHot on gpu-5, since")


def test_where_nothing_failed_the_alert_itself_was_enough(world: World) -> None:
    world.verdicts[""] = verdict_of("none", None, None)
    receive(world.inbox, payload(alert(starts=world.now, node="gpu-5")))
    world.run(60)

    assert world.inbox.entries()[0].cause == "none"
    assert world.bell.rung == []


def test_a_job_that_fails_after_its_nodes_alert_is_the_same_incident(world: World) -> None:
    receive(world.inbox, payload(alert(starts=world.now, node="gpu-1")))
    world.run(60)
    assert len(world.bell.rung) == 1
    world.scheduler.show(sign("llm", time=world.now + 60, nodes=("gpu-1", "gpu-2")))
    world.now += 60
    world.run(60)
    receive(world.inbox, payload(alert("JobFailed", starts=world.now, job_name="llm", namespace="ml")))
    world.run(600)
    (entry,) = world.inbox.entries()

    assert (entry.source, entry.job, len(entry.alerts)) == ("kubernetes", "llm", 2)
    assert world.collections == ["", "llm"]
    assert len(world.bell.rung) == 1, "cause and culprit are the same"


def test_alerts_that_know_nothing_of_each_other_become_one_incident_when_the_job_is_seen(world: World) -> None:
    """All at once, before the watch looks: one names the node, one the job, one the pod."""
    for labels in ({"node": "gpu-1"}, {"job_name": "llm", "namespace": "ml"}, {"pod": "llm-0-x", "namespace": "ml"}):
        receive(world.inbox, payload(alert(starts=world.now, **labels)))
    assert len(world.inbox.entries()) == 2, "the pod's name begins with the job's"
    world.scheduler.show(sign("llm", time=world.now, nodes=("gpu-1",), pods=("llm-0-x",)))
    world.run(120)
    (entry,) = world.inbox.entries()

    assert (entry.source, entry.job, len(entry.alerts)) == ("kubernetes", "llm", 3)
    assert len(world.bell.rung) == 1
    assert world.inbox.problems == []


def test_an_alert_of_a_node_joins_a_job_when_it_turns_out_that_the_job_ran_there(world: World) -> None:
    world.found_nodes = ("gpu-1",)
    receive(world.inbox, payload(alert(starts=world.now, node="gpu-1")))
    world.scheduler.show(sign("llm", time=world.now))  # the scheduler does not tell where it ran
    world.run(120)

    (entry,) = world.inbox.entries()
    assert (entry.job, len(entry.alerts)) == ("llm", 1)
    assert len({note.id for note in world.bell.rung}) == 1


def test_an_entry_that_people_were_told_of_stays_with_a_word_where_it_went(world: World) -> None:
    receive(world.inbox, payload(alert(starts=world.now, node="gpu-1"), alert("Other", starts=world.now, node="gpu-2")))
    world.run(60)
    told = {note.id for note in world.bell.rung}
    assert len(told) == 2
    world.scheduler.show(sign("llm", time=world.now, nodes=("gpu-1", "gpu-2")))
    world.run(120)
    by_state = {entry.state: entry for entry in world.inbox.entries()}

    assert set(by_state) == {"new", "closed"}
    assert by_state["closed"].data["folded"] == by_state["new"].id
    assert len(by_state["new"].alerts) == 2
    assert actions(receive(world.inbox, payload(alert("Other", starts=START + 30, node="gpu-2")))) == ["repeated"]
    assert {note.id for note in world.bell.rung} == told


def test_the_signs_of_an_adopted_failure_stay_with_it_after_a_restart(world: World) -> None:
    receive(world.inbox, payload(alert(starts=world.now, node="gpu-1")))
    world.scheduler.show(sign("llm", time=world.now, nodes=("gpu-1",)))
    world.run(60)
    world.scheduler.show(sign("llm", "kubernetes/llm-1", time=world.now, nodes=("gpu-1",)))
    world.run(60)

    assert len(world.inbox.entries()) == 1


def test_many_alerts_at_once_are_told_as_one_storm(world: World) -> None:
    receive(world.inbox, payload(*(alert(starts=world.now, node=f"gpu-{at}") for at in range(30))))
    world.run(120)

    assert len(world.inbox.entries()) == 30
    assert [note.kind for note in world.bell.rung] == ["storm"]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"cluster": "x"}, "neither a job nor a node"),
        ({"instance": "10.0.0.7:9400"}, "only the address"),
        ({"severity": "none", "node": "gpu-1"}, "severity is none"),
        ({"instance": "localhost:9400"}, "neither"),
    ],
)
def test_an_alert_of_nothing_that_can_be_looked_at_is_ignored_with_the_reason(
    world: World, labels: dict[str, str], why: str
) -> None:
    (found,) = receive(world.inbox, payload(alert(starts=world.now, **labels)))

    assert found.action == "ignored"
    assert why in found.why
    assert world.inbox.entries() == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
        (b"{}", "version is 'None'"),
        (b'{"version": 4, "alerts": []}', "version is '4', not '4'"),
        (b'{"version": "3", "alerts": []}', "version is '3'"),
        (b'{"version": "4"}', "no list"),
        (b'{"version": "4", "alerts": {}}', "no list"),
        (b" " * (5 << 20), "more than 4 MiB"),
    ],
)
def test_what_is_no_payload_is_refused_in_clear_words(tmp_path: Path, body: bytes, why: str) -> None:
    with pytest.raises(AlertsRefused, match=why):
        receive(Inbox(tmp_path), body)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        None, 7, [], {}, {"labels": {}}, {"labels": {"a": 1}}, {"labels": {"a": "b"}}, {"labels": {"a": "b"}, "status": "odd"},
        {"labels": {"a": "b"}, "status": "firing", "startsAt": "soon"}, {"labels": {"a": "b"}, "status": "firing", "startsAt": 10**400},
        {"labels": {f"l{at}": "x" for at in range(500)}, "status": "firing", "startsAt": START},
        {"labels": {"a": "b"}, "annotations": "x", "status": "firing", "startsAt": START},
        {"labels": {"a": "b"}, "status": "firing", "startsAt": START + 10**7},
    ],
)  # fmt: skip
def test_one_alert_that_is_not_understood_costs_no_other(world: World, bad: Any) -> None:
    found = receive(world.inbox, payload(bad, alert(starts=world.now, node="gpu-1")))

    assert actions(found) == ["refused", "started"]
    assert found[0].why


def test_hostile_labels_are_kept_as_text_and_cut(world: World) -> None:
    hostile = {
        "node": "gpu-1",
        "evil": "<script>\x1b[31m\ud800" + "x" * 100_000,
        "pod": "../../etc",
        "namespace": "ml",
        "fingerprint": "../x",
    }
    body = payload({**alert(starts=world.now, **hostile), "fingerprint": "../../x"})
    (found,) = receive(world.inbox, json.dumps(body))
    entry = world.inbox.get(str(found.entry))

    assert "/" not in found.fingerprint
    assert len(next(iter(entry.data["alerts"].values()))["labels"]["evil"]) == 2000
    assert not [path for path in world.root.rglob("*") if path.name in ("etc", "x")]
    world.run(60)
    assert len(world.bell.rung) == 1


def test_a_group_of_one_node_is_one_incident(world: World) -> None:
    found = receive(world.inbox, payload(*(alert(f"A{at}", starts=world.now, node="gpu-1") for at in range(12))), now=world.now)
    assert actions(found) == ["started"] + ["attached"] * 11
