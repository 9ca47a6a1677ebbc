"""Parts know each other in the directions of pyproject.toml; heavy libraries are imported where they are used only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "workbench").rglob("*.py"))


def top_level_imports(file: Path) -> set[str]:
    """Return what a module imports when it is imported itself, without what stands under TYPE_CHECKING or in functions."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_import_directions_hold() -> None:
    """The contracts of import-linter, as CI runs them."""
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize("file", [file for file in SOURCES if file.parent.name == "parse"], ids=lambda file: file.stem)
def test_parsers_import_no_pandas(file: Path) -> None:
    """A parser's import must stay cheap: it turns text into records, not into frames."""
    assert not {name for name in top_level_imports(file) if name.split(".")[0] in ("pandas", "numpy", "hyperscan")}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT / "workbench")))
def test_a_module_opens_with_one_sentence(file: Path) -> None:
    """Each file says what it turns into what, and postpones annotations."""
    tree = ast.parse(file.read_text(encoding="utf-8"))

    assert ast.get_docstring(tree), f"{file} has no docstring"
    if file.name != "__init__.py":
        assert "__future__" in top_level_imports(file)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT / "workbench")))
def test_a_file_stays_readable(file: Path) -> None:
    """No file is longer than 500 lines."""
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 500
