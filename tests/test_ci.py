"""The script of CI runs every test that `make test` leaves out: each folder with such tests is in one of its groups."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_MARKED = re.compile(r"pytest\.mark\.(?:live|slow)\b|^live = ", re.M)


def marked() -> set[str]:
    """Return the folders of tests that need a server, a browser or much time."""
    files = [
        file
        for file in (ROOT / "tests").glob("*/**/*.py")
        if "import pytest" in (text := file.read_text(encoding="utf-8")) and _MARKED.search(text)
    ]
    return {"/".join(file.relative_to(ROOT).parts[:2]) for file in files}


def test_no_folder_with_live_or_slow_tests_is_left_out_of_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    run = {folder for line in re.findall(r"^ +live_group .*$", script, re.M) for folder in re.findall(r"tests/\w+", line)}
    found = marked()
    assert found, "nothing is marked: this test looks for the wrong words"
    assert found - run == set()
    assert all((ROOT / folder).is_dir() for folder in run), "CI names a folder that is not there"
