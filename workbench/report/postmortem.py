"""Turn the facts of an incident into a postmortem: Markdown by a template, and that as a page or a notebook."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.errors import ConfigError
from workbench.report import timeline
from workbench.report.facts import VARIABLES, Facts
from workbench.report.markdown import code, quoted
from workbench.report.markdown_html import to_html
from workbench.report.text import clean

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["FORMATS", "TEMPLATES", "html", "markdown"]

TEMPLATES = ("google", "atlassian", "pagerduty")
FORMATS = ("md", "html", "ipynb")
TO_FILL = "to be filled"
_REFERENCE = "docs/postmortems.md lists the variables"
# they would let text of a log out of its quotes
_UNSAFE = ("safe", "escape", "e", "forceescape", "tojson", "xmlattr", "urlize", "pprint")


def markdown(facts: Facts, template: str = "google") -> str:
    """
    Return a postmortem as Markdown.

    Parameters
    ----------
    facts : Facts
    template : str
        One of `TEMPLATES`, or the path of a site's own (a Jinja template that sees `workbench.report.facts.VARIABLES`; it may take our
        pieces with ``{% import "parts.md.j2" as parts with context %}``). What it writes with ``{{ }}`` is text: nothing in it means
        anything to Markdown or HTML, and what is not known is written as "to be filled".

    Raises
    ------
    ConfigError
        There is no such template, or it has an error; names file, line and the way out.
    """
    text, name, file = _source(template)
    words = {key: value for key, value in facts.to_dict().items() if key in VARIABLES}
    words["to_be_filled"] = None
    environment = _environment(str(file.parent) if file else None)
    try:
        made = environment.from_string(text) if file is None else environment.get_template(name)
        rendered = made.render(words)
    except ConfigError:
        raise
    except Exception as error:
        if file is None:
            raise  # one of ours: a defect
        raise _explained(error, file, words) from None
    # macros leave blank lines where they had nothing to say
    return re.sub(r"\n{3,}", "\n\n", rendered).strip() + "\n"


def html(facts: Facts, template: str = "google", document: Mapping[str, Any] | None = None) -> str:
    """
    Return a postmortem as one self-contained page: no script, no request.

    Parameters
    ----------
    facts, template
        As of `markdown`.
    document : mapping, optional
        The verdict that the facts are of, already redacted: its picture of the timeline is put into the page.
    """
    from markupsafe import Markup

    body = to_html(markdown(facts, template)).replace(f"<em>{TO_FILL}</em>", f"<mark>{TO_FILL}</mark>")
    picture = timeline.svg(document) if document is not None else ""
    if picture:
        body = re.sub(r"(<h2>Timeline</h2>\n)", lambda found: f"{found[1]}<figure>{picture}</figure>\n", body, count=1)
    page = _pages().get_template("postmortem.html.j2")
    # the body is made of escaped parts by markdown_html
    return page.render(title=clean(facts.title), cause=facts.cause, body=Markup(body), version=__version__)


def _source(template: str) -> tuple[str, str, Path | None]:
    if template in TEMPLATES:
        from importlib.resources import files

        return (files("workbench.report") / "templates" / "postmortem" / f"{template}.md.j2").read_text("utf-8"), template, None
    path = Path(template)
    if not path.suffix and "/" not in template and not path.exists():
        near = difflib.get_close_matches(template, TEMPLATES, n=1)
        raise ConfigError(
            f"there is no template {template!r}" + (f"; did you mean {near[0]}?" if near else ""),
            hint=f"one of {', '.join(TEMPLATES)}, or the path of your own: site.md.j2",
        )
    try:
        return path.read_text(encoding="utf-8"), path.name, path.resolve()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the template {template} cannot be read: {reason}", hint=_REFERENCE) from None


def _environment(folder: str | None) -> Environment:
    """Return what runs a template: nothing but its variables can be reached, and every text is quoted for Markdown."""
    from jinja2 import ChoiceLoader, FileSystemLoader, PackageLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    def finish(value: Any) -> Any:
        if value is None:
            return Markup(f"*{TO_FILL}*")
        return value if hasattr(value, "__html__") else Markup(quoted(value))

    def join(values: Any, between: str = "") -> Any:
        return Markup(quoted(between)).join(finish(value) for value in values)

    ours = PackageLoader("workbench.report", "templates/postmortem")
    environment = ImmutableSandboxedEnvironment(
        loader=ChoiceLoader([FileSystemLoader(folder), ours]) if folder else ours,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finish,
        cache_size=0,
    )
    for name in _UNSAFE:
        environment.filters.pop(name, None)
    environment.filters |= {
        "code": lambda text: Markup(code(str(text))),
        # a bar ends a cell also within a code span
        "cellcode": lambda text: Markup(code(str(text)).replace("|", "\\|")),
        "join": join,
    }
    environment.globals.clear()
    return environment


@lru_cache(maxsize=1)
def _pages() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(loader=PackageLoader("workbench.report", "templates"), autoescape=True, undefined=StrictUndefined)


def _explained(error: Exception, file: Path, words: Mapping[str, Any]) -> ConfigError:
    """Return what is wrong with a site's template: its file, the line, what it says, and the way out."""
    from jinja2 import TemplateAssertionError, TemplateNotFound, TemplateSyntaxError, UndefinedError
    from jinja2.exceptions import SecurityError

    where, line = str(file), getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None
    if isinstance(error, TemplateSyntaxError) and error.filename:
        where = error.filename
    trace = error.__traceback__
    while trace is not None and not isinstance(error, TemplateSyntaxError):
        name = trace.tb_frame.f_code.co_filename
        if name == str(file) or (name.endswith(".j2") and Path(name).parent == file.parent):
            where, line = name, trace.tb_lineno  # the last is the innermost
        trace = trace.tb_next
    said, hint = str(error), _REFERENCE
    if isinstance(error, UndefinedError):
        unknown = re.search(r"'(\w+)' is undefined|has no attribute '(\w+)'", said)
        word = next((one for one in unknown.groups() if one), "") if unknown else ""
        known = [*words, *(key for rows in words.values() for key in _keys(rows))]
        near = difflib.get_close_matches(word, known, n=1)
        said = f"nothing is called {word!r}" if word else said
        hint = (f"did you mean {near[0]}? " if near else "") + f"{_REFERENCE}: {', '.join(VARIABLES)}"
    elif isinstance(error, TemplateNotFound):
        said = f"it takes {error.name!r}, which is neither beside it nor one of ours"
        hint = f"ours are parts.md.j2, {', '.join(f'{name}.md.j2' for name in TEMPLATES)}"
    elif isinstance(error, TemplateAssertionError) and "filter" in said:
        hint = "text of a log stays quoted, so filters that take its quotes away are not there; use code, join, replace, upper …"
    elif isinstance(error, SecurityError):
        hint = "a template reads its variables and nothing else: names that begin with _ and changes are not allowed"
    elif isinstance(error, TemplateSyntaxError):
        hint = "see https://jinja.palletsprojects.com/templates/"
    elif isinstance(error, TypeError) and "NoneType" in said:
        hint = "what is not known is none: ask first, {% if remediation is not none %}"
    return ConfigError(f"{where}:{line or 1}: {clean(said)}", hint=hint)


def _keys(rows: Any) -> list[str]:
    first = rows[0] if isinstance(rows, list) and rows else rows
    return [str(key) for key in first] if isinstance(first, Mapping) else []
