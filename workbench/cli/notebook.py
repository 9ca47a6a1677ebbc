"""Turn `workbench notebook NAME --param incident=PATH -o out.html` into the page that a person's run of that notebook gives."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workbench.cli import exits

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="which one; without it they are listed with their parameters")
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one of its parameters, such as incident=PATH or job=NAME",
    )
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="out.html (default NAME.html) or out.ipynb")
    parser.add_argument("--seconds", metavar="S", type=float, default=900.0, help="how long one cell may take; default 900")
    parser.add_argument("--copy", metavar="DIR", type=Path, help="do not run it: copy it there, to be opened in JupyterLab")


def run(options: argparse.Namespace) -> int:
    """Run the notebook and write the page; list them without a name."""
    from workbench.cli.console import output
    from workbench.errors import ParseError, SourceUnavailable
    from workbench.lab.running import notebooks, run, values_of

    known = notebooks()
    if options.name is None:
        for one in known.values():
            sys.stdout.write(f"{one.name:<18}{one.about}\n")
            sys.stdout.write("".join(f"  {key}={value!r}\n" for key, value in one.parameters.items()))
        return exits.OK
    if options.name not in known:
        import difflib

        near = difflib.get_close_matches(options.name, known, n=1)
        raise ParseError(
            f"there is no notebook {options.name!r}" + (f"; did you mean {near[0]}?" if near else ""),
            hint=f"there are: {', '.join(known)}",
        )
    notebook = known[options.name]
    values = values_of(options.param, notebook)
    if options.copy is not None:
        target = options.copy / f"{notebook.name}.ipynb" if options.copy.is_dir() else options.copy
        if target.exists():
            raise SourceUnavailable(f"{target} is there already", hint="give another place; nothing is overwritten")
        target.write_bytes(notebook.file.read_bytes())
        sys.stderr.write(f"{target}\n")
        return exits.OK
    out = options.out or Path(f"{notebook.name}.html")
    kind = {".html": "html", ".htm": "html", ".ipynb": "ipynb"}.get(out.suffix.lower())
    if kind is None:
        raise ParseError(f"{out}: its ending says neither .html nor .ipynb", hint="-o out.html")
    text = run(notebook, values, kind=kind, seconds=options.seconds)
    with output(out) as write:
        write(text)
    sys.stderr.write(f"{out}\n")
    return exits.OK
