"""Documents say what the code does: generated pages are fresh, links lead somewhere, commands and options shown do exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli import command_names, entry, exits
from workbench.model import CLASSES, REMEDIATIONS, RETRIES
from workbench.report.verdict_json import failed

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "attribution" / "README.md"])
SHOWN = [
    (page, line.strip())
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    if re.match(r"\s*(?:\$ )?(?:[\w./ -]+ \| )?workbench [a-z]", line) and page.name not in ("cli.md", "CHANGELOG.md")
]


def test_generated_pages_are_fresh() -> None:
    """`make docs` writes them again."""
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", command_names())
def test_every_command_is_documented_twice(name: str) -> None:
    """In the reference, and where a newcomer reads."""
    assert f"## workbench {name}\n" in (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    assert any(
        f"workbench {name}" in page.read_text(encoding="utf-8")
        for page in (
            ROOT / "README.md",
            ROOT / "docs/getting-started.md",
            ROOT / "docs/live.md",
            ROOT / "docs/inbox.md",
            ROOT / "docs/health.md",
            ROOT / "docs/remediation.md",
            ROOT / "docs/checkpoints.md",
            ROOT / "docs/retries.md",
            ROOT / "docs/simulation.md",
            ROOT / "docs/run.md",
        )
    )


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=lambda value: str(value)[:60] if isinstance(value, str) else "")
def test_every_command_shown_is_accepted(page: Path, line: str) -> None:
    """A command line in a document parses: the command, its options and their choices exist."""
    command = re.sub(r"[…]", "x", line.removeprefix("$ ").split("|")[-1].strip())
    words = shlex.split(command.split("  #")[0], comments=True)[1:]

    entry.parser_for(None).parse_args(entry.split_program(words)[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture is a file of this repository."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_field_of_the_verdict_is_documented() -> None:
    """docs/reference/verdict.md names each field, class and word of advice."""
    text = (ROOT / "docs/reference/verdict.md").read_text(encoding="utf-8")

    for word in (*failed("x", "y"), *CLASSES, *RETRIES, *REMEDIATIONS):
        assert f"`{word}`" in text, word


def test_every_exit_code_is_documented() -> None:
    """The one table."""
    text = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")

    for code in exits.EXITS:
        assert f"| {code} |" in text


def test_make_targets_named_in_documents_exist() -> None:
    """`make x` in a document is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:`|^ {4}|\n {4})make ([a-z-]+)", page.read_text(encoding="utf-8")):
            assert target in targets, f"{page.name}: make {target}"


def test_the_first_screen_of_the_readme_has_its_parts() -> None:
    """One sentence, two commands, one verdict, one picture, three doors."""
    head = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:70])

    for part in ("make demo", "pip install", "What to do", "docs/img/report.png", "notebook", "dashboard", "command line"):
        assert part.lower() in head.lower(), part
