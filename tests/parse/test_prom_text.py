"""The text parser reads every label spelling, both time units and damaged files, and can quote each sample as it stood."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.catalog import table
from workbench.parse.prom_labels import address_of, canonical, parse_labels, styled
from workbench.parse.prom_text import looks_like_exposition, parse_exposition

DATA = Path(__file__).parents[1] / "data" / "metrics"
UUID = "GPU-11111111-2222-3333-4444-00000000000"


@pytest.fixture(scope="module")
def spellings():
    return parse_exposition((DATA / "spellings.prom").read_bytes(), file="spellings.prom", default_time=1760000000.0)


def row(parsed, field, index=None, uuid=None):
    for series in parsed.series:
        if (
            series.field == field
            and (index is None or (series.gpu and series.gpu.index == index))
            and (uuid is None or series.gpu.uuid == uuid)
        ):
            return series
    raise AssertionError(f"no series {field} {index}")


def test_nothing_in_the_shipped_spellings_is_a_problem(spellings):
    """Every line of the file is legal exposition."""
    assert spellings.problems == []
    assert len(spellings.series) == 12


@pytest.mark.parametrize(
    ("index", "node", "pod", "namespace"),
    [
        (0, "node-a", "train-worker-0", "ml"),
        (1, "node-b", "train-worker-1", "ml"),  # exported_* is the job's pod, pod is the exporter's own
        (2, "10.0.0.7", "train-worker-2", "ml"),  # localhost is no node
        (3, "node-d", None, None),  # the exporter's pod name is no node
    ],
)
def test_node_and_pod_come_from_whatever_label_has_them(spellings, index, node, pod, namespace):
    """Hostname, hostname, kubernetes_node, instance; pod, exported_pod, pod_name."""
    series = row(spellings, "DCGM_FI_DEV_SM_CLOCK", index)
    assert (series.node, series.pod, series.namespace) == (node, pod, namespace)
    assert series.gpu.uuid == f"{UUID}{index}"


def test_pci_addresses_are_canonical(spellings):
    """DCGM's eight-digit domain in capitals becomes the kernel's spelling."""
    assert row(spellings, "DCGM_FI_DEV_SM_CLOCK", 0).gpu.pci == "0000:1b:00.0"


def test_new_field_names_become_the_one_in_the_wild(spellings):
    """DCGM 4.6 renamed 325 fields; exporters print either."""
    assert row(spellings, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS").values[0] == 4
    known = {line["field_id"]: line["prometheus_name"] for line in table("dcgm_fields")}
    for line in table("dcgm_field_aliases"):
        assert canonical(line["current_name_dcgm_4_6"])[0] == canonical(line["old_name"])[0] == known[line["field_id"]]


def test_mig_rows_keep_their_instance(spellings):
    """GPU_I_ID goes to `mig`; the UUID stays the GPU's."""
    series = row(spellings, "DCGM_FI_DEV_FB_USED")
    assert (series.mig, series.gpu.uuid) == ("7", f"{UUID}0")


@pytest.mark.parametrize("field", ["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"])
def test_blank_numbers_are_masked_and_counted(spellings, field):
    """A sentinel is no reading of 2 billion degrees."""
    series = row(spellings, field, 0)
    assert math.isnan(series.values[0])
    assert series.blanks == 1


def test_other_exporters_are_converted_to_dcgm_units(spellings):
    """A ratio becomes percent, milliwatts become watts; the quoted line stays as it was."""
    util = row(spellings, "DCGM_FI_DEV_GPU_UTIL")
    power = row(spellings, "DCGM_FI_DEV_POWER_USAGE", uuid=f"{UUID}6")
    assert util.values[0] == pytest.approx(97)
    assert power.values[0] == pytest.approx(250)
    assert power.gpu.index == 4
    assert power.quote(0).endswith(" 250000")


def test_label_values_may_hold_braces_quotes_and_blanks(spellings):
    """The mount point is read up to its closing quote."""
    assert row(spellings, "node_filesystem_avail_bytes").device == '/data "big" {x} y'


def test_pod_labels_give_placements(spellings):
    """The pod of a GPU is a placement of its own origin."""
    found = {(place.node, place.gpu.uuid[-1], place.pod) for place in spellings.placements}
    assert ("node-a", "0", "train-worker-0") in found
    assert {place.origin for place in spellings.placements} == {"dcgm-pod-label"}


def test_host_series_get_the_node_of_their_address():
    """node-exporter knows only an address; the GPU exporter on the same address knows the name."""
    raw = b'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="gpu-1",instance="10.1.1.1:9400"} 50\nnode_load1{instance="10.1.1.1:9100"} 3\n'
    parsed = parse_exposition(raw, file="x")
    assert {series.node for series in parsed.series} == {"gpu-1"}


def test_a_file_of_one_host_takes_the_node_it_is_said_to_come_from():
    """A dead exporter leaves only `up`, with an address."""
    parsed = parse_exposition(b'up{instance="10.1.1.1:9400",job="dcgm-exporter"} 0 1760000000.5\n', file="x", node="gpu-9")
    assert parsed.series[0].node == "gpu-9"
    two = b'up{instance="10.1.1.1:9400"} 0\nup{instance="10.1.1.2:9400"} 0\n'
    assert {series.node for series in parse_exposition(two, file="x", node="gpu-9").series} == {"10.1.1.1", "10.1.1.2"}


def test_milliseconds_and_seconds_are_told_apart():
    """Prometheus text counts milliseconds, OpenMetrics seconds."""
    raw = b"a 1 1760000000500\na 2 1760000030500\nb 1 1760000000.500\nb 2 1760000030.500\n"
    for series in parse_exposition(raw, file="x").series:
        assert series.times.tolist() == [1760000000.5, 1760000030.5]


def test_samples_are_sorted_by_time_and_keep_their_lines():
    """A dump may be ordered by scrape, by series or not at all."""
    raw = b'# HELP a b\na{x="1"} 3 1760000060\nc{x="1"} 9 1760000000\na{x="1"} 1 1760000000\na{x="1"} 2 1760000030\n'
    series = parse_exposition(raw, file="x").series[0]
    assert series.values.tolist() == [1, 2, 3]
    assert series.lines.tolist() == [4, 5, 2]


def test_openmetrics_exemplars_and_end_are_read_over():
    """The exemplar after # belongs to no sample value."""
    raw = b'# TYPE f counter\nf_total{le="1"} 17 1760000000.0 # {trace_id="a}b"} 0.67\nf_total 5 # {t="x"} 1\n# EOF\n'
    parsed = parse_exposition(raw, file="x")
    assert [series.values.tolist() for series in parsed.series] == [[17], [5]]
    assert parsed.problems == []


def test_quoted_metric_names_of_prometheus_3_are_read():
    """UTF-8 names stand inside the braces."""
    parsed = parse_exposition(b'{"gpu.temp", "host.name"="a",gpu="0"} 5\n', file="x")
    assert parsed.series[0].field == "gpu.temp"
    assert parsed.series[0].labels == {"host.name": "a", "gpu": "0"}


def test_special_numbers_and_windows_line_ends_are_read():
    """+Inf, NaN and CRLF are legal in the wild."""
    parsed = parse_exposition(b'a{x="1"} +Inf 1760000000\r\na{x="1"} NaN 1760000030\r\n', file="x")
    assert parsed.series[0].values[0] == math.inf
    assert math.isnan(parsed.series[0].values[1])


def test_a_damaged_file_gives_all_good_samples_and_few_problems():
    """Bad lines are grouped, with the line of the first; the rest is used."""
    parsed = parse_exposition((DATA / "damaged.prom").read_bytes(), file="damaged.prom")
    assert [series.values.tolist() for series in parsed.series] == [[61, 62, 64]]
    assert parsed.series[0].lines.tolist() == [1, 2, 6]
    assert sorted(problem.line for problem in parsed.problems) == [3, 4]
    assert "3 lines" in max(problem.message for problem in parsed.problems if problem.line == 3)


def test_an_empty_document_gives_nothing():
    """No samples, no problem, no error."""
    assert parse_exposition(b"", file="x").series == []
    assert parse_exposition(b"# EOF\n\n", file="x").problems == []


def test_kube_state_metrics_give_conditions():
    """Only the status that holds (value 1) is one; its onset is known when the change was seen."""
    raw = b"".join(
        b'kube_node_status_condition{node="n1",condition="Ready",status="%s",job="kube-state-metrics"} %d %d\n'
        % (status, value, time)
        for status, value, time in [
            (b"true", 1, 1760000000),
            (b"true", 0, 1760000030),
            (b"unknown", 0, 1760000000),
            (b"unknown", 1, 1760000030),
        ]
    )
    (condition,) = parse_exposition(raw, file="x").conditions
    assert (condition.name, condition.status, condition.node, condition.since) == ("Ready", "Unknown", "n1", 1760000030.0)


def test_every_sample_is_quoted_as_it_stood():
    """Evidence shows the line itself, whatever the number format of the exporter."""
    lines = [
        'node_boot_time_seconds{instance="a"} 1.754325332e+09 1756228301.648',
        'node_boot_time_seconds{instance="a"} 0 1756228361.648',
        'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 35.686000 1756228301648',
        'DCGM_FI_DEV_FB_USED{gpu="0"} 81388 1756228301',
        'x{a="1"} 1.2e-05 1756228301.648',
    ]
    parsed = parse_exposition("\n".join(lines).encode(), file="x")
    assert [series.quote(at) for series in parsed.series for at in range(len(series.values))] == lines


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_printed_numbers_read_back_the_same(number):
    """The quoted value is never another value."""
    assert float(styled(number, "g")) == number
    assert float(styled(number, "f")) == number


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=20), max_size=6))
def test_any_label_values_survive_escaping(labels):
    """Escaped text reads back as it was."""
    escape = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    text = ",".join(f'{key}="{"".join(escape.get(letter, letter) for letter in value)}"' for key, value in labels.items())
    assert parse_labels(text) == (labels, None)


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_no_input_raises(raw):
    """Binary junk is a problem, never an exception."""
    parse_exposition(raw, file="x")
    parse_exposition(b'a{b="c"} 1 1760000000\n' + raw, file="x")
    looks_like_exposition(raw)


def test_exposition_is_recognised_by_its_content():
    """A kernel log, JSON and a CSV are none."""
    assert looks_like_exposition((DATA / "spellings.prom").read_bytes())
    assert looks_like_exposition(b"up 1\nnode_load1 0.5\n")
    assert not looks_like_exposition(b"[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n" * 5)
    assert not looks_like_exposition(b'{"status":"success"}')
    assert not looks_like_exposition(b"step 100 loss 2.31\nstep 101 loss 2.30\n")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.1:9400", "10.0.0.1"),
        ("http://gpu-1:9400", "gpu-1"),
        ("[fe80::1]:9400", "fe80::1"),
        ("localhost:9400", None),
        (None, None),
    ],
)
def test_the_address_is_the_host_part_of_an_instance(text, host):
    """The port goes, loopback is nobody."""
    assert address_of(text) == host


def test_many_samples_of_a_series_are_arrays():
    """Times and values are float64, ready for numpy."""
    raw = b"".join(b'a{x="1"} %d %d\n' % (at, 1760000000 + 30 * at) for at in range(300))
    series = parse_exposition(raw, file="x").series[0]
    assert series.values.dtype == series.times.dtype == np.float64
    assert len(series.values) == 300


def test_samples_of_a_series_meet_however_they_are_written():
    """Names that take turns, an exemplar and odd spacing lead to the same series as the common form."""
    raw = b"""# TYPE a gauge
a{x="1"} 1 1760000000
b{x="1"} 10 1760000000
a{x="1"} 2 1760000030
a{x="2"} 7 1760000000
a{x="1"}   3 1760000060
b{x="1"} 20 1760000030 # {trace_id="t"} 0.5
a{x="2"} 8 1760000030
b{bad=1} 5 1760000030
"""
    parsed = parse_exposition(raw, file="x")
    got = {
        (one.name, one.raw): (one.values.tolist(), [one.line_of(at) for at in range(len(one.values))]) for one in parsed.series
    }
    assert got == {
        ("a", 'x="1"'): ([1, 2, 3], [2, 4, 6]),
        ("b", 'x="1"'): ([10, 20], [3, 7]),
        ("a", 'x="2"'): ([7, 8], [5, 8]),
    }
    assert [problem.line for problem in parsed.problems] == [9]


def test_the_series_of_one_scrape_share_their_time_and_nobody_can_move_it():
    """One array serves thousands of series."""
    series = parse_exposition(b'a{x="1"} 1\na{x="2"} 2\n', file="x", default_time=5.0).series
    assert [one.times.tolist() for one in series] == [[5.0], [5.0]]
    with pytest.raises(ValueError, match="read-only"):
        series[0].times[0] = 6.0
