"""Each scenario of tests/data/nvml, played by a libnvidia-ml of our own, gives the findings that it says; a new file is a new test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nvml_fake import SCENARIOS, library, lines, node
from workbench.health import Finding, checks, run
from workbench.sources.node.nvml import read_nvml

NAMES = sorted(path.stem for path in SCENARIOS.glob("*.txt"))
# the judges that ask nothing but NVML and the PCI bus, for which every scenario must say what they find
_JUDGED = {"driver", "gpu-count", "gpu-memory"}


def _said(findings: list[Finding], check: str) -> Iterator[str]:
    """The codes of a check with the GPU each speaks of; ok, or not-applicable, when there is nothing else."""
    mine = [one for one in findings if one.check == check]
    bad = [one for one in mine if one.status not in ("ok", "not-applicable")]
    if not bad:
        yield "ok" if any(one.status == "ok" for one in mine) else "not-applicable"
    for one in bad:
        yield one.code if one.gpu is None or one.gpu.index is None else f"{one.code} {one.gpu.index}"


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_gives_the_findings_that_it_says(name: str, tmp_path: Path) -> None:
    """A line ``expect CHECK CODE [GPU]`` for each finding, or ``expect CHECK ok``; a check of which it says nothing is not looked at."""
    expected: dict[str, list[str]] = {}
    for _, check, *words in (line for line in lines(SCENARIOS / f"{name}.txt") if line[0] == "expect"):
        expected.setdefault(check, []).append(" ".join(words))
    assert expected.keys() >= _JUDGED
    hangs = "hang" in name
    findings = run(only=sorted(expected), seconds=3.0 if hangs else 20.0, world=node(SCENARIOS / f"{name}.txt", tmp_path))

    for check, codes in expected.items():
        assert sorted(_said(findings, check)) == sorted(codes), [one.summary for one in findings if one.check == check]


def test_no_scenario_makes_a_check_fail_itself(tmp_path: Path) -> None:
    """Whatever a driver answers, a judge that stumbles over it is a defect of ours."""
    passive = [one.id for one in checks().values() if "running" in one.contexts and {"nvml", "gpus"} & {*one.needs, *one.wants}]
    for name in NAMES:
        if "hang" in name:
            continue
        (folder := tmp_path / name).mkdir()
        findings = run(only=passive, world=node(SCENARIOS / f"{name}.txt", folder, gpus=8))
        assert [one.summary for one in findings if one.code == "check-failed"] == [], name


CODES = (1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 25, 999)


@pytest.mark.parametrize("code", CODES)
def test_every_return_code_of_every_function_is_an_answer(code: int, tmp_path: Path) -> None:
    """A GPU whose every call fails with one code: the document is whole, each value is null with the code, and nothing is ok of it."""
    scenario = tmp_path / "code.txt"
    scenario.write_text(f"3 * code {code}\n3 nvmlDeviceGetHandleByIndex_v2 healthy\n3 nvmlDeviceGetPciInfo_v3 healthy\n")
    world = node(scenario, tmp_path)
    document = read_nvml(20, env=world.env)

    assert document["ending"] == "whole"
    gpu = document["gpus"][3]
    said = {key: reason["code"] for key, reason in gpu["why_not"].items()}
    if code == 15:  # after three of them a lost GPU is asked no more
        assert set(said.values()) == {15}
    else:
        assert set(said.values()) <= {code, 13}  # 13: what falls back on a second call says that of the first
        assert len(said) > 30
    findings = run(only=["gpu-memory"], world=world)
    (mine,) = [one for one in findings if one.gpu and one.gpu.index == 3]
    assert mine.status in (("not-applicable",) if code in (3, 13) else ("unknown", "critical"))


def test_an_old_library_lacks_the_symbols_for_real(tmp_path: Path) -> None:
    old = library(frozenset({"nvmlDeviceGetRemappedRows", "nvmlDeviceGetGpuFabricInfoV"}))
    names = ["nvmlDeviceGetRemappedRows", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo", "nvmlInitWithFlags"]
    code = f"import ctypes, json; n = ctypes.CDLL('{old}/libnvidia-ml.so.1'); print(json.dumps([hasattr(n, s) for s in {names}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [False, False, True, True]


def test_values_change_while_they_are_read(tmp_path: Path) -> None:
    scenario = tmp_path / "grows.txt"
    scenario.write_text("0 nvmlDeviceGetNvLinkErrorCounter = 1 ; = 2 ; = 3\n1 nvmlDeviceGetSerial pass 1 ; = 7\n")
    gpus = read_nvml(20, env=node(scenario, tmp_path).env)["gpus"]

    first = gpus[0]["nvlink"][0]
    assert [first[key] for key in ("replay_errors", "recovery_errors", "crc_flit_errors", "crc_data_errors")] == [1, 2, 3, 3]
    assert gpus[0]["nvlink"][17]["replay_errors"] == 3
    assert gpus[1]["serial"] == "1650000000001"


def test_all_that_the_reader_asks_is_played() -> None:
    """A function that the reader asks and the library lacks would be tested by nobody."""
    import re

    asked = set(
        re.findall(r'"(nvml(?:Device|System)\w+)"', Path(read_nvml.__code__.co_filename).with_name("nvml_child.py").read_text())
    )
    played = set(
        re.findall(
            r"\b(nvml(?:Device|System)\w+?)(?:_v[23])?\b", (SCENARIOS.parents[1] / "services/nvml/fake_nvml.c").read_text()
        )
    )
    assert {name.removesuffix("_v2").removesuffix("_v3") for name in asked} <= played


def test_an_old_driver_tells_its_processes_in_the_old_way(tmp_path: Path) -> None:
    gpus = read_nvml(20, env=node(SCENARIOS / "old-driver-450.txt", tmp_path).env)["gpus"]
    assert gpus[0]["processes"] == [{"pid": 4711, "type": "C", "memory": 1 << 30}]
    assert gpus[1]["processes"] == []
