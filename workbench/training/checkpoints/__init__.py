"""
Turn a file or folder into the checkpoints in it: which can be restored, of which step, and what is wrong with the others.

Nothing is executed and only headers are read: a pickle is interpreted without looking up what it names, of an archive the directory
is read, of a folder of shards the names, sizes and headers.
"""

from __future__ import annotations

from workbench.training.checkpoints.order import newest, sort
from workbench.training.checkpoints.record import STATES, Checkpoint
from workbench.training.checkpoints.walk import inspect

__all__ = ["STATES", "Checkpoint", "inspect", "newest", "sort"]
