"""Turn text into output a person or a pipe can use: colours when wanted, whole files or none, no encoding errors."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.errors import WorkbenchError

__all__ = ["color_wanted", "output", "width"]


def color_wanted(no_color: bool, tty: bool) -> bool:
    """Say whether to use colours."""
    # https://no-color.org and https://force-color.org: set and not empty; the option beats both
    if no_color or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return tty and os.environ.get("TERM") != "dumb"


def width(tty: bool) -> int:
    """Return the columns to write in: the terminal's within reason, 100 in a pipe."""
    return max(40, min(shutil.get_terminal_size((100, 24)).columns, 140)) if tty else 100


@contextmanager
def output(out: Path | None) -> Iterator[Callable[[str], None]]:
    """Give a function that writes and flushes; a file appears under its name only when it is complete."""
    if out is None:
        # evidence may hold what the terminal's encoding lacks; a question mark beats a traceback
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")

        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        yield write
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", errors="backslashreplace") as stream:

            def write_file(text: str) -> None:
                stream.write(text)
                stream.flush()

            yield write_file
        part.replace(out)
    except OSError as error:
        raise WorkbenchError(f"cannot write {out}: {error.strerror or error}", hint="give another --out") from error
    finally:
        part.unlink(missing_ok=True)
