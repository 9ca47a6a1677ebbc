"""Turn the lines of a job, rank or launcher log into events, placements and the progress of its ranks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from workbench.model import Event, Line, Parsed, Problem
from workbench.parse.job_after import conclude
from workbench.parse.job_launcher import file_hints, launched, mesh, placement, world_info, world_size
from workbench.parse.job_numbers import numbers
from workbench.parse.job_signatures import matcher
from workbench.parse.job_state import MAX_EVENTS, SOFT, JobState, RankState, Uttered, add, cut, details, remember, whose
from workbench.parse.learned import learned_context, split
from workbench.parse.prefix import Prefix
from workbench.parse.progress import step_of
from workbench.parse.slurm_log import event_of

__all__ = ["parse_job"]

_SAMPLE = 4000  # lines looked over for what one line cannot tell
_MAX_PROGRESS = 4_000  # points kept per document; then every second is dropped
# a new start of a rank: the banner that a process prints once
_START = re.compile(
    r"(?<!out )[Ii]nitializing (?:process group|torch distributed|distributed)|\brank \d+/\d+ local_rank \d+ on "
    r"|GLOBAL_RANK: \d+, MEMBER"
)
# [default] Worker group FAILED. 2/2 attempts left; will restart worker group | restart_count=1 | restart count 1
_RESTART = re.compile(r"restart_count=(\d+)|[Rr]estart count[ :=]+(\d+)|will restart worker group")
# [Rank 3] … | [PG ID 0 PG GUID 0(default_pg) Rank 3]   (in groups other than the default one the number is the group's own)
_OWN_RANK = re.compile(r"\[Rank (\d+)\]|default_pg\) Rank (\d+)\]")
# rank 1: no more rows, done | [rank 3] finished | train: rank=2 host=node-a stops   (but not "Rank 2 is connected to 3", of gloo)
_SELF = re.compile(r"(?:\w+: )?\[?[Rr]ank[ =:]?(\d{1,6})\b(?! is connected)")
# Start node check on node-d with local_world_size 8   (DLRover) | local_world_size=8
_LOCAL_SIZE = re.compile(r"(?:node check on (\S+) with )?local_world_size['\"]?[ =:]+(\d{1,3})\b")
# kernel driver does not appear to be running on this host (node-b) | cuda_diagnostics.cc:144] hostname: node-c   (TensorFlow)
_DIAGNOSED = re.compile(r"appear to be running on this host \(([\w.-]+)\)|cuda_diagnostics\.cc:\d+\] hostname: ([\w.-]+)$")
# Created device /job:worker/replica:0/task:1/device:GPU:5 with 78100 MB memory:  -> device: 5, name: NVIDIA H100 80GB HBM3
_TF_TASK = re.compile(r"Created device /job:\w+/replica:\d+/task:(\d+)/device:GPU:\d+ ")
# successfully saved checkpoint from iteration 500 to /ckpt | checkpoint | saved /ckpt/step-0038200 in 39.8s | Checkpoint saved
_SAVED = re.compile(r"(?i)\bsaved\b.{0,80}(?:checkpoint|ckpt)|(?:checkpoint|ckpt).{0,80}\bsaved\b")
_OF_STEP = re.compile(r"(?i)(?:iteration|iter|step)[ =:_-]{0,12}0*(\d{1,15})")
_MAX_SAVED = 2_000
_FRAMEWORK = re.compile(
    r"torch/distributed/|torch\.distributed\.elastic|\.(?:cpp|cc|hpp|cu|h):\d+|launch\.py|site-packages|run\.py:\d+"
)
_SAID = re.compile(r"Error|Exception|error:|what\(\)|Fatal|^\s*free\(|corrupt|SIG|signal|KeyboardInterrupt|DataLoader|skip")


def parse_job(
    lines: Sequence[Line], *, file: str, node: str | None = None, year: int | None = None, scanned: bool = False
) -> Parsed:
    """
    Return the events, placements and facts of a log.

    Parameters
    ----------
    lines : sequence of Line
        All lines, or those that the scanner kept; `Line.no` tells which. When no line carries hits and `scanned` is false, the
        catalog is matched here.
    file : str
        Name that events carry; also a hint for rank and attempt (``logs/rank-3.attempt-1.log``).
    node : str, optional
        Node that wrote the file, when its name or place tells it.
    year : int, optional
        Year of stamps without one (glog, vLLM, syslog) when the file has no full date of its own; without both, such lines
        have no time.
    scanned : bool
        The scanner has looked at every line: lines without hits need no second look.

    Returns
    -------
    Parsed
        `facts`: ``attempts``, ``ranks`` {rank: first_time, last_time, last_step, last_line, lines}, ``progress`` [(time,
        rank, step, step_seconds, loss, line)], ``world_size``, ``finished`` and ``finished_evidence`` (the last line that says
        so), ``first_step_time``, ``activity`` (`workbench.parse.activity.Tally.facts`), ``checkpoints`` [(time, line, step)] that
        a line says were saved, ``voices`` {node: (its last line, when)},
        ``whole_from`` (no line after it was left out), ``noise`` and, when there are some, ``yearless_stamps``.
    """
    rank, local_rank, attempt = file_hints(file)
    sample = lines if len(lines) <= _SAMPLE else [*lines[: _SAMPLE // 2], *lines[-_SAMPLE // 2 :]]
    ctx, learned = learned_context((line.text for line in sample), year)
    job = JobState(
        file, node, ctx, matcher(), rank, local_rank, attempt or 0,
        own=not scanned and not any(line.hits for line in lines), learned=learned,
    )  # fmt: skip
    for line in lines:
        try:
            _line(job, line)
        except (ValueError, OverflowError, IndexError, KeyError, TypeError) as error:  # a hostile line must not cost the others
            if len(job.parsed.problems) < 5:
                job.parsed.problems.append(
                    Problem(file, f"a line could not be read: {error}", "it is left out", line.no, "job", "partial")
                )
    conclude(job)
    _facts(job)
    for order, event in enumerate(job.parsed.events):
        event.order = order
    return job.parsed


def _time(job: JobState, head: Prefix) -> float | None:
    """The line's own time, completed by what the file told before."""
    if head.time is not None and head.yearless and job.dated is not None:
        if abs(head.time - job.dated) > 2 * 86400:
            return None  # a clock or a year that is not this file's: its neighbours know better
        days = round((job.dated - head.time) / 86400)
        if days > 0 and abs(head.time + days * 86400 - job.dated) < 3600:
            head.time += days * 86400  # lines do not go back by whole days: only the date in this stamp is wrong
    if head.time is not None:
        if not head.yearless:
            job.dated = head.time
        job.day = head.time - head.time % 86400
        return head.time
    if head.clock is not None and job.day is not None and not head.yearless:
        moment = job.day + head.clock
        if job.any_last is not None and moment < job.any_last - 43200:  # past midnight
            job.day += 86400
            moment += 86400
        return moment
    return None


def _line(job: JobState, line: Line) -> None:
    text = line.text
    head = whose(job, line.no, split(text, job.ctx, job.learned))
    if head.rank is None and "Rank " in head.rest and (found := _OWN_RANK.search(head.rest[:300])):
        head.rank = int(found[1] or found[2])
    if head.rank is None:
        head.rank = job.rank
    if head.local_rank is None:
        head.local_rank = job.local_rank
    own_time = _time(job, head)
    if line.no > job.tally.no + 1:
        job.whole_from = line.no
    job.tally.look(line.no)
    if own_time is not None:
        job.tally.line(_speaker(head), own_time)
    if head.yearless and head.time is None:
        job.yearless += 1
    moment = job.moment(head.stream, own_time)
    hits = line.hits if not job.own else tuple(job.matcher.search(text))
    if (voice := head.node or head.pod or job.node) is not None:
        job.voices[voice] = (line.no, moment)

    job.blocks.feed(line.no, head)
    if job.quoted.feed(line.no, head, moment, text):
        return
    _hosts(job, head, line.no)
    if job.summary.feed(line.no, head.rest):
        if "Root Cause" in text or "Failures:" in text:
            _emit(job, line, head, moment, own_time, hits)
        for failure in job.summary.failures[-1:]:
            if failure.attempt is None:
                failure.attempt = job.attempt
        return
    _attempts(job, line.no, head, moment)
    if head.rank is not None:
        state = job.ranks.setdefault(head.rank, RankState())
        state.lines += 1
        state.last_line = line.no
        if moment is not None:
            state.last_time = moment
            if state.first_time is None:
                state.first_time = moment
    _place(job, head, line.no)
    inside, raised = job.stacks.feed(line.no, head.stream, head.rest)
    begins = head.rest.lstrip().startswith("Traceback (most recent call last):")
    if inside and begins and job.before is not None and line.no - job.before[0] == 1:
        job.intro[head.stream] = job.before[1]  # of a traceback behind other words on its line, those are the introduction
    if inside and "Traceback (most recent call last):" in head.rest and head.stream:
        job.headed = (line.no, head)
    if raised is not None:
        if not head.stream and job.headed is not None and raised.start - job.headed[0] == 1:
            # a logger put the head of the traceback on its own line; the rest of it has no prefix
            said = job.headed[1]
            head.rank, head.local_rank, head.node, head.pid = said.rank, said.local_rank, said.node, said.pid
            job.headed = None
        job.blocks.attach_head(head)
        job.raised.append(Uttered(raised, head, moment, text, job.attempt, hits, job.intro.pop(head.stream, None)))
        job.before = None
        return
    if not inside:
        if text.strip():
            job.before = (line.no, head, text)
            who = head.rank if head.rank is not None else _names_itself(head.rest)
            if who is None and head.local_rank is not None:
                who = -1 - head.local_rank
            if who is not None and head.rest.strip() and not (hits and _noise(job, hits)):
                job.said[who] = (line.no, text, head, moment)
        _progress(job, line, head, moment, own_time)
        if "aved" in text and _SAVED.search(head.rest[:400]):
            at = _OF_STEP.search(head.rest[:400])
            job.saved.append((own_time, line.no, int(at[1]) if at else None))
            if len(job.saved) > _MAX_SAVED:
                del job.saved[: _MAX_SAVED // 2]  # the last one is what counts
        if (
            head.level in ("ERROR", "CRITICAL")
            and head.rest.strip()
            and not _FRAMEWORK.search(text[: len(text) - len(head.rest) + 60])
        ):
            key = head.rank if head.rank is not None else -1 - (head.local_rank if head.local_rank is not None else 10_000)
            job.words[key] = (line.no, text, head, moment, job.attempt)
    if hits and not (inside and head.rest[:1] in " \t"):  # lines of code in a stack quote error texts without raising them
        _emit(job, line, head, moment, own_time, hits, quiet=inside)


def _noise(job: JobState, hits: tuple[str, ...]) -> bool:
    rows = job.matcher.order(hits)
    return bool(rows) and rows[0].layer == "noise"


def _names_itself(text: str) -> int | None:
    """Return the rank that the beginning of a line names: `rank 1: no more rows, done`."""
    found = _SELF.match(text) if "ank" in text[:40] else None
    return int(found[1]) if found else None


def _speaker(head: Prefix) -> int | tuple[str | None, str | None, int | None]:
    return head.rank if head.rank is not None else (head.node, head.pod, head.local_rank)


def _hosts(job: JobState, head: Prefix, no: int) -> None:
    """TensorFlow's CUDA diagnostics name the host of the process that prints them."""
    if "/replica:" in head.rest and head.node and (task := _TF_TASK.search(head.rest[:400])):
        remember(job, int(task[1]), None, head.node, head.pid, head.time, no, "tensorflow")
    found = _DIAGNOSED.search(head.rest[:400]) if "host" in head.rest else None
    name = (found[1] or found[2]) if found else None
    if name is None or name == "localhost":
        return
    if head.node is not None and head.node != name:
        job.names[head.node] = name
    if head.rank is not None:
        remember(job, head.rank, head.local_rank, name, head.pid, head.time, no, "line-prefix")


def _attempts(job: JobState, no: int, head: Prefix, moment: float | None) -> None:
    """A new attempt begins when the agent says so, or when a rank that is already up prints its banner again."""
    rest = head.rest
    number: int | None = None
    if "estart" in rest and (found := _RESTART.search(rest)):
        stated = found[1] or found[2]
        number = int(stated) if stated else None
        if number is None or number <= job.attempt:
            return
    elif ("nitializing" in rest or "ocal_rank" in rest or "GLOBAL_RANK" in rest) and _START.search(rest):
        state = job.ranks.setdefault(head.rank, RankState()) if head.rank is not None else None
        if state is not None and state.started and state.last_step is not None and state.last_step_line > 0:
            number = job.attempt + 1
        elif state is not None:
            state.started = True
        if not job.attempts:
            job.attempts.append({"attempt": job.attempt, "time": moment, "line": no})
    if number is not None and number <= 10_000:
        _begin(job, number, no, moment)


def _begin(job: JobState, number: int, no: int, moment: float | None) -> None:
    """Begin a new start of the job."""
    if not job.attempts and (first := job.first_time) is not None:
        job.attempts.append({"attempt": job.attempt, "time": first, "line": 1})
    job.attempt, job.over = number, False
    job.attempts.append({"attempt": number, "time": moment, "line": no})
    for state in job.ranks.values():
        state.started, state.last_step_line = False, 0


def _place(job: JobState, head: Prefix, no: int) -> None:
    if job.blocks.ranks:
        for local, rank in job.blocks.ranks:
            remember(job, rank, local, head.node or job.node, None, head.time, no, "torchelastic")
        job.blocks.ranks = []
    if job.blocks.mapped:
        for rank, node in job.blocks.mapped:
            remember(job, rank, None, node, None, head.time, no, "launcher-line")
        job.blocks.mapped = []
    for node in job.blocks.hosts:
        remember(job, None, None, node, None, head.time, no, "launcher-line")
    job.blocks.hosts.clear()
    for task, node in launched(head.rest) if "launching" in head.rest else []:
        remember(job, task, None, node, None, head.time, no, "launcher-line")
    if "ocal_world_size" in head.rest and (size_at := _LOCAL_SIZE.search(head.rest[:2000])):
        job.local_size = int(size_at[2])
        job.node = job.node or size_at[1]
    if job.world is None or "nranks" in head.rest:
        size = world_size(head.rest[:2000])
        if size is not None and size < 1_000_000:
            job.world = max(job.world or 0, size)
    if "WORLD INFO DICT" in head.rest and not job.placed:
        for one in world_info(head.rest):
            remember(job, one.rank or 0, one.local_rank, one.node, None, head.time, no, "deepspeed")
            job.world = max(job.world or 0, (one.rank or 0) + 1)
        return
    if "is connected to" in head.rest and len(job.meshes) < MAX_EVENTS and (group := mesh(head.rest)) is not None:
        job.meshes.append((group[1], group[0], head, no))
        if (
            job.over
        ):  # an agent saw a worker end: whoever connects now belongs to a new start, which a quiet agent does not tell of
            _begin(job, job.attempt + 1, no, job.any_last)
    found = placement(head, job.node)
    if found is None:
        if head.rank is not None and (head.node or head.pid):
            remember(job, head.rank, head.local_rank, head.node or job.node, head.pid, head.time, no, "line-prefix")
        return
    found.attempt, found.file, found.line, found.pod = job.attempt, job.file, no, head.pod
    if found.pid is not None:
        job.by_pid[found.pid] = (found.rank, found.local_rank, found.node)
    key = (found.rank, found.node, found.local_rank, found.gpu, found.pid, found.attempt)
    if key not in job.placed:
        job.placed.add(key)
        job.parsed.placements.append(found)


def _progress(job: JobState, line: Line, head: Prefix, moment: float | None, own_time: float | None) -> None:
    step = step_of(head.rest)
    if step is None or step.kind == "throughput":
        return
    if own_time is not None and step.step is not None:
        job.tally.step(_speaker(head), step.step)
    numbers(job, line, head, moment, step)
    if head.rank is not None and step.step is not None:
        state = job.ranks.setdefault(head.rank, RankState())
        state.last_step, state.last_step_line = step.step, line.no
    if step.kind == "step" and step.step is not None and job.first_step_time is None:
        job.first_step_time = moment
    job.seen_steps += 1
    if job.seen_steps % job.stride == 0:
        job.progress.append((moment, head.rank, step.step, step.seconds, step.loss, line.no))
        if len(job.progress) > _MAX_PROGRESS:
            del job.progress[::2]
            job.stride *= 2


def _emit(
    job: JobState,
    line: Line,
    head: Prefix,
    moment: float | None,
    own_time: float | None,
    hits: tuple[str, ...],
    quiet: bool = False,
) -> None:
    """Make the one event of a line from the row that says most."""
    rows = job.matcher.order(hits)
    if not rows:
        return
    row = rows[0]
    if row.layer == "noise":
        job.noise[row.id] = job.noise.get(row.id, 0) + 1
        return
    if row.id in ("number-lost", "number-lost-words", "kernel-line"):
        return  # it is there so that the scanner keeps such lines; `_progress` and `Quoted` judge them
    if row.id in SOFT:
        if row.id != "py-builtin-exception" or quiet or head.level not in ("ERROR", "CRITICAL"):
            return
        row = job.matcher.rows["python-exception"]
    if quiet and row.layer == "generic":
        return
    data: dict[str, Any] = dict(job.matcher.fields(row, line.text))
    also = [other.id for other in rows[1:] if other.id not in SOFT and other.layer != "noise"]
    if also:
        data["also"] = also
    details(row, line.text, data)
    job.over = job.over or row.id == "elastic-exit"
    if row.id == "elastic-sending-signal" and isinstance(told := data.get("pid"), int) and len(job.signalled) < MAX_EVENTS:
        job.signalled.add((job.attempt, told))
    if own_time is None and moment is not None:
        data["time_from"] = "previous"
    lowered = None
    if (
        row.role == "cause"
        and (row.layer in ("torch", "python") or row.id == "cuda-oom-other-words")
        and row.weight > 0.6
        and not _SAID.search(line.text)
        and not head.level
    ):
        lowered = round(row.weight * 0.6, 3)  # words without their exception: quoted, or torn off it
    elif row.role == "cause" and row.id.startswith(("exc-", "trainer-config")) and head.level in ("DEBUG", "INFO", "WARNING"):
        lowered = round(row.weight * 0.3, 3)  # a logger that goes on says what it does about a setting
    names = {other.id for other in rows} if row.role != "cause" else set()
    if "job-finished" in names or "process-finished" in names:
        whole = "job-finished" in names
        name = "job-finished" if whole else "process-finished"
        done = Event(name, "job", line.text[:500], moment, job.file, line.no, head.node or job.node, rank=head.rank)
        if whole:
            job.finished = done  # the last word counts
        else:
            job.ended = done
    if row.origin.startswith("signatures_slurm"):
        _slurm(job, line, head, moment, row.id)
        return
    if row.id.startswith("horovod-stalled"):
        head = dataclasses.replace(head, rank=None)  # the coordinator reports; it is not the one that is missing
    event = add(job, row, line.no, line.text, head, moment, data)
    if event is None:
        return
    if event.count == 1:
        job.blocks.attach(line.no, head, event)
        if lowered is not None:
            event.weight = lowered


def _slurm(job: JobState, line: Line, head: Prefix, moment: float | None, name: str) -> None:
    """Slurm's own lines in the output of a job mean the same as in its logs."""
    for event in event_of(name, line, file=job.file, node=head.node or job.node):
        if len(job.parsed.events) >= MAX_EVENTS:
            job.dropped += 1
            return
        if name == "slurm-node-fail" and event.node:
            event.data["reported_by"] = event.node  # a lost node does not write: the one named is where the step was run from
            event.node = None
        event.attempt = job.attempt
        if (event.role or job.matcher.rows[event.signature].role) != "cause":
            event.source = "launcher"  # srun reports the ends of its tasks; what the controller decided is the scheduler's word
        event.text = cut(line.text, job.matcher.compiled(job.matcher.rows[name]))
        if event.time is None and moment is not None:
            event.time = moment
            if head.time is None:
                event.data["time_from"] = "previous"
        key = (name, event.node, event.text)
        if (earlier := job.index.get(key)) is not None:
            earlier.count += 1
            continue
        job.index[key] = event
        job.parsed.events.append(event)


def _facts(job: JobState) -> None:
    facts = job.parsed.facts
    facts["attempts"] = job.attempts
    facts["ranks"] = {
        rank: {
            "first_time": state.first_time,
            "last_time": state.last_time,
            "last_step": state.last_step,
            "last_line": state.last_line,
            "lines": state.lines,
        }
        for rank, state in sorted(job.ranks.items())
    }  # fmt: skip
    facts["activity"] = job.tally.facts()
    facts["checkpoints"] = job.saved
    facts["progress"] = [point[:6] for point in job.progress]
    facts["world_size"] = job.world
    facts["voices"] = job.voices
    facts["whole_from"] = job.whole_from
    facts["first_step_time"] = job.first_step_time
    facts["noise"] = job.noise
    if job.finished is None and not any(event.signature.startswith(("exit-", "elastic-")) for event in job.parsed.events):
        job.finished = job.ended
    facts["finished"] = job.finished is not None
    if job.finished is not None:
        facts["finished_evidence"] = job.finished
    if job.yearless:
        facts["yearless_stamps"] = job.yearless
    if job.dropped:
        job.parsed.problems.append(
            Problem(
                job.file,
                f"{job.dropped} more events were counted but not kept",
                "narrow the time or split the file",
                None,
                "job",
                "partial",
            )
        )
