"""A watch keeps what the server has, proves that it lives, and is not trusted when it does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("kubernetes")

from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.executors.kubernetes.watching import Feed
from workbench.sources.kubernetes.api import Api
from workbench.testing.faults import FaultServer, Reply, Request
from workbench.testing.kubernetes import kubeconfig


def item(name: str, version: int, **spec: Any) -> dict[str, Any]:
    """Return a node."""
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)}, "spec": spec}


def lines(*events: tuple[str, dict[str, Any]]) -> bytes:
    """Return a watch's answer."""
    return b"".join(json.dumps({"type": kind, "object": what}).encode() + b"\n" for kind, what in events)


class Server:
    """Answers lists with `listed` and watches with what is due, each after a moment."""

    def __init__(self) -> None:
        self.listed = [item("a", 5)]
        self.watches: list[bytes | Reply] = []
        self.then: list[dict[str, Any]] = []  # what is there from the first watch on
        self.asked: list[dict[str, str]] = []

    def __call__(self, request: Request) -> Reply:
        query = {key: values[0] for key, values in parse_qs(urlsplit(request.path).query).items()}
        self.asked.append(query)
        if "watch" not in query:
            return Reply(json.dumps({"metadata": {"resourceVersion": "7"}, "items": self.listed}).encode())
        due = self.watches.pop(0) if self.watches else b""
        self.listed = self.then or self.listed
        return due if isinstance(due, Reply) else Reply(due, delay=0.05)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(Server()) as server:
        yield server


@contextmanager
def running(server: FaultServer, folder: Path, **more: Any) -> Iterator[Feed]:
    """Run a feed of nodes."""
    feed, ends = Feed(Api(str(kubeconfig(folder, server.url))), "/api/v1/nodes", hold=1.0, **more), threading.Event()
    thread = threading.Thread(target=feed.run, args=(ends,))
    thread.start()
    try:
        yield feed
    finally:
        ends.set()
        thread.join(30)
        assert not thread.is_alive()


def soon(what: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come")


def names(feed: Feed) -> list[str]:
    return sorted(one["metadata"]["name"] for one in feed.items())


def test_changes_are_kept_and_told_and_the_next_watch_begins_where_the_last_ended(server: FaultServer, tmp_path: Path) -> None:
    api = server.upstream
    assert isinstance(api, Server)
    told: list[tuple[Any, Any]] = []
    api.watches = [
        lines(("ADDED", item("b", 8)), ("MODIFIED", item("a", 9, unschedulable=True)), ("DELETED", item("b", 10))),
        lines(("BOOKMARK", {"metadata": {"resourceVersion": "20"}})),
    ]
    with running(server, tmp_path, changed=lambda before, after: told.append((before, after))) as feed:
        soon(lambda: len([one for one in api.asked if "watch" in one]) >= 3)
        assert feed.lives()
        assert names(feed) == ["a"]
        assert feed.items()[0]["spec"] == {"unschedulable": True}
    assert [(before and before["metadata"]["name"], after and after["metadata"]["name"]) for before, after in told] == [
        (None, "a"),
        (None, "b"),
        ("a", "a"),
        ("b", None),
    ]
    assert [one["resourceVersion"] for one in api.asked if "watch" in one][:3] == ["7", "10", "20"]


@pytest.mark.parametrize(
    "end",
    [
        lines(("ERROR", {"code": 410, "message": "too old resource version"})),
        Reply(b'{"code": 410, "message": "expired"}', 410),
    ],
)
def test_what_expired_is_listed_again_and_what_went_meanwhile_is_told(server: FaultServer, tmp_path: Path, end: Any) -> None:
    api = server.upstream
    assert isinstance(api, Server)
    told: list[tuple[Any, Any]] = []
    api.watches, api.then = [end], [item("c", 30)]
    with running(server, tmp_path, changed=lambda before, after: told.append((before, after))) as feed:
        soon(lambda: names(feed) == ["c"])
        assert feed.lives()
    assert (item("a", 5), None) in told


@pytest.mark.parametrize("end", [b"{not json\n", lines(("ERROR", {"code": 500, "message": "etcd is away"})), Reply(b"{}", 403)])
def test_a_watch_that_fails_is_not_trusted_until_it_was_listed_anew(server: FaultServer, tmp_path: Path, end: Any) -> None:
    api = server.upstream
    assert isinstance(api, Server)
    api.watches = [end]
    with running(server, tmp_path) as feed:
        soon(lambda: feed.version and not feed.lives())
        assert feed.error
        soon(feed.lives)
        assert names(feed) == ["a"]


def test_a_silent_watch_is_not_trusted(server: FaultServer, tmp_path: Path) -> None:
    """Nothing comes, nothing ends: after its time and a margin nobody believes it."""
    now = [0.0]
    with running(server, tmp_path, clock=lambda: now[0]) as feed:
        soon(lambda: feed.version)
        server.fault = "hang"
        time.sleep(0.2)
        assert feed.lives()
        now[0] += 17.0
        assert not feed.lives()
        server.fault = "refused"


def test_a_kind_that_is_not_installed_is_empty_and_well(tmp_path: Path) -> None:
    """No Karpenter is no trouble."""
    with FaultServer(lambda request: Reply(b"{}", 404)) as server, running(server, tmp_path) as feed:
        soon(feed.lives)
        assert feed.items() == []


def test_without_a_living_watch_the_fleet_is_listed(tmp_path: Path) -> None:
    """Each time anew, and as whole as it is."""
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.path)
        if "watch=1" in request.path:
            return Reply(b"{}", 403)
        items = [item("a", 5)] if request.path.startswith("/api/v1/nodes") else []
        return Reply(json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode())

    with FaultServer(answer) as server:
        executor = Kubernetes(kubeconfig(tmp_path, server.url))
        assert executor.unwatched()
        executor.watch()
        for _ in range(2):
            fleet = executor.fleet(Deadline(20))
            assert fleet.complete
            assert list(fleet.nodes) == ["a"]
        soon(lambda: any("/api/v1/nodes: not allowed" in one for one in executor.unwatched()))
        executor.close()
        assert executor.wait(5.0), "the first list is news"
        assert not executor.wait(0.05)
