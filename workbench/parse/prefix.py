"""Turn the head of a job-log line (rank, node, process, time, level, as launchers and loggers stack them) into one `Prefix`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from workbench.parse.json_record import record_of
from workbench.parse.text import MONTHS

__all__ = ["Context", "Prefix", "context", "split_prefix"]


@dataclass(slots=True)
class Prefix:
    """What the head of a line says; `rest` is the line without it."""

    time: float | None = None  # seconds since the epoch; UTC is assumed when `naive`
    rank: int | None = None  # global rank
    task: int | None = None  # number that srun -l or mpirun put in front: the rank only where each rank is a task of its own
    local_rank: int | None = None
    node: str | None = None
    pid: int | None = None
    stream: str = ""  # key that keeps the lines of one speaker together: the launcher's own words
    level: str = ""  # DEBUG INFO WARNING ERROR CRITICAL, or empty
    rest: str = ""
    naive: bool = False  # the stamp had no zone
    yearless: bool = False  # the stamp had no year
    clock: float | None = None  # seconds of the day when the stamp has no date
    pod: str | None = None
    device: int | None = None  # CUDA device index inside the process, as NCCL prints it


@dataclass(frozen=True, slots=True)
class Context:
    """What only the whole file can tell about its heads."""

    year: int | None = None  # of stamps without one
    srun: bool = False  # ``3: `` in front of lines is `srun -l`
    tasks: bool = False  # the numbers of srun or mpirun count tasks (one torchrun on each node), not ranks
    pods: frozenset[str] = frozenset()  # ``pod container `` in front of lines is stern's
    hosts: frozenset[str] = frozenset()  # names in front of lines are pdsh's or a launcher's
    pdsh: bool = False


NO_CONTEXT = Context()
_LEVELS = {
    "D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL", "V": "DEBUG",
    "DEBUG": "DEBUG", "INFO": "INFO", "WARN": "WARNING", "WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "CRITICAL",
    "FATAL": "CRITICAL", "TRACE": "DEBUG", "NOTICE": "INFO", "ERR": "ERROR",
}  # fmt: skip
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# ESC lost on the way: "[36m(main_task pid=210500)[0m text"
_BARE_ANSI = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")
#  12%|█▏   | 3/23 [00:04<00:30,  1.5s/it][2025-04-11 09:30:55 TP7] text: a bar that another line was written behind
_GLUED = re.compile(r"\d%\|[^|]{0,200}\|\s*\d+/\d+ \[[^\]\r]{0,120}(?:it/s|s/it)[^\]\r]{0,200}\](?=\[|\d{4}-|[A-Z(])")

_T = r"(\d{1,2}):(\d{2}):(\d{2})(?:[.,](\d+))?"
_ZONE = r"(?:\s?(Z|UTC|[+-]\d{2}:?\d{2}))?"
# 2024-03-06T17:50:22.335714Z | 2023-05-30 20:29:14,854 | 2022-02-26_22:02:07 | [2026-08-24 03:00:18 TP4] | 2024/05/01 10:00:00
_ISO = re.compile(rf"[\[(]?(\d{{4}})[-/](\d{{2}})[-/](\d{{2}})[T _]{_T}{_ZONE}(?:(?:\s(?:[A-Z]{{2}}\d+\s?)+)?[\])])?")
_SGL = re.compile(r"\[\d{4}-\d{2}-\d{2} [\d:.,]+\s((?:[A-Z]{2}\d+\s?)+)\]")
# 06/17/2025 18:00:51 - | 08/21/2024 01:46:27 | [05/27/2025-21:12:37] (TensorRT-LLM)
_US = re.compile(rf"\[?(\d{{2}})/(\d{{2}})/(\d{{4}})(?:,? |-){_T}\]?")
# 08/21 [01:46:27] | [08/21 01:46:27 d2.engine]: | 02-20 16:42:42
_MD = re.compile(rf"\[?(\d{{2}})[-/](\d{{2}}) \[?{_T}(?:\])?")
# [E218 04:54:22.864467604 ProcessGroupNCCL.cpp:542] | E0612 01:14:57.061000 1234 torch/distributed/run.py:793]
_GLOG = re.compile(rf"\[?([DIWEFV])(\d{{3,4}}) {_T}\s+(?:(\d+)\s)?([^\]\s]+:\d+)\]")
# E0000 00:00:1737839600.620236 189900 cuda_dnn.cc:8310]
_ABSL = re.compile(r"([IWEF])0000 00:00:(\d{9,10}\.\d+)\s+(\d+) (\S+:\d+)\]")
# [E ProcessGroupNCCL.cpp:916] | [W socket.cpp:401]
_CPP = re.compile(r"\[([IWEF]) (\S+\.(?:cpp|cc|cu|h|hpp|py):\d+)\]")
# INFO 02-20 16:42:42 | WARNING 05-18 09:06:29 [cuda.py:682] | ERROR 07-31 16:43:12 engine.py:389]
_VLLM = re.compile(rf"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d{{2}})-(\d{{2}}) {_T}(?: \[?[\w./-]+\.\w+:\d+\])?")
# I 05-04 00:50:41 utils.py:118] (SkyPilot)
_SKY = re.compile(rf"([DIWEF]) (\d{{2}})-(\d{{2}}) {_T} (?:PID=\d+ )?[\w./-]+\.\w+:\d+\]")
# [NeMo I 2024-05-01 10:00:00 nemo_logging:381]
_NEMO = re.compile(rf"\[NeMo ([DIWEC]) (\d{{4}})-(\d{{2}})-(\d{{2}}) {_T} [^\]]*\]")
# [1579244700.742289] [node-a:41109:0] debug.c:1076 UCX  DEBUG | [node-a:2850 :0:2917] Caught signal 7
_EPOCH = re.compile(r"\[(\d{10}(?:\.\d+)?)\]")
_UCX = re.compile(r"\[([A-Za-z][\w.-]*):(\d+)(?:\s?:\d+)+\]|\[([A-Za-z][\w-]*):(\d+)\] (?=\*\*\*|\[|Signal)")
# Jan  5 12:01:02 node-a train[4123]: | Jan  5 12:01:02 [rank3]: (`ts` of moreutils: what follows is the line)
_FROM = r"(?: (?![DIWEF]\d{4} )([A-Za-z\d][\w.-]*) ([A-Za-z_/(][\w./-]*)(?:\[(\d+)\])?:|(?= ))"
_SYSLOG = re.compile(rf"([A-Z][a-z]{{2}})\s+(\d{{1,2}}) {_T}{_FROM}")
# Thu Jan 22 01:35:46 2025 | Mon Jan 22 01:35:46 UTC 2025
_CTIME = re.compile(rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? ([A-Z][a-z]{{2}})\s+(\d{{1,2}}) {_T}(?: ([A-Z]{{3,4}}))? (\d{{4}})")
# [titan] 2026-11-29 16:53:32,737 - root - INFO -
_TAG = re.compile(r"\[[A-Za-z][\w .-]*\] (?=\d{4}-\d{2}-)")
# [01:46:27] | 01:46:27.123
_CLOCK = re.compile(rf"\[?{_T}\]?(?=[\s|\-:])")
# submitit WARNING (2022-08-12 02:00:11,453) -
_SUBMITIT = re.compile(rf"submitit (\w+) \((\d{{4}})-(\d{{2}})-(\d{{2}}) {_T}\) -")

# [rank3]: | [rank 3] | [RANK 1] | [Rank 2]: | <rank 3> | rank3: | Rank 3: | rank-3:
_RANK = re.compile(r"[\[<][Rr](?:ank|ANK)[ _:=]{0,2}(\d+)(?:/\d+)?[\]>]:?|[Rr]ank[ _-]?(\d+):(?=\s|$)")
# | rank 14 |   rank=3 host=node-a   rank 5/32 local_rank 5
_IN_RANK = re.compile(r"(?:(?:^|[\s|\[(,])[Rr](?:ank|ANK)(?:=| = |: | )|\[[Rr](?:ank|ANK)_?)(\d+)(?:/\d+)?(?=[\s|\]),:]|$)")
_IN_HOST = re.compile(r"\s(?:host|hostname|node)=([A-Za-z][\w.-]*)")
# rank3[4410][MainThread]: INFO: composer.trainer: (Composer)
_COMPOSER = re.compile(r"[Rr]ank(\d+)\[(\d+)\]\[[^\]]*\]:")
# [INFO|trainer.py:3503] 2024-10-03 07:31:44,012 >> | [INFO|2025-01-05 10:00:00] trainer.py:930 >> (Transformers)
_HF = re.compile(r"\[(DEBUG|INFO|WARNING|ERROR|CRITICAL)\|(?:[\w./-]+:\d+\] (?=\d{4}-)|(?=\d{4}-))")
# [INFO|DP=0|PP=1|TP=3|node-b]: (nanotron)
_NANOTRON = re.compile(r"\[(DEBUG|INFO|WARNING|ERROR|CRITICAL)\|DP=\d+\|PP=\d+\|TP=\d+\|([\w.-]+)\]:? ?")
# [TRT-LLM] [E] | [TRT-LLM] [RANK 3] [E] | [TensorRT-LLM][ERROR] | [TensorRT-LLM][ERROR][3]
_TRTLLM = re.compile(r"\[(?:TRT-LLM|TensorRT-LLM)\] ?(?:\[RANK (\d+)\] ?)?\[([A-Z]+)\]")
# [default3]: | [worker2]: | [trainer0]:   (torchelastic --tee: role and LOCAL rank)
_TEE = re.compile(r"\[([A-Za-z_]+?)_?(\d+)\]:")
# [pod/gpt-neo-worker-2/pytorch] text (kubectl logs --prefix)
_POD = re.compile(r"\[pod/([^/\]\s]+)/[^\]\s]+\] ?")
# gpt-neo-worker-2 pytorch text (stern)
_STERN = re.compile(r"([a-z0-9][a-z0-9-]*-[a-z0-9-]*[a-z0-9]) ([a-z][a-z0-9-]*) ")
# [1,mpirank:0,algo-1]<stdout>: | [mpirank:3,algo-2] (SageMaker)
_SAGE = re.compile(r"\[(?:1,)?mpirank:(\d+),([\w.-]+)\](?:<std(?:out|err)>:)? ?")
# {"log":"text\n","stream":"stderr","time":"2024-05-01T10:00:00.1Z"} (docker's json-file)
_DOCKER = re.compile(r'\{"log":"((?:[^"\\]|\\.)*)","stream":"std(?:out|err)"(?:,"attrs":\{[^}]*\})?,"time":"([^"]+)"')
# [3]: | [3]<stdout>: | [1,3]<stdout>: | [1,3]<stderr>: | [1,3]: | [prterun-node-a-41@1,3]<stderr>:
_MPI = re.compile(r"\[(?:(?:[\w.-]+@)?(\d+),\s?)?(\d+)\](?:<std(?:out|err)>)?:(?=.)|\[(\d+)\]\s(?=[A-Z\[])")
# (RayWorkerWrapper pid=92000, ip=10.0.0.24) | (raylet) | (pid=12) | (VllmWorker rank=2 pid=225) | (Worker_TP0 pid=58200)
# (head, rank=0, pid=4413, ip=10.0.8.7) of SkyPilot
_ACTOR = re.compile(r"\(([A-Za-z_][\w.:<>-]*)?(?:[ ,]?\s*((?:(?:pid|ip|rank|actor_id)=[^,)\s]+[, ]*)+))?\)(?:\x20|$|(?=\[\d*m))")
_KV = re.compile(r"(pid|ip|rank)=([^,)\s]+)")
_TP = re.compile(r"(?:^|_)TP(\d+)")
# i.pretrain/0 [default2]:  (a scheduler's task name in front of a bracket)
_TASK = re.compile(r"([\w.-]+/\d+) (?=\[)")
# 0: text (srun -l)
_SRUN = re.compile(r"\s{0,4}(?!\d{1,2}:\d\d:\d\d)(\d{1,5}): ?")
# node-1: text (pdsh, DeepSpeed); ddp-worker-0  | text (docker compose, kubetail)
# torch.distributed.elastic.agent.server.api: [WARNING] …: a Python logger, whose name has neither digit nor hyphen
_LOGGER = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+: *\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b")
_HOST = re.compile(r"([A-Za-z][\w-]*(?:\.[\w-]+)*): ?")
_PIPE = re.compile(r"([A-Za-z][\w.-]*)\s*\| ")
# node-1:2918:4483 [4] init.cc:263 NCCL WARN
_NCCL = re.compile(r"([A-Za-z][\w.-]*):(\d+):(\d+) \[(\d+)\] ")
# node-b: Test CUDA failure common.cu:1030 'out of memory' |  .. node-b pid 3018: Test failure common.cu:937 (nccl-tests)
_TESTS = re.compile(r"(?: \.\. )?([A-Za-z][\w.-]*)(?: pid (\d+))?: (?=Test (?:(?:CUDA|NCCL) )?failure )")
# task 9 (rank 36) text | task 9 | text
_TASK_RANK = re.compile(r"[Tt]ask (\d+) (?:\([Rr]ank (\d+)\)(?: \||:)?|\|) ?")
# slurmstepd-gpu20-15: error: Detected 1 oom-kill event(s) …
_STEPD = re.compile(r"slurmstepd-([\w.-]+): (?=error|fatal|info|debug|\*\*\*)")
# 2024-05-01T10:00:00Z stdout F text (CRI)
_CRI = re.compile(r"(?:stdout|stderr) [FP] ")
_LEVEL = re.compile(r"[\s|:\-]*\[?(DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|TRACE|NOTICE)\]?(?=[\s|:\]]|$)")
_PYLOG = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):([\w.]+):")
# |   | 2024-05-01 10:00:00 master-0 >> text |
_TABLE = re.compile(r"\s*\|(?:\s*\|)*\s+(?=\d{4}-)")
_ARROW = re.compile(r"\s*([A-Za-z][\w.-]*) >> ?")


@lru_cache(maxsize=4096)
def _day(year: int, month: int, day: int) -> float | None:
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _seconds(hour: str, minute: str, second: str, fraction: str | None) -> float:
    return int(hour) * 3600 + int(minute) * 60 + int(second) + (float("0." + fraction) if fraction else 0.0)


def _stamp(head: Prefix, year: int | None, month: int, day: int, parts: tuple[str | None, ...], zone: str | None = None) -> None:
    """Set the time of a head from its parts; a stamp without a year and without one from the file stays unset."""
    hour, minute, second, fraction = parts
    clock = _seconds(hour or "0", minute or "0", second or "0", fraction)
    if year is None:
        head.yearless = True
        head.clock = clock
        return
    base = _day(year, month, day)
    if base is None or head.time is not None:
        return
    head.time = base + clock
    head.naive = zone is None
    if zone and zone[0] in "+-":
        digits = zone[1:].replace(":", "")
        head.time -= (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


def _time(head: Prefix, text: str, at: int, year: int | None) -> int:
    """Read one stamp at `at`; return the position after it, or `at` when there is none."""
    first = text[at : at + 1]
    if found := _ISO.match(text, at) if first.isdigit() or first in "[(" else None:
        if (tp := _SGL.match(text, at)) and head.rank is None and (t := re.search(r"TP(\d+)", tp[1])):
            head.local_rank = int(t[1])
            if "DP" not in tp[1] and "PP" not in tp[1]:  # with tensor parallelism alone its number is the rank
                head.rank = int(t[1])
        _stamp(head, int(found[1]), int(found[2]), int(found[3]), found.group(4, 5, 6, 7), found[8])
        return found.end()
    if first in "DIWEFV[" and (found := _GLOG.match(text, at)):
        digits = found[2]
        _stamp(head, year, int(digits[:-2]), int(digits[-2:]), found.group(3, 4, 5, 6))
        head.yearless = True
        head.level = _LEVELS[found[1]]
        if found[7]:
            head.pid = int(found[7])
        return found.end()
    if first in "IWEF" and (found := _ABSL.match(text, at)):
        head.time, head.level, head.pid = float(found[2]), _LEVELS[found[1]], int(found[3])
        return found.end()
    if first in "DIWEF" and (found := _SKY.match(text, at)):
        _stamp(head, year, int(found[2]), int(found[3]), found.group(4, 5, 6, 7))
        head.yearless = True
        head.level = _LEVELS[found[1]]
        return found.end()
    if first in "DIWEC" and (found := _VLLM.match(text, at)):
        _stamp(head, year, int(found[2]), int(found[3]), found.group(4, 5, 6, 7))
        head.yearless = True
        head.level = _LEVELS[found[1]]
        return found.end()
    if first == "[":
        if found := _NEMO.match(text, at):
            _stamp(head, int(found[2]), int(found[3]), int(found[4]), found.group(5, 6, 7, 8))
            head.level = _LEVELS[found[1]]
            return found.end()
        if found := _CPP.match(text, at):
            head.level = _LEVELS[found[1]]
            return found.end()
        if found := _EPOCH.match(text, at):
            head.time = float(found[1])
            return found.end()
    if first.isdigit() or first == "[":
        if found := _US.match(text, at):
            _stamp(head, int(found[3]), int(found[1]), int(found[2]), found.group(4, 5, 6, 7))
            return found.end()
        if found := _MD.match(text, at):
            _stamp(head, year, int(found[1]), int(found[2]), found.group(3, 4, 5, 6))
            head.yearless = True
            return found.end()
        if found := _CLOCK.match(text, at):
            head.clock = _seconds(found[1], found[2], found[3], found[4])
            return found.end()
    if first == "s" and (found := _SUBMITIT.match(text, at)):
        _stamp(head, int(found[2]), int(found[3]), int(found[4]), found.group(5, 6, 7, 8))
        head.level = _LEVELS.get(found[1], "")
        return found.end()
    if first.isupper():
        if found := _CTIME.match(text, at):
            _stamp(head, int(found[8]), MONTHS.get(found[1], 0), int(found[2]), found.group(3, 4, 5, 6))
            return found.end()
        if (found := _SYSLOG.match(text, at)) and found[1] in MONTHS:
            _stamp(head, year, MONTHS[found[1]], int(found[2]), found.group(3, 4, 5, 6))
            head.yearless, head.node = True, head.node or found[7]
            head.pid = int(found[9]) if found[9] else head.pid
            return found.end()
    return at


def _actor(head: Prefix, found: re.Match[str]) -> bool:
    """Read Ray's and vLLM's ``(Name pid=…, ip=…)``; plain words in parentheses are no head."""
    name, rest = found[1] or "", found[2] or ""
    if not rest and name != "raylet":
        return False
    for key, value in _KV.findall(rest):
        if key == "ip":
            head.node = head.node or value
        elif value.isdigit():
            if key == "pid":
                head.pid = int(value)
            else:
                head.rank = int(value)
    if tp := _TP.search(name):
        head.local_rank = int(tp[1])
        if "PP" not in name and "DP" not in name and head.rank is None:
            head.rank = int(tp[1])
    return True


def _speaker(head: Prefix, text: str, at: int, ctx: Context) -> int:
    """Read one rank, node or process word at `at`; return the position after it, or `at`."""
    first = text[at : at + 1]
    if first in "[<":
        if (head.rank is None or head.rank == head.task) and (found := _RANK.match(text, at)):
            head.rank = int(found[1] or found[2])  # what the rank says of itself counts more than its launcher's number
            return found.end()
        if (found := _TEE.match(text, at)) and found[1].lower() not in ("rank", "gpu", "attempt"):
            head.local_rank = int(found[2])
            return found.end()
        if found := _POD.match(text, at):
            head.pod = found[1]
            return found.end()
        if found := _SAGE.match(text, at):
            head.rank, head.node = int(found[1]), head.node or found[2]
            return found.end()
        if head.task is None and (found := _MPI.match(text, at)):
            head.task = int(found[2] or found[3])
            head.rank = None if ctx.tasks and found[1] else head.task
            return found.end()
        if found := _UCX.match(text, at):
            head.node, head.pid = found[1] or found[3], int(found[2] or found[4])
            return found.end()
        if found := _TAG.match(text, at):
            return found.end()
        if found := _NANOTRON.match(text, at):
            head.level, head.node = _LEVELS[found[1]], head.node or found[2]
            return found.end()
        if found := _HF.match(text, at):
            head.level = _LEVELS[found[1]]
            return found.end()
        if found := _TRTLLM.match(text, at):
            head.rank = int(found[1]) if found[1] and head.rank is None else head.rank
            head.level = _LEVELS.get(found[2], head.level)
            return found.end()
        return at
    if first == "(" and (found := _ACTOR.match(text, at)):
        return found.end() if _actor(head, found) else at
    if ctx.srun and head.rank is None and head.task is None and (found := _SRUN.match(text, at)):
        head.task = int(found[1])
        head.rank = None if ctx.tasks else head.task
        return found.end()
    if ctx.pods and head.pod is None and (found := _STERN.match(text, at)) and found[1] in ctx.pods:
        head.pod = found[1]
        return found.end()
    if first.isalpha():
        if found := _STEPD.match(text, at):
            head.node = found[1]
            return found.end()
        if found := _NCCL.match(text, at):
            head.node = found[1]
            head.pid = int(found[2])
            head.device = int(found[4])  # CUDA's numbering inside the process: a local rank only by custom
            return found.end()
        if first in "tT" and head.task is None and (found := _TASK_RANK.match(text, at)):
            head.task, head.rank = int(found[1]), int(found[2]) if found[2] else head.rank
            return found.end()
        if (head.rank is None or head.rank == head.task) and (found := _RANK.match(text, at)) and found[2]:
            head.rank = int(found[2])
            return found.end()
        if first in "rR" and (found := _COMPOSER.match(text, at)):
            head.rank, head.pid = int(found[1]), int(found[2])
            return found.end()
        if ctx.pdsh and (found := _HOST.match(text, at)) and found[1] in ctx.hosts:
            head.node = head.node or found[1]
            return found.end()
        if ctx.hosts and head.pod is None and (found := _PIPE.match(text, at)) and found[1] in ctx.hosts:
            head.pod = found[1]  # a container: on which machine, others have to tell
            return found.end()
        if found := _TASK.match(text, at) or _CRI.match(text, at):
            return found.end()
    if "failure" in text and (found := _TESTS.match(text, at)):
        head.node, head.pid = found[1], int(found[2]) if found[2] else head.pid
        return found.end()
    if first in " |" and (found := _TABLE.match(text, at)):
        return found.end()
    return at


def _record(head: Prefix, text: str, year: int | None) -> str | None:
    """Read a line that is one JSON record of a structured logger; return its message, or None when it is none."""
    record = record_of(text)
    if record is None:
        return None
    if isinstance(record.stamp, str):
        _time(head, record.stamp, 0, year)
    elif record.stamp is not None and 1e9 < record.stamp < 1e14:
        head.time = record.stamp / 1000 if record.stamp > 1e11 else float(record.stamp)
    head.level, head.rank, head.node = _LEVELS.get(record.level, ""), record.rank, record.node
    return record.message


def split_prefix(text: str, ctx: Context = NO_CONTEXT) -> Prefix:
    """
    Split a line into what its head says and the rest.

    Parameters
    ----------
    text : str
        One line, without its end.
    ctx : Context
        What the file as a whole tells (`context`): year of stamps that have none, whether ``0: `` is srun's.

    Returns
    -------
    Prefix
        Fields that the head does not give are None; `rest` has no leading blank only where a head was removed.
    """
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    head = Prefix()
    if text.startswith("{") and (record := _record(head, text, ctx.year)) is not None:
        text = record
    elif text.startswith('{"log":"') and (docker := _DOCKER.match(text)):
        try:
            text = str(json.loads(f'"{docker[1]}"')).rstrip("\n")
        except ValueError:
            text = docker[1]
        _time(head, docker[2], 0, ctx.year)
    if "%|" in text[:400] and (glued := _GLUED.search(text[:800])) is not None:
        text = text[glued.end() :]
    at = 0
    end = min(len(text), 400)
    if text[:1] in " \t":
        # Megatron begins its step lines with a blank; white space counts as a head only in front of a stamp
        indent = len(text) - len(text.lstrip(" \t"))
        if indent <= 8 and (after := _time(head, text, indent, ctx.year)) > indent:
            at = after
    for _ in range(10):
        skip = at
        if at and head.time is not None and text[skip : skip + 2] == ": ":
            skip += 1  # CloudWatch and tee put a colon after the stamp
        while skip < end and text[skip] == " " and skip - at < 3 and at:
            skip += 1
        if text[skip : skip + 1] == "[" and (bare := _BARE_ANSI.match(text, skip)) is not None:
            at = bare.end()
            continue
        after = _speaker(head, text, skip, ctx)
        if after == skip and (head.time is None or text[skip : skip + 1] in "[EWIDFC"):
            after = _time(head, text, skip, ctx.year)
        if after == skip:
            if ">>" in text and head.time is not None and (arrow := _ARROW.match(text, skip)):
                head.node = head.node or arrow[1]
                at = arrow.end()
                continue
            break
        at = after
    if found := _LEVEL.match(text, at):
        head.level = head.level or _LEVELS[found[1]]
    elif text[at : at + 1] in "DIWEC" and (found := _PYLOG.match(text, at)):
        head.level = _LEVELS[found[1]]
    speaker = head.rank if head.rank is not None or head.task is None else f"task{head.task}"
    head.stream = f"{speaker}/{head.local_rank}/{head.pid}/{head.node}/{head.pod}" if at else ""
    head.rest = text[at:]
    late = head.rest[:200] if "ank" in head.rest or "RANK" in head.rest else ""
    told = late and head.rank is None and (head.time is not None or "host=" in late)
    if told and (found := _IN_RANK.search(late) or _IN_RANK.search(head.rest[-12:])):
        head.rank = int(found[1])
        head.node = head.node or (host[1] if (host := _IN_HOST.search(late)) else None)
    return head


# [rank8]: | [default3]: | | rank 8 | | rank=8 | W1129 16:19:56 90 torch/distributed/elastic/… (an agent)   behind the number of a task
_SAYS_RANK = re.compile(
    r"\[rank(\d+)\]|\[[a-z]+_?\d+\]:|(?:\| rank | rank=)(\d+)[ /]|[WEI]\d{4} .{22,32}torch/distributed/(?:el|run)"
)


def _counts_tasks(number: str, rest: str, pids: dict[str, str]) -> bool:
    """Tell whether what follows a launcher's number shows that it is not the rank's: another rank, or a second process."""
    if found := _SAYS_RANK.match(rest) or _SAYS_RANK.search(rest[:120]):
        rank = found[1] or found[2]
        return rank is None or int(rank) != int(number)
    found = _NCCL.match(rest)
    return found is not None and pids.setdefault(number, found[2]) != found[2]


def context(lines: Iterable[str], year: int | None = None) -> Context:
    """
    Look over (a sample of) the lines of a file for what one line cannot tell.

    Parameters
    ----------
    lines : iterable of str
        The first few thousand lines suffice.
    year : int, optional
        Year of stamps without one, when the file has no full date of its own.
    """
    total = numbered = hosted = 0
    own: int | None = None
    ranks, hosts = set[str](), dict[str, int]()
    tasks, pids = False, dict[str, str]()
    pods: dict[tuple[str, str], int] = {}
    for raw in lines:
        text = _ANSI.sub("", raw) if "\x1b" in raw else raw
        if (
            own is None
            and (found := re.search(r"(?<!\d)(20[1-4]\d)[-/](?:0[1-9]|1[0-2])[-/][0-3]\d[T _]\d{2}:\d{2}", text[:400]))
        ) or (own is None and (found := re.search(r"(?:0[1-9]|1[0-2])/[0-3]\d/(20[1-4]\d) \d{2}:\d{2}", text[:200]))):
            own = int(found[1])
        if not text.strip() or text.startswith(("srun: ", "slurmstepd: ", "slurmstepd-", "sbatch: ")):
            continue  # Slurm's own lines carry no number
        total += 1
        if (found := _SRUN.match(text)) and found.end() > found.start():
            numbered += 1
            ranks.add(found[1])
            tasks = tasks or _counts_tasks(found[1], text[found.end() :], pids)
        elif (found := _MPI.match(text)) and found[1]:
            tasks = tasks or _counts_tasks(found[2], text[found.end() :], pids)
        elif (
            (found := _HOST.match(text))
            and re.search(r"\d|^localhost$|-[a-z]$|\.\w", found[1])
            and not (text[found.end() - 1] == ":" and text[found.end() : found.end() + 2].isdigit())
            and not _LOGGER.match(text)
        ):
            hosted += 1
            hosts[found[1]] = hosts.get(found[1], 0) + 1
        elif found := _STERN.match(text):
            pods[found[1], found[2]] = pods.get((found[1], found[2]), 0) + 1
        elif found := _PIPE.match(text):
            hosts[found[1]] = hosts.get(found[1], 0) + 1
    # srun's own lines ("srun: error: …", "slurmstepd: …") carry no number, so a good half is enough
    srun = numbered >= max(2, 0.5 * total) and (len(ranks) > 1 or numbered >= 0.8 * total)
    pdsh = not srun and hosted >= max(2, 0.6 * total)
    # nearly every line begins with one of few pairs; a sentence of prose does so once
    stern = frozenset(pod for pod, _ in pods if sum(pods.values()) >= max(3, 0.9 * total) and len(pods) <= total / 3)
    names = frozenset(name for name, seen in hosts.items() if seen >= 2 or pdsh)
    return Context(year=own or year, srun=srun, tasks=tasks, pods=stern, hosts=names, pdsh=pdsh)
