"""Turn a stretch of work that makes many objects and no cycles into one that the garbage collector does not interrupt."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collector"]


@contextmanager
def no_collector() -> Iterator[None]:
    """Let the cyclic garbage collector rest: of the millions of objects of a large job it would look at each again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
