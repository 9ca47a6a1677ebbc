"""Turn a frame into the house's table: paged by the server, plain text in every cell, UTC, and a file of the whole of it on demand."""

from __future__ import annotations

import io
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import panel as pn
import panel.models.tabulator
import param

from workbench.report.text import clean, plural
from workbench.views.markup import css, cut, known, render, short_file
from workbench.views.permalink import parse, query
from workbench.views.surface import Surface

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "display", "kept", "to_csv", "to_json"]

PAGE = 25
CELL = 400  # characters of a cell; the whole text is in the export and in the log


class Table(pn.viewable.Viewer):
    """
    A frame as a table.

    Parameters
    ----------
    frame : DataFrame
        What is shown; the exports hold it whole, with all its columns, whatever is filtered.
    columns : mapping, optional
        Column → heading, in order; all when left out. Times get "(UTC)" behind their heading.
    name : str
        Of the exported files.
    empty : str
        What is said when there is no row: what is missing and what to do.
    chosen : callable
        Called with the position in `frame` of a row that somebody chose.
    filters : sequence of str
        Columns with a field above them that filters.
    shown : DataFrame, optional
        What `display` makes of the frame, when somebody has made it already.

    Attributes
    ----------
    shown : DataFrame
        What the table holds: texts and numbers only.
    """

    selected = param.Integer(default=None, allow_None=True, doc="Position in the frame of the chosen row.")
    arranged = param.String(default="", doc="How it is sorted and filtered, as a query: ``sort=-time&node=gpu-7``.")

    def __init__(
        self,
        frame: pd.DataFrame,
        *,
        columns: Mapping[str, str] | None = None,
        name: str = "table",
        empty: str = "There is nothing to show.",
        chosen: Callable[[int], None] | None = None,
        filters: Sequence[str] = (),
        page: int = PAGE,
        widths: Mapping[str, int] | None = None,
        noun: str = "row",
        shown: pd.DataFrame | None = None,
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self.frame, self.file, self._chosen, self.empty = frame, name, chosen, empty
        self.shown = display(frame, columns) if shown is None else shown
        self._filters, self._page, self._widths, self._noun = tuple(filters), page, dict(widths or {}), noun
        self._headings = dict(columns) if columns else {str(column): str(column) for column in frame.columns}
        self._tabulator: Any = None
        self._layout: pn.Column | None = None
        self._count: Any = None
        self.param.watch(self._mark, "selected")
        self.param.watch(self._arrange, "arranged")

    def __panel__(self) -> pn.Column:
        if self._layout is None:
            self._layout = self._build()
        return self._layout

    def update(self, frame: pd.DataFrame, shown: pd.DataFrame | None = None) -> bool:
        """
        Show a newer frame with the same columns in the table there is; the page, the sorting and the filters stay.

        Returns
        -------
        bool
            False when that is not possible (from or to a table without rows): then a new one has to be made.
        """
        if not len(frame) or not len(self.frame) or list(frame.columns) != list(self.frame.columns):
            return False
        shown = display(frame, self._headings) if shown is None else shown
        self.frame = frame
        if self._count is not None:
            self._count.html = render("incident.j2", "told", text=self._told())
        if not shown.equals(self.shown):
            self.shown = shown
            if self._tabulator is not None:
                self._tabulator.value = shown
        return True

    @property
    def tabulator(self) -> Any:
        """The widget, made when it is first asked for."""
        if self._tabulator is None:
            headings = dict(zip(self.shown.columns, self._titles(), strict=True))
            found = {heading for heading, name in zip(self.shown.columns, self._named(), strict=True) if name in self._filters}
            sorters, wanted = self._asked()
            self._tabulator = pn.widgets.Tabulator(
                self.shown,
                sorters=sorters,
                filters=[{"field": name, "type": "like", "value": value} for name, value in wanted.items()],
                titles=headings,
                pagination="remote",
                page_size=self._page,
                disabled=True,
                show_index=False,
                selectable=1,
                layout="fit_columns",
                sizing_mode="stretch_width",
                margin=0,
                formatters={column: {"type": "plaintext"} for column in self.shown.columns},
                text_align={column: "right" for column in self.shown.columns if _is_number(self.frame[column])},
                header_filters={
                    column: {"type": "input", "func": "like", "placeholder": "filter"}
                    for column in self.shown.columns
                    if column in found
                },
                widths=self._widths,
                configuration={
                    "columnDefaults": {"headerTooltip": True, "resizable": True},
                    "initialHeaderFilter": [{"field": name, "value": value} for name, value in wanted.items()],
                },
            )
            self._tabulator.on_click(self._clicked)
            self._tabulator.param.watch(self._rearranged, ["sorters", "filters"])
            self._mark()
        return self._tabulator

    def _asked(self) -> tuple[list[dict[str, str]], dict[str, str]]:
        """Return how `arranged` wants it, as far as there are such columns: what sorts, and column → text that it holds."""
        said = parse(self.arranged)
        order = [name for name in said.get("sort", "").split(",") if name.removeprefix("-") in self._headings]
        sorters = [{"field": name.removeprefix("-"), "dir": "desc" if name.startswith("-") else "asc"} for name in order]
        return sorters, {name: said[name] for name in self._filters if name in self._headings and said.get(name)}

    def _now(self) -> str:
        """Return how the widget is arranged."""
        order = ["-" * (one["dir"] == "desc") + one["field"] for one in self._tabulator.sorters if one["field"] in self._headings]
        said = {"sort": ",".join(order)} if order else {}
        for one in self._tabulator.filters:
            if one.get("field") in self._filters and isinstance(one.get("value"), str) and one["value"]:
                said[one["field"]] = one["value"]
        return query(said)[1:]

    def _rearranged(self, *_: Any) -> None:
        self.arranged = self._now()

    def _arrange(self, *_: Any) -> None:
        """Make the widget anew when it is arranged otherwise: Panel (1.9.4) tells no browser of a filter."""
        if self._tabulator is None or self._now() == self.arranged:
            return
        self._tabulator = None
        if self._layout is not None and len(self._layout) > 1:
            self._layout[1] = self.tabulator

    def _named(self) -> list[str]:
        return list(self._headings)

    def _titles(self) -> list[str]:
        return [
            title + (" (UTC)" if str(self.frame[name].dtype).startswith("datetime64") else "")
            for name, title in self._headings.items()
        ]

    def _build(self) -> pn.Column:
        if not len(self.frame):
            return pn.Column(
                Surface(render("incident.j2", "told", text=self.empty), margin=0), sizing_mode="stretch_width", margin=0
            )
        self._count = Surface(render("incident.j2", "told", text=self._told()), keys=True, align="end", margin=0)
        bar = pn.Row(
            self._count,
            file_button("CSV", f"{self.file}.csv", lambda: io.BytesIO(to_csv(self.frame).encode())),
            file_button("JSON", f"{self.file}.json", lambda: io.BytesIO(to_json(self.frame).encode())),
            sizing_mode="stretch_width",
        )
        return pn.Column(bar, self.tabulator, sizing_mode="stretch_width", margin=0)

    def _told(self) -> str:
        left_out = self.frame.attrs.get("left_out")
        more = f"; {left_out:,} more were left out" if isinstance(left_out, int) and left_out else ""
        return plural(len(self.frame), self._noun) + more

    def _clicked(self, event: Any) -> None:
        row = int(event.row)
        if 0 <= row < len(self.frame):
            self.selected = row
            if self._chosen is not None:
                self._chosen(row)

    def _mark(self, *_: Any) -> None:
        if self._tabulator is not None:
            self._tabulator.selection = [] if self.selected is None else [self.selected]


def kept(view: Any, name: str, table: Table) -> Table:
    """
    Let a table be sorted and filtered as the view's address says, and that say how the table is; return the table.

    Parameters
    ----------
    view : object
        Has a param `tables`: a query whose values are what `Table.arranged` of the table of that name is.
    name : str
    table : Table
    """
    here = weakref.ref(table)

    def told(event: Any) -> None:
        said = parse(view.tables) | {name: event.new}
        view.tables = query({key: value for key, value in said.items() if value})[1:]

    def follow(*_: Any) -> None:
        if (one := here()) is not None:
            one.arranged = parse(view.tables).get(name, "")
        else:  # another has taken its place
            view.param.unwatch(watcher)

    table.arranged = parse(view.tables).get(name, "")
    table.param.watch(told, "arranged")
    watcher = view.param.watch(follow, "tables")
    return table


def _is_number(values: Any) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def file_button(label: str, name: str, make: Callable[[], io.BytesIO]) -> Any:
    return pn.widgets.FileDownload(
        callback=make, filename=name, label=label, variant="outline", width=74, height=28, margin=(0, 0, 6, 6),
        css_classes=["export"], stylesheets=[css()],
    )  # fmt: skip


def display(frame: pd.DataFrame, columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """
    Return what a table shows of a frame: times as UTC text, counts as numbers, everything else as clean text of modest length.

    Numbers stay numbers, so that they sort as such; a missing one is an empty cell, never a zero.
    """
    import pandas as pd

    names = list(columns) if columns else [str(column) for column in frame.columns]
    shown: dict[str, Any] = {}
    for name in names:
        values = frame[name]
        kind = str(values.dtype)
        if kind.startswith("datetime64"):
            text = values.dt.strftime("%Y-%m-%d %H:%M:%S.%f").str.slice(0, 23)
            shown[name] = text.astype(object).where(values.notna(), "").tolist()
        elif pd.api.types.is_bool_dtype(values):
            shown[name] = ["" if value is pd.NA or value is None else "yes" if value else "no" for value in values.astype(object)]
        elif pd.api.types.is_numeric_dtype(values):
            shown[name] = (
                values.to_numpy("int64" if pd.api.types.is_integer_dtype(values) else "float64")
                if values.notna().all()
                else pd.Series([known(value) for value in values.astype(object)], dtype=object)
            )
        else:
            short = short_file if name in ("file", "name") else str
            shown[name] = ["" if known(value) is None else clean(cut(short(value), CELL)) for value in values.astype(object)]
    return pd.DataFrame(shown, columns=names)


# A spreadsheet takes a cell that begins so for a formula; log text is hostile (https://owasp.org/www-community/attacks/CSV_Injection)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(frame: pd.DataFrame) -> str:
    """Return the whole frame as CSV: times in ISO 8601 UTC, texts that a spreadsheet would run as a formula quoted by an apostrophe."""
    safe = _iso(frame)
    for name in safe.columns:
        if safe[name].dtype == object:
            safe[name] = ["'" + value if isinstance(value, str) and value.startswith(_FORMULA) else value for value in safe[name]]
    return str(safe.to_csv(index=False, lineterminator="\n"))


def to_json(frame: pd.DataFrame) -> str:
    """Return the whole frame as a JSON array of objects in ASCII; missing is null."""
    return json.dumps(_iso(frame).to_dict("records"), ensure_ascii=True, allow_nan=False, default=str, indent=0)


def _iso(frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    out: dict[str, Any] = {}
    for name in frame.columns:
        values = frame[name]
        if str(values.dtype).startswith("datetime64"):
            text = values.dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            out[str(name)] = text.astype(object).where(values.notna(), None)
        else:
            whole = values.astype(object)
            out[str(name)] = whole.where(whole.notna(), None)
    return pd.DataFrame(out, columns=[str(name) for name in frame.columns], dtype=object)
