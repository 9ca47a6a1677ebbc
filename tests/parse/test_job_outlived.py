"""Lines about another way that the writer took (catalog/outlived.csv) are no cause where the job went on, and the cause where nothing came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.catalog import signatures, table
from workbench.incident import load
from workbench.model import Event, Line
from workbench.parse.job import parse_job

DATA = Path(__file__).parents[1] / "data/job"
PORT = (
    "[W1130 19:41:51.999108050 socket.cpp:525] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
    "[W1130 19:41:51.001435370 socket.cpp:525] [c10d] The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address already in use).",
    "[E1130 19:41:51.001457259 socket.cpp:561] [c10d] The server socket has failed to listen on any local network address.",
)
NAME = (
    "[W1130 19:41:51.999108050 socket.cpp:752] [c10d] The IPv6 network addresses of (node-a, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
)
STEPS = tuple(f"step {step}/12 loss 4{step}.730125" for step in range(1, 4))
BUG = (
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "/srv/job/train.py", line 135, in <module>',
    "[rank3]:     main()",
    "[rank3]: KeyError: 'labels'",
)
RAISED = (
    "Traceback (most recent call last):",
    '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 164, in _create_tcp_store',
    "    store = TCPStore(",
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
)


def causes(*lines: str, signature: str) -> list[Event]:
    """Return the events of a signature that are still taken for a cause."""
    parsed = parse_job([Line(no, line) for no, line in enumerate(lines, 1)], file="logs/job.log", year=2026)
    rows = signatures()
    events = [event for event in parsed.events if event.signature == signature]
    assert events
    return [event for event in events if (event.role or rows[event.signature].role) == "cause"]


def test_every_row_names_a_cause_of_the_catalog() -> None:
    for row in table("outlived"):
        assert signatures()[row["signature"]].role == "cause"
        assert row["phase"] in ("any", "start")
        assert row["why"]
        assert row["source"].startswith("https://")


@pytest.mark.parametrize(("said", "signature"), [(PORT, "store-port-in-use"), (NAME, "dns-failed")], ids=["port", "name"])
class TestBeforeTheFirstStep:
    def test_steps_that_follow_show_that_it_came_up_in_another_way(self, said: tuple[str, ...], signature: str) -> None:
        assert causes(*said, *STEPS, signature=signature) == []

    def test_a_rank_that_fails_in_its_own_way_was_started_all_the_same(self, said: tuple[str, ...], signature: str) -> None:
        assert causes(*said, *BUG, signature=signature) == []

    def test_it_is_the_cause_where_nothing_follows(self, said: tuple[str, ...], signature: str) -> None:
        assert causes(*said, signature=signature)

    def test_steps_of_the_start_before_say_nothing_of_this_one(self, said: tuple[str, ...], signature: str) -> None:
        again = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group"
        assert causes(*STEPS, again, *said, signature=signature)


def test_a_port_that_the_process_gave_up_over_is_the_cause_although_another_job_made_steps() -> None:
    assert causes(*PORT, *RAISED, *STEPS[:1], signature="store-port-in-use")


def test_a_port_that_a_server_beside_the_job_wanted_is_no_cause_when_the_job_goes_on() -> None:
    late = "[W1130 19:45:00.0 socket.cpp:525] [c10d] The server socket has failed to bind to [::]:6006 (errno: 98 - Address already in use)."
    assert causes(*STEPS[:2], late, *STEPS[2:], signature="store-port-in-use") == []
    assert causes(*STEPS, late, signature="store-port-in-use")


def test_a_name_that_is_not_resolved_amid_the_steps_stays_a_cause() -> None:
    """A rank that cannot reach its data may fail while another one still reports."""
    assert causes(*STEPS[:2], *NAME, *STEPS[2:], signature="dns-failed")


def test_two_agents_of_one_machine_and_a_kill_is_no_fault_of_the_port() -> None:
    """A real run (PyTorch 2.12, two agents with the same endpoint, neither told that it is the host)."""
    verdict = load(DATA / "port_taken_by_the_first_agent_then_sigkill.log").triage()
    assert verdict.cls == "unknown", verdict
    assert verdict.retry != "fix-first"
