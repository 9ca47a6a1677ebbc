"""Turn paths given by a person into the list of regular files under them, without following links out or around in loops."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from workbench.model import Problem

__all__ = ["Found", "find"]

MIB = 1 << 20

_NO_EVIDENCE = re.compile(
    r"\.(?:png|jpe?g|gif|svg|webp|ico|pdf|mp4|webm|safetensors|pt|pth|ckpt|onnx|npy|npz|h5|hdf5|gguf|tflite|pyc|so|o|a|whl|deb|rpm|ttf|woff2?)$",
    re.I,
)
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "lost+found"})


@dataclass(slots=True)
class Found:
    """A file to read: its name in reports, where it is (``-`` for standard input), its size in bytes and its time."""

    name: str
    path: str
    size: int
    mtime: float | None


def find(paths: Iterable[str | os.PathLike[str]], most: int) -> tuple[list[Found], list[Problem]]:
    """
    Return the files under some paths, in order of their names, and what is not used of them.

    Links out of a folder are not followed, nor is anything read twice; a folder may hold at most `most` files.
    """
    roots = [os.fspath(path) for path in paths]
    found: list[Found] = []
    problems: list[Problem] = []
    left_out = 0
    for root in roots:
        if root == "-":
            found.append(Found("stdin", "-", 0, None))
            continue
        prefix = os.path.basename(os.path.normpath(root)) + "/" if len(roots) > 1 else ""
        try:
            state = os.stat(root)
        except OSError as error:
            problems.append(Problem(root, f"it cannot be read: {error.strerror}", "check the path and its permissions"))
            continue
        if not stat.S_ISDIR(state.st_mode):
            name = os.path.basename(root) or root
            _take(found, problems, name, root, state)
            continue
        before = len(found) + len(problems)
        left_out += _walk(root, prefix, found, problems, most)
        if len(found) + len(problems) == before:
            problems.append(
                Problem(
                    root,
                    "the folder is empty",
                    "give a folder with logs, kernel logs, metrics or scheduler output, or a single log file",
                    status="missing",
                )
            )
    if left_out:
        problems.append(
            Problem(
                roots[0],
                f"{left_out} files that are no evidence (hidden, images, model weights) were left out",
                "give such a file by its own path",
                status="ok",
            )
        )
    found.sort(key=lambda each: each.name)
    return found, problems


def _walk(root: str, prefix: str, found: list[Found], problems: list[Problem], most: int) -> int:
    left_out = 0
    real_root = os.path.realpath(root)

    def unreadable(error: OSError) -> None:
        problems.append(
            Problem(
                _relative(error.filename or root, root, prefix),
                f"the folder cannot be read: {error.strerror}",
                "check its permissions",
            )
        )

    for folder, folders, files in os.walk(root, onerror=unreadable):
        kept = []
        for name in sorted(folders):
            path = os.path.join(folder, name)
            if name.startswith(".") or name in _SKIPPED_FOLDERS:
                continue
            if os.path.islink(path):
                # links inside lead to what is read anyway (or around in a loop); links outside are not this incident's
                if not _inside(path, real_root):
                    problems.append(_outside(_relative(path, root, prefix)))
                continue
            kept.append(name)
        folders[:] = kept
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.startswith("."):
                left_out += 1
                continue
            relative = _relative(path, root, prefix)
            try:
                link = os.path.islink(path)
                if link and not _inside(path, real_root):
                    if os.path.exists(path):
                        problems.append(_outside(relative))
                    else:
                        problems.append(
                            Problem(relative, "it is a link that leads nowhere", "copy the file itself into the folder")
                        )
                    continue
                if link:
                    continue
                state = os.stat(path)
            except OSError as error:
                problems.append(Problem(relative, f"it cannot be read: {error.strerror}", "check its permissions"))
                continue
            if _NO_EVIDENCE.search(name) or (name.endswith(".bin") and state.st_size > MIB):
                left_out += 1
                continue
            if len(found) >= most:
                problems.append(
                    Problem(root, f"there are more than {most} files; the rest is not read", "give the folder of one job")
                )
                return left_out
            _take(found, problems, relative, path, state)
    return left_out


def _relative(path: str, root: str, prefix: str) -> str:
    return prefix + os.path.relpath(path, root).replace(os.sep, "/")


def _inside(path: str, real_root: str) -> bool:
    real = os.path.realpath(path)
    return os.path.exists(real) and os.path.commonpath([real, real_root]) == real_root


def _outside(name: str) -> Problem:
    return Problem(
        name, "it is a link that leads out of the folder; it is not followed", "copy what it points to into the folder"
    )


def _take(found: list[Found], problems: list[Problem], name: str, path: str, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        problems.append(
            Problem(name, "it is a pipe, socket or device, no file", "save its output to a file, or pipe it in and give -")
        )
    else:
        found.append(Found(name, path, state.st_size, state.st_mtime))
