"""People get five lines; whatever stands in a log calls nobody, leads nowhere and shows no secret."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.inbox.conftest import verdict_of
from workbench.errors import ConfigError
from workbench.inbox.model import Entry
from workbench.inbox.notify import Note, Slack, Webhook, link_of, note_of, slack_payload, storm_note
from workbench.inbox.post import NotTold
from workbench.inbox.rows import verdict_facts

HOSTILE = (
    "<!channel> <!here|x> <@U024BE7LH> <#C1|general> <https://evil.example|click> https://evil.example/x http://a.b www.evil.example "
    "@channel @here @all [click](https://evil.example) mailto:x@y.z `code` *bold* :smile: &lt;!channel&gt; \x1b[31mred\x1b[0m \u202eabc \n second line"
)
GPU = replace(
    Entry("train-1", None, 0.0, "kubernetes", ""),
    job="train", namespace="ml", attempt=2, user="ann", team="nlp", ranks=512, nodes=64, gpus=512, gpu_hours=1024.5, cost=3000.0, retry="exclude-node",
    remediation="reset-gpu", **{k: v for k, v in verdict_facts(verdict_of(time="2026-05-04T11:02:03Z")).items() if k not in ("attempt", "retry", "remediation")},
)  # fmt: skip


def test_five_lines_say_what_who_how_much_what_to_do_and_where() -> None:
    note = note_of(GPU, verdict_of(), link="https://wb.example/incident?id=train-1")

    assert note.lines == (
        "Job train (namespace ml, attempt 2) failed, 2026-05-04 11:02:03.000 UTC",
        "hardware/gpu-memory, node gpu-1, GPU 3, confidence 90 %. hardware/gpu-memory it was",
        "Affected: 512 ranks, 512 GPUs, 64 nodes, user ann, team nlp, 1,024.5 GPU-hours, cost 3,000",
        "Do: reset-gpu (gpu-1, GPU 3); retry: exclude-node; look at it",
        "https://wb.example/incident?id=train-1",
    )


def test_what_is_not_known_is_said_and_never_a_zero() -> None:
    note = note_of(Entry("x-1", None, 0.0, "slurm", "", cause="unknown", summary="The evidence does not decide"))

    assert note.lines[0].endswith("at a time not known")
    assert note.lines[1] == "Cause not known. The evidence does not decide"
    assert note.lines[2] == "Affected: not known"
    assert note.lines[4] == "workbench inbox show x-1"
    assert "0" not in note.lines[2]


def test_no_node_is_to_be_mended_that_is_not_at_fault() -> None:
    note = note_of(replace(GPU, at_fault="rank", remediation="fix-user-code"))

    assert "Do: fix-user-code; retry" in note.lines[3]


@pytest.mark.parametrize("where", ["job", "summary", "user", "team", "namespace", "problem"])
def test_hostile_text_calls_nobody_and_is_one_line(where: str) -> None:
    note = note_of(replace(GPU, **{where: HOSTILE}), {"next_steps": [HOSTILE]}, link="https://wb.example/x")
    payload = slack_payload(note)
    texts = [payload["text"], *(str(block.get("text") or block.get("elements")) for block in payload["blocks"])]

    assert len(note.lines) == 5
    assert not any("\n" in line or "\x1b" in line or "\u202e" in line for line in note.lines)
    for text in texts:
        left = text.replace("<https://wb.example/x>", "")
        assert not re.search(r"<[!@#h]", left), left
        assert not re.search(r"https?://", left), left
        assert not re.search(r"@(channel|here|all|y)", left), left
        assert "www.evil" not in left
        assert "](" not in left
    assert payload["mrkdwn"] is False
    assert payload["blocks"][0]["text"]["type"] == "plain_text", "where markup is off, nothing is bold and nothing a link"
    json.dumps(payload)


def test_secrets_in_log_lines_are_blanked() -> None:
    note = note_of(replace(GPU, summary="WANDB_API_KEY=0123456789abcdef failed", data={"x": 1}))

    assert "0123456789abcdef" not in note.text
    assert "0123456789abcdef" not in json.dumps(dict(note.entry))


def test_a_huge_line_is_cut() -> None:
    assert all(len(line) <= 400 for line in note_of(replace(GPU, summary="x" * 1_000_000)).lines)


def test_the_same_message_has_the_same_key_and_another_culprit_another() -> None:
    assert note_of(GPU).key == note_of(replace(GPU, confidence=0.5, summary="other words"), again=True).key
    assert note_of(GPU).key != note_of(replace(GPU, node="gpu-2")).key


def test_links_escape_the_id() -> None:
    assert link_of("https://wb.example/", "a-1") == "https://wb.example/incident?id=a-1"
    assert link_of("https://wb.example/x#{id}", "a&b=1") == "https://wb.example/x#a%26b%3D1"
    assert link_of("", "a") == ""


def test_a_storm_says_how_many_where_and_what_they_share() -> None:
    entries = [
        replace(
            Entry(f"j-{at}", 1.0, 1.0, "slurm", ""),
            job=f"j{at}",
            data={"failure": {"nodes": ["gpu-1", f"gpu-{at}"], "reasons": [f"Slurm: job {4000 + at} (x) ended as NODE_FAIL"]}},
        )
        for at in range(5, 45)
    ]
    note = storm_note("storm-1", 1.0, entries, queued=38, at_once=2)

    assert len(note.lines) == 5
    assert "40 failures" in note.lines[0]
    assert "40 × ended as NODE_FAIL" in note.lines[1]
    assert "gpu-1 (40)" in note.lines[1]
    assert "38 wait" in note.lines[3]


# ---- sending


class Server:
    """A receiver on loopback that answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.code, self.headers, self.wait = 200, dict[str, str](), 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({k.lower(): v for k, v in self.headers.items()}, json.loads(body)))
                time.sleep(outer.wait)
                self.send_response(outer.code)
                for key, value in outer.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/T0/secret-path"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


NOTE = note_of(GPU, verdict_of(), link="https://wb.example/incident?id=train-1")


def test_a_webhook_gets_the_lines_the_row_and_a_key(server: Server) -> None:
    Webhook(server.url, token="t0k3n").send(NOTE)
    ((headers, body),) = server.got

    assert headers["idempotency-key"] == body["key"] == NOTE.key
    assert headers["authorization"] == "Bearer t0k3n"
    assert (body["schema"], body["kind"], body["id"], body["lines"]) == (
        "workbench.note/1",
        "incident",
        "train-1",
        list(NOTE.lines),
    )
    assert body["entry"]["cls"] == "hardware/gpu-memory"
    assert "data" not in body["entry"]


def test_slack_gets_text_and_blocks(server: Server) -> None:
    Slack(server.url).send(NOTE)
    ((_, body),) = server.got

    assert body["text"].splitlines()[-1] == "<https://wb.example/incident?id=train-1>"
    assert [block["type"] for block in body["blocks"]] == ["section", "context"]


@pytest.mark.parametrize(
    ("code", "headers", "again"),
    [(429, {"Retry-After": "77"}, 77.0), (500, {}, None), (404, {}, None), (302, {"Location": "http://127.0.0.1:9/"}, None)],
)
def test_what_is_not_taken_says_so_without_the_secret(
    server: Server, code: int, headers: dict[str, str], again: float | None
) -> None:
    server.code, server.headers = code, headers
    with pytest.raises(NotTold, match=str(code)) as error:
        Slack(server.url).send(NOTE)

    assert error.value.again == again
    assert not error.value.unsure
    assert "secret" not in str(error.value)
    assert len(server.got) == 1, "a redirect is not followed: it would carry the message to somebody else"


def test_a_receiver_that_hangs_is_given_up_and_nobody_knows(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.wait = 3.0
    monkeypatch.setattr("workbench.inbox.post.post.__defaults__", (None, 0.3))
    with pytest.raises(NotTold) as error:
        Slack(server.url).send(NOTE)

    assert error.value.unsure


def test_a_receiver_that_is_not_there_surely_did_not_take_it() -> None:
    with pytest.raises(NotTold) as error:
        Slack("http://127.0.0.1:9/x").send(NOTE)

    assert not error.value.unsure


@pytest.mark.parametrize("address", ["", "ftp://x/y", "not an address", "https://user:pw@host/x", "http:///x"])
def test_an_address_that_is_none_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError) as error:
        Webhook(address)

    assert not address or address not in str(error.value)


def test_nothing_secret_is_in_the_words_for_a_way() -> None:
    assert repr(Slack("https://hooks.slack.com/services/T0/B0/secret")) == "<Slack https://hooks.slack.com>"


def test_lines_of_a_note_are_the_text() -> None:
    assert Note("a", "incident", ("one", "two"), "k").text == "one\ntwo"
