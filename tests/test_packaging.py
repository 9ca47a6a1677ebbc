"""pyproject.toml, environment.yml, constraints.txt and the wheel agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
USERS = [*PROJECT["dependencies"], *(row for name, rows in EXTRAS.items() if name not in ("all", "dev") for row in rows)]


def requirement(text: str) -> tuple[str, str]:
    """Return a requirement's normalised name and its bounds."""
    match = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*([^;]*)", text)
    assert match
    return re.sub(r"[-_.]+", "-", match[1]).lower(), match[2].replace(" ", "")


def test_environment_yml_has_the_same_names_and_bounds() -> None:
    """Two lists of dependencies drift apart unless something compares them."""
    rows = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    pip = next(row["pip"] for row in rows if isinstance(row, dict))

    assert dict(requirement(row) for row in pip if not row.startswith("-e")) == dict(map(requirement, USERS))
    assert f"python{PROJECT['requires-python']}" in rows


def test_core_has_no_dashboard_and_no_jupyter() -> None:
    """The core install serves a GPU node."""
    names = {requirement(row)[0] for row in PROJECT["dependencies"]}

    assert not names & {"panel", "hvplot", "bokeh", "holoviews", "jupyterlab", "ipywidgets", "elasticsearch", "kubernetes"}


def test_all_is_everything_for_users() -> None:
    """`all` names every extra but `dev`."""
    inner = re.search(r"\[(.*)\]", EXTRAS["all"][0])

    assert inner
    assert set(inner[1].split(",")) == set(EXTRAS) - {"all", "dev"}


def test_every_core_dependency_is_imported_somewhere() -> None:
    """A dependency that nothing uses is weight on every GPU node."""
    modules = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml", "backports-zstd": "backports", "backports.zstd": "backports"}
    text = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "workbench").rglob("*.py"))
    planned = {"nvidia-ml-py"}  # comes into use with the device checks
    for name in {requirement(row)[0] for row in PROJECT["dependencies"]} - planned:
        module = modules.get(name, name.replace("-", "_"))
        assert re.search(rf"^\s*(?:import|from) {module}\b", text, re.MULTILINE), f"nothing imports {module}"


def test_constraints_pin_only_what_we_depend_on_or_what_that_needs() -> None:
    """Each line is `name==version`, with a marker where Python versions differ; no address of an index."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(
                r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+( ; python_version [<>=]+ '3\.\d+'( and python_version [<>=]+ '3\.\d+')?)?",
                line,
            ), line


def test_versions_of_python_agree() -> None:
    """What is declared is what the classifiers say."""
    minors = sorted(int(row.rsplit(".", 1)[1]) for row in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+", row))

    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_nothing_in_the_tree_names_this_machine_or_an_index() -> None:
    """A clone must work anywhere, with whatever index the user's pip is set up for."""
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    bad = re.compile("/work/" + "|index-" + "url|pypi" + r"\.org|files\.pythonhosted|(?:/root|/home)/[a-z.]", re.IGNORECASE)
    for name in tracked.stdout.splitlines():
        file = ROOT / name
        if (
            name.startswith("benchmarks/attribution/cases/")
            or not file.is_file()
            or file.suffix in (".png", ".gz", ".zst", ".pickle")
        ):
            continue
        if name.startswith(("tests/", "workbench/catalog/")):  # logs quote other people's paths
            continue
        assert not (hit := bad.search(file.read_text(encoding="utf-8", errors="replace"))), f"{name}: {hit and hit.group()}"


@pytest.mark.wheel
def test_the_wheel_holds_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """Tables, templates, shipped incidents and py.typed are in; tests, benchmarks and documents are not."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())

    for name in (
        "py.typed",
        "report/templates/report.html.j2",
        "report/templates/report.css",
        "catalog/xid.csv",
        "sources/kubernetes/rbac.yaml",
        "sources/kubernetes/rbac-writer.yaml",
        "deploy/daemonset.yaml",
        "deploy/npd.json",
        "deploy/npd-warnings.json",
        "deploy/slurm.sh",
        "catalog/__init__.py",
        "_panels/inbox.py",
        "views/static/shell.css",
        "views/static/shell.html.j2",
        "views/templates/inbox.j2",
        "serving/icon.svg",
    ):
        assert f"workbench/{name}" in names
    assert any(name.startswith("workbench/shipped/") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"workbench", "gpu_reliability_workbench"}
    assert wheel.stat().st_size < 12e6
