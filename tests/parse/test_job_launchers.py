"""What launchers and servers say in several lines or in their own words becomes rank, node, GPU, progress and a word of success."""

from __future__ import annotations

import pytest

from workbench.catalog import signatures
from workbench.model import Event, Line, Parsed
from workbench.parse.job import parse_job
from workbench.parse.prefix import context, split_prefix
from workbench.parse.progress import step_of


def _parse(text: str) -> Parsed:
    lines = [Line(no, line) for no, line in enumerate(text.strip("\n").split("\n"), 1)]
    return parse_job(lines, file="logs/job.log", year=2026)


def _role(event: Event) -> str:
    return event.role or signatures()[event.signature].role


def _one(parsed: Parsed, signature: str) -> Event:
    return next(event for event in parsed.events if event.signature == signature)


def _causes(parsed: Parsed) -> list[Event]:
    return [event for event in parsed.events if _role(event) == "cause"]


def test_blank_in_front_of_a_stamp_is_no_part_of_the_text() -> None:
    head = split_prefix(" [2025-06-03 11:02:00] iteration    20510/   95367 | lm loss: 2.3E+00 |")
    assert head.time == 1748948520.0
    assert split_prefix('  File "train.py", line 3, in main').rest.startswith("  File")


@pytest.mark.parametrize(
    ("text", "rank", "level"),
    [
        ("2024-09-02 05:14:10,101: rank3[4410][MainThread]: INFO: composer.trainer: [batch=1/2]", 3, "INFO"),
        ("[05/27/2025-21:12:37] [TRT-LLM] [RANK 3] [E] Failed", 3, "ERROR"),
        ("(head, rank=0, pid=4413, ip=10.0.8.7) {'loss': 1.2}", 0, ""),
        ("[INFO|trainer.py:3503] 2024-10-03 07:31:44,012 >> Saving model", None, "INFO"),
        ("  0%|     | 0/23 [00:00<?, ?it/s][2025-04-11 09:30:55 TP7] Scheduler hit an exception: x", 7, ""),
    ],
)
def test_heads_of_frameworks(text: str, rank: int | None, level: str) -> None:
    head = split_prefix(text)
    assert (head.rank, head.level) == (rank, level)


def test_sky_stamp_has_no_year() -> None:
    head = split_prefix("I 05-04 00:50:41 utils.py:118] === Checking ===", context(["x"], 2026))
    assert (head.yearless, head.level, head.rest) == (True, "INFO", " === Checking ===")


def test_srun_numbers_are_seen_beside_sruns_own_lines() -> None:
    ctx = context(["3: step 1", "4: step 1", "srun: error: node-a: tasks 0-7: Terminated", "slurmstepd: error: x", "srun: y"])
    assert ctx.srun


@pytest.mark.parametrize(
    "text",
    [
        '10.0.0.6:33820 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "[2025-05-06 07:01:44] The server is fired up and ready to roll!",
        "INFO:     Application startup complete.",
        "I0122 03:13:07.101610 1 http_server.cc:4554] Started HTTPService at 0.0.0.0:8000",
        "Decode batch. #running-req: 71, gen throughput (token/s): 3012.55, #queue-req: 0, ",
    ],
)
def test_server_that_answers_makes_progress(text: str) -> None:
    step = step_of(text)
    assert step is not None
    assert step.kind == "serving"


@pytest.mark.parametrize(
    "text",
    [
        'INFO:     10.0.0.6:33820 - "GET /health HTTP/1.1" 200 OK',
        '"POST /v1/completions HTTP/1.1" 500 Internal Server Error',
        "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 1 reqs",
    ],
)
def test_health_check_or_idle_engine_is_no_progress(text: str) -> None:
    step = step_of(text)
    assert step is None or step.kind == "throughput"


@pytest.mark.parametrize(
    "text",
    [
        "{'train_runtime': 1900.4412, 'train_loss': 1.4021, 'epoch': 3.0}",
        "[2025-04-12 09:44:06,112] [INFO] [dist_master.py:301:stop] The job master exits with reason: Succeeded",
        "Job 'raysubmit_8u5' succeeded",
        "[default] worker group successfully finished. Waiting 300 seconds for other agents to finish.",
        "Training completed",
    ],
)
def test_last_word_of_success_is_an_event(text: str) -> None:
    facts = _parse(f"step 1 loss 2.0\n{text}\nstep 2").facts
    assert isinstance(facts["finished_evidence"], Event)
    assert facts["finished_evidence"].line == 2


def test_end_of_one_process_is_success_only_when_no_other_failed() -> None:
    line = "[2023-07-21 13:00:27,885] [INFO] [launch.py:351:main] Process 13300 exits successfully."
    assert _parse(line).facts["finished"]
    assert not _parse(
        f"{line}\n[2023-07-21 13:00:28,885] [ERROR] [launch.py:321:sigkill_handler] exits with return code = 1"
    ).facts["finished"]


def test_fields_of_rays_record_say_whose_death_it_was() -> None:
    parsed = _parse(
        """
(TrainController pid=79312) [Rank 1 Error Snippet]:
(TrainController pid=79312) The actor died unexpectedly before finishing this task.
(TrainController pid=79312) 	class_name: RayTrainWorker
(TrainController pid=79312) 	pid: 4415
(TrainController pid=79312) 	ip: 10.0.3.44
(TrainController pid=79312) The actor died because its node has died. Node Id: b157
(TrainController pid=79312) 	the actor's node was preempted: spot instance termination notice
"""
    )
    event = next(event for event in _causes(parsed) if signatures()[event.signature].cls == "platform/preemption")
    assert (event.node, event.rank, event.pid) == ("10.0.3.44", 1, 4415)


def test_ray_names_the_lost_node_and_not_the_driver() -> None:
    event = _one(
        _parse(
            "(pid=gcs, ip=10.0.0.1) The node with node id: 8f20 and address: 10.0.0.103 and node name: 10.0.0.103 has been "
            "marked dead because the detector has missed too many heartbeats from it."
        ),
        "ray-node-died",
    )
    assert event.node == "10.0.0.103"


def test_open_mpi_names_the_lost_daemon_below_its_headline() -> None:
    parsed = _parse(
        """
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[30422,0],0] on node node-a
  Remote daemon: [[30422,0],2] on node node-c
"""
    )
    assert _one(parsed, "mpi-daemon-lost").node == "node-c"


def test_rank_that_composer_names_first_began() -> None:
    parsed = _parse(
        """
ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.
Waiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.
Global rank 0 (PID 8193) exited with code -15
----------Begin global rank 1 STDERR----------
RuntimeError: Broken pipe
----------End global rank 1 STDERR----------
ERROR:composer.cli.launcher:Global rank 3 (PID 8196) exited with code -7
"""
    )
    first = _one(parsed, "exit-sigbus")
    assert (first.rank, first.code, first.line) == (2, -7, 1)
    assert not any(event.signature == "app-last-words" for event in parsed.events)
    assert next(event for event in parsed.events if event.line == 5).rank == 1
    assert [event.weight for event in parsed.events if event.rank == 3] == [0.05]


def test_spawned_process_gives_its_exception_the_rank() -> None:
    parsed = _parse(
        """
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "/workspace/train.py", line 69, in _wrap
    fn(i, *args)
RuntimeError: Too many open files. Communication with the workers is no longer possible.
"""
    )
    assert next(event for event in parsed.events if "Too many open files" in event.text).rank == 2


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 2 has a total capacity of 22.06 GiB", 2),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 31.75 GiB total capacity; 29 GiB allocated)", 3),
        ("W bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 12.00GiB", 0),
    ],
)
def test_device_in_the_message(text: str, gpu: int) -> None:
    (event,) = [event for event in _parse(text).events if event.gpu is not None]
    assert event.gpu is not None
    assert event.gpu.index == gpu


def test_device_zero_of_a_process_that_sees_one_device_is_not_the_nodes() -> None:
    parsed = _parse(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB. GPU 0 has a total capacity of 79 GiB"
    )
    assert parsed.events[0].gpu is None


def test_local_rank_of_an_agent_counts_from_the_ranks_of_its_node() -> None:
    parsed = _parse(
        """
[2025-04-11 07:20:04,540] [INFO] [nvidia_gpu.py:52:main] Start node check on node-d with local_world_size 8
[2025-04-11 07:20:09,880] [INFO] [utils.py:174:bm_allgather] Rank 24: allgather performance 20.1 GB/s
Traceback (most recent call last):
  File "/workspace/node_check/nvidia_gpu.py", line 78, in main
    t += matmul(args.use_cuda)
RuntimeError: CUDA error: uncorrectable ECC error encountered
[2025-04-11 07:20:13,301] [ERROR] [api.py:869] failed (exitcode: 1) local_rank: 6 (pid: 1418) of binary: /usr/bin/python
"""
    )
    event = _one(parsed, "cuda-ecc-uncorrectable")
    assert (event.node, event.rank) == ("node-d", 30)
    assert event.gpu is not None
    assert event.gpu.index == 6


def test_slurm_reports_a_lost_node_from_another_one() -> None:
    parsed = _parse(
        """
srun: error: Node failure on node-c
slurmstepd: error: *** STEP 812231.0 ON node-a CANCELLED AT 2025-02-18T04:19:40 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: error: node-b: tasks 8-15: Terminated
"""
    )
    assert {event.node for event in _causes(parsed)} == {"node-c"}
    assert _one(parsed, "slurm-node-fail").data["reported_by"] == "node-a"
    assert {one.node for one in parsed.placements} == {"node-a", "node-b", "node-c"}


def test_task_of_srun_is_the_rank_when_no_agent_counts_below_it() -> None:
    line = "srun: error: node-b: task 3: Killed"
    assert _one(_parse(line), "slurm-task-killed").rank == 3
    agent = "E0612 01:14:57.061000 42 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 4 (pid: 7)"
    assert _one(_parse(f"{line}\n{agent}"), "slurm-task-killed").rank is None


def test_megatrons_second_run_turns_a_nan_into_a_wrong_gpu() -> None:
    head = "ERROR:megatron.core.rerun_state_machine:"
    parsed = _parse(
        f"""
{head}Unexpected result nan on rank 43 at iteration #20513 invocation #1 (message='found NaN in local grad norm')
{head}Rank 43, node node-k, device 3, iteration #20513: Second rerun: unexpected result is not reproducible on a different GPU, therefore was likely incorrect ((nan != 0.4117))
{head}Rank 43, node node-f, device 3, iteration #20513: Possible persistent error!
"""
    )
    first = _one(parsed, "megatron-unexpected-result")
    assert (first.cls, first.node, first.rank) == ("hardware/sdc", "node-f", 43)
    assert first.gpu is not None
    assert first.gpu.index == 3


def test_older_megatron_names_the_gpu_that_checked_which_is_the_good_one() -> None:
    head = "ERROR:megatron.core.rerun_state_machine:"
    parsed = _parse(
        f"""
{head}Unexpected result tensor(nan, device='cuda:3') at /opt/pretrain_gpt.py line 188, invokation #1 at iteration #151207 (message='found NaN in local forward loss calculation')
{head}Rank 27, node node-s02, device 3: Possible persistent error!!
"""
    )
    for name in ("megatron-unexpected-result", "megatron-sdc-elsewhere"):
        event = _one(parsed, name)
        assert (event.node, event.gpu, event.rank, event.data["at_fault"]) == (None, None, None, "job")
    again = _parse(f"{head}Rank 5, node node-a, device 5: Possible transient error!!")
    assert _one(again, "megatron-sdc-transient").node == "node-a"


def test_gradient_that_stays_nan_is_a_cause_and_one_that_recovers_is_not() -> None:
    step = "iteration     {}/    6000 | loss scale: 1.0 | grad norm: {} | number of nan iterations:   0 |"
    lost = _parse("\n".join(step.format(no, "nan" if no > 12 else "0.6") for no in range(10, 16)))
    assert [(event.signature, event.line) for event in _causes(lost)] == [("grad-norm-nan", 4)]
    back = _parse("\n".join(step.format(no, "inf" if no in (12, 13) else "0.6") for no in range(10, 16)))
    assert _causes(back) == []


def test_exception_while_the_interpreter_ends_is_no_failure() -> None:
    parsed = _parse(
        """
{'train_runtime': 1900.4412, 'train_loss': 1.4021, 'epoch': 3.0}
Exception ignored in: <function AccelerateLauncher.__del__ at 0x7fd1c0>
ImportError: sys.meta_path is None, Python is likely shutting down
"""
    )
    assert _causes(parsed) == []


def test_stalled_ranks_of_horovod_are_those_missing() -> None:
    parsed = _parse(
        """
[1,0]<stderr>:[2019-05-02 09:15:31.858061: W horovod/common/operations.cc:588] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.
[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1]
"""
    )
    assert _one(parsed, "horovod-stalled").rank is None
    assert _one(parsed, "horovod-stalled-ranks").rank == 1


def test_container_without_a_driver_is_no_trouble_of_versions() -> None:
    parsed = _parse(
        """
WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.
W1203 14:31:07.400112 1 pinned_memory_manager.cc:237] Unable to allocate pinned system memory: CUDA driver version is insufficient for CUDA runtime version
"""
    )
    assert [event.signature for event in _causes(parsed)] == ["container-no-driver"]


def test_yearless_stamp_a_day_before_its_neighbours_is_of_their_day() -> None:
    parsed = _parse(
        """
 [2026-04-23 12:20:48] iteration       48/      50 | lm loss: 8.317189E-02 | grad norm: 1.721 |
[rank29]:[E422 12:20:55.123831168 ProcessGroupNCCL.cpp:1923] [PG ID 5 PG GUID 83(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure
"""
    )
    event = _one(parsed, "cuda-launch-failure")
    assert event.time is not None
    assert event.time - (parsed.facts["progress"][0][0] or 0) == pytest.approx(7.12, abs=0.01)
    assert event.rank == 29


@pytest.mark.parametrize(
    ("text", "signature", "rank", "node", "code"),
    [
        ("[rank: 1] Child process with PID 4123 terminated with code 1. Forcefully terminating all other processes", "exit-worker", 1, None, 1),
        ("[rank: 1] Child process with PID 4123 terminated with code -9. Forcefully terminating all other", "exit-sigkill", 1, None, -9),
        ("ERROR:  One or more process (first noticed rank 3) terminated with signal 9", "exit-sigkill", 3, None, -9),
        ('prterun has exited due to process rank 1 with PID 812 on node node-b calling "abort".', "exit-code", 1, "node-b", None),
        ("mpirun noticed that process rank 2 with PID 0 on node node-b exited on signal 9 (Killed).", "exit-sigkill", 2, "node-b", -9),
        ("Horovod detected that one or more processes exited\nProcess name: 3\nExit code:    1", "exit-code", 3, None, 1),
        (
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 2 PID 41233 RUNNING AT node-b\n=   EXIT CODE: 9",
            "exit-code", 2, "node-b", -9,
        ),
        ("Worker VllmWorkerProcess pid 1482 died, exit code: -15", "exit-sigterm", None, None, -15),
    ],
)  # fmt: skip
def test_words_of_launchers_for_the_end_of_a_worker(
    text: str, signature: str, rank: int | None, node: str | None, code: int | None
) -> None:
    event = _one(_parse(text), signature)
    assert (event.rank, event.node, event.code) == (rank, node, code)


def test_device_tables_place_ranks() -> None:
    parsed = _parse(
        "#  Rank  4 Group  0 Pid 153049 on    node-b device  0 [0x42] NVIDIA H100 80GB HBM3\n[TensorRT-LLM][INFO] Rank 3 is using GPU 3"
    )
    one, two = parsed.placements
    assert (one.rank, one.node, one.pid, one.gpu.index if one.gpu else None) == (4, "node-b", 153049, 0)
    assert (two.rank, two.gpu.index if two.gpu else None) == (3, 3)


def test_agent_tells_which_ranks_its_workers_have() -> None:
    parsed = _parse(
        """
I1129 16:40:15.304000 24568 torch/distributed/elastic/agent/server/api.py:525] [default] Rendezvous complete for workers. Result:
  restart_count=0
  local_ranks=[0, 1]
  global_ranks=[8, 9]
"""
    )
    assert [(one.local_rank, one.rank) for one in parsed.placements] == [(0, 8), (1, 9)]


@pytest.mark.parametrize(
    "head",
    [
        (
            "Data for node: node-a\tNum slots: 1\n Process OMPI jobid: [41,1] App: 0 Process rank: 0 Bound: N/A\n"
            "Data for node: node-b\tNum slots: 1\n Process jobid: [41,1] App: 0 Process rank: 1 Bound: N/A\n"
        ),
        "[0] MPI startup(): 0       41230    node-a      {0,1}\n[0] MPI startup(): 1       41231    node-b      {0,1}\n",
        "srun: launching StepId=4711.0 on host node-a, 1 tasks: 0\nsrun: launching StepId=4711.0 on host node-b, 1 tasks: 1\n",
    ],
    ids=["open-mpi", "intel-mpi", "srun"],
)
def test_map_of_a_launcher_places_ranks(head: str) -> None:
    parsed = _parse(head + "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert {(one.rank, one.node) for one in parsed.placements} >= {(0, "node-a"), (1, "node-b")}
    assert _one(parsed, "cuda-ecc-uncorrectable").node == "node-b"


def test_tensorflow_tells_host_and_number_of_the_worker_that_saw_no_gpu() -> None:
    made = "I tensorflow/core/common_runtime/gpu/gpu_device.cc:2021] Created device /job:worker/replica:0"
    parsed = _parse(
        f"worker-0: 2025-05-02 10:40:15.0: {made}/task:0/device:GPU:0 with 78100 MB memory:  -> device: 0\n"
        f"worker-1: 2025-05-02 10:40:15.0: {made}/task:1/device:GPU:0 with 78100 MB memory:  -> device: 0\n"
        "worker-2: 2025-05-02 10:40:14.2: E cuda_driver.cc:152] failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: "
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver / cuda driver combination\n"
        "worker-2: 2025-05-02 10:40:14.3: I external/local_xla/cuda_diagnostics.cc:144] hostname: node-c\n"
    )
    event = _one(parsed, "cuda-driver-insufficient")
    assert (event.node, event.rank) == ("node-c", 2)


def test_gpu_that_a_monitor_saw_slowed_down_is_named_with_node_and_rank() -> None:
    parsed = _parse(
        "\n".join(f"[rank{rank}]: 2025-07-19 14:01:10 [INFO] step 1 loss 2.0" for rank in (0, 5))
        + "\n2025-07-19 14:04:00 [gpu-monitor] node-a GPU5 temp=84C sm_clock=1755MHz hw_thermal_slowdown=Not Active"
        + "\n2025-07-19 14:04:30 [gpu-monitor] node-a GPU5 temp=88C sm_clock=345MHz hw_thermal_slowdown=Active"
    )
    event = _one(parsed, "gpu-throttled")
    assert (event.node, event.gpu and event.gpu.index, event.rank, event.line) == ("node-a", 5, 5, 4)


def test_lost_gpu_is_of_the_only_rank_that_met_it() -> None:
    parsed = _parse(
        "slurmstepd: error: NVML: Failed to get usage(15): GPU is lost\n"
        "[rank2]: RuntimeError: CUDA error: unspecified launch failure"
    )
    assert _one(parsed, "nvml-gpu-lost").rank == 2


def test_kill_for_memory_is_told_once() -> None:
    parsed = _parse(
        "Cgroup mem limit exceeded: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)\n"
        "[2025-10-14 02:03:44,900] [ERROR] [launch.py:341:sigkill_handler] ['python', '--local_rank=7'] exits with return code = -9"
    )
    assert [event.signature for event in _causes(parsed)] == ["log-oom-kill"]


def test_barrier_that_nearly_all_reached_is_not_the_configuration() -> None:
    text = (
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0."
    )
    assert _role(_one(_parse(text), "jax-barrier-timeout")) == "cause"
    parsed = _parse("# of tasks that reached the barrier: 31/32.\n" + text)
    assert _role(_one(parsed, "jax-barrier-timeout")) == "symptom"


def test_shutdown_by_an_operator_is_of_the_node_that_he_speaks_on() -> None:
    parsed = _parse("Broadcast message from root@node-b (Sat Mar  1 11:19:02 2025):\n\nThe system is going down for reboot NOW!")
    event = _one(parsed, "wall-shutdown")
    assert (event.node, signatures()[event.signature].cls) == ("node-b", "platform/preemption")


def test_collective_test_that_concluded_is_a_success() -> None:
    parsed = _parse(
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 91.2217\n# Collective test concluded: all_reduce_perf"
    )
    assert parsed.facts["finished"]
    assert _causes(parsed) == []


def test_slurm_step_daemon_names_its_node_in_its_own_name() -> None:
    parsed = _parse(
        "slurmstepd-gpu20-15: error: Detected 1 oom-kill event(s) in StepId=9411285.0. Some of your processes may have been killed by the "
        "cgroup out-of-memory handler."
    )
    assert _one(parsed, "slurm-oom").node == "gpu20-15"


def test_tensorflow_tells_the_gpu_as_an_ordinal() -> None:
    parsed = _parse(
        "F tensorflow/core/platform/statusor.cc:33] Attempting to fetch value instead of handling error INTERNAL: failed initializing "
        "StreamExecutor for CUDA device ordinal 5: INTERNAL: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: "
        "uncorrectable ECC error encountered"
    )
    gpu = _one(parsed, "cuda-ecc-uncorrectable").gpu
    assert gpu is not None
    assert gpu.index == 5
