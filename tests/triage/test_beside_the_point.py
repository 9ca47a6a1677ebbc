"""What stands beside a failure without having made it: faults elsewhere, old events, corrected errors, handlers that raise."""

from __future__ import annotations

from pathlib import Path

from tests.triage.folders import verdict_of as _verdict

STEPS = "".join(
    f"2025-06-12 09:{minute:02d}:05,114 INFO trainer: rank 0 on node-a step {minute * 20} loss 2.4\n" for minute in range(12)
)
KEY = (
    "2025-06-12 09:12:41,001 ERROR trainer: unhandled exception\nTraceback (most recent call last):\n"
    '  File "/work/train.py", line 150, in main\n    w = weights[sample["domain"]]\nKeyError: \'math-v3\'\n'
)
LOST = "[Thu Jun 12 09:12:30 2025] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


def test_lost_gpu_of_a_node_that_the_job_never_names_makes_no_key_missing(tmp_path: Path) -> None:
    elsewhere = _verdict(tmp_path / "elsewhere", {"logs/node-a.log": STEPS + KEY, "kernel/node-x9.log": LOST})
    here = _verdict(tmp_path / "here", {"logs/node-a.log": STEPS + KEY, "kernel/node-a.log": LOST})
    assert elsewhere.cls == "user/exception"
    assert here.cls == "hardware/gpu-lost"


def test_corrected_errors_of_a_link_take_no_gpu_memory(tmp_path: Path) -> None:
    kernel = "".join(
        f"[Thu Jun 12 09:{minute:02d}:30 2025] pcieport 0000:15:01.0: AER: Corrected error message received from 0000:1b:00.0\n"
        f"[Thu Jun 12 09:{minute:02d}:30 2025] nvidia 0000:1b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
        for minute in range(12)
    )
    memory = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.69 GiB of which 1.06 GiB is free.\n"
    verdict = _verdict(tmp_path, {"logs/job.log": STEPS + memory, "kernel/node-a.log": kernel})
    assert (verdict.cls, verdict.rank) == ("user/gpu-oom", 1)


def test_event_last_seen_days_ago_ended_nothing_today(tmp_path: Path) -> None:
    events = (
        "LAST SEEN   TYPE      REASON                OBJECT         MESSAGE\n"
        "{age}          Warning   FreeDiskSpaceFailed   node/gpu-44    failed to garbage collect required amount of images.\n"
    )
    old = _verdict(tmp_path / "old", {"logs/job.log": STEPS + KEY, "events.txt": events.format(age="9d")})
    new = _verdict(tmp_path / "new", {"logs/job.log": STEPS + KEY, "events.txt": events.format(age="9m")})
    assert old.cls == "user/exception"
    assert new.cls == "platform/storage"


def test_interrupt_that_a_handler_raises_is_nobodys_wish_where_the_scheduler_says_why(tmp_path: Path) -> None:
    end = "slurmstepd: error: *** STEP 41.0 ON node-a CANCELLED AT 2025-06-12T09:12:05 DUE TO PREEMPTION ***\n"
    trace = 'Traceback (most recent call last):\n  File "/work/train.py", line 30, in handler\n    raise KeyboardInterrupt\nKeyboardInterrupt\n'
    assert _verdict(tmp_path / "after", {"logs/slurm.out": STEPS + end + trace}).cls == "platform/preemption"
    assert _verdict(tmp_path / "alone", {"logs/slurm.out": STEPS + trace}).cls == "user/stopped"


def test_error_without_a_stamp_may_be_as_late_as_the_step_that_ran(tmp_path: Path) -> None:
    kernel = "[Thu Jun 12 09:12:20 2025] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    error = "[rank1]: torch.AcceleratorError: CUDA error: unknown error\n"
    verdict = _verdict(tmp_path, {"logs/job.log": STEPS + error, "kernel/node-a.log": kernel})
    assert (verdict.cls, verdict.gpu.pci if verdict.gpu else None) == ("hardware/gpu-lost", "0000:5d:00.0")


def test_memory_kill_of_the_loader_that_the_job_misses_is_the_jobs(tmp_path: Path) -> None:
    kernel = "[Thu Jun 12 09:12:00 2025] Memory cgroup out of memory: Killed process {} (pt_data_worker) total-vm:12345678kB, anon-rss:8812345kB, file-rss:1234kB, shmem-rss:0kB, UID:0 pgtables:21212kB oom_score_adj:998\n"
    error = "[rank1]: RuntimeError: DataLoader worker (pid 9188) is killed by signal: Killed. \n"
    mine = _verdict(tmp_path / "mine", {"logs/job.log": STEPS + error, "kernel/node-a.log": kernel.format(9188)})
    other = _verdict(tmp_path / "other", {"logs/job.log": STEPS + error, "kernel/node-a.log": kernel.format(4000)})
    assert (mine.evidence_records[0].signature, mine.retry) == ("oom-kill-cgroup", "fix-first")
    assert other.evidence_records[0].signature == "dataloader-worker-killed"
