"""Host lists: what Slurm prints must give the nodes, and nodes must give the host list back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.parse.nodeset import expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[001-003,007]-ib0,login1", ["gpu001-ib0", "gpu002-ib0", "gpu003-ib0", "gpu007-ib0", "login1"]),
        ("r[1-2]n[09-10]", ["r1n09", "r1n10", "r2n09", "r2n10"]),
        ("r13-n[04,08],r14-n[01-02]", ["r13-n04", "r13-n08", "r14-n01", "r14-n02"]),
        ("gpu[[1-2]0,7]", ["gpu10", "gpu20", "gpu7"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("a b,a", ["a", "b"]),
        ("ip-10-0-0-7.eu-west-1.compute.internal", ["ip-10-0-0-7.eu-west-1.compute.internal"]),
        ("(null)", []),
        ("None assigned", []),
        ("", []),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["gpu[001", "gpu001]", "[::1]", "n[3-1]", "n[]", "n[c-a]", "n[aa-c]", "[", "]]["])
def test_malformed_lists_stay_as_written(text: str) -> None:
    assert expand(text) == [text]


@pytest.mark.parametrize("text", ["n[0-999999999999]", "n[0-999][0-999][0-999]", "[1-9]" * 50, ",".join(["n[1-9999]"] * 50)])
def test_no_explosion(text: str) -> None:
    assert len(expand(text, limit=1000)) <= 1000


def test_none() -> None:
    assert expand(None) == []


def test_fold() -> None:
    assert fold(["gpu001", "gpu002", "gpu007", "login1"]) == "gpu[001-002,007],login1"
    assert fold(["n9", "n10", "n11"]) == "n[9-11]"
    assert fold(["gpu001-ib", "gpu002-ib"]) == "gpu[001-002]-ib"
    assert fold(["web"]) == "web"
    assert fold([]) == ""


_NAME = st.builds(
    lambda head, number, width, tail: f"{head}{str(number).rjust(width, '0')}{tail}",
    st.from_regex(r"[a-z][a-z0-9]{0,3}[a-z-]", fullmatch=True),
    st.integers(0, 12_000),
    st.integers(1, 5),
    st.sampled_from(["", "-ib", ".local"]),
)


@given(st.lists(_NAME, max_size=40))
def test_round_trip(names: list[str]) -> None:
    assert set(expand(fold(names))) == set(names)


@given(st.text(alphabet="ab01[],-() ", max_size=40))
def test_any_text_is_survived(text: str) -> None:
    assert len(expand(text, limit=500)) <= 500


def test_lettered_hosts() -> None:
    """No form of Slurm's own, but lists are written so by people and by tools that hide names."""
    assert expand("node-[a-c]") == ["node-a", "node-b", "node-c"]
    assert expand("node-[a-b,e]") == ["node-a", "node-b", "node-e"]
