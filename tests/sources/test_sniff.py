"""Kinds are told by content; the name breaks ties only."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from workbench.sources.naming import node_of, nodes_in
from workbench.sources.sniff import kind_of

DATA = Path(__file__).parents[1] / "data"

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4011, name=python, GPU has fallen off the bus."
SAMPLES = {
    "kernel-log": [
        f"[ 1234.567890] {XID}\n",
        f"[  130.456250] [ T1946] {XID}\n",
        f"[  +0.000049] {XID}\n",
        f"[Sun Feb 23 16:24:18 2025] {XID}\n",
        f"[Sun Feb 23 16:24:18] {XID}\n",
        f"kern  :err   : 2025-01-25T10:34:54,859532+00:00 {XID}\n",
        f"3,1201,98234567,-;{XID}\n",
        f"<4>[  98.234567] {XID}\n",
        f"May  4 11:02:03 node-7 kernel: [ 1234.567890] {XID}\n",
        f"2026-05-04T11:02:03.123456+00:00 node-7 kernel: {XID}\n",
        f"11月 15 14:15:47 node-7 kernel: {XID}\n",
        f"[Do Okt  9 02:36:47 2025] {XID}\n",
        f"[jeu. oct.  9 02:36:47 2025] {XID}\n",
        f"[木 10月  9 02:36:47 2025] {XID}\n",
        f"10.1.2.3: kern:     err: [2026-05-04T11:02:03.123456789Z]: {XID}\n",
        f"node-7: [14280.445220] {XID}\n",
        f"{XID}\nNVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n",
        "python invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), order=0\nMemory cgroup out of memory: Killed process 7 (python)\n",
        f"Panic#2 Part1\n<6>[ 4711.000001] {XID}\n<4>[ 4711.000002] RIP: 0010:foo+0x1/0x2\n",
    ],
    "job-log": [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 7, in <module>\nValueError: no\n',
        "node-1:2918:4483 [4] NCCL INFO Using network IB\nnode-1:2918:4483 [4] init.cc:123 NCCL WARN bad\n",
        "0: [1579244743.735971] [node-a:41109:0]  debug.c:1076 UCX  DEBUG using signal stack\n" * 3,
        "[1,3]<stdout>:node-a:815:864 [0] NCCL INFO init.cc:903 -> 5\n",
        '{"log":"[rank0]: step 1 loss 2.0\\n","stream":"stderr","time":"2026-05-04T11:02:03.1Z"}\n' * 2,
        "Thu Oct  9 02:36:47 2025\n| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2     |\n"
        + "Epoch 1 loss 2.0 step 4 it/s\n" * 20,
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "a.py", line 1 in f\n',
        "srun: error: node-7: task 3: Exited with exit code 1\n",
    ],
    "metrics-text": [
        '# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature.\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 41\n',
        'DCGM_FI_DEV_MEM_CLOCK{gpu="0",pod="a b"} 2619 1754424936.600\n' * 3,
        "node_load1 0.5\nnode_load5 NaN\n",
    ],
    "metrics-json": ['{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"gpu":"0"},"values":[[1,"2"]]}]}}'],
    "kubernetes": [
        '{"apiVersion": "v1", "items": [], "kind": "List"}',
        '{"kind": "Pod", "metadata": {"name": "x"}, "spec": {}}',
        "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Node\nkind: List\n",
    ],
    "kubernetes-text": [
        "Name:               gpu-7\nRoles:              worker\nConditions:\n  Type   Status\n",
        "NAME     STATUS     ROLES    AGE   VERSION\ngpu-7    NotReady   <none>   9d    v1.31\n",
        "LAST SEEN   TYPE      REASON      OBJECT     MESSAGE\n2m          Warning   Evicted     pod/a      low\n",
    ],
    "slurm-text": [
        "Cluster|NodeName|TimeStart|TimeEnd|State|Reason|User\ngpu|n-7|2026-05-04T11:02:03|Unknown|DRAIN|Xid 79|root(0)\n",
        "   Cluster NodeName                  TimeStart             TimeEnd  State\n---------- --------------- -------------------\n",
        "JobID|JobName|User|State|ExitCode\n7|a|u|FAILED|1:0\n",
        "JobId=7 JobName=a\n   JobState=FAILED Reason=NonZeroExitCode\n",
        "NodeName=gpu-7 Arch=x86_64 State=DOWN*\n",
        "REASON|USER|TIMESTAMP|STATE|NODELIST\nnhc|root|2026-05-04T11:02:03|drained|gpu-7\n",
        "[2026-05-04T11:02:03.123] error: Nodes gpu-7 not responding\n[2026-05-04T11:02:04.123] sched: Allocate JobId=8\n",
        "May  4 11:02:03 gpu-7 slurmd[13562]: error: pyxis: failed\n",
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n   7  gpu  a  u  R  1:00  1 gpu-7\n",
    ],
    "smi": [
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "Unable to determine the device handle for GPU0000:91:00.0: Unknown Error\n",
        "Mon May  4 11:02:03 2026\n+-----+\n| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |\n|-----+-----|\n| 0  NVIDIA H100 | 00000000:3B:00.0 |\n",
        "Timestamp      : Mon May  4\nDriver Version     : 550.54\nAttached GPUs        : 8\nGPU 00000000:3B:00.0\n    Product Name    : H100\n",
        "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n         Link 0: 25.781 GB/s\n         Link 1: <inactive>\n",
        "        GPU0    GPU1    CPU Affinity\nGPU0     X      NV18    0-31\nGPU1    NV18     X      0-31\n",
        "1a:00.0 3D controller: NVIDIA Corporation GH100 (rev ff)\n1b:00.0 Infiniband controller: Mellanox\n",
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled\n",
    ],
    "flight-recorder": [
        pickle.dumps({"version": "2.5", "entries": [], "pg_config": {}}, protocol=2),
        '{"version": "2.5", "pg_config": {}, "entries": [{"record_id": 0, "collective_seq_id": 1}]}',
    ],
    "torchelastic-error": [
        '{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1777892523"}}}'
    ],
    "stacks": [
        'Process 20384: python train.py\nPython v3.11.7\n\nThread 20384 (idle): "MainThread"\n    wait (threading.py:331)\n    main (train.py:2)\n',
        'Thread 0x00007f65 (most recent call first):\n  File "a.py", line 3 in wait\n  File "b.py", line 4 in main\n',
    ],
    "bmc": [
        "  6a | 04/12/2024 | 03:27:29 PM CDT | Critical Interrupt | Bus Uncorrectable error () | Asserted\n",
        '{"@odata.id": "/redfish/v1/Systems", "MessageId": "ResourceEvent.1.0", "MessageArgs": []}',
        "Record:      7\nDate/Time:   05/04/2026 11:02:03\nSource:      system\nSeverity:    Critical\nDescription: A bus fatal error\n",
    ],
    "fabricmanager-log": [
        "[Feb 25 2025 13:59:45] [ERROR] [tid 1803] detected NVSwitch fatal error 12028 on fid 0\n",
        "May  4 11:02:03 gpu-7 nv-fabricmanager[4177]: request to query NVSwitch device information failed\n",
    ],
    "launch": [
        "node-a$ torchrun --standalone --nproc_per_node=4 train.py\n",
        '{"agents": [{"node": "node-a", "exit_status": 1, "ended": "2026-11-29T16:50:54Z"}]}',
    ],
    "text": [
        "    PID    PPID STAT WCHAN   ELAPSED   RSS COMMAND\n 4926  2994 Ssl  futex  26 226516 python train.py\n",
        "hello there\n",
    ],
    "binary": [bytes(range(256)) * 20, pickle.dumps([1, 2])],
}


@pytest.mark.parametrize(("kind", "sample"), [(kind, sample) for kind, samples in SAMPLES.items() for sample in samples])
def test_kind_by_content_whatever_the_name(kind: str, sample: str | bytes) -> None:
    head = sample.encode() if isinstance(sample, str) else sample
    assert kind_of("evidence/file-1", head) == kind
    assert kind_of("evidence/job.log", head) == ("job-log" if kind == "text" and b"PID" not in head else kind)


def test_empty_files_go_by_name() -> None:
    assert kind_of("flight/nccl_trace_rank_3", b"") == "flight-recorder"
    assert kind_of("kernel/gpu-7.log", b"") == "kernel-log"
    assert kind_of("logs/rank-3.stderr", b"\n") == "job-log"


def test_utf16_and_nul_runs_of_a_crash_are_text() -> None:
    assert kind_of("x", f"[ 12.345678] {XID}\r\n".encode("utf-16")) == "kernel-log"
    assert kind_of("x", b"\0" * 5000 + f"[ 12.345678] {XID}\n".encode()) == "kernel-log"


@pytest.mark.parametrize(
    ("name", "kind", "node"),
    [
        ("kernel/gpu-node-017.log", "kernel-log", "gpu-node-017"),
        ("kernel/ip-10-0-1-2.eu-west-1.compute.internal.log.gz", "kernel-log", "ip-10-0-1-2.eu-west-1.compute.internal"),
        ("kernel/node-a.log", "kernel-log", "node-a"),
        ("kernel/node-0-dmesg.txt", "kernel-log", "node-0"),
        ("kernel/dmesg.log", "kernel-log", None),
        ("bundle.tar.gz!job/metrics/dgx-4.prom", "metrics-text", "dgx-4"),
        ("metrics/DCGM_FI_DEV_XID_ERRORS.json.gz", "metrics-json", None),
        ("smi/node-a-nvidia-smi-q.txt", "smi", "node-a"),
        ("smi/nvidia-smi.txt", "smi", None),
        ("smi/container-nvidia-smi.txt", "smi", None),
        ("pstore/dgx-37/dmesg-efi-175263681601001", "kernel-log", "dgx-37"),
        ("pstore-dgx-37-dmesg-efi-175263681601001", "kernel-log", "dgx-37"),
        ("dgx-37-dmesg-20250716.log", "kernel-log", "dgx-37"),
        ("kernel/aks-gpupool-31847206-vmss000015.log", "kernel-log", "aks-gpupool-31847206-vmss000015"),
        ("logs/rank-3.stderr.log", "job-log", None),
        ("logs/llm-13b-worker-0.log", "job-log", None),
        ("logs/job.log", "job-log", None),
        ("logs/node-b.agent.log", "job-log", "node-b"),
        ("logs/slurmctld.log", "slurm-text", None),
        ("describe-node.txt", "kubernetes-text", None),
        ("ps-node-a.txt", "text", "node-a"),
    ],
)
def test_node_from_the_name(name: str, kind: str, node: str | None) -> None:
    assert node_of(name, kind) == node


def test_a_job_log_named_after_a_node_that_other_evidence_knows() -> None:
    known = nodes_in(["kernel/g1115.log.gz", "metrics/g1116.prom", "logs/g1117.log"])
    assert known == {"g1115", "g1116"}
    assert node_of("logs/torchrun-g1115.log", "job-log", known) == "g1115"
    assert node_of("logs/g1117.log", "job-log", known) is None


@pytest.mark.parametrize(
    ("kind", "sample"),
    [
        ("kernel-log", "2026-01-20T09:31:17,600000+00:00 NVRM: Xid (PCI:0000:1b:00): 45, pid=9100\n" * 3),
        ("kernel-log", "19:14:43  NVRM: Xid (PCI:0000:1a:00): 13, Graphics Exception\n" * 3),
        (
            "smi",
            "==============NVSMI LOG==============\n\nTimestamp  : Tue Jun  2 09:49:44 2026\n    Fabric\n        State    : In Progress\n",
        ),
        (
            "smi",
            "GPU 00000000:1B:00.0\n    Clocks Event Reasons\n        Idle    : Not Active\n            HW Power Brake Slowdown   : Active\n",
        ),
        ("smi", "2025-12-22 10:41:07.221 ERROR [1514002:1514004] [[Health]] Detected a WARNING in health system Thermal: 'x'\n"),
        ("smi", "Nodes:\nNode #0   * 10.0.3.1 *    - READY                - Version: 580.95.05\nDomain State: UP\n"),
        ("smi", '{"nodes": {"0": {"status": "READY", "host": "10.0.3.1", "connections": {}}}, "status": "UP"}'),
        ("kubernetes", '{"time":"2026-03-06T09:34:56Z","msg":"x","event":{"HealthEvent":{"checkName":"GpuXidError"}}}\n'),
        (
            "kubernetes",
            '{"level":"INFO","logger":"controller.interruption","message":"initiating delete","NodeClaim":{"name":"x"}}\n',
        ),
    ],
)
def test_node_evidence_in_its_many_forms(kind: str, sample: str) -> None:
    assert kind_of("evidence", sample.encode()) == kind


@pytest.mark.parametrize("name", ["gpu-node-7.xml", "out.txt", "evidence", "job.log"])
def test_the_xml_of_nvidia_smi_is_known_by_what_it_says(name: str) -> None:
    whole = (DATA / "smi" / "q-b200.xml").read_bytes()
    assert kind_of(name, whole[:65536]) == "smi"
    assert kind_of(name, b"\xef\xbb\xbf" + whole.split(b"\n", 1)[1]) == "smi"  # without its first line


def test_other_xml_and_a_log_that_prints_some_are_not_of_nvidia_smi() -> None:
    assert kind_of("a.xml", b'<?xml version="1.0"?>\n<project><name>nvidia_smi_log</name></project>\n') != "smi"
    assert kind_of("job.log", b"2026-01-01 10:00:00 INFO step 1\nloss=1\n<?xml version='1.0'?>\n<nvidia_smi_log>\n") == "job-log"


def test_number_behind_a_machines_name_counts_machines_and_one_behind_a_tools_word_does_not() -> None:
    assert node_of("kernel/b200-1.log", "kernel-log") == "b200-1"
    assert node_of("kernel/b200-1-dmesg-1.log", "kernel-log") == "b200-1"
    assert node_of("smi/nvlink-e.txt", "smi") is None
