"""
Turn a real-time signal into a dump of every thread's stack: Python runs this file at its start when this folder is on PYTHONPATH and
WORKBENCH_STACKS names a folder.

It stands alone, since the job's interpreter need not have this package. `workbench run --stacks signal` puts it there; nothing else does.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, without importing it
if TYPE_CHECKING:
    from typing import IO


def _register() -> None:
    import os

    folder = os.environ.get("WORKBENCH_STACKS")
    if not folder:
        return
    import faulthandler
    import signal

    number = (
        signal.SIGRTMIN + 9
    )  # SIGUSR1 and SIGUSR2 belong to schedulers and to the job (Lightning, submitit); this one to nobody
    if signal.getsignal(number) is not signal.SIG_DFL:
        return
    kept: list[IO[str]] = []  # never looked at: annotations of locals are not run

    def announce() -> None:
        # the file is the sign for the sender that the signal is caught here, and where to read the answer
        path = os.path.join(folder, f"{os.getpid()}.dump")
        kept[:] = [open(path, "w")]  # noqa: SIM115 - open as long as the process lives
        faulthandler.register(number, file=kept[0], all_threads=True, chain=False)

    def announce_child() -> None:
        try:
            announce()
        except Exception:
            faulthandler.unregister(number)  # else the child would answer into its parent's file

    announce()
    os.register_at_fork(after_in_child=announce_child)


def _one_name() -> None:
    """
    Take away the older one of two names that `workbench run` gave the flight recorder's size, where torch knows the newer one.

    It would make each rank warn of a name that its owner never wrote. Known since PyTorch 2.8
    (https://github.com/NVIDIA/nvidia-resiliency-ext/pull/163, 2025-09).
    """
    import os
    import sys

    old, new = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
    if not os.environ.get("WORKBENCH_RUN") or os.environ.get(old) is None or os.environ.get(old) != os.environ.get(new):
        return
    for entry in sys.path:
        try:
            with open(os.path.join(entry, "torch", "version.py")) as file:
                words = file.read(4096).partition("__version__ = ")[2][1:24].split(".")
        except OSError:
            continue
        if (int(words[0]), int(words[1])) >= (2, 8):
            del os.environ[old]
        return


def _next() -> None:
    """Run the `sitecustomize` that this file hides."""
    import os
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    own = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if os.path.abspath(entry or ".") != own])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


for _part in (_one_name, _register):
    try:
        _part()
    except Exception:  # a job must start, with or without its dumps
        pass
_next()
