"""
Turn Elasticsearch 8 or 9 and OpenSearch, with their two clients, into one thing that is asked and answers in time or says why not.

Nothing above this file knows which of them it talks to. A request is run by a thread that nobody waits for beyond the deadline: a client's own
time-out counts between two bytes, so a server that sends one every few seconds would hold it for ever.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from workbench.errors import SourceError, SourceUnavailable
from workbench.sources.contract import Deadline, SourceTimeout
from workbench.sources.elasticsearch.typed import decoded, is_page, wanted, weigh
from workbench.sources.elasticsearch.words import major, ndjson, reason_of, retry_after, status_of, with_port

__all__ = ["Access", "BadAnswer", "Refused", "Reply", "Server"]

_ATTEMPTS = 4
_AGAIN = (429, 502, 503, 504)


class Refused(SourceUnavailable):
    """The server is there and does not let us: 401, 403, or a client it does not accept."""


class BadAnswer(SourceError):
    """The server answered something else than was asked for; `status` is the HTTP status, `reason` its own word for it."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0, reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Access:
    """
    Where the server is and who we are there; secrets come from files or the environment and are never shown.

    Attributes
    ----------
    url : str
        e.g. ``https://logs.example:9200``; a path in front of the API is kept.
    product : str
        ``elasticsearch``, ``opensearch``, or ``auto`` to find out.
    api_key, bearer, password : str
        One way to log in; `password` goes with `user`.
    ca, certificate, key : str
        Files: the authority that signed the server's certificate, and a client certificate with its key.
    verify : bool
        Check the server's certificate.
    headers : mapping
        Sent with every request.
    """

    url: str
    product: str = "auto"
    user: str = ""
    password: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify: bool = True
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def hidden(self, text: str) -> str:
        """Return a text without the secrets that it may quote."""
        secrets = [self.password, self.api_key, self.bearer, *self.headers.values()]
        for secret in sorted((each for each in secrets if len(each) > 3), key=len, reverse=True):
            text = text.replace(secret, "***")
        return re.sub(r"(?<=//)[^/@\s]+@", "***@", text)

    @property
    def place(self) -> str:
        """The address as it may be shown."""
        return self.hidden(self.url)


@dataclass(frozen=True)
class Reply:
    """What came back: the decoded body, headers in lower case, and the bytes of the body where the client tells."""

    body: Any
    headers: Mapping[str, str]


class Server:
    """
    One server and its client.

    Parameters
    ----------
    access : Access
        Where and who.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.received = 0  # bytes of all bodies, as they are before compression
        self.moved = 0  # bytes of all bodies as they came over the wire
        self.opensearch = access.product == "opensearch"  # with `auto`, until the server says what it is
        self._client: Any = None
        self._lock = threading.Lock()

    # -- the client ---------------------------------------------------------------------------------------------------

    def client_version(self) -> str:
        """Return the version of the client that is installed."""
        try:
            if self.opensearch:
                import opensearchpy

                return str(getattr(opensearchpy, "__versionstr__", ""))
            import elasticsearch

            return str(getattr(elasticsearch, "__versionstr__", ""))
        except ImportError:
            return ""

    def _made(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    self._client = self._opensearch() if self.opensearch else self._elasticsearch()
                except ImportError as error:
                    extra = "opensearch" if self.opensearch else "sources"
                    raise SourceUnavailable(
                        f"the client for {'opensearch' if self.opensearch else 'elasticsearch'} is not installed ({error.name})",
                        hint=f"pip install 'gpu-reliability-workbench[{extra}]'",
                    ) from None
                except (OSError, ValueError, TypeError) as error:  # a certificate that is not there, an address that is none
                    raise SourceUnavailable(
                        self.access.hidden(f"the client for {self.access.place} cannot be set up: {error}"),
                        hint="check the address and the certificate files in the configuration",
                    ) from None
            return self._client

    def _elasticsearch(self) -> Any:
        from elastic_transport import Urllib3HttpNode
        from elasticsearch import Elasticsearch
        from elasticsearch.serializer import JsonSerializer

        class Counting(JsonSerializer):
            """Tells the size; decodes pages of hits by their type where msgspec is installed."""

            def loads(self, data: bytes) -> Any:
                wanted.size = len(data)
                return decoded(data)

        class Node(Urllib3HttpNode):
            """Tells how many bytes came over the wire."""

            def __init__(self, config: Any) -> None:
                super().__init__(config)
                weigh(self.pool)

        access = self.access
        options: dict[str, Any] = {
            "node_class": Node,
            "max_retries": 0,
            "retry_on_timeout": False,
            "request_timeout": 30,
            "serializers": {
                "application/json": Counting(),
                "application/vnd.elasticsearch+json": Counting(),
            },
            "connections_per_node": 8,
        }
        if access.url.startswith("https"):
            options |= {"verify_certs": access.verify, "ssl_show_warn": False}
            options |= {"ca_certs": access.ca} if access.ca else {}
            options |= {"client_cert": access.certificate} if access.certificate else {}
            options |= {"client_key": access.key} if access.key else {}
        if access.headers:
            options["headers"] = dict(access.headers)
        if access.api_key:
            options["api_key"] = access.api_key
        elif access.bearer:
            options["bearer_auth"] = access.bearer
        elif access.user:
            options["basic_auth"] = (access.user, access.password)
        return Elasticsearch(with_port(access.url), **options)

    def _opensearch(self) -> Any:
        from opensearchpy import OpenSearch, Urllib3HttpConnection
        from opensearchpy.serializer import JSONSerializer

        class Counting(JSONSerializer):
            """Tells the size; decodes pages of hits by their type where msgspec is installed."""

            def loads(self, s: Any) -> Any:
                data = s.encode() if isinstance(s, str) else s
                wanted.size = len(data)
                return decoded(data)

        class Connection(Urllib3HttpConnection):
            """Tells how many bytes came over the wire."""

            def __init__(self, *words: Any, **more: Any) -> None:
                super().__init__(*words, **more)
                weigh(self.pool)

        access = self.access
        options: dict[str, Any] = {
            "connection_class": Connection,
            "max_retries": 0,
            "retry_on_timeout": False,
            "timeout": 30,
            "serializer": Counting(),
            "maxsize": 8,
        }
        if access.url.startswith("https"):
            options |= {"use_ssl": True, "verify_certs": access.verify, "ssl_show_warn": False}
            options |= {"ca_certs": access.ca} if access.ca else {}
            options |= {"client_cert": access.certificate} if access.certificate else {}
            options |= {"client_key": access.key} if access.key else {}
        headers = dict(access.headers)
        if access.api_key:
            headers["Authorization"] = f"ApiKey {access.api_key}"
        elif access.bearer:
            headers["Authorization"] = f"Bearer {access.bearer}"
        elif access.user:
            options["http_auth"] = (access.user, access.password)
        if headers:
            options["headers"] = headers
        return OpenSearch([with_port(access.url)], **options)

    def close(self) -> None:
        """Let go of the connections; a request that still hangs in one ends with an error that nobody sees."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except Exception:  # whatever a client does when it goes
                pass

    # -- one question -------------------------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        most: float = 60.0,
        decode: Callable[[bytes], Any] | None = None,
        packed: bool = False,
    ) -> Reply:
        """
        Send one request, again when the server asks to come back, and return the answer.

        Parameters
        ----------
        method, path : str
            e.g. ``GET``, ``/_cluster/health``.
        deadline : Deadline
            Nobody waits longer.
        body : dict or list, optional
            Sent as JSON; a list as one object a line.
        params : mapping, optional
            The query string.
        most : float
            Seconds for one attempt.
        decode : callable, optional
            Makes of the body's bytes what is wanted; when it raises, the body is decoded as plain data.
        packed : bool
            The answer may come compressed: less to move, more to do for the server.

        Raises
        ------
        SourceTimeout
            The deadline is over.
        SourceUnavailable, Refused
            Nobody there, TLS, 401, 403.
        BadAnswer
            Everything else that is no answer.
        """
        attempt = 0
        while True:
            attempt += 1
            wait = 0.0
            try:
                seconds = deadline.left(most)
                return self._timely(partial(self._once, method, path, body, params, seconds, decode, packed), seconds)
            except _Again as error:
                wait = error.after if error.after is not None else min(0.2 * 2**attempt, 4.0) * random.uniform(0.7, 1.3)
                if attempt >= _ATTEMPTS or deadline.over or wait >= deadline.left():
                    raise error.error from None
            time.sleep(wait)

    def _timely(self, work: Callable[[], Reply], seconds: float) -> Reply:
        box: list[Reply | BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                box.append(work())
            except BaseException as error:  # handed to the one who waits
                box.append(error)
            done.set()

        threading.Thread(target=run, name="log-index", daemon=True).start()
        if not done.wait(seconds):
            raise SourceTimeout(
                f"{self.access.place} did not answer within {seconds:.1f} s",
                hint="give it more time: --deadline 60s, or a shorter window",
            )
        if isinstance(box[0], BaseException):
            raise box[0]
        return box[0]

    def _once(
        self, method: str, path: str, body: Any, params: Mapping[str, str] | None, seconds: float, decode: Any, packed: bool
    ) -> Reply:
        wanted.decode, wanted.size, wanted.wire = decode, 0, 0
        try:
            client = self._made()
            if self.opensearch:
                lines = isinstance(body, list)
                answer = client.transport.perform_request(
                    method,
                    path,
                    params={**(params or {}), "request_timeout": seconds},
                    body=ndjson(body) if lines else body,
                    headers=({"content-type": "application/x-ndjson"} if lines else {})
                    | ({"accept-encoding": "gzip"} if packed else {}),
                )
                reply = Reply(answer, {})
            else:
                target = path
                if params:
                    from urllib.parse import urlencode

                    target = f"{path}?{urlencode(params)}"
                kind = "application/x-ndjson" if isinstance(body, list) else "application/json"
                headers = {"accept": "application/json"} | ({"content-type": kind} if body is not None else {})
                headers |= {"accept-encoding": "gzip"} if packed else {}
                response = client.options(request_timeout=seconds).perform_request(method, target, headers=headers, body=body)
                reply = Reply(response.body, {key.lower(): value for key, value in response.meta.headers.items()})
        except Exception as error:  # two libraries, each with its own family of errors
            if type(error).__name__ in _OTHER and self.access.product == "auto" and not self.opensearch and _is_opensearch(error):
                self.opensearch = True
                self.close()
                return self._once(method, path, body, params, seconds, decode, packed)
            raise self._said(error) from None
        finally:
            wanted.decode = None
        with self._lock:
            self.received += wanted.size
            self.moved += wanted.wire
        if not isinstance(reply.body, (dict, list)) and not is_page(reply.body):
            raise self._no_json(reply.body)
        return reply

    def _no_json(self, body: Any) -> BadAnswer:
        text = str(body)
        if "<html" in text[:500].lower() or "<!doctype" in text[:500].lower():
            return BadAnswer(
                f"{self.access.place} answered a web page where JSON was expected, as a login page in front of it does",
                hint="give credentials that the proxy accepts, or the address of the server itself",
                reason="html",
            )
        return BadAnswer(f"{self.access.place} answered no JSON: {self.access.hidden(text[:80])!r}", reason="no-json")

    def _said(self, error: Exception) -> Exception:
        """Return our error for one of a client's."""
        if isinstance(error, (SourceError, _Again)):
            return error
        name = type(error).__name__
        causes = [
            f"{type(each).__name__}: {each}"
            for each in (*getattr(error, "errors", ()), error.__cause__, error.__context__)
            if each
        ]
        text = self.access.hidden("; ".join(dict.fromkeys([str(error), *causes])))[:400]
        place = self.access.place
        status = status_of(error)
        if status is not None and status >= 300:
            return self._http(error, status, text)
        if name in _OTHER:
            if "<html" in str(getattr(error, "body", "")).lower():
                return self._no_json(getattr(error, "body", ""))
            return Refused(
                f"{place} does not say that it is Elasticsearch",
                hint='it may be an OpenSearch (set product = "opensearch") or a proxy that drops the header X-Elastic-Product',
            )
        if name in ("TlsError", "SSLError"):
            return SourceUnavailable(
                f"no trusted TLS connection to {place}: {text}",
                hint="give the authority that signed its certificate (ca = FILE), or check the name and the date of the certificate",
            )
        if name in ("SerializationError", "UnsupportedMediaType") or isinstance(error, ValueError):
            broken = BadAnswer(
                f"{place} answered something that is no whole JSON: {text}", hint="a proxy may have cut it", reason="cut"
            )
            return broken if "<" in text[:200] else _Again(broken)
        if name in ("ConnectionTimeout",):
            return SourceTimeout(
                f"{place} did not answer within its time", hint="give it more time: --deadline 60s, or a shorter window"
            )
        cut = any(
            word in text
            for word in ("IncompleteRead", "Connection broken", "ProtocolError", "RemoteDisconnected", "Connection aborted")
        )
        if cut:
            return _Again(BadAnswer(f"the answer of {place} was cut off: {text}", hint="a proxy may have cut it", reason="cut"))
        if isinstance(error, OSError) or "Connection" in name or "Transport" in name:
            return SourceUnavailable(f"{place} cannot be reached: {text}", hint="check the address, the port and the network")
        return BadAnswer(f"{place}: {name}: {text}")

    def _http(self, error: Exception, status: int, text: str) -> Exception:
        place = self.access.place
        reason, said = reason_of(error)
        said = self.access.hidden(said)[:300]
        if reason == "media_type_header_exception":
            mine = self.client_version()
            return Refused(
                f"the server at {place} does not accept the client of version {mine}: the client's major version must be the server's",
                hint=f"pip install 'elasticsearch>={major(mine) - 1},<{major(mine)}' for a server of version {major(mine) - 1}",
            )
        if status == 401:
            return Refused(
                f"{place} does not know us (401): {said or 'no credentials, or wrong ones'}",
                hint="give an API key, a token or a user with its password; see docs/live.md",
            )
        if status == 403:
            return Refused(
                f"{place} does not let us read (403): {said or 'forbidden'}",
                hint="grant the privileges read and view_index_metadata on the log indices",
            )
        if 300 <= status < 400:
            return BadAnswer(
                f"{place} redirects ({status}), as a login page in front of it does",
                hint="give credentials that the proxy accepts, or the address of the server itself",
                status=status,
                reason="redirect",
            )
        answer = BadAnswer(f"{place} answered {status}: {said or text}", status=status, reason=reason)
        if status in _AGAIN:
            return _Again(answer, retry_after(error))
        return answer


_OTHER = ("UnsupportedProductError", "NotElasticsearchError")


def _is_opensearch(error: Exception) -> bool:
    """Tell whether a server that is no Elasticsearch answered in JSON, as an OpenSearch does."""
    return isinstance(getattr(error, "body", None), dict)


class _Again(Exception):
    """Worth another attempt, after so many seconds when the server said so."""

    def __init__(self, error: Exception, after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after = after
