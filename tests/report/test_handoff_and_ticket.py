"""Five lines for the next shift, and a report with what a repairer asks for: both of the evidence, with what is not known said so."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conftest import HOSTILE, START
from workbench.errors import WorkbenchError
from workbench.incident import load
from workbench.model import Gpu
from workbench.remediation.model import Action
from workbench.report import handoff, plan, ticket
from workbench.report.machines import gpu_facts, machine_facts, people
from workbench.report.tried import tried

SAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def journal(*rows: tuple[str, str, str]) -> list[dict[str, Any]]:
    """What was done, from (kind, verb, status)."""
    entries = [
        {
            "seq": seq,
            "time": START + 60 * seq,
            "kind": kind,
            "verb": verb,
            "action": verb,
            "node": "gpu-node-017",
            "status": status,
        }
        for seq, (kind, verb, status) in enumerate(rows, 1)
    ]
    return tried(entries, {"gpu-node-017"})


class TestHandoff:
    def test_it_is_five_lines(self, document: dict[str, Any]) -> None:
        """What, why, done, next, watch: each one line that fits a chat."""
        text = handoff.text(
            [handoff.handoff(document, job={"id": "4711"}, done=journal(("intent", "cordon", ""), ("outcome", "cordon", "done")))]
        )

        lines = text.splitlines()
        assert [line.split(":")[0] for line in lines] == ["What", "Why", "Done", "Next", "Watch"]
        assert all(len(line) <= 230 for line in lines)
        assert "4711: hardware/gpu-memory (97 %), gpu-node-017" in lines[0]
        assert "cordon done" in lines[2]
        assert not SAFE.search(text)

    def test_what_has_no_end_is_watched(self, document: dict[str, Any]) -> None:
        """A reset that nobody saw end is the first thing to know."""
        made = handoff.handoff(document, done=journal(("intent", "reset-gpu", "")))

        assert "reset-gpu goes on" in made.done
        assert made.watch.startswith("reset the GPU on gpu-node-017 has no end yet")
        assert made.open

    def test_no_journal_is_not_nothing_done(self, document: dict[str, Any]) -> None:
        """Not looked is not empty."""
        assert handoff.handoff(document).done == "no journal of remediation was given"
        assert handoff.handoff(document, done=[]).done == "nothing is in the journal"

    def test_several_are_a_list_that_counts_what_is_open(self, document: dict[str, Any]) -> None:
        """Resolved ones are not."""
        items = [handoff.handoff(document), handoff.handoff(document, state="resolved")]

        assert handoff.text(items).startswith("2 incidents, 1 of them with something left to do")
        assert handoff.markdown(items).count("- **What:**") == 2
        assert [one["open"] for one in handoff.to_dict(items)["incidents"]] == [True, False]

    def test_hostile_text_is_one_harmless_line(self, document: dict[str, Any]) -> None:
        """Whatever a log put into a name."""
        document["summary"] = document["incident"] = document["culprit"]["node"] = HOSTILE + "\nsecond"
        items = [handoff.handoff(document, job={"id": HOSTILE})]

        assert not SAFE.search(handoff.text(items))
        assert len(handoff.text(items).splitlines()) == 5
        assert "<script>" not in re.sub(r"\\<", "", handoff.markdown(items))


class TestTicket:
    def test_a_provider_gets_what_providers_ask_for(self, document: dict[str, Any]) -> None:
        """Node, UUID, serial, address, boot, versions, the lines as they were with time, what was tried, what is asked for."""
        machine = {"boot": "1f0c", "booted": START - 86400, "driver": "570.133.20", "kernel": "6.8", "provider": "aws:///i-0a1b"}
        gpu = {**document["culprit"]["gpu"], "serial": "1650000000001", "vbios": "96.00.74.00.1C"}
        report = ticket.of_verdict(
            document,
            to="provider",
            machine=machine,
            gpu=gpu,
            done=journal(("intent", "reset-gpu", ""), ("outcome", "reset-gpu", "failed")),
        )
        text = ticket.markdown(report)

        for words in (
            "gpu-node-017", "GPU-8f1c0a52", "1650000000001", "0000:3b:00.0", "96.00.74.00.1C", "570.133.20", "aws:///i-0a1b", "1f0c since",
            "kernel/gpu-node-017.log:812", "2026-05-04T11:02:03.120Z", "reset the GPU: failed", "What is asked for",
        ):  # fmt: skip
            assert words in text, words
        assert not SAFE.search(text)

    def test_a_provider_learns_nothing_of_what_ran(self, document: dict[str, Any]) -> None:
        """Neither job nor ranks, nor lines of its log; that lines were left out is said."""
        report = ticket.of_verdict(document, to="provider", job={"id": "4711", "name": "secret-model"})
        text = ticket.markdown(report) + str(report.to_dict())

        assert "4711" not in text
        assert "secret-model" not in text
        assert "remote peer" not in text
        assert "left out" in text

    def test_own_people_get_the_job_and_what_is_not_sure(self, document: dict[str, Any]) -> None:
        """Victims, what speaks against, what could not be seen."""
        text = ticket.markdown(
            ticket.of_verdict(document, to="internal", job={"id": "4711", "start": START - 60, "end": START + 60})
        )

        for words in ("4711", "rank 27", "Only victims", "Speaks against it", "Not seen", "no DCGM metrics"):
            assert words in text

    @pytest.mark.parametrize(("cause", "cls"), [("user", "user/hang"), ("none", "none")])
    def test_there_is_nothing_for_a_provider_in_a_fault_of_the_job(self, document: dict[str, Any], cause: str, cls: str) -> None:
        """It says why, and who else may read it."""
        document |= {"cause": cause, "class": cls}

        with pytest.raises(WorkbenchError) as caught:
            ticket.of_verdict(document, to="provider")
        assert "internal" in caught.value.hint
        assert ticket.of_verdict(document, to="internal").title

    def test_what_is_not_known_is_listed_with_where_to_read_it(self, document: dict[str, Any]) -> None:
        """In the text and for machines."""
        report = ticket.of_verdict(document, to="provider")

        assert {"what": "GPU serial", "ask": "nvidia-smi -q -i INDEX, line Serial Number"} in report.missing()
        assert "| GPU serial | not known" in ticket.markdown(report)

    def test_an_action_and_an_incident_share_one_builder(self) -> None:
        """The executor's text is made of the same pieces."""
        action = Action(
            "ab12", "ticket", "report", "n1", gpu=Gpu(3, "GPU-1", "0000:3b:00.0"), why="three resets did not help",
            args={"class": "hardware/gpu-memory", "code": "xid-48", "since": START, "sku": "H100", "boot": "b",
                  "evidence": [{"time": START, "source": "kernel", "text": HOSTILE, "file": "kernel/n1.log:3"}]},
        )  # fmt: skip
        text = plan.ticket(action)

        assert text == ticket.markdown(ticket.of_action(action))
        for words in ("n1", "GPU-1", "xid-48", "kernel/n1.log:3", "three resets did not help", "`ab12`", "not known"):
            assert words in text
        assert "What was tried" not in text  # nobody looked: nothing is said
        assert not SAFE.search(text)


class TestMachine:
    def test_serial_and_vbios_come_from_the_evidence(self, root: Any) -> None:
        """Of the GPU that has this address on this node."""
        incident = load(root / "tests" / "data" / "health" / "memory-errors-under-mig")

        told = gpu_facts(incident, "n01", {"index": None, "uuid": None, "pci": "0000:43:00.0"})

        assert (told["serial"], told["vbios"], told["part"]) == ("1654923000001", "96.00.A5.00.01", "2335-885-A1")
        assert "serial" not in gpu_facts(incident, "n02", {"index": None, "uuid": None, "pci": "0000:43:00.0"})

    def test_a_serial_is_never_taken_of_another_gpu(self, root: Any) -> None:
        """An index alone decides only where nothing contradicts: a wrong serial number sends back a healthy part."""
        incident = load(root / "tests" / "data" / "health" / "memory-errors-under-mig")

        told = gpu_facts(incident, "n01", {"index": 0, "uuid": "GPU-00000000-0000-0000-0000-000000000000", "pci": None})

        assert "serial" not in told

    def test_the_boot_is_the_one_before_the_fault(self) -> None:
        """And the driver that ran then."""
        from workbench.shipped import load_example

        incident = load_example("gpu-memory")
        told = machine_facts(incident, "gpu-node-054", before=1747301179.0)

        assert told["driver"] == "550.127.05"
        assert told["boot"] == "e48ea6c7-77a7-41db-95d8-c4dc85536b3f"
        assert told["booted"] < 1747301179.0
        assert machine_facts(incident, None) == {}

    def test_accounts_are_known_so_that_they_can_be_hidden(self) -> None:
        """Of the job and of others on its nodes."""
        from workbench.shipped import load_example

        assert people(load_example("preempted")) == ["u1035", "u1657"]
