"""Turn the bytes of JSON, NDJSON, YAML and wrapped container logs into plain data, also when they are cut off."""

from __future__ import annotations

import json
import re
from datetime import UTC
from typing import Any

__all__ = ["load_json", "load_yaml", "unwrapped", "unwrapped_line"]

_START = re.compile(r"[\s,;]*[\[{]")
# words between documents (a warning of kubectl on stderr) are passed over up to the next line that opens an object
_LATER = re.compile(r"^\s*\{", re.M)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.S)


class _Cut(ValueError):
    pass


def load_json(raw: bytes) -> tuple[Any, tuple[int, str] | None]:
    """
    Return the data of a JSON text, and (line, what is wrong) when it is not whole.

    Several documents one after the other, or one a line, become a list. Of a document that is cut off, everything up to the
    last complete element of its outermost open list is kept.
    """
    text = raw.decode("utf-8-sig", "replace").replace("\0", "")
    try:
        return json.loads(text), None
    except RecursionError:
        return None, (1, "the JSON is nested too deeply")
    except ValueError:
        pass
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    wrong: tuple[int, str] | None = None
    at = 0
    while True:
        start = _START.match(text, at) or _LATER.search(text, at)
        if not start:
            break
        begin = start.end() - 1
        try:
            data, at = decoder.raw_decode(text, begin)
        except RecursionError:
            wrong = wrong or (text.count("\n", 0, begin) + 1, "the JSON is nested too deeply")
            break
        except json.JSONDecodeError as error:
            line_end = text.find("\n", begin)
            if (
                error.pos < len(text.rstrip())
                and line_end >= 0
                and re.search(r"\n\s*[\[{]", text[begin:])
                and error.pos <= line_end
            ):
                wrong = wrong or (text.count("\n", 0, error.pos) + 1, f"a line is no JSON ({error.msg})")
                at = line_end + 1
                continue
            wrong = wrong or (text.count("\n", 0, error.pos) + 1, f"the JSON is broken or cut off here ({error.msg})")
            saved = _salvaged(text[begin:])
            if saved is not None:
                documents.append(saved)
            break
        documents.append(data)
    if not documents:
        return None, wrong or (1, "it holds no JSON")
    return (documents[0] if len(documents) == 1 else documents), wrong


def _salvaged(text: str) -> Any:
    raw = text.encode()
    stack: list[int] = []
    comma: dict[int, int] = {}
    opened: dict[int, int] = {}
    for token in _TOKEN.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            stack.append(first)
            opened[len(stack)] = token.end()
            comma.pop(len(stack), None)
        elif first in b"]}":
            if not stack:
                break
            stack.pop()
        elif first == 44:  # a comma
            comma[len(stack)] = token.start()
    depth = stack.index(91) + 1 if 91 in stack else 1 if stack else 0
    if not depth:
        return None
    end = comma.get(depth, opened[depth])
    closing = bytes(93 if each == 91 else 125 for each in reversed(stack[:depth]))
    try:
        return json.loads(raw[:end] + closing)
    except (ValueError, RecursionError):
        return None


def load_yaml(raw: bytes) -> tuple[Any, tuple[int, str] | None]:
    """Return the data of one or several YAML documents, and (line, what is wrong) when they are not whole."""
    import yaml

    text = raw.decode("utf-8-sig", "replace").replace("\0", "")
    # Kubernetes writes no anchors; a text with many is an attempt to make a small file huge.
    if len(re.findall(r"(?m)(?:^|[\s:\[,-])\*\w", text)) > 100:
        return None, (1, "it uses too many YAML aliases")
    documents: list[Any] = []
    wrong: tuple[int, str] | None = None
    try:
        documents.extend(data for data in yaml.load_all(text, Loader=_loader()) if data is not None)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        wrong = (
            (mark.line + 1) if mark else 1,
            f"the YAML is broken or cut off here ({getattr(error, 'problem', None) or type(error).__name__})",
        )
        if not documents and mark:
            saved = _whole_items(text, mark.line)
            if saved is not None:
                documents.append(saved)
    if not documents:
        return None, wrong or (1, "it holds no YAML")
    return (documents[0] if len(documents) == 1 else documents), wrong


def _whole_items(text: str, line: int) -> Any:
    import yaml

    rows = text.split("\n")[:line]
    for end in [at for at in range(len(rows) - 1, 0, -1) if rows[at].startswith("- ")][:3]:
        try:
            return next(iter(yaml.load_all("\n".join(rows[:end]), Loader=_loader())))
        except (yaml.YAMLError, RecursionError, ValueError, StopIteration):
            continue
    return None


_LOADER: Any = None


def _loader() -> Any:
    global _LOADER
    if _LOADER is None:
        import yaml

        base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

        class Loader(base):  # type: ignore[misc]
            """Leaves times as text: the parsers read them with their zone."""

        Loader.yaml_implicit_resolvers = {
            key: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
            for key, pairs in base.yaml_implicit_resolvers.items()
        }
        _LOADER = Loader
    return _LOADER


# 2024-05-04T11:02:03.123456789Z stderr F [rank0]: …
_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) ([FP]) ?(.*)")
# {"dmesg": [ {"pri": 6, "time": 88210.004135, "msg": "…"}, … ]}, one member a line (dmesg --json, util-linux 2.39)
_DMESG = re.compile(rb'\s*\{\s*"dmesg"\s*:\s*\[')
_DMESG_TIME = re.compile(rb'\s*"time"\s*:\s*"?([\d.]+)"?\s*,?\s*$')
_DMESG_TEXT = re.compile(rb'\s*"msg"\s*:\s*(".*")\s*,?\s*$')


def unwrapped(data: bytes) -> tuple[bytes, list[int]] | None:
    """
    Return the log inside a wrapped log, and for each of its lines the number of the line it came from; None when not wrapped.

    Wrapped are container logs (JSON of Docker, the CRI form), ``journalctl -o json``, ``dmesg --json`` and logs that are JSON one object a line.
    """
    rows = data.split(b"\n")
    if rows and not rows[-1].strip():
        rows.pop()
    if _DMESG.match(data):
        return _dmesg(rows)
    sample = [row for row in rows[:50] if row.strip()]
    if not sample:
        return None
    cri = sum(1 for row in sample if _CRI.match(row)) >= 0.8 * len(sample)
    if not cri and sum(1 for row in sample if row.lstrip().startswith(b"{") and row.rstrip().endswith(b"}")) < 0.8 * len(sample):
        return None
    out: list[bytes] = []
    numbers: list[int] = []
    open_partial = False
    for number, row in enumerate(rows, 1):
        if cri:
            found = _CRI.match(row)
            if not found:
                text, partial = row, False
            else:
                partial = found[2] == b"P"
                text = found[3] if open_partial else found[1] + b" " + found[3]
            if open_partial and out:
                out[-1] += text
            else:
                out.append(text)
                numbers.append(number)
            open_partial = partial
            continue
        for each in _message(row).split(b"\n"):
            out.append(each)
            numbers.append(number)
    return b"\n".join(out), numbers


def _dmesg(rows: list[bytes]) -> tuple[bytes, list[int]]:
    """The lines of ``dmesg --json``, line by line: the file may be cut off."""
    out: list[bytes] = []
    numbers: list[int] = []
    time = b""
    for number, row in enumerate(rows, 1):
        if found := _DMESG_TIME.match(row):
            time = found[1]
        elif found := _DMESG_TEXT.match(row):
            try:
                text = str(json.loads(found[1])).encode("utf-8", "replace")
            except ValueError:
                text = found[1].strip(b'"')
            out.append((b"[%s] " % time if time else b"") + text.replace(b"\n", b" "))
            numbers.append(number)
    return b"\n".join(out), numbers


def unwrapped_line(text: str) -> str:
    """Return the message of one line of a log that is JSON one object a line; any other line as it is."""
    return _message(text.encode("utf-8", "replace")).decode("utf-8", "replace").replace("\n", " ") if text[:1] == "{" else text


_TIMES = ("time", "timestamp", "@timestamp", "ts")
# what collectors put beside a line to say where it is from (Loki, Fluent Bit, Filebeat, Vector, Cloud Logging); other tables say what happened
_LABELS = frozenset(
    {
        "agent",
        "cloud",
        "container",
        "docker",
        "ecs",
        "fields",
        "host",
        "input",
        "kubernetes",
        "labels",
        "log",
        "metadata",
        "resource",
        "tags",
    }
)


def _message(row: bytes) -> bytes:
    try:
        data = json.loads(row)
    except (ValueError, RecursionError):
        return row
    if not isinstance(data, dict):
        return row
    payload = data.get("jsonPayload")
    if isinstance(payload, dict):  # Cloud Logging puts what the node sent into a table of its own
        data = {**{name: data[name] for name in _TIMES if name in data}, **payload}
    when = next((str(data[name]) for name in _TIMES if data.get(name)), "")
    if "MESSAGE" in data:  # journald
        message = data["MESSAGE"]
        if isinstance(message, list):  # bytes that are no UTF-8 come as numbers
            message = bytes(each & 255 for each in message if isinstance(each, int)).decode("utf-8", "replace")
        stamp = str(data.get("__REALTIME_TIMESTAMP") or data.get("_SOURCE_REALTIME_TIMESTAMP") or "")
        when = _iso(int(stamp)) if stamp.isdigit() else when
        tag = str(data.get("SYSLOG_IDENTIFIER") or data.get("_COMM") or "kernel")
        pid = f"[{data['_PID']}]" if data.get("_PID") and tag != "kernel" else ""
        return f"{when} {data.get('_HOSTNAME', 'localhost')} {tag}{pid}: {message}".strip().encode("utf-8", "replace")
    for key in ("log", "message", "msg", "textPayload", "line", "event"):
        text = data.get(key)
        if isinstance(text, str):
            tables = {name for name, value in data.items() if name not in (key, *_TIMES) and isinstance(value, (dict, list))}
            if key != "log" and not tables <= _LABELS:
                return row  # the message is only the title of what the other fields say
            level = str(data.get("level") or "") if key != "log" else ""
            return " ".join(part for part in (when, level, text.rstrip("\n")) if part).encode("utf-8", "replace")
    return row


def _iso(microseconds: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="microseconds")
