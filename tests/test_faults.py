"""Turn the fault server on itself: each fault is what it says, and a server that hangs still ends with its test."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from workbench.testing.faults import FaultServer, Reply, Request


def echo(request: Request) -> Reply:
    return Reply(b'{"said": "%s %s"}' % (request.method.encode(), request.body), headers={"Content-Type": "application/json"})


def get(url: str, body: bytes | None = None, timeout: float = 5, **more: object) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=timeout, **more) as answer:  # type: ignore[arg-type]
        return answer.status, answer.read()


def test_passes_on_to_an_upstream() -> None:
    with FaultServer(echo) as upstream, FaultServer(upstream.url) as server:
        assert get(server.url + "/a?b=c", b"x=1") == (200, b'{"said": "POST x=1"}')
        assert [(one.method, one.path, one.body) for one in upstream.requests] == [("POST", "/a?b=c", b"x=1")]
        assert server.requests[0].headers["content-type"] == "application/x-www-form-urlencoded"


@pytest.mark.parametrize("fault", ["401", "403", "429", "500", "503"])
def test_statuses(fault: str) -> None:
    with FaultServer(echo, fault=fault) as server, pytest.raises(urllib.error.HTTPError) as caught:
        get(server.url)
    with caught.value as error:
        assert error.code == int(fault)
        assert (error.headers["Retry-After"] == "1") == (fault in ("429", "503"))


def test_a_fault_can_wait_and_pass() -> None:
    with FaultServer(echo, fault="500", after=1, times=1) as server:
        assert get(server.url)[0] == 200
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(server.url)
        caught.value.close()
        assert get(server.url)[0] == 200


def test_a_fault_can_choose() -> None:
    with FaultServer(echo, fault="html", when=lambda request: "query" in request.path) as server:
        assert get(server.url + "/query")[1].startswith(b"<!DOCTYPE html>")
        assert get(server.url + "/other")[1].startswith(b"{")


def test_refused_and_back_at_the_same_port() -> None:
    with FaultServer(echo) as server:
        url = server.url
        server.fault = "refused"
        with pytest.raises(urllib.error.URLError, match="refused"):
            get(url)
        server.fault = None
        assert get(url)[0] == 200


def test_hang_ends_with_the_test() -> None:
    began = time.monotonic()
    with FaultServer(echo, fault="hang") as server, pytest.raises((TimeoutError, urllib.error.URLError)):
        get(server.url, timeout=0.3)
    assert time.monotonic() - began < 3


def test_slow_cut_and_reset() -> None:
    with FaultServer(echo, fault="slow", drip=0.01) as server:
        began = time.monotonic()
        assert get(server.url)[1] == b'{"said": "GET "}'
        assert time.monotonic() - began > 0.1
        server.fault = "cut"
        with pytest.raises(http.client.IncompleteRead):
            get(server.url)
        server.fault = "reset"
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            get(server.url)


def test_login_page_and_empty() -> None:
    with FaultServer(echo, fault="login-page", empty=b"[]") as server:
        client = http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port or 0, timeout=5)
        client.request("GET", "/api")
        answer = client.getresponse()
        assert (answer.status, answer.getheader("Location")) == (302, f"{server.url}/fault-server/login")
        client.close()
        assert b"Sign in" in get(server.url)[1]
        server.fault = "empty"
        assert get(server.url)[1] == b"[]"


def test_tls_is_not_trusted_until_told() -> None:
    with FaultServer(echo, tls=True) as server:
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(server.url)
        context = ssl.create_default_context(cafile=str(server.certificate))
        assert get(server.url, context=context)[0] == 200


def test_a_clock_that_is_off() -> None:
    from email.utils import parsedate_to_datetime

    with FaultServer(echo, clock_offset=600) as server, urllib.request.urlopen(server.url, timeout=5) as answer:
        assert parsedate_to_datetime(answer.headers["Date"]).timestamp() == pytest.approx(time.time() + 600, abs=3)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="is none of"):
        FaultServer(echo, fault="gremlins")
