"""
Turn words (states, health, causes, roles) into colours and marker shapes, light and dark, and put them on Bokeh figures.

The colours of states and of health are reserved: no line, bar or decoration borrows them. All within one table are told apart by
people with deuteranopia, protanopia and tritanopia (Machado et al. 2009, full severity: an OKLab distance of at least 0.085 for each
pair; tests/plots/test_theme.py), and what is worst differs most in lightness from the page, so that a grey print tells it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bokeh.model import Model
    from bokeh.themes import Theme as BokehTheme

__all__ = [
    "FONT",
    "HEALTH",
    "HEALTH_MARKERS",
    "MONO",
    "PAGE_CSS",
    "ROLE_MARKERS",
    "STATES",
    "STATE_MARKERS",
    "Theme",
    "bokeh_theme",
    "switch",
    "switch_script",
    "theme",
]

# Without quotes: the same text stands in a canvas' font, in a style attribute and in JSON
FONT = "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif"
MONO = "ui-monospace, SFMono-Regular, DejaVu Sans Mono, Menlo, monospace"

# By rising severity; the same words as `workbench.casefile.model.STATES` and `workbench.site.model.HEALTH`, which stand above this
# package (tests/plots/test_theme.py holds them together)
STATES: tuple[str, ...] = ("unknown", "absent", "done", "running", "starting", "silent", "victim", "failed", "culprit")
HEALTH: tuple[str, ...] = ("absent", "ok", "unknown", "warning", "critical")

STATE_MARKERS: Mapping[str, str] = {
    "unknown": "circle_cross",
    "absent": "dash",
    "done": "square_pin",
    "running": "circle",
    "starting": "triangle",
    "silent": "square",
    "victim": "inverted_triangle",
    "failed": "x",
    "culprit": "diamond",
}
HEALTH_MARKERS: Mapping[str, str] = {
    "absent": "dash",
    "ok": "circle",
    "unknown": "circle_cross",
    "warning": "triangle",
    "critical": "diamond",
}
ROLE_MARKERS: Mapping[str, str] = {
    "cause": "diamond",
    "symptom": "circle",
    "context": "square",
    "counter": "inverted_triangle",
}


@dataclass(frozen=True)
class Theme:
    """
    The colours of one appearance, each as ``#rrggbb``.

    Attributes
    ----------
    page, card, ink, soft, line : str
        Behind everything, behind a figure, text, quieter text, rules and grids; the same as those of the HTML report.
    accent : str
        What is chosen or can be clicked.
    states, health, causes, roles : Mapping
        Word → colour.
    lag : tuple of str
        From "told no step" over "in step" to "far behind": one colour for each bin of `workbench.plots.step_map.LAGS`.
    series : tuple of str
        Lines that mean no status, in this order.
    """

    dark: bool
    page: str
    card: str
    ink: str
    soft: str
    line: str
    accent: str
    band: str
    states: Mapping[str, str]
    health: Mapping[str, str]
    causes: Mapping[str, str]
    roles: Mapping[str, str]
    lag: tuple[str, ...]
    series: tuple[str, ...]

    def colours(self) -> tuple[str, ...]:
        """Return all colours in an order that is the same in both appearances."""
        single = (self.page, self.card, self.ink, self.soft, self.line, self.accent, self.band)
        tables = (self.states, self.health, self.causes, self.roles)
        return (*single, *(table[word] for table in tables for word in sorted(table)), *self.lag, *self.series)


LIGHT = Theme(
    dark=False,
    page="#f4f6f9",
    card="#ffffff",
    ink="#1b2230",
    soft="#5b6577",
    line="#dfe3ea",
    accent="#0a66c2",
    band="#8a96aa",
    states={
        "unknown": "#9ca19e",
        "absent": "#e6e9ee",
        "done": "#b8d0b3",
        "running": "#88c3f5",
        "starting": "#6a83cb",
        "silent": "#fccf3a",
        "victim": "#e99534",
        "failed": "#c8431f",
        "culprit": "#5e0b3c",
    },
    health={"absent": "#e5e8ed", "ok": "#9cc7e4", "unknown": "#9599a0", "warning": "#e8a33a", "critical": "#b3261e"},
    causes={
        "hardware": "#a3243f",
        "driver": "#9f67e4",
        "platform": "#1b6896",
        "user": "#c98a03",
        "unknown": "#749caa",
        "none": "#70cb95",
    },
    roles={"cause": "#98000e", "symptom": "#d79823", "context": "#8795ad", "counter": "#408657"},
    lag=("#abadb1", "#cbe3f5", "#4388bd", "#f0c85a", "#e5852b", "#b83a1c", "#5a0a38"),
    series=("#214e95", "#9a5fd0", "#07a190", "#ae6a1e"),
)
DARK = Theme(
    dark=True,
    page="#12161e",
    card="#1a202b",
    ink="#e4e8ef",
    soft="#9aa5b8",
    line="#2c3443",
    accent="#5aa9f5",
    band="#6d7a90",
    states={
        "unknown": "#757c8a",
        "absent": "#252d3b",
        "done": "#424f46",
        "running": "#205e8c",
        "starting": "#7d8fda",
        "silent": "#d2cc61",
        "victim": "#dd8b24",
        "failed": "#d54636",
        "culprit": "#ffd9f0",
    },
    health={"absent": "#262e3c", "ok": "#2b5f86", "unknown": "#858d9c", "warning": "#e9a32b", "critical": "#f04245"},
    causes={
        "hardware": "#fe6568",
        "driver": "#beabff",
        "platform": "#3f8ee0",
        "user": "#f0c24a",
        "unknown": "#8fa1af",
        "none": "#6fdcb2",
    },
    roles={"cause": "#ff5850", "symptom": "#f4bb4f", "context": "#7b8aab", "counter": "#6be1bf"},
    lag=("#636a76", "#173f63", "#4a8fc4", "#bdd083", "#dd8906", "#ce4237", "#ffd6ee"),
    series=("#5c88d7", "#c9a8ff", "#71e1ba", "#c08850"),
)


def theme(dark: bool = False) -> Theme:
    """Return the colours of the light or the dark appearance."""
    return DARK if dark else LIGHT


# For the style sheet of a page: hover boxes and the buttons of figures stand outside of their figure, and take a page's colours
PAGE_CSS = """
:root { --bokeh-icon-color:var(--soft, #5b6577); --bokeh-base-font:system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.bk-Tooltip { --tooltip-color:var(--card, #fff); --tooltip-text:var(--ink, #1b2230); --tooltip-border:var(--line, #dfe3ea);
  --tooltip-arrow-color:var(--card, #fff); --tooltip-arrow-inner-color:var(--line, #dfe3ea);
  border-radius:6px; max-width:440px; font-variant-numeric:tabular-nums; box-shadow:0 4px 14px #0003; }
"""

# Bokeh model → property → field of Theme, or a value that is no colour. One table for `bokeh_theme` and for `dress`.
_LOOK: dict[str, dict[str, Any]] = {
    "Plot": {
        "background_fill_color": "card",
        "border_fill_color": "card",
        # Bokeh's fill leaves half a pixel at the edge, where the other appearance would shine through after a switch
        "border_line_color": "card",
        "outline_line_color": None,
        "min_border_left": 12,
        "min_border_right": 12,
    },
    "Axis": {
        "axis_line_color": "line",
        "major_tick_line_color": "line",
        "minor_tick_line_color": None,
        "major_label_text_color": "soft",
        "major_label_text_font": FONT,
        "major_label_text_font_size": "11px",
        "axis_label_text_color": "soft",
        "axis_label_text_font": FONT,
        "axis_label_text_font_size": "11px",
        "axis_label_text_font_style": "normal",
        "axis_label_standoff": 6,
    },
    "Grid": {"grid_line_color": "line", "grid_line_alpha": 0.7},
    "Title": {"text_color": "ink", "text_font": FONT, "text_font_size": "13px", "text_font_style": "bold", "standoff": 4},
    "Legend": {
        "background_fill_color": "card",
        "background_fill_alpha": 0.0,
        "border_line_color": None,
        "label_text_color": "soft",
        "label_text_font": FONT,
        "label_text_font_size": "11px",
        "glyph_height": 18,
        "glyph_width": 18,
        "label_standoff": 2,
        "label_height": 14,
        "spacing": 12,
        "padding": 2,
        "margin": 0,
    },
}


def look(dark: bool, model: str) -> dict[str, Any]:
    """Return property → value of a Bokeh model by name (``Plot``, ``Axis``, ``Grid``, ``Title``, ``Legend``)."""
    colours = theme(dark)
    return {
        name: getattr(colours, value) if isinstance(value, str) and hasattr(colours, value) else value
        for name, value in _LOOK[model].items()
    }


def bokeh_theme(dark: bool = False) -> BokehTheme:
    """Return a Bokeh theme for documents whose figures were made elsewhere; figures of this package carry their look themselves."""
    from bokeh.themes import Theme as BokehTheme

    return BokehTheme(json={"attrs": {name: look(dark, name) for name in _LOOK}})


def _changes(dark: bool) -> dict[str, str]:
    """Return old colour → new colour."""
    return dict(zip(theme(not dark).colours(), theme(dark).colours(), strict=True))


def switch(models: Model | Iterable[Model], dark: bool) -> None:
    """
    Give figures of this package the light or dark appearance in place, without building them again.

    Every colour of the other appearance is replaced by its counterpart, in properties, in specifications of glyphs and in palettes;
    data are left alone (no data source of this package holds colours).
    """
    from bokeh.model import Model as BokehModel

    changes = _changes(dark)

    def turned(value: Any) -> Any:
        if isinstance(value, str):
            return changes.get(value, value)
        if isinstance(value, (list, tuple)) and value and all(isinstance(one, str) for one in value):
            return [changes.get(one, one) for one in value]
        return value

    for root in [models] if isinstance(models, BokehModel) else models:
        for model in root.references():
            # defaults too: the card of the light appearance is Bokeh's own white
            for name in (one for one in model.properties() if "color" in one or "palette" in one):
                value = getattr(model, name)
                # of a glyph, {"value": …} or {"field": …}: Bokeh's own classes, which differ between versions in all but this
                fixed = getattr(value, "value", None)
                new = turned(fixed if isinstance(fixed, str) else value)
                if new != (fixed if isinstance(fixed, str) else value):
                    setattr(model, name, new)


def switch_script() -> str:
    """
    Return JavaScript, ``switchPlots(dark)``, that does the same as `switch` in a page, for all of its documents, with no server.

    To be put into a ``<script>`` of a page that has ``window.Bokeh``.
    """
    import json

    tables = {"true": _changes(True), "false": _changes(False)}
    return (
        "function switchPlots(dark){const table=" + json.dumps(tables, separators=(",", ":")) + "[dark?'true':'false'];"
        "const one=x=>typeof x==='string'&&table[x]||x,some=x=>x!==one(x);"
        "const turn=v=>typeof v==='string'?one(v):Array.isArray(v)?v.some(some)?v.map(one):v:"
        "v&&v.constructor===Object&&some(v.value)?{...v,value:one(v.value)}:v;"
        "if(!window.Bokeh)return;for(const doc of window.Bokeh.documents)for(const model of doc._all_models.values())"
        "for(const prop of model){if(!/color|palette/.test(prop.attr))continue;let v;try{v=prop.get_value()}catch{continue}"
        "const n=turn(v);if(n!==v)model.setv({[prop.attr]:n})}}"
    )
