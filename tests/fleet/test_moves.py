"""Sightings of GPUs become stretches in slots, in whatever order and however often they are told."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import exits, main
from workbench.fleet.ingest.paths import of_bytes
from workbench.fleet.ingest.told import Told, take_in
from workbench.fleet.ledger import Ledger

A, B = "GPU-1a2b3c40-9f3e-4c00-8d71-5e0fa9b2c000", "GPU-1a2b3c41-9f3e-4c01-8d71-5e0fa9b2c001"
SMI = Path("tests/data/health/healthy-smi-535-h100/smi/n01.txt")
DCGM = 'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="{uuid}",pci_bus_id="00000000:{bus}:00.0",Hostname="{node}"}} 40 {stamp}\n'


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "fleet.sqlite") as one:
        yield one


def _tell(ledger: Ledger, *sightings: tuple[str, float, str, str]) -> tuple[dict[str, int], Told]:
    told = Told()
    for uuid, time, node, slot in sightings:
        told.add("gpus", gpu_uuid=uuid, node=node, slot=slot or None, begin=time, seen=time, source="smi", recorded=time)
    return take_in(ledger, told), told


def _there(ledger: Ledger, uuid: str = A) -> list[tuple[Any, ...]]:
    return [(one["node"], one["slot"], one["begin"], one["end"], one["seen"]) for one in ledger.rows("gpus", gpu_uuid=uuid)]


def test_a_gpu_that_is_seen_elsewhere_was_moved_and_one_that_stays_is_one_stretch(ledger: Ledger) -> None:
    sightings = [(A, 10.0, "n1", "s1"), (A, 20.0, "n1", "s1"), (A, 30.0, "n2", "s4"), (A, 40.0, "n2", "")]
    assert _tell(ledger, *sightings)[0] == {"gpus": 2}
    assert _there(ledger) == [("n1", "s1", 10.0, 30.0, 20.0), ("n2", "s4", 30.0, None, 40.0)]
    assert _tell(ledger, *sightings)[0] == {"gpus": 0}  # told twice counts once


def test_a_domain_in_a_nodes_name_is_no_move(ledger: Ledger) -> None:
    _tell(ledger, (A, 10.0, "n1", "s1"), (A, 20.0, "n1.cluster.local", "s1"))
    assert _there(ledger) == [("n1", "s1", 10.0, None, 20.0)]


def test_another_gpu_in_the_slot_ends_the_stretch_of_who_was_in_it(ledger: Ledger) -> None:
    _tell(ledger, (A, 10.0, "n1", "s1"))
    _tell(ledger, (B, 20.0, "n1", "s1"))
    assert _there(ledger) == [("n1", "s1", 10.0, 20.0, 10.0)]
    assert _there(ledger, B) == [("n1", "s1", 20.0, None, 20.0)]
    _tell(ledger, (A, 50.0, "n9", "s1"))  # it came back from the shelf into another node
    assert _there(ledger) == [("n1", "s1", 10.0, 20.0, 10.0), ("n9", "s1", 50.0, None, 50.0)]


def test_two_places_at_one_moment_are_told_as_a_problem_and_one_of_them_counts(ledger: Ledger) -> None:
    _, told = _tell(ledger, (A, 10.0, "n1", "s1"), (A, 10.0, "n2", "s1"))
    assert [("same moment" in one.message) for one in told.problems] == [True]
    assert _there(ledger) == [("n1", "s1", 10.0, None, 10.0)]


@pytest.mark.parametrize("seed", range(12))
def test_the_order_of_telling_does_not_matter_once_all_was_told_twice(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    place = {uuid: (f"n{number}", "s1") for number, uuid in enumerate((A, B))}
    sightings = []
    for step in range(40):
        uuid = chance.choice((A, B))
        if chance.random() < 0.3:
            free = [(f"n{number}", slot) for number in range(3) for slot in ("s1", "s2")]
            place[uuid] = chance.choice([one for one in free if one not in place.values()])
        sightings.append((uuid, float(step + 1), *place[uuid]))
    with Ledger.open(tmp_path / "whole") as whole, Ledger.open(tmp_path / "parts") as parts:
        _tell(whole, *sightings)
        for _ in range(2):
            chance.shuffle(sightings)
            for at in range(0, len(sightings), 7):
                _tell(parts, *sightings[at : at + 7])
        truth = whole.rows("gpus")
        plain = [{name: value for name, value in one.items() if name != "recorded"} for one in truth]
        assert [{name: value for name, value in one.items() if name != "recorded"} for one in parts.rows("gpus")] == plain
        for uuid, time, node, slot in sightings:  # and at each moment that somebody looked, it is where it was seen
            there = [
                (one["node"], one["slot"])
                for one in truth
                if one["gpu_uuid"] == uuid and one["begin"] <= time and (one["end"] is None or time < one["end"])
            ]
            assert there == [(node, slot)]


def test_listings_of_nvidia_smi_and_metrics_fill_the_table_and_serials_follow_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "fleet.sqlite")
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    shutil.copy(SMI, sweep / "gpu-node-01.txt")  # 2024-03-12 09:14:02
    day = 86_400
    moved = 1_710_234_842 + 5 * day
    metrics = tmp_path / "metrics.prom"
    metrics.write_text(
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        + DCGM.format(uuid=A, bus="1B", node="n07", stamp=moved * 1000)
        + DCGM.format(uuid=B, bus="43", node="gpu-node-01", stamp=moved * 1000),
        encoding="utf-8",
    )
    assert main(["fleet", "ingest", "--ledger", file, str(sweep), "-o", "json"]) == exits.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["told"], told["changed"]) == ({"gpus": 2}, {"gpus": 2})  # and no failure is made of a listing
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(metrics.read_bytes())))
    assert main(["fleet", "ingest", "--ledger", file, "-"]) == exits.OK
    assert main(["fleet", "ingest", "--ledger", file, str(metrics), str(sweep), "-o", "json"]) == exits.OK
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["changed"] == {"gpus": 0}
    with Ledger.open(file, "ro") as ledger:
        rows = [
            (one["gpu_uuid"], one["serial"], one["node"], one["slot"], one["begin"], one["end"]) for one in ledger.rows("gpus")
        ]
    assert rows == [
        (A, "1654923000000", "gpu-node-01", "0000:1b:00.0", moved - 5 * day, moved),
        (A, None, "n07", "0000:1b:00.0", moved, None),
        (B, "1654923000001", "gpu-node-01", "0000:43:00.0", moved - 5 * day, None),
    ]


def test_gpus_whose_node_has_only_an_address_are_told_as_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = tmp_path / "metrics.prom"
    metrics.write_text(
        '# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="' + A + '",instance="10.0.0.7:9400"} 40\n',
        encoding="utf-8",
    )
    assert main(["fleet", "ingest", "--ledger", str(tmp_path / "f.sqlite"), str(metrics)]) == exits.INCOMPLETE
    assert "1 GPUs have no node's name" in capsys.readouterr().err


def test_an_incidents_own_files_say_where_its_gpus_were_unless_it_is_not_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = tmp_path / "incident"
    (incident / "smi").mkdir(parents=True)
    shutil.copy(SMI, incident / "smi" / "n01.txt")
    verdict = {"schema": "workbench.verdict/1", "class": "hardware/gpu-lost", "time": 1.71e9, "incident": "llm", "culprit": {}}
    (incident / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")
    os.utime(incident / "smi" / "n01.txt", (1.72e9, 1.72e9))
    for words, gpus in ((["--no-gpus"], 0), ([], 2)):
        assert main(["fleet", "ingest", "--ledger", str(tmp_path / "f.sqlite"), str(incident), *words]) == exits.OK
        with Ledger.open(tmp_path / "f.sqlite", "ro") as ledger:
            assert (ledger.size("gpus"), ledger.size("attempts")) == (gpus, 1)
    capsys.readouterr()


def test_device_slices_and_what_a_plugin_wrote_on_running_pods_say_where_gpus_are(ledger: Ledger) -> None:
    slices = {
        "kind": "ResourceSlice",
        "metadata": {"name": "n1-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1", "generation": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": A}, "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"}}}],
        },
    }  # fmt: skip

    def pod(name: str, phase: str, uuid: str) -> dict[str, Any]:
        notes = {"hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,4000,0:;"}
        return {"kind": "Pod", "metadata": {"name": name, "namespace": "ml", "annotations": notes},
                "spec": {"nodeName": "n2", "containers": [{"name": "main"}]}, "status": {"phase": phase}}  # fmt: skip

    gone = B[:-1] + "9"
    items = {"kind": "List", "items": [slices, pod("runs", "Running", B), pod("ended", "Succeeded", gone)]}
    take_in(ledger, of_bytes(json.dumps(items).encode(), file="k8s.json", recorded=1000.0))
    assert [(one["gpu_uuid"], one["node"], one["slot"], one["begin"]) for one in ledger.rows("gpus")] == [
        (A, "n1", "0000:1b:00.0", 1000.0),
        (B, "n2", None, 1000.0),
    ]


CSV = """timestamp, index, name, serial, uuid, pci.bus_id
2024/03/12 09:14:02.513, 0, NVIDIA H100 80GB HBM3, 1654923000000, {uuid}, 00000000:1B:00.0
"""
XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Tue Mar 12 09:14:02 2024</timestamp>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:1B:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<serial>1654923000000</serial>
		<uuid>{uuid}</uuid>
	</gpu>
</nvidia_smi_log>
"""
LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n"
PDSH = "".join(f"gpu-node-01: {line}\n" for line in SMI.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    ("name", "text", "stamped"),
    [
        ("gpu-node-01.csv", CSV, True),
        ("gpu-node-01.xml", XML, True),
        ("gpu-node-01.txt", LIST, False),
        ("sweep.txt", PDSH, True),
        ("sweep.csv", "".join(f"gpu-node-01: {line}\n" for line in CSV.splitlines()), True),
    ],
)
def test_every_form_of_nvidia_smi_tells_where_a_gpu_is_and_when_it_looked(
    tmp_path: Path, name: str, text: str, stamped: bool
) -> None:
    (tmp_path / name).write_text(text.replace("{uuid}", A), encoding="utf-8")
    os.utime(tmp_path / name, (1.72e9, 1.72e9))
    assert main(["fleet", "ingest", "--ledger", str(tmp_path / "f.sqlite"), str(tmp_path / name)]) == exits.OK
    with Ledger.open(tmp_path / "f.sqlite", "ro") as ledger:
        row = ledger.rows("gpus", gpu_uuid=A)[0]
    assert (row["node"], row["begin"]) == ("gpu-node-01", 1_710_234_842.0 if stamped else 1.72e9)
    assert (row["serial"], row["slot"]) == (("1654923000000", "0000:1b:00.0") if stamped else (None, None))
