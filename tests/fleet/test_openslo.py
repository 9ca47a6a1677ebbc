"""OpenSLO in and out: what is ours comes back as it went, what is not is kept and told, and nothing in a file can break the reader."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.fleet.budgets import DEFAULTS, Objective
from workbench.fleet.openslo import ANNOTATION, dump, load
from workbench.fleet.rules import INDICATORS

# in the specification's own words and order, with what it allows and what it does not know
FOREIGN = """\
apiVersion: openslo/v1
kind: DataSource
metadata: {name: prometheus-datasource}
spec: {type: Prometheus, connectionDetails: {url: "http://prometheus:9090"}}
---
- apiVersion: openslo/v1
  kind: SLO
  metadata:
    name: web-availability
    displayName: SLO for web availability
    labels: {env: [prod], team: [team-a, team-b]}
  spec:
    description: X% of search requests are successful
    service: web
    owner: somebody
    indicator:
      metadata: {name: web-successful-requests-ratio}
      spec:
        ratioMetric:
          counter: true
          good: {metricSource: {type: Prometheus, spec: {query: 'sum(http_requests{code=~"2xx|4xx"})'}}}
          total: {metricSource: {type: Prometheus, spec: {query: 'sum(http_requests)'}}}
    timeWindow:
      - duration: 1w
        isRolling: false
        calendar: {startTime: 2022-01-01 12:00:00, timeZone: America/New_York}
    budgetingMethod: Timeslices
    objectives:
      - {displayName: Good, op: gt, target: 0.995, timeSliceTarget: 0.95, timeSliceWindow: 1m}
"""

OURS_BY_QUERY = """\
apiVersion: openslo/v1
kind: SLI
metadata: {name: our-jobs}
spec:
  ratioMetric:
    counter: true
    bad: {metricSource: {type: Prometheus, spec: {query: 'sum(workbench_fleet_jobs_ended_total{ state=~"failed|timeout" })'}}}
    total: {metricSource: {type: Prometheus, spec: {query: 'sum(workbench_fleet_jobs_ended_total{state=~"completed|failed|timeout"})'}}}
---
apiVersion: openslo/v1
kind: SLO
metadata: {name: jobs}
spec:
  service: train
  indicatorRef: our-jobs
  timeWindow: [{duration: 4w, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{displayName: good, targetPercent: 95}, {displayName: better, target: 0.99}]
"""


def plain(objectives: tuple[Objective, ...]) -> list[Objective]:
    return [dataclasses.replace(one, document={}) for one in objectives]


def test_our_objectives_come_back_as_they_went() -> None:
    text = dump(DEFAULTS)
    read = load(text)
    assert read.problems == ()
    assert plain(read.objectives) == list(DEFAULTS)
    assert dump(read.objectives) == text


def test_an_objective_of_others_is_kept_whole_and_what_is_strange_is_told() -> None:
    read = load(FOREIGN)
    (one,) = read.objectives
    assert (one.name, one.indicator, one.target, one.days) == ("web-availability", "", 0.995, 7)
    assert read.problems == (
        "web-availability: spec.owner is not of openslo/v1; kept",
        "web-availability: a window of the calendar; computed as a rolling one of 7 days",
        "web-availability: its indicator is none of ours; kept, and not computed",
    )
    documents = list(yaml.safe_load_all(FOREIGN))
    assert list(yaml.safe_load_all(dump(read.objectives, read.others))) == [documents[1][0], documents[0]]


def test_our_query_is_known_again_without_our_annotation_and_through_a_reference() -> None:
    read = load(OURS_BY_QUERY)
    assert [(one.name, one.indicator, one.target, one.days) for one in read.objectives] == [
        ("jobs-1", "job-success", 0.95, 28),
        ("jobs-2", "job-success", 0.99, 28),
    ]
    assert [other["kind"] for other in read.others] == ["SLI"]
    changed = (dataclasses.replace(read.objectives[0], target=0.97), dataclasses.replace(read.objectives[1], target=0.995))
    documents = list(yaml.safe_load_all(dump(changed, read.others)))
    assert documents[0]["spec"]["objectives"] == [
        {"displayName": "good", "targetPercent": 97.0},
        {"displayName": "better", "target": 0.995},
    ]
    assert documents[0]["spec"]["timeWindow"] == [{"duration": "4w", "isRolling": True}]


def test_a_budget_of_timeslices_is_not_computed_as_one_of_occurrences() -> None:
    text = dump(DEFAULTS[:1]).replace("Occurrences", "Timeslices")
    (one,) = load(text).objectives
    assert one.indicator == ""
    assert "ours counts occurrences" in load(text).problems[0]
    assert yaml.safe_load(dump([one])) == yaml.safe_load(text)


def test_an_objective_that_is_neither_ours_nor_from_a_file_is_not_written() -> None:
    with pytest.raises(ValueError, match="its indicator is none of"):
        dump([Objective("x", "", 0.9)])


SLO = "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: x}\nspec: {service: s, budgetingMethod: Occurrences, "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "no YAML"),
        ("!!python/object/apply:os.system ['true']", "no YAML"),
        ("just words", "document 1: no mapping"),
        ("apiVersion: openslo/v1alpha\nkind: SLO", "document 1: 'openslo/v1alpha' is not openslo/v1"),
        ("apiVersion: openslo/v1\nkind: SLO\nmetadata: 3", "an SLO has metadata and spec"),
        (SLO + "objectives: []}", "no objectives"),
        (SLO + "objectives: [{target: 1.5}]}", "a target is at least 0 and below 1"),
        (SLO + "objectives: [{target: 0.9, targetPercent: 90}]}", "either target or targetPercent"),
        (SLO + "objectives: [{target: many}]}", "could not convert"),
        (SLO + "timeWindow: [{duration: soon}], objectives: [{target: 0.9}]}", "no duration such as 30d"),
        (SLO + "timeWindow: 3, objectives: [{target: 0.9}]}", "document 1"),
        (SLO + "indicator: 3, objectives: [{target: 0.9}]}", "document 1"),
        ("x" * 4_000_001, "longer than"),
        ("a: &a [" + "*a, " * 3 + "]\n" + "[" * 5000, "no YAML"),
    ],
)
def test_bad_text_is_a_problem_and_no_exception(text: str, problem: str) -> None:
    read = load(text)
    assert read.objectives == ()
    assert any(problem in line for line in read.problems)


def test_an_annotation_that_names_no_indicator_of_ours_is_not_believed() -> None:
    text = dump(DEFAULTS[:1]).replace(f"{ANNOTATION}: availability", f"{ANNOTATION}: everything")
    assert load(text).objectives[0].indicator == ""


TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=20)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(TEXT, st.sampled_from(sorted(INDICATORS)), st.floats(0, 0.9999), st.integers(1, 400), TEXT),
        max_size=4,
        unique_by=lambda row: row[0],
    )
)
def test_any_objective_comes_back(rows: list[tuple[str, str, float, int, str]]) -> None:
    made = tuple(Objective(name, indicator, target, float(days), text) for name, indicator, target, days, text in rows)
    read = load(dump(made))
    assert read.problems == ()
    assert plain(read.objectives) == list(made)
    assert dump(read.objectives) == dump(made)
