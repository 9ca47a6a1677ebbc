"""What people paste: pages fetched by hand, tails of logs, summaries of tools; each test is one thing that is true of it."""

from __future__ import annotations

from pathlib import Path

from tests.triage.folders import verdict_of as _verdict
from workbench.incident import IncidentVerdict

REMOTE = "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5\n"


def _said(verdict: IncidentVerdict) -> tuple[str, str | None, str | None]:
    return verdict.cls, verdict.node, verdict.gpu.pci if verdict.gpu else None


def test_exporter_page_fetched_by_hand_tells_states_of_now(tmp_path: Path) -> None:
    labels = 'gpu="{0}",UUID="GPU-{0}7c1d0e2-44ab-5b1e-9f00-3a6c2e9d010f",pci_bus_id="00000000:{0}A:00.0",Hostname="gpu-7"'
    page = "".join(f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{labels.format(gpu)}}} {int(gpu == 3)}\n" for gpu in range(1, 5))
    verdict = _verdict(tmp_path, {"metrics/page.txt": page})
    assert _said(verdict) == ("hardware/gpu-memory", "gpu-7", "0000:3a:00.0")
    assert any(entry.status == "partial" and "without a time" in entry.detail for entry in verdict.coverage)


def test_board_without_power_explains_the_ordinal_that_does_not_exist(tmp_path: Path) -> None:
    kernel = (
        "[   12.640118] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
        "[   14.902210] NVRM: GPU 0000:65:00.0: GPU does not have the necessary power cables connected.\n"
        "[   14.903004] NVRM: GPU 0000:65:00.0: RmInitAdapter failed! (0x24:0x1c:1435)\n"
    )
    job = "W0711 09:12:30.114000 2211 torch/distributed/run.py:793] \n[rank1]: RuntimeError: CUDA error: invalid device ordinal\n"
    verdict = _verdict(tmp_path, {"kernel/ws-03.log": kernel, "logs/job.log": job})
    assert _said(verdict) == ("hardware/thermal-power", "ws-03", "0000:65:00.0")


def test_tail_of_a_log_began_before_what_timed_out_in_it(tmp_path: Path) -> None:
    kernel = "[Thu Jun 12 10:00:00 2025] NVRM: Xid (PCI:0000:4e:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 11(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)\n"
    job = "".join(
        f"[rank{rank}]:[E612 10:10:01.389196097 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600037 milliseconds before timing out.\n"
        for rank in range(2)
    )
    verdict = _verdict(tmp_path, {"kernel/h1.log": kernel, "logs/job.log": job})
    assert _said(verdict) == ("hardware/nvlink", "h1", "0000:4e:00.0")


PORTS = (
    "CA 'mlx5_2'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tLink layer: InfiniBand\n"
    "CA 'mlx5_3'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tLink layer: InfiniBand\n"
)
RETRY = "[1,17]<stderr>:[node-v:88213:0:88213] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_{}:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n"


def test_port_that_is_down_counts_when_the_transport_names_it(tmp_path: Path) -> None:
    used = _verdict(tmp_path / "used", {"ibstat.txt": PORTS, "logs/mpi.log": RETRY.format(2)})
    other = _verdict(tmp_path / "other", {"ibstat.txt": PORTS, "logs/mpi.log": RETRY.format(3)})
    assert (used.cls, used.rank) == ("hardware/network-link", 17)
    assert other.cls == "platform/network"


EVENTS = (
    "LAST SEEN   TYPE      REASON             OBJECT                MESSAGE\n"
    "6h40m       Warning   FailedScheduling   pod/{pod}   0/9 nodes are available: 8 Insufficient nvidia.com/gpu.\n"
    "6h38m       Normal    Scheduled          pod/llm-node-0-1-9xn7c   Successfully assigned train/llm-node-0-1-9xn7c to gpu-02\n"
    "2m58s       Normal    AllJobsCompleted   jobset/llm            jobset completed successfully\n"
)


def test_pod_that_found_its_node_later_only_waited(tmp_path: Path) -> None:
    mine = _verdict(tmp_path / "mine", {"events.txt": EVENTS.format(pod="llm-node-0-1-9xn7c")})
    other = _verdict(tmp_path / "other", {"events.txt": EVENTS.format(pod="eval-0")})
    assert mine.cls == "none"
    assert other.cls == "platform/scheduler"


def test_job_that_kubernetes_calls_complete_did_not_fail(tmp_path: Path) -> None:
    job = '{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"ft"},"status":{"conditions":[{"type":"Complete","status":"True","lastTransitionTime":"2025-04-01T11:00:00Z"}],"succeeded":1,"startTime":"2025-04-01T10:00:00Z","completionTime":"2025-04-01T11:00:00Z"}}'
    assert _verdict(tmp_path, {"job.json": job}).cls == "none"


def test_quoted_outputs_of_tools_are_each_read_as_what_they_are(tmp_path: Path) -> None:
    report = (
        "Ring all-reduce hangs on one box, `nvidia-smi -q` says\n\n```\nGPU 00000000:0F:00.0\n    Remapped Rows\n"
        "        Correctable Error                 : 0\n        Uncorrectable Error               : 9\n"
        "        Pending                           : No\n        Remapping Failure Occurred        : Yes\n```\n\n"
        "```\n" + REMOTE + "```\n"
    )
    verdict = _verdict(tmp_path, {"issue.md": report})
    assert _said(verdict) == ("hardware/gpu-memory", None, "0000:0f:00.0")
    assert verdict.evidence_records[0].line == 9


def test_accounting_quoted_beside_the_log_is_read(tmp_path: Path) -> None:
    report = (
        "my job is gone\n```\n$ sacct -j 5121 -o jobid,state,exitcode,nodelist\nJobID             State ExitCode        NodeList \n"
        "------------ ---------- -------- --------------- \n5121          NODE_FAIL      0:0      gpu-[3-4]  \n```\n```\n"
        + REMOTE
        + "```\n"
    )
    assert _verdict(tmp_path, {"issue.md": report}).cls == "platform/node-lost"


def test_summary_of_seff_says_how_it_ended(tmp_path: Path) -> None:
    for state, cls in (("OUT_OF_MEMORY", "user/host-oom"), ("TIMEOUT", "platform/preemption"), ("COMPLETED", "none")):
        text = f"Job ID: 551201\nCluster: hpc\nState: {state} (exit code 0)\nNodes: 1\nMemory Utilized: 249.98 GB\n"
        assert _verdict(tmp_path / state, {"seff.txt": text}).cls == cls


def test_machine_that_the_cloud_takes_is_the_one_its_notice_names(tmp_path: Path) -> None:
    notice = "2025/04/02 19:55:05 INF Requesting instance drain event-id=spot-itn-7a instance-id=i-0a1 kind=SPOT_ITN node-name=ip-10-12-3-44.ec2.internal\n"
    spot = _verdict(tmp_path / "spot", {"logs/handler.log": notice, "logs/worker-0.log": REMOTE})
    assert (spot.cls, spot.node) == ("platform/preemption", "ip-10-12-3-44.ec2.internal")
    operation = "systemevent-17 compute.instances.hostError  us-central1-a/instances/a3-train-7  200  DONE  2025-03-04T13:05:05.771-08:00\n"
    host = _verdict(tmp_path / "host", {"operations.txt": operation, "logs/rank0.log": REMOTE})
    assert (host.cls, host.node) == ("platform/node-lost", "a3-train-7")


def test_container_that_died_without_a_reason_may_start_again(tmp_path: Path) -> None:
    pod = (
        "Name:             finetune-0\nNamespace:        default\nNode:             gpu-1/10.128.0.7\nStatus:           Running\nContainers:\n"
        "  trainer:\n    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    137\n"
    )
    verdict = _verdict(tmp_path, {"pod.txt": pod})
    assert (verdict.cls, verdict.retry) == ("unknown", "same-nodes")


def test_nccls_survey_names_the_rank_apart_and_no_cause(tmp_path: Path) -> None:
    survey = (
        "#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  31 ranks have launched up to operation 641\n  1 rank has launched up to operation 640\n"
        "  Rank 21 -- GPU 5 managed by process 323033 on node 10.0.0.25\n"
    )
    verdict = _verdict(tmp_path, {"ncclras.txt": survey})
    assert (verdict.cls, verdict.rank) == ("unknown", 21)
