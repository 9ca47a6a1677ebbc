"""How the workbench judges: each test is one thing that is true of failed jobs, shown on a folder of logs in their real formats."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import workbench
from workbench.incident import IncidentVerdict

START = datetime(2026, 3, 2, 10, 0, 0, tzinfo=UTC)
NODES = ("gpu-node-001", "gpu-node-002", "gpu-node-003", "gpu-node-004")


class Folder:
    """A folder of evidence of a job with two ranks a node, which makes a step a second until `stop`."""

    def __init__(self, root: Path, nodes: tuple[str, ...] = NODES[:2], stop: int = 600) -> None:
        self.root, self.nodes, self.stop = root, nodes, stop
        self.logs: dict[str, list[str]] = {node: [] for node in nodes}
        for at, node in enumerate(nodes):
            for local in range(2):
                rank = at * 2 + local
                self.job(
                    node, 0, f"rank {rank}/{len(nodes) * 2} local_rank {local} on {node} cuda:{local} (NVIDIA H100 80GB HBM3)"
                )
            for step in range(10, stop, 5):
                self.job(node, step, f"rank {at * 2} | step {step}/95367 | loss 2.4 | step 5.00s")

    def stamp(self, second: float) -> str:
        return (START + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]

    def job(self, node: str, second: float, text: str) -> None:
        self.logs[node].append(f"{self.stamp(second)} | INFO | trainer | {text}")

    def raw(self, node: str, text: str) -> None:
        self.logs[node].append(text)

    def error(self, node: str, second: float, rank: int, text: str) -> None:
        moment = START + timedelta(seconds=second)
        self.logs[node].append(
            f"[rank{rank}]:[E{moment.month}{moment.day:02d} {moment:%H:%M:%S.%f}000 ProcessGroupNCCL.cpp:607] {text}"
        )

    def kernel(self, node: str, lines: list[tuple[float, str]], *, zone: float = 0.0, iso: bool = True) -> None:
        out = []
        for second, text in [(-86_400.0 * 3, "Linux version 5.15.0-1053-nvidia (buildd@host) #54-Ubuntu SMP"), *lines]:
            moment = START + timedelta(seconds=second) + timedelta(hours=zone)
            out.append(
                f"{moment:%Y-%m-%dT%H:%M:%S.%f}+0000 {node} kernel: {text}"
                if iso
                else f"{moment:%b %d %H:%M:%S} {node} kernel: {text}"
            )
        path = self.root / "kernel" / f"{node}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(out) + "\n", encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def verdict(self) -> IncidentVerdict:
        for node, lines in self.logs.items():
            self.write(f"logs/{node}.log", "\n".join(lines) + "\n")
        return workbench.load(self.root).triage()

    def peers_lose(self, node: str, second: float) -> None:
        """Every rank of a node complains that its peer went away."""
        first = self.nodes.index(node) * 2
        for rank in (first, first + 1):
            self.raw(
                node,
                f"{node}:{4000 + rank}:{4100 + rank} [{rank % 2}] misc/socket.cc:64 NCCL WARN socketProgress: Connection closed by remote peer",
            )
            self.error(
                node,
                second,
                rank,
                f"[PG 0 (default_pg) Rank {rank}] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5",
            )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


XID_95 = "NVRM: Xid (PCI:0000:3b:00): 95, pid=4001, name=python, Uncontained: LTC TAG (0xa,0x1). RST: Yes, D-RST: No"
XID_13 = "NVRM: Xid (PCI:0000:{bus}:00): 13, pid={pid}, name={name}, Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address"


class TestRolesNotLoudness:
    def test_peers_that_complain_are_victims_of_the_gpu_that_failed(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [(600.1, XID_95)])
        folder.raw(NODES[0], "[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.node, verdict.at_fault) == ("hardware/gpu-memory", NODES[0], "gpu")
        assert verdict.gpu is not None
        assert verdict.gpu.pci == "0000:3b:00.0"
        assert "Xid (PCI:0000:3b:00): 95" in verdict.evidence["text"].iloc[0]
        assert {2, 3} <= set(verdict.victims["rank"])
        assert (verdict.retry, verdict.remediation) == ("exclude-node", "reset-gpu")

    def test_only_complaints_decide_nothing(self, folder: Folder) -> None:
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert verdict.cause in ("unknown", "platform")
        assert verdict.at_fault not in ("gpu", "node")

    def test_an_exception_before_a_fault_is_the_cause(self, folder: Folder) -> None:
        folder.raw(NODES[1], "[rank3]: Traceback (most recent call last):")
        folder.raw(NODES[1], '[rank3]:   File "/workspace/train.py", line 88, in collate')
        folder.raw(NODES[1], "[rank3]: KeyError: 'labels'")
        folder.job(NODES[1], 600.5, "rank 3: closing writers")
        folder.peers_lose(NODES[0], 660)
        folder.kernel(NODES[0], [(700, "NVRM: Xid (PCI:0000:3b:00): 45, pid=4001, name=python, Ch 00000008")])
        verdict = folder.verdict()
        assert (verdict.cls, verdict.rank) == ("user/exception", 3)
        assert verdict.retry == "fix-first"


class TestTimeAndPlace:
    def test_a_fault_days_before_the_job_is_no_cause(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [(-86_400.0 * 2, XID_95)])
        folder.peers_lose(NODES[1], 601)
        assert folder.verdict().cause != "hardware"

    def test_a_fault_on_a_node_outside_the_job_is_no_cause(self, folder: Folder) -> None:
        folder.kernel("gpu-node-099", [(600.0, XID_95)])
        folder.kernel(NODES[0], [])
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert verdict.cause != "hardware"
        assert any("not one of the job's nodes" in hypothesis.why_not for hypothesis in verdict.hypotheses)

    def test_a_port_that_was_back_in_a_second_and_steps_that_went_on(self, folder: Folder) -> None:
        port = "mlx5_core 0000:4f:00.0 ens5f0np0: Link "
        folder.kernel(NODES[0], [(300.0, port + "down"), (301.1, port + "up")])
        folder.peers_lose(NODES[1], 601)
        assert folder.verdict().cause != "hardware"

    def test_a_kernel_log_in_local_time_is_brought_in_line(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)
        folder.kernel(NODES[0], [(600.1, XID_95), (640.0, "usb 1-1: new device found")], zone=2.0, iso=False)
        folder.kernel(NODES[1], [(645.0, "usb 1-1: new device found")])
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.node) == ("hardware/gpu-memory", NODES[0])

    def test_a_clock_that_is_ahead_does_not_turn_the_order_round(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)
        ahead = 90.0
        folder.logs[NODES[1]] = []
        for local in range(2):
            folder.job(
                NODES[1], ahead, f"rank {2 + local}/4 local_rank {local} on {NODES[1]} cuda:{local} (NVIDIA H100 80GB HBM3)"
            )
        for step in range(10, 600, 5):
            folder.job(NODES[1], step + ahead, f"rank 2 | step {step}/95367 | loss 2.4 | step 5.00s")
        folder.job(NODES[1], 600 + ahead, "rank 3 fails")
        folder.raw(NODES[1], "[rank3]: Traceback (most recent call last):")
        folder.raw(NODES[1], '[rank3]:   File "/workspace/train.py", line 88, in collate')
        folder.raw(NODES[1], "[rank3]: KeyError: 'labels'")
        folder.peers_lose(NODES[0], 601)
        verdict = folder.verdict()
        assert verdict.clock_skew[NODES[1]] == pytest.approx(90.0, abs=1.0)
        assert (verdict.cls, verdict.rank) == ("user/exception", 3)


class TestDisagreements:
    def test_xid_13_on_one_gpu_is_the_programs_fault(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [(600.1, XID_13.format(bus="3b", pid=4001, name="python"))])
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert verdict.cls == "user/illegal-memory-access"
        assert verdict.at_fault != "gpu"

    def test_xid_13_that_one_gpu_repeats_across_programs_is_the_gpus(self, folder: Folder) -> None:
        lines = [
            (-86_400.0 * day, XID_13.format(bus="3b", pid=900 + day, name=name))
            for day, name in ((2.5, "train_asr"), (2, "vllm"), (1, "python3"))
        ]
        folder.kernel(NODES[0], [*lines, (600.1, XID_13.format(bus="3b", pid=4001, name="python"))])
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.at_fault) == ("hardware/gpu-other", "gpu")
        assert verdict.retry == "exclude-node"

    def test_a_recorded_row_remap_is_not_blamed_for_an_exception(self, folder: Folder) -> None:
        folder.kernel(
            NODES[0],
            [
                (
                    540.0,
                    "NVRM: Xid (PCI:0000:3b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0019) marked for remapping, reset gpu to activate.",
                )
            ],
        )
        folder.raw(NODES[0], "[rank1]: OSError: [Errno 28] No space left on device: '/ckpt/step_600'")
        folder.job(NODES[0], 600.5, "rank 1: closing writers")
        folder.peers_lose(NODES[1], 601)
        assert folder.verdict().cls == "platform/storage"


class TestManyNodes:
    def test_ports_of_several_nodes_at_once_are_the_switch(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path, NODES)
        for at, node in enumerate(NODES):
            folder.kernel(
                node,
                [
                    (600.0 + at / 20, "mlx5_core 0000:4f:00.0 ens5f0np0: Link down"),
                    (690.0, "mlx5_core 0000:4f:00.0 ens5f0np0: Link up"),
                ],
            )
            folder.peers_lose(node, 607)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.at_fault, verdict.node) == ("platform/network", "platform", None)

    def test_one_port_that_stays_down_is_the_nodes(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path, NODES)
        for node in NODES:
            folder.kernel(node, [])
            folder.peers_lose(node, 607)
        folder.kernel(
            NODES[2],
            [(600.0, "mlx5_core 0000:4f:00.0 ens5f0np0: Link down"), (645.0, "mlx5_core 0000:4f:00.0 ens5f0np0: Link up")],
        )
        verdict = folder.verdict()
        assert (verdict.cls, verdict.node) == ("hardware/network-link", NODES[2])


class TestStoreOfTheRendezvous:
    CLOSED = (
        "[W302 10:10:01.{micro:06d}000 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=3, addr=[::ffff:{own}]:46282, "
        "remote=[::ffff:{remote}]:29400): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
    )

    def test_a_store_apart_from_the_ranks_that_leaves_all_nodes_was_lost_with_its_host(self, folder: Folder) -> None:
        for at, node in enumerate(NODES[:2]):
            folder.raw(node, self.CLOSED.format(micro=100 + at, own=f"10.0.0.1{at}", remote="10.0.0.200"))
        folder.write(
            "launch.txt", f"{NODES[0]}$ torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=store-0:29400 train.py\n"
        )
        folder.peers_lose(NODES[1], 603)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.node, verdict.at_fault) == ("platform/node-lost", "store-0", "node")
        assert "recvValueWithTimeout failed" in verdict.evidence["text"].iloc[0]

    def test_a_store_inside_the_job_that_closes_says_nothing(self, folder: Folder) -> None:
        for at, node in enumerate(NODES[:2]):
            folder.raw(node, self.CLOSED.format(micro=100 + at, own=f"10.0.0.1{at}", remote="10.0.0.10"))
        folder.write(
            "launch.txt", f"{NODES[0]}$ torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint={NODES[0]}:29400 train.py\n"
        )
        folder.peers_lose(NODES[1], 603)
        assert folder.verdict().cls != "platform/node-lost"


def _pod_event(reason: str, message: str, second: int, source: str = "default-scheduler") -> dict[str, object]:
    stamp = (START + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"worker-0.{second}", "namespace": "ml"},
        "type": "Warning" if reason == "FailedScheduling" else "Normal",
        "reason": reason,
        "message": message,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "source": {"component": source},
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "worker-0"},
    }


class TestWaitingIsNotFailing:
    NO_ROOM = _pod_event("FailedScheduling", "0/6 nodes are available: 6 Insufficient nvidia.com/gpu.", 0)
    PLACED = _pod_event("Scheduled", "Successfully assigned ml/worker-0 to gpu-node-001", 400)
    STARTED = _pod_event("Started", "Started container trainer", 420, "kubelet")

    def _verdict(self, root: Path, *events: dict[str, object], log: str = "") -> IncidentVerdict:
        (root / "events.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": events}), encoding="utf-8")
        if log:
            (root / "worker-0.log").write_text(log, encoding="utf-8")
        return workbench.load(root).triage()

    def test_a_pod_that_found_its_node_later_only_waited(self, tmp_path: Path) -> None:
        log = "step 10 loss 2.1\nTraceback (most recent call last):\n  File \"/w/train.py\", line 3, in <module>\nKeyError: 'labels'\n"
        verdict = self._verdict(tmp_path, self.NO_ROOM, self.PLACED, self.STARTED, log=log)
        assert verdict.cls == "user/exception"
        assert any(rival.why_not == "the pod started afterwards" for rival in verdict.hypotheses)

    def test_a_pod_that_never_found_one_is_the_schedulers(self, tmp_path: Path) -> None:
        assert self._verdict(tmp_path, self.NO_ROOM).cls == "platform/scheduler"

    def test_a_pod_that_lost_its_node_and_finds_no_other_is_the_schedulers(self, tmp_path: Path) -> None:
        again = _pod_event("FailedScheduling", "0/6 nodes are available: 6 Insufficient nvidia.com/gpu.", 900)
        assert self._verdict(tmp_path, self.PLACED, self.STARTED, again).cls == "platform/scheduler"


class TestMemoryKills:
    OOM = "Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:1490852kB, anon-rss:811948kB, file-rss:102624kB, shmem-rss:0kB, UID:0 pgtables:2168kB oom_score_adj:0"

    def test_a_kill_of_another_process_is_another_workloads(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [(599.0, self.OOM.format(pid=7747, name="log-shipper"))])
        folder.raw(NODES[0], "[rank1]: Traceback (most recent call last):")
        folder.raw(NODES[0], '[rank1]:   File "/workspace/train.py", line 88, in collate')
        folder.raw(NODES[0], "[rank1]: KeyError: 'labels'")
        folder.job(NODES[0], 600.5, "rank 1: closing writers")
        folder.peers_lose(NODES[1], 601)
        assert folder.verdict().cls == "user/exception"

    def test_a_kill_of_the_process_that_the_launcher_lost_is_the_cause(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [(600.0, self.OOM.format(pid=16528, name="python"))])
        folder.raw(
            NODES[0],
            "E0302 10:10:01.000000 16500 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 16528) of binary: /usr/bin/python",
        )
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.node, verdict.rank) == ("user/host-oom", NODES[0], 1)

    def test_a_kill_that_nothing_explains_stays_unknown_and_names_the_rank(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [])
        folder.raw(
            NODES[0],
            "E0302 10:10:01.000000 16500 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 16528) of binary: /usr/bin/python",
        )
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.rank, verdict.at_fault) == ("unknown", 1, None)
        assert verdict.next_steps


class TestEndedOnPurpose:
    def test_a_time_limit_is_read_before_exit_codes(self, folder: Folder) -> None:
        folder.raw(
            NODES[0], f"slurmstepd: error: *** STEP 4711.0 ON {NODES[0]} CANCELLED AT 2026-03-02T10:10:00 DUE TO TIME LIMIT ***"
        )
        folder.peers_lose(NODES[1], 601)
        verdict = folder.verdict()
        assert (verdict.cls, verdict.retry) == ("platform/preemption", "same-nodes")

    def test_a_job_that_ended_well_did_not_fail(self, folder: Folder) -> None:
        folder.raw(
            NODES[0],
            "[rank0]:[W302 10:10:00.100000000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
        )
        folder.write(
            "sacct.txt",
            "JobID|JobName|State|ExitCode|Start|End|NodeList\n"
            "4711|train|COMPLETED|0:0|2026-03-02T10:00:00|2026-03-02T10:10:02|gpu-node-[001-002]\n",
        )
        verdict = folder.verdict()
        assert (verdict.cls, verdict.retry, verdict.remediation) == ("none", "same-nodes", "none")


class TestWhatCouldNotBeSeen:
    def test_without_kernel_logs_the_blind_spots_are_said(self, folder: Folder) -> None:
        folder.peers_lose(NODES[1], 601)
        coverage = {entry.source: entry for entry in folder.verdict().coverage}
        assert coverage["kernel"].status == "missing"
        assert "hardware/nvlink" in coverage["kernel"].blind_to

    def test_a_node_without_its_kernel_log_makes_the_source_partial(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [])
        folder.peers_lose(NODES[1], 601)
        entry = next(entry for entry in folder.verdict().coverage if entry.source == "kernel")
        assert entry.status == "partial"
        assert NODES[1] in entry.detail

    def test_an_empty_folder_gives_unknown_and_says_so(self, tmp_path: Path) -> None:
        verdict = workbench.load(tmp_path).triage()
        assert verdict.cls == "unknown"
        assert any(entry.status in ("failed", "missing") for entry in verdict.coverage)

    def test_a_page_of_metrics_without_stamps_costs_a_log_without_year_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "node-a.prom").write_text('DCGM_FI_DEV_GPU_TEMP{gpu="5",Hostname="node-a"} 41\n', encoding="utf-8")
        (tmp_path / "job.log").write_text(
            "[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
            "[rank0]:[E824 11:30:02.553112001 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=4481, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600090 milliseconds before "
            "timing out.\n",
            encoding="utf-8",
        )
        verdict = workbench.load(tmp_path).triage()
        assert (verdict.cls, verdict.rank) == ("hardware/gpu-memory", 5)

    def test_the_output_of_a_job_may_be_called_launch_log(self, tmp_path: Path) -> None:
        (tmp_path / "launch.log").write_text(
            "[rank5]: Traceback (most recent call last):\n"
            '[rank5]:   File "/w/train.py", line 3, in <module>\n'
            "[rank5]: KeyError: 'labels'\n",
            encoding="utf-8",
        )
        assert workbench.load(tmp_path).triage().cls == "user/exception"

    def test_damaged_evidence_costs_only_itself(self, folder: Folder) -> None:
        folder.kernel(NODES[0], [(600.1, XID_95)])
        folder.peers_lose(NODES[1], 601)
        folder.write("events.json", '{"items": [{"kind": "Event", "reason": "Bac')
        (folder.root / "metrics.prom.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
        verdict = folder.verdict()
        assert verdict.cls == "hardware/gpu-memory"
        said = " ".join(entry.detail for entry in verdict.coverage if entry.status in ("failed", "partial"))
        assert "events.json" in said
        assert "metrics.prom.gz" in said


def test_confidence_of_rivals_is_what_the_verdict_leaves(folder: Folder) -> None:
    folder.kernel(NODES[0], [(600.1, XID_95)])
    folder.raw(NODES[1], "[rank3]: ValueError: bad batch")
    folder.job(NODES[1], 602.0, "rank 3: closing writers")
    verdict = folder.verdict()
    assert sum(hypothesis.score for hypothesis in verdict.hypotheses) <= 1.0 - verdict.confidence + 0.01


def test_a_table_of_the_platform_knows_its_line_better_than_a_symptom_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "2026-05-04 10:00:01 launcher: waiting for pod llm-0\n"
        'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32\n',
        encoding="utf-8",
    )

    verdict = workbench.load(tmp_path).triage()

    assert (verdict.cls, verdict.evidence_records[0].signature) == ("platform/storage", "k8s-mount")


def test_of_two_symptoms_the_one_that_says_more_counts_however_late_it_is(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        "E0101 10:00:00.000000 1 model_lifecycle.cc:638] failed to load 'resnet' version 1: Internal: unable to create stream\n"
        "timeout: sending signal TERM to command 'nvidia-smi'\n",
        encoding="utf-8",
    )

    verdict = workbench.load(tmp_path).triage()

    assert verdict.cls == "driver/hang"
