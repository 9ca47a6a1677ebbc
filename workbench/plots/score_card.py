"""Turn a game day's score card into a strip: a column a round, a row a question, right and wrong told apart by colour, shape and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.plots.base import empty, figure_of, keys, note, plain
from workbench.plots.theme import FONT, theme

if TYPE_CHECKING:
    from bokeh.plotting import figure

__all__ = ["QUESTIONS", "score_card"]

# key of a round → (what is asked, value that is right)
QUESTIONS: Mapping[str, tuple[str, bool]] = {
    "cause_right": ("cause", True),
    "node_right": ("node", True),
    "retry_right": ("retry", True),
    "plan_right": ("plan", True),
    "innocent": ("nobody innocent", False),
}
MOST = 120  # rounds: more columns than that nobody tells apart


def score_card(card: Mapping[str, Any] | None, *, dark: bool = False, title: str = "Game day") -> figure:
    """
    Return the rounds of a game day.

    Parameters
    ----------
    card : Mapping or None
        As ``scorecard.json`` holds it (``workbench.gameday/1``).
    """
    rounds = list((card or {}).get("rounds") or ())
    if card is None or not rounds:
        return empty(title, "No round was played: workbench gameday plays some and writes scorecard.json.", dark=dark)
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, HoverTool, SingleIntervalTicker

    colours = theme(dark)
    shown = rounds[:MOST]
    totals = {key: sum(bool(one.get(key)) == good for one in rounds) for key, (_, good) in QUESTIONS.items()}
    words = {key: f"{word}  {totals[key]:,} of {len(rounds):,}" for key, (word, _) in QUESTIONS.items()}
    looks: dict[str, dict[str, list[Any]]] = {
        "right": {name: [] for name in ("x", "y", "truth", "said", "node", "blamed", "time", "actions", "dirt")},
        "wrong": {name: [] for name in ("x", "y", "truth", "said", "node", "blamed", "time", "actions", "dirt")},
    }
    for at, one in enumerate(shown, 1):
        seconds = [one.get(name) for name in ("detected", "judged", "planned")]
        for key, (_, good) in QUESTIONS.items():
            rows = looks["right" if bool(one.get(key)) == good else "wrong"]
            rows["x"].append(at)
            rows["y"].append(words[key])
            rows["truth"].append(plain(one.get("truth"), 60))
            rows["said"].append(f"{plain(one.get('said'), 60)} ({100 * float(one.get('confidence') or 0):.0f} %)")
            rows["node"].append(plain(one.get("node") or "none", 60))
            rows["blamed"].append(plain(one.get("blamed") or "none", 60))
            rows["time"].append(" + ".join("?" if part is None else f"{float(part):.3g} s" for part in seconds))
            rows["dirt"].append(plain(", ".join(map(str, one.get("dirt") or ())) or "nothing", 120))
            rows["actions"].append(plain(", ".join(map(str, one.get("actions") or ())) or "none", 120))
    made = figure_of(
        title, dark=dark, height=226, tools=False, x_range=(0.4, len(shown) + 0.6), y_range=list(reversed(list(words.values())))
    )
    drawn = {}
    for look, colour in (("right", colours.series[2]), ("wrong", colours.roles["cause"])):
        source = ColumnDataSource(looks[look], name=look)
        drawn[look] = made.rect(
            x="x", y="y", width=0.9, height=0.82, source=source, fill_color=colour, line_color=None, name=f"{look} cells"
        )
        if look == "wrong":
            made.text(
                x="x", y="y", text=value("✕"), source=source, text_align="center", text_baseline="middle", text_color=colours.card,
                text_font=value(FONT), text_font_size="12px",
            )  # fmt: skip
    made.add_tools(
        HoverTool(
            renderers=list(drawn.values()), visible=False,
            tooltips=[
                ("", "@truth"), ("judged", "@said"), ("node to blame", "@node"), ("blamed", "@blamed"), ("plan", "@actions"),
                ("wrong with the evidence", "@dirt"),
                ("known + judged + planned after", "@time"),
            ],
        )
    )  # fmt: skip
    made.xaxis.axis_label = "round"
    made.xaxis.ticker = SingleIntervalTicker(interval=max(1, len(shown) // 12), num_minor_ticks=0)
    made.grid.visible = False
    keys(made, {"right": colours.series[2], "wrong": colours.roles["cause"]})
    middle = (card.get("seconds") or {}).get("judged")
    told = [f"{len(rounds):,} rounds, seed {plain(card.get('seed'), 20)}"]
    told += [f"judged in {float(middle):.3g} s (median)"] if middle is not None else []
    told += [f"the first {MOST} are drawn"] if len(rounds) > MOST else []
    note(made, "; ".join(told), dark)
    return made
