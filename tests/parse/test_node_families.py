"""Families of node and platform messages: each spelling gets its class, role, node and GPU."""

from __future__ import annotations

import pytest

from workbench.catalog import signatures
from workbench.model import Event, Gpu, Line, Parsed
from workbench.parse.fabric_manager import parse_fabric_manager
from workbench.parse.kernel import parse_kernel
from workbench.parse.kubernetes import parse_objects
from workbench.parse.kubernetes_loose import bare_event, bare_pod, reason_of
from workbench.parse.kubernetes_reasons import classify
from workbench.parse.kubernetes_text import parse_describe
from workbench.parse.slurm_log import parse_slurm_log
from workbench.parse.slurm_words import reason_meaning
from workbench.parse.smi import parse_smi
from workbench.sources.naming import node_of
from workbench.sources.sniff import kind_of


def lines(text: str) -> list[Line]:
    return [Line(number, row) for number, row in enumerate(text.splitlines(), 1)]


def kernel(text: str) -> list[Event]:
    rows = "\n".join(f"[  12.{number:06d}] {row}" for number, row in enumerate(text.splitlines()))
    return parse_kernel(lines(rows), file="k", node="gpu-7").events


def smi(text: str, node: str | None = "gpu-7") -> Parsed:
    return parse_smi(lines(text), file="smi/x.txt", node=node)


def judged(event: Event) -> tuple[str, str]:
    row = signatures()[event.signature]
    return event.role or row.role, event.cls or row.cls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
            ("cause", "driver/version-mismatch"),
        ),
        ("nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)", ("context", "driver/other")),
        ("nvme 0000:04:00.0: Refused to change power state, currently in D3", ("context", "hardware/host")),
        ("mlx5_core 0000:18:00.0: Unable to change power state from D3cold to D0", ("context", "hardware/network-link")),
        ("nvidia 0000:9b:00.0: not ready 65535ms after bus reset; giving up", ("cause", "hardware/gpu-lost")),
        ("nvme 0000:04:00.0: not ready 65535ms after FLR; giving up", ("cause", "hardware/host")),
        ("pci 0000:9b:00.0: [10de:2330] type 7f class 0xffffff", ("cause", "hardware/gpu-lost")),
        ("bnxt_en 0000:18:00.0 ens1np0: Error (timeout: 500015) msg {0x90 0x1} len:0", ("cause", "hardware/network-link")),
        ("ice 0000:18:00.0 eth0: tx_timeout: VSI_num: 12, Q 4, NTC: 0x0", ("cause", "hardware/network-link")),
        ("NETDEV WATCHDOG: CPU: 12: transmit queue 12 timed out 5104 ms", ("cause", "hardware/network-link")),
        ("ceph: [8f2c 12345]: mds0 hung", ("cause", "platform/storage")),
        ("mce: [Hardware Error]: Machine check: Action required: data load in error", ("cause", "hardware/host")),
        ("NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out", ("cause", "driver/hang")),
        ("nvidia 0000:3b:00.0: probe with driver nvidia failed with error -1", ("symptom", "driver/missing")),
    ],
)
def test_kernel_messages(text: str, expected: tuple[str, str]) -> None:
    (event,) = kernel(text)
    assert judged(event) == expected


def test_a_failed_start_of_the_gsp_gets_the_gpu_named_beside_it() -> None:
    events = kernel(
        "NVRM: kfspDumpDebugState_GH100: GPU 0000:01:00\n"
        "NVRM: nvCheckOkFailedNoLog: Check failed: Ran out of a critical resource [NV_ERR_INSUFFICIENT_RESOURCES] (0x0000001A) "
        "returned from kfspSendBootCommands_HAL(pGpu, pKernelFsp) @ kernel_gsp_gh100.c:756\n"
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x1a:1792)"
    )
    assert (events[0].signature, events[0].gpu) == ("gsp-boot-failed", Gpu(pci="0000:01:00.0"))
    two = kernel(
        "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x1a:1792)\n"
        "NVRM: kfspPollForQueueEmpty_IMPL: Timed out waiting for FSP command queue to be empty.\n"
        "NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x62:0x1a:1792)"
    )
    assert two[1].gpu is None


def test_a_stuck_processor_is_judged_by_its_stack() -> None:
    head = "watchdog: BUG: soft lockup - CPU#37 stuck for {}s! [mksquashfs:1880213]\n"
    frames = "RIP: 0010:{}\nCall Trace:\n {}\n"
    stuck = head.format(26) + frames.format(
        "native_queued_spin_lock_slowpath+0x2c6/0x300", "nfs_page_async_flush+0x1d/0x1e0 [nfs]"
    )
    assert [judged(event)[1] for event in kernel(stuck + head.format(52))] == ["platform/storage"] * 2
    port = head.format(63) + frames.format("mlx5e_poll_ico_cq+0x1a4/0x4f0 [mlx5_core]", "mlx5e_napi_poll+0x17b/0x790 [mlx5_core]")
    assert judged(kernel(port)[0])[1] == "driver/hang"
    assert judged(kernel(head.format(26))[0])[1] == "hardware/host"


def test_a_record_kept_over_the_reboot_has_no_time() -> None:
    text = (
        "Sep 20 04:02:53 node-a kernel: BERT: Error records from previous boot:\n"
        "Sep 20 04:02:53 node-a kernel: [Hardware Error]: event severity: fatal\n"
        "Sep 20 04:02:53 node-a kernel: [Hardware Error]:   section_type: PCIe error\n"
    )
    (event,) = parse_kernel(lines(text), file="k", reference=1758340000.0).events
    assert (event.signature, event.cls, event.time, event.node) == ("ghes-fatal", "hardware/pcie", None, "node-a")
    assert event.data["previous_boot"]
    assert event.data["found"]


def test_gpu_burn_names_the_gpu_that_computes_wrongly() -> None:
    text = (
        "10.0%  proc'd: 612 (30412 Gflop/s) - 612 (30388 Gflop/s)   errors: 0 - 0   temps: 61 C - 63 C\n"
        "41.3%  proc'd: 2652 (30291 Gflop/s) - 2652 (30266 Gflop/s)   errors: 0 - 1481  (WARNING!)   temps: 72 C - 73 C\n"
        "Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n"
    )
    events = smi(text).events
    assert {(event.signature, event.gpu) for event in events} == {("burn-wrong-results", Gpu(index=1))}
    assert kind_of("smi/gpu-7-gpu-burn.txt", text.encode()) == "smi"
    assert smi("[03/01/2026 10:00:00][gpu-7][3]:ERROR: 12 errors found in block 3").events[0].gpu == Gpu(index=3)


def test_a_query_loop_shows_heat_that_costs_clock() -> None:
    head = "timestamp, index, temperature.gpu, clocks.sm [MHz], clocks_event_reasons.sw_thermal_slowdown\n"
    rows = "2026/04/09 18:40:00.012, 0, 71, 2610 MHz, Not Active\n2026/04/09 18:50:00.012, 0, 92, {} MHz, Active\n"
    assert kind_of("x.csv", (head + rows).encode()) == "smi"
    (slow,) = smi(head + rows.format(1642)).events
    (mild,) = smi(head + rows.format(2400)).events
    assert (judged(slow), judged(mild)[0]) == (("cause", "hardware/thermal-power"), "context")


def test_a_banner_of_a_script_names_the_node() -> None:
    text = "===== gpu-9 | after | 2026-08-13T08:41:07Z =====\n$ nvidia-smi nvlink -e\nGPU 1: NVIDIA GB300\n\t Link 11: Replay Errors: 48213\n"
    (event,) = smi(text, None).events
    assert (event.node, event.gpu) == ("gpu-9", Gpu(index=1))
    assert node_of("smi/node-a-before.out", "smi") == node_of("smi/node-a-gpu-burn.txt", "smi") == "node-a"


def test_errors_of_an_imex_log_are_the_imex_services() -> None:
    error = "[Mar 21 2025 20:45:38] [ERROR] [tid 39] No matching network interface found for any IP addresses\n"
    imex = parse_fabric_manager(lines("IMEX Log initializing at: 3/21/2025 20:45:38.937\n" + error), file="x").events
    assert [event.signature for event in imex] == ["fm-imex"]
    assert [event.signature for event in parse_fabric_manager(lines(error), file="x").events] == ["fm-error"]


def test_a_node_that_the_cloud_does_not_give_cannot_fail() -> None:
    parsed = parse_slurm_log(
        lines(
            "[2026-03-01T10:00:44.715] sched: Allocate JobId=10 NodeList=gpu-dy-1 #CPUs=1 Partition=gpu\n"
            "[2026-03-01T10:00:46.905] update_node: node gpu-dy-1 reason set to: (Code:InsufficientInstanceCapacity)Failure when resuming nodes\n"
            "[2026-03-01T10:00:46.905] requeue job JobId=10 due to failure of node gpu-dy-1\n"
        ),
        file="x",
    )
    found = {event.signature: event for event in parsed.events}
    assert judged(found["slurm-no-capacity"]) == ("cause", "platform/scheduler")
    assert found["slurm-no-capacity"].node is None
    assert judged(found["slurm-node-fail-ctld"])[0] == "symptom"
    assert [(job.state, job.start, job.nodes) for job in parsed.jobs] == [("PENDING", None, [])]


@pytest.mark.parametrize(
    ("reason", "cls", "gpu"),
    [
        ("XID 79 on GPU 3", "hardware/gpu-lost", 3),
        ("Xid 94 GPU2", "hardware/gpu-memory", 2),
        ("Row remap failure on GPU 1", "hardware/gpu-memory", 1),
        ("memory DIMM_A3 uncorrectable errors", "hardware/host", None),
        ("PCIe link width x8 on GPU 5", "hardware/pcie", 5),
        ("disk failure nvme2", "hardware/host", None),
    ],
)
def test_reasons_of_drained_nodes(reason: str, cls: str, gpu: int | None) -> None:
    meaning = reason_meaning(reason)
    assert (meaning["cls"], meaning["role"]) == (cls, "cause")
    assert (meaning["gpu"].index if "gpu" in meaning else None) == gpu


def test_planned_work_stays_context() -> None:
    assert reason_meaning("thermal paste replacement planned")["signature"] == "slurm-drain-admin"
    assert reason_meaning("spot instance interrupted")["signature"] == "slurm-node-reclaimed"


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("EvictedByEvictionAPI", "Evicted", ("cause", "platform/preemption")),
        ("EvictedDueToClusterQueueStopped", "The ClusterQueue is stopped", ("cause", "platform/preemption")),
        ("NotEnoughResources", "pod group job-1 lacks resources", ("cause", "platform/scheduler")),
        ("FailedCreate", 'Error creating: pods "x" is forbidden: exceeded quota: gpu', ("cause", "platform/scheduler")),
        ("NvidiaDoubleBitError", "DBE on GPU 2", ("cause", "hardware/gpu-memory")),
        ("MaintenanceEvent", "TERMINATE_ON_HOST_MAINTENANCE", ("cause", "platform/preemption")),
    ],
)
def test_reasons_of_kubernetes(reason: str, message: str, expected: tuple[str, str]) -> None:
    meaning = classify(reason, message)
    assert meaning is not None
    assert judged(meaning.apply(Event(meaning.signature, "kubernetes"))) == expected


def test_a_volume_that_only_took_long_weighs_less_than_one_that_says_why() -> None:
    late = classify("FailedMount", 'MountVolume.MountDevice failed for volume "d" : rpc error: code = DeadlineExceeded')
    why = classify("FailedMount", 'MountVolume.SetUp failed for volume "d" : mount failed: exit status 32 Connection timed out')
    assert late is not None
    assert late.weight == 0.6
    assert why is not None
    assert why.weight is None


def test_a_monitors_event_that_takes_the_gpu_out_of_service_is_a_cause() -> None:
    text = "ErrorCode:{} GPU:1 PCI:0002:00:00.0 Recommended Action={};"
    grave = classify(
        "GpuMemWatchIsNotHealthy", text.format("DCGM_FR_UNCONTAINED_ERROR", "COMPONENT_RESET"), severity="GpuMemWatch"
    )
    mild = classify("GpuMemWatchIsNotHealthy", text.format("DCGM_FR_UNCONTAINED_ERROR", "NONE"), severity="GpuMemWatch")
    assert grave is not None
    assert (grave.role, grave.cls) == ("cause", "hardware/gpu-memory")
    assert mild is not None
    assert mild.role == "context"


def test_a_gang_that_finds_no_place() -> None:
    group = {
        "kind": "PodGroup",
        "metadata": {"name": "job", "creationTimestamp": "2022-01-14T06:40:11Z"},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "2/2 tasks in gang"}
            ],
        },
    }
    load = {
        "kind": "Workload",
        "metadata": {"name": "job-2"},
        "status": {
            "conditions": [
                {
                    "type": "QuotaReserved",
                    "status": "False",
                    "reason": "Pending",
                    "message": "couldn't assign flavors to pod set main",
                }
            ]
        },
    }
    parsed = parse_objects([group, load], file="x")
    assert [event.signature for event in parsed.events] == ["k8s-gang-waiting"] * 2
    assert parsed.jobs[0].start is None


def test_last_words_of_a_container_are_read() -> None:
    words = "tensor = gather()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.07 GiB. GPU 5 has a total capacity of 79 GiB"
    ended = {"reason": "Error", "exitCode": 1, "message": words}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"nodeName": "gpu-7"},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]},
    }
    describe = (
        "Name:  p\nNamespace:  train\nNode:  gpu-7/10.0.0.1\nContainers:\n  main:\n    State:  Terminated\n      Reason:  Error\n"
        "      Message:  " + words + "\n      Exit Code:  1\nEvents:  <none>\n"
    )
    for parsed in (parse_objects([pod], file="x"), parse_describe(lines(describe), file="x")):
        events = [event for event in parsed.events if judged(event) == ("cause", "user/gpu-oom")]
        assert [event.node for event in events] == ["gpu-7"]


def test_rows_without_a_header() -> None:
    row = "nvidia-cuda-validator-rwl6b     0/1   Init:CrashLoopBackOff   12 (2m ago)     39m   10.0.1.7   node-a"
    assert bare_pod(row) == {
        "NAME": "nvidia-cuda-validator-rwl6b",
        "READY": "0/1",
        "STATUS": "Init:CrashLoopBackOff",
        "NODE": "node-a",
    }
    assert bare_pod("step 3 1/8 Done") is None
    assert kind_of("pods.txt", (row + "\n").encode()) == "kubernetes-text"
    parsed = parse_describe(lines(row), file="x")
    assert [(one.node, one.pod) for one in parsed.placements] == [("node-a", "nvidia-cuda-validator-rwl6b")]
    text = (
        "2023-12-15T19:19:23Z [Normal] Successfully assigned train/nb-7 to node-a\n"
        '2023-12-15T19:24:02Z [Warning] Failed to pull image "x": write /var/lib/x: no space left on device\n'
    )
    assert kind_of("events.txt", text.encode()) == "kubernetes-text"
    started, event = parse_describe(lines(text), file="x").events
    assert started.signature == "k8s-started"
    assert (event.signature, event.node, event.time) == ("k8s-image-pull", "node-a", 1702668242.0)
    assert bare_event("2023-12-15 [Warning] x") is None
    assert reason_of("Node gpu-7 status is now: NodeNotReady") == "NodeNotReady"
