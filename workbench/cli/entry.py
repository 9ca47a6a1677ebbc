"""Turn a list of words into one command's options, run it, and turn every error into two lines and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import NoReturn

from workbench import __version__
from workbench.cli import COMMANDS, exits
from workbench.errors import WorkbenchError

__all__ = ["Parser", "complain", "parser_for", "run", "split_program"]


class _Help(argparse.RawDescriptionHelpFormatter):
    """
    The terminal's width is asked for here: argparse makes a formatter for each argument, and would import all of `shutil` for the first.

    Where standard output is no terminal, or `COLUMNS` says otherwise, it is as with argparse.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())


def _width() -> int:
    try:
        columns = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        columns = 0
    if columns <= 0:
        try:
            columns = os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
        except (AttributeError, ValueError, OSError):  # no standard output, a closed one, no terminal
            columns = 0
    return (columns or 80) - 2  # as argparse has it


class Parser(argparse.ArgumentParser):
    """An argument parser that ends with 64 and a suggestion, instead of 2 and a page of usage."""

    def error(self, message: str) -> NoReturn:
        complain(message + _suggestion(message), hint=f"see `{self.prog} --help`")
        raise SystemExit(exits.USAGE)


def _suggestion(message: str) -> str:
    # argparse says: argument COMMAND: invalid choice: 'triag' (choose from 'triage', 'explain')
    if "invalid choice: '" not in message or "COMMAND" not in message:
        return ""
    import difflib

    word = message.split("invalid choice: '", 1)[1].split("'", 1)[0]
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    return f"; did you mean `workbench {near[0]}`?" if near else ""


def complain(message: str, *, hint: str = "") -> None:
    """Write an error in two lines on stderr: what is wrong, and the way out."""
    from workbench.report.text import clean

    lines = [f"workbench: {clean(message)}"] + ([f"  {clean(hint)}"] if hint else [])
    try:
        sys.stderr.write("\n".join(lines) + "\n")
    except (OSError, ValueError):  # nobody listens; the exit code still tells
        pass


def parser_for(words: list[str] | None = None) -> argparse.ArgumentParser:
    """
    Return the parser; only the command named in `words` has its arguments filled in (all of them when it is None).

    Importing every command's module to print the list of commands would make `--help` slow; and a command that is the first word needs no
    parser of the others: `workbench run` has a job that waits for it.
    """
    first = words[0] if words and words[0] in COMMANDS else None
    parser = Parser(
        prog="workbench",
        description="From the scattered evidence of a failed GPU job to one verdict: what failed first, where, why, what to do.",
        epilog=exits.table(),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, summary in COMMANDS.items():
        if first not in (None, name):
            continue
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=exits.table(name),
            formatter_class=_Help,
            allow_abbrev=False,
        )
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an internal error"
        )
        if words is None or name in words:
            importlib.import_module(f"workbench.cli.{name}").add_arguments(command)
    return parser


def split_program(words: list[str]) -> tuple[list[str], list[str]]:
    """Split off what stands behind ``--`` where a command runs another: none of its words is ours."""
    if words[:1] == ["run"] and "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return words, []


def run(words: list[str]) -> int:
    """Parse `words`, run the command, return its exit code."""
    words, program = split_program(words)
    debug = "--debug" in words
    try:
        parser = parser_for(words)
        options = parser.parse_args(words)
        options.program = program
        if options.command is None:
            parser.print_help(sys.stderr)
            return exits.USAGE
        code: int = importlib.import_module(f"workbench.cli.{options.command}").run(options)
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else exits.OK if stop.code is None else exits.USAGE
    except KeyboardInterrupt:
        complain("stopped")
        return exits.INTERRUPTED
    except BrokenPipeError:
        # the reader (head, less) went away: no message, and no second error when Python flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except WorkbenchError as error:
        if debug:
            raise
        complain(str(error), hint=error.hint)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        complain(
            f"internal error: {type(error).__name__}: {error}",
            hint="this is a defect of the workbench: run again with --debug and report the traceback and `workbench --version`",
        )
        return exits.INTERNAL
