"""Turn Prometheus text exposition and OpenMetrics, with or without time stamps, into series per metric and entity."""

from __future__ import annotations

import gc
import re
from itertools import repeat
from typing import Any

from workbench.model import Parsed, Problem
from workbench.parse.prom_labels import (
    BLANKS,
    STATUS_METRICS,
    Entity,
    SampledSeries,
    canonical,
    conditions_of,
    entity_of,
    parse_labels,
    placements_of,
    resolve_nodes,
    to_seconds,
)

__all__ = ["looks_like_exposition", "parse_exposition"]

# DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-5b4e07f6-3a86-4340-039d-000000000007"} 210 1754424937.200
# node_load1 1.32      http_requests_total{code="200"} 1027 1395066363000      foo_bucket{le="1"} 2 # {trace_id="a"} 0.5
_SAMPLE = re.compile(rb'\s*([^\s{}"#]+)?\s*(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?\s*([-+.\w]+)(?:\s+([-+.\deE]+))?\s*(?:#.*)?$')
_NUMBER = rb"[-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|NaN|Inf)"
_FIRST = re.compile(
    rb'(?:#\s*(?:HELP|TYPE|UNIT|EOF)\b|[A-Za-z_:][\w:]*(?:\{[^\n]*"\s*,?\s*\})?[ \t]+' + _NUMBER + rb"(?:[ \t]+[-\d.]+)?\s*$)"
)
_Name = tuple[str, str, float]  # as in the file, canonical, factor
_Labels = tuple[str, dict[str, str], Entity]  # text, labels, what they speak of


def looks_like_exposition(head: bytes) -> bool:
    """Tell whether the start of a document is Prometheus text: most lines are samples or HELP/TYPE comments."""
    lines = [line for line in head.split(b"\n")[:40] if line.strip()][: 39 if len(head) > 2000 else 40]
    if len(lines) > 1 and len(head) >= 4096:
        lines = lines[:-1]  # the last one may be cut
    hits = sum(bool(_FIRST.match(line)) for line in lines)
    return (
        bool(lines) and hits >= 0.6 * len(lines) and any(b"{" in line or line.startswith(b"#") or b"_" in line for line in lines)
    )


class _Reader:
    """Series slots by the text before the value; a label text is parsed once, whatever number of metrics share it."""

    def __init__(self) -> None:
        self.slots: dict[bytes, dict[bytes, int]] = {}  # by name and label text
        self.keys: list[tuple[_Name, _Labels]] = []  # per slot
        self.names: dict[bytes, _Name | None] = {}
        self.texts: dict[bytes, _Labels | None] = {}
        self.firsts: list[int] = []  # the slot with which each label text came first
        self.bad: dict[str, list[tuple[int, bytes]]] = {}

    def fail(self, why: str, no: int, line: bytes) -> None:
        self.bad.setdefault(why, []).append((no, line[:120]))

    def _name(self, raw: bytes) -> _Name | None:
        word = raw.decode("utf-8", "replace").strip()
        good = word and not word.startswith("#") and " " not in word and "{" not in word
        self.names[raw] = found = (word, *canonical(word)) if good else None
        return found

    def _labels(self, raw: bytes) -> _Labels | None:
        text = raw.decode("utf-8", "replace")
        found = parse_labels(text)
        self.firsts.append(len(self.keys))
        self.texts[raw] = known = None if found is None or found[1] else (text, found[0], entity_of(found[0]))
        return known

    def slot(self, key: bytes) -> int | None:
        """Return the slot number of ``name{labels`` (without the closing brace), None when it is malformed."""
        word, _, inside = key.partition(b"{")
        number = self.slots.get(word, {}).get(inside)
        if number is not None:
            return number
        name = self.names.get(word) or (self._name(word) if word not in self.names else None)
        labels = self.texts.get(inside) or (self._labels(inside) if inside not in self.texts else None)
        if not word and labels is None:  # Prometheus 3: {"metric.name", label="x"}
            text = inside.decode("utf-8", "replace")
            found = parse_labels(text)
            if found is not None and found[1]:
                name, labels = (found[1], *canonical(found[1])), (text, found[0], entity_of(found[0]))
                self.names[key], self.texts[key] = name, labels
        if name is None or labels is None:
            return None
        number = self.slots.setdefault(word, {})[inside] = len(self.keys)
        self.keys.append((name, labels))
        return number


def parse_exposition(raw: bytes, *, file: str, node: str | None = None, default_time: float | None = None) -> Parsed:
    """
    Parse Prometheus text or OpenMetrics.

    Parameters
    ----------
    raw : bytes
        The whole document; any order of samples, any number of them per series.
    file : str
        Name used in series and problems.
    node : str, optional
        The node the document comes from, for samples without a usable node label.
    default_time : float, optional
        Epoch seconds of samples without a time stamp (time of the scrape); NaN when not given.

    Returns
    -------
    Parsed
        `series` (`SampledSeries`: times in epoch seconds, values with NaN for blanks, the line of each sample), `placements`
        from pod labels, `conditions` from kube-state-metrics, `problems` (few, grouped), `facts`: nodes, start and end (epoch
        seconds), samples.
    """
    parsed = Parsed()
    reader = _Reader()
    if raw.startswith(b"\xef\xbb\xbf"):
        raw = raw[3:]
    collecting = gc.isenabled()
    gc.disable()  # many thousand small objects without a cycle: collections would take a third of the time
    try:
        numbers, lines, rests = _lines(reader, raw)
        if numbers:
            _build(parsed, reader, numbers, lines, rests, file, node, default_time)
    finally:
        if collecting:
            gc.enable()
    for why, rows in reader.bad.items():
        no, text = rows[0]
        many = f"{len(rows)} lines, the first at {no}," if len(rows) > 1 else f"line {no}"
        hint = f"first: {text.decode('utf-8', 'replace')!r}; the rest of the file was used"
        parsed.problems.append(Problem(file, f"{many} {why}", hint, no, "metrics", "partial"))
    return parsed


def _lines(reader: _Reader, raw: bytes) -> tuple[list[int], Any, list[bytes]]:
    """Return (slot, line number, text of value and time) of every sample; the loop that decides how fast all of this is."""
    import numpy as np

    texts, keys = reader.texts, reader.keys
    numbers: list[int] = []
    rests: list[bytes] = []
    skipped: list[int] = []
    labels_of = texts.get
    # Samples of one name stand together as a rule: its table is looked up once, and of each line only the labels are looked at.
    name: _Name | None = None
    here: dict[bytes, int] = {}
    start, size = b"\n", 0  # no line starts with it
    no = 0
    for no, line in enumerate(raw.split(b"\n"), 1):
        key, _, rest = line.rpartition(b"} ")
        number: int | None = None
        if key.startswith(start):
            inside = key[size:]
            number = here.get(inside)
            if number is None and (labels := labels_of(inside)) is not None:
                number = here[inside] = len(keys)
                keys.append((name, labels))  # type: ignore[arg-type]
        if number is None:
            if line[:1] == b"#" or not line or line.isspace():
                skipped.append(no)
                continue
            number = reader.slot(key) if key else None
            if number is None:  # no labels, an exemplar, odd spacing, or no sample at all
                found = _SAMPLE.match(line)
                number = reader.slot((found[1] or b"") + b"{" + (found[2] or b"")) if found else None
                if found is None or number is None:
                    reader.fail("is no sample", no, line)
                    skipped.append(no)
                    continue
                rest = found[3] + (b" " + found[4] if found[4] else b"")
            elif not key.startswith(start):
                word = key.partition(b"{")[0]
                if (known := reader.names.get(word)) is not None:
                    name, here, start, size = known, reader.slots[word], word + b"{", len(word) + 1
        numbers.append(number)
        rests.append(rest)
    lines = np.arange(1, no + 1, dtype=np.int32)
    return numbers, np.delete(lines, np.array(skipped) - 1) if skipped else lines, rests


def _numbers(reader: _Reader, rests: list[bytes], lines: Any, default: float) -> Any:
    """Return (values, stamps, kept positions or None): the fast way when all samples look alike, one by one otherwise."""
    import numpy as np

    joined = b"\n".join(rests)
    tokens, gaps = joined.split(), joined.count(b" ")
    try:
        if gaps == len(rests) and len(tokens) == 2 * gaps:
            pairs = np.array(list(map(float, tokens))).reshape(-1, 2)
            if (pairs[:, 1] > 1e8).all():  # else values and times may be out of step
                return np.ascontiguousarray(pairs[:, 0]), to_seconds(pairs[:, 1]), None
        if gaps == 0 and len(tokens) == len(rests):
            return np.array(list(map(float, tokens))), np.full(len(rests), default), None
    except ValueError:
        pass
    values, stamps, kept = [], [], []
    for at, rest in enumerate(rests):
        parts = rest.split(b"#", 1)[0].split()
        try:
            value = float(parts[0])
            stamp = float(parts[1]) if len(parts) > 1 else float("nan")
        except (ValueError, IndexError):
            reader.fail("has a value or time that is no number", int(lines[at]), rest)
            continue
        if len(parts) > 2:
            reader.fail("has words after its time", int(lines[at]), rest)
            continue
        values.append(value)
        stamps.append(stamp)
        kept.append(at)
    seconds = to_seconds(np.array(stamps, dtype=float))
    return np.array(values, dtype=float), np.where(np.isnan(seconds), default, seconds), np.array(kept, dtype=np.int64)


def _mask_blanks(values: Any, fields: list[str], slot: Any, starts: Any) -> list[int]:
    """Replace DCGM's blank numbers by NaN, in place; return how many each series had, nothing when none had any."""
    import numpy as np

    large = np.flatnonzero(values >= BLANKS[0])
    large = large[np.isin(values[large], BLANKS)]
    if not len(large):
        return []
    ours = np.array([name.startswith("DCGM_") for name in fields])
    hit = np.zeros(len(values), dtype=np.int64)
    hit[large] = ours[slot[large]]
    values[hit > 0] = np.nan
    return [int(count) for count in np.add.reduceat(hit, starts)]


def _moments(stamps: Any) -> list[Any]:
    """Return the time of each series of one sample, as an array that nobody changes."""
    stamps.flags.writeable = False
    if (stamps == stamps[0]).all() or (stamps != stamps).all():
        return [stamps[:1]] * len(stamps)
    return list(stamps[:, None])


def _build(
    parsed: Parsed,
    reader: _Reader,
    numbers: list[int],
    line: Any,
    rests: list[bytes],
    file: str,
    node: str | None,
    default_time: float | None,
) -> None:
    import numpy as np

    default = float("nan") if default_time is None else float(default_time)
    values, stamps, kept = _numbers(reader, rests, line, default)
    slot = np.array(numbers, dtype=np.int64)
    if kept is not None:
        slot, line = slot[kept], line[kept]
    if not len(slot):
        return
    source = np.arange(len(slot)) if kept is None else kept
    if len(slot) > 1 and (slot[1:] < slot[:-1]).any():
        order = np.argsort(slot, kind="stable")
        slot, line, values, stamps, source = slot[order], line[order], values[order], stamps[order], source[order]
    starts = np.flatnonzero(np.r_[True, slot[1:] != slot[:-1]])
    ends = np.r_[starts[1:], len(slot)].tolist()
    present = slot[starts].tolist()
    series = parsed.series
    keys = reader.keys
    if any(name and name[2] != 1.0 for name in reader.names.values()):
        values = values * np.array([name[2] for name, _ in keys])[slot]
    first_lines, heads = line[starts].tolist(), source[starts].tolist()
    blanks = _mask_blanks(values, [key[0][1] for key in keys], slot, starts)
    single = len(starts) == len(slot)
    backwards = not single and bool((stamps[1:] < stamps[:-1]).any())
    # a view of one row costs half of a slice; a whole scrape of one moment shares it
    spans = [] if single else list(map(slice, starts.tolist(), ends))
    moments = _moments(stamps) if single else [stamps[span] for span in spans]
    amounts = list(values[:, None]) if single else [values[span] for span in spans]
    places: list[Any] = [None] * len(starts)
    if not single:
        for i, (span, when) in enumerate(zip(spans, moments, strict=True)):
            if len(when) > 1:
                places[i] = line[span]
                if backwards and (when[1:] < when[:-1]).any():
                    order = np.argsort(when, kind="stable")
                    moments[i], amounts[i], places[i] = when[order], amounts[i][order], places[i][order]
    series += [
        SampledSeries(
            field, when, what, home, gpu, device, mig, pod, space, labels, file, first, blank,
            name, text, at, scale, weak, rests[head],
        )
        for ((name, field, scale), (text, labels, (home, weak, gpu, device, mig, pod, space))), when, what, at, first, blank, head
        in zip(map(keys.__getitem__, present), moments, amounts, places, first_lines, blanks or repeat(0), heads)  # noqa: B905
    ]  # fmt: skip
    if any(row[2].weak for row in reader.texts.values() if row) or not reader.texts:
        resolve_nodes(series, node)
        homes = {row.node for row in series}
    else:
        homes = {row[2].node for row in reader.texts.values() if row}
    if any(row and row[2].pod and row[2].gpu for row in reader.texts.values()):
        firsts = dict.fromkeys(np.searchsorted(slot[starts], reader.firsts).tolist())
        parsed.placements += placements_of(series[at] for at in firsts if at < len(series))
    if any(name and name[1] in STATUS_METRICS for name in reader.names.values()):
        parsed.conditions += conditions_of(series)
    real = stamps[~np.isnan(stamps)]
    parsed.facts |= {
        "nodes": sorted({home for home in homes if home}),
        "samples": len(values),
        "start": float(real.min()) if len(real) else None,
        "end": float(real.max()) if len(real) else None,
    }
