"""Turn what two clients, each in its own way, tell of an error or want of a request into plain values."""

from __future__ import annotations

import json
from typing import Any

from workbench.sources import http_words

__all__ = ["major", "ndjson", "reason_of", "retry_after", "status_of", "with_port"]


def ndjson(parts: list[Any]) -> str:
    """Return newline-delimited JSON."""
    return "".join(json.dumps(each) + "\n" for each in parts)


def with_port(url: str) -> str:
    """Return an address with its port: the clients insist on one."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.port is None:
        host = parts.netloc + (":443" if parts.scheme == "https" else ":9200")
        parts = parts._replace(netloc=host)
    return urlunsplit(parts)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of a client's error, if it has one."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status
    meta = getattr(error, "meta", None)
    value = getattr(meta, "status", None)
    return value if isinstance(value, int) else None


def reason_of(error: Exception) -> tuple[str, str]:
    """Return (type, sentence) of the server's own error."""
    body = getattr(error, "body", None)
    if body is None and len(error.args) > 2:  # opensearch-py: (status, error, info)
        body = error.args[2]
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            causes = [inner, *(each for each in inner.get("root_cause") or () if isinstance(each, dict))]
            best = causes[-1]
            deep = inner.get("caused_by")
            said = str(best.get("reason") or inner.get("reason") or body.get("message") or "")
            if isinstance(deep, dict) and deep.get("reason") and str(deep["reason"]) not in said:
                said += f" ({deep['reason']})"
            return str(best.get("type") or inner.get("type") or ""), said
        return "", str(body.get("message") or inner)
    text = str(body or "")
    return "", "a web page" if "<html" in text.lower() else text.strip()


def retry_after(error: Exception) -> float | None:
    """Return the seconds after which the server wants to be asked again, if it says so."""
    headers = getattr(getattr(error, "meta", None), "headers", None)
    return http_words.retry_after(headers.get("retry-after"), headers.get("date")) if headers is not None else None


def major(version: str) -> int:
    """Return the major version."""
    return int(version.split(".")[0] or 0) if version else 0
