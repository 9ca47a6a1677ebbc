"""Turn the findings of a node into what a person, a scheduler or a monitor reads: table, JSON, Nagios, node-problem-detector, Prometheus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.health import STATUSES, Finding, fitness
from workbench.report.text import clean

__all__ = ["FORMATS", "headline", "npd_line"]

SCHEMA = "workbench.findings/1"
_MARKS = {"ok": "ok", "warning": "WARN", "critical": "CRIT", "unknown": "????", "not-applicable": "-"}
_WORDS = {
    "ok": "fit",
    "warning": "fit, with warnings",
    "critical": "NOT FIT",
    "unknown": "NOT FIT: not everything could be checked",
}
# node-problem-detector, custom plugin protocol: its message is cut at 80 bytes by default (max_output_length)
_NPD_LENGTH = 80


def _who(one: Finding) -> str:
    gpu = ""
    if one.gpu is not None:
        gpu = f"GPU {one.gpu.index}" if one.gpu.index is not None else f"GPU {one.gpu.pci or one.gpu.uuid}"
    return " ".join(word for word in (gpu, one.part) if word)


def headline(findings: Sequence[Finding]) -> str:
    """Return the node's state in one line: what a person needs to know, worst finding first."""
    status = fitness(findings)
    counts = Counter(one.status for one in findings)
    node = next((one.node for one in findings), "") or "a node without a name"
    told = ", ".join(f"{counts[word]} {word}" for word in reversed(STATUSES) if counts[word])
    first = next((one for one in findings if one.status == status and one.status != "ok"), None)
    why = "".join(f": {word}" for word in (_who(first), first.summary) if word) if first else ""
    return clean(f"{node} {_WORDS.get(status, _WORDS['ok'])} ({told}){why}")


def _table(findings: Sequence[Finding], *, verbose: bool) -> str:
    lines = [headline(findings)]
    shown = [one for one in findings if verbose or one.status not in ("ok", "not-applicable")]
    # a driver that does not answer leaves a dozen checks unknown for one reason: it is said once, with all their names
    alike: dict[tuple[str, ...], list[str]] = {}
    for one in shown:
        alike.setdefault(_reason(one), []).append(one.check)
    for at, one in enumerate(shown):
        names = [one.check] if verbose else alike.pop(_reason(one), []) if one.status == "unknown" else [one.check]
        if not names:
            continue
        who = _who(one)
        lines.append(f"  {_MARKS[one.status]:<4}  {', '.join(names)}{f' [{who}]' if who else ''}: {one.summary}")
        goes_on = not verbose and at + 1 < len(shown) and _todo(shown[at + 1]) == _todo(one)  # eight GPUs, one thing to do
        if one.action != "none" and not goes_on:
            lines.append(f"        → {one.action}" + ("" if one.required else " (does not make the node unfit)"))
        if one.hint and not goes_on:
            lines.append(f"        → {one.hint}")
        if verbose:
            lines += [f"        | {text}" for text in one.evidence]
            if one.path:
                lines.append(
                    f"        by {one.path} in {one.seconds:.2f} s"
                    + (f"; cannot show {', '.join(one.blind)}" if one.blind else "")
                )
            lines += [f"        before: {text}" for text in one.tried if one.path]
    hidden = len(findings) - len(shown)
    if hidden:
        lines.append(f"  {hidden} more are as they should be or do not apply (-v shows them)")
    return "\n".join(clean(line) for line in lines) + "\n"


def _todo(one: Finding) -> tuple[object, ...]:
    """What findings have in common that call for the same: it is said below the last of them."""
    return (one.status, one.check, one.code, one.action, one.hint, one.required)


def _reason(one: Finding) -> tuple[str, ...]:
    """What findings have in common that need be said once only: who could not be looked at, why, and what to do about it."""
    return (one.status, str(one.required), _who(one), one.summary, one.hint, one.action)


def _json(findings: Sequence[Finding], *, verbose: bool, about: Mapping[str, Any] | None = None) -> str:
    """`about`: when, in which boot and context it was; without it nobody can tell later whether the findings still hold."""
    del verbose
    document = {
        "schema": SCHEMA,
        "node": next((one.node for one in findings), ""),
        **(about or {}),
        "status": fitness(findings),
        "findings": [one.to_dict() for one in findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _nagios(findings: Sequence[Finding], *, verbose: bool) -> str:
    """One line, then the long text, then performance data behind a bar, as monitoring-plugins.org defines."""
    word = fitness(findings).upper()
    long = [
        f"{one.status.upper()} {one.check} {_who(one)}: {one.summary}"
        for one in findings
        if verbose or one.status not in ("ok", "not-applicable")
    ]
    counts = Counter(one.status for one in findings)
    data = " ".join(f"{word}={counts[word]}" for word in ("ok", "warning", "critical", "unknown"))
    text = [f"GPU {word} - {headline(findings)}".replace("|", "/"), *(line.replace("|", "/") for line in long)]
    return clean(text[0]) + f" | {data}\n" + "".join(clean(line) + "\n" for line in text[1:])


def _npd(findings: Sequence[Finding], *, verbose: bool) -> str:
    """The message of node-problem-detector's custom plugin protocol: one short line; its exit code 0, 1 or 2 is the problem or its absence."""
    del verbose
    status = fitness(findings)
    first = next((one for one in findings if one.status == status and one.required), None)
    if first is None or status in ("ok", "not-applicable"):
        return f"{len(findings)} findings, none that makes the node unfit\n"
    return npd_line(_npd_text(first))


def _npd_warnings(findings: Sequence[Finding], *, verbose: bool) -> str:
    """The same for a rule of the type temporary: what somebody should know of a node that may get jobs; exit code 1 when there is something."""
    del verbose
    told = [one for one in findings if one.warns]
    return npd_line(_npd_text(told[0]), f" (and {len(told) - 1} more)" if len(told) > 1 else "") if told else "no warnings\n"


def _npd_text(one: Finding) -> str:
    who = _who(one)
    return f"{one.check}{f' [{who}]' if who else ''}: {one.summary}"


def npd_line(text: str, more: str = "") -> str:
    """Return a text as the one line that node-problem-detector shows whole, with something behind it that is never cut."""
    text, room = clean(text), _NPD_LENGTH - len(more)
    if len(text.encode()) > room:
        text = text.encode()[: room - len("…".encode())].decode("utf-8", "ignore") + "…"
    return text + more + "\n"


def _prom(findings: Sequence[Finding], *, verbose: bool) -> str:
    """Prometheus' text format, for the textfile collector: one line a finding, and the fitness of each node that they are of."""
    del verbose

    def label(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")

    lines = [
        "# HELP workbench_finding Status of a check: 0 not applicable, 1 ok, 2 warning, 3 unknown, 4 critical.",
        "# TYPE workbench_finding gauge",
    ]
    seen: dict[str, int] = {}
    for one in findings:
        names = {
            "node": one.node,
            "check": one.check,
            "gpu": one.gpu.uuid or one.gpu.pci or str(one.gpu.index) if one.gpu else "",
            "part": one.part,
            "code": one.code,
            "action": one.action,
        }
        inner = ",".join(f'{name}="{label(value)}"' for name, value in names.items())
        seen[inner] = max(seen.get(inner, 0), STATUSES.index(one.status))  # one series once, or the whole file is refused
    lines += [f"workbench_finding{{{inner}}} {value}" for inner, value in seen.items()]
    lines += [
        "# HELP workbench_node_fit Whether the node may get a job: 1 yes, 0 no or not known.",
        "# TYPE workbench_node_fit gauge",
    ]
    for node in dict.fromkeys(one.node for one in findings) or [""]:
        fit = fitness([one for one in findings if one.node == node]) in ("ok", "warning", "not-applicable")
        lines.append(f'workbench_node_fit{{node="{label(node)}"}} {int(fit)}')
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[..., str]] = {
    "table": _table,
    "json": _json,
    "nagios": _nagios,
    "npd": _npd,
    "npd-warnings": _npd_warnings,
    "prom": _prom,
}
