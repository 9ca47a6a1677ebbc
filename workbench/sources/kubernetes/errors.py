"""Turn what a Kubernetes API server (or whatever stands before it) said instead of an answer into one typed error with a way out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from workbench.errors import SourceError
from workbench.sources.contract import SourceTimeout
from workbench.sources.http_words import retry_after

__all__ = [
    "CONFIG",
    "MORE_TIME",
    "PROXY",
    "REACH",
    "ApiError",
    "Reply",
    "decoded",
    "failure",
    "place",
    "refusal",
    "web_page",
    "words",
]

REACH = "check the server's address and that this machine reaches it: kubectl cluster-info"
CONFIG = "set KUBECONFIG, or name a file and a context that kubectl can use: kubectl config get-contexts"
PROXY = "a proxy or a login page stands before the API server; log in, or take its address out of the proxy"
_LOGIN = "renew the credentials, then check: kubectl auth whoami"
MORE_TIME = "give it more time: --deadline 60s"


class ApiError(SourceError):
    """
    The API server did not answer properly.

    `kind` says how: ``config``, ``refused``, ``tls``, ``auth``, ``forbidden``, ``absent`` (404), ``gone`` (410), ``throttled``,
    ``server``, ``not-json``, ``cut`` or ``client``; `status` is the HTTP status when there was one, and `said` the server's ``Status``
    object, as far as it sent one.
    """

    def __init__(self, message: str, kind: str, *, hint: str = "", status: int = 0, wait: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind, self.status = kind, status
        self.wait = wait  # seconds that the server asks to wait
        self.said: Mapping[str, Any] = {}


@dataclass(slots=True)
class Reply:
    """One answer: its body, its headers (lower-case names) and the seconds it took."""

    body: bytes
    headers: Mapping[str, str]
    seconds: float


def place(url: str) -> str:
    """Return host and port of an address, without a user or password that stand in it."""
    return urlsplit(url).netloc.rpartition("@")[2]


def words(text: str, most: int = 300) -> str:
    """Return a server's words on one line, without control characters, cut to `most`."""
    said = re.sub(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]+", " ", text).strip()
    return said if len(said) <= most else said[: most - 1] + "…"


def failure(error: Exception, host: str) -> SourceError:
    """Return the error of a request that brought no answer: refused, TLS, too slow, cut."""
    import urllib3.exceptions as known

    said = words(re.sub(r"^.*?object at 0x[0-9a-f]+>: ", "", str(error)))
    where = place(host)
    if isinstance(error, known.SSLError):
        return ApiError(
            f"TLS to the API server {where} failed: {said}",
            "tls",
            hint="check certificate-authority and the address in the kubeconfig; kubectl get --raw /version shows the same",
        )
    if isinstance(error, known.NewConnectionError):
        return ApiError(f"the API server {where} cannot be reached: {said}", "refused", hint=REACH)
    if isinstance(error, known.TimeoutError):
        # the same words as when our own limit strikes: which of the two is first is chance
        return SourceTimeout(f"the API server {where} did not answer within its time", hint=MORE_TIME)
    if isinstance(error, known.ProxyError):
        return ApiError(f"the proxy before the API server {where} failed: {said}", "refused", hint=PROXY)
    if isinstance(error, (known.ProtocolError, known.DecodeError)):
        return ApiError(f"the API server's answer ended in the middle: {said}", "cut", hint=REACH)
    return ApiError(f"the API server {where} cannot be asked: {said}", "config", hint=CONFIG)


def refusal(status: int, reply: Reply, asked: str) -> ApiError:
    """Return the error of an HTTP status, with the server's own words."""
    try:
        document = json.loads(reply.body)
    except ValueError:
        document = {}
    document = document if isinstance(document, dict) else {}
    error = _refusal(status, reply, asked, document)
    error.said = document
    return error


def _refusal(status: int, reply: Reply, asked: str, document: Mapping[str, Any]) -> ApiError:
    html = "html" in reply.headers.get("content-type", "")
    said = words(str(document.get("message") or ("" if html else reply.body[:300].decode("utf-8", "replace"))))
    told = f": {said}" if said else ""
    path = asked.split("?")[0]
    if 300 <= status < 400:
        target = urlsplit(reply.headers.get("location", ""))
        return ApiError(
            f"the API server sends us to {words(place(target.geturl()) + target.path) or 'another page'} (HTTP {status})",
            "not-json",
            hint=PROXY,
            status=status,
        )
    if status == 401:
        return ApiError(f"the API server does not know these credentials (HTTP 401){told}", "auth", hint=_LOGIN, status=status)
    if status == 403 and "system:anonymous" in said:
        return ApiError(f"the API server does not know who we are (HTTP 403){told}", "auth", hint=_LOGIN, status=status)
    if status == 403:
        return ApiError(f"not allowed (HTTP 403){told}", "forbidden", status=status)
    if status == 404:
        return ApiError(f"{path} is not there (HTTP 404){told}", "absent", status=status)
    if status == 410:
        return ApiError(f"the list expired (HTTP 410){told}", "gone", status=status)
    if status == 429 or status in (500, 502, 503, 504):
        wait = retry_after(reply.headers.get("retry-after"), reply.headers.get("date"))
        kind = "throttled" if status == 429 else "server"
        which = "asks for fewer requests" if status == 429 else "failed"
        return ApiError(f"the API server {which} (HTTP {status}){told}", kind, status=status, wait=wait, hint=_SERVER)
    return ApiError(f"the API server refused {path} (HTTP {status}){told}", "client", status=status)


_SERVER = "try again later; kubectl get --raw '/readyz?verbose' says what the API server lacks"


def web_page(body: bytes) -> ApiError:
    """Return the error of a page for people that came with status 200, with its title."""
    title = re.search(rb"<title[^>]*>([^<]{1,200})", body, re.IGNORECASE)
    named = f" ({words(title[1].decode('utf-8', 'replace'), 80)!r})" if title else ""
    return ApiError(f"a web page came{named} where JSON was expected", "not-json", hint=PROXY)


def decoded(reply: Reply, path: str) -> dict[str, Any]:
    """Return the JSON object of an answer; raises `ApiError` when it is none."""
    try:
        document = json.loads(reply.body)
    except ValueError as error:
        raise ApiError(
            f"{path} answered with something that is no JSON: {words(reply.body[:80].decode('utf-8', 'replace'))}",
            "not-json",
            hint=PROXY,
        ) from error
    if not isinstance(document, dict):
        raise ApiError(f"{path} answered with JSON that is no object", "not-json", hint=PROXY)
    return document
