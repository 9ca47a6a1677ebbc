"""Turn series into one matrix per field (rows are GPUs, ports or hosts; columns are scrapes) that the detectors share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from workbench.model import Event, Gpu, Series
from workbench.parse.prom_labels import SampledSeries

__all__ = ["Entity", "Grid", "Table", "build_grid"]

DEFAULT_STEP = 30.0  # seconds; dcgm-exporter's own collection interval
MAX_CELLS = 40_000_000  # 320 MB of matrices at once
MAX_COLUMNS = 20_000  # a week at 30 s; beyond, the step is widened


@dataclass(slots=True)
class Entity:
    """A row: a GPU (or MIG instance), a port, a file system or a host."""

    node: str | None
    gpu: Gpu | None = None
    device: str | None = None
    mig: str | None = None
    model: str = ""
    group: str | None = None  # the job it worked for by pod or job label; None when no label says so
    pod: str | None = None
    held: tuple[float, float] | None = None  # first and last time at which a label gave it to that job


@dataclass(slots=True)
class Table:
    """One field: `values[row, column]`, and the series of each row to quote samples from."""

    field: str
    rows: list[int]  # entity numbers
    values: Any
    pieces: list[list[Series]]
    at: dict[int, int]  # entity number → row


@dataclass(slots=True)
class Grid:
    """All fields on one time axis; columns are `step` seconds wide from `start` on, shifted by each entity's scrape phase."""

    step: float
    start: float
    columns: int
    entities: list[Entity]
    groups: dict[str, list[int]]
    labelled: bool  # some entity carries a job label
    fields: dict[str, dict[int, list[Series]]]
    phase: Any
    lone: bool = False  # one scrape: nothing can be seen to change
    hidden: dict[int, int] = field(default_factory=dict)  # entity → column from which its exporter is frozen
    cache: dict[str, Table | None] = field(default_factory=dict)

    def table(self, name: str) -> Table | None:
        """Return the matrix of a field, None when no series has it; samples of a frozen exporter are NaN."""
        if name not in self.cache:
            if len(self.cache) * len(self.entities) * self.columns > MAX_CELLS:
                self.cache.pop(next(iter(self.cache)))  # the oldest; most fields are asked for in one place only
            self.cache[name] = self._build(name)
        return self.cache[name]

    def _build(self, name: str) -> Table | None:
        import numpy as np

        rows = self.fields.get(name)
        if not rows:
            return None
        numbers = list(rows)
        pieces = list(rows.values())
        flat = [piece for group in pieces for piece in group]
        moments = [piece.times for piece in flat]
        lengths = np.fromiter(map(len, moments), np.int64, len(flat))
        row = np.repeat(np.repeat(np.arange(len(pieces)), np.fromiter(map(len, pieces), np.int64, len(pieces))), lengths)
        times = np.concatenate(moments)
        values = np.concatenate([piece.values for piece in flat])
        phase = self.phase[np.array(numbers)][row]
        column = np.floor((times - self.start - phase) / self.step + 0.5)
        good = np.isfinite(column) & (column >= 0) & (column < self.columns) & np.isfinite(values)
        matrix = np.full((len(numbers), self.columns), np.nan)
        matrix[row[good], column[good].astype(np.int64)] = values[good]
        for at, number in enumerate(numbers if self.hidden else ()):
            if number in self.hidden:
                matrix[at, self.hidden[number] :] = np.nan
        return Table(name, numbers, matrix, pieces, {number: at for at, number in enumerate(numbers)})

    def matrix(self, name: str, numbers: list[int]) -> Any:
        """Return a field's rows in the order of `numbers`, NaN rows for entities without it."""
        import numpy as np

        table = self.table(name)
        if table is None:
            return np.full((len(numbers), self.columns), np.nan)
        if numbers == table.rows:
            return table.values.copy()
        rows = np.array([table.at.get(number, -1) for number in numbers])
        return np.where((rows >= 0)[:, None], table.values[np.maximum(rows, 0)], np.nan)

    def time(self, number: int, column: int) -> float:
        """Return the nominal time of a column for an entity."""
        return float(self.start + self.phase[number] + column * self.step)

    def column_of(self, number: int, time: float) -> int:
        """Return the column of a time for an entity."""
        return int((time - self.start - self.phase[number]) / self.step + 0.5)

    def sample(self, name: str, number: int, column: int) -> tuple[float, str, str, int | None]:
        """Return (time, text, file, line) of the sample of a field in a column, or of the last one before it."""
        table = self.table(name)
        limit = self.time(number, column) + 0.75 * self.step
        best: tuple[float, Series, int] | None = None
        for piece in table.pieces[table.at[number]] if table and number in table.at else ():
            at = int(piece.times.searchsorted(limit, side="right")) - 1
            if at >= 0 and (best is None or piece.times[at] > best[0]):
                best = (float(piece.times[at]), piece, at)
        if best is None:
            return self.time(number, column), "", "", None
        time, piece, at = best
        if isinstance(piece, SampledSeries):
            return time, piece.quote(at)[:2000], piece.file, piece.line_of(at)
        return time, f"{piece.field} {piece.values[at]:g} {time:.3f}", piece.file, piece.line

    def event(self, signature: str, number: int, name: str, column: int, **fields: Any) -> Event:
        """Return an event that quotes an entity's sample of a field; `data` gets field, group, in_job, pod, mig and device."""
        time, text, file, line = self.sample(name, number, column)
        entity = self.entities[number]
        data = {"field": name, "group": entity.group, "in_job": entity.group is not None if self.labelled else None}
        if entity.pod:
            data["pod"] = entity.pod
        if entity.mig:
            data["mig"] = entity.mig
        if entity.device:
            data["device"] = entity.device
        data |= fields.pop("data", {})
        return Event(signature, "metrics", text, time, file, line, entity.node, entity.gpu, data=data, **fields)


# protein-lm-3b-worker-2 | gpt-neo-20b-trainer-0-2-rvg88 (JobSet, Job) | llm-7d9c6b5f4-x2x9k (Deployment)
_ORDINAL = re.compile(r"(?:-(?:\d+|[a-f0-9]{8,10}))+(?:-[a-z0-9]{5})?$")
_DEVICE_WIDE = re.compile(r"^DCGM_FI_DEV_(?!XID|FB_)")  # the same for all MIG instances of a GPU
_JOB_LABELS = ("hpc_job", "slurm_job_id", "slurm_job", "jobid", "job_id", "exported_job_id")


def group_of(series: Series) -> str | None:
    """Return the job a series' labels give its GPU to: a scheduler's job id, or the pod name without its ordinals."""
    for key in _JOB_LABELS:
        if value := series.labels.get(key):
            return value
    if series.pod:
        return f"{series.namespace or ''}/{_ORDINAL.sub('', series.pod)}"
    return None


def _key(row: Series, everywhere: bool) -> tuple[Any, ...]:
    if row.gpu is not None:
        mig = None if everywhere else row.mig
        link = row.device
        if row.gpu.uuid:
            return ("gpu", row.gpu.uuid, mig, link)
        return ("gpu", row.node, row.gpu.pci or row.gpu.index, mig, link)
    if row.field == "up":
        return ("up", row.node, row.labels.get("job"), row.labels.get("instance"))
    return ("host", row.node, row.device, row.labels.get("port"))


def build_grid(series: Iterable[Series]) -> Grid | None:
    """Return the grid of series that have time stamps, None when there is none."""
    import numpy as np

    rows = [row for row in series if len(row.times)]
    begins = np.array([row.times[0] for row in rows], dtype=float)
    if not np.isfinite(begins).all():
        rows = [row for row, known in zip(rows, np.isfinite(begins).tolist(), strict=True) if known]
        begins = begins[np.isfinite(begins)]
    if not rows:
        return None
    gaps = np.concatenate(
        [np.diff(row.times) for row in rows[:: max(1, len(rows) // 400)] if len(row.times) > 1] or [np.array([])]
    )
    gaps = gaps[gaps > 0]
    step = float(np.median(gaps)) if len(gaps) else DEFAULT_STEP
    ends = np.array([row.times[-1] for row in rows], dtype=float)
    start, end = float(begins.min()), float(ends.max())
    step = max(step, (end - start) / MAX_COLUMNS, 1.0)
    numbers: dict[tuple[Any, ...], int] = {}
    entities: list[Entity] = []
    firsts: list[float] = []
    fields: dict[str, dict[int, list[Series]]] = {}
    names: dict[str, tuple[bool, dict[int, list[Series]]]] = {}
    known: dict[tuple[Any, ...], tuple[int, str | None]] = {}  # many fields share one set of labels
    for row, first, last in zip(rows, begins.tolist(), ends.tolist(), strict=True):
        name = row.field
        of_name = names.get(name)
        if of_name is None:
            of_name = names[name] = _DEVICE_WIDE.match(name) is not None, fields.setdefault(name, {})
        everywhere, of_field = of_name
        gpu = row.gpu
        short = (id(row.labels), id(gpu), everywhere, row.node, row.device, row.mig, row.pod, name == "up")
        found = known.get(short)
        if found is None:
            key = _key(row, everywhere)
            number = numbers.get(key, -1)
            if number < 0:
                number = numbers[key] = len(entities)
                model = row.labels.get("modelName") or row.labels.get("model_name") or ""
                mig = row.mig if len(key) > 3 and key[-2] else None
                entities.append(Entity(row.node, gpu, row.device, mig, model))
                firsts.append(first)
            found = known[short] = number, group_of(row) if gpu is not None else None
        number, group = found
        entity = entities[number]
        if first < firsts[number]:
            # the name by which a GPU went first: indices move when a GPU is lost
            firsts[number], entity.gpu = first, gpu
        if group and entity.gpu is not None:
            held = entity.held
            if held is None or group == entity.group:
                entity.group, entity.pod = group, row.pod
                if held is None or first < held[0] or last > held[1]:
                    entity.held = (min(first, held[0]), max(last, held[1])) if held else (first, last)
            elif last > held[1]:
                entity.group, entity.pod, entity.held = group, row.pod, (first, last)
        pieces = of_field.get(number)
        if pieces is None:
            of_field[number] = [row]
        elif not everywhere or row.mig == pieces[0].mig:
            pieces.append(row)
    groups: dict[str, list[int]] = {}
    for number, entity in enumerate(entities):
        if entity.gpu is not None and entity.mig is None and entity.device is None:
            groups.setdefault(entity.group or "", []).append(number)
    labelled = any(name for name in groups)
    phase = (np.array(firsts) - start) % step
    columns = int((end - start) / step + 0.5) + 2
    lone = not len(gaps) and end - start < DEFAULT_STEP
    return Grid(step, start, columns, entities, groups, labelled, fields, phase, lone)
