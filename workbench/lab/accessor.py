"""Turn a frame of the workbench into answers at one word: ``df.fleet.unwell()``, ``.worst()``, ``.count()``, ``.map()`` …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.frames import EVENTS, METRICS
from workbench.site import model

if TYPE_CHECKING:
    from bokeh.plotting import figure

__all__ = ["KINDS", "FleetFrame"]

# kind → columns without which a frame is none of it; the first that fits decides
KINDS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("node", "gpu_index", "health", "temperature"),
    "nodes": ("node", "health", "schedulable"),
    "findings": ("node", "check", "status", "action"),
    "suspects": ("node", "score", "why"),
    "jobs": ("job", "node_names", "ranks"),
    "actions": ("node", "verb", "rung"),
    "ranks": ("rank", "node", "state", "last_line"),
    "metrics": ("time", "field", "value", "node"),
    "events": ("time", "signature", "role", "node"),
}
# worst first; `unknown` is bad news: it is never left out as if it were well
_ORDER: Mapping[str, tuple[str, ...]] = {
    "health": tuple(reversed(model.HEALTH)),
    "status": ("critical", "unknown", "warning", "ok", "not-applicable"),
    "state": ("culprit", "failed", "victim", "silent", "starting", "running", "done", "absent", "unknown"),
    "role": ("cause", "counter", "symptom", "context"),
}
_WELL: Mapping[str, tuple[str, ...]] = {
    "health": ("ok",),
    "status": ("ok", "not-applicable"),
    "state": ("running", "done", "starting"),
}


@pd.api.extensions.register_dataframe_accessor("fleet")
class FleetFrame:
    """
    What one asks of a frame of nodes, GPUs, findings, ranks, events or metrics; nothing is changed, every answer is a frame or a figure.

    Attributes
    ----------
    kind : str
        What the frame is, by its columns: a key of `KINDS`.

    Raises
    ------
    AttributeError
        The frame is none of ours.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        found = next((kind for kind, columns in KINDS.items() if set(columns) <= set(frame.columns)), None)
        if found is None:
            raise AttributeError(
                f"`.fleet` is for frames of {', '.join(KINDS)}; this one has the columns {', '.join(map(str, frame.columns[:8]))}"
            )
        self._frame, self.kind = frame, found

    def __repr__(self) -> str:
        return f"<fleet: {len(self._frame):,} {self.kind}>"

    def of(
        self, *, node: str | None = None, gpu: int | str | None = None, rank: int | None = None, job: str | None = None
    ) -> pd.DataFrame:
        """
        Return the rows of a node, GPU (index, UUID or PCI address), rank or job.

        Raises
        ------
        KeyError
            The frame does not tell that.
        """
        rows = pd.Series(True, index=self._frame.index)
        for name, wanted in (("node", node), ("rank", rank), ("job", job)):
            if wanted is not None:
                rows &= self._column(name).eq(wanted).fillna(False).astype(bool)
        if gpu is not None:
            columns = [name for name in ("gpu_index", "gpu_uuid", "pci") if name in self._frame.columns]
            if not columns:
                raise KeyError(f"a frame of {self.kind} does not tell the GPU")
            same = [self._frame[name].astype("string").eq(str(gpu)).fillna(False).astype(bool) for name in columns]
            rows &= pd.concat(same, axis=1).any(axis=1)
        return self._frame[rows]

    def unwell(self) -> pd.DataFrame:
        """Return what is not known to be well, the worst first: `unknown` is among them, since nobody can say that it is well."""
        name = self._word()
        ordered = self.worst(n=len(self._frame))
        return ordered[~ordered[name].isin(list(_WELL.get(name, ())))]

    def worst(self, n: int = 10) -> pd.DataFrame:
        """Return the worst rows, the worst first."""
        if self.kind == "suspects":
            return self._frame.sort_values("score", ascending=False, kind="stable").head(n)
        name = self._word()
        order = {word: place for place, word in enumerate(_ORDER[name])}
        key = self._frame[name].map(order).fillna(order.get("unknown", len(order))).astype("float64")
        return self._frame.loc[key.sort_values(kind="stable").index].head(n)

    def count(self, by: str | None = None) -> pd.DataFrame:
        """Return how many rows there are of each word (health, status, state, role), also of those that none has; `by` another column."""
        name = self._word()
        words = self._frame[name].fillna("unknown" if "unknown" in _ORDER[name] else "none")
        columns = [*_ORDER[name], *sorted(set(words) - set(_ORDER[name]))]
        if by is None:
            return words.value_counts().reindex(columns, fill_value=0).rename("rows").rename_axis(name).to_frame()
        of = self._column(by).astype("string").fillna("(not told)")
        return pd.crosstab(of, words).reindex(columns=columns, fill_value=0)

    def wide(self, field: str, *, node: str | None = None) -> pd.DataFrame:
        """Return one metric as time × GPU, in its unit; a gap stays a gap."""
        self._only("metrics", "wide")
        rows = self._frame[self._frame["field"].eq(field)]
        rows = rows[rows["node"].eq(node)] if node is not None else rows
        who = rows["node"].astype("string").fillna("?")
        gpu = rows["gpu_index"].astype("string") if "gpu_index" in rows else pd.Series(pd.NA, index=rows.index, dtype="string")
        names = who.str.cat(("/" + gpu).fillna(""))
        return rows.assign(entity=names).pivot_table(index="time", columns="entity", values="value", aggfunc="last")

    def map(self, **options: Any) -> figure:
        """Return the map of GPUs by health as a Bokeh figure; options of `workbench.plots.gpu_map.gpu_map`."""
        self._only("gpus", "map")
        from workbench.plots.gpu_map import gpu_map

        return gpu_map(self._frame, **options)

    def panels(self, node: str, gpu: int | str | None = None, **options: Any) -> list[figure]:
        """Return small multiples of what a GPU measured; options of `workbench.plots.metrics.metric_panels`."""
        self._only("metrics", "panels")
        from workbench.plots.metrics import metric_panels

        return metric_panels(self._frame, node=node, gpu=gpu, **options)

    def timeline(self, **options: Any) -> figure:
        """Return the events of a case file in lanes; options of `workbench.plots.timeline.timeline`."""
        self._only("events", "timeline")
        from workbench.plots.timeline import timeline

        return timeline(self._frame, **options)

    def _word(self) -> str:
        for name in ("health", "status", "state", "role"):
            if name in self._frame.columns and name in _ORDER and self.kind not in ("jobs", "actions"):
                return name
        raise AttributeError(f"a frame of {self.kind} says of nothing whether it is well")

    def _column(self, name: str) -> pd.Series[Any]:
        if name not in self._frame.columns:
            raise KeyError(f"a frame of {self.kind} has no column {name!r}")
        return self._frame[name]

    def _only(self, kind: str, what: str) -> None:
        if self.kind != kind:
            raise AttributeError(f"`.fleet.{what}` is for frames of {kind}, this one is of {self.kind}")


assert set(METRICS) >= set(KINDS["metrics"])  # one contract, two places that name it
assert set(EVENTS) >= set(KINDS["events"])
