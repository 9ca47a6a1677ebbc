"""The shipped commands of Slurm and the real ones know the same jobs, and are held to the same words."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conformance.servers import SERVICES, run
from tests.conformance.shapes import DATA
from workbench.errors import SourceError
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.slurm.jobs import FIELDS, SEPARATOR
from workbench.sources.slurm.source import Slurm as Source
from workbench.testing.slurm import Slurm as Fake

RECORDED = DATA / "slurm"
ENDED = ("COMPLETED", "FAILED")
_ASKED = ",".join(name for name in FIELDS if name not in ("StdOut", "StdErr"))
_COLUMNS = "JobID,JobName,User,UID,Account,Partition,QOS,State,ExitCode,DerivedExitCode,Submit,Eligible,Start,End,Elapsed,Timelimit,NNodes,AllocTRES,Reason,JobIDRaw,NodeList,WorkDir,SubmitLine"
_LOCATE = (
    "sacct",
    "--parsable2",
    "--noheader",
    f"--delimiter={SEPARATOR}",
    f"--format={_ASKED}",
    "--allocations",
    "--duplicates",
    "--allusers",
)
# {name} is the number of that job
COMMANDS: tuple[tuple[str, ...], ...] = (
    (*_LOCATE, "--jobs={llm-ok}"),
    (*_LOCATE, "--jobs={sweep}"),
    (*_LOCATE, "--jobs={sweep}_1"),
    (*_LOCATE, "--jobs={het}"),
    (*_LOCATE, "--jobs={het},{twice}"),
    (*_LOCATE, "--name=twice", "--starttime=2020-01-01T00:00:00", "--endtime=2037-01-01T00:00:00"),
    (*_LOCATE, "--name=twice", "--starttime=2036-01-01T00:00:00", "--endtime=2037-01-01T00:00:00"),
    (*_LOCATE, "--name=twice", "--starttime=2020-01-01T00:00:00", "--endtime=2020-01-02T00:00:00"),
    (*_LOCATE, "--name=nobody", "--starttime=2020-01-01T00:00:00"),
    (*_LOCATE, "--jobs=999999"),
    ("sacct", "--parsable2", f"--format={_COLUMNS}", "--duplicates", "--allusers", "--jobs={sweep}"),
    ("sacct", "--parsable2", "--format=JobID,State", "--allusers", "--jobs={llm-again}"),
    ("sacct", "--parsable2", "--format=JobID,State", "--allusers", "--duplicates", "--jobs={llm-again}"),
    ("sacct", "--version"),
    ("sacct", "--jobs=abc"),
    ("sacct", "--parsable2", "--format=NoSuchField", "--jobs=1"),
    ("scontrol", "--details", "show", "job", "{llm-ok}"),
    ("scontrol", "show", "job", "--oneliner", "--all", "{sweep}"),
    ("scontrol", "show", "job", "999999"),
    ("scontrol", "show", "node", "gpu-node-[001-002]"),
    ("scontrol", "show", "node", "nobody"),
    ("sinfo", "--all", "--Node", "--format=%N|%T|%E|%u|%H", "--nodes=gpu-node-[002-003]"),
    ("sinfo", "--all", "--Node", "--format=%N|%T|%E|%u|%H", "--partition=train"),
)  # fmt: skip
_FILES = {
    "sacct.txt": (
        "sacct",
        "--parsable2",
        f"--format={_COLUMNS}",
        "--duplicates",
        "--allusers",
        "--starttime=2020-01-01T00:00:00",
    ),
    "scontrol-job.txt": ("scontrol", "--details", "show", "job"),
    "scontrol-node.txt": ("scontrol", "show", "node"),
    "sinfo.txt": ("sinfo", "--all", "--Node", "--format=%N|%T|%E|%u|%H"),
}


@dataclass
class Cluster:
    """A cluster: where its commands are, and the numbers of its jobs."""

    env: dict[str, str]
    jobs: dict[str, str]
    real: bool
    fake: Fake | None = None
    place: Path = field(default_factory=Path)

    def ask(self, *words: str) -> dict[str, object]:
        """Run a command and return what a person sees of it; what changes from minute to minute is left out."""
        done = subprocess.run(
            words, env={**self.env, "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}, capture_output=True, text=True, timeout=60
        )
        out = re.sub(r"\b(CPULoad|FreeMem|LastBusyTime|AllocMem|CPUAlloc)=\S+", r"\1=…", done.stdout)
        out = out.replace("+PLANNED", "").replace("|planned|", "|idle|")  # what the scheduler means to do next
        return {"code": done.returncode, "out": out, "err": done.stderr}

    @property
    def source(self) -> Source:
        return Source(env=self.env)

    def filled(self, words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(re.sub(r"\{([\w-]+)\}", lambda found: self.jobs[found[1]], word) for word in words)


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.live)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("slurm")
    if request.param == "fake":
        yield faked(RECORDED, place)
    else:
        yield from _real(place)


def faked(folder: Path, place: Path) -> Cluster:
    """Return the shipped commands for a folder with Slurm's files."""
    fake = Fake(folder)
    env = {**os.environ, "PATH": f"{fake.install(place / 'bin')}{os.pathsep}{os.environ['PATH']}"}
    jobs = json.loads((folder / "jobs.json").read_text())
    return Cluster(env, jobs, False, fake, place)


def _real(place: Path) -> Iterator[Cluster]:
    from tests.live.test_slurm_live import free_port

    root = Path("/tmp") / f"wb-conf-{os.getpid()}"  # short: the name of a socket may have 107 letters
    try:
        run(SERVICES / "slurm" / "start", "--nodes", "3", "--dir", root / "run", "--port", free_port(1, 2, 101, 102, 103))
        env = {**os.environ, "SLURM_CONF": str(root / "run" / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin"}
        work = root / "work"
        work.mkdir()
        yield from _filled(Cluster(env, {}, True, place=place), work)
    finally:
        subprocess.run(
            [SERVICES / "slurm" / "stop", "--dir", root / "run", "--purge"],
            check=False,
            timeout=120,
            cwd="/tmp",
            capture_output=True,
        )
        shutil.rmtree(root, ignore_errors=True)


def _filled(made: Cluster, work: Path) -> Iterator[Cluster]:
    """Hand in jobs, wait until they have ended, and write down what the cluster says of them."""

    def submit(name: str, *words: str) -> None:
        done = subprocess.run(
            ["sbatch", "--parsable", f"--job-name={name}", *words],
            env=made.env,
            cwd=work,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        made.jobs[name] = done.stdout.strip().split(";")[0]

    submit("llm-ok", "-N2", "--wrap=srun true")
    submit("sweep", "--array=0-2", "--wrap=exit $((SLURM_ARRAY_TASK_ID % 2 * 3))")
    submit("twice", "--wrap=exit 3")
    submit("het", "-N1", "--wrap=srun --het-group=0,1 hostname", ":", "-N1")
    submit("llm-again", "-N1", "--requeue", '--wrap=[ "$SLURM_RESTART_COUNT" ] && exit 3; sleep 300')

    def reached(state: str) -> None:
        end = time.monotonic() + 60
        while f"JobState={state}" not in str(made.ask("scontrol", "show", "job", made.jobs["llm-again"])["out"]):
            assert time.monotonic() < end, f"the job that shall be requeued is not {state}"
            time.sleep(0.5)

    reached("RUNNING")
    submit("twice", "--wrap=true")
    subprocess.run(["scontrol", "requeue", made.jobs["llm-again"]], env=made.env, check=True, timeout=60)
    reached("PENDING")
    # two minutes are the rule before the second try
    subprocess.run(
        ["scontrol", "update", f"jobid={made.jobs['llm-again']}", "starttime=now"], env=made.env, check=True, timeout=60
    )
    end = time.monotonic() + 120
    while True:
        told = str(
            made.ask(
                "sacct",
                "--parsable2",
                "--noheader",
                "--format=JobID,State",
                "--allusers",
                "--allocations",
                "--starttime=2020-01-01T00:00:00",
            )["out"]
        )
        states = [line.split("|")[1].split(" ")[0] for line in told.splitlines()]
        if len(states) >= 9 and all(state in ENDED for state in states):
            break
        assert time.monotonic() < end, told
        time.sleep(1)
    folder = made.place / "folder" / "slurm"
    folder.mkdir(parents=True)
    for name, words in _FILES.items():
        folder.joinpath(name).write_text(
            subprocess.run(words, env={**made.env, "TZ": "UTC"}, capture_output=True, text=True, check=True, timeout=60).stdout
        )
    (folder / "jobs.json").write_text(json.dumps(made.jobs))
    if os.environ.get("WORKBENCH_RECORD"):
        RECORDED.mkdir(parents=True, exist_ok=True)
        told_all = {" ".join(words): made.ask(*made.filled(words)) for words in COMMANDS}
        (folder / "commands.json").write_text(json.dumps(told_all, indent=1, ensure_ascii=True) + "\n")
        for file in folder.iterdir():
            (RECORDED / file.name).write_text(file.read_text().replace(str(work), "/scratch/alice"))
    yield made


def scope(job: str, **more: int) -> Scope:
    return Scope(job, 1.6e9, 2.1e9, **more)  # type: ignore[arg-type]


def test_each_command_says_the_same(cluster: Cluster, tmp_path: Path) -> None:
    """Held against what the real commands said: as recorded, and, where they are, as they say it now."""
    if cluster.real:
        expected = {" ".join(words): cluster.ask(*cluster.filled(words)) for words in COMMANDS}
        mine = faked(cluster.place / "folder" / "slurm", tmp_path)
    else:
        expected, mine = json.loads((RECORDED / "commands.json").read_text()), cluster
    differ = []
    for words in COMMANDS:
        told = mine.ask(*mine.filled(words))
        real = expected[" ".join(words)]
        same = told["code"] == real["code"] and (told["code"] != 0 or told["out"] == real["out"])
        if not same or bool(told["err"]) != bool(real["err"]):
            differ.append((words, real, told))
    assert differ == []


def test_locate_by_number_name_and_task(cluster: Cluster) -> None:
    found = cluster.source.locate(scope("llm-ok"), Deadline(30))
    assert found is not None
    assert found.nodes == ("gpu-node-001", "gpu-node-002")
    assert found.until - found.since < 600
    assert cluster.source.locate(scope(cluster.jobs["llm-ok"]), Deadline(30)) is not None
    rows, _ = cluster.source.allocations(scope(f"{cluster.jobs['sweep']}_1"), Deadline(30))
    assert [(row.task, row.state) for row in rows] == [("1", "FAILED")]
    rows, _ = cluster.source.allocations(scope("het"), Deadline(30))
    assert [row.id for row in rows] == [f"{cluster.jobs['het']}+0", f"{cluster.jobs['het']}+1"]


def test_an_unknown_job_is_none(cluster: Cluster) -> None:
    assert cluster.source.locate(scope("nobody"), Deadline(30)) is None
    assert cluster.source.locate(scope("999999"), Deadline(30)) is None
    assert cluster.source.locate(Scope("llm-ok", 1.5e9, 1.6e9), Deadline(30)) is None


def test_the_newest_job_of_a_name_is_taken_and_tries_are_counted(cluster: Cluster) -> None:
    rows, others = cluster.source.allocations(scope("twice"), Deadline(30))
    assert ([row.id for row in rows], len(others)) == ([cluster.jobs["twice"]], 1)
    rows, _ = cluster.source.allocations(scope("llm-again"), Deadline(30))
    assert [row.state.split(" ")[0] for row in rows] == ["REQUEUED", "FAILED"]
    first, _ = cluster.source.allocations(scope("llm-again", attempt=1), Deadline(30))
    assert [row.state for row in first] == ["REQUEUED"]


def test_text_and_json_tell_the_same(cluster: Cluster) -> None:
    for job in ("llm-ok", "sweep", "twice"):
        text = Source(env=cluster.env, form="text").locate(scope(job), Deadline(30))
        assert Source(env=cluster.env, form="json").locate(scope(job), Deadline(30)) == text


def test_what_is_collected(cluster: Cluster, tmp_path: Path) -> None:
    answers = cluster.source.collect(scope("llm-ok"), Folder(tmp_path), Deadline(30))
    told = {answer.file: answer.status for answer in answers if answer.source == "slurm" and answer.file}
    assert told == {f"slurm/{name}.txt": "ok" for name in ("sacct", "scontrol-job", "scontrol-node", "sinfo")}
    assert (tmp_path / "slurm" / "sacct.txt").read_text().splitlines()[0].startswith("JobID|JobName|")
    assert [line.split("|")[0] for line in (tmp_path / "slurm" / "sinfo.txt").read_text().splitlines()] == [
        "NODELIST",
        "gpu-node-001",
        "gpu-node-002",
    ]


def test_doctor_sees_a_cluster_that_works(cluster: Cluster) -> None:
    rows = {row.item: row for row in cluster.source.examine(Deadline(30))}
    assert {rows[item].status for item in ("version", "slurmctld", "slurmdbd", "clock", "rights")} == {"ok"}
    assert "is UP" in rows["slurmctld"].detail


class TestWhatFails:
    """States of a cluster that the fake is put into; `tests/live/test_slurm_live.py` has those of the real one."""

    @pytest.fixture
    def broken(self, tmp_path: Path) -> Cluster:
        return faked(RECORDED, tmp_path)

    def _set(self, made: Cluster, **state: bool) -> None:
        assert made.fake is not None
        made.fake.state |= state
        made.fake.install(made.place / "bin")

    def test_a_controller_that_is_down(self, broken: Cluster, tmp_path: Path) -> None:
        self._set(broken, up=False)
        answers: list[Answer] = broken.source.collect(scope("llm-ok"), Folder(tmp_path / "a"), Deadline(30))
        assert {answer.status for answer in answers if answer.asked.startswith(("scontrol", "sinfo"))} == {"failed"}
        assert next(answer for answer in answers if answer.file == "slurm/sacct.txt").status == "ok"

    def test_no_accounting(self, broken: Cluster) -> None:
        self._set(broken, accounting=False)
        assert broken.source.locate(scope(broken.jobs["llm-ok"]), Deadline(30)) is not None  # what slurmctld remembers
        self._set(broken, memory=False)
        assert broken.source.locate(scope(broken.jobs["llm-ok"]), Deadline(30)) is None

    def test_a_job_that_is_forgotten(self, broken: Cluster, tmp_path: Path) -> None:
        self._set(broken, memory=False)
        answers = broken.source.collect(scope("llm-ok"), Folder(tmp_path / "a"), Deadline(30))
        assert "stale" in {answer.status for answer in answers if answer.asked.startswith("scontrol")}

    def test_a_job_that_waits_shows_its_partition(self, broken: Cluster, tmp_path: Path) -> None:
        assert broken.fake is not None
        row = {
            "JobID": "31000",
            "JobIDRaw": "31000",
            "JobName": "waits",
            "State": "PENDING",
            "Partition": "train",
            "NodeList": "None assigned",
        }
        broken.fake.state["accounts"].append({**row, "Submit": "2026-11-30T05:00:00", "Start": "Unknown", "End": "Unknown"})
        self._set(broken)
        answers = broken.source.collect(scope("waits"), Folder(tmp_path / "a"), Deadline(30))
        assert next(answer for answer in answers if answer.file == "slurm/sinfo.txt").status == "ok", answers
        assert (tmp_path / "a" / "slurm" / "sinfo.txt").read_text().count("gpu-node-") == 3

    def test_an_option_that_is_not_known_is_refused(self, broken: Cluster) -> None:
        assert broken.ask("sacct", "--colour")["code"] == 1
        assert broken.ask("scontrol", "update", "node=x")["code"] == 1
        assert broken.ask("sinfo", "-o", "%all")["code"] == 1

    def test_neither_accounting_nor_controller(self, broken: Cluster) -> None:
        self._set(broken, accounting=False, up=False)
        with pytest.raises(SourceError):
            broken.source.locate(scope("llm-ok"), Deadline(30))
