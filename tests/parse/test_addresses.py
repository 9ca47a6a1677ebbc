"""Which node an address is: the word of schedulers, exporters and tables of hosts, and nothing where they disagree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workbench.incident import load
from workbench.model import Line
from workbench.parse.addresses import addresses_of, agreed, looks_like_hosts, parse_hosts
from workbench.parse.prom_labels import SampledSeries, entity_of
from workbench.sources.sniff import kind_of

HOSTS = """127.0.0.1 localhost
::1       localhost ip6-localhost
# rack 3
10.0.3.7  gpu-node-007.cluster.local gpu-node-007  # GPUs
10.0.3.8\tgpu-node-008
fd00::3:9 gpu-node-009
"""


def series(field: str, **labels: str) -> SampledSeries:
    entity = entity_of(labels)
    return SampledSeries(field, np.array([1.0]), np.array([1.0]), entity.node, labels=labels, weak_node=entity.weak)


def test_a_table_of_hosts_is_known_by_its_lines() -> None:
    lines = [Line(number, text) for number, text in enumerate(HOSTS.splitlines(), 1)]
    assert parse_hosts(lines, file="hosts").facts["host_table"] == [
        ("10.0.3.7", ("gpu-node-007.cluster.local", "gpu-node-007")),
        ("10.0.3.8", ("gpu-node-008",)),
        ("fd00::3:9", ("gpu-node-009",)),
    ]
    assert kind_of("etc/hosts", HOSTS.encode()) == "hosts"
    assert kind_of("getent.txt", b"10.0.3.7        gpu-node-007\n10.0.3.8        gpu-node-008\n") == "hosts"


@pytest.mark.parametrize(
    "text",
    [
        "12:30:01 loading data\n12:30:02 step two\n",
        "10.0.3.7 slots=8\n",
        "# only a comment\n",
        "10.0.3.7 - - [x] GET\n",
        "400.1.1.1 node\n",
    ],
)
def test_a_log_is_no_table_of_hosts(text: str) -> None:
    assert not looks_like_hosts(text.splitlines())
    assert kind_of("x.log", text.encode()) != "hosts"


def test_an_address_that_two_nodes_have_is_nobodys() -> None:
    assert agreed([("10.0.0.1", "a"), ("10.0.0.2", "b"), ("10.0.0.1", "c"), ("10.0.0.2", "b.cluster.local")]) == {"10.0.0.2": "b"}


def test_the_scheduler_s_word_goes_first_and_loopback_is_none() -> None:
    told = addresses_of(
        [
            {
                "nodes": {
                    "n1": {"addresses": ["10.0.0.1", "127.0.0.1", "n1"]},
                    "n2": {"address": "10.0.0.2"},
                    "n3": {"address": "n3-mgmt"},
                }
            },
            {"addresses": [["10.0.0.4", "n4"], "broken"], "nodes": ["n9"]},
            {"host_table": [("10.0.0.1", ("other",)), ("10.0.0.5", ("alias5", "n5")), ("10.0.0.6", ("nowhere",))]},
        ],
        [
            series("kube_node_info", node="n6", internal_ip="10.0.0.7", instance="10.9.9.9:8080"),
            series("DCGM_FI_DEV_GPU_TEMP", Hostname="n7", gpu="0", instance="10.0.0.8:9400"),
            series("DCGM_FI_DEV_GPU_TEMP", Hostname="n8", gpu="0", instance="10.0.0.9:9400"),
            series("DCGM_FI_DEV_GPU_TEMP", Hostname="n9", gpu="0", instance="10.0.0.9:9400"),  # the address of a pod that moved
        ],
        ["n5.cluster.local"],
    )
    assert told == {
        "10.0.0.1": "n1", "10.0.0.2": "n2", "n3-mgmt": "n3", "10.0.0.4": "n4", "10.0.0.5": "n5.cluster.local", "10.0.0.6": "nowhere",
        "10.0.0.7": "n6", "10.0.0.8": "n7",
    }  # fmt: skip


def test_the_scheduler_s_disagreement_is_not_settled_by_a_lesser_word() -> None:
    told = [{"nodes": {"n1": {"address": "10.0.0.1"}, "n2": {"address": "10.0.0.1"}}}, {"host_table": [("10.0.0.1", ("n1",))]}]
    assert addresses_of(told, []) == {}


OOM = "".join(
    f'node_vmstat_oom_kill{{instance="10.0.3.{host}:9100",job="node"}} {int(host == 7 and at > 5)} {1760000000000 + 30000 * at}\n'
    for host in (7, 8)
    for at in range(12)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hosts", HOSTS),
        (
            "nodes.txt",
            "NodeName=gpu-node-007 Arch=x86_64 State=IDLE NodeAddr=10.0.3.7 NodeHostName=gpu-node-007 Version=24.11.5\n",
        ),
        (
            "nodes.json",
            (
                '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-node-007"}, "status": {"capacity": {}, "nodeInfo": {},'
                ' "addresses": [{"type": "InternalIP", "address": "10.0.3.7"}]}}'
            ),
        ),
        (
            "manifest.json",
            '{"schema": "workbench.manifest/1", "scope": {"addresses": [["10.0.3.7", "gpu-node-007"]]}, "sources": []}',
        ),
        ("gpus.prom", 'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="gpu-node-007",instance="10.0.3.7:9400"} 40 1760000000000\n'),
    ],
)
def test_host_metrics_of_an_address_are_those_of_the_node(tmp_path: Path, name: str, text: str) -> None:
    """The table, the scheduler and the GPU metrics each tell in a file of their own."""
    (tmp_path / "hosts.prom").write_text(OOM)
    assert {one.node for one in load(tmp_path).series} == {"10.0.3.7", "10.0.3.8"}  # by itself it is an address
    (tmp_path / name).write_text(text)
    incident = load(tmp_path)
    hosts = {one.labels["instance"]: one.node for one in incident.series if one.field == "node_vmstat_oom_kill"}
    assert hosts["10.0.3.7:9100"] in ("gpu-node-007", "gpu-node-007.cluster.local")
    assert hosts["10.0.3.8:9100"] == ("gpu-node-008" if name == "hosts" else "10.0.3.8")
