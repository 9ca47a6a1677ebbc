"""What jobs of other launchers, libraries and platforms taught: who failed when only an exit block says so, and what is no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.triage.folders import verdict_of
from workbench.incident import IncidentVerdict

STACKS = Path(__file__).parents[1] / "data" / "stacks"
RAISED = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    main()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n"
NO_ROOM = (
    "2026-03-02 11:06:{second}.45: I tensorflow/stream_executor/cuda/cuda_driver.cc:745] failed to allocate 373.25M (391379200 bytes) "
    "from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
)
BAR = "-" * 74 + "\n"


def job(root: Path, text: str, name: str = "job.log") -> IncidentVerdict:
    return verdict_of(root, {f"logs/{name}": text})


class TestWhoseItWas:
    """The lines of the failure carry no rank; what a launcher says of one worker does."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            pytest.param(
                RAISED + OOM + " rank=2\n2026-05-01T10:00:01.000001Z ERROR text_generation_launcher: Shard 2 failed to start\n",
                ("user/gpu-oom", 2),
                id="TGI: fields at the end of a record",
            ),
            pytest.param(
                RAISED + OOM + "2026-05-01T10:00:01.000001Z ERROR text_generation_launcher: Shard 1 failed to start\n",
                ("user/gpu-oom", 1),
                id="TGI: the launcher's own line",
            ),
            pytest.param(
                "(EngineCore_0 pid=22) ERROR 04-01 10:00:00 [core.py:390] RuntimeError: Worker failed with error 'CUDA out of memory. "
                "Tried to allocate 2.00 GiB', please check the stack trace above for the root cause\n"
                "ERROR 04-01 10:00:02 [multiproc_executor.py:140] Worker proc VllmWorker-3 died unexpectedly, shutting down executor.\n",
                ("user/gpu-oom", 3),
                id="vLLM: the worker that ended first",
            ),
            pytest.param(
                NO_ROOM.format(second=12)
                + NO_ROOM.format(second=13)
                + BAR
                + "mpirun noticed that process rank 5 with PID 4120 on node node-a exited on signal 9 (Killed).\n"
                + BAR,
                ("user/gpu-oom", 5),
                id="Open MPI: the first process that ended",
            ),
            pytest.param(
                RAISED + "KeyError: 'labels'\n" + BAR + "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n" + BAR,
                ("user/exception", 1),
                id="MPI_Abort",
            ),
            pytest.param(
                RAISED + "AssertionError: Rank 9: found NaN in local forward loss calculation. Device: 1, node: node-b\n",
                ("user/numerics", 9),
                id="Megatron: an assertion",
            ),
        ],
    )
    def test_the_worker_that_the_launcher_names_is_the_rank(self, tmp_path: Path, text: str, expected: tuple[str, int]) -> None:
        verdict = job(tmp_path, text)
        assert (verdict.cls, verdict.rank) == expected

    def test_megatron_names_rank_node_and_device_of_a_result_that_cannot_be_right(self, tmp_path: Path) -> None:
        verdict = job(
            tmp_path,
            "[rank9]: RuntimeError: Rank 9, node node-b, device 1, iteration 402: Unexpected result inf (message='found Inf in local "
            "grad norm for bucket #1 in backward pass before data-parallel communication collective')\n",
        )
        assert (verdict.cls, verdict.rank, verdict.node, verdict.gpu and verdict.gpu.index) == ("user/numerics", 9, "node-b", 1)

    def test_the_lines_that_grep_found_keep_the_heads_that_their_files_gave_them(self, tmp_path: Path) -> None:
        verdict = job(
            tmp_path,
            "prefill-2.log:[2026-03-02 15:16:23] prefill-2:311:405 [0] transport/net_ib.cc:199 NCCL WARN NET/IB : mlx5_3:1 Got async "
            "error event: port error\n"
            "prefill-2.log:[2026-03-02 15:16:31] prefill-2:311:405 [0] transport/net_ib.cc:199 NCCL WARN NET/IB : mlx5_3:1 Got async "
            "error event: port active\n",
        )
        assert (verdict.cls, verdict.node) == ("hardware/network-link", "prefill-2")

    def test_a_batch_systems_mail_names_the_only_node_of_the_job(self, tmp_path: Path) -> None:
        verdict = job(
            tmp_path, "PBS Job Id: 71.head\nExec host:  gpu-7/3\njob deleted\njob preempted (node failure)\n", "mail.txt"
        )
        assert (verdict.cls, verdict.node, verdict.at_fault) == ("platform/node-lost", "gpu-7", "node")


class TestVictimsOnly:
    def test_a_rank_that_waits_for_the_shared_seed_is_no_cause(self, tmp_path: Path) -> None:
        text = RAISED + "RuntimeError: Timed out receiving the shared seed from the distribtued store on Rank 2. (world_size=4)\n"
        verdict = job(tmp_path, text)
        assert (verdict.cls, verdict.retry) == ("unknown", "same-nodes")
        assert [event.role for event in verdict.evidence_records] == ["symptom"]

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("Barrier_id: PjRT_Client_Connect. Timed out task names:", "user/config"),
            ("Id: [Init]Wait_for_all_tasks_to_register. Timed out task names:", "user/config"),
            ("Barrier_id: multihost_broadcast_sync3. Timed out task names:", "unknown"),
            ("Id: sync_global_devices:load::0. This usually happens because a task was late.", "unknown"),
        ],
    )
    def test_only_a_first_meeting_that_nobody_reached_is_a_wrong_address(self, tmp_path: Path, name: str, expected: str) -> None:
        error = f"jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. {name}\n/job:jax_worker/replica:0/task:3\n"
        assert job(tmp_path, error).cls == expected

    def test_a_peer_that_closed_its_connection_does_not_hang(self, tmp_path: Path) -> None:
        verdict = job(
            tmp_path,
            "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            "rank 0. Please check rank 0 logs for faulty rank.\n"
            "[rank1]:  Original exception:\n"
            "[rank1]: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:35230\n"
            "E0526 11:02:25.394000 41 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) local_rank: 0 (pid: 709) "
            "of binary: /usr/bin/python\n",
        )
        assert (verdict.cls, verdict.rank, verdict.at_fault) == ("unknown", 0, None)

    def test_a_loaders_error_that_is_cut_before_its_own_traceback_is_still_the_codes(self, tmp_path: Path) -> None:
        text = (
            RAISED
            + "IndexError: Caught IndexError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
        )
        verdict = job(tmp_path, text)
        assert (verdict.cls, verdict.rank) == ("user/exception", None)


class TestNothingFailed:
    @pytest.mark.parametrize(
        "line",
        [
            "03/26 00:4{n}:15 - mmengine - INFO - Epoch(train) [10][{n}50/4309]  lr: 5.9e-05  time: 0.83  grad_norm: 3.1  loss: 1.1{n}",
            "03/26 00:4{n}:15 - mmengine - INFO - Iter(train) [ {n}50/80000]  lr: 5.9e-05  time: 0.83  loss: 1.1{n}",
            "2026-03-26 00:4{n}:15,100 - mmdet - INFO - Epoch [1][{n}50/7330]\tlr: 1.9e-03, time: 0.8, loss: 1.2{n}",
            "Train: 12 [ {n}50/1251 (  4%)]  Loss: 4.1{n} (4.1)  Time: 0.3s,  3400.1/s  LR: 5.0e-04  Data: 0.01",
            "{n}/100 [>.............................] - ETA: 1:02 - loss: 0.69{n} - accuracy: 0.51",
            "{n}/100 ━━━━━━━━━━━━━━━━━━━━ 1:02 12ms/step - accuracy: 0.51 - loss: 0.69{n}",
            "step={n} | train/loss=2.{n} | train/grad_norm=0.5",
        ],
    )
    def test_a_log_of_steps_alone_is_of_a_job_that_runs(self, tmp_path: Path, line: str) -> None:
        verdict = job(tmp_path, "".join(line.format(n=number) + "\n" for number in range(1, 6)))
        assert (verdict.cls, verdict.retry, verdict.remediation) == ("none", "same-nodes", "none")

    def test_a_scale_that_still_finds_its_size_is_no_divergence_and_one_that_falls_to_nothing_is(self, tmp_path: Path) -> None:
        steps = "".join(f"| epoch 001:    {n}00 / 1374 loss=14.{n}, wps=49604, ups=0, num_updates={n}00, oom=0\n" for n in (1, 2))
        fall = "".join(f"| WARNING: overflow detected, setting loss scale to: {2.0**-n}\n" for n in range(1, 15))
        begun = verdict_of(tmp_path / "begun", {"logs/job.log": steps + "".join(fall.splitlines(True)[:6]) + steps})
        ended = verdict_of(tmp_path / "ended", {"logs/job.log": steps + fall + "Traceback (most recent call last):\n"})
        assert (begun.cls, ended.cls) == ("none", "user/numerics")

    def test_a_log_without_a_word_that_is_known_still_gets_advice(self, tmp_path: Path) -> None:
        verdict = job(tmp_path, "Process 3 sees devices:  [cuda(id=3)]\n3 [[1. 1. 1.]] {cuda(id=3)}\n")
        assert (verdict.cls, verdict.retry, verdict.remediation) == ("unknown", "same-nodes", "restart-task")


class TestStacks:
    def test_a_stack_that_gdb_printed_ends_in_a_lock(self, tmp_path: Path) -> None:
        verdict = job(tmp_path, (STACKS / "gdb_lock_after_fork.txt").read_text(encoding="utf-8"), "gdb-41.txt")
        assert verdict.cls == "user/hang"
        assert "__lll_lock_wait" in verdict.evidence_records[0].text

    def test_a_lock_file_of_a_build_that_is_gone_holds_the_only_process(self, tmp_path: Path) -> None:
        verdict = job(tmp_path, (STACKS / "pyspy_file_lock.txt").read_text(encoding="utf-8"), "pyspy-7301.txt")
        assert (verdict.cls, verdict.rank) == ("user/hang", 0)
        assert "file_baton" in verdict.evidence_records[0].text


class TestPlatforms:
    @pytest.mark.parametrize(
        ("reason", "expected"),
        [
            ("trying and failing to pull image", "platform/image"),
            ("image can't be pulled", "platform/image"),
            ("PodInitializing", "unknown"),
        ],
    )
    def test_a_pod_that_waits_for_its_image_says_so_instead_of_its_log(self, tmp_path: Path, reason: str, expected: str) -> None:
        text = f'$ kubectl logs job-0\nError from server (BadRequest): container "train" in pod "job-0" is waiting to start: {reason}\n'
        assert verdict_of(tmp_path, {"logs/kubectl.txt": text}).cls == expected

    def test_an_image_that_no_registry_has_is_on_no_other_node_either(self, tmp_path: Path) -> None:
        absent = 'Failed to pull image "a/train:9": rpc error: code = NotFound desc = a/train:9: not found\n'
        slow = 'Failed to pull image "a/train:9": rpc error: code = DeadlineExceeded desc = context deadline exceeded\n'
        said = [verdict_of(tmp_path / name, {"logs/launcher.log": text}) for name, text in (("absent", absent), ("slow", slow))]
        assert [(one.cls, one.retry) for one in said] == [("platform/image", "fix-first"), ("platform/image", "exclude-node")]

    def test_what_srun_says_of_a_lost_node_comes_before_what_another_nodes_daemon_ends(self, tmp_path: Path) -> None:
        verdict = job(
            tmp_path,
            "srun: error: Node failure on node-c\n"
            "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.\n"
            "slurmstepd: error: *** STEP 19.0 ON node-a CANCELLED AT 2026-03-06T03:17:51 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
        )
        assert (verdict.cls, verdict.node) == ("platform/node-lost", "node-c")
        assert [event.text[:18] for event in verdict.evidence_records if event.role == "cause"] == ["srun: error: Node "]

    def test_a_step_that_slurm_ended_for_a_failed_task_did_fail_whatever_the_script_returned(self, tmp_path: Path) -> None:
        sacct = (
            "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
            "------------ ---------- ---------- ---------- ---------- ---------- -------- \n"
            "71                train       gpu        acc         64  COMPLETED      0:0 \n"
            "71.0              zproc                  acc         64  COMPLETED      0:0 \n"
        )
        log = (
            "[2026-03-06T03:17:51.809] error: *** STEP 71.0 ON node-a CANCELLED AT 2026-03-06T03:17:51 DUE TO TASK FAILURE ***\n"
            "srun: error: node-a: tasks 0-4,6-7: Terminated\n"
        )
        assert verdict_of(tmp_path, {"slurm/sacct.txt": sacct, "logs/job.log": log}).cls == "unknown"

    def test_that_the_kubelet_waited_in_vain_follows_from_the_mount_that_failed(self, tmp_path: Path) -> None:
        events = (
            "Events:\n"
            "  Type     Reason       Age    From               Message\n"
            "  ----     ------       ----   ----               -------\n"
            "  Normal   Scheduled    4m44s  default-scheduler  Successfully assigned ns-a/api-0 to node-a\n"
            '  Warning  FailedMount  102s   kubelet            MountVolume.SetUp failed for volume "nfs" : mount failed: exit status 32\n'
            "Output: mount.nfs: Connection timed out\n"
            "  Warning  FailedMount  27s (x2 over 2m41s)  kubelet  Unable to attach or mount volumes: unmounted volumes=[nfs], "
            "unattached volumes=[nfs]: timed out waiting for the condition\n"
        )
        verdict = verdict_of(tmp_path, {"describe/events.txt": events})
        causes = [event.line for event in verdict.evidence_records if event.role == "cause"]
        assert (verdict.cls, causes) == ("platform/storage", [5])

    def test_fabric_manager_that_refuses_its_configuration_is_to_be_put_right(self, tmp_path: Path) -> None:
        verdict = job(tmp_path, "10.0.0.7: fabric manager config file item: FABRIC_MODE has an invalid value\n" * 3)
        assert (verdict.cls, verdict.retry, verdict.remediation) == ("driver/fabric-manager", "fix-first", "fix-platform")


class TestTraps:
    TRAP = "Graphics SM Warp Exception on (GPC {n}, TPC 0, SM 0): Illegal Instruction Encoding"

    def _kernel(self, root: Path, after: str) -> IncidentVerdict:
        rows = [
            f"Nov 25 15:34:36 node-a kernel: [158878.52927{n}] NVRM: Xid (PCI:0000:02:00): 13, pid=2545, {self.TRAP.format(n=n)}\n"
            for n in range(3)
        ]
        return verdict_of(root, {"kernel/node-a.log": "".join(rows) + after})

    def test_a_gpu_that_cannot_be_initialised_after_a_trap_was_broken_and_the_program_was_not(self, tmp_path: Path) -> None:
        dead = "Nov 25 15:40:58 node-a kernel: [159259.989773] NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x24:0x65:1185)\n"
        gone, usable = self._kernel(tmp_path / "gone", dead), self._kernel(tmp_path / "usable", "")
        assert (gone.cls, gone.at_fault, gone.time) == ("hardware/gpu-lost", "gpu", usable.time)
        assert usable.cls == "user/illegal-memory-access"

    def test_another_gpu_that_cannot_be_initialised_says_nothing_of_the_trap(self, tmp_path: Path) -> None:
        other = "Nov 25 15:40:58 node-a kernel: [159259.989773] NVRM: GPU 0000:5d:00.0: RmInitAdapter failed! (0x24:0x65:1185)\n"
        verdict = self._kernel(tmp_path, other)
        assert "user/illegal-memory-access" in {verdict.cls, *(one.cls for one in verdict.hypotheses)}
