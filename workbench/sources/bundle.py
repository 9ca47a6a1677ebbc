"""Turn an incident folder into one file that can be sent, and tell by its name which kind of file that is."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from workbench.errors import ConfigError

__all__ = ["SUFFIXES", "is_bundle", "pack"]

SUFFIXES = (".tar.zst", ".tar.gz", ".tgz", ".tar", ".zip")


def is_bundle(path: str | Path) -> bool:
    """Tell whether a name is that of an archive; every other name is that of a folder."""
    return str(path).endswith(SUFFIXES)


def pack(folder: Path, out: Path) -> Path:
    """
    Write all files of an incident folder into one archive and return its path; it appears under its name when it is whole.

    Parameters
    ----------
    folder : Path
        The incident folder. Its files keep their names, without the folder's own.
    out : Path
        Ends with one of `SUFFIXES`.

    Raises
    ------
    ConfigError
        The name ends otherwise.
    """
    if not is_bundle(out):
        raise ConfigError(f"{out}: the name tells no kind of archive", hint=f"end it with one of {', '.join(SUFFIXES)}")
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".partial"))
    try:
        if out.name.endswith(".zip"):
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in files:
                    archive.write(path, path.relative_to(folder).as_posix())
        else:
            with _compressed(partial, out.name) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
                for path in files:
                    archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_nobodys)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return out


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""  # who collected is nobody's business
    member.mode = 0o644
    return member


@contextmanager
def _compressed(path: Path, name: str) -> Iterator[IO[bytes]]:
    if name.endswith(".zst"):
        try:
            from compression import zstd  # the standard library has it from Python 3.14
        except ImportError:
            from backports import zstd
        library: Any = zstd
        with library.ZstdFile(path, "w") as stream:
            yield stream
    elif name.endswith("gz"):
        import gzip

        with gzip.GzipFile(path, "wb", mtime=0) as stream:
            yield stream  # type: ignore[misc]
    else:
        with path.open("wb") as plain:
            yield plain
