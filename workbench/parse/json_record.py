"""Turn a log line that is one JSON record of a structured logger into its message, stamp, level, rank and node."""

from __future__ import annotations

import json
from dataclasses import dataclass

__all__ = ["Record", "record_of"]

# {"timestamp":"2024-03-27T17:53:31Z","level":"ERROR","message":"text","span":{"rank":1}}
# {"textPayload":"text","severity":"ERROR"} (Google) | {"MESSAGE":"text","_HOSTNAME":"node-a"} (journald) | {"labels":{},"line":"text"} (Loki)
_MESSAGES = ("message", "msg", "event", "text", "log", "textPayload", "MESSAGE", "@message", "line", "body")
_NESTED = ("fields", "jsonPayload", "_source")  # Rust's tracing, Google's and Elasticsearch's exports nest the message
_MESSAGES_QUOTED = tuple(f'"{key}":' for key in _MESSAGES)
_TIMES = ("timestamp", "time", "ts", "asctime", "@timestamp", "datetime", "__REALTIME_TIMESTAMP")
_TRACE = "Traceback (most recent call last):"


@dataclass(slots=True)
class Record:
    """What one record says; `stamp` is as the logger wrote it."""

    message: str
    stamp: str | int | float | None = None
    level: str = ""
    rank: int | None = None
    node: str | None = None


def record_of(text: str) -> Record | None:
    """Return the record in a line, or None when it is none; the last line of an exception is put behind its message."""
    if len(text) > 65_536 or not any(key in text for key in _MESSAGES_QUOTED):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    for key in _NESTED:
        if isinstance(nested := record.get(key), dict):
            record = {**record, **nested}
    message = next((record[key] for key in _MESSAGES if isinstance(record.get(key), str)), None)
    if message is None:
        return None
    stamp = next((record[key] for key in _TIMES if isinstance(record.get(key), (str, int, float))), None)
    if isinstance(stamp, str) and stamp.isdigit() and len(stamp) == 16:
        stamp = int(stamp) / 1e6  # journald counts microseconds
    level = next((record[key] for key in ("level", "levelname", "severity", "lvl") if isinstance(record.get(key), str)), "")
    span = record.get("span")
    ranks = [record.get(key) for key in ("rank", "global_rank")] + [span.get("rank") if isinstance(span, dict) else None]
    rank = next((int(rank) for rank in ranks if isinstance(rank, int) or (isinstance(rank, str) and rank.isdigit())), None)
    node = next((record[key] for key in ("host", "hostname", "node", "_HOSTNAME") if isinstance(record.get(key), str)), None)
    error = next(
        (record[key] for key in ("exc_info", "exception", "traceback", "stack_trace") if isinstance(record.get(key), str)), ""
    )
    if _TRACE in message and "\n" in message.strip():  # the whole traceback in one record
        message, _, error = message.partition(_TRACE)
    last = error.strip().rsplit("\n", 1)[-1]
    said = f"{message} {last}".strip().replace("\n", " ") if last else message.rstrip("\n")
    return Record(said, stamp, level.upper(), rank, node)
