"""
Turn the bytes of range answers into one long frame, converting all numbers at once instead of a sample at a time.

Nearly all the time of reading a range goes into making Python objects of its numbers, so none are made: the sample text of all series
is turned into two columns of CSV by one translation and read by Arrow's CSV reader when it is installed, by numpy otherwise.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from workbench.parse.prom_labels import NODE_LABELS, UUID_LABELS, canonical, entity_of, mask_blanks
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.query import Matrix

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["matrix_frame", "numbers"]

# labels that the entity columns express; the others stay columns under their own names
_TOLD = frozenset(
    (
        *NODE_LABELS,
        *UUID_LABELS,
        *("gpu", "GPU", "gpu_index", "pci_bus_id", "PCI_BUS_ID", "pci_busid"),
        *("GPU_I_ID", "exported_pod", "pod", "pod_name", "exported_namespace", "namespace", "pod_namespace", "__name__"),
    )
)


_LINES = bytes.maketrans(b"]", b"\n")


def numbers(samples: Sequence[bytes]) -> tuple[Any, Any]:
    """
    Return times (float64, seconds) and values (float64) of the sample texts ``[t,"v"],[t,"v"]`` of any number of series.

    ``NaN``, ``+Inf`` and ``-Inf`` are numbers as well.
    """
    import numpy as np

    if not samples:
        return np.empty(0), np.empty(0)
    text = b",".join((b"", *samples))
    try:
        csv: Any = importlib.import_module("pyarrow.csv")
    except ImportError:
        flat = np.fromstring(text.translate(None, b'[]"')[1:].decode("ascii"), sep=",")
        return np.ascontiguousarray(flat[0::2]), np.ascontiguousarray(flat[1::2])
    arrow: Any = importlib.import_module("pyarrow")
    # one pass makes ,[t,"v"],[t,"v"] into lines of ,t,v with an empty first column; Arrow knows "NaN" and "Inf" but no plus sign
    table = csv.read_csv(
        arrow.BufferReader(text.translate(_LINES, b'["+')),
        read_options=csv.ReadOptions(column_names=["", "time", "value"], block_size=4 << 20),
        parse_options=csv.ParseOptions(quote_char=False),
        convert_options=csv.ConvertOptions(
            column_types={"time": arrow.float64(), "value": arrow.float64()},
            include_columns=["time", "value"],
            null_values=[],
            strings_can_be_null=False,
        ),
    )
    return table["time"].to_numpy(), table["value"].to_numpy()


def matrix_frame(answers: Sequence[Matrix], query: str = "") -> pd.DataFrame:
    """
    Return range answers as one long frame.

    Parameters
    ----------
    answers : sequence of Matrix
        Of one query or of several.
    query : str
        Names what has no metric name: a PromQL function drops it.

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
    with ThreadPoolExecutor(1) as aside:
        pending = aside.submit(numbers, samples)  # Arrow needs no interpreter lock
        labels = [row for answer in answers for row, _ in answer.labels()]
        lengths = np.fromiter((text.count(b"],[") + 1 for text in samples), np.int64, len(samples))
        fields, scales = [], np.ones(len(labels))
        for at, row in enumerate(labels):
            name, scales[at] = canonical(row["__name__"]) if "__name__" in row else (query or "value", 1.0)
            fields.append(name)
        columns, attrs = _columns(labels)
        categories = {name: _categorical(told, lengths) for name, told in columns.items()}
        times, values = pending.result()
    if len(times) != int(lengths.sum()):
        raise QueryError("the answer has samples that are no [time, value] pair", query=query)
    if len(values) and any(name.startswith("DCGM_") for name in set(fields)):
        values = values if values.flags.writeable else values.copy()
        mask_blanks("DCGM_", values)  # blank numbers of DCGM have no meaning in any other metric either
    if (scales != 1.0).any():
        values = values * np.repeat(scales, lengths)
    result = pd.DataFrame(
        {"time": _moments(times), "field": _categorical(fields, lengths), "value": values, **categories}, copy=False
    )
    result.attrs |= attrs | {"warnings": [note for answer in answers for note in answer.notes]}
    return result


def _columns(labels: Sequence[dict[str, str]]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
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
        if len(set(told)) == 1 and len(told) > 1 and name != "__name__":
            constant[name] = str(told[0])
        elif name not in _TOLD and not (name == "device" and _only_index(told, columns["gpu_index"])):
            columns[name if name not in columns and name not in ("time", "field", "value") else f"label_{name}"] = told
    instances = dict(zip(columns["node"], columns.get("instance", ()), strict=False))
    if instances and all(instances[node] == one for node, one in zip(columns["node"], columns["instance"], strict=True)):
        columns.pop("instance")  # says no more than the node: two bytes a sample saved
    else:
        instances = {}
    kept = {name: told for name, told in columns.items() if any(value is not None for value in told)}
    return kept, {"labels": constant, "instances": instances}


def _moments(times: Any) -> Any:
    """Return seconds as UTC times of microseconds; Prometheus has milliseconds, which a float holds exactly enough."""
    import numpy as np
    import pandas as pd

    return pd.DatetimeIndex(np.rint(times * 1000.0).astype("int64") * 1000, dtype="datetime64[us, UTC]")


def _only_index(told: Sequence[str | None], index: Sequence[int | None]) -> bool:
    """Tell whether ``device`` says no more than the index: nvidia3."""
    return all(name in (None, f"nvidia{number}") for name, number in zip(told, index, strict=True))


def _categorical(values: Sequence[Any], lengths: Any) -> Any:
    import numpy as np
    import pandas as pd

    codes, uniques = pd.factorize(pd.Series(values, dtype="object"))
    small = np.int8 if len(uniques) < 127 else np.int16 if len(uniques) < 32767 else np.int32
    return pd.Categorical.from_codes(np.repeat(codes.astype(small), lengths), categories=pd.Index(list(uniques)))
