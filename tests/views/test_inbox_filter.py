"""What a person wants to see of the inbox: as rows, and as text in an address and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.inbox.model import STATES, Entry
from workbench.views.inbox_filter import CAUSES, SORTS, SPANS, Wanted, since_of

ROWS = (
    Entry(
        "a",
        100.0,
        1.0,
        "slurm",
        "",
        cause="hardware",
        cls="hardware/nvlink",
        node="dgx-46",
        team="speech",
        cost=10.0,
        confidence=0.98,
    ),
    Entry("b", None, 200.0, "folder", "", cause="unknown", state="acknowledged", summary="Nothing decides", gpu_hours=3.0),
    Entry(
        "c", 300.0, 1.0, "kubernetes", "", cause="hardware", cls="hardware/gpu-memory", state="closed", cost=90.0, confidence=0.5
    ),
)


def ids(**wanted: object) -> str:
    """Return the ids that are shown."""
    return "".join(entry.id for entry in Wanted(**wanted).of(ROWS))  # type: ignore[arg-type]


def test_each_filter_keeps_what_it_names() -> None:
    """All of them together keep what all of them name."""
    assert ids() == "abc"
    assert ids(cause="hardware") == "ac"
    assert ids(cls="hardware/gpu-memory") == "c"
    assert ids(state="open") == "ab"
    assert ids(state="closed") == "c"
    assert ids(team="speech") == "a"
    assert ids(text="DGX nvlink") == "a"
    assert ids(text="dgx memory") == ""
    assert ids(since=150.0) == "bc"  # what has no time of failure counts by when it was seen
    assert ids(since=150.0, until=250.0) == "b"
    assert ids(cause="hardware", state="open") == "a"


def test_by_cost_what_has_none_comes_last_and_what_was_held_counts() -> None:
    """An unknown cost is no zero."""
    assert ids(sort="cost") == "cab"
    assert ids(sort="confidence") == "bca"


def test_counts_are_those_without_the_filter_that_they_are_of() -> None:
    """A chip tells what it would show, not what is left of it."""
    wanted = Wanted(cause="unknown", state="open")

    assert wanted.counts(ROWS, "cause") == {"hardware": 1, "unknown": 1}


def test_another_filter_begins_at_the_first_page() -> None:
    """Else a page that there is not would be shown."""
    assert Wanted(page=4).with_(cause="user").page == 1
    assert Wanted(page=4).with_(page=5).page == 5


def test_a_span_is_a_moment_in_the_address() -> None:
    """A link shows the same tomorrow."""
    wanted = Wanted(since=since_of("last 24 hours", now=1_777_892_523.7))

    assert wanted.write() == {"since": "2026-05-03T11:02:00.000Z"}
    assert Wanted.read(wanted.write()) == (wanted, {})
    assert all(since_of(span, 0.0) == -seconds for span, seconds in SPANS.items())


def test_what_makes_no_sense_is_left_out_and_told() -> None:
    """The rest of the address counts."""
    wanted, refused = Wanted.read({"cause": "gremlins", "state": "open", "since": "yesterday", "page": "-1", "other": "x"})

    assert wanted == Wanted(state="open")
    assert set(refused) == {"cause", "since", "page"}


@given(
    st.builds(
        Wanted,
        cause=st.none() | st.sampled_from(CAUSES),
        cls=st.none() | st.text(min_size=1, max_size=30).filter(str.isprintable),
        state=st.sampled_from(["all", "open", *STATES]),
        team=st.none() | st.text(min_size=1, max_size=30).filter(str.isprintable),
        text=st.none() | st.text(min_size=1, max_size=30).filter(str.isprintable),
        since=st.none() | st.integers(1, 4_000_000_000).map(float),
        sort=st.sampled_from(SORTS),
        page=st.integers(1, 1000),
    )
)
def test_an_address_gives_back_what_it_was_made_of(wanted: Wanted) -> None:
    """Whatever is searched for."""
    assert Wanted.read(wanted.write()) == (wanted, {})


@given(
    st.dictionaries(
        st.sampled_from(["cause", "class", "state", "team", "text", "since", "until", "sort", "page"]), st.text(max_size=40)
    )
)
def test_no_address_breaks_the_page(state: dict[str, str]) -> None:
    """Written by a colleague, an older version or somebody hostile."""
    wanted, _ = Wanted.read(state)

    assert wanted.of(ROWS) is not None
    assert Wanted.read(wanted.write())[0] == wanted
