"""A case file that is saved and opened again is the same, and nothing in its folder can run."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from workbench import frames
from workbench.casefile import CaseFile, case_file
from workbench.casefile.frames import DOCUMENTS, PROBLEMS
from workbench.casefile.logs import EvidenceLogs
from workbench.casefile.model import RANKS, STATES, UTC, Activity
from workbench.casefile.reading import Marks
from workbench.casefile.store import open_case, save
from workbench.cli import main
from workbench.errors import ParseError, SourceUnavailable
from workbench.shipped import example_path, load_example

FRAMES = ("ranks", "events", "metrics", "conditions", "placement", "documents", "problems")
EVENTS = {**frames.EVENTS, "lane": "string", "evidence": "Int64"}
# hostile: control, markup, reordering, torn code points, NUL; pandas has no torn ones where it keeps text in Arrow
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)


def _same(one: CaseFile, other: CaseFile) -> None:
    for name in FRAMES:
        left, right = getattr(one, name), getattr(other, name)
        assert_frame_equal(left.reset_index(drop=True), right, check_categorical=False)
        assert dict(left.attrs) == right.attrs
    for name in ("id", "name", "source", "job", "impact", "queries", "verdict"):
        assert getattr(one, name) == getattr(other, name)
    if one.activity is None:
        assert other.activity is None
        return
    for name in ("ranks", "edges", "states", "steps", "lines"):
        left, right = getattr(one.activity, name), getattr(other.activity, name)
        assert (left is None) == (right is None)
        if left is not None:
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype


def _column(dtype: str, size: int) -> st.SearchStrategy[pd.Series]:
    missing = st.just(pd.NA)
    values = {
        "Int64": st.one_of(missing, st.integers(-(2**63), 2**63 - 1)),
        "Float64": st.one_of(missing, st.floats(allow_nan=False)),
        "boolean": st.one_of(missing, st.booleans()),
        "string": st.one_of(missing, WORDS),
        "category": st.one_of(st.none(), WORDS),
        "float64": st.floats(),
        UTC: st.one_of(
            st.none(),
            st.datetimes(
                min_value=pd.Timestamp("1970-01-01").to_pydatetime(), max_value=pd.Timestamp("2200-01-01").to_pydatetime()
            ),
        ),
    }[dtype]

    def made(rows: list) -> pd.Series:
        if dtype == UTC:
            return pd.Series(pd.to_datetime(rows, utc=True)).astype(UTC) if rows else pd.Series([], dtype=UTC)
        if dtype == "category":
            return pd.Series(pd.Categorical(rows))
        return pd.Series(pd.array(rows, dtype=dtype))

    return st.lists(values, min_size=size, max_size=size).map(made)


@st.composite
def _frame(draw: st.DrawFn, contract: dict[str, str]) -> pd.DataFrame:
    size = draw(st.integers(0, 5))
    frame = pd.DataFrame({name: draw(_column(dtype, size)) for name, dtype in contract.items()})
    frame.attrs = draw(st.dictionaries(st.sampled_from(["left_out", "note"]), st.one_of(st.integers(0, 10**6), TEXT)))
    return frame


@st.composite
def _activity(draw: st.DrawFn) -> Activity | None:
    if draw(st.booleans()):
        return None
    n, m = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return Activity(
        np.arange(n, dtype=np.int64),
        np.arange(m + 1) * 64.0 + 1.7e9,
        rng.integers(0, len(STATES), (n, m)).astype(np.uint8),
        rng.random((n, m)).astype(np.float32) if draw(st.booleans()) else None,
        rng.integers(0, 2**32, (n, m)).astype(np.uint32) if draw(st.booleans()) else None,
    )


@st.composite
def _case(draw: st.DrawFn) -> CaseFile:
    made = {
        "ranks": draw(_frame(RANKS)), "events": draw(_frame(EVENTS)), "metrics": draw(_frame(frames.METRICS)),
        "conditions": draw(_frame(frames.CONDITIONS)), "placement": draw(_frame(frames.PLACEMENT)),
        "documents": draw(_frame(DOCUMENTS)), "problems": draw(_frame(PROBLEMS)),
    }  # fmt: skip
    plain = st.one_of(st.none(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), TEXT)
    verdict = {"evidence": [], "class": draw(TEXT)}
    marks = {"big.log": Marks(5, 1.5, [0, 3], [0, 7])} if draw(st.booleans()) else {}
    return CaseFile(
        id="x", name=draw(TEXT), source=draw(TEXT), verdict=verdict, activity=draw(_activity()),
        logs=EvidenceLogs("nowhere", made["documents"], {}, verdict, marks),
        job=draw(st.dictionaries(TEXT, plain, max_size=3)), impact={"why": draw(st.dictionaries(TEXT, TEXT, max_size=2))},
        queries=draw(st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT, max_size=2), max_size=2)), **made,
    )  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=_case())
def test_whatever_is_in_a_case_comes_back(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("case") / "one"
    save(case, folder)
    again = open_case(folder)
    _same(case, again)
    assert again.logs.marks == case.logs.marks


@pytest.mark.parametrize("name", ["nvlink-switch", "preempted"])
def test_a_shipped_incident_comes_back_and_its_verdict_is_what_triage_prints_byte_for_byte(name, tmp_path, capsys):
    path = str(example_path(name))
    case = case_file(load_example(name), source=path)
    save(case, tmp_path / "case")
    _same(case, open_case(tmp_path / "case"))
    main(["triage", path, "--output", "json", "--quiet"])
    assert (tmp_path / "case" / "verdict.json").read_text() == capsys.readouterr().out


def test_a_given_verdict_and_the_one_made_on_the_way_give_the_same_case():
    incident = load_example("gpu-memory")
    given, made = case_file(incident, incident.triage(), source="x"), case_file(load_example("gpu-memory"), source="x")
    assert given.id == made.id
    assert given.verdict == made.verdict
    np.testing.assert_array_equal(given.activity.states, made.activity.states)


def test_there_is_no_pickle_in_the_folder(tmp_path):
    save(case_file(load_example("nvlink-switch"), source="x"), tmp_path / "case")
    with zipfile.ZipFile(tmp_path / "case" / "frames.zip") as archive:
        for name in archive.namelist():
            head = archive.read(name)[:256]
            assert head.startswith(b"\x93NUMPY")
            assert b"'|O'" not in head


def test_an_array_of_objects_in_the_folder_is_refused_and_nothing_of_it_runs(tmp_path):
    save(case_file(load_example("preempted"), source="x"), tmp_path / "case")
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (ran,))

    evil = tmp_path / "evil.npy"
    np.save(evil, np.array([Evil()], dtype=object), allow_pickle=True)
    old = tmp_path / "case" / "frames.zip"
    with zipfile.ZipFile(old) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    first = next(iter(members))
    with zipfile.ZipFile(old, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, evil.read_bytes() if name == first else data)
    with pytest.raises(ParseError):
        open_case(tmp_path / "case")
    assert not ran.exists()


@pytest.mark.parametrize("what", ["case.json", "verdict.json", "frames.zip"])
def test_a_damaged_case_is_a_sentence_with_the_way_out(what, tmp_path):
    save(case_file(load_example("preempted"), source="x"), tmp_path / "case")
    whole = (tmp_path / "case" / what).read_bytes()
    (tmp_path / "case" / what).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ParseError, match="damaged"):
        open_case(tmp_path / "case")
    (tmp_path / "case" / what).unlink()
    with pytest.raises(SourceUnavailable, match="there is no case"):
        open_case(tmp_path / "case")


def test_a_case_of_another_format_is_not_guessed_at(tmp_path):
    save(case_file(load_example("preempted"), source="x"), tmp_path / "case")
    about = tmp_path / "case" / "case.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "format": "workbench.case/99"}))
    with pytest.raises(ParseError, match="another format"):
        open_case(tmp_path / "case")


def test_saving_again_replaces_a_case_and_nothing_else(tmp_path):
    case = case_file(load_example("preempted"), source="x")
    save(case, tmp_path / "case")
    save(case, tmp_path / "case")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["case"]
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(SourceUnavailable):
        save(case, other)
    assert (other / "thesis.txt").read_text() == "precious"


def test_a_torn_code_point_in_the_evidence_costs_nothing_but_itself(tmp_path):
    incident = load_example("preempted")
    for event in incident.records:
        event.text = "\ud800" + event.text
    case = case_file(incident, source="\ud800")
    save(case, tmp_path / "case")
    _same(case, open_case(tmp_path / "case"))
