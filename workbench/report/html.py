"""Turn verdicts (their JSON form) into one self-contained HTML page: no script, no request, log text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.report import timeline, view
from workbench.report.text import clean, clock, percent, plural

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render"]

SHOWN_EVIDENCE = 60


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # every value is cleaned of control and reordering characters, then escaped
    def finish(value: Any) -> Any:
        return clean(value) if type(value) is str else "" if value is None else value

    environment = Environment(
        loader=PackageLoader("workbench.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finish,
    )
    environment.filters |= {"clock": clock, "percent": percent, "plural": plural}
    return environment


def render(documents: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """
    Return one page for one verdict or several.

    Parameters
    ----------
    documents : mapping or sequence of mappings
        Verdicts as `workbench.report.verdict_json.to_json` gives them.
    """
    from markupsafe import Markup

    several = [documents] if isinstance(documents, Mapping) else list(documents)
    pages = [
        {
            "document": document,
            # built of escaped parts by timeline.svg
            "timeline": Markup(timeline.svg(document)),
            "span": timeline.span(document),
            "evidence": document["evidence"][:SHOWN_EVIDENCE],
            "evidence_left": max(0, len(document["evidence"]) - SHOWN_EVIDENCE),
        }
        for document in several
    ]
    return _environment().get_template("report.html.j2").render(pages=pages, view=view, version=__version__)
