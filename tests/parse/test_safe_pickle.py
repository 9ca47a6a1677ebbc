"""The pickle reader: equal to `pickle.loads` on plain data, and deaf to everything that names code."""

from __future__ import annotations

import collections
import os
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import ParseError
from workbench.parse.safe_pickle import Limits, loads, salvage

_LEAVES = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=8)
_KEYS = st.text(max_size=6) | st.integers() | st.tuples(st.integers(), st.text(max_size=3))
_PLAIN = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(_KEYS, inner, max_size=4)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=20,
)


@given(_PLAIN, st.integers(0, 5))
@settings(max_examples=120, deadline=None)
def test_reads_what_pickle_wrote(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=60) | st.frozensets(st.integers(), max_size=4) | st.sets(st.text(max_size=3)), st.integers(4, 5))
@settings(max_examples=60, deadline=None)
def test_bytes_and_sets_from_protocol_4_on(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_give_a_value_or_a_parse_error(raw: bytes) -> None:
    try:
        loads(raw)
    except ParseError:
        pass


@given(_PLAIN, st.integers(0, 5), st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_pickles_give_a_value_or_a_parse_error(value: Any, protocol: int, data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps(value, protocol))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    salvage(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("thing", "name"),
    [(collections.OrderedDict(a=1), "OrderedDict"), (os.system, "system"), (ValueError("x"), "ValueError"), (range(3), "range")],
)
def test_a_class_is_refused_by_name(thing: object, name: str, protocol: int) -> None:
    with pytest.raises(ParseError, match=name):
        loads(pickle.dumps([1, {"a": thing}], protocol))


def test_a_call_is_never_made(tmp_path: Any) -> None:
    target = tmp_path / "owned"
    raw = f"cos\nsystem\n(S'touch {target}'\ntR.".encode()
    with pytest.raises(ParseError, match=r"os\.system"):
        loads(raw)
    assert salvage(raw)[0] is None
    assert not target.exists()


@pytest.mark.parametrize("raw", [b"(i__main__\nX\n.", b"Pid\n.", b"]Q.", b"\x82\x01.", b"}}b.", b")R.", b"\x97."])
def test_other_ways_to_an_object_are_refused(raw: bytes) -> None:
    with pytest.raises(ParseError):
        loads(raw)


def test_bounds() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ParseError, match="deep"):
        loads(pickle.dumps(deep))
    with pytest.raises(ParseError, match="larger"):
        loads(pickle.dumps("x" * 100), Limits(max_bytes=50))
    with pytest.raises(ParseError, match="more than 10"):
        loads(pickle.dumps(list(range(20))), Limits(max_items=10))
    with pytest.raises(ParseError, match="integer"):
        loads(pickle.dumps(1 << 100_000))
    with pytest.raises(ParseError):
        loads(b"\x8e" + b"\xff" * 8)  # claims 2^64 bytes


def test_shared_containers_cannot_unfold_without_bound() -> None:
    bomb: list[Any] = ["x"] * 10
    for _ in range(40):
        bomb = [bomb, bomb]
    with pytest.raises(ParseError, match="unfolds"):
        loads(pickle.dumps(bomb))
    own: list[Any] = []
    own.append(own)
    with pytest.raises(ParseError, match="itself"):
        loads(pickle.dumps(own))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_cut_pickle_keeps_what_was_whole(protocol: int) -> None:
    raw = pickle.dumps({"version": "2.4", "entries": [{"n": n} for n in range(900)]}, protocol)
    value, error = salvage(raw[: len(raw) * 3 // 4])
    assert error is not None
    assert "cut" in str(error)
    assert value["version"] == "2.4"
    assert value["entries"][:500] == [{"n": n} for n in range(500)]
    with pytest.raises(ParseError, match="cut"):
        loads(raw[:-1])
