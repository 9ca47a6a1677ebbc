"""Turn a verdict (its JSON form) into an SVG timeline: a lane per node and GPU, a mark per event, a bar per group of victims."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

from workbench.report import view
from workbench.report.text import clean, duration, plural, shorten

__all__ = ["lanes", "svg"]

LANES = 18  # more do not fit a screen; the rest are folded into one
WIDTH, LEFT, RIGHT, LANE, TOP = 1080, 236, 24, 34, 34
_FINE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # steps of the axis in seconds
_STEPS = (*_FINE, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)  # fmt: skip
_OFFSETS = (0.1, 1, 10, 60, 600, 3600, 21600, 86400, 604800)  # labels of the logarithmic axis, seconds from the root cause
_RANKED = {"cause": 0, "counter": 1, "symptom": 2, "context": 3}


@dataclass
class Lane:
    """One row of the picture."""

    name: str
    sub: str = ""
    culprit: bool = False
    marks: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)
    victims: list[tuple[float, str]] = field(default_factory=list)


def seconds(stamp: str | None) -> float | None:
    """Return epoch seconds of an ISO time."""
    if not stamp:
        return None
    try:
        parsed = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def lanes(document: Mapping[str, Any]) -> list[Lane]:
    """Return the lanes, the culprit's first, then in order of their first event; all beyond the limit in one."""
    found: dict[tuple[str, str], Lane] = {}
    culprit = document.get("culprit") or {}
    home = (str(culprit.get("node") or ""), _gpu_key(culprit.get("gpu")))

    def lane(node: Any, gpu: Any) -> Lane:
        key = (str(node or ""), _gpu_key(gpu))
        if key not in found:
            title = key[0] or "no node named"
            found[key] = Lane(title, view.gpu(gpu, short=True) if key[1] else "", culprit=key == home and any(key))
        return found[key]

    for event in [*document["evidence"], *document["counter_evidence"]]:
        if (when := seconds(event.get("time"))) is not None:
            lane(event.get("node"), event.get("gpu")).marks.append((when, event))
    for victim in document["victims"]:
        if (when := seconds(victim.get("since"))) is not None:
            lane(victim.get("node"), None).victims.append((when, str(victim.get("by") or "")))

    def first(row: Lane) -> tuple[bool, float]:
        return not row.culprit, min([when for when, _ in row.marks] + [when for when, _ in row.victims])

    ordered = sorted(found.values(), key=first)
    if len(ordered) <= LANES:
        return ordered
    rest = Lane(plural(len(ordered) - LANES + 1, "more lane"))
    for row in ordered[LANES - 1 :]:
        rest.marks += row.marks
        rest.victims += row.victims
    return [*ordered[: LANES - 1], rest]


def svg(document: Mapping[str, Any]) -> str:
    """Return the timeline as inline SVG, or an empty text when nothing has a time."""
    rows = lanes(document)
    times = [when for row in rows for when, _ in [*row.marks, *row.victims]]
    if not times:
        return ""
    zero = seconds(document.get("time"))
    scale = _linear(min(times), max(times)) if zero is None else _around(zero, min(times), max(times))
    height = TOP + LANE * len(rows) + 30

    def x(when: float) -> float:
        return round(LEFT + scale.place(when) * (WIDTH - LEFT - RIGHT), 1)

    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Timeline of the evidence">',
        f'<text class="axis" x="{LEFT - 12}" y="20" text-anchor="end">{escape(scale.name)}</text>',
    ]
    last = 0.0
    for tick, label in scale.ticks:
        if x(tick) - last >= 54:  # the width of the longest label
            last = x(tick)
            parts.append(f'<line class="grid" x1="{last}" x2="{last}" y1="{TOP - 6}" y2="{height - 26}"/>')
            parts.append(f'<text class="axis" x="{last}" y="20" text-anchor="middle">{label}</text>')
    for number, row in enumerate(rows):
        parts += _lane(row, TOP + LANE * number, x)
    if zero is not None:
        when = escape(view.stamp(document))
        parts.append(f'<line class="zero" x1="{x(zero)}" x2="{x(zero)}" y1="{TOP - 6}" y2="{height - 26}"/>')
        parts.append(
            f'<text class="zero" x="{x(zero)}" y="{height - 10}" text-anchor="{_anchor(x(zero))}">root cause, {when}</text>'
        )
    return "".join(parts) + "</svg>"


def _lane(row: Lane, top: int, x: Any) -> list[str]:
    middle = top + LANE / 2
    parts = []
    if row.culprit:
        parts.append(f'<rect class="culprit" x="0" y="{top + 1}" width="{WIDTH}" height="{LANE - 2}" rx="4"/>')
    name = escape(clean(shorten(row.name, 30)))
    if row.sub:
        parts.append(f'<text class="lane" x="{LEFT - 12}" y="{middle - 2}" text-anchor="end">{name}</text>')
        parts.append(
            f'<text class="sub" x="{LEFT - 12}" y="{middle + 11}" text-anchor="end">{escape(clean(shorten(row.sub, 34)))}</text>'
        )
    else:
        parts.append(f'<text class="lane" x="{LEFT - 12}" y="{middle + 4}" text-anchor="end">{name}</text>')
    parts.append(f'<line class="rail" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{middle}" y2="{middle}"/>')
    groups: dict[str, list[float]] = defaultdict(list)
    for when, by in row.victims:
        groups[by].append(when)
    for by, whens in groups.items():
        left, right = x(min(whens)), x(max(whens))
        tip = escape(clean(f"{plural(len(whens), 'victim')}: {by}"), quote=True)
        box = f'x="{left - 3}" y="{middle - 6}" width="{max(6.0, right - left + 6):.1f}" height="12" rx="3"'
        parts.append(f'<rect class="victims" {box}><title>{tip}</title></rect>')
    if len(row.victims) > 1:
        right = max([x(when) for when, _ in row.victims] + [x(when) + 5 for when, _ in row.marks])
        parts.append(f'<text class="count" x="{right + 8}" y="{middle + 4}">×{len(row.victims):,}</text>')
    for when, event in sorted(row.marks, key=lambda mark: -_RANKED.get(str(mark[1].get("role")), 3)):
        role = str(event.get("role"))
        style = role if role in _RANKED else "context"
        words = (
            view.stamp(event),
            role,
            event.get("signature"),
            view.location(event),
            shorten(str(event.get("text") or ""), 160),
        )
        tip = escape(clean("  ".join(str(word) for word in words)), quote=True)
        cx = x(when)
        if style == "cause":
            shape = f"M{cx} {middle - 9}L{cx + 9} {middle}L{cx} {middle + 9}L{cx - 9} {middle}Z"
            parts.append(f'<path class="mark cause" d="{shape}"><title>{tip}</title></path>')
        else:
            parts.append(f'<circle class="mark {style}" cx="{cx}" cy="{middle}" r="5"><title>{tip}</title></circle>')
    return parts


def _gpu_key(gpu: Mapping[str, Any] | None) -> str:
    gpu = gpu or {}
    return str(next((gpu[key] for key in ("pci", "uuid", "index") if gpu.get(key) is not None), ""))


@dataclass
class Scale:
    """How time becomes a place between 0 and 1."""

    name: str
    place: Callable[[float], float]
    ticks: list[tuple[float, str]]


def _around(zero: float, start: float, end: float) -> Scale:
    """
    Return a scale that is logarithmic to both sides of the root cause.

    What matters happens within seconds of it, what explains it may be days older; a linear axis shows one or the other.
    """
    near = 0.1 if max(zero - start, end - zero) < 30 else 1.0  # seconds that are drawn linearly

    def bend(when: float) -> float:
        return math.copysign(math.log1p(abs(when - zero) / near), when - zero)

    low, high = min(bend(start), -0.7), max(bend(end), 0.7)
    pad = (high - low) * 0.04
    low, high = low - pad, high + pad
    offsets = [sign * offset for offset in _OFFSETS for sign in (-1, 1)]
    # the root cause first, then outwards: where two labels would touch, the nearer one stays
    ticks = [
        (zero + offset, f"{'−' if offset < 0 else '+'}{duration(abs(offset))}")
        for offset in offsets
        if low <= bend(zero + offset) <= high
    ]
    return Scale("from root cause, log scale", lambda when: (bend(when) - low) / (high - low), sorted([*ticks, (zero, "0")]))


def _linear(start: float, end: float) -> Scale:
    pad = max((end - start) * 0.04, 0.05)
    start, end = max(start - pad, 0.0), min(end + pad, 253402300799.0)  # the years that datetime knows
    step = next((step for step in _STEPS if (end - start) / step <= 8), (end - start) / 6)
    first = -(-start // step) * step
    ticks = []
    for number in range(10):
        when = first + number * step
        if when > end:
            break
        stamp = datetime.fromtimestamp(round(when, 3), UTC)
        text = stamp.strftime("%m-%d %H:%M") if step >= 21600 else stamp.strftime("%H:%M" if step >= 60 else "%H:%M:%S")
        ticks.append((when, text + (f".{stamp.microsecond // 1000:03d}" if step < 1 else "")))
    day = datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%d")
    return Scale(f"UTC, {day}", lambda when: (when - start) / (end - start), ticks)


def _anchor(at: float) -> str:
    return "start" if at < LEFT + 60 else "end" if at > WIDTH - RIGHT - 60 else "middle"


def span(document: Mapping[str, Any]) -> str:
    """Return how long the evidence spans, for the picture's caption."""
    times = [when for row in lanes(document) for when, _ in [*row.marks, *row.victims]]
    return duration(max(times) - min(times)) if len(times) > 1 else ""
