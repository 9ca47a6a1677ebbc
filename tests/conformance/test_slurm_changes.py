"""What changes nodes in the shipped Slurm does what it does in the real one: the same commands in the same order, the same node after each."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.shapes import DATA
from workbench.parse.slurm_scontrol import show_records
from workbench.parse.slurm_words import local_epoch
from workbench.testing.slurm import Slurm as Fake
from workbench.testing.slurm_commands import answer, changing

RECORDED = DATA / "slurm-changes.json"
NODE = "gpu-node-001"
_SHOW = ("scontrol", "show", "node", NODE)
_DRAIN = ("scontrol", "update", f"nodename={NODE}", "state=drain")
_SQUEUE = ("squeue", "-h", "-a", "-t", "CF,R,CG,S,ST,SI,SO,RS", "-o", "<mark>%A|%u|%t|%D|%N|%b|%j")
# each is followed by a look at the node; {job} is the job that was handed in
STEPS: tuple[tuple[str, ...], ...] = (
    _SHOW,
    ("scontrol", "update", f"nodename={NODE}", "state=resume"),
    _DRAIN,
    (*_DRAIN, "reason="),
    (*_DRAIN, 'reason=gpu-workbench:a1 until 2026-12-01T00:00Z: [node] xid-79: it\'s "off" the bus = gone'),
    (*_DRAIN, "reason=gpu-workbench:a2: another"),
    ("scontrol", "update", f"nodename={NODE}", "reason=bob: mine"),
    ("scontrol", "update", f"nodename={NODE}", "state=undrain"),
    ("scontrol", "update", f"nodename={NODE}", "state=undrain"),
    ("scontrol", "update", f"nodename={NODE}", "reason=of nobody's restriction"),
    (*_DRAIN, "reason=x"),
    ("scontrol", "update", f"nodename={NODE}", "state=resume", "reason=kept?"),
    ("scontrol", "update", f"nodename={NODE}", "state=down", "reason=bob swaps a dimm"),
    (*_DRAIN, "reason=gpu-workbench:a3: on top"),
    ("scontrol", "update", f"nodename={NODE}", "state=undrain"),
    (*_DRAIN, "reason=gpu-workbench:a4: on top"),
    ("scontrol", "update", f"nodename={NODE}", "state=undrain", "reason=Not responding"),
    ("scontrol", "update", f"nodename={NODE}", "state=resume"),
    ("scontrol", "update", f"nodename={NODE}", "state=down"),
    ("scontrol", "update", f"nodename={NODE}", "state=fail", "reason=bob"),
    ("scontrol", "update", f"nodename={NODE}", "state=resume"),
    ("scontrol", "update", f"nodename={NODE}", "state=asleep", "reason=x"),
    ("scontrol", "update", "nodename=nobody", "state=drain", "reason=x"),
    ("scontrol", "reboot", "nobody"),
    ("scontrol", "show", "node", "nobody"),
    ("squeue", "-h", "-w", "nobody", "-o", "%A"),
    _SQUEUE,
    ("submit",),
    _SQUEUE,
    (*_SQUEUE, "-w", "gpu-node-002"),
    (*_DRAIN, "reason=gpu-workbench:a5: while it runs"),
    ("end",),
    ("scontrol", "reboot", "reason=gpu-workbench:a5 reboot a6: now", NODE),
    ("rebooted",),
    ("scontrol", "update", f"nodename={NODE}", "state=undrain"),
)  # fmt: skip


class Site:
    """A cluster that the steps are made on."""

    def __init__(self) -> None:
        self.boot = self.job = ""

    def command(self, words: tuple[str, ...]) -> tuple[int, str, str]:
        raise NotImplementedError

    def submit(self) -> str:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def record(self) -> dict[str, str]:
        return show_records(self.command(_SHOW)[1])[0]

    def node(self) -> dict[str, Any]:
        """Return what the node is like once it has told its boot again; how long that takes is the machine's affair."""
        end = time.monotonic() + 60
        while (record := self.record())["BootTime"] == "None" or "NOT_RESPONDING" in record["State"]:
            assert time.monotonic() < end, record
            time.sleep(0.2)
        reason = re.sub(r"@\d{4}-[\dT:-]+\]", "@…]", record.get("Reason", ""))
        # slurmd counts it back from the uptime each time it registers: it moves by a second
        now, then = local_epoch(record["BootTime"]), local_epoch(self.boot)
        assert now is not None
        assert then is not None
        return {"State": record["State"], "Reason": reason, "same boot": abs(now - then) <= 5}

    def play(self) -> list[dict[str, Any]]:
        self.boot = self.record()["BootTime"]
        told = []
        for words in STEPS:
            code, out, err = 0, "", ""
            if words == ("submit",):
                self.job = self.submit()
                self._until("MIXED")
            elif words == ("end",):
                self.end()
                self._until("IDLE+DRAIN")
            elif words == ("rebooted",):
                self._until("IDLE+DRAIN")
            else:
                code, out, err = self.command(words)
            out = out.replace(self.job, "JOB") if self.job and words[0] == "squeue" else out if words[0] == "squeue" else ""
            told.append({"asked": " ".join(words), "code": code, "out": out, "err": err, "node": self.node_now(words)})
        return told

    def node_now(self, words: tuple[str, ...]) -> dict[str, Any]:
        """A reboot goes on while it is looked at: only the reason is sure."""
        if words[:2] == ("scontrol", "reboot") and words[-1] == NODE:
            return {"Reason": self.node_reason()}
        return self.node()

    def node_reason(self) -> str:
        return re.sub(r"@\d{4}-[\dT:-]+\]", "@…]", self.record().get("Reason", "")).replace(" : reboot issued", "")

    def _until(self, state: str) -> None:
        end = time.monotonic() + 240  # a reboot on a machine that builds and runs other servers
        while self.record()["State"] != state:
            assert time.monotonic() < end, self.record()
            time.sleep(0.2)


class FakeSite(Site):
    """The shipped commands."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = Fake(nodes=[NODE, "gpu-node-002"]).install(folder) / ".state.json"

    def command(self, words: tuple[str, ...]) -> tuple[int, str, str]:
        return answer(self.file, words[0], list(words[1:]))

    def submit(self) -> str:
        job = {"id": "4711", "user": "root", "state": "R", "start": "2026-11-30T05:00:00", "nodes": [NODE], "name": NAME}
        with changing(self.file) as state:
            state["queue"] = [{**job, "gres": "gres:gpu:h100:2", "used": 2}]
        return "4711"

    def end(self) -> None:
        with changing(self.file) as state:
            state["queue"] = []


NAME = "a|b\n<mark>999|root|R|1|gpu-node-002|N/A|forged"


def real(place: Path) -> Iterator[Site]:
    """The real commands."""
    from tests.live.slurm_cluster import started

    with started(2) as cluster:

        class RealSite(Site):
            def command(self, words: tuple[str, ...]) -> tuple[int, str, str]:
                ran = cluster.run(words, seconds=60.0)
                return ran.code or 0, ran.text, ran.err.decode()

            def submit(self) -> str:
                return cluster.submit(NODE, NAME)

            def end(self) -> None:
                cluster.end(self.job)

        yield RealSite()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.live)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "fake":
        yield FakeSite(tmp_path / "bin")
    else:
        yield from real(tmp_path)


def test_the_same_steps_lead_to_the_same_node(site: Site) -> None:
    told = site.play()
    if not isinstance(site, FakeSite) and os.environ.get("WORKBENCH_RECORD"):
        RECORDED.write_text(json.dumps(told, indent=1, ensure_ascii=True) + "\n")
    expected = json.loads(RECORDED.read_text())
    differ = [(real, mine) for real, mine in zip(expected, told, strict=True) if real != mine]
    assert differ == []
