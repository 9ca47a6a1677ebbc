"""The published schemas describe what is printed: every verdict, finding, plan and report of ours fits, and no field is ever renamed."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import ROOT, START
from tests.remediation import fleets
from workbench.health.finding import STATUSES, Finding
from workbench.health.folder import check_folder
from workbench.incident import triage_path
from workbench.model import CAUSES, CLASSES, REMEDIATIONS, RETRIES, ROLES
from workbench.remediation import model as remedy
from workbench.remediation.journal import Entry, Journal
from workbench.remediation.model import Plan
from workbench.remediation.planner import make_plan
from workbench.remediation.troubles import of_verdict
from workbench.report.findings import FORMATS
from workbench.report.schemas import SCHEMAS, schema, text
from workbench.report.verdict_json import failed
from workbench.shipped import example_path, examples

CASES = sorted((ROOT / "benchmarks" / "attribution" / "cases").iterdir())
KEPT = sorted(one for one in (ROOT / "tests" / "data" / "health").iterdir() if one.is_dir())
# schema or schema/definition → fields that were published: the list may grow, nothing in it may go
PUBLISHED = {
    name: set(fields.split())
    for name, fields in (
        line.split(": ", 1)
        for line in (ROOT / "tests" / "data" / "schemas" / "published.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
}


def fits(name: str, document: Any) -> None:
    """Fail with what is wrong, and where."""
    validator = jsonschema.Draft202012Validator(schema(name))
    wrong = [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in validator.iter_errors(document)]

    assert not wrong


class TestPublished:
    @pytest.mark.parametrize("name", SCHEMAS)
    def test_each_is_a_schema_of_2020_12(self, name: str) -> None:
        """It says what it is, and every field of ours has its words."""
        made = schema(name)

        jsonschema.Draft202012Validator.check_schema(made)
        assert made["$schema"].endswith("2020-12/schema")
        assert made["$id"] == f"urn:workbench:schema:{name}:1"
        assert made["description"]
        assert text(name).endswith("}\n")

    def test_every_file_has_its_name(self) -> None:
        """What lies there is published."""
        assert {file.stem for file in (ROOT / "workbench" / "report" / "schemas").glob("*.json")} == set(SCHEMAS)

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_no_field_goes_or_is_renamed(self, name: str) -> None:
        """Programs of others read them; a field may only be added."""
        schema_name, _, part = name.partition("/")
        made = schema(schema_name)["$defs"][part] if part else schema(schema_name)

        assert PUBLISHED[name] <= set(made["properties"])

    def test_what_was_published_later_is_in_the_list(self) -> None:
        """A new field is written down when it is published, not when it is missed."""
        for name in SCHEMAS:
            made = schema(name)
            for part, body in [("", made), *made.get("$defs", {}).items()]:
                if "properties" in body:
                    assert set(body["properties"]) == PUBLISHED[f"{name}/{part}" if part else name]

    def test_fields_may_be_added(self) -> None:
        """A reader of today takes a document of tomorrow."""
        assert 'additionalProperties": false' not in "".join(text(name) for name in SCHEMAS)


class TestWords:
    def test_closed_words_are_those_of_the_code(self) -> None:
        """Classes, causes, advice, roles, states."""
        verdict, finding, plan = schema("verdict"), schema("finding"), schema("plan")

        assert verdict["properties"]["class"]["enum"] == list(CLASSES)
        assert verdict["properties"]["cause"]["enum"] == list(CAUSES)
        assert set(verdict["properties"]["retry"]["enum"]) == {*RETRIES, None}
        assert set(verdict["properties"]["remediation"]["enum"]) == {*REMEDIATIONS, None}
        assert set(verdict["$defs"]["event"]["properties"]["role"]["enum"]) == {*ROLES, None}
        assert finding["properties"]["status"]["enum"] == list(STATUSES)
        assert plan["$defs"]["action"]["properties"]["verb"]["enum"] == list(remedy.VERBS)
        assert plan["$defs"]["action"]["properties"]["rung"]["enum"] == list(remedy.RUNGS)

    @pytest.mark.parametrize(
        ("name", "cls"),
        [
            ("plan", remedy.Plan), ("plan/action", remedy.Action), ("plan/trouble", remedy.Trouble), ("plan/refusal", remedy.Refusal),
            ("plan/blast", remedy.Blast), ("plan/cost", remedy.Cost), ("plan/evidence", remedy.Evidence), ("journal", Entry),
        ],
    )  # fmt: skip
    def test_records_and_schemas_have_the_same_fields(self, name: str, cls: Any) -> None:
        """One cannot grow without the other."""
        assert {field.name for field in dataclasses.fields(cls)} == PUBLISHED[name] - {"schema", "seal", "sum"}

    def test_findings_have_the_fields_of_the_record(self) -> None:
        """`cls` is called `class` in JSON, as everywhere."""
        names = {field.name for field in dataclasses.fields(Finding)}

        assert (names - {"cls"}) | {"class"} == PUBLISHED["finding"]
        assert set(Finding("c", "ok", "s", device={"serial": "1"}).to_dict()) == PUBLISHED["finding"]
        assert set(Finding("c", "ok", "s").to_dict()) == PUBLISHED["finding"] - {"device"}


class TestDocuments:
    @pytest.mark.parametrize("name", examples())
    def test_every_shipped_incident(self, name: str) -> None:
        """As `workbench triage -o json` prints it."""
        fits("verdict", json.loads(json.dumps(triage_path(str(example_path(name))))))

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_every_labelled_case(self, case: Path) -> None:
        """The cases of the benchmark, of every class."""
        fits("verdict", json.loads(json.dumps(triage_path(str(case)))))

    def test_a_verdict_on_nothing(self, document: dict[str, Any]) -> None:
        """And one in which every field says something."""
        fits("verdict", failed("x", "why", hint="do"))
        fits("verdict", document)

    @pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
    def test_the_findings_of_every_kept_evidence(self, folder: Path) -> None:
        """As `workbench check --from -o json` prints them, node by node."""
        findings = check_folder(folder)
        assert findings
        for node in {one.node for one in findings}:
            mine = [one for one in findings if one.node == node]
            about = {"time": "2026-05-04T11:02:03.120Z", "boot": "b", "context": "allocation"}
            fits("findings", json.loads(FORMATS["json"](mine, verbose=False, about=about)))
            fits("findings", json.loads(FORMATS["json"](mine, verbose=False)))
            for one in mine:
                fits("finding", json.loads(json.dumps(one.to_dict())))

    @pytest.mark.parametrize("cls", [name for name in CLASSES if name.startswith(("hardware", "driver", "platform/node"))])
    @pytest.mark.parametrize("severity", ["critical", "warning", "unknown"])
    def test_plans_of_every_class(self, cls: str, severity: str) -> None:
        """For each remediation, idle and busy, with what was tried before: what is planned and what is refused."""
        seen = 0
        for number, action in enumerate(REMEDIATIONS):
            wrong = fleets.trouble(cls=cls, cause=cls.split("/")[0], action=action, severity=severity)
            past = fleets.tried("gpu-001", "reset-gpu", "reset-gpu", wrong.id, 7200.0) * (number % 2)
            busy = fleets.node(work=(fleets.work(),)) if number % 3 else fleets.ours("gpu-001")
            made = make_plan([wrong], fleets.fleet(busy), past=past)
            document = json.loads(json.dumps(made.to_dict()))
            fits("plan", document)
            assert Plan.from_dict(document) == made
            seen += len(made.actions) + len(made.refused)
        assert seen

    def test_plans_of_a_fleet_in_which_all_is_wrong(self) -> None:
        """With the breaker open, and of one that was not seen whole."""
        many = [fleets.trouble(f"gpu-{number:03}") for number in range(1, 30)]

        for state in (fleets.fleet(), fleets.fleet(complete=False, problems=("no answer",))):
            fits("plan", json.loads(json.dumps(make_plan(many, state, past=[]).to_dict())))

    @pytest.mark.parametrize("name", examples())
    def test_plans_of_every_shipped_incident(self, name: str) -> None:
        """What would be done because of its verdict."""
        verdict = triage_path(str(example_path(name)))
        found = of_verdict(verdict)
        state = fleets.fleet(fleets.node(found.node)) if found else fleets.fleet()

        fits("plan", json.loads(json.dumps(make_plan([found] if found else [], state, past=[]).to_dict())))

    def test_lines_of_a_journal(self, tmp_path: Path) -> None:
        """As they stand in the file, with the sum, and as `workbench journal -o json` prints them."""
        path = tmp_path / "journal.jsonl"
        plan = make_plan([fleets.trouble()], fleets.fleet(), past=[])
        with Journal(path) as journal:
            journal.record_plan(plan)
            journal.intent(plan.actions[0], plan, {"schedulable": True})
            for status in remedy.OUTCOMES:
                journal.outcome(plan.actions[0], plan, status, "cordoned")
            journal.note("looked at it", node="gpu-001")

        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == 3 + len(remedy.OUTCOMES)
        for line in lines:
            fits("journal", json.loads(line))
        for entry in Journal(path).entries():
            fits("journal", json.loads(json.dumps(entry.to_dict())))

    def test_reports(self, document: dict[str, Any]) -> None:
        """Facts of a postmortem, handoff, report of a fault."""
        from workbench.report import handoff, ticket
        from workbench.report.facts import gather
        from workbench.report.tried import tried

        entry = {"seq": 1, "time": START + 9, "kind": "intent", "verb": "cordon", "action": "a", "node": "gpu-node-017"}
        for journal in (None, [], [entry]):
            fits("postmortem", json.loads(json.dumps(gather(document, made=START, journal=journal).to_dict())))
        for to in ("provider", "internal"):
            made = ticket.of_verdict(
                document, to=to, done=tried([entry], ["gpu-node-017"]), machine={"boot": "b", "booted": START}
            )
            fits("fault-report", json.loads(json.dumps(made.to_dict())))
        fits("handoff", json.loads(json.dumps(handoff.to_dict([handoff.handoff(document), handoff.handoff(failed("x", "y"))]))))

    def test_a_wrong_document_does_not_fit(self, document: dict[str, Any]) -> None:
        """A schema that takes all says nothing."""
        for change in (
            {"class": "hardware/gremlin"},
            {"confidence": 1.5},
            {"time": "yesterday"},
            {"evidence": [{"role": "cause"}]},
        ):
            assert not jsonschema.Draft202012Validator(schema("verdict")).is_valid({**document, **change})
        for gone in schema("verdict")["required"]:
            assert not jsonschema.Draft202012Validator(schema("verdict")).is_valid(
                {k: v for k, v in document.items() if k != gone}
            )


def test_the_reference_names_every_field_of_a_verdict() -> None:
    """docs/reference/verdict.md and the schema speak of the same fields."""
    page = (ROOT / "docs" / "reference" / "verdict.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)` \|", page, re.M))

    assert set(schema("verdict")["properties"]) <= told
