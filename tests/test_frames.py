"""Frames hold whatever the evidence says."""

from __future__ import annotations

from workbench import frames
from workbench.model import Condition, Event


def test_half_of_a_utf_16_pair_does_not_cost_the_frame() -> None:
    r"""JSON can write `"\ud9c2"`, and Arrow's strings cannot hold it."""
    events = frames.events_frame([Event("xid-79", "kernel", text="a\ud9c2b", time=1.0), Event("xid-79", "kernel", text="c")])
    conditions = frames.conditions_frame([Condition("Ready", "False", node="n\ud800", message="x")])

    assert events["text"].tolist() == ["a?b", "c"]
    assert conditions["node"].tolist() == ["n?"]
    frames.check_frame(events, frames.EVENTS)
