"""Events are copied field by field; whoever adds a field must add it there."""

from __future__ import annotations

import dataclasses

from workbench.model import Event, Gpu


def test_a_copy_of_an_event_has_all_its_fields_and_data_of_its_own() -> None:
    """As `dataclasses.replace` would make it."""
    values = {field.name: f"value of {field.name}" for field in dataclasses.fields(Event)}
    event = Event(**{**values, "gpu": Gpu(3), "data": {"seq": 1}})  # type: ignore[arg-type]
    assert event.copy({"seq": 2}) == dataclasses.replace(event, data={"seq": 2})
    assert event.data == {"seq": 1}
