"""Turn a log line that is one JSON record of a structured logger into its message, stamp, level, rank and node."""

from __future__ import annotations

import json
from dataclasses import dataclass

__all__ = ["Record", "record_of"]

# {"timestamp":"2024-03-27T17:53:31Z","level":"ERROR","message":"text","span":{"rank":1}}
_MESSAGES = ("message", "msg", "event", "text")
_MESSAGES_QUOTED = tuple(f'"{key}":' for key in _MESSAGES)
_TIMES = ("timestamp", "time", "ts", "asctime", "@timestamp", "datetime")


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
    fields = record.get("fields")
    if isinstance(fields, dict):  # Rust's tracing nests the message
        record = {**record, **fields}
    message = next((record[key] for key in _MESSAGES if isinstance(record.get(key), str)), None)
    if message is None:
        return None
    stamp = next((record[key] for key in _TIMES if isinstance(record.get(key), (str, int, float))), None)
    level = next((record[key] for key in ("level", "levelname", "severity", "lvl") if isinstance(record.get(key), str)), "")
    span = record.get("span")
    ranks = [record.get(key) for key in ("rank", "global_rank")] + [span.get("rank") if isinstance(span, dict) else None]
    rank = next((int(rank) for rank in ranks if isinstance(rank, int) or (isinstance(rank, str) and rank.isdigit())), None)
    node = next((record[key] for key in ("host", "hostname", "node") if isinstance(record.get(key), str)), None)
    error = next(
        (record[key] for key in ("exc_info", "exception", "traceback", "stack_trace") if isinstance(record.get(key), str)), ""
    )
    last = error.strip().rsplit("\n", 1)[-1]
    said = f"{message} {last}".strip().replace("\n", " ") if last else message.rstrip("\n")
    return Record(said, stamp, level.upper(), rank, node)
