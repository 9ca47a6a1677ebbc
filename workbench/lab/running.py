"""Turn the name of a notebook and its parameters into a page or an executed notebook, as a person's run would give it."""

from __future__ import annotations

import ast
import difflib
import json
import re
import subprocess
import warnings
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import workbench
from workbench.errors import ParseError, SourceUnavailable, WorkbenchError

__all__ = ["Notebook", "notebooks", "run", "values_of"]

_MISSING = "pip install 'gpu-reliability-workbench[ui,lab]'"


class NotebookFailed(WorkbenchError):
    """A cell of it ended with an error."""

    exit_code = 65


class Notebook:
    """
    A notebook that comes with the package.

    Attributes
    ----------
    name, title, about : str
        Its name, its heading and the first sentence below that.
    parameters : mapping
        What may be set: name → default.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.name = file, file.stem
        document = json.loads(file.read_text(encoding="utf-8"))
        first = "".join(document["cells"][0]["source"])
        self.title = first.split("\n", 1)[0].lstrip("# ").strip()
        self.about = " ".join(first.split("\n\n", 1)[-1].split()).split(". ", 1)[0].rstrip(".")
        self.parameters: Mapping[str, Any] = {}
        for cell in document["cells"]:
            if "parameters" in cell.get("metadata", {}).get("tags", []):
                tree = ast.parse("".join(cell["source"]))
                self.parameters = {
                    node.targets[0].id: ast.literal_eval(node.value)
                    for node in tree.body
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
                }


def notebooks() -> dict[str, Notebook]:
    """
    Return the notebooks by name: of the wheel, or of the checkout beside the package.

    Raises
    ------
    SourceUnavailable
        There are none: the installation is not whole.
    """
    package = Path(workbench.__file__).resolve().parent
    for place in (package / "_notebooks", package.parent / "notebooks"):
        files = sorted(place.glob("*.ipynb"))
        if files:
            return {file.stem: Notebook(file) for file in files}
    raise SourceUnavailable("the notebooks are not installed", hint="install the wheel again, or run from a checkout")


def values_of(words: Iterable[str], notebook: Notebook) -> dict[str, Any]:
    """
    Return parameters from ``name=value`` as the notebook wants them: text stays text, numbers and flags are read as such.

    Raises
    ------
    ParseError
        It has no such parameter, or the value is of another kind.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, raw = word.partition("=")
        if not equals or name not in notebook.parameters:
            near = difflib.get_close_matches(name, notebook.parameters, n=1)
            raise ParseError(
                f"{notebook.name} has no parameter {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
                hint="; ".join(f"{key}={value!r}" for key, value in notebook.parameters.items()),
            )
        default = notebook.parameters[name]
        try:
            found[name] = raw if isinstance(default, str) else type(default)(ast.literal_eval(raw))
        except (ValueError, SyntaxError, TypeError):
            raise ParseError(f"{name}={raw!r} is no {type(default).__name__}", hint=f"such as {name}={default!r}") from None
    return found


def run(notebook: Notebook, values: Mapping[str, Any], *, kind: str = "html", seconds: float = 900.0) -> str:
    """
    Return the executed notebook as a page (``html``, without the code) or as a notebook (``ipynb``).

    Parameters
    ----------
    notebook : Notebook
    values : mapping
        Parameters, as `values_of` gives them.
    kind : str
        ``html`` or ``ipynb``.
    seconds : float
        How long a cell may take.

    Raises
    ------
    WorkbenchError
        Jupyter is not installed, or a cell ended with an error.
    """
    try:
        nbformat: Any = import_module("nbformat")
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError as error:
        raise WorkbenchError(f"notebooks need Jupyter, which is not installed: {error}", hint=_MISSING) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's parts, about each other
        document = nbformat.read(notebook.file, as_version=4)
        if values:
            _inject(document, values)
        client = NotebookClient(
            document, timeout=seconds, kernel_name="python3", resources={"metadata": {"path": str(Path.cwd())}}
        )
        try:
            client.execute(stderr=subprocess.DEVNULL)  # what the kernel has to say of itself; errors of cells come in messages
        except CellExecutionError as error:
            raise NotebookFailed(*_explained(notebook, error)) from None
        except (CellTimeoutError, DeadKernelError) as error:
            raise NotebookFailed(f"{notebook.name}: {type(error).__name__}", hint=f"a cell may take {seconds:g} s") from None
        if kind == "ipynb":
            return str(nbformat.writes(document)) + "\n"
        return _page(document, notebook)


def _inject(document: Any, values: Mapping[str, Any]) -> None:
    """Put the parameters into a cell of their own below the defaults, tagged as papermill does."""
    nbformat: Any = import_module("nbformat")
    text = "# parameters of this run\n" + "\n".join(f"{name} = {value!r}" for name, value in values.items())
    cell = nbformat.v4.new_code_cell(text, metadata={"tags": ["injected-parameters"]}, id="injected-parameters")
    place = next(at for at, one in enumerate(document.cells) if "parameters" in one.metadata.get("tags", []))
    document.cells.insert(place + 1, cell)


def _explained(notebook: Notebook, error: Any) -> tuple[str]:
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(getattr(error, "evalue", "") or error))
    return (f"{notebook.name}: {getattr(error, 'ename', 'error')}: {said.splitlines()[0] if said else ''}",)


def _page(document: Any, notebook: Notebook) -> str:
    """Return a page that asks for nothing: Jupyter's own would load two scripts from a CDN."""
    nbconvert: Any = import_module("nbconvert")
    exporter = nbconvert.HTMLExporter(exclude_input=True, exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.mathjax_url = exporter.require_js_url = exporter.jquery_url = exporter.mermaid_js_url = ""
    document.metadata["title"] = f"{notebook.title} – GPU Reliability Workbench"
    page, _ = exporter.from_notebook_node(document)
    # what is left of them are empty tags
    return re.sub(r'<script src=""[^>]*>\s*</script>', "", page)
