"""A postmortem says what is known, leaves open what is not, names no person, and holds nothing that a log could drive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import HOSTILE, START
from workbench.errors import ConfigError
from workbench.report import postmortem
from workbench.report.facts import VARIABLES, Facts, gather, price_of
from workbench.report.markdown_html import to_html
from workbench.report.postmortem_notebook import notebook
from workbench.report.redact import redact

JOB: Mapping[str, Any] = {
    "id": "4711", "name": "alice-llm", "user": "alice", "state": "FAILED", "start": START - 3600, "end": START + 90, "file": "sacct.txt",
}  # fmt: skip
IMPACT: Mapping[str, Any] = {"ranks": 32, "nodes": 4, "gpus": 32, "gpu_hours": 0.8, "gpu_hours_lost": 120.0, "why": {}}


def entry(seq: int, kind: str, verb: str, **more: Any) -> dict[str, Any]:
    """A line of the remediation journal."""
    return {
        "seq": seq,
        "time": START + 60 * seq,
        "kind": kind,
        "verb": verb,
        "action": f"a{verb}",
        "node": "gpu-node-017",
        **more,
    }


JOURNAL = [
    entry(1, "intent", "cordon"),
    entry(2, "outcome", "cordon", status="done", detail="cordoned"),
    entry(3, "intent", "reset-gpu"),
    entry(4, "outcome", "reboot", status="refused", detail="outside of its window"),
    entry(5, "note", "", detail="looked at it by hand", action=""),
    {**entry(6, "intent", "reboot"), "node": "another-node"},
]


@pytest.fixture
def facts(document: dict[str, Any]) -> Facts:
    """The facts of a verdict in which every field says something and one log line is hostile."""
    return gather(
        document, made=START + 86400, job=JOB, impact=IMPACT, journal=JOURNAL, prices={"H100": "2.50", "currency": "EUR"},
        product="NVIDIA H100 80GB HBM3", hide=redact(people=["alice"]),
    )  # fmt: skip


class TestFacts:
    def test_every_variable_is_a_fact_and_is_told(self, facts: Facts) -> None:
        """What is documented is there, what is there is documented."""
        assert set(facts.to_dict()) - {"schema"} == set(VARIABLES) - {"to_be_filled"}

    def test_every_line_of_the_timeline_has_a_time_and_a_reference(self, facts: Facts) -> None:
        """And they are in order."""
        assert facts.timeline
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", row["time"]) for row in facts.timeline)
        assert all(row["ref"] for row in facts.timeline)
        assert [row["time"] for row in facts.timeline] == sorted(row["time"] for row in facts.timeline)

    def test_the_root_cause_is_marked_with_file_and_line(self, facts: Facts) -> None:
        """Once."""
        (row,) = (row for row in facts.timeline if row["kind"] == "root cause")

        assert row["ref"] == "kernel/gpu-node-017.log:812"
        assert facts.trigger is not None
        assert facts.trigger["ref"] == row["ref"]

    def test_what_was_done_comes_from_the_journal(self, facts: Facts) -> None:
        """By node and time: what has no end yet says so, a refusal is no action, another node's is not ours."""
        assert facts.remediation is not None
        assert [(row["node"], row["ended"]) for row in facts.remediation] == [
            ("gpu-node-017", "done"), ("gpu-node-017", None), ("gpu-node-017", "refused"), ("gpu-node-017", "noted"),
        ]  # fmt: skip
        assert [row["ref"] for row in facts.remediation] == ["journal:1", "journal:3", "journal:4", "journal:5"]
        assert sum(row["kind"] == "remediation" for row in facts.timeline) == 4

    def test_without_a_journal_nobody_says_that_nothing_was_done(self, document: dict[str, Any]) -> None:
        """None is not an empty list."""
        assert gather(document, made=START).remediation is None
        assert gather(document, made=START, journal=[]).remediation == ()

    def test_cost_is_hours_by_the_sites_price(self, facts: Facts) -> None:
        """With the product's price, and how it was computed."""
        row = next(row for row in facts.impact if row["what"] == "Cost")

        assert row["value"] == "302.00 EUR"
        assert "2.5 EUR" in row["note"]

    @pytest.mark.parametrize("prices", [None, {}, {"B200": "4"}, {"default": "cheap"}, {"default": "-1"}])
    def test_a_price_that_is_not_known_stays_to_be_filled(self, document: dict[str, Any], prices: dict[str, str] | None) -> None:
        """Nothing is invented."""
        made = gather(document, made=START, job=JOB, impact=IMPACT, prices=prices, product="NVIDIA H100 80GB HBM3")

        assert next(row for row in made.impact if row["what"] == "Cost")["value"] is None

    def test_the_longest_name_of_a_product_decides(self) -> None:
        """`H100 NVL` is no `H100`."""
        prices = {"H100": "2", "H100 NVL": "3", "default": "1", "currency": "USD"}

        assert price_of("NVIDIA H100 NVL", prices) == (3.0, "USD")
        assert price_of("NVIDIA-H100-80GB-HBM3", prices) == (2.0, "USD")
        assert price_of(None, prices) == (1.0, "USD")

    def test_hours_that_are_not_known_say_why(self, document: dict[str, Any]) -> None:
        """The case file's own words."""
        impact = {
            "gpus": None,
            "why": {"gpu_hours": "no evidence tells how many GPUs the job had", "gpu_hours_lost": "no log tells"},
        }
        rows = {row["what"]: row for row in gather(document, made=START, impact=impact).impact}

        assert rows["GPU-hours held after the failure"]["value"] is None
        assert "no evidence tells" in rows["GPU-hours held after the failure"]["note"]

    def test_nobody_is_named(self, facts: Facts) -> None:
        """Neither the account nor what it has put into a name; the job by its number."""
        text = json.dumps(facts.to_dict())

        assert "alice" not in text
        assert facts.job["id"] == "4711"

    def test_suggestions_fit_the_class_and_have_no_owner(self, facts: Facts) -> None:
        """Prevent, detect, mitigate; who and when is for people."""
        assert {row["type"] for row in facts.actions} == {"prevent", "detect", "mitigate"}
        assert all(row["owner"] is None and row["due"] is None for row in facts.actions)
        assert any("gpu-node-017" in row["action"] for row in facts.actions)

    def test_what_could_not_be_seen_is_told(self, facts: Facts) -> None:
        """Coverage with what it hides."""
        assert any("no DCGM metrics" in str(row["detail"]) for row in facts.unseen)

    @pytest.mark.parametrize("cls", ["unknown", "none", "user/hang", "platform/preemption"])
    def test_every_kind_of_verdict_has_facts(self, document: dict[str, Any], cls: str) -> None:
        """Also those that blame nothing, with next to nothing in them."""
        document |= {
            "class": cls, "cause": cls.split("/")[0], "evidence": [], "victims": [], "hypotheses": [], "counter_evidence": [],
            "time": None, "culprit": {"node": None, "gpu": None, "rank": None, "at_fault": None}, "degraded": [], "coverage": [],
        }  # fmt: skip
        made = gather(document, made=START)

        assert made.trigger is None
        for template in postmortem.TEMPLATES:
            assert "to be filled" in postmortem.markdown(made, template)


class TestTemplates:
    @pytest.mark.parametrize("template", postmortem.TEMPLATES)
    def test_all_parts_are_in_each_order(self, facts: Facts, template: str) -> None:
        """A template only puts the same facts into another order."""
        text = postmortem.markdown(facts, template)

        for words in (
            facts.summary.split(";")[0], "kernel/gpu-node-017.log:812", "302.00 EUR", "journal:3", "no DCGM metrics", "to be filled",
            "| Action | Type | Owner | Due |", "All times are UTC", "Ruled out", "What could not be seen", "What speaks against",
        ):  # fmt: skip
            assert words in text, words
        assert "None" not in text

    def test_the_orders_differ(self, facts: Facts) -> None:
        """Each house has its own headings."""
        heads = [re.findall(r"^## (.*)$", postmortem.markdown(facts, one), re.M) for one in postmortem.TEMPLATES]

        assert heads[0][:3] == ["Summary", "Impact", "Root causes"]
        assert heads[1][:3] == ["Incident summary", "Leadup", "Fault"]
        assert heads[2][:3] == ["Overview", "What happened", "Contributing factors"]

    @pytest.mark.parametrize("template", postmortem.TEMPLATES)
    def test_text_of_a_log_is_text(self, facts: Facts, document: dict[str, Any], template: str) -> None:
        """In Markdown it is in code spans or escaped, in the page it is escaped."""
        text = postmortem.markdown(facts, template)
        page = postmortem.html(facts, template, document)

        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)
        assert "<script" not in re.sub(r"(`+).*?\1", "", text)
        assert "<script" not in page
        assert "onerror" not in page
        assert "&lt;script&gt;" in page
        assert "default-src 'none'" in page

    def test_the_page_has_the_picture_and_marks_what_is_open(self, facts: Facts, document: dict[str, Any]) -> None:
        """The timeline is drawn; what is to be filled stands out."""
        page = postmortem.html(facts, "google", document)

        assert page.count("<figure>") == 1
        assert "<mark>to be filled</mark>" in page
        assert "*to be filled*" not in page


class TestSite:
    def test_a_sites_template_sees_the_variables_and_our_parts(self, facts: Facts, tmp_path: Path) -> None:
        """Texts are quoted, what is not known is written as such."""
        file = tmp_path / "site.md.j2"
        file.write_text(
            '{% import "parts.md.j2" as parts with context %}\n# {{ title }}\n{{ summary }} {{ none_known }}{{ job.namespace }}\n'
            "{% for row in timeline %}\n- {{ row.time }} {{ row.text }}\n{% endfor %}\n{{ parts.todo() }}\n".replace(
                "{{ none_known }}", ""
            )
        )
        text = postmortem.markdown(facts, str(file))

        assert text.startswith("# Job 4711 failed")
        assert "*to be filled*" in text
        assert "| Action | Type |" in text
        assert "<script" not in to_html(text)
        assert "<a " not in to_html(text)

    @pytest.mark.parametrize(
        ("text", "line", "said", "way"),
        [
            ("# {{ title }}\n\n{{ sumary }}\n", 3, "nothing is called 'sumary'", "did you mean summary?"),
            ("a\n{% for row in timeline %}\n{{ row.tiem }}\n{% endfor %}", 3, "nothing is called 'tiem'", "time"),
            ("a\n{% if %}\n", 2, "", "jinja"),
            ("a\n\n\n{{ summary|safe }}", 4, "filter", "quoted"),
            ("{{ ''.__class__.__mro__ }}", 1, "", "allowed"),
            ("a\n{% include 'other.md' %}", 2, "other.md", "parts.md.j2"),
            ("a\n{% for row in began_not %}{% endfor %}", 2, "began_not", "began"),
            ("{{ 1 / 0 }}", 1, "division", "docs/postmortems.md"),
            ("a\n{{ timeline.append(1) }}", 2, "", "allowed"),
        ],
    )
    def test_an_error_names_file_line_and_the_way_out(
        self, facts: Facts, tmp_path: Path, text: str, line: int, said: str, way: str
    ) -> None:
        """Whoever writes a template at two in the morning gets help, not a traceback."""
        file = tmp_path / "site.md.j2"
        file.write_text(text)

        with pytest.raises(ConfigError) as caught:
            postmortem.markdown(facts, str(file))

        assert str(caught.value).startswith(f"{file}:{line}: ")
        assert said in str(caught.value)
        assert way in caught.value.hint

    def test_looping_over_what_is_not_known_is_explained(self, document: dict[str, Any], tmp_path: Path) -> None:
        """`remediation` may be none."""
        file = tmp_path / "site.md.j2"
        file.write_text("\n{% for row in remediation %}{{ row.what }}{% endfor %}")

        with pytest.raises(ConfigError, match=r"site\.md\.j2:2") as caught:
            postmortem.markdown(gather(document, made=START), str(file))
        assert "is not none" in caught.value.hint

    def test_a_name_that_is_none_of_ours_is_told(self, facts: Facts) -> None:
        """With the nearest."""
        with pytest.raises(ConfigError, match="did you mean google") as caught:
            postmortem.markdown(facts, "gogle")
        assert "site.md.j2" in caught.value.hint

    @pytest.mark.parametrize("name", ["summary", "title", "where"])
    def test_a_hostile_value_stays_text_however_it_is_written(self, document: dict[str, Any], tmp_path: Path, name: str) -> None:
        """Joined, changed, put into a cell."""
        document["summary"] = document["culprit"]["node"] = f"{HOSTILE} [click](https://evil.example)"
        made = gather(document, made=START, job={"id": HOSTILE})
        file = tmp_path / "site.md.j2"
        file.write_text(
            f"{{{{ {name} }}}}\n\n{{{{ [{name}, 'b']|join(', ') }}}}\n\n{{{{ {name}|upper }}}}\n\n{{{{ {name}|replace('a', 'b') }}}}\n"
        )
        page = to_html(postmortem.markdown(made, str(file)))

        assert "<a " not in page
        assert "<script" not in page.lower()
        assert "\x1b" not in page


class TestNotebook:
    def test_it_is_a_valid_notebook_that_runs_offline(self, facts: Facts) -> None:
        """Its cells need Python and pandas, nothing else; the facts in it are the facts."""
        document = nbformat.reads(notebook(facts), as_version=4)
        nbformat.validate(document)
        names: dict[str, Any] = {}
        for cell in document.cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, "cell", "exec"), names)  # noqa: S102 - cells of our own

        assert names["facts"]["impact"] == [dict(row) for row in facts.impact]
        assert set(names["facts"]) == set(facts.to_dict())
        assert len(names["timeline"]) == len(facts.timeline)
        assert str(names["timeline"]["time"].dt.tz) == "UTC"

    def test_the_cost_follows_the_parameters(self, facts: Facts, capsys: pytest.CaptureFixture[str]) -> None:
        """One cell is tagged for papermill."""
        document = nbformat.reads(notebook(facts), as_version=4)
        tagged = [cell for cell in document.cells if "parameters" in cell.metadata.get("tags", [])]
        names: dict[str, Any] = {"facts": facts.to_dict(), "price_of_gpu_hour": 2.0, "currency": "EUR", "gpu_hours_lost": None}
        exec(next(cell.source for cell in document.cells if "known = {" in cell.source), names)  # noqa: S102 - cells of our own

        assert len(tagged) == 1
        assert "121 GPU-hours, 241.60 EUR" in capsys.readouterr().out

    def test_no_output_and_no_hostile_character(self, facts: Facts) -> None:
        """The file is ASCII, and a log cannot break out of the dictionary."""
        text = notebook(facts)

        assert text.isascii()
        assert all(not cell.get("outputs") for cell in json.loads(text)["cells"])
        for cell in json.loads(text)["cells"]:
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", "".join(cell["source"]))
