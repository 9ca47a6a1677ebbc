"""The JSON of query and query_range becomes series; what Prometheus complains of becomes problems."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.parse.prom_json import looks_like_query, parse_query_range

METRIC = {
    "__name__": "DCGM_FI_DEV_XID_ERRORS",
    "Hostname": "gpu-1",
    "gpu": "3",
    "UUID": "GPU-11111111-2222-3333-4444-000000000003",
    "pod": "train-0",
}
VECTOR = {"metric": METRIC, "value": [1760000000.5, "79"]}
MATRIX = {
    "status": "success",
    "data": {"resultType": "matrix", "result": [{"metric": METRIC, "values": [[1760000000.5, "0"], [1760000030.5, "79"]]}]},
}


def test_a_matrix_is_a_series_per_result():
    """Values are text in JSON and numbers in a series."""
    (series,) = parse_query_range(MATRIX, file="x.json").series
    assert series.field == "DCGM_FI_DEV_XID_ERRORS"
    assert series.values.tolist() == [0, 79]
    assert series.times.tolist() == [1760000000.5, 1760000030.5]
    assert (series.node, series.gpu.index) == ("gpu-1", 3)
    assert series.quote(1) == (
        'DCGM_FI_DEV_XID_ERRORS{Hostname="gpu-1",gpu="3",UUID="GPU-11111111-2222-3333-4444-000000000003",pod="train-0"}'
        " 79 1760000030.500"
    )


@pytest.mark.parametrize(
    "data",
    [
        {"status": "success", "data": {"resultType": "vector", "result": [VECTOR]}},
        [VECTOR],
        {"resultType": "vector", "result": [VECTOR]},
        {
            "xid": {
                "status": "success",
                "data": {"resultType": "vector", "result": [VECTOR]},
            }
        },
    ],
)
def test_every_wrapping_of_a_result_is_read(data):
    """A vector, a bare list, a bare result, a mapping of query to answer."""
    assert [series.values.tolist() for series in parse_query_range(data, file="x").series] == [[79]]


def test_several_answers_in_one_file_are_read():
    """What one script saved for five queries."""
    assert len(parse_query_range([MATRIX, MATRIX], file="x").series) == 2


def test_a_scalar_is_a_series():
    """`scalar()` has no labels."""
    parsed = parse_query_range(
        {"status": "success", "data": {"resultType": "scalar", "result": [1760000000, "5"]}}, file="jobs_running.json"
    )
    assert parsed.series[0].field == "jobs_running"


def test_a_nameless_result_takes_the_name_of_its_file():
    """rate() and sum() drop the metric name."""
    data = {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {"gpu": "0"}, "value": [1760000000, "5"]}]},
    }
    assert parse_query_range(data, file="metrics/DCGM_FI_DEV_GPU_TEMP.json.gz").series[0].field == "DCGM_FI_DEV_GPU_TEMP"


def test_an_error_body_is_a_problem_with_a_way_out():
    """The 11,000-point limit says what to do."""
    body = {"status": "error", "errorType": "bad_data", "error": "exceeded maximum resolution of 11,000 points per timeseries."}
    (problem,) = parse_query_range(body, file="x").problems
    assert "bad_data" in problem.message
    assert "step" in problem.hint


def test_warnings_and_native_histograms_are_problems():
    """The other series are still used."""
    data = {
        "status": "success",
        "warnings": ["store gw-2 did not answer"],
        "data": {
            "resultType": "matrix",
            "result": [MATRIX["data"]["result"][0], {"metric": {"__name__": "h"}, "histograms": [[1, {}]]}],
        },
    }
    parsed = parse_query_range(data, file="x")
    assert len(parsed.series) == 1
    assert len(parsed.problems) == 2


def test_an_empty_result_is_said_out_loud():
    """No series is not the same as no fault."""
    (problem,) = parse_query_range({"status": "success", "data": {"resultType": "matrix", "result": []}}, file="x").problems
    assert problem.status == "missing"


def test_bad_pairs_cost_only_themselves():
    """Null, short rows and words are left out."""
    values = [[1760000000, "1"], None, [1760000030], [1760000060, "hot"], [1760000090, "NaN"], [1760000120, "2"]]
    data = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": METRIC, "values": values}]}}
    parsed = parse_query_range(data, file="x")
    assert [value for value in parsed.series[0].values if not math.isnan(value)] == [1, 2]
    assert len(parsed.problems) == 1


KEYS = st.sampled_from(["status", "data", "result", "resultType", "metric", "values", "value", "error"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.sampled_from(["success", "error", "matrix", "1", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "data", "result", "resultType", "metric", "values", "value", "error"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(JSON)
def test_no_json_raises(data):
    """Whatever the shape, no exception."""
    looks_like_query(data)
    parse_query_range(data, file="x")


def test_answers_are_recognised_and_pod_lists_are_not():
    """kubectl's JSON is another parser's."""
    assert looks_like_query(MATRIX)
    assert looks_like_query([MATRIX])
    assert looks_like_query({"status": "error", "errorType": "timeout", "error": "x"})
    assert not looks_like_query({"apiVersion": "v1", "kind": "List", "items": []})
    assert not looks_like_query({"status": {"phase": "Running"}, "metadata": {}})
