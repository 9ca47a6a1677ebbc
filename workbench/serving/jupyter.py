"""Turn JupyterLab's launcher tile into a dashboard of one's own: the entry point that jupyter-server-proxy asks."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

__all__ = ["server"]

OPTIONS = "WORKBENCH_JUPYTER"  # options of `workbench serve` to be used instead, in one line as a shell reads it
ICON = Path(__file__).parent / "icon.svg"


def server() -> dict[str, Any]:
    """
    Return what jupyter-server-proxy needs to know.

    The dashboard listens on a Unix socket in a folder of the user's own: on a machine that many share nobody else reaches it, and
    Jupyter's login is its login. What is shown is the inbox when there is one, else the shipped incidents; evidence below the folder that
    JupyterLab was started in may be opened by its path.
    """
    words = shlex.split(os.environ.get(OPTIONS, "")) or [*_shown(), "--root", os.getcwd()]
    return {
        "command": [
            sys.executable,
            "-m",
            "workbench",
            "serve",
            "--unix-socket",
            "{unix_socket}",
            "--prefix",
            "{base_url}workbench",
            # braces would be taken for names of jupyter-server-proxy's own
            *[word.replace("{", "{{").replace("}", "}}") for word in words],
        ],
        "unix_socket": True,
        "absolute_url": True,
        "timeout": 60,
        "new_browser_tab": True,
        "launcher_entry": {
            "title": "GPU Reliability Workbench",
            "icon_path": str(ICON),
            "path_info": "workbench/",
            "category": "Notebook",
        },
    }


def _shown() -> list[str]:
    """Return the options that show the inbox of the site's settings when there is one, else the demonstration."""
    from workbench.config import load_config
    from workbench.errors import WorkbenchError

    try:
        folder = Path(load_config(None)["inbox.folder"])
    except WorkbenchError:
        return ["--demo"]
    return ["--inbox", str(folder)] if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK) else ["--demo"]
