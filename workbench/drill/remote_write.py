"""
Turn samples into a request of Prometheus's remote write protocol 1.0: a protobuf message in a Snappy block.

Both formats are written by hand, since the few bytes that are needed do not pay for two compiled packages: the message has three levels
(https://prometheus.io/docs/specs/prw/remote_write_spec/), and a Snappy block may hold literals only
(https://github.com/google/snappy/blob/main/format_description.txt, section 2.1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from workbench.simulation.metrics import Sample

__all__ = ["HEADERS", "body"]

HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_CHUNK = 1 << 16  # bytes of one literal


def body(samples: Iterable[Sample], extra: tuple[tuple[str, str], ...] = ()) -> bytes:
    """
    Return the body of a request.

    Parameters
    ----------
    samples : iterable of Sample
        Of each series in order of time: the server refuses what is older than it has.
    extra : tuple of (str, str)
        Labels that every series gets.
    """
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for one in samples:
        labels = tuple(sorted((("__name__", one.name), *one.labels, *extra)))
        series.setdefault(labels, []).append(one)
    message = b"".join(_field(1, _series(labels, rows)) for labels, rows in series.items())
    return _snappy(message)


def _series(labels: tuple[tuple[str, str], ...], rows: list[Sample]) -> bytes:
    told = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in labels)
    return told + b"".join(
        _field(2, b"\x09" + struct.pack("<d", row.value) + b"\x10" + _varint(round(row.time * 1000))) for row in rows
    )


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _snappy(data: bytes) -> bytes:
    found = [_varint(len(data))]
    for at in range(0, len(data), _CHUNK):
        part = data[at : at + _CHUNK]
        found += [b"\xf4", struct.pack("<H", len(part) - 1), part]  # tag 61: a literal whose length stands in two bytes
    return b"".join(found)
