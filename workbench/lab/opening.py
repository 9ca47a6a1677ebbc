"""Turn what a notebook's parameters name into objects to look at: an incident, a job, a fleet, a node's findings, facts of a postmortem."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import workbench.lab.accessor  # noqa: F401  (`df.fleet` on every frame)
from workbench.errors import SourceUnavailable

if TYPE_CHECKING:
    import pandas as pd

    from workbench.casefile.model import CaseFile
    from workbench.config import Config
    from workbench.remediation.model import FleetState
    from workbench.report.facts import Facts
    from workbench.site.demo import Demo
    from workbench.site.live import Live
    from workbench.site.model import Snapshot
    from workbench.site.poller import Poller

__all__ = ["case", "facts", "findings", "fleet_of", "snapshot", "start", "still"]


def start(*, views: bool = True) -> None:
    """
    Make a notebook ready: views and figures show themselves, with nothing loaded from outside, and frames are wide enough to read.

    Parameters
    ----------
    views : bool
        Whether there will be plots or views: their scripts (7 MB) are put into the notebook once, so that it works offline, in an
        exported page, too.
    """
    import pandas as pd

    pd.options.display.max_colwidth = 120
    pd.options.display.max_rows = 30
    if not views:
        return
    import panel as pn
    from bokeh.models import Model

    # all that shows itself must be known before the scripts are put in: what comes later would load them again, from outside
    import workbench.views.fleet
    import workbench.views.incident
    import workbench.views.node  # noqa: F401

    try:
        from IPython import get_ipython
        from IPython.utils.capture import capture_output
    except ImportError:
        return
    # hvPlot loads Bokeh's scripts from a CDN when it is imported, and forgets before each cell that it was, to do so again
    with capture_output():
        import hvplot
        import hvplot.pandas
    hvplot._module_extensions.clear()
    pn.extension._loaded = hvplot._hv.extension._loaded = False
    pn.extension("tabulator", inline=True, notifications=False)
    hvplot._hv.extension._loaded = True
    shell = get_ipython()  # type: ignore[no-untyped-call, unused-ignore]
    if shell is not None:
        # a Bokeh figure alone shows its name only
        shell.display_formatter.mimebundle_formatter.for_type(
            Model, lambda made, **options: pn.pane.Bokeh(made, sizing_mode="stretch_width")._repr_mimebundle_(**options)
        )


def case(incident: str = "", *, job: str = "", config: str = "", since: str = "", until: str = "") -> CaseFile:
    """
    Return the case file of an incident, or of a job on a running site.

    Parameters
    ----------
    incident : str
        A name of `workbench examples`, a folder or archive with evidence, a saved case, or ``inbox:ID``.
    job : str, optional
        A job's name instead: what a running site knows of it is collected now (``workbench.toml`` says where).
    config : str, optional
        The file of settings; default as for the command line.
    since, until : str, optional
        The window in which the job is looked for, as on the command line: ``6h`` ago, or ``2026-05-04T10:00Z``.

    Raises
    ------
    SourceUnavailable
        There is nothing of that name.
    """
    from workbench.casefile import open_path
    from workbench.shipped import example_path, examples

    if job:
        return _collected(job, _config(config), since, until)
    if incident in examples():
        return open_path(example_path(incident))
    if incident.startswith("inbox:"):
        from workbench.inbox.store import Inbox

        return Inbox(str(_config(config)["inbox.folder"])).case(incident.removeprefix("inbox:"))
    if not incident or not Path(incident).exists():
        raise SourceUnavailable(
            f"{incident or 'no incident was named'}: no such folder, file or example",
            hint=f"give a path, inbox:ID, or one of {', '.join(examples())}",
        )
    return open_path(incident)


def snapshot(source: str = "demo", *, config: str = "", gpus: int = 1024, node: str = "") -> Snapshot:
    """
    Return a fleet as it is now.

    Parameters
    ----------
    source : str
        ``demo`` (invented, and says so) or ``live`` (the site of the configuration).
    config : str, optional
        The file of settings.
    gpus : int
        Size of the demo.
    node : str, optional
        A node that is looked at: its last hour is part of it.
    """
    asked: Demo | Live
    if source == "demo":
        from workbench.site.demo import Demo

        asked = Demo(gpus)
    elif source == "live":
        from workbench.site.live import Live

        asked = Live(_config(config))
    else:
        raise SourceUnavailable(f"{source!r} is no source of a fleet", hint="demo or live")
    asked.watch([node] if node else [])
    return asked()


def still(shown: Snapshot) -> Poller:
    """Return what gives views of a fleet always the same snapshot, so that a page agrees with the tables beside it."""
    from workbench.site.poller import Poller

    poller = Poller(lambda: shown, period=shown.period)
    poller.poll()
    return poller


def findings(kept: str = "", *, node: str = "", config: str = "") -> pd.DataFrame:
    """
    Return what the checks say, as a frame, worst first.

    Parameters
    ----------
    kept : str
        A folder, archive or example with kept kernel logs and outputs of nvidia-smi or dcgmi; empty: this machine, by the checks that
        only look.
    node : str, optional
        Of this node only.
    """
    import pandas as pd

    from workbench.shipped import example_path, examples

    settings = _config(config).section("health")
    if kept:
        from workbench.health.folder import check_folder

        found = check_folder(example_path(kept) if kept in examples() else kept, settings=settings)
    else:
        from workbench.health import run

        found = run("running", settings=settings)
    rows = []
    for one in found:
        if not node or one.node == node:
            gpu = one.gpu.as_dict() if one.gpu else {"index": None, "uuid": None, "pci": None}
            row = {key: value for key, value in one.to_dict().items() if key != "gpu"}
            rows.append({**row, "gpu_index": gpu["index"], "gpu_uuid": gpu["uuid"], "pci": gpu["pci"]})
    columns = (
        "node", "check", "status", "gpu_index", "part", "summary", "class", "action", "required", "hint", "code", "evidence", "path",
        "since", "gpu_uuid", "pci",
    )  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(columns))
    frame["gpu_index"] = frame["gpu_index"].astype("Int64")
    frame["since"] = pd.to_datetime(frame["since"], unit="s", utc=True)
    return frame


def fleet_of(fleet: Snapshot) -> FleetState:
    """
    Return a snapshot as what plans are made of, to see what would be planned.

    It knows neither boots nor running work: what acts asks the scheduler itself (`workbench plan`).
    """
    from workbench.remediation.model import FleetState, NodeState

    nodes = {}
    for row in fleet.nodes.to_dict("records"):
        name = str(row["node"])
        held = row["held_by"] if isinstance(row["held_by"], str) else ""
        nodes[name] = NodeState(
            name,
            uid=name,
            schedulable=bool(row["schedulable"]) if row["schedulable"] in (True, False) else True,
            owner=held,
            pool=_text(row["pool"]),
            zone=_text(row["zone"]),
            sku=_text(row["sku"]),
            gpus=int(row["gpus"]) if isinstance(row["gpus"], int) else 0,
            environment="cloud",
        )
    return FleetState(fleet.time, nodes, fleet.name)


def facts(case: CaseFile, *, prices: Mapping[str, str] | None = None, journal: str = "", config: str = "") -> Facts:
    """
    Return the facts of a postmortem, without secrets, people and the names that the site lists.

    Parameters
    ----------
    case : CaseFile
    prices : mapping, optional
        Price of a GPU-hour by product, ``default`` and ``currency``; default the site's (``report.prices``).
    journal : str, optional
        The remediation journal; default none is read.
    """
    from workbench.report.facts import gather
    from workbench.report.redact import names_in, redact

    settings = _config(config)
    lines: list[dict[str, Any]] | None = None
    if journal:
        from workbench.remediation.journal import Journal

        lines = [entry.to_dict() for entry in Journal(Path(journal)).entries()]
    people = [str(case.job["user"])] if case.job.get("user") else []
    return gather(
        case.verdict,
        made=time.time(),
        job=case.job,
        impact=case.impact,
        journal=lines,
        prices=prices or settings["report.prices"],
        hide=redact(names_in(settings["report.redact"] or ()), people=people),
    )


def _config(file: str) -> Config:
    from workbench.config import load_config

    return load_config(file or None, profile=None, flags={})


def _collected(job: str, config: Config, since: str, until: str) -> CaseFile:
    from workbench.casefile import open_path
    from workbench.casefile.opening import cache_folder
    from workbench.config import moment_of
    from workbench.live import collect, scope_for

    now = time.time()
    try:
        begin, end = (moment_of(one, now) if one else None for one in (since, until))
    except ValueError as error:
        raise SourceUnavailable(str(error), hint="since and until: 6h (ago), 2026-05-04 or 2026-05-04T10:00Z") from None
    scope = scope_for(job, config, since=begin, until=end)
    place = (
        cache_folder().parent
        / "collected"
        / f"{''.join(c if c.isalnum() or c in '-_.' else '_' for c in job)[:80]}-{int(now)}.tar.zst"
    )
    place.parent.mkdir(parents=True, exist_ok=True)
    return open_path(collect(scope, place, config).path)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
