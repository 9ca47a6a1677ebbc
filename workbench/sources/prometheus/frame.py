"""
Turn the bytes of range answers into one long frame, converting all numbers at once instead of a sample at a time.

Nearly all the time of reading a range goes into making Python objects of its numbers, so none are made: Arrow, or numpy where that is not
installed, converts them where they stand in the text of all series. What is known already is not read at all: the times of a series that has
a sample at every point of its range, samples that are those of the series before, labels that are those of the field before.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.parse.prom_labels import NODE_LABELS, UUID_LABELS, canonical, entity_of, mask_blanks
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.query import Grid, Matrix

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Told", "matrix_frame", "numbers"]

# labels that the entity columns express; the others stay columns under their own names
_TOLD = frozenset(
    (
        *NODE_LABELS,
        *UUID_LABELS,
        *("gpu", "GPU", "gpu_index", "pci_bus_id", "PCI_BUS_ID", "pci_busid"),
        *("GPU_I_ID", "exported_pod", "pod", "pod_name", "exported_namespace", "namespace", "pod_namespace", "__name__"),
    )
)


_NAME = re.compile(rb'"__name__":"(?:[^"\\]|\\.)*",|,?"__name__":"(?:[^"\\]|\\.)*"')


def numbers(samples: Sequence[bytes]) -> tuple[Any, Any]:
    """
    Return times (float64, seconds) and values (float64) of the sample texts ``[t,"v"],[t,"v"]`` of any number of series.

    ``NaN``, ``+Inf`` and ``-Inf`` are numbers as well.

    Raises
    ------
    ValueError
        There are samples that are no pair of a time and a value.
    """
    times, values = _parsed(samples, ("time", "value"))
    return times, values


def _parsed(samples: Sequence[bytes], wanted: Sequence[str]) -> list[Any]:
    """Return the wanted ones of ``time`` and ``value`` of sample texts; what is not wanted is not converted."""
    import numpy as np

    if not samples:
        return [np.empty(0) for _ in wanted]
    text = b",".join(samples)
    try:
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError:
        flat = np.fromstring(text.translate(None, b'[]"').decode("ascii"), sep=",")
        return [np.ascontiguousarray(flat[("time", "value").index(name) :: 2]) for name in wanted]
    letters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(letters == ord('"'))
    if len(quotes) % 2:
        raise ValueError("a value without its end")
    spans = {"value": (quotes[0::2] + 1, quotes[1::2])}
    if "time" in wanted:
        spans["time"] = np.flatnonzero(letters == ord("[")) + 1, quotes[0::2] - 1
    return [_converted(arrow, text, *spans[name]) for name in wanted]


def _converted(arrow: Any, text: bytes, starts: Any, ends: Any) -> Any:
    """
    Return the numbers that stand in some places of a text.

    For Arrow, which makes numbers of strings without an interpreter, the text is one array of strings as it lies: those wanted and,
    marked as missing, what stands between them. Nothing is copied.
    """
    import numpy as np

    if len(starts) != len(ends) or (starts > ends).any() or (starts[1:] < ends[:-1]).any():
        raise ValueError("there are samples that are no [time, value] pair")
    if not len(starts):
        return np.empty(0)
    large = len(text) >= 1 << 31
    edges = np.empty(2 * len(starts), np.int64 if large else np.int32)
    edges[0::2], edges[1::2] = starts, ends
    many = len(edges) - 1
    there = np.full((many + 7) // 8, 0b01010101, np.uint8)
    kind = arrow.LargeStringArray if large else arrow.StringArray
    strings = kind.from_buffers(many, arrow.py_buffer(edges), arrow.py_buffer(text), arrow.py_buffer(there))
    found = importlib.import_module("pyarrow.compute").cast(strings, arrow.float64())
    return np.frombuffer(found.buffers()[1], np.float64, many)[::2].copy()


# -- times and values -----------------------------------------------------------------------------------------------------


def _moments_and_values(samples: Sequence[bytes], lengths: Any, grids: Sequence[Grid | None]) -> tuple[Any, Any]:
    """
    Return times (whole microseconds) and values of all samples.

    A series of a range query that has as many samples as there are points has one at each: its times need not be read. Neighbours
    with the same samples, as most GPUs have that count errors, are read once.
    """
    import numpy as np

    grid = grids[0] if grids and all(one == grids[0] for one in grids) else None
    if grid is None:
        times, values = numbers(samples)
        return _ticks(times), values
    whole = (lengths == grid.points) & _within(samples, grid)
    points = _ticks(grid.start + grid.step * np.arange(grid.points))
    if whole.all():
        first = [at for at, text in enumerate(samples) if at == 0 or text != samples[at - 1]]
        (values,) = _parsed([samples[at] for at in first], ("value",))
        if len(first) < len(samples) and len(values) == len(first) * grid.points:
            again = np.diff(np.append(first, len(samples)))
            values = np.repeat(values.reshape(len(first), grid.points), again, axis=0).ravel()
        return np.tile(points, len(samples)), values
    (values,) = _parsed(samples, ("value",))
    each = np.repeat(whole, lengths)
    ticks = np.empty(len(each), "int64")
    ticks[each] = np.tile(points, int(whole.sum()))
    times, _ = numbers([text for text, known in zip(samples, whole, strict=True) if not known])
    if len(times) == len(each) - int(each.sum()):  # else it is told where the lengths are compared
        ticks[~each] = _ticks(times)
    return ticks, values


def _within(samples: Sequence[bytes], grid: Grid) -> Any:
    """Tell for each series whether its first and last sample are the first and last point of the grid."""
    import numpy as np

    found = np.zeros(len(samples), bool)
    ends = grid.start, grid.start + grid.step * (grid.points - 1)
    known: dict[tuple[bytes, bytes], bool] = {}
    for at, text in enumerate(samples):
        last = text.rfind(b"[") + 1
        stamps = text[1 : text.find(b",")], text[last : text.find(b",", last)]
        if stamps not in known:
            try:
                known[stamps] = all(abs(float(stamp) - end) < 0.001 for stamp, end in zip(stamps, ends, strict=True))
            except ValueError:
                known[stamps] = False
        found[at] = known[stamps]
    return found


def _ticks(times: Any) -> Any:
    """Return seconds as whole microseconds; Prometheus has milliseconds, which a float holds exactly enough."""
    import numpy as np

    return np.rint(times * 1000.0).astype("int64") * 1000


# -- labels ---------------------------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """What labels say: by column the codes, one a series, with what they stand for; and what is the same for all."""

    coded: dict[str, tuple[Any, Any]]
    attrs: dict[str, Any]


class Told:
    """
    What the labels of the last answer said.

    The fields of an exporter have the same series under other names: what one of them said need not be worked out for the next.
    """

    def __init__(self) -> None:
        self._last: tuple[list[bytes], Columns] = ([], Columns({}, {}))

    def read(self, labels: list[bytes]) -> tuple[list[str | None], Columns]:
        """Return the metric's name for each series, and what its labels say."""
        found = _NAME.search(labels[0]) if labels else None
        stripped = [text.replace(found[0], b"", 1) for text in labels] if found else labels
        if found and not any(b'"__name__":' in text for text in stripped):
            name: str = json.loads(b"{" + found[0].strip(b",") + b"}")["__name__"]
            known, columns = self._last  # taken and set whole: two threads may read
            if stripped != known:
                columns = _columns(json.loads(b"[{" + b"},{".join(stripped) + b"}]"))
                self._last = stripped, columns
            return [name] * len(labels), columns
        rows = json.loads(b"[{" + b"},{".join(labels) + b"}]") if labels else []
        return [row.pop("__name__", None) for row in rows], _columns(rows)


def matrix_frame(answers: Sequence[Matrix], query: str = "", told: Told | None = None) -> pd.DataFrame:
    """
    Return range answers as one long frame.

    Parameters
    ----------
    answers : sequence of Matrix
        Of one query or of several.
    query : str
        Names what has no metric name: a PromQL function drops it.
    told : Told, optional
        Given again and again, the labels of fields with the same series are read once.

    Returns
    -------
    DataFrame
        One row a sample. ``time`` (UTC), ``field`` (canonical name), ``value`` and those of ``node``, ``gpu_index``, ``gpu_uuid``,
        ``pci``, ``device``, ``mig``, ``pod``, ``namespace`` that any series has, as in `workbench.frames.METRICS`, but ``gpu_index``
        is categorical like the rest, which takes a byte instead of nine. Every other label that differs between series is a
        categorical column under its own name; labels that are the same for all are in ``frame.attrs["labels"]``,
        and ``frame.attrs["instances"]`` has the address scraped for each node when there is one for each.

    Raises
    ------
    QueryError
        The answer consists of native histograms, which have no value.
    """
    import numpy as np
    import pandas as pd

    samples = [text for answer in answers for text in answer.series.values()]
    if not samples and any(answer.histograms for answer in answers):
        raise QueryError(
            "the answer consists of native histograms, which have no value",
            query=query,
            hint="ask for histogram_quantile(…), histogram_count(…) or histogram_sum(…) of it",
        )
    told = told or Told()
    lengths = np.fromiter((text.count(b"]") for text in samples), np.int64, len(samples))
    with ThreadPoolExecutor(1) as aside:
        pending = aside.submit(_moments_and_values, samples, lengths, [answer.grid for answer in answers])  # Arrow takes no lock
        names, columns = told.read([labels for answer in answers for labels in answer.series])
        known = {name: canonical(name) if name is not None else (query or "value", 1.0) for name in set(names)}
        entities = {name: _repeated(coded, lengths) for name, coded in columns.coded.items()}
        fields = _repeated(_coded([known[name][0] for name in names]), lengths)
        try:
            ticks, values = pending.result()
        except ValueError as error:
            raise QueryError(f"the samples are no numbers: {error}", query=query) from None
    if len(values) != int(lengths.sum()) or len(ticks) != len(values):
        raise QueryError("the answer has samples that are no [time, value] pair", query=query)
    if len(values) and any(name.startswith("DCGM_") for name, _ in known.values()):
        values = values if values.flags.writeable else values.copy()
        mask_blanks("DCGM_", values)  # blank numbers of DCGM have no meaning in any other metric either
    if any(scale != 1.0 for _, scale in known.values()):
        values = values * np.repeat([known[name][1] for name in names], lengths)
    times = pd.DatetimeIndex(ticks, dtype="datetime64[us, UTC]")
    result = pd.DataFrame({"time": times, "field": fields, "value": values, **entities}, copy=False)
    result.attrs |= columns.attrs | {"warnings": [note for answer in answers for note in answer.notes]}
    return result


def _columns(labels: Sequence[dict[str, str]]) -> Columns:
    """Return what each series says of its entity and with its further labels, column by column, and what all have in common."""
    entities = [entity_of(row) for row in labels]
    columns: dict[str, list[Any]] = {
        "node": [entity.node for entity in entities],
        "gpu_index": [entity.gpu.index if entity.gpu else None for entity in entities],
        "gpu_uuid": [entity.gpu.uuid if entity.gpu else None for entity in entities],
        "pci": [entity.gpu.pci if entity.gpu else None for entity in entities],
        "device": [entity.device for entity in entities],
        "mig": [entity.mig for entity in entities],
        "pod": [entity.pod for entity in entities],
        "namespace": [entity.namespace for entity in entities],
    }
    constant: dict[str, str] = {}
    for name in dict.fromkeys(key for row in labels for key in row):
        told = [row.get(name) for row in labels]
        if len(set(told)) == 1 and len(told) > 1:
            constant[name] = str(told[0])
        elif name not in _TOLD and not (name == "device" and _only_index(told, columns["gpu_index"])):
            columns[name if name not in columns and name not in ("time", "field", "value") else f"label_{name}"] = told
    instances = dict(zip(columns["node"], columns.get("instance", ()), strict=False))
    if instances and all(instances[node] == one for node, one in zip(columns["node"], columns["instance"], strict=True)):
        columns.pop("instance")  # says no more than the node: two bytes a sample saved
    else:
        instances = {}
    kept = {name: told for name, told in columns.items() if any(value is not None for value in told)}
    return Columns({name: _coded(told) for name, told in kept.items()}, {"labels": constant, "instances": instances})


def _only_index(told: Sequence[str | None], index: Sequence[int | None]) -> bool:
    """Tell whether ``device`` says no more than the index: nvidia3."""
    return all(name in (None, f"nvidia{number}") for name, number in zip(told, index, strict=True))


def _coded(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return values, one a series, as codes in as few bytes as do, and what they stand for."""
    import numpy as np
    import pandas as pd

    codes, uniques = pd.factorize(pd.Series(values, dtype="object"))
    small = np.int8 if len(uniques) < 127 else np.int16 if len(uniques) < 32767 else np.int32
    return codes.astype(small), pd.CategoricalDtype(pd.Index(list(uniques)))


def _repeated(coded: tuple[Any, Any], lengths: Any) -> Any:
    """Return the column that has each series' code as often as it has samples."""
    import numpy as np
    import pandas as pd

    codes, dtype = coded
    return pd.Categorical.from_codes(np.repeat(codes, lengths), dtype=dtype)
