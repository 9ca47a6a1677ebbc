"""Turn windows, labels and answers into queries and back: every point once, every label value exactly, every byte kept."""

from __future__ import annotations

import csv
import importlib
import json
import re
from itertools import pairwise
from math import isclose

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.catalog import table
from workbench.model import CLASSES
from workbench.sources.prometheus import frame as prometheus_frame
from workbench.sources.prometheus.frame import Told, matrix_frame, numbers
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.jobs import lookup, question_of, questions
from workbench.sources.prometheus.query import (
    Grid,
    Matrix,
    any_of,
    choose_step,
    chunks,
    duration,
    equals,
    join,
    literal,
    quote,
    renamed,
    selector,
    shortened,
    split_matrix,
    warnings_of,
    without_markers,
)


def unquote(text: str) -> str:
    """Read a Go string literal, as PromQL's parser does."""
    assert text[0] == text[-1] == '"'
    return re.sub(
        r'\\(?:u([0-9a-f]{4})|(.))|(["\\\n])',
        lambda part: chr(int(part[1], 16)) if part[1] else {"n": "\n", '"': '"', "\\": "\\"}[part[2]],
        text[1:-1],
    )


@given(st.text())
def test_any_label_value_comes_back_from_its_quotes(value: str) -> None:
    assert unquote(quote(value)) == value.encode("utf-8", "replace").decode()
    assert equals("pod", value) == f"pod={quote(value)}"
    assert "\n" not in quote(value)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_literal_matches_itself_only(value: str, other: str) -> None:
    assert re.fullmatch(literal(value), value)
    if other != value:
        assert not re.fullmatch(literal(value), other)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=5, unique=True), st.text())
def test_any_of_matches_those_values_only(values: list[str], other: str) -> None:
    pattern = unquote(any_of("pod", values).removeprefix("pod=~"))
    assert all(re.fullmatch(pattern, value) for value in values)
    assert bool(re.fullmatch(pattern, other)) == (other in values)


_VALUE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.text('ab.|\\"-1', min_size=1, max_size=6)


@given(st.lists(_VALUE, min_size=2, max_size=12, unique=True), _VALUE)
def test_a_shorter_query_matches_the_same_values(values: list[str], other: str) -> None:
    long = f'up{{{any_of("pod", values)},other=~"a.*|b"}}'
    short = shortened(long)
    assert len(short) <= len(long)
    assert short.endswith(',other=~"a.*|b"}')
    pattern = unquote(short.removeprefix("up{pod=~").removesuffix(',other=~"a.*|b"}'))
    assert all(re.fullmatch(pattern, value) for value in values)
    assert bool(re.fullmatch(pattern, other)) == (other in values)


def test_names_of_nodes_become_a_fraction_of_their_length() -> None:
    for names in (
        [f"gpu-node-{at:04d}.cluster.example.internal" for at in range(2048)],
        [f"10.0.{at // 256}.{at % 256}:9400" for at in range(2048)],
    ):
        long = selector("up", [any_of("instance", names)])
        assert len(shortened(long)) < 1000 < 16_384 < len(long)


def test_functions_are_renamed_where_they_are_called() -> None:
    names = {"changes": "changes_prometheus"}
    assert renamed('changes(up{a="changes(x)"}[5m]) > 0 or my_changes(x)', names) == (
        'changes_prometheus(up{a="changes(x)"}[5m]) > 0 or my_changes(x)'
    )
    assert renamed('x{a="\\"changes("}', names) == 'x{a="\\"changes("}'


def test_markers_of_an_end_are_left_out() -> None:
    matrix = Matrix({b"a": b'[1,"2"],[2,"NaN"],[3.5,"4"],[4,"NaN"]', b"b": b'[1,"NaN"]', b"c": b'[1,"0"]'})
    assert without_markers(matrix).series == {b"a": b'[1,"2"],[3.5,"4"]', b"c": b'[1,"0"]'}


def test_what_a_server_warns_of() -> None:
    assert warnings_of({"warnings": ["a"], "infos": ["b"]}) == ["a"]
    assert warnings_of({"isPartial": True}) == ["the answer is partial: some storage nodes did not answer"]
    assert warnings_of({"warnings": "odd", "isPartial": False}) == ["odd"]
    assert warnings_of({"warnings": None}) == []


def test_selectors() -> None:
    assert selector("up") == "up"
    assert selector("up", ['a="b"']) == 'up{a="b"}'
    assert selector("gpu.temp", ['a="b"']) == '{__name__="gpu.temp",a="b"}'
    assert duration(3600) == "3600s"
    assert duration(0.001) == "1ms"


@settings(deadline=None)  # as many chunks as points: the machine may be slow
@given(
    st.integers(0, 2_000_000_000),
    st.integers(0, 10_000_000),
    st.sampled_from([1, 5, 15, 30, 60, 300, 3600]),
    st.integers(1, 11_000),
)
def test_chunks_have_every_point_once(since: int, span: int, step: int, most: int) -> None:
    if span / step > 200_000:
        step = 3600
    plan = chunks(since, since + span, step, most)
    points = [point for start, end in plan[:50] for point in range(int(start), int(end) + 1, step)]
    assert len(points) == len(set(points))
    assert all(b - a == step for a, b in pairwise(points))
    assert all((end - start) / step + 1 <= most for start, end in plan)
    assert all(start % step == 0 and end % step == 0 for start, end in plan)
    assert plan[-1].end <= since + span
    assert plan[-1].end > since + span - step


@given(st.floats(0, 1e9), st.floats(0, 1e8), st.integers(1, 10_000), st.floats(1, 300))
def test_a_step_keeps_the_budget(since: float, span: float, points: int, least: float) -> None:
    step = choose_step(since, since + span, points, least)
    assert step >= least
    assert span / step <= points * 1.0001


LABELS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=4
)
VALUE = st.one_of(st.floats(), st.integers(-(10**12), 10**12))
SERIES = st.lists(
    st.tuples(LABELS, st.lists(VALUE, min_size=1, max_size=5)),
    min_size=1,
    max_size=5,
    unique_by=lambda row: json.dumps(row[0], sort_keys=True),
)


def printed(value: float) -> str:
    if value != value:
        return "NaN"
    return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, repr(value))


@settings(deadline=None)  # the first example imports Arrow
@given(SERIES)
def test_numbers_and_labels_survive(rows: list[tuple[dict[str, str], list[float]]]) -> None:
    """Labels may hold anything, also what looks like the answer's own structure."""
    result = [
        {"metric": labels, "values": [[1700000000 + 0.5 * at, printed(value)] for at, value in enumerate(values)]}
        for labels, values in rows
    ]
    body = json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": result}}, separators=(",", ":"), ensure_ascii=False
    )
    matrix = split_matrix(body.encode())
    assert [labels for labels, _ in matrix.labels()] == [labels for labels, _ in rows]
    times, values = numbers(list(matrix.series.values()))
    expected = np.array([float(value) for _, values in rows for value in values])
    np.testing.assert_array_equal(values, expected)
    assert times[0] == 1700000000
    again = json.loads(b"".join(matrix.body()))
    assert again["data"]["result"] == json.loads(body)["data"]["result"]


def test_a_label_that_looks_like_structure() -> None:
    labels = {"a": '{"metric":{', "b": '},"values":[', "c": ']]}"'}
    body = json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": labels, "values": [[1, "2"]]}] * 1}},
        separators=(",", ":"),
    )
    assert [found for found, _ in split_matrix(body.encode()).labels()] == [labels]


@pytest.mark.parametrize("engine", ["arrow", "numpy"])
def test_both_engines_read_the_same(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "arrow":
        pytest.importorskip("pyarrow")
    else:

        def without(name: str) -> object:
            raise ImportError(name)

        monkeypatch.setattr(prometheus_frame.importlib, "import_module", without)
    times, values = numbers([b'[1700000000,"45"],[1700000030.123,"NaN"]', b'[5,"+Inf"],[6,"-Inf"],[7,"1e-07"],[8,"1.5e+07"]'])
    np.testing.assert_array_equal(times, [1700000000, 1700000030.123, 5, 6, 7, 8])
    np.testing.assert_array_equal(values, [45, np.nan, np.inf, -np.inf, 1e-07, 1.5e07])


def test_chunks_are_joined_without_double_samples() -> None:
    first = Matrix({b'"a":"1"': b'[1,"2"],[2,"3"]', b'"a":"2"': b'[1,"2"]'}, notes=["x"], warned=True)
    second = Matrix({b'"a":"1"': b'[2,"3"],[3,"4"]', b'"a":"3"': b'[3,"4"]'}, notes=["x"])
    third = Matrix({b'"a":"1"': b'[3,"4"]'})
    whole = join([first, second, third])
    assert whole.series == {b'"a":"1"': b'[1,"2"],[2,"3"],[3,"4"]', b'"a":"2"': b'[1,"2"]', b'"a":"3"': b'[3,"4"]'}
    assert whole.notes == ["x"]
    assert whole.warned


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"2"],[3,', "cut"),
        (
            b'{"status":"error","errorType":"execution","error":"query processing would load too many samples"}',
            "too many samples",
        ),
        (b'{"status":"success","data":{"resultType":"vector","result":[]}}', "a vector"),
        (b'{"status":"success"}', "no result"),
        (b"[]", "no object"),
        (b"", "no JSON"),
    ],
)
def test_what_is_no_answer(body: bytes, word: str) -> None:
    with pytest.raises(QueryError, match=word):
        split_matrix(body, "up")


def test_an_unusual_layout_is_read_too() -> None:
    body = b'{ "data": {"result": [ {"values": [[1, "2"]], "metric": {"__name__": "up"}} ], "resultType": "matrix"}, "status": "success", "infos": ["i"] }'
    matrix = split_matrix(body)
    assert matrix.notes == ["i"]
    assert not matrix.warned
    assert matrix_frame([matrix])["field"].tolist() == ["up"]


def test_frames_of_nothing_and_of_functions() -> None:
    assert list(matrix_frame([Matrix()]).columns) == ["time", "field", "value"]
    frame = matrix_frame([Matrix({b"": b'[1,"2"]'})], "sum(up)")
    assert frame["field"].tolist() == ["sum(up)"]


STAMPS = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True).map(sorted)


@pytest.mark.parametrize("engine", ["arrow", "numpy"])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(STAMPS, st.integers(0, 2)), min_size=1, max_size=8), st.booleans())
def test_times_that_need_not_be_read_are_those_that_stand_there(
    engine: str, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[list[int], int]], shifted: bool
) -> None:
    """Complete series, series with holes, neighbours with the same samples, a server that has its own idea of the points."""
    if engine == "numpy":

        def without(name: str) -> object:
            raise ImportError(name)

        monkeypatch.setattr(prometheus_frame.importlib, "import_module", without)
    start = 1700000000.5 if shifted else 1700000000
    series = {
        f'"gpu":"{gpu}"'.encode(): ",".join(f'[{start + 30 * at:.15g},"{value + at % 2}"]' for at in points).encode()
        for gpu, (points, value) in enumerate(rows)
    }
    plain, known = matrix_frame([Matrix(series)]), matrix_frame([Matrix(series, grid=Grid(1700000000, 30.0, 6))])
    assert plain.equals(known)
    told = [(start + 30 * at, value + at % 2) for points, value in rows for at in points]
    assert [(time.timestamp(), value) for time, value in zip(known["time"], known["value"], strict=True)] == told


def test_samples_that_are_no_pair_are_told_of_with_a_grid_as_well() -> None:
    for text in (
        b'[0],[30,"1"]',
        b'[0,"1],[30,"1"]',
        b'[0,"1"],[30,"x"]',
        b'[0,"1"],["x","1"]',
        b'[0,"1"],[30,""]',
        b'"1"[0],"1"[30]',
    ):
        series = {b'"gpu":"0"': b'[0,"1"],[30,"1"]', b'"gpu":"1"': text}
        for grid in (None, Grid(0, 30.0, 2)):
            with pytest.raises(QueryError, match=r"numbers|pair"):
                matrix_frame([Matrix(series, grid=grid)])


def test_what_labels_said_is_kept_for_the_next_field_only_when_they_are_the_same() -> None:
    def answer(name: str, *nodes: str, last: bool = False) -> Matrix:
        named = f'"__name__":"{name}"'
        rows = [f'"A":"{node}",{named}' if last else f'{named},"Hostname":"{node}","gpu":"0"' for node in nodes]
        return Matrix({row.encode(): b'[1,"2"]' for row in rows})

    told = Told()
    answers = [
        answer("DCGM_FI_DEV_GPU_TEMP", "a", "b"),
        answer("DCGM_FI_DEV_SM_CLOCK", "a", "b"),
        answer("DCGM_FI_DEV_SM_CLOCK", "b", "c"),
        Matrix({**answer("up", "a").series, **answer("down", "a").series}),
        answer("DCGM_FI_DEV_GPU_TEMP", "a", "b", last=True),
        Matrix({b"": b'[1,"2"]'}),
        Matrix(),
        Matrix({rb'"x":"\"__name__\":\"up\",","__name__":"up"': b'[1,"2"]'}),
        answer("DCGM_FI_DEV_GPU_TEMP", "a", "b"),
    ]
    for one in answers:
        kept, fresh = matrix_frame([one], "query", told), matrix_frame([one], "query")
        assert kept.equals(fresh)
        assert kept.attrs == fresh.attrs
        assert len(fresh) == len(one.series)
    first, second = (matrix_frame([one], "query", told) for one in answers[:2])
    assert first["node"].tolist() == second["node"].tolist() == ["a", "b"]
    assert set(first["field"]) != set(second["field"])


def test_members_beside_the_values_are_not_lost() -> None:
    both = '{"metric":{"a":"b"},"values":[[1,"2"]],"histograms":[[2,{"count":"1","buckets":[[0,"1","2","3"]]}]]}'
    plain = '{"metric":{"a":"c"},"values":[[1,"2"]]}'
    for rows in ((both, plain), (plain, both)):
        matrix = split_matrix(f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(rows)}]}}}}'.encode())
        assert matrix.histograms == 1
        assert list(matrix.series.values()) == [b'[1,"2"]', b'[1,"2"]']


def test_other_exporters_are_converted_and_blanks_masked() -> None:
    rows = {
        b'"__name__":"nvidia_smi_utilization_gpu_ratio","uuid":"GPU-1","index":"0"': b'[1,"0.5"]',
        b'"__name__":"DCGM_FI_DEV_GPU_TEMP","Hostname":"n1","gpu":"0"': b'[1,"2147483632"]',
    }
    frame = matrix_frame([Matrix(rows)])
    assert frame["field"].tolist() == ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP"]
    assert isclose(frame["value"].iloc[0], 50.0)
    assert np.isnan(frame["value"].iloc[1])


def test_nodes_are_found_in_every_spelling() -> None:
    values = ["gpu-1", "GPU-2.cluster.local", "10.0.0.3:9400", "gpu-11", "gpu-4:9400"]
    found = lookup(values, ["gpu-1.cluster.local", "gpu-2", "gpu-3", "gpu-4"], {"10.0.0.3": "gpu-3"})
    assert found == {
        "gpu-1": "gpu-1.cluster.local",
        "GPU-2.cluster.local": "gpu-2",
        "10.0.0.3:9400": "gpu-3",
        "gpu-4:9400": "gpu-4",
    }
    assert lookup(["gpu-1.a.example"], ["gpu-1.b.example"]) == {}


# -- the table of questions -----------------------------------------------------------------------------------------------


def test_every_question_is_sound() -> None:
    for row in questions():
        re.compile(row.field)
        assert set(row.classes) <= set(CLASSES), row.field
        assert row.exporter in ("dcgm", "node", "kube", "kube-pod", "scrape")
        text = row.promql(row.field, ['a="b"'], "3600s", "30s")
        assert not re.search(r"\{[xws][,}]", text), text
        assert text.count("(") == text.count(")")
        if row.exporter == "dcgm" and row.switch_on:
            name, kind, meaning = next(csv.reader([row.switch_on], skipinitialspace=True))
            assert re.fullmatch(row.field, name) or question_of(name) is row
            assert kind in ("gauge", "counter")
            assert meaning


def test_every_field_that_a_detector_reads_has_a_row() -> None:
    for module in ("activity", "exporters", "gpu_errors", "gpu_states", "throttling", "hosts"):
        text = importlib.import_module(f"workbench.detect.{module}").__loader__.get_source(f"workbench.detect.{module}")
        for name in set(re.findall(r'"((?:DCGM_(?:FI|EXP)_|node_)\w+[a-zA-Z0-9])"', text)):
            if name not in ("node_exporter", "node_up"):
                assert question_of(name) is not None or any(row.field.startswith(name) for row in questions()), name
    assert len(table("metric_questions")) == len({row.field for row in questions()})
