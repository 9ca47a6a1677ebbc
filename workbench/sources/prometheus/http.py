"""
Turn one question to a Prometheus-like server into its bytes or a typed error, never later than a deadline and never a login page.

Session, authentication and connection set-up are those of `prometheus_api_client.PrometheusConnect`; what that library leaves open is
here: a time limit on the whole answer (a server may drip), the server's own words in the error, 429 with Retry-After, HTML where JSON
was expected, bodies cut short.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit, urlunsplit

from workbench.errors import SourceError, SourceUnavailable
from workbench.sources.contract import Deadline, SourceTimeout
from workbench.sources.http_words import retry_after, server_time

if TYPE_CHECKING:
    import requests

__all__ = [
    "THREADS",
    "Http",
    "PrometheusTimeout",
    "PrometheusUnavailable",
    "QueryError",
    "Reply",
    "each",
    "too_much",
    "within",
]

THREADS = 4  # a server answers four at once from as many cores; more only queue there
LONG_QUERY = 1500  # characters: beyond, proxies cut addresses, so it is sent by POST
MOST_BYTES = 1 << 30
ATTEMPTS = 5
USUAL_TIMEOUT = 30.0  # seconds for one question
_ALIVE = ("connection reset", "connection aborted", "remotedisconnected", "broken pipe")
T = TypeVar("T")


class QueryError(SourceError):
    """
    The server refused a question or answered with something else than an answer.

    Attributes
    ----------
    query : str
        What was asked.
    status : int
        HTTP status, 0 when there was no answer.
    error_type, error : str
        The server's own ``errorType`` and ``error``.
    """

    def __init__(
        self, message: str, *, query: str = "", status: int = 0, error_type: str = "", error: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.query, self.status, self.error_type, self.error = query, status, error_type, error


class PrometheusUnavailable(QueryError, SourceUnavailable):
    """Nobody listens, the certificate is not trusted, the credentials do not fit, or a login page stands before the server."""


class PrometheusTimeout(QueryError, SourceTimeout):
    """The answer was not complete within the time given."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came; `offset` is how far the server's clock is ahead of ours in seconds, None when it did not say."""

    body: bytes
    status: int
    headers: Mapping[str, str]
    seconds: float
    offset: float | None

    def json(self, query: str = "") -> dict[str, Any]:
        """Return the answer parsed; an answer with ``status: error``, or that is no JSON object, is a `QueryError`."""
        try:
            data = json.loads(self.body)
        except ValueError:
            raise QueryError(
                f"the answer ({len(self.body)} bytes) is no JSON, or was cut: …{shown(self.body[-60:])}",
                query=query,
                status=self.status,
            ) from None
        if not isinstance(data, dict):
            raise QueryError(f"the answer is no object: {shown(self.body[:80])}", query=query, status=self.status)
        if data.get("status") == "error":
            raise refused(data, query, self.status)
        return data


def shown(body: bytes | str, most: int = 300) -> str:
    """Return text of a server as one short line without control characters."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:most]


def refused(data: Mapping[str, Any], query: str, status: int) -> QueryError:
    """Return the error that a body with ``errorType`` and ``error`` stands for, with the way out where it is known."""
    kind = shown(str(data.get("errorType") or "error"))
    # VictoriaMetrics says again what it was asked, and why it was refused after that; its kind is the HTTP status
    text = shown(_LONG.sub('"…"', str(data.get("error") or data.get("message") or "")))
    kind = "bad_data" if kind == "400" else "execution" if kind == "422" else kind
    hint = ""
    if "exceeded maximum resolution" in text or "maxPointsPerTimeseries" in text:
        hint = "enlarge the step or shorten the window"
    elif "maxQueryLen" in text:
        hint = "ask for fewer nodes or pods, or raise -search.maxQueryLen"
    elif too_much(text):
        hint = "ask for fewer series or a shorter window, or raise the server's limit"
    elif kind == "timeout" or "timed out" in text:
        hint = "ask for a shorter window, or raise the server's --query.timeout"
    message = f"the server refused it ({kind}): {text}" if text else f"the server refused it ({kind})"
    if status in (401, 403):
        return PrometheusUnavailable(message, query=query, status=status, error_type=kind, error=text, hint=hint or _RIGHTS)
    if kind == "timeout":
        return PrometheusTimeout(message, query=query, status=status, error_type=kind, error=text, hint=hint)
    return QueryError(message, query=query, status=status, error_type=kind, error=text, hint=hint)


def too_much(text: str) -> bool:
    """Tell whether a server's words say that a question would read more than it allows: asked in another way it would be as much."""
    return any(word in text for word in ("too many", "limit", "cannot select more than", "number of matching timeseries exceeds"))


_LONG = re.compile(r'"(?:[^"\\]|\\.){60,}"')
_RIGHTS = "give the source credentials that may read: token, user and password, or client certificate"


# -- never longer than the deadline ---------------------------------------------------------------------------------------


def within(deadline: Deadline, call: Callable[[], T]) -> T:
    """
    Return what `call` returns, or raise `SourceTimeout` at the deadline even when the call itself hangs.

    The call runs in a daemon thread: a name server or a server that drips its headers cannot be interrupted, only left behind.
    """
    for _, result in each([call], deadline, threads=1):
        if isinstance(result, BaseException):
            raise result
        return result
    raise AssertionError("one call gives one result")


def each(calls: Sequence[Callable[[], T]], deadline: Deadline, threads: int = THREADS) -> Iterator[tuple[int, T | BaseException]]:
    """Run calls in a few daemon threads; yield (number, result or exception) as they end, a `SourceTimeout` for what did not."""
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()
    stop = Event()
    for number in range(len(calls)):
        todo.put(number)

    def work() -> None:
        while not stop.is_set():
            try:
                number = todo.get_nowait()
            except Empty:
                return
            try:
                done.put((number, calls[number]()))
            except BaseException as error:  # is raised, or becomes an answer, where it is waited for
                done.put((number, error))

    for _ in range(min(threads, len(calls))):
        Thread(target=work, daemon=True, name="prometheus").start()
    open_now = set(range(len(calls)))
    try:
        while open_now:
            try:
                number, result = done.get(timeout=deadline.left(3600))
            except (Empty, SourceTimeout):
                break
            open_now.discard(number)
            yield number, result
    finally:
        stop.set()
    for number in sorted(open_now):
        yield number, PrometheusTimeout("no answer within the deadline", hint="give it more time: --deadline 60s")


# -- one server ----------------------------------------------------------------------------------------------------------


class Http:
    """
    Asks one server.

    Parameters
    ----------
    client : PrometheusConnect
        Its session, headers, authentication and address are used.
    headers, params : mapping, optional
        Sent with every request.
    """

    def __init__(self, client: Any, *, headers: Mapping[str, str] | None = None, params: Mapping[str, str] | None = None) -> None:
        self.client = client
        self.url = str(client.url).rstrip("/")
        self.headers = {
            **dict(getattr(client, "headers", None) or {}),
            **dict(headers or {}),
            # measured: the server's gzip costs five times the query
            "Accept-Encoding": "identity",
            "Accept": "application/json",
        }
        self.params = dict(params or {})
        self._slots = Semaphore(THREADS)
        self.offset: float | None = None

    def ask(
        self,
        path: str,
        params: Sequence[tuple[str, str]],
        deadline: Deadline,
        *,
        timeout: float = USUAL_TIMEOUT,
        post: bool | None = None,
    ) -> Reply:
        """
        Return the answer to one question, waiting for at most `timeout` seconds and never beyond the deadline.

        Parameters
        ----------
        path : str
            ``/api/v1/query`` and so on.
        params : sequence of (name, value)
        post : bool, optional
            Default: when the question is long.

        Raises
        ------
        PrometheusUnavailable, PrometheusTimeout, QueryError
        """
        query = dict(params).get("query", path)
        try:
            limit = Deadline(deadline.left(timeout))
            return within(limit, lambda: self._patient(path, [*params, *self.params.items()], limit, query, post))
        except SourceTimeout as error:
            if isinstance(error, PrometheusTimeout) and error.query:
                raise
            raise PrometheusTimeout(
                f"no complete answer within {timeout:.0f} s" if not deadline.over else "no complete answer within the deadline",
                query=query,
                hint=error.hint,
            ) from None

    def _patient(self, path: str, params: list[tuple[str, str]], deadline: Deadline, query: str, post: bool | None) -> Reply:
        """Ask again where that can help: when told to wait, when a proxy lost its server, when a kept connection was closed."""
        began = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            wait: float | None = None
            # waiting for a turn counts, waiting for a server that is busy takes no turn
            if not self._slots.acquire(timeout=deadline.left(3600)):
                raise PrometheusTimeout("the questions before it took all the time", query=query)
            try:
                reply = self._once(path, params, deadline, query, post)
            except PrometheusUnavailable as error:
                if attempt > 1 or not any(word in str(error).lower() for word in _ALIVE):
                    raise
                continue
            finally:
                self._slots.release()
            if reply.status in (429, 503):
                told = retry_after(reply.headers.get("Retry-After"), reply.headers.get("Date"))
                wait = 0.25 * 2**attempt if told is None else told
            elif reply.status in (502, 504):
                wait = 0.25 * 2**attempt
            if wait is None:
                return self._checked(reply, query, path)
            if attempt == ATTEMPTS or wait >= deadline.left():
                asks = f" and asks to wait {wait:.0f} s" if "Retry-After" in reply.headers else ""
                raise QueryError(
                    f"the server is too busy (HTTP {reply.status}){asks}: tried {attempt} times in {time.monotonic() - began:.1f} s",
                    query=query,
                    status=reply.status,
                    error=shown(reply.body),
                    hint="ask later, or raise the query limits of this user or tenant",
                )
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, path: str, params: list[tuple[str, str]], deadline: Deadline, query: str, post: bool | None) -> Reply:
        """Send one request and read its whole answer; follow only a redirect that leads to the same API on the same host."""
        import requests

        url = self.url + path
        session = self.client._session
        if post is None:
            post = sum(len(value) + 10 for _, value in params) > LONG_QUERY
        for _ in range(3):
            began = time.monotonic()
            left = deadline.left()
            try:
                response = session.request(
                    "POST" if post else "GET",
                    url,
                    data=params if post else None,
                    params=None if post else params,
                    headers=self.headers,
                    auth=getattr(self.client, "auth", None),
                    timeout=(min(left, 10.0), left),
                    # without it REQUESTS_CA_BUNDLE in the environment takes the place of what the session was given
                    verify=None if session.verify is True else session.verify,
                    allow_redirects=False,
                    stream=True,
                )
            except requests.RequestException as error:
                raise _unreachable(error, query, url) from None
            with contextlib.closing(response):
                if response.is_redirect:
                    url = self._redirected(response, url, path, query)
                    continue
                body = _body(response, deadline, query)
                moment = time.monotonic()
                offset = _offset(response.headers.get("Date"), moment - began)
                if offset is not None:
                    self.offset = offset
                return Reply(body, response.status_code, response.headers, moment - began, offset)
        raise PrometheusUnavailable("the server redirects in a circle", query=query, hint=_LOGIN)

    @staticmethod
    def _redirected(response: requests.Response, url: str, path: str, query: str) -> str:
        target = urlsplit(urljoin(url, response.headers.get("Location", "")))
        here = urlsplit(url)
        # credentials go to no other host and never from https to http
        same = target.hostname == here.hostname and (target.scheme, here.scheme) != ("http", "https")
        if same and target.path.rstrip("/").endswith(path):
            return urlunsplit((target.scheme, target.netloc, target.path, "", ""))
        where = shown(f"{target.scheme}://{target.hostname}{target.path}", 120)
        raise PrometheusUnavailable(
            f"the server sends to another page ({where}), most likely a login",
            query=query,
            status=response.status_code,
            hint=_LOGIN,
        )

    @staticmethod
    def _checked(reply: Reply, query: str, path: str) -> Reply:
        """Return an answer that is one; raise the error that it stands for otherwise."""
        kind = reply.headers.get("Content-Type", "")
        html = "html" in kind or reply.body[:200].lstrip()[:1] == b"<"
        if reply.status in (401, 403):
            word = "wants to know who asks" if reply.status == 401 else "does not allow it"
            said = "" if html else shown(reply.body, 200)
            raise PrometheusUnavailable(
                f"the server {word} (HTTP {reply.status}){': ' + said if said else ''}",
                query=query,
                status=reply.status,
                error=said,
                hint=_RIGHTS,
            )
        if html:
            title = re.search(rb"<title[^>]*>(.*?)</title", reply.body[:20000], re.IGNORECASE | re.DOTALL)
            name = f" titled {shown(title[1], 60)!r}" if title else ""
            raise PrometheusUnavailable(
                f"an HTML page{name} came where JSON was expected (HTTP {reply.status})",
                query=query,
                status=reply.status,
                hint=_LOGIN if reply.status < 400 else "check the address and its path prefix",
            )
        if reply.status >= 400:
            data: Any = None
            with contextlib.suppress(ValueError):
                data = json.loads(reply.body)
            if isinstance(data, dict) and ("errorType" in data or "error" in data):
                raise refused(data, query, reply.status)
            raise QueryError(
                f"the server answered HTTP {reply.status}: {shown(reply.body, 200)}",
                query=query,
                status=reply.status,
                error=shown(reply.body),
                hint="check the address and its path prefix" if reply.status == 404 else "",
            )
        return reply


_LOGIN = "a proxy wants a login: give a token, or the address behind the proxy"


def _body(response: requests.Response, deadline: Deadline, query: str) -> bytes:
    """Read the whole body piece by piece, so that a server that drips meets the deadline."""
    import requests
    from urllib3.exceptions import HTTPError

    raw = response.raw
    read = getattr(raw, "read1", None) or raw.read
    parts: list[bytes] = []
    size = 0
    try:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            parts.append(response.content)  # a proxy that compresses although not asked to
            return parts[0]
        while piece := read(1 << 20):
            parts.append(piece)
            size += len(piece)
            deadline.left()
            if size > MOST_BYTES:
                raise QueryError(
                    f"the answer is larger than {MOST_BYTES >> 20} MiB", query=query, hint="ask for a shorter window"
                )
    except SourceTimeout:
        raise PrometheusTimeout(
            f"the answer came too slowly: {size} bytes in time", query=query, status=response.status_code
        ) from None
    except (HTTPError, requests.RequestException, OSError) as error:
        if "timed out" in str(error).lower():
            raise PrometheusTimeout(f"the answer stopped after {size} bytes", query=query, status=response.status_code) from None
        raise QueryError(
            f"the answer was cut after {size} bytes: {shown(str(error), 100)}", query=query, status=response.status_code
        ) from None
    told = response.headers.get("Content-Length", "")
    if told.isdigit() and size < int(told):
        raise QueryError(f"the answer was cut after {size} of {told} bytes", query=query, status=response.status_code)
    return b"".join(parts)


def _unreachable(error: Exception, query: str, url: str) -> QueryError:
    """Return what a failed connection means; the library's own text is a nest of reprs."""
    text = str(error)
    low = text.lower()
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    if "certificate verify failed" in low or "sslerror" in low or "[ssl" in low or "ssl:" in low:
        found = re.search(r"certificate verify failed: ([\w\s'\-.:,]+?)(?:\.?\s*\(_ssl|\)|$)", text)
        why = found[1] if found else shown(text.rsplit("(", 1)[-1], 120)
        return PrometheusUnavailable(
            f"no trusted TLS connection to {where}: {why}", query=query, hint="name the authority's certificate: ca = FILE"
        )
    if "timed out" in low or "timeout" in type(error).__name__.lower():
        # the same words as when our own limit strikes: which of the two is first is chance
        return PrometheusTimeout(f"no complete answer from {where} in time", query=query)
    if "refused" in low:
        return PrometheusUnavailable(f"{where} refused the connection", query=query, hint="does the server run, and there?")
    if "resolve" in low or "name or service" in low or "getaddrinfo" in low:
        return PrometheusUnavailable(f"the name {parts.hostname} is not known", query=query, hint="check the address")
    return PrometheusUnavailable(f"no answer from {where}: {shown(text.rsplit('(', 1)[-1].strip(')'), 160)}", query=query)


def _offset(date: str | None, seconds: float) -> float | None:
    """Return how far the server's clock is ahead, from its Date header, which has whole seconds only."""
    there = server_time(date)
    if there is None:
        return None
    offset = there - (time.time() - seconds / 2)
    return 0.0 if abs(offset) <= 1.0 + seconds / 2 else offset
