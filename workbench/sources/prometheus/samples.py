"""Turn the samples of an answer into what is wrong with them: double, out of order, no numbers, counters that began anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.sources.prometheus.frame import numbers
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.query import Matrix

__all__ = ["Samples", "inspect"]


@dataclass(slots=True)
class Samples:
    """How many there are, how new, and what a reader must know of them."""

    samples: int = 0
    newest: float = 0.0
    remarks: list[str] = field(default_factory=list)
    hint: str = ""


def inspect(matrix: Matrix, *, counter: bool = False) -> Samples:
    """
    Look at the samples of an answer.

    Parameters
    ----------
    counter : bool
        The metric only grows, so a fall is a reset.
    """
    import numpy as np

    found = Samples()
    if not matrix.series:
        return found
    texts = list(matrix.series.values())
    lengths = np.fromiter((text.count(b"],[") + 1 for text in texts), np.int64, len(texts))
    try:
        times, values = numbers(texts)
    except ValueError as error:
        raise QueryError(f"the samples are no numbers: {error}") from None
    if len(times) != int(lengths.sum()):
        raise QueryError("the answer has samples that are no [time, value] pair")
    row = np.repeat(np.arange(len(texts)), lengths)
    same = row[1:] == row[:-1]
    found.samples = len(times)
    real = np.isfinite(values)
    found.newest = float(times[real].max()) if real.any() else 0.0
    gaps = np.diff(times)
    if backward := int((same & (gaps < 0)).sum()):
        found.remarks.append(f"{backward} samples stand out of order")
        found.hint = "two servers may write the same series: give them an external label of their own and deduplicate"
    if double := int((same & (gaps == 0)).sum()):
        found.remarks.append(f"{double} samples stand there twice")
        found.hint = found.hint or "two replicas answer: ask through what deduplicates them (Thanos: dedup=true)"
    if len(values) and not real.any():
        found.remarks.append("all values are NaN")
        found.hint = found.hint or "the exporter reports no value: is the field supported by this GPU?"
    if counter:
        fell = same & (np.diff(values) < 0)
        if fell.any():
            at = int(row[1:][fell][0])
            found.remarks.append(
                f"{len(set(row[1:][fell].tolist()))} series began anew (counter reset), first {_named(matrix, at)}"
            )
            found.hint = found.hint or "a restart of the exporter, a reset of the GPU or a reboot: growth across it is not told"
    return found


def _named(matrix: Matrix, at: int) -> str:
    import json

    labels = json.loads(b"{" + list(matrix.series)[at] + b"}")
    keep = ("Hostname", "hostname", "node", "instance", "gpu", "device")
    return ", ".join(f"{name} {labels[name]}"[:80] for name in keep if name in labels)[:160] or "without labels"
