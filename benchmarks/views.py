"""
Turn an invented job of 16,384 ranks into maps by us and by hvPlot, and into ratios of their time, size, truth and first paint.

    python benchmarks/views.py ours|hvplot RANKS     # one map, in this process: seconds (first, then), bytes of HTML, peak kept
    python benchmarks/bench.py --only heat-vs-hvplot [--browser]
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.bench import Row  # noqa: E402
from benchmarks.browsing import CHROMIUM, browser  # noqa: E402

RANKS, COLUMNS = 16_384, 240


def invented(ranks: int) -> tuple[Any, int]:
    """Return what `ranks` ranks did in two hours, where one of them died for one piece of time, and that rank."""
    from workbench.casefile.model import Activity
    from workbench.plots.theme import STATES

    dead = ranks // 3 + 5
    states = np.full((ranks, COLUMNS), STATES.index("running"), "uint8")
    states[:, :3] = STATES.index("starting")
    slow = dead + 64
    states[slow : slow + 8, 150:200] = STATES.index("silent")
    states[dead, 170] = STATES.index("culprit")  # one cell of four million
    return Activity(np.arange(ranks), 1_777_892_400.0 + np.arange(COLUMNS + 1) * 30.0, states), dead


def placement(ranks: int) -> Any:
    """Return where the ranks run, eight to a node: our map names node and GPU on hover."""
    import pandas as pd

    names = [f"gpu-node-{rank // 8:04d}" for rank in range(ranks)]
    numbers = pd.array(np.arange(ranks), dtype="Int64")
    return pd.DataFrame({"rank": numbers, "node": pd.array(names, dtype="string"), "gpu_index": numbers % 8})


def ours(ranks: int, resources: Any) -> tuple[str, float, float]:
    """Return our map as HTML, the seconds it took, and the share of the true peak that is drawn, at the right rank."""
    from bokeh.embed import file_html

    from workbench.plots.rank_map import rank_map

    activity, dead = invented(ranks)
    placed = placement(ranks)
    begun = time.perf_counter()
    figure = rank_map(activity, placed)
    html = file_html(figure, resources, "ours")
    seconds = time.perf_counter() - begun
    data = figure.select_one({"name": "map"}).data_source.data
    image, who = data["image"][0], data["who"][0]
    at = np.unravel_index(int(image.argmax()), image.shape)
    kept = float(image[at]) / float(activity.states.max()) if int(who[at]) == dead else 0.0
    return html, seconds, kept


def peer(ranks: int, resources: Any) -> tuple[str, float, float]:
    """Return hvPlot's heat map of the same as HTML, the seconds it took, and the share of the true peak that is drawn."""
    import holoviews as hv
    import hvplot.pandas  # noqa: F401 — gives frames their .hvplot
    import pandas as pd
    from bokeh.embed import file_html

    activity, _ = invented(ranks)
    frame = pd.DataFrame(
        {
            "rank": np.repeat(activity.ranks, COLUMNS),
            "time": np.tile(pd.to_datetime(activity.edges[:-1], unit="s"), ranks),
            "state": activity.states.ravel(),
        }
    )
    begun = time.perf_counter()
    figure = hv.render(frame.hvplot.heatmap(x="time", y="rank", C="state"), backend="bokeh")
    html = file_html(figure, resources, "hvplot")
    return html, time.perf_counter() - begun, 1.0


def _one(which: str, ranks: int, runs: int) -> dict[str, Any]:
    """Measure one map in this process: the first time, the best of the times after it, the size."""
    from bokeh.resources import CDN

    make = {"ours": ours, "hvplot": peer}[which]
    seconds, html, kept = [], "", 0.0
    for _ in range(runs + 1):
        html, took, kept = make(ranks, CDN)
        seconds.append(took)
    return {"first": seconds[0], "then": min(seconds[1:] or seconds), "bytes": len(html), "kept": kept}


def compare(quick: bool) -> list[Row]:
    """Return ratios of time and of size against hvPlot, and whether the dead rank is still there."""

    def measured(which: str, ranks: int, runs: int) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, __file__, which, str(ranks), str(runs)], capture_output=True, text=True, check=False, cwd=ROOT
        )
        if done.returncode:
            raise SystemExit(f"benchmarks/views.py {which} failed: {done.stderr[-400:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    # hvPlot takes 17 s and 3 GB for all of them; its time and size grow with the cells, so a short run draws a part and counts it up
    part = 8 if quick else 1
    mine, theirs = measured("ours", RANKS, 5), measured("hvplot", RANKS // part, 1)
    seconds, size = theirs["then"] * part, theirs["bytes"] * part
    counted = f"hvPlot drew {RANKS // part:,} ranks, counted up ×{part}" if part > 1 else f"{RANKS:,} ranks × {COLUMNS}"
    gate = "" if mine["kept"] == 1.0 else f"of the dead rank {mine['kept']:.2f} is drawn"
    return [
        Row(
            "heat-vs-hvplot",
            seconds / mine["then"],
            50,
            True,
            f"{mine['then']:.3f} s",
            f"{seconds:.1f} s",
            gate,
            f"{counted}, HTML",
        ),
        Row(
            "heat-size",
            size / mine["bytes"],
            20,
            True,
            f"{mine['bytes'] / 1e6:.2f} MB",
            f"{size / 1e6:.1f} MB",
            "",
            "HTML without BokehJS",
        ),
        Row("heat-truth", mine["kept"], 1.0, True, "peak drawn", "true peak", gate, "one cell of four million, at its rank"),
    ]


def paint(runs: int) -> list[Row]:
    """Return the ratio of first paint in Chromium, BokehJS inline, against a Bokeh figure with nothing on it."""
    if importlib.util.find_spec("playwright") is None:
        return [Row("heat-paint", None, 1.5, False, note="playwright is missing: pip install playwright")]
    if not Path(CHROMIUM).exists():
        return [Row("heat-paint", None, 1.5, False, note=f"{CHROMIUM} is missing: apt install chromium")]
    from bokeh.embed import file_html
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    from workbench.plots.theme import theme

    blank = figure(height=420, sizing_mode="stretch_width")
    blank.scatter([0, 1], [0, 1], alpha=0)
    pages = {"ours": ours(RANKS, INLINE)[0], "blank": file_html(blank, INLINE, "blank")}
    best = dict.fromkeys(pages, float("inf"))
    gate = ""
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for name, html in pages.items():
            (Path(folder) / f"{name}.html").write_text(html, encoding="utf-8")
        for turn in range(runs + 1):
            for name in pages:
                tab = chromium.new_page(viewport={"width": 1200, "height": 900})
                tab.goto(f"file://{folder}/{name}.html", wait_until="commit")
                drawn = tab.wait_for_function("() => window.Bokeh?.documents?.[0]?.is_idle && performance.now()", polling="raf")
                if turn:
                    best[name] = min(best[name], float(drawn.json_value()))
                elif name == "ours":
                    tab.wait_for_timeout(300)
                    gate = (
                        ""
                        if _seen(tab.screenshot(), theme(False).states["culprit"])
                        else "no pixel on the screen shows the dead rank"
                    )
                tab.close()
    note = f"best of {runs}, {len(pages['ours']) / 1e6:.1f} MB with BokehJS"
    return [
        Row(
            "heat-paint",
            best["ours"] / best["blank"],
            1.5,
            False,
            f"{best['ours']:.0f} ms",
            f"{best['blank']:.0f} ms",
            gate,
            note,
        )
    ]


def _seen(picture: bytes, colour: str) -> bool:
    """Return whether a picture has pixels of a colour in its plot (below and right of the legend's own, which has it as well)."""
    import io

    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return bool((pixels[130:] == wanted).all(axis=2).any())


if __name__ == "__main__":
    print(json.dumps(_one(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)))
