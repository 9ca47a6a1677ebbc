"""
Turn a path of the Kubernetes API into raw JSON within a deadline, and every way in which that can fail into one typed error.

The official client does what it does best: kubeconfig, exec plugins, in-cluster tokens, TLS, proxies. Its typed objects are left
aside, since they cost seconds of processor time where the JSON costs none (kubernetes-client/python#1867).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from workbench.errors import SourceError
from workbench.sources.contract import Deadline, SourceTimeout
from workbench.sources.http_words import server_time
from workbench.sources.kubernetes.errors import (
    CONFIG,
    MORE_TIME,
    PROXY,
    REACH,
    ApiError,
    Reply,
    decoded,
    failure,
    refusal,
    web_page,
    words,
)

__all__ = ["Api", "Listing"]

_RETRIED = {"throttled", "server", "cut"}
_TRIES = 4
_BODY = 512 << 20  # most bytes of one answer; a page of 500 large pods is 20 MB
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(slots=True)
class Listing:
    """What came of a list: objects, how many pages, whether it is all, and what a person should know of how it came."""

    items: list[dict[str, Any]] = field(default_factory=list)
    pages: int = 0
    seen: int = 0  # objects that came, before any were left out
    notes: list[str] = field(default_factory=list)
    error: SourceError | None = None  # why it is not all

    @property
    def complete(self) -> bool:
        """Whether the list is all that the server has."""
        return self.error is None


class Api:
    """
    One API server, asked with whatever credentials kubectl would use.

    Parameters
    ----------
    kubeconfig : str, optional
        Path of a kubeconfig (or several, as in ``$KUBECONFIG``); default: that variable, ``~/.kube/config``, then the pod's own
        service account.
    context : str, optional
        Context of the kubeconfig; default its current one.
    clock : callable, optional
        Returns the seconds since the epoch that the server's clock is compared with.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self.kubeconfig, self.context, self._clock = kubeconfig, context, clock
        self.offset: float | None = None  # seconds by which the server's clock is ahead of ours
        self.namespace: str | None = None  # of the context
        self.origin = ""  # where the credentials come from, in words
        self.host = ""
        self._client: Any = None
        self._pool: Any = None
        self._lock = threading.Lock()
        self._local = threading.local()

    # ---- one request

    def get(
        self,
        path: str,
        deadline: Deadline,
        query: Mapping[str, Any] | None = None,
        *,
        accept: str = "application/json",
        tries: int = _TRIES,
        sink: Callable[[bytes], object] | None = None,
    ) -> Reply:
        """
        Return the answer to a GET; with `sink` its blocks go there as they come and the body stays empty.

        Raises
        ------
        ApiError
            The server refused, or answered with something else than what was asked.
        SourceTimeout
            The deadline came first, also when the server sends byte by byte.
        """
        asked = path + ("?" + urlencode(query) if query else "")
        return self._retrying("GET", asked, None, accept, deadline, tries, sink)

    def json(self, path: str, deadline: Deadline, query: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Return the JSON object that a path answers with; see `get`."""
        return decoded(self.get(path, deadline, query, **more), path)

    def post(self, path: str, body: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """Return the JSON answer to a POST; used for reviews only, which change nothing."""
        return self.send("POST", path, body, deadline)

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        deadline: Deadline,
        *,
        kind: str = "application/json",
        tries: int = _TRIES,
    ) -> dict[str, Any]:
        """
        Return the JSON answer to a request with a body of the content type `kind`; see `get` for what it raises.

        What changes something in a cluster is sent by ``sources/kubernetes/write.py``, where it is the same when it is sent twice, and by
        ``remediation/executors/kubernetes``, which asks once (``tries=1``) and looks before it asks again.
        """
        data = json.dumps(body).encode()
        return decoded(self._retrying(method, path, data, "application/json", deadline, tries, None, kind), path)

    def _retrying(
        self,
        method: str,
        asked: str,
        body: bytes | None,
        accept: str,
        deadline: Deadline,
        tries: int,
        sink: Callable[[bytes], object] | None,
        kind: str = "application/json",
    ) -> Reply:
        for attempt in range(1, tries + 1):
            try:
                return self._watched(lambda: self._once(method, asked, body, kind, accept, deadline, sink), deadline)
            except ApiError as error:
                if error.kind not in _RETRIED or attempt == tries:
                    raise
                wait = error.wait if error.wait is not None else 0.2 * 2 ** (attempt - 1)
                if wait >= deadline.left():
                    asks = f"{error}; it asks to wait {wait:.0f} s, longer than the deadline" if error.wait else str(error)
                    raise ApiError(asks, error.kind, hint=error.hint, status=error.status, wait=wait) from error
                time.sleep(wait)
        raise AssertionError("unreachable")

    def _watched(self, work: Callable[[], Reply], deadline: Deadline) -> Reply:
        """
        Run `work` in a thread of its own and wait for it until the deadline.

        Time-outs of a socket count between two bytes, so a server that drips, a resolver that hangs and a credential plugin that
        waits for a person would hold us for ever; this does not let them. What is left of the call is cut off at its socket.
        """
        left = deadline.left()
        done: list[Reply | BaseException] = []
        used: list[Any] = []

        def run() -> None:
            self._local.used = used
            try:
                done.append(work())
            except BaseException as error:
                done.append(error)

        thread = threading.Thread(target=run, daemon=True, name="kubernetes-api")
        thread.start()
        thread.join(left)
        if not done:
            for connection in used:
                with contextlib.suppress(OSError, AttributeError, ValueError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            raise SourceTimeout(f"the API server did not answer within {left:.0f} s", hint=MORE_TIME)
        if isinstance(done[0], BaseException):
            raise done[0]
        return done[0]

    def _once(
        self,
        method: str,
        asked: str,
        body: bytes | None,
        kind: str,
        accept: str,
        deadline: Deadline,
        sink: Callable[[bytes], object] | None,
    ) -> Reply:
        import urllib3

        self._open()
        headers = {"Accept": accept, "User-Agent": "gpu-reliability-workbench", "Accept-Encoding": "gzip"}
        if body is not None:
            headers["Content-Type"] = kind
        began = time.monotonic()
        left = deadline.left()
        try:
            for setting in self._client.configuration.auth_settings().values():
                if setting["in"] == "header" and setting["value"]:
                    headers[setting["key"]] = setting["value"]
            response = self._pool.request(
                method,
                self.host + asked,
                body=body,
                headers=headers,
                preload_content=False,
                retries=False,
                redirect=False,  # a login page is not an answer
                timeout=urllib3.Timeout(connect=min(left, 10.0), read=left),
            )
            try:
                kept: list[bytes] = []
                good = 200 <= response.status < 300
                for block in _blocks(response, deadline):
                    (sink if sink is not None and good else kept.append)(block)
            finally:
                # an answer that was read to its end gives its connection back by itself; others are of no more use
                response.close() if not _finished(response) else response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise failure(error, self.host) from error
        except OSError as error:
            raise ApiError(f"the API server cannot be reached: {words(str(error))}", "refused", hint=REACH) from error
        said = {key.lower(): value for key, value in response.headers.items()}
        self._compare_clocks(said.get("date"))
        reply = Reply(b"".join(kept), said, time.monotonic() - began)
        if not good:
            raise refusal(response.status, reply, asked)
        if "html" in said.get("content-type", ""):
            raise web_page(reply.body)
        return reply

    def _compare_clocks(self, date: str | None) -> None:
        there = server_time(date)
        if there is not None:
            self.offset = there - self._clock()

    # ---- credentials

    def open(self, deadline: Deadline) -> None:
        """Read the credentials; raises as `get` does."""

        def work() -> Reply:
            self._open()
            return Reply(b"", {}, 0.0)

        self._watched(work, deadline)

    def _open(self) -> None:
        with self._lock:
            if self._client is not None:
                return
            try:
                from kubernetes import client as official
                from kubernetes import config as loader
            except ImportError as error:
                raise ApiError(
                    "the Kubernetes client is not installed", "client", hint="pip install 'gpu-reliability-workbench[sources]'"
                ) from error
            client: Any = official  # it is typed in parts only, and differently from version to version
            config: Any = loader
            files = self.kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
            exists = any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)
            settings = client.Configuration()
            try:
                if exists:
                    config.load_kube_config(files, self.context, settings, persist_config=False)
                    chosen = _context(config, files, self.context)
                    self.namespace = chosen[1]
                    self.origin = f"context {chosen[0]} of {files}"
                elif not self.kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
                    config.load_incluster_config(settings)
                    self.origin = "the service account of this pod"
                    with contextlib.suppress(OSError):
                        self.namespace = _SERVICE_ACCOUNT.with_name("namespace").read_text(encoding="utf-8").strip() or None
                else:
                    raise ApiError(
                        f"there is no kubeconfig at {files}, and this is no pod with a service account", "config", hint=CONFIG
                    )
            except ApiError:
                raise
            except Exception as error:  # the client raises whatever a broken file or plugin makes of it
                raise ApiError(f"the kubeconfig cannot be used: {words(str(error))}", "config", hint=CONFIG) from error
            settings.retries = False
            settings.connection_pool_maxsize = 16
            made = client.ApiClient(settings)
            self._pool = made.rest_client.pool_manager
            self._pool.pool_classes_by_scheme = {
                scheme: self._noting(pool) for scheme, pool in self._pool.pool_classes_by_scheme.items()
            }
            self.host = str(settings.host).rstrip("/")
            self._client = made

    def _noting(self, pool: Any) -> Any:
        """Return a kind of pool whose connections tell which thread uses them, so that a call can be cut off."""
        local = self._local

        class Connection(pool.ConnectionCls):  # type: ignore[misc]
            def request(self, *positional: Any, **named: Any) -> Any:
                getattr(local, "used", []).append(self)
                return super().request(*positional, **named)

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    # ---- lists

    def list(
        self,
        path: str,
        deadline: Deadline,
        query: Mapping[str, Any] | None = None,
        *,
        page: int = 500,
        keep: Callable[[dict[str, Any]], bool] | None = None,
        most_pages: int = 0,
        accept: str = "application/json",
    ) -> Listing:
        """
        Return all objects of a list, page by page; never raises for what the server does in the middle of it.

        Parameters
        ----------
        path, deadline, query, accept
            As in `get`.
        page : int
            Objects a page.
        keep : callable, optional
            Which objects to keep; the others are forgotten page by page, so that a large cluster fits into memory.
        most_pages : int
            End after so many; 0 means none.

        Raises
        ------
        ApiError, SourceTimeout
            Not even the first page came.
        """
        found, token, odd = Listing(), "", 0
        before: Listing | None = None  # what came before the list expired
        while True:
            wanted = {**(query or {}), "limit": page}
            if token:
                wanted["continue"] = token
            elif before is not None:
                del wanted["limit"]  # what was too slow in pages comes whole, as in the Go client
            try:
                document = self.json(path, deadline, wanted, accept=accept)
                if not isinstance(document.get("items"), list) and document.get("items", 0) is not None:
                    raise ApiError("the API server answered with something that is no list", "not-json", hint=PROXY)
            except SourceError as error:
                if isinstance(error, ApiError) and error.kind == "gone" and token and before is None:
                    before, found, token = found, Listing(), ""
                    found.notes.append("the list expired on the server while it was read; it was read again from the start")
                    continue
                if before is not None and not found.pages:
                    found = before
                if not found.pages:
                    raise
                found.error = error
                return found
            kind, version = str(document.get("kind", "")).removesuffix("List"), document.get("apiVersion")
            found.pages += 1
            for item in document.get("items") or []:
                found.seen += 1
                if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
                    odd += 1
                    continue
                item = {"apiVersion": version, "kind": kind, **item}  # inside lists the API leaves both out
                if keep is None or keep(item):
                    found.items.append(item)
            token = str((document.get("metadata") or {}).get("continue") or "")
            if not token:
                found.notes += [f"{odd} objects without metadata left out"] if odd else []
                return found
            if most_pages and found.pages >= most_pages:
                rest = (document.get("metadata") or {}).get("remainingItemCount")
                found.notes.append(f"the first {found.seen} only" + (f", {rest} more were not looked at" if rest else ""))
                return found


def _context(config: Any, files: str, context: str | None) -> tuple[str, str | None]:
    """Return the name of the context in use and its namespace."""
    every, current = config.list_kube_config_contexts(files)
    chosen = next((one for one in every if one["name"] == context), None) if context else current
    return str((chosen or {}).get("name", "")), ((chosen or {}).get("context") or {}).get("namespace")


def _finished(response: Any) -> bool:
    original = getattr(response, "_original_response", None)
    return original is None or original.isclosed()


def _blocks(response: Any, deadline: Deadline) -> Iterator[bytes]:
    """Yield an answer as it comes, and end with an error when it is too large or the deadline is over."""
    size = 0
    read = getattr(response, "read1", None)
    stream = iter(lambda: read(1 << 16, decode_content=True), b"") if read else response.stream(1 << 16, decode_content=True)
    for block in stream:
        size += len(block)
        if size > _BODY:
            raise ApiError(f"one answer is larger than {_BODY >> 20} MiB", "not-json", hint="name a namespace")
        if deadline.over:
            raise SourceTimeout("the deadline came in the middle of an answer", hint=MORE_TIME)
        yield block
