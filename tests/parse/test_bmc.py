"""Board controllers' logs become events, whatever vendor printed them."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.model import Line, Parsed
from workbench.parse.bmc import parse_bmc

DATA = Path(__file__).parents[1] / "data" / "bmc"


def log(text: str, data: object = None) -> Parsed:
    return parse_bmc(
        [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)], data, file="sel.txt", node="gpu-1"
    )


def utc(*parts: int) -> float:
    return dt.datetime(*parts, tzinfo=dt.UTC).timestamp()  # type: ignore[misc,arg-type]


def test_an_ipmi_event_log_is_read() -> None:
    """Zones and 12-hour clocks are understood; a state that ended and a part that is present are no faults."""
    parsed = log((DATA / "sel.txt").read_text(encoding="utf-8"))
    assert [event.signature for event in parsed.events] == [
        "bmc-temperature",
        "bmc-memory-uncorrected",
        "bmc-pcie-corrected",
        "bmc-power",
    ]
    assert [event.time for event in parsed.events] == [
        utc(2026, 4, 12, 15, 27, 29),
        utc(2026, 4, 12, 20, 30, 10),
        utc(2026, 4, 12, 15, 32, 10),
        None,
    ]
    assert all(event.source == "bmc" and event.node == "gpu-1" for event in parsed.events)


def test_a_record_over_two_lines_is_one() -> None:
    """iLO prints severity and time in one line and the text in the next."""
    parsed = log(
        "1346 Critical       04:07  11/05/2025 04:07  11/05/2025 0001\n"
        "LOG: Uncorrectable Machine Check Exception (Board 0, Processor 1, APIC ID 0x00000010, Bank 0x00000005)\n\n"
        "1347 Informational  04:09  11/05/2025 04:09  11/05/2025 0001\n"
        "LOG: Server power restored.\n"
    )
    assert [(event.signature, event.time) for event in parsed.events] == [("bmc-mce", utc(2025, 11, 5, 4, 7))]
    assert "1346 Critical" in parsed.events[0].text
    assert parsed.facts["naive_local"] is True


def test_a_driver_message_in_redfish_is_an_xid() -> None:
    """The baseboard relays the driver's words; the GPU has the board's name only."""
    entry = {
        "OriginOfCondition": {"@odata.id": "/redfish/v1/Systems/HGX_Baseboard_0"},
        "MessageArgs": [
            "GPU_SXM_3 Driver Event Message",
            "[Tue Apr 21 23:22:23 UTC 2026][7][00] XID 94 Contained: SM (0x1). RST: No; D-RST: No",
        ],
    }
    for document in (entry, {"Events": [entry]}, {"Members": [entry]}):
        event = log(json.dumps(document, indent=1)).events[0]
        assert (event.signature, event.code, event.source, event.data["contained"]) == ("xid-94", 94, "bmc", True)
        assert (event.data["socket"], event.time) == ("GPU_SXM_3", utc(2026, 4, 21, 23, 22, 23))
        assert "XID 94" in event.text


def test_a_cut_document_is_a_problem_not_an_exception() -> None:
    """What can be read of it is still used, and the reader is told."""
    parsed = log('{"Events": [\n{"MessageArgs": ["GPU_SXM_3", "XID 79 GPU has fallen off the bus"')
    assert parsed.problems[0].status == "partial"
    assert [event.code for event in parsed.events] == [79]


@given(
    st.recursive(
        st.none() | st.text(max_size=30) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["Events", "Members", "MessageArgs", "Message", "OriginOfCondition", "x"]), inner, max_size=4
            )
        ),
        max_leaves=8,
    ),
    st.text(max_size=200),
)
@settings(max_examples=80, deadline=None)
def test_any_document_is_survived(document: object, text: str) -> None:
    """Junk in, no exception out."""
    log(text, document)
    log(f"1 | {text} | 15:27 | {text} | Uncorrectable ECC\n{text}")
