"""A report is written whole, told to a webhook at least once under one key, and holds hostile words as words."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.conformance import Acts, TakesBack, World, soon
from tests.remediation.dry_conformance import DryActs, DryTakesBack, made, untouched
from tests.remediation.kept_world import KeptWorld
from workbench.errors import ConfigError
from workbench.model import Gpu
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.ticket import Tickets
from workbench.remediation.model import Action
from workbench.report.plan import ticket

TICKET = Action(
    "act-1", "ticket", "report", "gpu-7", gpu=Gpu(index=3, uuid="GPU-1", pci="00000000:5D:00.0"), why="GPU 3 is lost",
    args={"reason": "[node] xid-79", "evidence": [{"time": 1.8e9, "source": "kernel", "text": "NVRM: Xid 79"}]},
)  # fmt: skip


class Receiver:
    """A real HTTP server on loopback that notes what it gets and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], Any]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.drop = self.drip = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), json.loads(body)))
                if receiver.drop:  # it has it, and its answer does not come back
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if receiver.drip:
                    with receiver.stopped:
                        while not receiver.stop and receiver.drip:
                            self.wfile.write(b"X")
                            receiver.stopped.wait(0.2)
                    return
                code, headers = receiver.answers.pop(0) if receiver.answers else (204, {})
                self.send_response_only(code)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass

        self.stop, self.stopped = False, threading.Condition()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/T0/SECRET?token=hidden"

    def close(self) -> None:
        self.stop = True
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Receiver()
    yield made
    made.close()


class TicketWorld(KeptWorld):
    """Reports in a folder, and a webhook that gets them."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.receiver = receiver
        super().__init__(folder)

    def make(self) -> Tickets:
        return Tickets(self.folder, ticket, webhook=self.receiver.url, node=self.scheduler.executor.node)

    def action(self, verb: str) -> Action:
        return replace(super().action(verb), args=TICKET.args)

    def writes(self) -> int:
        return len(self.receiver.got)

    def shape(self, action: Action) -> Any:
        file = self.folder / f"{action.id}.json"
        return not file.exists() or bool(json.loads(file.read_text()).get("withdrawn"))

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        self.receiver.drop = True
        try:
            yield
        finally:
            self.receiver.drop = False


class TestTickets(Acts, TakesBack):
    """The suite of all executors, but for what touches no node."""

    VERBS = ("ticket", "page")
    UNDONE = ("ticket",)

    @pytest.fixture
    def world(self, tmp_path: Path, receiver: Receiver) -> TicketWorld:
        return TicketWorld(tmp_path / "reports", receiver)

    def test_a_changed_world_is_left_alone(self, world: World, verb: str) -> None:
        """Not by those who only tell: a person hears of it also when the machine is another one by now."""
        action = world.action(verb)
        world.differ(action)
        assert world.executor.begin(action, soon()).status == "done"

    def test_undo_brings_back_what_was(self, world: World, undone: str) -> None:
        """What was read cannot be unread: the report is marked as withdrawn, once."""
        action = world.action(undone)
        before = world.executor.begin(action, soon()).before
        assert world.executor.undo(action, before, soon()).status == "done"
        assert world.executor.undo(action, before, soon()).status == "absent"
        assert world.executor.look(action, soon()).status == "changed"

    def test_what_somebody_changed_since_stays(self, world: World, undone: str) -> None:
        """A person's words in the Markdown are his."""
        action = world.action(undone)
        world.executor.begin(action, soon())
        assert isinstance(world, TicketWorld)
        file = world.folder / f"{action.id}.md"
        file.write_text(file.read_text() + "\nRMA 4711 is open.\n")
        world.executor.undo(action, {}, soon())
        assert file.read_text().endswith("RMA 4711 is open.\n")


class TestTicketsDry(DryActs, DryTakesBack):
    """The same questions to a dry run of it: nobody is told."""

    VERBS = TestTickets.VERBS
    UNDONE = TestTickets.UNDONE

    @pytest.fixture
    def world(self, tmp_path: Path, receiver: Receiver) -> TicketWorld:
        return TicketWorld(tmp_path / "reports", receiver)

    def test_a_changed_world_is_left_alone(self, world: World, verb: str) -> None:
        """A dry run compares what a plan expects, also for those who would tell of it all the same."""
        action = world.action(verb)
        world.differ(action)
        with untouched(world, action):
            assert self.dry(world).begin(action, soon()).status == "changed"

    def test_what_somebody_changed_since_stays(self, world: World, undone: str) -> None:
        """His words stay."""
        action = world.action(undone)
        before = made(world, action)
        assert isinstance(world, TicketWorld)
        file = world.folder / f"{action.id}.md"
        file.write_text(file.read_text() + "\nRMA 4711 is open.\n")
        with untouched(world, action):
            self.dry(world).undo(action, before, soon())
        assert file.read_text().endswith("RMA 4711 is open.\n")


# ---- the webhook


def test_it_is_posted_once_under_its_key_and_is_on_the_disk(tmp_path: Path, receiver: Receiver) -> None:
    tickets = Tickets(tmp_path, ticket, webhook=receiver.url, headers={"Authorization": "Bearer x"})
    assert tickets.begin(TICKET, soon()).status == "done"
    assert tickets.begin(TICKET, soon()).status == "done"
    ((headers, body),) = receiver.got
    assert (headers["Idempotency-Key"], headers["Authorization"]) == ("act-1", "Bearer x")
    assert (body["schema"], body["node"], body["gpu"]["uuid"]) == ("workbench.ticket/1", "gpu-7", "GPU-1")
    assert body["text"] == (tmp_path / "act-1.md").read_text()
    assert json.loads((tmp_path / "act-1.json").read_text())["posted"] is True


@pytest.mark.parametrize(
    ("code", "headers", "sent", "again"),
    [
        (429, {"Retry-After": "120"}, True, 120.0),
        (503, {"Retry-After": "Mon, 30 Nov 2026 07:01:00 GMT", "Date": "Mon, 30 Nov 2026 07:00:00 GMT"}, True, 60.0),
        (500, {}, True, 30.0),
        (429, {"Retry-After": "soon"}, True, 30.0),
        (401, {}, False, 30.0),
        (404, {}, False, 30.0),
        (302, {"Location": "http://127.0.0.1:9/elsewhere"}, False, 30.0),
        (307, {"Location": "/again"}, False, 30.0),
    ],
)
def test_what_is_not_taken_is_told_kept_and_posted_again(
    tmp_path: Path, receiver: Receiver, code: int, headers: dict[str, str], sent: bool, again: float
) -> None:
    tickets = Tickets(tmp_path, ticket, webhook=receiver.url)
    receiver.answers = [(code, headers)]
    with pytest.raises(ExecutorError) as error:
        tickets.begin(TICKET, soon())
    assert (error.value.sent, error.value.again) == (sent, pytest.approx(again, abs=1))
    assert str(code) in str(error.value)
    assert "SECRET" not in str(error.value)
    assert "hidden" not in str(error.value)
    assert tickets.look(TICKET, soon()).status == "absent"
    assert (tmp_path / "act-1.md").exists()  # whoever looks into the folder has it all the same
    assert tickets.begin(TICKET, soon()).status == "done"
    assert [one["Idempotency-Key"] for one, _ in receiver.got] == ["act-1", "act-1"]


def test_a_lost_answer_may_have_arrived_and_the_key_tells_the_second_from_a_new_one(tmp_path: Path, receiver: Receiver) -> None:
    tickets = Tickets(tmp_path, ticket, webhook=receiver.url)
    receiver.drop = True
    with pytest.raises(ExecutorError) as error:
        tickets.begin(TICKET, soon())
    assert error.value.sent
    receiver.drop = False
    assert Tickets(tmp_path, ticket, webhook=receiver.url).begin(TICKET, soon()).status == "done"
    assert [one["Idempotency-Key"] for one, _ in receiver.got] == ["act-1", "act-1"]


def test_a_receiver_that_drips_is_given_up_at_the_deadline(tmp_path: Path, receiver: Receiver) -> None:
    receiver.drip = True
    begun = time.monotonic()
    with pytest.raises(ExecutorError, match="in time") as error:
        Tickets(tmp_path, ticket, webhook=receiver.url).begin(TICKET, Deadline(1.0))
    assert error.value.sent
    assert time.monotonic() - begun < 30
    receiver.drip = False


def test_nobody_there_means_that_nothing_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ExecutorError) as error:
        Tickets(tmp_path, ticket, webhook=f"http://127.0.0.1:{port}/SECRET").begin(TICKET, soon())
    assert not error.value.sent
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize(
    "webhook",
    ["file:///etc/passwd", "ftp://x/y", "hooks.example/x", "http://", "http://[::1", "http://x:99999/", "http://me:word@x/"],
)
def test_a_webhook_is_an_http_address(tmp_path: Path, webhook: str) -> None:
    with pytest.raises(ConfigError, match="webhook"):
        Tickets(tmp_path, ticket, webhook=webhook)


def test_what_is_no_http_is_an_error_like_any_other(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        worker = threading.Thread(target=answer, daemon=True)
        worker.start()
        with pytest.raises(ExecutorError):
            Tickets(tmp_path, ticket, webhook=f"http://127.0.0.1:{server.getsockname()[1]}/").begin(TICKET, soon())
        worker.join(10)


# ---- files


def test_without_a_webhook_the_folder_is_all(tmp_path: Path) -> None:
    tickets = Tickets(tmp_path / "a" / "b", ticket)
    assert tickets.look(TICKET, soon()).status == "absent"
    assert tickets.begin(TICKET, soon()).status == "done"
    assert "Xid 79" in (tmp_path / "a/b/act-1.md").read_text()


def test_a_crash_between_the_two_files_is_made_good(tmp_path: Path) -> None:
    tickets = Tickets(tmp_path, ticket)
    tickets.begin(TICKET, soon())
    text = (tmp_path / "act-1.md").read_text()
    (tmp_path / "act-1.json").unlink()  # the one that is written last
    (tmp_path / "act-1.md").write_text(text[:20])
    assert tickets.look(TICKET, soon()).status == "absent"
    assert tickets.begin(TICKET, soon()).status == "done"
    assert (tmp_path / "act-1.md").read_text() == text


@pytest.mark.parametrize("content", ["", "{", "\xff"])
def test_a_damaged_report_is_told(tmp_path: Path, content: str) -> None:
    tickets = Tickets(tmp_path, ticket)
    (tmp_path / "act-1.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ExecutorError):
        tickets.look(TICKET, soon())


def test_a_disk_that_is_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = Tickets(tmp_path, ticket)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ExecutorError, match="No space left") as error:
        tickets.begin(TICKET, soon())
    assert not error.value.sent
    monkeypatch.undo()
    assert tickets.look(TICKET, soon()).status == "absent"


def test_an_id_leads_nowhere_else(tmp_path: Path) -> None:
    tickets = Tickets(tmp_path / "reports", ticket)
    for call in (tickets.begin, tickets.look):
        with pytest.raises(ExecutorError):
            call(replace(TICKET, id="../evil"), soon())
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["reports"]


def test_hostile_lines_stay_words_in_markdown(tmp_path: Path) -> None:
    evil = "x</td><script>alert(1)</script> | **bold** [click](javascript:x) ![](http://evil/x.png)\n# Not a heading\n```\x1b[31m\u202e @everyone"
    action = replace(
        TICKET,
        why=evil,
        node="gpu-7|<b>",
        args={**TICKET.args, "reason": evil, "sku": evil, "evidence": [{"text": evil, "source": evil}]},
    )
    for verb in ("ticket", "page"):
        tickets = Tickets(tmp_path / verb, ticket)
        assert tickets.begin(replace(action, verb=verb), soon()).status == "done"
        text = (tmp_path / verb / "act-1.md").read_text()
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert not re.search(r"(?m)^# Not", text)
        bare = re.sub(r"(`+).*?\1", "", text, flags=re.S)  # what is not quoted as code
        assert not re.search(r"<script|\]\(javascript|!\[\]\(|\*\*bold", re.sub(r"\\.", "", bare)), text
