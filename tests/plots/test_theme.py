"""Turn each colour into what people with colour blindness see of it, and prove that words are still told apart."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from workbench import model
from workbench.casefile import model as casefile
from workbench.plots import hypotheses, theme, timeline
from workbench.plots.base import empty, figure_of, keys, mark, note
from workbench.site import model as site

# Machado, Oliveira, Fernandes 2009, severity 1.0, in linear RGB
SEEN = {
    "all three cones": np.eye(3),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
# Ottosson 2020: linear RGB → cones → OKLab; a distance of 0.02 is just seen side by side
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour: str, by: str = "all three cones") -> np.ndarray:
    return TO_LAB @ np.cbrt(TO_CONES @ np.clip(SEEN[by] @ linear(colour), 0, 1))


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("by", SEEN)
@pytest.mark.parametrize("table", ["states", "health", "causes", "roles", "lag", "series"])
@pytest.mark.parametrize("dark", [False, True])
def test_any_two_words_of_a_table_are_told_apart_by_everybody(dark: bool, table: str, by: str) -> None:
    colours = getattr(theme.theme(dark), table)
    colours = dict(colours) if hasattr(colours, "items") else dict(enumerate(colours))

    near = {
        pair: float(np.linalg.norm(lab(colours[pair[0]], by) - lab(colours[pair[1]], by))) for pair in combinations(colours, 2)
    }

    assert min(near.values()) >= 0.085, min(near, key=lambda pair: near[pair])


@pytest.mark.parametrize("dark", [False, True])
def test_what_is_worst_stands_out_from_what_is_well_by_lightness_alone(dark: bool) -> None:
    colours = theme.theme(dark)

    def light(colour: str) -> float:
        return float(lab(colour)[0])

    well = light(colours.states["running"])
    assert abs(light(colours.states["culprit"]) - well) >= 0.4
    assert abs(light(colours.states["failed"]) - well) >= 0.1
    assert abs(light(colours.health["critical"]) - light(colours.health["ok"])) >= 0.15


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_and_markers_of_evidence_can_be_seen(dark: bool) -> None:
    colours = theme.theme(dark)

    for behind in (colours.card, colours.page):
        assert contrast(colours.ink, behind) >= 7  # WCAG 2.2 AAA
        assert contrast(colours.soft, behind) >= 4.5  # AA
        assert contrast(colours.accent, behind) >= 4.5
    assert all(contrast(colours.roles[role], colours.card) >= 2.3 for role in colours.roles)


def test_each_word_has_a_shape_of_its_own_too() -> None:
    assert set(theme.STATE_MARKERS) == set(theme.STATES)
    assert len(set(theme.STATE_MARKERS.values())) == len(theme.STATES)
    assert set(theme.HEALTH_MARKERS) == set(theme.HEALTH)
    assert len(set(theme.HEALTH_MARKERS.values())) == len(theme.HEALTH)
    assert set(theme.ROLE_MARKERS) == set(model.ROLES)
    assert len(set(theme.ROLE_MARKERS.values())) == len(model.ROLES)


def test_the_words_are_those_of_the_case_file_and_of_the_fleet_in_their_order() -> None:
    assert theme.STATES == casefile.STATES
    assert theme.HEALTH == site.HEALTH
    assert timeline.LANES == casefile.LANES
    assert hypotheses.CAUSES == model.CAUSES
    for dark in (False, True):
        assert set(theme.theme(dark).states) == set(casefile.STATES)
        assert set(theme.theme(dark).health) == set(site.HEALTH)
        assert set(theme.theme(dark).causes) == set(model.CAUSES)


def test_colours_of_status_are_borrowed_by_nothing_else() -> None:
    for dark in (False, True):
        colours = theme.theme(dark)
        reserved = {*colours.states.values(), *colours.health.values()}
        rest = [
            colours.page,
            colours.card,
            colours.ink,
            colours.soft,
            colours.line,
            colours.accent,
            colours.band,
            *colours.series,
            *colours.causes.values(),
        ]
        assert not reserved & set(rest)


def test_light_and_dark_have_a_counterpart_for_each_colour_and_back() -> None:
    light, dark = theme.theme(False).colours(), theme.theme(True).colours()

    assert len(set(light)) == len(light)
    assert len(set(dark)) == len(dark)
    assert len(light) == len(dark)


def dressed(dark: bool):
    made = figure_of("A title", dark=dark, span=(0.0, 60.0), y_label="W")
    made.line([1, 2], [3, 4], line_color=theme.theme(dark).series[0])
    keys(made, {"failed": theme.theme(dark).states["failed"]})
    note(made, "a note", dark)
    mark(made, 30.0, dark, "first failure")
    return made


def colours_in(made) -> list[tuple[str, str, object]]:
    found = []
    for one in made.references():
        for name, value in one.properties_with_values().items():
            if "color" in name or "palette" in name:
                found.append((type(one).__name__, name, re.sub(r"id='p\d+'", "", repr(value))))
    return sorted(found)


def test_switching_a_figure_gives_what_building_it_so_would_have_given() -> None:
    light, dark = dressed(False), dressed(True)
    assert colours_in(light) != colours_in(dark)

    theme.switch(light, True)
    assert colours_in(light) == colours_in(dark)

    theme.switch([light], False)
    assert colours_in(light) == colours_in(dressed(False))


def test_the_script_for_pages_knows_every_colour() -> None:
    script = theme.switch_script()

    assert all(colour in script for dark in (False, True) for colour in theme.theme(dark).colours())
    assert "</" not in script


def test_a_theme_for_documents_of_others_has_the_same_look() -> None:
    from bokeh.document import Document
    from bokeh.plotting import figure

    document = Document(theme=theme.bokeh_theme(True))
    made = figure()
    document.add_root(made)

    assert made.background_fill_color == theme.theme(True).card
    assert made.xaxis.major_label_text_color == theme.theme(True).soft


def test_an_empty_figure_says_why_and_has_nothing_else() -> None:
    made = empty("Metrics", "No metrics came with this incident.")

    assert made.select_one({"name": "why"}).data_source.data["text"] == ["No metrics came with this incident."]
    assert made.title.text == "Metrics"
    assert not any(axis.visible for axis in made.axis)
