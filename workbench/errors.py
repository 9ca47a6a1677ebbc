"""
Turn what went wrong into errors that carry what a person needs next.

* WorkbenchError               one `except` for everything raised here on purpose
  x SourceError                something asked did not answer properly
    + SourceUnavailable        it is not there, or refused
  x ParseError                 a file is not what it seems (carries file, line, hint)
  x CatalogError               a knowledge table is wrong (raised at load, never at triage)
  x ConfigError                a setting is wrong (names the key and where it was set)
"""

from __future__ import annotations

__all__ = ["CatalogError", "ConfigError", "ParseError", "SourceError", "SourceUnavailable", "WorkbenchError"]


class WorkbenchError(Exception):
    """Base of all errors raised by the workbench on purpose; `exit_code` is what the command line ends with."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SourceError(WorkbenchError):
    """A source did not answer properly."""

    exit_code = 69


class SourceUnavailable(SourceError):
    """A source is not there, or may not be read."""


class ParseError(WorkbenchError):
    """A document is not what it seems; carries the file and the line."""

    exit_code = 65

    def __init__(self, message: str, *, file: str = "", line: int | None = None, hint: str = "") -> None:
        where = f"{file}:{line}: " if line is not None else f"{file}: " if file else ""
        super().__init__(where + message, hint=hint)
        self.file = file
        self.line = line


class CatalogError(WorkbenchError):
    """A row of a knowledge table is wrong."""

    exit_code = 78


class ConfigError(WorkbenchError):
    """A setting is wrong."""

    exit_code = 78
