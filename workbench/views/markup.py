"""Turn values into HTML by the templates of this folder: every value cleaned of control characters and escaped, log text included."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.report import view
from workbench.report.text import clean, clock, duration, iso, percent, plural, shorten
from workbench.views.permalink import query

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["css", "cut", "known", "label", "money", "plain", "render", "seconds", "short_file", "stamp", "to_json"]

_HERE = Path(__file__).parent / "templates"
# CSI and OSC sequences and the two-character ones: what colours, moves or names a terminal
_ANSI = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\\\)|\x1b[ -/]*[0-Z\\\\-~]")


@lru_cache(maxsize=1)
def css() -> str:
    """Return the style sheet of all parts of a view; colours are the page's variables where it has them."""
    return (_HERE / "view.css").read_text("utf-8")


def seconds(value: Any) -> float | None:
    """Return a time of any of the forms in a case file (ISO text, Timestamp, epoch seconds) as epoch seconds; missing is None."""
    from workbench.report.timeline import seconds as parse_iso

    if value is None or isinstance(value, str):
        return parse_iso(value)
    if isinstance(value, int | float):
        return float(value) if value == value else None
    stamp = getattr(value, "timestamp", None)
    try:
        return float(stamp()) if stamp is not None and value == value else None
    except (ValueError, TypeError, OverflowError):
        return None


def stamp(value: Any, *, date: bool = True) -> str:
    """Return a time for people, in UTC, said so when the date is shown; empty when there is none."""
    text = iso(seconds(value))
    return "" if text is None else clock(text) if date else text[11:23]


def _moment(value: Any, date: bool = True) -> Any:
    """A time as an element: UTC is what is read, the page's script adds the local time on hover."""
    from markupsafe import Markup

    text = iso(seconds(value))
    if text is None:
        return Markup("")
    return Markup('<time datetime="{}">{}</time>').format(text, stamp(value, date=date))


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def finish(value: Any) -> Any:
        return clean(value) if type(value) is str else "" if value is None else value

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finish,
    )
    environment.filters |= {
        "money": money,
        "clock": clock,
        "iso": iso,
        "percent": percent,
        "plural": plural,
        "duration": duration,
        "moment": _moment,
    }
    environment.filters |= {"cut": cut, "marked": _marked, "short_file": short_file, "combine": lambda one, two: {**one, **two}}
    environment.globals |= {"view": view, "query": query, "label": label, "where": _where, "stamp": stamp}
    return environment


def cut(text: Any, width: int = 600) -> str:
    """Return a log line for a list: without ANSI, at most `width` characters, both ends kept, since both matter."""
    return shorten(plain(str(text or "")[: width * 50]), width)


def plain(text: str) -> str:
    r"""
    Return log text without the sequences that colour a terminal.

    >>> plain("\x1b[31mERROR\x1b[0m")
    'ERROR'
    """
    return _ANSI.sub("", text) if "\x1b" in text or "\x9b" in text else text


def short_file(text: Any) -> str:
    """Return a document's name without the archive around it: ``incident.tar.gz!logs/a.log`` is ``logs/a.log``."""
    return str(text or "").rpartition("!")[2] or str(text or "")


def _where(doc: Mapping[str, Any]) -> str:
    """Return where it began without the GPU's UUID, for which the card has a button."""
    culprit = dict(doc["culprit"])
    gpu = culprit.get("gpu") or {}
    if gpu.get("uuid") and (gpu.get("pci") or gpu.get("index") is not None):
        culprit["gpu"] = {**gpu, "uuid": None}
    return view.where({**doc, "culprit": culprit})


def _marked(text: str, needle: str) -> Any:
    """Log text, escaped, with each place of `needle` marked."""
    from markupsafe import Markup, escape

    text = clean(text)
    needle = clean(needle or "")
    if not needle:
        return escape(text)
    # case is ignored as the search does; a text whose lower form has another length is left unmarked rather than marked wrongly
    low, wanted = text.lower(), needle.lower()
    if len(low) != len(text) or not wanted:
        return escape(text)
    parts: list[Any] = []
    at = 0
    while (found := low.find(wanted, at)) >= 0 and len(parts) < 2000:
        parts += [escape(text[at:found]), Markup("<mark>"), escape(text[found : found + len(wanted)]), Markup("</mark>")]
        at = found + len(wanted)
    return Markup("").join([*parts, escape(text[at:])])


def known(value: Any) -> Any:
    """Return a value of a frame or document as plain Python; missing, of whatever kind, is None."""
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return None
    return value.item() if hasattr(value, "item") else value


def money(value: float) -> str:
    """Return an amount without its currency; a small one with its hundredths, so that it does not look like nothing."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def label(value: Any) -> str:
    """Return a value of a frame for a cell: missing is a dash, counts have their thousands apart."""
    value = known(value)
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e15 else f"{value:.3e}"
    return str(value)


def render(template: str, macro: str, /, **values: Any) -> str:
    """
    Return what a macro of a template makes of values.

    Parameters
    ----------
    template, macro : str
        File in ``templates/`` and the name of the macro in it.
    values
        Its arguments; texts are escaped, whatever they hold.
    """
    module = _environment().get_template(template).module
    return str(getattr(module, macro)(**values))


def to_json(value: Mapping[str, Any]) -> str:
    """Return a mapping as JSON that is safe to offer as a file."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, indent=2, default=str)
