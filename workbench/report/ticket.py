"""Turn an action, or an incident's verdict, into the report of a fault: for a provider or the data centre, or for the people of the platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import WorkbenchError
from workbench.remediation.model import Action
from workbench.report import view
from workbench.report.markdown import code, quoted
from workbench.report.text import iso, plural, shorten

__all__ = ["SCHEMA", "FaultReport", "markdown", "of_action", "of_verdict"]

SCHEMA = "workbench.fault-report/1"
_TO = ("provider", "internal")
# what a provider may see: what the machine itself says, not what ran on it
_MACHINE = ("kernel", "smi", "metrics", "bmc", "kubernetes", "slurm")
_SHOWN = 20
_DIAGNOSTICS = ("dcgmi-", "dcgm-")

# label, key, where it can be read when nobody told; None: left out when not known
_ROWS: tuple[tuple[str, str, str | None], ...] = (
    ("Machine", "node", ""),
    ("Instance", "instance", "`kubectl get node NODE -o jsonpath={.spec.providerID}`, or the provider's console"),
    ("Provider's claim", "claim", None),
    ("System UUID", "system", None),
    ("Product", "product", "`nvidia-smi -L`"),
    ("Place", "place", None),
    ("Boot", "boot", ""),
    ("Kernel", "kernel", None),
    ("Driver", "driver", "`nvidia-smi`"),
    ("CUDA", "cuda", None),
    ("DCGM", "dcgm", None),
)
_GPU_ROWS: tuple[tuple[str, str, str | None], ...] = (
    ("GPU index", "index", ""),
    ("GPU UUID", "uuid", "`nvidia-smi -L`"),
    ("GPU PCI address", "pci", "`nvidia-smi -q`"),
    ("GPU serial", "serial", "`nvidia-smi -q -i INDEX`, line Serial Number"),
    ("GPU VBIOS", "vbios", "`nvidia-smi -q -i INDEX`, line VBIOS Version"),
    ("GPU part number", "part", None),
    ("GPU InfoROM", "inforom", None),
)

_ASKED = {
    "reset-gpu": "Please say whether this GPU is to be exchanged, or may be used again once its reset and diagnostic are clean.",
    "reboot-node": "Please look whether the machine has a fault that outlives a reboot, and exchange the part if it has.",
    "drain": "Please test the parts named above and repair or exchange what is faulty. The machine is kept free for you.",
    "replace-node": "Please exchange the part (or give another machine), and tell which part it was.",
    "fix-platform": "Please find and mend the fault on your side, and say when it began and ended.",
}
_ASKED_ELSE = "Please look at the machine and tell what you find."


@dataclass(frozen=True, slots=True)
class FaultReport:
    """
    What somebody who repairs machines asks for.

    Attributes
    ----------
    title : str
    to : str
        ``provider`` or ``internal``.
    machine, gpu, fault : mapping
        Facts by the keys that the JSON has; None where nobody knows. `gpu` is empty when no GPU is to blame.
    seen : tuple of mapping
        Lines as they were: time, source, text, file, line, node.
    diagnostics : tuple of mapping
        What a diagnostic said, of the same form.
    tried : tuple of mapping or None
        As `workbench.report.tried.tried` gives it; None where nobody looked.
    asked : str
    notes : tuple of str
        What whoever reads it must know: what is not sure, what was left out.
    about : mapping
        For the platform's people only: job, victims, what speaks against it, what could not be seen.
    kept, reference : str
        Where the evidence is kept; what to call this report.
    """

    title: str
    to: str
    machine: Mapping[str, Any]
    gpu: Mapping[str, Any]
    fault: Mapping[str, Any]
    seen: tuple[Mapping[str, Any], ...]
    asked: str
    diagnostics: tuple[Mapping[str, Any], ...] = ()
    tried: tuple[Mapping[str, Any], ...] | None = None
    notes: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    kept: str = ""
    reference: str = ""

    def missing(self) -> list[dict[str, str]]:
        """Return what a repairer will ask for and nobody knows, with where it can be read."""
        rows = [(label, key, ask, self.machine) for label, key, ask in _ROWS]
        rows += [(label, key, ask, self.gpu) for label, key, ask in _GPU_ROWS] if self.gpu else []
        return [
            {"what": label, "ask": (ask or "").replace("`", "")}
            for label, key, ask, facts in rows
            if ask is not None and facts.get(key) in (None, "")
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, schema ``workbench.fault-report/1``."""
        return {
            "schema": SCHEMA,
            "to": self.to,
            "title": self.title,
            "machine": {key: self.machine.get(key) or None for _, key, _ in _ROWS},
            "gpu": {key: self.gpu.get(key) for _, key, _ in _GPU_ROWS} if self.gpu else None,
            "fault": dict(self.fault),
            "seen": [dict(one) for one in self.seen],
            "diagnostics": [dict(one) for one in self.diagnostics],
            "tried": None if self.tried is None else [dict(one) for one in self.tried],
            "asked": self.asked,
            "missing": self.missing(),
            "notes": list(self.notes),
            "about": dict(self.about),
            "kept": self.kept or None,
            "reference": self.reference,
        }


def of_action(action: Action) -> FaultReport:
    """Return the report that an action with the verb ``ticket`` stands for: it carries all that is told."""
    args: Mapping[str, Any] = action.args
    booted = iso(args.get("booted"))
    machine = {
        "node": action.node,
        "instance": args.get("provider") or args.get("uid"),
        "claim": args.get("claim"),
        "product": args.get("product") or args.get("sku"),
        "place": " ".join(str(args.get(one) or "") for one in ("pool", "zone")).strip(),
        "boot": _boot(args.get("boot"), booted),
    }
    gpu = {**action.gpu.as_dict(), "serial": args.get("serial"), "vbios": args.get("vbios")} if action.gpu is not None else {}
    seen = tuple(
        {
            "time": iso(one.get("time")),
            "source": one.get("source"),
            "text": one.get("text"),
            "file": one.get("file"),
            "line": None,
        }
        for one in args.get("evidence") or []
    )
    diagnostics = tuple(
        {"time": iso(one.get("time")), "source": "diagnostic", "text": one.get("text"), "file": None, "line": None}
        for one in args.get("diagnostics") or []
    )
    return FaultReport(
        title=f"{action.node}: {args.get('reason') or action.why}",
        to="provider",
        machine=machine,
        gpu=gpu,
        fault={"class": args.get("class"), "code": args.get("code"), "since": iso(args.get("since")), "summary": action.why},
        seen=seen,
        diagnostics=diagnostics,
        asked=action.why,
        kept=str(args.get("bundle") or ""),
        reference=action.id,
    )


def of_verdict(
    document: Mapping[str, Any],
    *,
    to: str,
    machine: Mapping[str, Any] | None = None,
    gpu: Mapping[str, Any] | None = None,
    done: Sequence[Mapping[str, Any]] | None = None,
    job: Mapping[str, Any] | None = None,
    reference: str = "",
    kept: str = "",
) -> FaultReport:
    """
    Return the report of an incident.

    Parameters
    ----------
    document : mapping
        The verdict (``workbench.verdict/1``).
    to : str
        ``provider``: what the machine says, nothing of what ran on it. ``internal``: the job, its victims and what is not sure as well.
    machine, gpu : mapping, optional
        As `workbench.report.machines` gives them.
    done : sequence of mapping, optional
        What was tried, as `workbench.report.tried.tried` gives it; None when there is no journal.
    job : mapping, optional
        ``id``, ``name``, ``start``, ``end`` (seconds since the epoch).

    Raises
    ------
    WorkbenchError
        There is nothing that a provider could mend.
    """
    if to not in _TO:
        raise ValueError(f"{to!r} is none of {', '.join(_TO)}")
    culprit, cause, cls = document.get("culprit") or {}, str(document.get("cause")), str(document.get("class"))
    if to == "provider" and cause in ("user", "none"):
        why = "nothing failed" if cause == "none" else f"the verdict is {cls}: the fault is in the job, not in a machine"
        raise _Nothing(f"there is nothing to report to a provider: {why}", hint="--to internal writes one for your own people")
    node, at = culprit.get("node"), culprit.get("at_fault")
    told = dict(machine or {})
    booted = iso(told["booted"]) if isinstance(told.get("booted"), (int, float)) else told.get("booted")
    facts = {
        "node": node,
        "instance": told.get("provider") or told.get("uid"),
        "system": told.get("system"),
        "product": (gpu or {}).get("product") or told.get("product"),
        "place": " ".join(str(told[key]) for key in ("pool", "type", "zone") if told.get(key)),
        "boot": _boot(told.get("boot"), booted),
        "kernel": told.get("kernel"),
        "driver": told.get("driver"),
        "cuda": told.get("cuda"),
        "dcgm": told.get("dcgm"),
    }
    lines = [one for one in document.get("evidence") or [] if one.get("text")]
    about_it = [one for one in lines if _of_machine(one, node)] if to == "provider" else lines
    left = len(lines) - len(about_it)
    first = next((one for one in about_it if one.get("role") == "cause"), None)
    about_it = sorted((one for one, _ in view.grouped(about_it)) if to == "internal" else about_it, key=_moment)
    diagnostics = [one for one in about_it if str(one.get("signature")).startswith(_DIAGNOSTICS)]
    seen = [one for one in about_it if one not in diagnostics and (to == "internal" or one.get("role") in ("cause", "context"))]
    code = str((first or {}).get("signature") or cls)
    named = view.gpu(culprit.get("gpu"), short=True) if at == "gpu" else ""
    title = f"{node or 'node not known'}{': ' + named if named else ''}: {cls}, {code}"
    notes = []
    if cause == "unknown":
        notes.append("The evidence does not decide what is at fault: this is what was seen.")
    elif at not in ("gpu", "node"):
        notes.append("The evidence blames nothing on this machine: it is named as the place where it was seen.")
    if sure := view.confidence(document):
        notes.append(f"How sure the verdict is: {sure}.")
    if document.get("counter_evidence"):
        notes.append(f"{plural(len(document['counter_evidence']), 'observation')} speak against it.")
    if left:
        notes.append(f"{plural(left, 'line')} of the job and of other machines: left out.")
    asked = _ASKED.get(str(document.get("remediation")), _ASKED_ELSE)
    if to == "internal":
        asked = " ".join(view.todo(document)[:3]) or _ASKED_ELSE
    return FaultReport(
        title=title,
        to=to,
        machine=facts,
        gpu=dict(gpu or culprit.get("gpu") or {}) if at == "gpu" or to == "internal" else {},
        fault={
            "class": cls,
            "code": code,
            "since": document.get("time"),
            # the sentence of a verdict tells of the job, too
            "summary": document.get("summary") if to == "internal" else view.meaning(cls),
        },
        seen=tuple(_line(one) for one in seen[:_SHOWN]),
        diagnostics=tuple(_line(one) for one in diagnostics[:_SHOWN]),
        tried=None if done is None else tuple(done),
        asked=asked,
        notes=tuple(notes),
        about=_about(document, job) if to == "internal" else {},
        kept=kept,
        reference=reference,
    )


class _Nothing(WorkbenchError):
    """There is nothing to report."""

    exit_code = 65


def _moment(event: Mapping[str, Any]) -> str:
    return str(event.get("time") or "~")  # what has no time comes last


def _of_machine(event: Mapping[str, Any], node: str | None) -> bool:
    return event.get("source") in _MACHINE and event.get("node") in (None, node) and bool(node)


def _line(event: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: event.get(key) for key in ("time", "source", "text", "file", "line", "node")}
    if event.get("count", 1) > 1:
        row |= {"count": event["count"], "last": event.get("last")}
    return row


def _boot(boot: Any, booted: Any) -> str:
    return " ".join(part for part in (str(boot or ""), f"since {booted}" if booted else "") if part)


def _about(document: Mapping[str, Any], job: Mapping[str, Any] | None) -> dict[str, Any]:
    job = job or {}
    return {
        "job": job.get("id") or job.get("name"),
        "began": iso(job.get("start")),
        "ended": iso(job.get("end")),
        "rank": (document.get("culprit") or {}).get("rank"),
        "victims": view.victims(document),
        "against": [f"{one.get('signature')}, {view.location(one)}" for one in document.get("counter_evidence") or []],
        "unseen": [f"{status}: {text}" for status, text in view.unseen(document)],
        "retry": document.get("retry"),
        "remediation": document.get("remediation"),
    }


def markdown(report: FaultReport) -> str:
    """Return the report as Markdown; what is not known is said to be so, with where it can be read."""
    lines = [f"# {quoted(shorten(report.title, 200))}", ""]
    lines += [f"> {quoted(note)}" for note in report.notes]
    lines += [""] if report.notes else []
    rows = [_fact(label, report.machine.get(key), ask) for label, key, ask in _ROWS]
    if report.gpu:
        rows += [_fact(label, report.gpu.get(key), ask) for label, key, ask in _GPU_ROWS]
    fault = " ".join(part for part in (str(report.fault.get("class") or ""), f"({report.fault.get('code')})") if part)
    rows += [_fact("Fault", fault, ""), _fact("First seen", report.fault.get("since"), "")]
    lines += ["| | |", "|---|---|", *filter(None, rows)]
    lines += _section("What was seen", [_seen(one) for one in report.seen] or ["Nothing of this machine is in the evidence."])
    lines += _section("What the diagnostic said", [_seen(one) for one in report.diagnostics])
    if report.tried is not None:
        lines += _section("What was tried", [_tried(one) for one in report.tried] or ["Nothing is on record."])
    lines += _section("The job", _job_lines(report.about))
    if report.kept:
        lines += ["", f"Evidence kept: {quoted(report.kept)}"]
    lines += _section("What is asked for", [quoted(report.asked)])
    if report.reference:
        lines += ["", f"Reference: {code(report.reference)}"]
    return "\n".join(lines) + "\n"


def _fact(label: str, value: Any, ask: str | None) -> str:
    if value not in (None, ""):
        return f"| {label} | {quoted(str(value))} |"
    return "" if ask is None else f"| {label} | not known{': ' + ask if ask else ''} |"


def _section(title: str, body: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *body] if body else []


def _seen(one: Mapping[str, Any]) -> str:
    where = f"{one['file']}:{one['line']}" if one.get("line") is not None else str(one.get("file") or "")
    times = f" ×{one['count']:,}" if one.get("count", 1) > 1 else ""
    head = ", ".join(part for part in (str(one.get("time") or "no time"), quoted(str(one.get("source") or "")) + times) if part)
    return f"- {head}{', ' + code(where) if where else ''}:\n  {code(str(one.get('text') or ''))}"


def _tried(one: Mapping[str, Any]) -> str:
    ended = one.get("ended") or ("" if one.get("verb") == "note" else "no end is written")
    detail = f" ({quoted(shorten(str(one['detail']), 200))})" if one.get("detail") else ""
    return f"- {one.get('time')}, {quoted(str(one.get('what') or ''))}" + (f": {ended}" if ended else "") + detail


def _job_lines(about: Mapping[str, Any]) -> list[str]:
    if not about:
        return []
    span = " to ".join(str(about[key]) for key in ("began", "ended") if about.get(key))
    lines = [f"- Job: {quoted(str(about.get('job') or 'not known'))}{', ' + span if span else ''}"]
    if about.get("rank") is not None:
        lines.append(f"- It began on rank {about['rank']}.")
    lines += [f"- Only victims: {quoted(one)}" for one in about.get("victims") or []]
    lines += [f"- Speaks against it: {quoted(one)}" for one in about.get("against") or []]
    lines += [f"- Not seen: {quoted(shorten(one, 300))}" for one in about.get("unseen") or []]
    return lines
