"""Turn plots into pages in Chromium: the dead rank is on the screen, clicks name it, hostile text stays text, nothing is asked of others."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from workbench import frames
from workbench.casefile.model import STATES, Activity
from workbench.plots.gpu_map import gpu_map
from workbench.plots.metrics import metric_panels
from workbench.plots.rank_map import rank_map
from workbench.plots.step_map import step_map
from workbench.plots.theme import PAGE_CSS, switch_script, theme
from workbench.plots.timeline import timeline

pytestmark = pytest.mark.live

START = 1_777_892_400.0
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> $$\\alpha$$ \x1b[31mred"


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open figures as one page of their own with BokehJS inside; in the end no page may have complained or asked anybody for anything."""
    from bokeh.embed import file_html
    from bokeh.layouts import column
    from bokeh.resources import INLINE

    tabs: list[tuple[Any, list[str]]] = []

    def make(*figures: Any) -> Any:
        page = tmp_path / f"{len(tabs)}.html"
        html = file_html(column(*figures, sizing_mode="stretch_width"), INLINE, "plots")
        page.write_text(
            html.replace(
                "</head>", f'<link rel="icon" href="data:,"><style>{PAGE_CSS}</style><script>{switch_script()}</script></head>'
            ),
            encoding="utf-8",
        )
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        problems: list[str] = []
        tab.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else problems.append(request.url),
        )
        # once Panel is imported, Bokeh's pages name Panel's own files, too, which lie beside no page of a test
        tab.on(
            "console",
            lambda message: (
                problems.append(message.text) if message.type == "error" and "ERR_FILE_NOT_FOUND" not in message.text else None
            ),
        )
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.goto(page.as_uri())
        tab.wait_for_function("() => window.Bokeh?.documents?.[0]?.is_idle", polling="raf")
        tab.wait_for_timeout(200)
        tabs.append((tab, problems))
        return tab

    yield make
    for tab, problems in tabs:
        tab.close()
        assert not problems


def job(count: int) -> tuple[Activity, pd.DataFrame, int]:
    dead = count // 3 + 1
    states = np.full((count, 240), STATES.index("running"), "uint8")
    states[dead, 120] = STATES.index("culprit")
    steps = np.tile(np.arange(240, dtype="float32"), (count, 1))
    steps[dead, 120:] = 120
    number = np.arange(count)
    ranks = pd.DataFrame(
        {
            "rank": number,
            "node": [HOSTILE if one // 8 == dead // 8 else f"node-{one // 8}" for one in number],
            "gpu_index": number % 8,
        }
    )
    return (
        Activity(number, START + np.arange(241) * 30.0, states, steps),
        ranks.astype({"rank": "Int64", "node": "string", "gpu_index": "Int64"}),
        dead,
    )


def seen(tab: Any, colour: str, top: float = 0.0) -> np.ndarray:
    """Return where pixels of a colour are on the screen, below a height: rows of x, y."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(tab.screenshot())).convert("RGB")).astype(int)
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    rows, columns = np.nonzero((np.abs(pixels - wanted) <= 2).all(axis=2))
    return np.stack([columns, rows], axis=1)[rows >= top]


FRAME = """() => { const view = Object.values(Bokeh.index)[0] ?? [...Bokeh.index][0]; const found = [];
  const walk = v => { if (v.model?.type?.endsWith('Figure') || v.model?.type === 'Plot') found.push(v);
                      for (const c of v.child_views ?? []) walk(c); };
  walk(view); return found.map(v => { const b = v.frame.bbox, r = v.el.getBoundingClientRect();
    return {left: r.left + b.left, top: r.top + b.top, width: b.width, height: b.height}; }); }"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("count", [64, 1000, 16_384])
def test_the_one_dead_rank_is_on_the_screen_and_a_click_names_it(show: Callable[..., Any], count: int, dark: bool) -> None:
    activity, ranks, dead = job(count)
    figure = rank_map(activity, ranks, dark=dark)

    tab = show(figure)

    (frame,) = tab.evaluate(FRAME)
    pooled = figure.select_one({"name": "map"}).data_source.data["image"][0].shape[0]
    assert pooled <= frame["height"]
    spot = seen(tab, theme(dark).states["culprit"], top=frame["top"] + 1)
    assert len(spot)
    tab.mouse.click(*(int(one) for one in spot[len(spot) // 2]))
    told = tab.evaluate(
        "() => { const s = Bokeh.documents[0].get_model_by_name('tapped').data; return [s.rank[0], s.state[0], s.gpu[0]]; }"
    )
    assert told == [dead, "culprit", dead % 8]


def test_hover_tells_rank_place_and_both_times_and_hostile_names_stay_text(show: Callable[..., Any]) -> None:
    activity, ranks, dead = job(64)
    tab = show(rank_map(activity, ranks))
    (frame,) = tab.evaluate(FRAME)
    (x, y) = seen(tab, theme(False).states["culprit"], top=frame["top"] + 1)[0]

    tab.mouse.move(int(x), int(y))
    tab.locator(".bk-Tooltip").wait_for()

    text = tab.locator(".bk-tooltip-content").first.inner_text()
    assert str(dead) in text
    assert "culprit" in text
    assert "2026-05-04 12:00:" in text
    assert "UTC" in text
    assert "<img src=x" in text
    assert tab.title() == "plots"


def test_hostile_lines_in_a_timeline_stay_text(show: Callable[..., Any]) -> None:
    row = dict.fromkeys([*frames.EVENTS, "lane", "evidence"])
    row |= {
        "time": pd.Timestamp(START, unit="s", tz="UTC"),
        "lane": "culprit",
        "evidence": 0,
        "role": "cause",
        "signature": HOSTILE,
        "text": HOSTILE,
        "count": 1,
    }
    told = pd.DataFrame([row | {"last": row["time"]}]).astype({"evidence": "Int64", "count": "Int64"})
    tab = show(timeline(told))
    (frame,) = tab.evaluate(FRAME)
    spot = seen(tab, theme(False).roles["cause"], top=frame["top"] + 1)
    middle = spot[np.abs(spot[:, 1] - np.median(spot[:, 1])) < 200]

    tab.mouse.move(int(np.median(middle[:, 0])), int(frame["top"] + frame["height"] * 0.4))
    tab.locator(".bk-Tooltip").wait_for()

    assert "<img src=x" in tab.locator(".bk-tooltip-content").first.inner_text()
    assert tab.title() == "plots"


def test_a_click_on_the_fleet_names_the_gpu(show: Callable[..., Any]) -> None:
    number = np.arange(16_384)
    health = np.full(len(number), "ok", object)
    health[9_003] = "critical"
    gpus = pd.DataFrame(
        {"node": [f"node-{one // 8}" for one in number], "gpu_index": number % 8, "health": health, "why": [None] * len(number)}
    )
    tab = show(gpu_map(gpus))
    (frame,) = tab.evaluate(FRAME)

    spot = seen(tab, theme(False).health["critical"], top=frame["top"] + 1)
    tab.mouse.click(*(int(one) for one in np.median(spot, axis=0)))

    told = tab.evaluate(
        "() => { const s = Bokeh.documents[0].get_model_by_name('tapped').data; return [s.node[0], s.gpu[0], s.state[0]]; }"
    )
    assert told == ["node-1125", 3, "critical"]


def test_a_page_turns_dark_and_light_again_without_a_server(show: Callable[..., Any]) -> None:
    from workbench.model import Gpu, Series

    activity, ranks, _ = job(64)
    times = START + np.arange(50) * 30.0
    series = [Series("DCGM_FI_DEV_GPU_TEMP", times, 60.0 + gpu + np.arange(50) % 7, node="a", gpu=Gpu(gpu)) for gpu in range(5)]
    panels = metric_panels(frames.metrics_frame(series), node="a", gpu=0, around=START + 600)
    tab = show(*panels, rank_map(activity, ranks), step_map(activity, ranks))
    light = [len(seen(tab, theme(dark).card)) for dark in (False, True)]

    tab.evaluate("switchPlots(true)")
    tab.wait_for_timeout(400)
    dark = [len(seen(tab, theme(dark).card)) for dark in (False, True)]
    assert len(seen(tab, theme(True).states["running"])) > 10_000
    # a line of one and a half pixels has few of its pure colour
    assert len(seen(tab, theme(True).series[0])) > 100
    assert not len(seen(tab, theme(False).series[0]))
    tab.evaluate("switchPlots(false)")
    tab.wait_for_timeout(400)

    assert light[0] > 50_000
    assert light[1] == 0
    assert dark[1] > 50_000
    # what is left of white is the page below the figures
    assert dark[0] < light[0] - 50_000
    again = [len(seen(tab, theme(dark).card)) for dark in (False, True)]
    assert again[1] == 0
    assert abs(again[0] - light[0]) < 200  # edges of letters
