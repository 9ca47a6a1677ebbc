"""What incidents of other shapes than the benchmark's taught: who met a fault, whose clock is off, whose process a fault hit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.triage.folders import verdict_of as _verdict
from workbench.incident import IncidentVerdict

BEGIN = datetime(2026, 3, 2, 10, 0, 0, tzinfo=UTC)
FAULT = "NVRM: Xid (PCI:0000:5d:00): {code}, pid={pid}, name=python, {text}"
WARP = "Graphics SM Warp Exception on (GPC {gpc}, TPC 3, SM 1): Illegal Instruction Encoding"
ILLEGAL = "[rank{rank}]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
EXIT = (
    "E0302 {at:%H:%M:%S}.000000 41 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) "
    "local_rank: {local} (pid: {pid}) of binary: /usr/bin/python\n"
)


def _at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def _up(rank: int, node: str, seconds: float, world: int = 8, each: int = 4) -> str:
    return f"{_at(seconds):%Y-%m-%d %H:%M:%S},000 | INFO | trainer | rank {rank}/{world} local_rank {rank % each} on {node} cuda:{rank % each} (H100)\n"


def _steps(begin: float, end: float) -> str:
    return "".join(
        f"{_at(at):%Y-%m-%d %H:%M:%S},000 | INFO | trainer | rank 0 | step {int(at)}/90000 | loss 2.2 | step 5.00s\n"
        for at in range(int(begin), int(end), 5)
    )


def _kernel(node: str, lines: list[tuple[float, str]]) -> str:
    rows = [(-500_000.0, "Linux version 5.15.0-1053-nvidia (buildd@host) #54-Ubuntu SMP"), *lines]
    return "".join(f"{_at(at):%Y-%m-%dT%H:%M:%S}+0000 {node} kernel: {text}\n" for at, text in rows)


class TestRepeatedFaults:
    """One job that is started again three times, an hour apart, on the same two nodes."""

    def _job(self, root: Path, ranks: tuple[int, int, int], code: int, units: tuple[int, int, int]) -> IncidentVerdict:
        log, kernel = "", []
        for number, rank in enumerate(ranks):
            at, pid = 3700.0 * number + 600.0, 700 + number
            first = 4 if rank >= 4 else 0
            for local in range(4):
                log += _up(first + local, "node-b", at - 600.0) + _up(4 - first + local, "node-a", at - 600.0)
            log += (
                _steps(at - 60.0, at) + ILLEGAL.format(rank=rank) + EXIT.format(at=_at(at + 2), code=1, local=rank % 4, pid=pid)
            )
            text = (
                WARP.format(gpc=units[number])
                if code == 13
                else f"Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC{number} GPCCLIENT_T1_{number} faulted @ 0x7f3a_00000000."
            )
            kernel.append((at, FAULT.format(code=code, pid=pid, text=text)))
        return _verdict(root, {"logs/train.log": log, "kernel/node-b.log": _kernel("node-b", kernel)})

    def test_the_gpu_that_faults_under_other_ranks_is_to_blame_although_cuda_said_so_first(self, tmp_path: Path) -> None:
        verdict = self._job(tmp_path, (7, 3, 7), 13, (4, 4, 4))
        assert (verdict.cls, verdict.node, verdict.at_fault) == ("hardware/gpu-other", "node-b", "gpu")
        assert verdict.gpu is not None
        assert verdict.gpu.pci == "0000:5d:00.0"

    def test_one_rank_that_faults_after_each_restart_in_place_is_its_own_data(self, tmp_path: Path) -> None:
        verdict = self._job(tmp_path, (3, 3, 3), 31, (1, 2, 3))
        assert (verdict.cls, verdict.rank, verdict.at_fault) == ("user/illegal-memory-access", 3, "rank")


class TestFaultsOfOthers:
    CONTAINED = FAULT.format(code=94, pid=55_100, text="Contained: SM (0x1). RST: No, D-RST: No")

    def _job(self, root: Path, error: str) -> IncidentVerdict:
        log = "".join(_up(rank, "node-a", 0.0, world=2, each=2) for rank in range(2)) + _steps(10.0, 600.0)
        log += f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 4, in <module>\n[rank1]:     main()\n[rank1]: {error}\n'
        log += EXIT.format(at=_at(603), code=1, local=1, pid=901)
        return _verdict(root, {"logs/job.log": log, "kernel/node-a.log": _kernel("node-a", [(598.0, self.CONTAINED)])})

    def test_a_contained_error_of_another_process_makes_no_value_wrong(self, tmp_path: Path) -> None:
        verdict = self._job(tmp_path, "ValueError: invalid literal for int() with base 10: 'NaN'")
        assert (verdict.cls, verdict.rank) == ("user/exception", 1)

    def test_the_process_that_met_it_says_so(self, tmp_path: Path) -> None:
        verdict = self._job(tmp_path, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")
        assert (verdict.cls, verdict.rank, verdict.at_fault) == ("hardware/gpu-memory", 1, "gpu")


def test_the_rank_that_met_a_failed_disk_is_named(tmp_path: Path) -> None:
    """The disk is the node's, and one rank ran into it."""
    log = _up(0, "node-a", 0.0, world=2, each=1) + _steps(10.0, 600.0)
    other = (
        _up(1, "node-b", 0.0, world=2, each=1)
        + "[rank1]: Traceback (most recent call last):\n[rank1]: OSError: [Errno 5] Input/output error: '/scratch/shard.bin'\n"
    )
    kernel = [
        (590.0 + number, f"nvme1n1: I/O Cmd(0x2) @ LBA {913312 + 256 * number}, 256 blocks, I/O Error (sct 0x2 / sc 0x81) MORE")
        for number in range(4)
    ]
    verdict = _verdict(
        tmp_path,
        {"logs/node-a.log": log, "logs/node-b.log": other + EXIT.format(at=_at(602), code=1, local=0, pid=7), "kernel/node-b.log": _kernel("node-b", kernel)},
    )  # fmt: skip
    assert (verdict.cls, verdict.node, verdict.rank, verdict.at_fault) == ("hardware/host", "node-b", 1, "node")


def test_a_node_whose_log_begins_and_ends_early_has_a_slow_clock(tmp_path: Path) -> None:
    """Only rank 0 writes steps, so nothing but the two ends of the logs compares the clocks."""
    files, late = {}, -312.0
    for at, node in enumerate(("node-a", "node-b", "node-c", "node-d")):
        off = late if node == "node-c" else 0.0
        log = "".join(_up(4 * at + local, node, off, world=16) for local in range(4)) + (_steps(10.0, 900.0) if not at else "")
        files[f"logs/{node}.log"] = log + EXIT.format(at=_at(903 + at + off), code=-6, local=2, pid=703)
        files[f"kernel/{node}.log"] = _kernel(
            node, [(899.0 + off, FAULT.format(code=79, pid=703, text="GPU has fallen off the bus."))] if off else []
        )
    verdict = _verdict(tmp_path, files)
    assert verdict.clock_skew == {"node-c": pytest.approx(late, abs=5.0)}
    assert (verdict.cls, verdict.node) == ("hardware/gpu-lost", "node-c")
    assert verdict.evidence["signature"].iloc[0] == "xid-79"


def test_a_node_that_joins_late_and_gives_up_late_has_no_wrong_clock(tmp_path: Path) -> None:
    """Before the first step every rank waits as long as its own time-out."""
    files = {}
    for at, node in enumerate(("node-a", "node-b", "node-c", "node-d")):
        off = 300.0 if node == "node-c" else 0.0
        log = "".join(_up(4 * at + local, node, off, world=16) for local in range(4))
        files[f"logs/{node}.log"] = log + EXIT.format(at=_at(303 + at + off), code=1, local=2, pid=703)
    assert _verdict(tmp_path, files).clock_skew == {}


class TestDeaths:
    def _summary(self, code: int, name: str) -> str:
        rows = [(0, -15, "SIGTERM"), (1, -15, "SIGTERM"), (2, code, name)]
        return EXIT.format(at=_at(600), code=code, local=2, pid=702) + "".join(
            f"[{rank}]:\n  time      : {_at(600):%Y-%m-%d_%H:%M:%S}\n  host      : localhost\n  rank      : {rank} (local_rank: {rank})\n"
            f"  exitcode  : {number} (pid: {700 + rank})  ({sign})\n  error_file: <N/A>\n"
            for rank, number, sign in rows
        )

    @pytest.mark.parametrize(("code", "name"), [(-8, "SIGFPE"), (-24, "SIGXCPU"), (-5, "SIGTRAP"), (-31, "SIGSYS")])
    def test_the_rank_that_died_of_its_own_signal_is_named_before_those_the_agent_ended(
        self, tmp_path: Path, code: int, name: str
    ) -> None:
        assert _verdict(tmp_path, {"job.log": _steps(10.0, 600.0) + self._summary(code, name)}).rank == 2

    def test_an_agent_that_says_localhost_means_the_machine_whose_kernel_log_is_there(self, tmp_path: Path) -> None:
        kill = "[80696.012725] Memory cgroup out of memory: Killed process 702 (python3.14) total-vm:1568248kB, anon-rss:743252kB, file-rss:131624kB\n"
        files = {"logs/job.log": _steps(10.0, 600.0) + self._summary(-9, "SIGKILL"), "kernel/node-a.log": kill}
        verdict = _verdict(tmp_path, files)
        assert (verdict.cls, verdict.node, verdict.rank) == ("user/host-oom", "node-a", 2)


def test_the_member_that_a_monitored_barrier_waited_for_is_named(tmp_path: Path) -> None:
    log = _steps(10.0, 60.0) + "".join(
        f"[rank{rank}]: RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0. Please check rank 0 logs for faulty rank.\n"
        for rank in (1, 2, 3)
    )
    verdict = _verdict(tmp_path, {"job.log": log})
    assert (verdict.cls, verdict.rank, verdict.at_fault) == ("user/hang", 0, "rank")


def test_a_script_that_may_not_be_run_is_the_jobs_setting(tmp_path: Path) -> None:
    log = "job.sh: line 2: ./launch.sh: Permission denied\nexit status 126\n"
    assert _verdict(tmp_path, {"job.log": log}).cls == "user/config"


def test_a_command_that_timeout_ended_was_ended_on_purpose(tmp_path: Path) -> None:
    log = "loader ready\ntimeout: sending signal TERM to command ‘{}’\nexit status 124\n"
    assert _verdict(tmp_path / "job", {"job.log": log.format("python3")}).cls == "platform/preemption"
    assert _verdict(tmp_path / "tool", {"job.log": log.format("nvidia-smi")}).cls != "platform/preemption"


def test_a_cancel_by_root_is_no_wish_of_the_user(tmp_path: Path) -> None:
    log = _steps(10.0, 600.0) + "slurmstepd: error: *** JOB 7012 ON big1 CANCELLED AT 2026-03-02T10:10:00 ***\n"
    request = "[2026-03-02T10:10:00.001] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7012 uid {uid}\n"
    by_root = _verdict(tmp_path / "root", {"logs/slurm-7012.out": log, "logs/slurmctld.log": request.format(uid=0)})
    by_user = _verdict(tmp_path / "user", {"logs/slurm-7012.out": log, "logs/slurmctld.log": request.format(uid=1044)})
    assert (by_root.cls, by_user.cls) == ("platform/preemption", "user/stopped")


def test_a_full_connection_table_is_why_nobody_reaches_the_node(tmp_path: Path) -> None:
    wait = "[rank4]:[W302 10:10:00.100000000 socket.cpp:767] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: 110 - Connection timed out).\n"
    log = _up(4, "node-b", 0.0) + wait
    drop = "nf_conntrack: nf_conntrack: table full, dropping packet"

    def verdict(name: str, drops: list[float]) -> IncidentVerdict:
        return _verdict(
            tmp_path / name, {"logs/node-b.log": log, "kernel/node-a.log": _kernel("node-a", [(at, drop) for at in drops])}
        )

    full = verdict("full", [100.0 + 9.0 * number for number in range(40)])
    assert (full.cls, full.node, full.evidence["signature"].iloc[0]) == ("platform/network", "node-a", "conntrack-full")
    assert "conntrack-full" not in set(verdict("old", [-90_000.0]).evidence["signature"])


def test_ray_names_the_worker_that_its_memory_monitor_killed(tmp_path: Path) -> None:
    log = (
        "(TrainController pid=22, ip=10.8.0.4) - (ip=10.8.0.11, pid=3312) world_rank=1, local_rank=1, node_rank=0\n"
        "(TrainController pid=22, ip=10.8.0.4) - (ip=10.8.0.12, pid=4101) world_rank=2, local_rank=0, node_rank=1\n"
        "(RayTrainWorker pid=3312, ip=10.8.0.11) [rank1]:[E302 10:10:00.101223331 ProcessGroupNCCL.cpp:555] [Rank 1] Collective WorkNCCL(SeqNum=8211) raised the following async exception: NCCL error: remote process exited or there was a network error\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 210, in <module>\n    result = trainer.fit()\n'
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        "Memory on the node (IP: 10.8.0.12, ID: 6f) where the task (actor ID: 2f, name=RayTrainWorker.__init__, pid=4101, memory used=391.02GB) was running was 482.11GB / 503.52GB (0.957485)\n"
    )
    verdict = _verdict(tmp_path, {"driver.log": log})
    assert (verdict.cls, verdict.node, verdict.rank) == ("user/host-oom", "10.8.0.12", 2)


class TestNodesWithoutAJob:
    LINE = "0, GPU-5be4d6e0-1111-2222-3333-944455556660, 00000000:18:00.0\n"

    def test_a_tool_that_shows_no_fault_says_neither_that_a_job_failed_nor_that_all_is_well(self, tmp_path: Path) -> None:
        query = "$ nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv,noheader\n" + self.LINE
        verdict = _verdict(tmp_path, {"smi/node-a.txt": query})
        assert verdict.cls == "unknown"
        assert "The job" not in verdict.summary

    def test_a_kernel_log_without_a_fault_does_not_say_that_all_is_well(self, tmp_path: Path) -> None:
        verdict = _verdict(tmp_path, {"kernel/node-a.log": _kernel("node-a", [(0.0, "perf: interrupt took too long")])})
        assert verdict.cls == "unknown"
        assert "job failed" not in verdict.summary
