"""Turn a context without a cause into what can still be said: it succeeded, it was ended, or only symptoms are left."""

from __future__ import annotations

from workbench.model import Event, Gpu, Hypothesis, JobRecord
from workbench.triage.context import JOB_SOURCES, Context
from workbench.triage.groups import Group
from workbench.triage.rules.outcome import Outcome

__all__ = ["succeeded", "symptoms"]


_PURPOSE = ("platform/preemption", "user/stopped", "user/numerics")  # what a job may well outlive and yet is the news of its log
_ENDED = ("platform/preemption", "user/stopped")  # somebody sent a signal
_STILL = ("RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING", "CREATED", "STARTING")
_WELL = ("COMPLETE", "SUCCEEDED", "SUCCESSCRITERIAMET")  # Slurm, and the conditions of a Job, a JobSet and Kubeflow's kinds
_FEW = 2  # steps after an error that show the job went on: a progress bar repaints once while a process dies


def _failures(context: Context) -> list[Event]:
    """Errors of the job that it did not outlive: neither further steps nor a word of success follow them in their own file."""
    steps, finished = _good_lines(context)

    def outlived(event: Event) -> bool:
        if event.line is None or context.cls(event) in _PURPOSE:
            return False
        if event.line < finished.get(event.file, -1):
            return True
        if context.weight(event) >= 0.8:
            return False  # such an error is the end of its process, whatever bars the others still paint
        return sum(1 for line in steps.get(event.file, ()) if line > event.line) >= _FEW

    return [
        event
        for event in context.events
        if event.source in (*JOB_SOURCES, "slurm")
        and context.role(event) in ("cause", "symptom")
        and context.weight(event) >= 0.1
        and not event.data.get("handled")
        and not outlived(event)
    ]


def _good_lines(context: Context) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Return, by document, the lines on which the job made a step, and the last line on which it said that it ended well."""
    steps: dict[str, list[int]] = {}
    for document in context.incident.documents:
        lines = [row[5] for row in document.facts.get("progress") or [] if len(row) > 5 and row[5]]
        if lines:
            steps[document.name] = lines
    finished: dict[str, int] = {}
    for event in context.finished:
        if event.line is not None:
            finished[event.file] = max(finished.get(event.file, 0), event.line)
    return steps, finished


def succeeded(context: Context, outcome: Outcome) -> None:
    """
    A job that its scheduler or launcher calls completed, with no failed start before, did not fail, whatever else was logged.

    Nor did one that says so itself, or that makes steps to the end of its log, after every error that it wrote.
    """
    jobs = [job for job in context.incident.jobs if "." not in (job.id or "")]  # steps (17.batch) may succeed while the job fails
    ended = [job for job in jobs if job.state and not job.state.upper().startswith(_STILL)]
    good = bool(ended) and all((job.state or "").upper().startswith(_WELL) and not job.exit_code for job in ended)
    zero = [job for job in jobs if job.exit_code is not None]
    clean = bool(zero) and all(job.exit_code == 0 and not job.signal for job in zero) and (good or not ended)
    bad = any(job.exit_code or job.signal for job in jobs) or (bool(ended) and not good)
    failures = _failures(context)
    lost = {id(event) for event in failures}
    causes = [
        group
        for group in outcome.alive()
        if group.score >= 0.3
        and (
            any(id(event) in lost for event in group.events)
            if group.source in (*JOB_SOURCES, "slurm")
            else group.source == "kubernetes"
        )
    ]
    restarted = len(context.lives) > 1
    evidence = list(context.finished[:3])
    if (good or clean or (context.finished and not bad)) and not failures and not causes and not restarted:
        outcome.override = Hypothesis("none", 0.9, evidence=evidence, rule="it ended well", why=["the job ended with success"])
        return
    # the accounting repeats what the batch script returned; a step that Slurm ended since one of its tasks failed did fail
    step = any(event.signature == "slurm-task-failure" for event in failures)
    if (good or (clean and context.finished)) and not restarted and not step:
        strong = [group for group in causes if group.score >= 0.8 or _of_another(group, ended)]
        if not strong:
            outcome.override = Hypothesis(
                "none", 0.85, evidence=evidence, rule="it ended well", why=["the job ended with success"]
            )
            return
    running = bool(_good_lines(context)[0]) and not failures and not causes and not restarted and not bad
    if running and (context.stop is None or context.end is None or context.end - context.stop < 600.0):
        hard = [
            group
            for group in outcome.alive()
            if (group.score >= 0.6 and group.source not in (*JOB_SOURCES, "metrics", "smi"))
            or (group.score >= 0.7 and group.signature.startswith("dcgmi-"))  # a diagnosis is not run beside a healthy job
        ]
        if not hard:
            outcome.override = Hypothesis(
                "none",
                0.6,
                rule="still running",
                why=["the job still made steps when the evidence ends and no line after them says it failed"],
            )


def _of_another(group: Group, ended: list[JobRecord]) -> bool:
    """Tell whether what Kubernetes says is of pods that belong to none of the jobs that ended well."""
    pods = {str(event.data["pod"]) for event in group.events if event.data.get("pod")}
    names = [job.name for job in ended if job.source == "kubernetes" and job.name]
    return bool(pods and names) and not any(pod.startswith(name) for pod in pods for name in names)


_DEATH = ("elastic-exit", "exit-", "slurm-task", "torchelastic-root-cause", "torchelastic-failure", "elastic-failure")
# what says most of a death first: signals that a launcher does not send to the survivors (kill, crash, a limit); None: any code
_SIGNALS = ({sign for number in (9, 11, 7, 4, 8, 5, 24, 25, 31) for sign in (-number, 128 + number)}, {-15, 143}, None)


def symptoms(context: Context, outcome: Outcome) -> None:
    """
    With no cause in evidence, a specific symptom may carry a weak verdict; else the rank that died first is named and the cause is unknown.
    """
    if outcome.fallback is not None:
        return
    best: Event | None = None
    # the one that says most first: what comes after it counts half, however early it was
    for event in sorted(context.events, key=context.weight, reverse=True):
        if context.role(event) != "symptom" or event.data.get("handled") or context.in_job(event.node) is False:
            continue
        if context.cls(event) in ("unknown", "none") or context.weight(event) < 0.35:
            continue
        cls = context.cls(event)
        if cls in _ENDED and event.source in JOB_SOURCES and _after_a_failure(context, outcome, event):
            continue  # the launcher ends the other agents when one has failed
        if best is None or context.weight(event) > context.weight(best):
            best = event
        known = any(group.cls == cls and group.score >= 0.35 for group in outcome.alive() if group.signature != event.signature)
        if context.weight(event) >= 0.4 and _in_time(context, event) and not known:
            group = outcome.add(
                context,
                event.signature,
                cls,
                0.8 * context.weight(event),
                [event],
                node=None
                if cls == "platform/node-lost" and event.source in JOB_SOURCES
                else event.node,  # it complains, it is not lost
                gpu=event.gpu,
                rank=event.rank,
                note="a symptom; nothing more specific explains it",
            )
            if any(other.score >= 0.35 and other.cls != "unknown" and other is not group for other in outcome.alive()):
                group.lower(0.5, "something more specific explains it")
    deaths = [event for event in context.events if event.code is not None and event.signature.startswith(_DEATH)]
    deaths.sort(key=lambda event: next(number for number, name in enumerate(_DEATH) if event.signature.startswith(name)))
    death = None
    for codes in _SIGNALS:
        death = death or next((e for e in deaths if e.rank is not None and (codes is None or e.code in codes)), None)
    lines = [event for event in deaths if death is not None and event.rank == death.rank]
    outcome.fallback = Hypothesis(
        "unknown",
        0.4,
        death.node if death else None,
        None,
        death.rank if death else None,
        time=death.time if death else context.fail,
        evidence=lines[:3],
        rule="nothing decides",
    )
    ranks = {event.rank for event in context.events if context.role(event) == "symptom" and event.rank is not None}
    if death is None and len(ranks) == 1:
        outcome.fallback.rank = next(iter(ranks))
    if death is None and best is not None:
        outcome.fallback.node, outcome.fallback.gpu = best.node, best.gpu
        outcome.fallback.evidence = [best]
        outcome.fallback.remediation = context.row(best).remediation or None
    outcome.fallback.node = outcome.fallback.node or context.sole_node  # where it ran, not who is to blame
    if not context.has_job and death is None and not any(event.signature == "k8s-exit" for event in context.events):
        _no_job(context, outcome.fallback)


def _after_a_failure(context: Context, outcome: Outcome, event: Event) -> bool:
    """Tell whether a rank had failed by a cause of its own clearly before: by its time, or since an agent had told so in the same output."""
    if event.time is None:
        return False
    causes = [
        group.first
        for group in outcome.alive()
        if group.first is not None
        and group.score >= 0.35
        and group.source in JOB_SOURCES
        and group.cls not in (*_ENDED, "unknown", "none")
    ]
    told = any(_reports(one, event) for one in context.events)
    return any(first < event.time - (0.0 if told else context.windows.same_instant) for first in causes)


def _reports(one: Event, event: Event) -> bool:
    """
    Tell whether an agent reports, further up in the output of a launcher, that a rank ended by itself.

    Who is ended on purpose is signalled first and reported afterwards, so the order of the two tells one from the other where clocks cannot.
    """
    return (
        one.signature in ("elastic-exit", "elastic-failure")
        and one.code is not None
        and 0 < one.code < 128
        and one.file == event.file
        and (one.line or 0) < (event.line or 0)
        and one.time is not None
        and event.time is not None
        and one.time <= event.time
    )


def _in_time(context: Context, event: Event) -> bool:
    if context.start is None or event.time is None or event.source in ("job", "launcher", "torchelastic"):
        return True
    return event.time >= context.start - context.windows.before_start


def _no_job(context: Context, fallback: Hypothesis) -> None:
    """Signs on a node without a job that failed: keep new work off it until somebody looked, and repair nothing on suspicion."""
    gpus = {event.gpu for event in context.events if event.gpu is not None}
    gpus |= {one.gpu for one in context.incident.series if one.gpu is not None} if not gpus else set()
    nodes = {event.node for event in context.events if event.node} | {
        context.node(one.node) for one in context.incident.series if one.node
    }
    fallback.node = fallback.node or (next(iter(nodes)) if len(nodes) == 1 else None)
    if len(gpus) == 2:  # one source gave the index, another the address: with no third in sight they mean the same device
        one, other = gpus
        if (one.pci is None) != (other.pci is None) and (one.index is None or other.index is None or one.index == other.index):
            gpus = {Gpu(one.index if one.index is not None else other.index, one.uuid or other.uuid, one.pci or other.pci)}
    fallback.gpu = fallback.gpu or (next(iter(gpus)) if len(gpus) == 1 else None)
    if not nodes and not context.events and not context.incident.series:
        return  # nothing was read: nothing is advised
    fallback.retry = "exclude-node"
    fallback.remediation = fallback.remediation or "none"
    if not fallback.evidence:
        fallback.evidence = context.events[:3]
