"""
Turn torchelastic's error files (JSON) and the failure summary of its agent into events: which rank ended how, when, with which
exception.

The agent's "first observed failure" is the first that this node's agent saw, so it is a symptom here: another node may have
failed before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from workbench.model import Event, Line, Parsed, Problem
from workbench.parse.flight_recorder import rank_of_file

__all__ = ["as_in_a_log", "exception_of", "parse_elastic_summary", "parse_error_file"]

# rank-3.attempt-2.json      /tmp/torchelastic_x/none_y/attempt_0/3/error.json
_ATTEMPT = re.compile(r"attempt[-_.]?(\d+)", re.IGNORECASE)
_TORCHELASTIC_PATH = re.compile(r"attempt_(\d+)/(\d+)/(?:error|reply)\.json$")
# RuntimeError: CUDA error: an illegal memory access …      torch.distributed.DistStoreError: wait timeout      KeyboardInterrupt
_EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure|Fault|Abort|Iteration|Empty|Full|Closed"
    r"|NotFound|Unavailable)\w*|(?:[a-z_]\w*\.)+[A-Z]\w*)(?:: ?(?P<text>.*))?$"
)
#   File "/workspace/data.py", line 71, in __getitem__
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
# Root Cause (first observed failure):      Root Cause:      Failures:      Other Failures:
_HEADING = re.compile(r"(?P<root>Root Cause(?: \(first observed failure\))?:)|(?P<other>(?:Other )?Failures:)\s*$")
#   rank      : 3 (local_rank: 3)      rank: 3 (local_rank: 3)
_FIELD = re.compile(r"(?:^|\s)(?P<key>time|host|rank|exitcode|error_file|traceback|msg) *: ?(?P<value>.*)$")
# [1]:
_ITEM = re.compile(r"(?:^|\s)\[(?P<no>\d+)\]:\s*$")
_RANK = re.compile(r"(\d+)(?:.*?local_rank: *(\d+))?")
_EXIT = re.compile(r"(-?\d+)(?:.*?pid: *(\d+))?")
_RULE = re.compile(r"(?:[=*]{20,}|-{20,})\s*$")
_TIME = re.compile(r"(\d{4})-(\d{2})-(\d{2})[_ T](\d{2}):(\d{2}):(\d{2})")
# A stamp that differs on every line of one block
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?")
_SIGNALS = re.compile(r"Signal (\d+)(?: \((SIG\w+)\))?")


def exception_of(text: str) -> tuple[str, str] | None:
    """
    Type and message of an exception line, as Python prints it last.

    Parameters
    ----------
    text : str
        One line, such as "KeyError: 'labels'".

    Returns
    -------
    tuple of str, or None
        Type with its module, and message; None when the line is something else.
    """
    match = _EXCEPTION.match(text.strip())
    return (match.group("type"), match.group("text") or "") if match else None


def parse_error_file(data: Any, *, file: str, rank: int | None = None) -> Parsed:
    """
    Read one error file that a worker wrote when its main function raised.

    Parameters
    ----------
    data : dict
        The decoded JSON: `{"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}}}`, or with a plain
        message.
    file : str
        Its name; rank and attempt are taken from it as hints when `rank` is None.
    rank : int, optional
        The global rank, when the caller knows it.

    Returns
    -------
    Parsed
        One event `torchelastic-error-file`: `text` is the exception line as written, `time` the moment when it was recorded
        (whole seconds), `data` has exception, message, callstack_lines, frame (innermost outside libraries), error_code.
    """
    out = Parsed()
    message, info, code = _unwrap(data)
    if not message and not info:
        out.problems.append(
            Problem(file, "an error file without a message", "it may have been cut while it was written", source="torchelastic")
        )
        return out
    stack = str(info.get("py_callstack") or info.get("traceback") or "")
    callstack = stack.splitlines()
    first = message.splitlines()[0] if message else ""
    exception = exception_of(first)
    if exception is None:
        last = next((line for line in reversed(callstack) if exception_of(line)), "")
        if last and (not first or first in last):
            first, exception = last, exception_of(last)
    frames = [m for m in map(_FRAME.match, callstack) if m]
    event = Event("torchelastic-error-file", "torchelastic", text=first[:2000], file=file)
    event.time = _timestamp(info.get("timestamp"))
    event.rank, event.local_rank, event.attempt = _who(file, rank)
    _says_who(data, event)
    event.code = code
    event.data = {
        "exception": exception[0] if exception else None,
        "message": message[:20_000],
        "callstack_lines": callstack[-200:],
        "frame": _user_frame(frames),
        "error_code": code,
    }
    out.events.append(event)
    out.facts.update(kind="torchelastic-error", rank=event.rank, attempt=event.attempt)
    return out


def _says_who(data: Any, event: Event) -> None:
    """Take rank and host that a launcher of its own writes beside the message."""
    if not isinstance(data, Mapping):
        return
    rank, local = data.get("rank", data.get("global_rank")), data.get("local_rank")
    event.rank = rank if event.rank is None and isinstance(rank, int) and not isinstance(rank, bool) else event.rank
    event.local_rank = local if event.local_rank is None and isinstance(local, int) else event.local_rank
    host = data.get("host") or data.get("hostname")
    event.node = host if isinstance(host, str) and host else None


def as_in_a_log(parsed: Parsed) -> Parsed:
    """
    Add what the traceback of an error file would give in the rank's own log, with ``data["error_file"]``: it may stand there alone.

    Parameters
    ----------
    parsed : Parsed
        As `parse_error_file` returns it.
    """
    from workbench.parse.job import parse_job

    for event in parsed.events[:1]:
        said = list(event.data["callstack_lines"])
        if event.text not in said:
            said += event.data["message"].splitlines()
        found = parse_job([Line(number, text[:65_536]) for number, text in enumerate(said[-400:], 1)], file=event.file)
        for one in [one for one in found.events if one.signature != "app-last-words"][:8]:
            one.source, one.line, one.time, one.last = "torchelastic", None, event.time, event.time
            one.rank, one.local_rank, one.node, one.attempt = event.rank, event.local_rank, event.node, event.attempt
            one.data = {key: value for key, value in one.data.items() if key not in ("time_from", "not_after")}
            one.data["error_file"] = True
            parsed.events.append(one)
    return parsed


def _unwrap(data: Any) -> tuple[str, dict[str, Any], int | None]:
    """Message, extra information and error code, however deep this version nests them."""
    code: int | None = None
    info: dict[str, Any] = {}
    for _ in range(6):
        if not isinstance(data, Mapping):
            break
        extra = data.get("extraInfo") or data.get("extra_info")
        if isinstance(extra, Mapping):
            info = {**info, **extra}
        for key in ("errorCode", "error_code"):
            if isinstance(data.get(key), int):
                code = data[key]
        if "timestamp" in data and "timestamp" not in info:
            info["timestamp"] = data["timestamp"]
        data = next((data[key] for key in ("message", "error", "exception") if data.get(key)), "")
    return (data if isinstance(data, str) else ""), info, code


def _who(file: str, rank: int | None) -> tuple[int | None, int | None, int | None]:
    """Rank, local rank and attempt that the path carries; the folder `attempt_0/3` is a local rank."""
    path = file.replace("\\", "/")
    match = _TORCHELASTIC_PATH.search(path)
    if match:
        return rank, int(match.group(2)), int(match.group(1))
    attempt = _ATTEMPT.findall(PurePosixPath(path).name) or _ATTEMPT.findall(path)
    return (rank if rank is not None else rank_of_file(file)), None, int(attempt[-1]) if attempt else None


def _user_frame(frames: list[re.Match[str]]) -> str | None:
    for frame in reversed(frames):
        path = frame.group("file")
        if "-packages/" not in path and "/lib/python3" not in path and not path.startswith("<"):
            return f"{frame.group('name')} ({PurePosixPath(path).name}:{frame.group('line')})"
    return None


def _timestamp(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if number > 1e14:  # microseconds
        number /= 1e6
    elif number > 1e11:  # milliseconds
        number /= 1e3
    return number if 1e8 < number < 1e11 else None


def parse_elastic_summary(lines: Sequence[Line], *, file: str, tz_offset: float = 0.0) -> list[Event]:
    """
    Read the blocks in which a torchelastic agent lists the failures of its node.

    Parameters
    ----------
    lines : sequence of Line
        A log or a part of it; lines of other speakers may be woven in, and every line may carry a launcher's prefix.
    file : str
        Its name.
    tz_offset : float
        Seconds that the node's local time is ahead of UTC; the block has local times without a zone.

    Returns
    -------
    list of Event
        `torchelastic-root-cause` and `torchelastic-failure` with rank, local_rank, node, pid, code (exit code; negative is a
        signal), time, `text` and `line` of the exit-code line, `data` with host, signal, error_file, traceback, exception,
        frame, index.
    """
    events: list[Event] = []
    blocks: dict[str, _Block] = {}
    for line in lines:
        text = line.text
        if not blocks and "Root Cause" not in text and "Failures:" not in text:
            continue
        heading = _HEADING.search(text)
        if heading:
            speaker = _speaker(text[: heading.start()])
            if speaker in blocks:
                events += blocks[speaker].close()
            blocks[speaker] = _Block(bool(heading.group("root")), file, tz_offset)
            continue
        for speaker, block in list(blocks.items()):
            body = _body(text, speaker)
            if body is None:
                continue
            if not block.take(line, body):
                events += block.close()
                del blocks[speaker]
            break
    for block in blocks.values():
        events += block.close()
    return events


def _speaker(prefix: str) -> str:
    return _STAMP.sub("", prefix, count=1).strip()


def _body(text: str, speaker: str) -> str | None:
    """What one speaker said, without its prefix; None when another spoke."""
    said = _STAMP.sub("", text, count=1)
    if not speaker:
        return said
    said = said.lstrip()
    return said[len(speaker) :] if said.startswith(speaker) else None


class _Block:
    """One list of failures while it is being read."""

    def __init__(self, root: bool, file: str, tz_offset: float) -> None:
        self.root, self.file, self.tz_offset = root, file, tz_offset
        self.events: list[Event] = []
        self.current: Event | None = None
        self.seen = 0

    def take(self, line: Line, text: str) -> bool:
        """Whether the block goes on after this line, whose text is without the prefix of its speaker."""
        self.seen += 1
        item = _ITEM.search(text)
        if item:
            self._next(int(item.group("no")))
            return True
        if _RULE.search(text) and self.events and self.events[-1].data.get("traceback") is not None:
            return False
        field = _FIELD.search(text)
        current = self.current
        if current is None or "traceback" in current.data:
            if current is not None:
                self._traceback(current, line, text.strip())
            return self.seen < 5000  # a traceback that never ends is another speaker
        if field:
            self._field(current, field.group("key"), field.group("value").strip(), line)
        return self.seen < 5000

    def _next(self, index: int) -> None:
        self.current = Event(
            "torchelastic-root-cause" if self.root else "torchelastic-failure",
            "torchelastic",
            file=self.file,
            data={"index": index},
        )
        self.events.append(self.current)

    def _field(self, event: Event, key: str, value: str, line: Line) -> None:
        if key == "time":
            event.time = self._time(value)
        elif key == "host":
            event.data["host"] = event.node = value or None
        elif key == "rank" and (match := _RANK.match(value)):
            event.rank = int(match.group(1))
            event.local_rank = int(match.group(2)) if match.group(2) else None
        elif key == "exitcode" and (match := _EXIT.match(value)):
            event.code, event.text, event.line = int(match.group(1)), line.text[:2000], line.no
            event.pid = int(match.group(2)) if match.group(2) else None
            if event.code < 0:
                event.data["signal"] = -event.code
        elif key == "error_file":
            event.data["error_file"] = None if value == "<N/A>" else value
            attempt = _ATTEMPT.search(value)
            event.attempt = int(attempt.group(1)) if attempt else None
        elif key in ("traceback", "msg"):
            event.data["traceback"] = value.strip('"')
            signal = _SIGNALS.search(value)
            if signal:
                event.data["signal"] = int(signal.group(1))

    def _traceback(self, event: Event, line: Line, text: str) -> None:
        frame = _FRAME.match(text)
        if frame:
            event.data["frame"] = _user_frame([frame]) or event.data.get("frame")
        elif (found := exception_of(text)) is not None:
            event.data.update(exception=found[0], exception_text=text[:2000], exception_line=line.no)

    def _time(self, value: str) -> float | None:
        match = _TIME.search(value)
        if not match:
            return None
        try:
            parts = [int(group) for group in match.groups()]
            return datetime(*parts, tzinfo=UTC).timestamp() - self.tz_offset  # type: ignore[misc,arg-type]
        except ValueError:
            return None

    def close(self) -> list[Event]:
        return [event for event in self.events if event.rank is not None or event.code is not None]
