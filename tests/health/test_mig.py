"""MIG instances are compared with what the site wants by mode, number and profile, whichever way they were told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.health.gpu_node import UUIDS, Node
from tests.nvml_fake import node as played
from workbench.health import Finding, run
from workbench.parse.mig import instances_of, layout_of
from workbench.sources.node.nvml import read_nvml

_HEAD = "node nvmlDeviceGetCount_v2 = 1\n* nvmlDeviceGetMigMode = 1 1\n* links = 0\n"


def _checked(tmp_path: Path, rules: str, mig: str) -> list[Finding]:
    scenario = tmp_path / "mig.txt"
    scenario.write_text(_HEAD + rules)
    return run(only=["modes"], seconds=20.0, world=played(scenario, tmp_path, mig=mig))


def test_the_profiles_that_the_site_wants_are_ok_and_said(tmp_path: Path) -> None:
    (finding,) = _checked(tmp_path, "0 mig-instances = 3\n0 mig-name:2 = 3g.40gb\n", "1g.10gb=2, 3g.40gb")
    assert finding.status == "ok"
    assert "3 instances (2 × 1g.10gb, 1 × 3g.40gb)" in finding.summary


@pytest.mark.parametrize(
    ("rules", "wanted", "words"),
    [
        ("0 mig-instances = 7\n", "1g.10gb=6", "7 × 1g.10gb, health.mig says 6 × 1g.10gb"),
        ("0 mig-instances = 2\n0 mig-name:1 = 2g.20gb\n", "1g.10gb=2", "1 × 1g.10gb, 1 × 2g.20gb, health.mig says 2 × 1g.10gb"),
        ("0 mig-instances = 1\n0 mig-name = 1g.10gb+me\n", "1g.10gb=1", "1 × 1g.10gb+me, health.mig says 1 × 1g.10gb"),
        ("0 mig-instances = 1\n0 mig-name = 1c.3g.40gb\n", "3g.40gb", "1 × 1c.3g.40gb, health.mig says 1 × 3g.40gb"),
        # a number that is wrong is wrong whatever an instance without a name is
        ("0 mig-instances = 2\n0 mig-name:1 code 3\n", "1g.10gb=7", "1 × 1g.10gb and 1 of an unknown profile"),
    ],
)
def test_another_layout_is_found_and_both_are_named(tmp_path: Path, rules: str, wanted: str, words: str) -> None:
    (finding,) = _checked(tmp_path, rules, wanted)
    assert (finding.code, finding.status) == ("mig-differs", "critical")
    assert words in finding.summary


def test_a_profile_that_was_not_told_is_unknown_and_never_the_wanted_one(tmp_path: Path) -> None:
    (finding,) = _checked(tmp_path, "0 mig-instances = 2\n0 mig-name:1 code 999\n", "1g.10gb=2")
    assert finding.status == "unknown"
    assert "Unknown Error" in finding.summary


def test_no_instance_is_found_before_its_profile_is_missed(tmp_path: Path) -> None:
    (finding,) = _checked(tmp_path, "0 mig-instances = 0\n", "1g.10gb=7")
    assert finding.code == "mig-empty"


@pytest.mark.parametrize("wanted", ["seven", "1g.10gb=0", "10gb", "1g.10gb=x"])
def test_a_wish_that_nobody_understands_is_unknown(tmp_path: Path, wanted: str) -> None:
    """It used to count as on, whatever it said."""
    assert [one.status for one in _checked(tmp_path, "0 mig-instances = 7\n", wanted)] == ["unknown"]


def test_a_gpu_without_mig_is_none_of_the_layout(tmp_path: Path) -> None:
    (finding,) = _checked(tmp_path, "0 nvmlDeviceGetMigMode = 0 0\n", "1g.10gb=7")
    assert (finding.code, finding.summary) == ("mig-differs", "MIG is off, health.mig says 1g.10gb=7")


def test_nvml_tells_the_profile_of_each_instance(tmp_path: Path) -> None:
    scenario = tmp_path / "mig.txt"
    scenario.write_text(_HEAD + "0 mig-instances = 2\n0 mig-name:0 = 4g.40gb\n")
    (gpu,) = read_nvml(20, env=played(scenario, tmp_path).env)["gpus"]
    assert [one["profile"] for one in gpu["mig.instances"]] == ["4g.40gb", "1g.10gb"]
    assert gpu["name"] == "NVIDIA H100 80GB HBM3"


# ---- nvidia-smi, when NVML does not answer

_XML = f"""<?xml version="1.0" ?>
<nvidia_smi_log>
\t<driver_version>570.133.20</driver_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:19:00.0">
\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
\t\t<uuid>{UUIDS[0]}</uuid>
\t\t<compute_mode>Default</compute_mode>
\t</gpu>
</nvidia_smi_log>
"""
_LIST = f"""GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUIDS[0]})
  MIG 1g.10gb     Device  0: (UUID: MIG-c1d3d074-7dc1-5e89-8a5f-6d0b08327092)
  MIG 3g.40gb     Device  1: (UUID: MIG-84e0b369-ad9b-5b84-b3e4-3d2c1a0f9e77)
"""


def _smi(node: Node, listed: str) -> None:
    node.library = ""
    node.file("bin/list.out", listed)
    node.file("bin/query.out", _XML)
    script = f"#!/bin/sh\ncase $1 in -L) exec /bin/cat '{node.tools}/list.out';; -q) exec /bin/cat '{node.tools}/query.out';; esac\nexit 1\n"
    node.file("bin/nvidia-smi", script).chmod(0o755)


@pytest.mark.parametrize(("wanted", "status"), [("1g.10gb,3g.40gb", "ok"), ("1g.10gb=7", "critical"), ("2", "ok")])
def test_without_nvml_the_list_of_nvidia_smi_tells_the_profiles(node: Node, wanted: str, status: str) -> None:
    _smi(node, _LIST)
    node.settings["mig"] = wanted
    assert [one.status for one in node.check("modes")] == [status]


@pytest.mark.parametrize("listed", ["", "garbage\n"])
def test_a_list_that_tells_nothing_is_unknown(node: Node, listed: str) -> None:
    _smi(node, listed)
    node.settings["mig"] = "1g.10gb=7"
    assert [one.status for one in node.check("modes")] == ["unknown"]


def test_lists_and_wishes_are_read_as_people_write_them() -> None:
    assert {key: [one["profile"] for one in found] for key, found in instances_of(_LIST.splitlines()).items()} == {
        UUIDS[0]: ["1g.10gb", "3g.40gb"]
    }
    assert layout_of("MIG-1g.10gb=4; 3g.40gb") == Counter({"1g.10gb": 4, "3g.40gb": 1})
    assert layout_of("7") is None
    assert layout_of("on") is None
