"""Families of messages that people paste into reports, judged as a whole: what is to blame, where, and what is to be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.incident import load
from workbench.model import Verdict
from workbench.triage.verdict import judge


def verdict(folder: Path, files: dict[str, str]) -> Verdict:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return judge(load(str(folder)))


IBSTAT = """CA 'mlx5_4'
    CA type: MT4129
    Number of ports: 1
    Port 1:
        State: Down
        Physical state: {physical}
        Rate: 10
        Base lid: {lid}
        SM lid: 359
        Link layer: InfiniBand"""


@pytest.mark.parametrize(
    ("physical", "lid", "expected"),
    [
        ("Polling", "868", "hardware/network-link"),
        ("Polling", "0x364", "hardware/network-link"),
        ("Polling", "65535", "unknown"),  # never had one: nobody plugged it in
        ("Polling", "0", "unknown"),
        ("Disabled", "868", "unknown"),  # switched off on purpose
    ],
)
def test_a_lone_port_that_had_an_address_on_its_fabric_was_in_use(tmp_path: Path, physical: str, lid: str, expected: str) -> None:
    assert verdict(tmp_path, {"ibstat.txt": IBSTAT.format(physical=physical, lid=lid)}).cls == expected


COMPLETION = (
    "node-{n}:1998{n}:2008 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<53249> with {status}, "
    "opcode 129, len 0, vendor err 81 (Send)"
)


@pytest.mark.parametrize("status", ["error 4", "status=4"])
def test_local_protection_errors_of_several_nodes_are_their_common_set_up(tmp_path: Path, status: str) -> None:
    one = verdict(tmp_path / "one", {"job.log": COMPLETION.format(n=1, status=status)})
    both = verdict(tmp_path / "two", {"job.log": "\n".join(COMPLETION.format(n=n, status=status) for n in (1, 2))})
    assert (one.cls, one.node) == ("driver/other", "node-1")
    assert (both.cls, both.node, both.at_fault, both.retry) == ("platform/config", None, "platform", "fix-first")


@pytest.mark.parametrize(
    "head",
    [
        "[INFO] 2026-02-01 14:02:56,862 dynamic_rendezvous: The node 'gpu-a_28389_0' attempts to join the next round of the rendezvous '17'.",
        "[2026-02-01 14:02:56,862] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [INFO] The node 'gpu-a_28389_0' has joined round 0",
    ],
)
def test_an_agent_names_its_own_node_in_the_rendezvous(tmp_path: Path, head: str) -> None:
    log = f'{head}\nTraceback (most recent call last):\n  File "main.py", line 34, in <module>\nValueError: host not found: Temporary failure in name resolution'
    found = verdict(tmp_path, {"agent.log": log})
    assert (found.cls, found.node) == ("platform/network", "gpu-a")


@pytest.mark.parametrize(
    "lines",
    [
        "NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:2330) installed in this system\n      is not supported by the NVIDIA 580.126.09 driver release.",
        "[ 7469.64] NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:2237)\n               NVRM: installed in this system is not supported by the\n               NVRM: NVIDIA 515.57 driver release.",
        "[  652.48] NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:1050) installed\n[  652.48] NVRM: in this system is not supported by the 280.13 NVIDIA Linux",
    ],
)
def test_the_gpu_that_a_driver_does_not_support_is_named_however_the_notice_is_folded(tmp_path: Path, lines: str) -> None:
    found = verdict(tmp_path, {"kernel/node-a.log": lines + "\nNVRM: The NVIDIA probe routine failed for 1 device(s)."})
    assert (found.cls, found.node) == ("driver/other", "node-a")
    assert found.gpu is not None
    assert found.gpu.pci == "000a:00:00.0"
    assert "The NVIDIA GPU" in found.evidence_records[0].text


def test_the_device_plugin_names_the_lost_gpu_by_its_index(tmp_path: Path) -> None:
    said = (
        "Pod Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = "
    )
    said += "Unable to retrieve list of available devices: error creating nvml.Device 3: nvml: GPU is lost, which is unexpected"
    found = verdict(tmp_path, {"pod.txt": "Message:        " + said})
    assert (found.cls, found.gpu.index if found.gpu else None) == ("hardware/gpu-lost", 3)


def test_what_mpirun_says_of_itself_is_no_command_line(tmp_path: Path) -> None:
    said = "mpirun was unable to find the specified executable file, and therefore did not launch the job."
    assert verdict(tmp_path, {"job.log": said}).cls == "user/config"


def test_the_only_node_of_a_job_is_where_it_failed_although_nobody_is_to_blame(tmp_path: Path) -> None:
    log = (
        "[2026-02-01T10:42:30.509] sched: Allocate JobId=4711 NodeList=node-a #CPUs=2 Partition=gpu\n"
        "[2026-02-01T11:37:57.377] _job_complete: JobId=4711 WTERMSIG 9\n[2026-02-01T11:37:57.377] _job_complete: JobId=4711 done"
    )
    found = verdict(tmp_path, {"slurmctld.log": log})
    assert (found.cls, found.node, found.at_fault) == ("unknown", "node-a", None)


def test_slurms_words_without_a_known_line_get_advice(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"step.log": "slurmstepd: error: something that no table knows happened here"})
    assert (found.cls, found.retry, found.remediation) == ("unknown", "same-nodes", "restart-task")


def test_a_rank_beyond_the_world_is_named(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"worker.log": "w-0:70:70 [0] init.cc:981 NCCL WARN Invalid rank requested : 3/2"})
    assert (found.cls, found.rank) == ("user/config", 3)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error", "unknown"),
        ("[proxy:0:1@node-b] HYD_pmcd_pmip_control_cmd_cb (proxy/pmip_cb.c:480): assert (!closed) failed", "unknown"),
        ("srun: error: node-c: task 0: Killed\nsrun: Force Terminated StepId=120.0", "unknown"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL", "unknown"),
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)", "unknown"),
    ],
)  # fmt: skip
def test_what_victims_say_is_no_cause(tmp_path: Path, said: str, expected: str) -> None:
    assert verdict(tmp_path, {"job.log": said}).cls == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("amdgpu 0000:4e:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0xfaa00000000d080b", "hardware/gpu-other"),
        ("amdgpu 0000:4e:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000", "unknown"),  # corrected
        ("amdgpu 0000:83:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x0000001A", "driver/hang"),
        ("amdgpu 0000:83:00.0: amdgpu: device lost from bus!", "hardware/gpu-lost"),
        ("amdgpu: disagrees about version of symbol module_layout", "driver/version-mismatch"),
        ("amdgpu 0000:03:00.0: probe with driver amdgpu failed with error -5", "driver/other"),
        ("[drm:psp_hw_start [amdgpu]] *ERROR* PSP create ring failed!", "driver/other"),
        ("nvidia-imex[1234]: [ERROR] IMEX daemon failed to initialize", "driver/fabric-manager"),
        ("bond0: now running without any active interface!", "hardware/network-link"),
    ],
)
def test_the_kernel_of_a_node_names_the_fault(tmp_path: Path, said: str, expected: str) -> None:
    assert verdict(tmp_path, {"kernel/node-a.log": "[ 4727.652056] " + said}).cls == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('Error from server (InternalError): Internal error occurred: failed calling webhook "mpod.kb.io"', "platform/config"),
        ('Error creating: pods "train-0" is forbidden: violates PodSecurity "restricted:latest"', "user/config"),
        ("Warning  Failed  12s  kubelet  Error: container has runAsNonRoot and image will run as root", "user/config"),
        ("Normal  DisruptionTerminating  12s  karpenter  Disrupting Node: Underutilized/Delete", "platform/preemption"),
        ("slurmstepd: error: Prolog hung on node worker-7", "platform/scheduler"),
        ("slurmstepd: error: Unable to create TMPDIR [/scratch/tmp.1234]: Permission denied", "platform/config"),
        ("cyclecloud_node_fail slurm     2026-02-22T13:25:08 gpu-1", "platform/scheduler"),
        ("Error: Unable to find a match: kernel-headers-5.14.0-362.8.1.el9_3.x86_64", "driver/missing"),
    ],
)
def test_what_the_platform_says_has_its_class(tmp_path: Path, said: str, expected: str) -> None:
    assert verdict(tmp_path, {"job.log": said}).cls == expected


def test_a_container_that_waits_is_shown_by_its_own_line(tmp_path: Path) -> None:
    text = (
        "Name:           train-0\nNamespace:      default\nNode:           node-a/10.0.0.7\nStatus:         Pending\nContainers:\n"
        "  main:\n    Image:          registry/train:1\n    State:          Waiting\n      Reason:       ImagePullBackOff\n    Ready:          False"
    )
    found = verdict(tmp_path, {"describe.txt": text})
    assert (found.cls, found.evidence_records[0].text, found.evidence_records[0].line) == (
        "platform/image",
        "Reason:       ImagePullBackOff",
        9,
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("x86/amd: Previous system reset reason [0x08000800]: an uncorrected error caused a data fabric sync flood event", "hardware/host"),
        ("[Hardware Error]: System Fatal error.", "hardware/host"),
        ("megaraid_sas 0000:5a:00.0: [30]waiting for 65 commands to complete for scsi0", "hardware/host"),
    ],
)  # fmt: skip
def test_the_kernel_tells_of_its_host(tmp_path: Path, said: str, expected: str) -> None:
    assert verdict(tmp_path, {"kernel/node-a.log": "[ 4727.652056] " + said}).cls == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("ERROR   NRT:nrt_init   Unable to determine Neuron Driver version. Please check aws-neuron-dkms package is installed.", "driver/missing"),
        ("job 3132467 exceeded MEM usage hard limit (2528 > 1126)", "user/host-oom"),
        ("Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[8]]' does not match found input sizes: '[[9]]'", "user/collective-mismatch"),
        ("Error type: COLLECTIVE_STATE_MISMATCH", "unknown"),  # some have not come so far: that is a hang, not another order
        ("| loss          | nan       |", "user/numerics"),
        ("| train/loss    | 0.41      |", "unknown"),
        ("Found NaN, decreased lg_loss_scale to -16199.354", "user/numerics"),
        ("Found NaN, decreased lg_loss_scale to 15.2", "unknown"),  # it finds its scale
        ('Connection was closed before we received a valid response from endpoint URL: "http://minio:9000/b/p"', "platform/storage"),
        ('"reason": "NVIDIA-H100-80GB-HBM3 checked fabric state; fabric manager found but not active"', "driver/fabric-manager"),
    ],
)  # fmt: skip
def test_a_line_of_a_report_has_its_class(tmp_path: Path, said: str, expected: str) -> None:
    assert verdict(tmp_path, {"job.log": said}).cls == expected


def test_paddles_launcher_names_the_worker_that_ended(tmp_path: Path) -> None:
    said = "Container rank 3 status failed cmd ['/usr/bin/python3', '-u', 'train.py'] code -9 log ./log/workerlog.3"
    found = verdict(tmp_path, {"launch.log": "LAUNCH INFO 2026-03-10 00:35:50,211 Pod failed\n" + said})
    assert (found.cls, found.rank) == ("unknown", 3)


@pytest.mark.parametrize("batches", ["[{}]", "[0-{}]"])
def test_the_speedometer_of_mxnet_counts_steps(tmp_path: Path, batches: str) -> None:
    log = "\n".join(
        f"INFO:root:Epoch[47] Batch {batches.format(n)} Speed: 328.83 samples/sec\taccuracy=0.9167" for n in range(20, 200, 20)
    )
    assert verdict(tmp_path, {"job.log": log}).cls == "none"


def test_a_state_without_a_sign_of_trouble_keeps_no_work_away(tmp_path: Path) -> None:
    text = "    Clocks Event Reasons\n        Idle                              : Not Active\n        SW Power Cap                      : Active\n        HW Slowdown                       : Not Active"
    found = verdict(tmp_path, {"smi/nvidia-smi-q.txt": text})
    assert (found.cls, found.retry, found.remediation) == ("unknown", "same-nodes", "none")


def test_a_service_of_the_node_is_no_process_of_the_job(tmp_path: Path) -> None:
    text = 'Sep 02 22:01:59 node-a kubelet[9010]: E0902 22:01:59.251846    9010 kuberuntime_gc.go:138] Failed to stop sandbox "43": deadline exceeded\n'
    text += "Sep 02 22:01:59 node-a kubelet[9010]: I0902 22:01:59.607732    9010 kubelet.go:1752] skipping pod synchronization - [PLEG is not healthy: pleg was last seen active 3m5.3s ago; threshold is 3m0s]"
    assert verdict(tmp_path, {"kubelet.log": text}).cls == "platform/node-lost"
