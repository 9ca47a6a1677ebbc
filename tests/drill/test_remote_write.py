"""What is sent to Prometheus is what the samples say: read back here with decoders that know the two formats and nothing of the writer."""

from __future__ import annotations

import random
import struct

from workbench.drill.remote_write import body
from workbench.gameday import draw
from workbench.simulation import Spec
from workbench.simulation.metrics import Sample, samples


def unpacked(data: bytes) -> bytes:
    """A Snappy block of any elements, by its format description."""
    size, at = number(data, 0)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        kind = tag & 3
        assert kind == 0, "only literals are written"
        length = tag >> 2
        if length >= 60:
            wide = length - 59
            length = int.from_bytes(data[at : at + wide], "little")
            at += wide
        out += data[at : at + length + 1]
        at += length + 1
    assert len(out) == size
    return bytes(out)


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> list[tuple[int, object]]:
    """Protobuf: field number → varint, double or bytes."""
    found: list[tuple[int, object]] = []
    at = 0
    while at < len(data):
        key, at = number(data, at)
        value: object
        if key & 7 == 0:
            value, at = number(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack("<d", data[at : at + 8])[0], at + 8
        else:
            length, at = number(data, at)
            value, at = data[at : at + length], at + length
        found.append((key >> 3, value))
    return found


def read(data: bytes) -> dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]:
    found = {}
    for _, series in fields(unpacked(data)):
        assert isinstance(series, bytes)
        labels, rows = [], []
        for which, value in fields(series):
            assert isinstance(value, bytes)
            inner = dict(fields(value))
            if which == 1:
                labels.append((inner[1].decode(), inner[2].decode()))  # type: ignore[attr-defined]
            else:
                rows.append((inner[2], inner[1]))
        found[tuple(labels)] = rows
    return found  # type: ignore[return-value]


def test_samples_come_back_with_their_labels_in_order_of_name() -> None:
    one = Sample(1_760_000_000.5, "UP", (("zone", "ä"), ("gpu", "3")), 0.1)
    two = Sample(1_760_000_030.5, "UP", (("zone", "ä"), ("gpu", "3")), -1e300)

    assert read(body([one, two], (("mark", "yes"),))) == {
        (("__name__", "UP"), ("gpu", "3"), ("mark", "yes"), ("zone", "ä")): [
            (1_760_000_000_500, 0.1),
            (1_760_000_030_500, -1e300),
        ]
    }


def test_a_job_s_samples_come_back_whole() -> None:
    """More than one literal of Snappy can hold here."""
    failure = draw(1, "hardware/gpu-lost", Spec.read(), random.Random(1), 64)
    rows = list(samples(failure))
    data = body(rows)

    assert len(data) > 1 << 16
    assert sum(map(len, read(data).values())) == len(rows)


def test_nothing_is_a_body_too() -> None:
    assert read(body([])) == {}
