"""Links: what is written is read back, and nothing that a link may say breaks a view."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as some

from workbench.views import permalink
from workbench.views.permalink import choice, moments, ranks, text, whole

FIELDS = {"rank": whole(), "tab": choice("one", "two"), "query": text(50), "span": moments(), "block": ranks(), "line": whole(1)}
VALUES = some.fixed_dictionaries(
    {
        "rank": some.none() | some.integers(0, permalink.LAST_RANK),
        "tab": some.sampled_from(["one", "two"]),
        "query": some.none() | some.text(min_size=1, max_size=50),
        "span": some.none()
        | some.tuples(some.floats(1, 4e9), some.floats(0.01, 1e6)).map(
            lambda pair: (round(pair[0], 3), round(pair[0] + pair[1], 3))
        ),
        "block": some.none()
        | some.tuples(some.integers(0, 20_000), some.integers(0, 20_000)).map(lambda pair: tuple(sorted(pair))),
        "line": some.none() | some.integers(1, 10**9),
    }
)
HOSTILE = some.text() | some.sampled_from(
    [
        "-1",
        "1e9",
        "NaN",
        "99999999999999999999",
        "<script>",
        "\x00",
        "0x10",
        "٣",
        "2026-05-04T11:02:03Z",
        "9999-99-99/x",
        "5-1",
        "1-2-3",
        "/",
        "inf/inf",
    ]
)


@given(VALUES, VALUES)
@settings(max_examples=200, deadline=None)
def test_a_state_survives_the_way_through_a_url(values, defaults):
    state = permalink.write(FIELDS, values, defaults)
    assert all(isinstance(part, str) for pair in state.items() for part in pair)
    search = permalink.query(state)
    assert search.isascii()
    assert not set(search) & set('<>"\n ')
    arrived = permalink.parse(search)
    assert arrived == state
    read, refused = permalink.read(FIELDS, arrived)
    assert not refused
    # what was read, written again, is the same link: nothing drifts from colleague to colleague
    assert permalink.write(FIELDS, {**defaults, **read}, defaults) == state


@given(VALUES)
def test_what_is_at_its_default_is_left_out(values):
    assert permalink.write(FIELDS, values, values) == {}


@given(some.dictionaries(some.sampled_from(list(FIELDS)), HOSTILE | some.none() | some.integers() | some.lists(some.text())))
def test_a_hostile_state_is_told_and_never_an_error(state):
    values, refused = permalink.read(FIELDS, state)
    assert set(values) | set(refused) == set(state)
    assert not set(values) & set(refused)
    for name in ("rank", "line"):
        assert values.get(name) is None or 0 <= values[name] <= permalink.LAST_RANK
    if values.get("span"):
        start, end = values["span"]
        assert math.isfinite(start)
        assert start < end


@given(some.binary(max_size=300) | some.text(max_size=300))
def test_any_query_of_a_url_is_read(search):
    state = permalink.parse(search)
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in state.items())


def test_the_first_value_of_a_name_counts_and_the_length_is_limited():
    assert permalink.parse("?a=1&a=2&b=") == {"a": "1", "b": ""}
    assert len(permalink.parse("?" + "&".join(f"k{n}=1" for n in range(1000)))) == permalink.MANY
    assert permalink.parse("?q=" + "x" * 100_000)["q"] == "x" * (permalink.LONGEST - 2)


def test_times_in_a_link_are_absolute_and_in_utc():
    state = permalink.write(FIELDS, {"span": (1777892523.12, 1777892700.0)}, dict.fromkeys(FIELDS))
    assert state == {"span": "2026-05-04T11:02:03.120Z/2026-05-04T11:05:00.000Z"}
    values, refused = permalink.read(FIELDS, {"span": "2026-05-04T13:02:03+02:00/2026-05-04T11:05:00"})
    assert values["span"] == (1777892523.0, 1777892700.0)
    assert not refused
