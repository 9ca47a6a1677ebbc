"""The table of known consequences: every row speaks of signatures that exist, and takes the weight from what another explains."""

from __future__ import annotations

import pytest

from workbench.catalog import signatures, table
from workbench.model import Event, Evidence, Gpu
from workbench.triage.verdict import judge

ROWS = table("explains")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["cause"][:30])
def test_a_row_names_signatures_of_the_catalog(row: dict[str, str]) -> None:
    """A prefix that matches nothing is a typing error."""
    known = list(signatures())
    for column in ("cause", "effect"):
        for prefix in row[column].split("|"):
            if prefix not in ("node-silent", "xid-79", "xid-119", "xid-120"):  # made by rules, or one of a family
                assert any(name.startswith(prefix) for name in known), f"{column}: nothing begins with {prefix}"
    assert row["where"] in ("node", "gpu", "any")
    assert float(row["within_s"]) > 0
    assert row["why"]
    assert row["source"].startswith("https://")


def test_the_cause_of_a_lost_node_stands_before_its_loss() -> None:
    """A fatal machine check explains why the node was lost, although the platform's word is as sure."""
    events = [
        Event(
            "mce-fatal", "kernel", "mce: [Hardware Error]: Machine check: Processor context corrupt", 1000.0, "k.log", 1, "node-a"
        ),
        Event("slurm-node-fail", "slurm", "node-a failed", 1100.0, "slurmctld.log", 7, "node-a", order=1),
    ]
    verdict = judge(Evidence("x", records=events))
    assert (verdict.cls, verdict.node) == ("hardware/host", "node-a")


def test_another_nodes_trouble_explains_nothing() -> None:
    """A consequence needs its cause on the same node."""
    events = [
        Event(
            "mce-fatal", "kernel", "mce: [Hardware Error]: Machine check: Processor context corrupt", 5000.0, "k.log", 1, "node-b"
        ),
        Event("slurm-node-fail", "slurm", "node-a failed", 1000.0, "slurmctld.log", 7, "node-a", order=1),
    ]
    assert judge(Evidence("x", records=events)).cls == "platform/node-lost"


def test_links_that_go_down_with_a_lost_gpu_are_not_the_fault() -> None:
    """Xid 79 first, NVSwitch faults seconds later: the GPU was lost."""
    gpu = Gpu(pci="0000:91:00.0")
    events = [
        Event("xid-79", "kernel", "NVRM: Xid (PCI:0000:91:00): 79", 1000.0, "k.log", 1, "node-a", gpu, code=79),
        Event("sxid-20034", "kernel", "SXid: 20034, Fatal, Link 48 LTSSM Fault Up", 1012.0, "k.log", 9, "node-a", order=1, role="cause",
              cls="hardware/nvlink", weight=0.9),
    ]  # fmt: skip
    verdict = judge(Evidence("x", records=events))
    assert (verdict.cls, verdict.gpu and verdict.gpu.pci) == ("hardware/gpu-lost", "0000:91:00.0")
