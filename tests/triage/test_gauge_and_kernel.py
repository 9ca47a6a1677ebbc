"""The last-value gauge of an exporter and the kernel log tell of the same Xid: it counts once, as the log has it."""

from __future__ import annotations

from pathlib import Path

import workbench

START = 1_752_768_000  # 2025-07-17T16:00:00Z
GAUGE = 'DCGM_FI_DEV_XID_ERRORS{{gpu="{gpu}",UUID="GPU-0000000{gpu}-0000-4000-8000-000000000000",device="nvidia{gpu}",Hostname="gpu-a"}} {value} {time}000'
JOB = """2025-07-17 16:00:00,000 INFO trainer rank 0/2 local_rank 0 on gpu-a cuda:0
2025-07-17 16:00:00,100 INFO trainer rank 1/2 local_rank 1 on gpu-a cuda:1
{steps}
[rank1]: Traceback (most recent call last):
[rank1]:   File "/workspace/train.py", line 20, in <module>
[rank1]:     loss = model(batch["labels"])
[rank1]: KeyError: 'labels'
"""


def incident(folder: Path, *, kernel: bool) -> Path:
    for name in ("logs", "kernel", "metrics"):
        (folder / name).mkdir()
    steps = "\n".join(
        f"2025-07-17 16:{second // 60:02d}:{second % 60:02d},000 INFO trainer rank 0 step {second} loss 2.1"
        for second in range(10, 960, 10)
    )
    (folder / "logs" / "job.log").write_text(JOB.format(steps=steps))
    rows = [f"2025-07-17T16:{minute:02d}:30+00:00 gpu-a kernel: audit: type=1400 pid={minute}" for minute in range(16)]
    if kernel:
        rows.append(
            "2025-07-17T16:15:06+00:00 gpu-a kernel: NVRM: Xid (PCI:0000:4e:00): 31, pid=7712, name=profiler, Ch 00000012"
        )
    (folder / "kernel" / "gpu-a.log").write_text("\n".join(sorted(rows)) + "\n")
    scrapes = range(START, START + 990, 30)
    gauges = [
        GAUGE.format(gpu=gpu, value=31 if gpu == 1 and time > START + 906 else 0, time=time) for gpu in (0, 1) for time in scrapes
    ]
    (folder / "metrics" / "gpu-a.prom").write_text("# TYPE DCGM_FI_DEV_XID_ERRORS gauge\n" + "\n".join(gauges) + "\n")
    return folder


def test_an_xid_of_another_process_is_no_cause_since_a_gauge_shows_it_too(tmp_path: Path) -> None:
    """The gauge knows no process: without the kernel's line it may be the rank's, with it it is what that line says."""
    verdict = workbench.load(str(incident(tmp_path, kernel=True))).triage()

    causes = verdict.evidence[verdict.evidence["role"] == "cause"]
    assert "metric-xid-change" not in set(causes["signature"])


def test_a_gauge_is_evidence_where_the_kernel_log_lacks_the_xid(tmp_path: Path) -> None:
    verdict = workbench.load(str(incident(tmp_path, kernel=False))).triage()

    assert "metric-xid-change" in set(verdict.evidence["signature"])
