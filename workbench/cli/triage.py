"""Turn `workbench triage PATH…` or `--job NAME` into verdicts on stdout, one per path, in order."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.console import color_wanted, output, width
from workbench.cli.entry import complain
from workbench.cli.live import add_scope, add_site
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.incident import Incident
    from workbench.triage.windows import Windows

__all__ = ["add_arguments", "run"]

FORMATS = ("table", "json", "jsonl", "md", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="*", help="folder, log file or archive with the evidence of one incident; - for stdin"
    )
    parser.add_argument("-o", "--output", choices=FORMATS, help="default: table on a terminal, json elsewhere")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write there instead of stdout")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="nothing on stderr but errors; table: the verdict without its evidence"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="all evidence and all other explanations")
    parser.add_argument(
        "--no-color", action="store_true", help="no colours (also: NO_COLOR=1; FORCE_COLOR=1 for colours in a pipe)"
    )
    parser.add_argument(
        "--window",
        metavar="NAME=TIME",
        action="append",
        default=[],
        type=_window,
        help="change a time window of correlation, such as xid_after=20s, before_start=10m, after_end=5m; may be repeated",
    )
    parser.add_argument("--catalog", metavar="DIR", type=Path, help="a site's own signature tables; also WORKBENCH_CATALOG")
    parser.add_argument(
        "--redact",
        metavar="NAME",
        action="append",
        default=[],
        help="replace this name, and secrets, in the output; @FILE: one name a line",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="read the logs on this Dask cluster, such as tcp://scheduler:8786; it must see the same paths",
    )
    site = parser.add_argument_group("a job on a running site")
    add_scope(site, required=False)
    site.add_argument("--keep", metavar="PATH", type=Path, help="keep the evidence in this folder or archive (.tar.zst, .zip …)")
    add_site(site)


def _window(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    unit = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    digits = amount.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(digits) * unit[amount[len(digits) :] or "s"]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TIME, such as xid_after=20s or before_start=10m") from None
    if not name or not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TIME, such as xid_after=20s or before_start=10m")
    return name.replace("-", "_"), seconds


def _windows(changes: list[tuple[str, float]]) -> Windows | None:
    """Return the windows with a user's changes, or None for the defaults."""
    if not changes:
        return None
    import difflib
    from dataclasses import fields

    from workbench.errors import ConfigError
    from workbench.triage.windows import Windows

    known = [field.name for field in fields(Windows)]
    for name, _ in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"--window {name}: there is no such window" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"one of {', '.join(known)}",
            )
    return Windows(**dict(changes))


def run(options: argparse.Namespace) -> int:
    """Triage every path and print each verdict as soon as it is there."""
    if bool(options.paths) == bool(options.job):
        complain(
            "give either paths or --job" if options.job else "there is nothing to triage",
            hint="workbench triage FOLDER, or workbench triage --job NAME on a running site; see `workbench triage --help`",
        )
        return exits.USAGE
    if options.catalog is not None:
        _use_catalog(options.catalog)
    if options.job:
        from workbench.cli.live import config_of, scope_of

        options.site = config_of(options)  # what is wrong with it ends the run here, before any server is asked
        options.scope = scope_of(options, options.site)
    fmt = options.output or _format_of(options.out)
    hide = _redactor(options.redact)
    codes: list[int] = []
    with output(options.out) as write:
        if fmt == "jsonl":
            from workbench.report.verdict_json import dumps

            for _, document, code in _verdicts(options, hide):
                codes.append(code)
                write(dumps(document) + "\n")
        elif fmt == "json":
            from workbench.report.verdict_json import dumps

            documents = []
            for _, document, code in _verdicts(options, hide):
                codes.append(code)
                documents.append(document)
            write(dumps(documents if len(documents) > 1 else documents[0], indent=2) + "\n")
        elif fmt == "html":
            from workbench.report.html import render

            documents = []
            for _, document, code in _verdicts(options, hide):
                codes.append(code)
                documents.append(document)
            write(render(documents))
        else:
            for number, (_, document, code) in enumerate(_verdicts(options, hide)):
                codes.append(code)
                write(("\n" if number else "") + _page(fmt, document, options))
    return exits.worst(codes)


def _page(fmt: str, document: dict[str, Any], options: argparse.Namespace) -> str:
    if fmt == "md":
        from workbench.report.markdown import render

        return render(document)
    from workbench.report.terminal import render as draw

    tty = options.out is None and sys.stdout.isatty()
    return draw(
        document,
        color=color_wanted(options.no_color, tty),
        width=width(tty),
        detail=0 if options.quiet else 2 if options.verbose else 1,
    )


def _format_of(out: Path | None) -> str:
    if out is not None:
        known = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
        return known.get(out.suffix.lower(), "table")
    return "table" if sys.stdout.isatty() else "json"


def _verdicts(options: argparse.Namespace, hide: Callable[[str], str] | None) -> Iterator[tuple[str, dict[str, Any], int]]:
    windows = _windows(options.window)
    for path in options.paths or [f"job {options.job}"]:
        document, code = _one(path, options, hide, windows)
        yield path, document, code


def _one(
    path: str, options: argparse.Namespace, hide: Callable[[str], str] | None, windows: Windows | None
) -> tuple[dict[str, Any], int]:
    """Return the verdict for one path and an exit code; whatever goes wrong becomes an `unknown` that says so."""
    from workbench.report.verdict_json import failed, to_json

    debug = getattr(options, "debug", False)
    try:
        from workbench.cli.progress import Progress
        from workbench.incident import load

        _check_stdin(path)
        with Progress(enabled=not options.quiet) as progress:
            if options.job:
                incident = _live(options)
            elif options.scheduler:
                incident = _clustered(path, options.scheduler, progress, quiet=options.quiet)
            else:
                incident = load(path, progress=progress)
            verdict = incident.triage() if windows is None else incident.triage(windows)
            document = to_json(verdict, name=path, redact=hide)
    except WorkbenchError as error:
        if debug:
            raise
        complain(str(error), hint=error.hint)
        return _hidden(failed(path, str(error), hint=error.hint), hide), error.exit_code
    except OSError as error:
        if debug:
            raise
        reason = f"{path}: {error.strerror or error}"
        hint = "check the path and that you may read it"
        complain(reason, hint=hint)
        return _hidden(failed(path, reason, hint=hint), hide), exits.UNAVAILABLE
    except Exception as error:  # one bad incident must not cost the verdicts of the others
        if debug:
            raise
        reason = f"internal error: {type(error).__name__}: {error}"
        hint = f"run `workbench triage --debug {path}` and report the traceback and `workbench --version`"
        complain(f"{path}: {reason}", hint=hint)
        return _hidden(failed(path, reason, source="workbench", hint=hint), hide), exits.INTERNAL
    return document, exits.INCOMPLETE if exits.incomplete(document) else exits.OK


def _live(options: argparse.Namespace) -> Incident:
    from workbench.live import load_job

    return load_job(options.scope, options.site, keep=options.keep)


def _clustered(path: str, scheduler: str, progress: Callable[..., None], *, quiet: bool) -> Incident:
    import logging

    from workbench.cluster import Cluster
    from workbench.incident import load

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # `said` has it in one sentence, without tracebacks
    cluster = Cluster(scheduler)
    try:
        incident = load(path, progress=progress, pool=cluster)
        if not quiet and (said := cluster.said()):
            sys.stderr.write(("\r\x1b[K" if sys.stderr.isatty() else "") + said + "\n")
        return incident
    finally:
        cluster.close()


def _hidden(document: dict[str, Any], hide: Callable[[str], str] | None) -> dict[str, Any]:
    if hide is None:
        return document
    from workbench.report.redact import redact_tree

    keep = ("schema", "cause", "class")
    return {key: item if key in keep else redact_tree(item, hide) for key, item in document.items()}


def _check_stdin(path: str) -> None:
    if path == "-" and (sys.stdin is None or sys.stdin.isatty()):
        from workbench.errors import ParseError

        raise ParseError(
            "- means stdin, and stdin is a terminal", hint="pipe a log into it: kubectl logs POD | workbench triage -"
        )


def _use_catalog(folder: Path) -> None:
    from workbench.errors import ConfigError

    if not folder.is_dir():
        raise ConfigError(
            f"--catalog {folder}: there is no such folder", hint="it must hold signatures*.csv; see docs/reference/catalog.md"
        )
    os.environ["WORKBENCH_CATALOG"] = str(folder)
    from workbench.catalog import signatures

    signatures()  # a wrong row ends the run here, before any log is read


def _redactor(names: list[str]) -> Callable[[str], str] | None:
    if not names:
        return None
    from workbench.report.redact import names_in, redact

    return redact(names_in(names))
