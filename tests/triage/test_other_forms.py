"""Public incidents in another form (a clock, a time zone, a way to collect logs) are judged as they are in their own."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench

CASES = Path(__file__).parents[2] / "benchmarks/attribution/cases"
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
POD = re.compile(r"-(?:worker|trainer)-[\w-]+\.log$")
# the stamps of job and kernel logs in these incidents; a month or year that is not written is the run's own
STAMPS = (
    (re.compile(r"(?P<Y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)(?P<gap>[ T_])(?P<t>\d\d:\d\d:\d\d)"), "{at:%Y-%m-%d}{gap}{at:%H:%M:%S}"),
    (re.compile(r"\b(?P<letter>[IWE])(?P<m>\d\d)(?P<d>\d\d) (?P<t>\d\d:\d\d:\d\d)(?=\.\d{6} )"), "{letter}{at:%m%d %H:%M:%S}"),
    (
        re.compile(r"\[(?P<letter>[IWEF])(?P<m>\d{1,2})(?P<d>\d\d) (?P<t>\d\d:\d\d:\d\d)(?=\.\d{9})"),
        "[{letter}{at.month}{at:%d %H:%M:%S}",
    ),
    (re.compile(r"(?m)^(?P<name>[A-Z][a-z]{2}) +(?P<d>\d+) (?P<t>\d\d:\d\d:\d\d)"), "{at:%b} {at.day:2d} {at:%H:%M:%S}"),
)


def read(file: Path) -> str:
    raw = file.read_bytes()
    return (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8", "surrogateescape")


def write(file: Path, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" else raw)


def later(text: str, seconds: float) -> str:
    """Return a log whose clock is ahead by so much."""
    for pattern, form in STAMPS:

        def moved(match: re.Match[str], form: str = form) -> str:
            part = match.groupdict()
            month = int(part["m"]) if part.get("m") else MONTHS.index(part["name"]) + 1
            hour, minute, second = map(int, part["t"].split(":"))
            at = dt.datetime(int(part.get("Y") or 2025), month, int(part["d"]), hour, minute, second, tzinfo=dt.UTC)
            return form.format(
                at=at + dt.timedelta(seconds=seconds), **{name: part.get(name) or "" for name in ("gap", "letter")}
            )

        text = pattern.sub(moved, text)
    return text


def local_time(folder: Path, truth: dict[str, object]) -> bool:
    """The containers' clocks show Indian time, and nothing says so."""
    return changed(logs(folder), lambda text: later(text, 5.5 * 3600))


def wrong_clock(folder: Path, truth: dict[str, object]) -> bool:
    """The clock of one node that only lost the others is seven minutes ahead, in its job and in its kernel log."""
    for kernel in sorted((folder / "kernel").glob("*.log*")):
        node = kernel.name.split(".log")[0]
        job = folder / "logs" / f"{node}.log"
        if node != truth["node"] and node != truth.get("rank_node") and job.exists():
            return changed([kernel, job], lambda text: later(text, 420))
    return False


def with_prefixes(folder: Path, truth: dict[str, object]) -> bool:
    """All pods in one file, one after the other, as ``kubectl logs -l job-name=… --prefix`` prints them."""
    pods = [file for file in sorted((folder / "logs").glob("*.log")) if POD.search(file.name)]
    rows = [f"[pod/{file.name.removesuffix('.log')}/pytorch] {line}" for file in pods for line in read(file).split("\n")[:-1]]
    for file in pods:
        file.unlink()
    write(folder / "logs" / "all-pods.txt", "\n".join(rows) + "\n")
    return len(pods) > 1


def one_kernel_file(folder: Path, truth: dict[str, object]) -> bool:
    """The kernel logs of all nodes in one file, as pdsh brings them."""
    files = sorted((folder / "kernel").glob("*.log*"))
    rows = [f"{file.name.split('.log')[0]}: {line}" for file in files for line in read(file).split("\n") if line]
    for file in files:
        file.unlink()
    if rows:
        write(folder / "kernel" / "dmesg.txt", "\n".join(rows) + "\n")
    return len(files) > 1


def kernel_from_loki(folder: Path, truth: dict[str, object]) -> bool:
    """Kernel logs as ``logcli query -o jsonl`` prints them: the line without its own stamp and host, which are beside it."""
    stamp = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* \S+ kernel: (.*)")

    def row(line: str, host: str) -> str:
        at, text = stamp.match(line).groups()  # type: ignore[union-attr]
        return json.dumps({"labels": {"host": host, "job": "systemd-journal"}, "line": text, "timestamp": f"{at}Z"})

    files = sorted(file for file in (folder / "kernel").glob("*.log*") if all(map(stamp.match, read(file).split("\n")[:-1])))
    for file in files:
        write(file, "".join(row(line, file.name.split(".log")[0]) + "\n" for line in read(file).split("\n")[:-1]))
    return bool(files)


def from_windows(folder: Path, truth: dict[str, object]) -> bool:
    """Somebody's editor has made every line end a CRLF."""
    return changed([*logs(folder), *(folder / "kernel").glob("*")], lambda text: text.replace("\n", "\r\n"))


def in_containers(folder: Path, truth: dict[str, object]) -> bool:
    """``docker compose logs``: the container's name in front of every line; its machine goes by another name."""
    for number, file in enumerate(sorted(logs(folder)), 1):
        write(file, "".join(f"trainer-{number}  | {line}\n" for line in read(file).split("\n")[:-1]))
    return bool(logs(folder))


def with_timestamps(folder: Path, truth: dict[str, object]) -> bool:
    """``kubectl logs --timestamps``: the time at which each line came in front of it, carriage returns and tracebacks as they were."""
    for file in logs(folder):
        lines = read(file).split("\n")[:-1]
        own = [found[0] for line in lines if (found := re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line))]
        at, rows = own[0], []
        for line in lines:
            found = re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)
            at = max(at, found[0]) if found else at
            rows.append(f"{at.replace(' ', 'T')}.{len(rows):09d}Z {line}")
        write(file, "\n".join(rows) + "\n")
    return bool(logs(folder))


def with_ts(folder: Path, truth: dict[str, object]) -> bool:
    """``… |& ts``: month, day and time in front of every line, as moreutils writes them, and no host behind them."""
    for file in logs(folder):
        rows, at = [], ""
        for line in read(file).split("\n")[:-1]:
            found = re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)
            at = max(at, found[0]) if found else at
            month, day = (int(part) for part in (at or "2026-11-29").split(" ")[0].split("-")[1:])
            rows.append(f"{MONTHS[month - 1]} {day:02d} {at[11:] or '00:00:00'} {line}")
        write(file, "\n".join(rows) + "\n")
    return bool(logs(folder))


def with_task_numbers(folder: Path, truth: dict[str, object]) -> bool:
    """``srun -l torchrun …`` on one node: the number in front of every line is the task's, and each task has all ranks of its node."""
    return changed(logs(folder), lambda text: "".join(f"0: {line}\n" for line in text.split("\n")[:-1]))


def packed(folder: Path, truth: dict[str, object]) -> bool:
    """Everything in one archive, below a folder of its own."""
    archive = folder.with_name("evidence.tar.gz")
    with tarfile.open(archive, "w:gz") as stream:
        stream.add(folder, arcname="support-bundle-1")
    shutil.rmtree(folder)
    folder.mkdir()
    archive.rename(folder / archive.name)
    return True


def logs(folder: Path) -> list[Path]:
    # what Slurm itself writes has the controller's clock
    return [file for file in (folder / "logs").glob("*.log*") if not file.name.startswith("slurm")]


def changed(files: list[Path], how: Callable[[str], str]) -> bool:
    different = False
    for file in files:
        was = read(file)
        write(file, now := how(was))
        different |= now != was
    return different


def said(folder: Path) -> tuple[object, ...]:
    verdict = workbench.load(str(folder)).triage()
    return verdict.cls, verdict.node, verdict.rank, verdict.retry, verdict.remediation


FORMS = (
    (local_time, ("incident-0140", "incident-0126", "incident-0263", "incident-0830", "incident-0655")),
    (wrong_clock, ("incident-0145", "incident-0301", "incident-0602", "incident-0668")),
    (with_prefixes, ("incident-0102", "incident-0126", "incident-0356", "incident-0655")),
    (one_kernel_file, ("incident-0187", "incident-0466", "incident-0655")),
    (kernel_from_loki, ("incident-0596", "incident-0734", "incident-0174")),
    (from_windows, ("incident-0301", "incident-0426", "incident-0926")),
    (
        in_containers,
        (
            "platform-config-run-nofile-limit", "platform-network-run-dns-master-unresolvable", "platform-storage-run-ckpt-disk-full-rank0",
            "user-config-run-shard-file-missing", "user-exception-run-shape-mismatch-forward",
        ),
    ),
    (with_task_numbers, ("unknown-run-sigkill-rank4-plain", "unknown-run-16-ranks-sigkill", "user-exception-run-two-faults-exception-then-kill")),
    (with_ts, ("platform-config-run-nofile-limit", "user-config-run-backend-nccl-missing", "user-exception-run-embedding-index")),
    (with_timestamps, ("platform-storage-run-stale-nfs-handle-ckpt", "user-config-run-shard-file-missing", "user-exception-run-embedding-index")),
    (packed, ("incident-0563", "incident-0623")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("form", "name"), [(form, name) for form, names in FORMS for name in names], ids=lambda one: getattr(one, "__name__", one)
)
def test_another_form_of_the_same_evidence_is_the_same_verdict(
    form: Callable[[Path, dict[str, object]], bool], name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "incident"
    shutil.copytree(CASES / name / "input", folder)
    truth = json.loads((CASES / name / "truth.json").read_text(encoding="utf-8"))
    own = said(folder)
    if not form(folder, truth):
        pytest.fail(f"{name} has nothing that this form changes: take another one")

    assert said(folder) == own
    assert own[0] == truth["class"]


def test_a_traceback_behind_a_progress_bar_with_a_stamp_in_front_is_the_end_of_the_job(tmp_path: Path) -> None:
    """A runtime stamps lines; what follows a carriage return has none of its own and is of the same process."""
    bar = "".join(f"\r {step}%|{'#' * (step // 10)}| {step}/100 [00:{step % 60:02d}<01:00,  1.00s/it]" for step in range(1, 53))
    lines = [
        "wandb: View run at https://wandb.example/run",
        "\r 0%|          | 0/100 [00:00<?, ?it/s]\rYou're using a fast tokenizer.",
        f"{bar}Traceback (most recent call last):",
        '  File "/workspace/sft.py", line 201, in <module>',
        "    trainer.train()",
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 122, kind: FilesystemQuotaExceeded })",
        "wandb: Run summary:",
        "wandb:   train/global_step 53",
    ]
    log = tmp_path / "trainer.log"
    log.write_text("".join(f"2026-11-29T16:0{number}:00.123456789Z {line}\n" for number, line in enumerate(lines)), newline="")

    verdict = workbench.load(str(log)).triage()

    assert (verdict.cls, verdict.evidence.iloc[0]["line"]) == ("platform/storage", 6)
