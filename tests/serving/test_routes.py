"""What the dashboard answers to programs: health, metrics, incidents, verdicts, files, alerts; and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.serving.conftest import ALERTS_TOKEN
from tests.serving.served import ROOT, Served, cookies, login
from workbench.shipped import example_path, examples


def told_by_the_command(path: Path) -> bytes:
    """Return what `workbench triage --output json` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "triage", str(path), "--output", "json", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.stdout
    return done.stdout


@pytest.mark.parametrize("name", ["nvlink-switch", "hang-data-loader", "succeeded"])
def test_a_verdict_by_id_is_byte_for_byte_that_of_the_command(demo: Served, name: str) -> None:
    """One verdict, whichever way it is asked for."""
    answer = demo.ask(f"/api/verdict?id={name}")

    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.body == told_by_the_command(example_path(name))


def test_a_verdict_by_path_is_byte_for_byte_that_of_the_command(demo: Served, root: Path) -> None:
    """Also of a folder below a root."""
    path = root / "gpu-memory"

    assert demo.ask(f"/api/verdict?path={quote(str(path))}").body == told_by_the_command(path)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../evidence-of-others/secret.log",
        "gpu-memory/../../evidence-of-others",
        "way-out/secret.log",
        "{root}/way-out",
        "{root}-of-others",
        "{root}/gpu-memory/../../evidence-of-others/secret.log",
        "..",
        "/",
        "//etc/passwd",
        "~root",
        "file:///etc/passwd",
    ],
)
@pytest.mark.parametrize("route", ["/api/verdict", "/download/bundle", "/download/postmortem"])
def test_a_path_outside_the_roots_is_refused(demo: Served, root: Path, route: str, path: str) -> None:
    """Whether or not there is something, and whichever way it is written."""
    answer = demo.ask(f"{route}?path={quote(path.format(root=root), safe='')}")

    assert answer.status == 403
    assert b"root:" not in answer.body
    assert b"Xid" not in answer.body
    assert answer.json()["error"] == "nothing is shown from there"


def test_a_shipped_incident_may_be_opened_by_its_path_in_the_demonstration_only(demo: Served, guarded: Served) -> None:
    """It is no root: the folder around it stays closed."""
    path = example_path("preempted")

    assert demo.ask(f"/api/verdict?path={quote(str(path))}").json()["class"] == "platform/preemption"
    assert demo.ask(f"/api/verdict?path={quote(str(path.parent))}").status == 403


@pytest.mark.parametrize("query", ["", "?id=a&path=b", "?other=1"])
def test_a_verdict_needs_one_name(demo: Served, query: str) -> None:
    """Neither none nor two."""
    answer = demo.ask("/api/verdict" + query)

    assert answer.status == 400
    assert "id=" in answer.json()["error"]


@pytest.mark.parametrize("id", ["nothing-like-it", "../../etc", "a" * 300, "%0d%0aSet-Cookie:%20a=b"])
def test_an_incident_that_is_not_there_is_not_found(demo: Served, id: str) -> None:
    """And the answer says so in JSON, with no header of the asker's making."""
    answer = demo.ask(f"/api/verdict?id={id}")

    assert answer.status == 404
    assert "no entry" in answer.json()["error"]
    assert "Set-Cookie" not in answer.headers


def test_incidents_are_listed_newest_first_as_json_and_as_csv(demo: Served) -> None:
    """The same rows in both."""
    document = demo.ask("/api/incidents").json()
    table = list(csv.DictReader(io.StringIO(demo.ask("/api/incidents?format=csv").body.decode())))

    assert document["schema"] == "workbench.inbox/1"
    assert [row["id"] for row in document["incidents"]] == [row["id"] for row in table]
    assert {row["id"] for row in document["incidents"]} == set(examples())
    times = [row["time"] for row in document["incidents"] if row["time"] is not None]
    assert times == sorted(times, reverse=True)


def test_the_page_s_filters_hold_for_the_export(demo: Served) -> None:
    """The link of the page carries them over."""
    rows = demo.ask("/api/incidents?cause=hardware&text=dgx").json()["incidents"]

    assert [row["id"] for row in rows] == ["nvlink-switch"]


def test_health_says_that_it_is_alive(demo: Served) -> None:
    """For a load balancer."""
    answer = demo.ask("/healthz")

    assert (answer.status, answer.body) == (200, b"alive\n")


def test_metrics_are_in_the_text_form_and_name_nobody(demo: Served) -> None:
    """Memory, sessions, states, ages; no id, job or node, since they are told without login."""
    answer = demo.ask("/metrics")
    text = answer.body.decode()
    samples = [line for line in text.splitlines() if not line.startswith("#")]

    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert all(re.fullmatch(r'workbench_[a-z_]+(\{[a-z]+="[^"]*"\})? -?[0-9.e+-]+', line) for line in samples), samples
    values = dict(line.rsplit(" ", 1) for line in samples)
    assert float(values["workbench_resident_memory_bytes"]) > 20e6
    assert float(values['workbench_incidents{state="new"}']) == len(examples())
    assert float(values["workbench_inbox_age_seconds"]) < 60
    assert 'workbench_sessions{page="/"}' in values
    assert not any(name in text for name in [*examples(), "dgx", "gpu-node"])


def test_a_bundle_is_the_evidence(demo: Served, root: Path) -> None:
    """A shipped archive as it is; a folder packed, without what its links lead to."""
    shipped = demo.ask("/download/bundle?id=preempted")
    packed = demo.ask(f"/download/bundle?path={quote(str(root))}")

    assert shipped.body == example_path("preempted").read_bytes()
    assert shipped.headers["Content-Disposition"] == 'attachment; filename="preempted.tar.gz"'
    with tarfile.open(fileobj=io.BytesIO(packed.body)) as archive:
        names = archive.getnames()
    assert any(name.startswith("evidence/gpu-memory/kernel/") for name in names)
    assert not any("secret" in name or "way-out" in name for name in names)


GROUP = json.dumps({"version": "4", "status": "firing", "groupKey": "k", "alerts": []}).encode()
JSON = {"Content-Type": "application/json"}
TOKEN = {"Authorization": f"Bearer {ALERTS_TOKEN}"}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (GROUP, JSON, 401),
        (GROUP, JSON | {"Authorization": "Bearer wrong"}, 401),
        (GROUP, JSON | {"Authorization": f"Bearer {ALERTS_TOKEN}x"}, 401),
        (GROUP, JSON | {"Authorization": "Bearer ü"}, 401),
        (GROUP, TOKEN | {"Content-Type": "text/plain"}, 415),
        (b"{", TOKEN | JSON, 400),
        (b"[" * 100_000, TOKEN | JSON, 400),
        (b" " * (1 << 20) + GROUP, TOKEN | JSON, 413),
    ],
)
def test_alerts_are_taken_with_the_token_as_json_of_modest_size(
    guarded: Served, body: bytes, headers: dict[str, str], status: int
) -> None:
    """Else they are refused before anything is done with them."""
    assert guarded.ask("/api/alerts", body=body, headers=headers).status == status


def test_an_alert_becomes_an_incident_once(guarded: Served) -> None:
    """However often Alertmanager posts it; users see it without waiting."""
    alert = {
        "status": "firing",
        "labels": {
            "alertname": "GPUXidError",
            "Hostname": "dgx-46",
            "gpu": "3",
            "exported_job": "whisper",
            "severity": "critical",
        },
        "annotations": {"summary": "Xid 79"},
        "startsAt": "2026-05-04T11:02:03.120Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "4f6b0a1c2d3e4f50",
        "generatorURL": "http://prometheus.example/graph",
    }
    body = json.dumps(
        {"version": "4", "status": "firing", "groupKey": "{}", "receiver": "workbench", "groupLabels": {}, "commonLabels": {},
         "commonAnnotations": {}, "externalURL": "http://alertmanager.example", "alerts": [alert]}
    ).encode()  # fmt: skip
    mine = cookies(login(guarded, "otto", "o"))

    first, second = (guarded.ask("/api/alerts", body=body, headers=TOKEN | JSON) for _ in range(2))
    rows = guarded.ask("/api/incidents", headers=mine).json()["incidents"]

    assert (first.status, second.status) == (200, 200), first.body
    assert [row["entry"] for row in first.json()["alerts"]] == [row["entry"] for row in second.json()["alerts"]]
    assert [row["id"] for row in rows] == [first.json()["alerts"][0]["entry"]]


def test_a_postmortem_is_written_by_a_known_template_only(demo: Served) -> None:
    """A site's own is a path on the server: a request names none."""
    markdown = demo.ask("/download/postmortem?id=gpu-memory")
    page = demo.ask("/download/postmortem?id=gpu-memory&template=pagerduty&format=html")

    assert markdown.status == page.status == 200
    assert b"hardware/gpu-memory" in markdown.body
    assert b"<html" in page.body
    assert page.headers["Content-Disposition"].endswith('.html"')
    for template in ("/etc/passwd", "../../etc/passwd", "site.md.j2", ""):
        assert demo.ask(f"/download/postmortem?id=gpu-memory&template={quote(template, safe='')}").status == 400


def test_more_than_the_server_takes_is_cut_off(guarded: Served) -> None:
    """A body that would fill the memory is not read to its end."""
    try:
        status = guarded.ask("/api/alerts", body=b" " * (6 << 20), headers=TOKEN | JSON).status
    except OSError:
        status = 400  # it hung up while more was sent

    assert status in (400, 413)
    assert guarded.ask("/healthz").status == 200


def test_alerts_cannot_be_asked_for(guarded: Served) -> None:
    """Only posted."""
    assert guarded.ask("/api/alerts", headers=TOKEN).status == 405
