"""Turn a folder that game days wrote into their score cards, the latest first; one that cannot be read is one of them, with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SCHEMAS", "GameDay", "game_days", "stamp"]

# played on paper, and on real servers
SCHEMAS = ("workbench.gameday/1", "workbench.gameday-live/1")

_NAME = "scorecard.json"
_MOST = 60  # game days that are offered; one a month for five years
_NUMBERS = ("number", "confidence", "ranks", "detected", "judged", "planned", "shown", "seen")
_LISTS = ("dirt", "actions")
_LARGEST = 64 << 20  # bytes of one score card


@dataclass(frozen=True)
class GameDay:
    """
    One game day.

    Attributes
    ----------
    name : str
        Of its folder.
    played : float
        When its score card was written, seconds since the epoch.
    card : mapping or None
        As ``scorecard.json`` holds it (`SCHEMAS`); None when it cannot be read. Rounds of a live one also have ``detected``: when it was seen.
    problem : str
        Why not.
    """

    name: str
    played: float
    card: Mapping[str, Any] | None
    problem: str = ""


def _files(path: Path) -> list[tuple[float, Path]]:
    if path.is_file():
        return [(path.stat().st_mtime, path)]
    found = []
    for one in (path / _NAME, *path.glob(f"*/{_NAME}")):
        try:
            found.append((one.stat().st_mtime, one))
        except OSError:
            continue
    return sorted(found, key=lambda one: (-one[0], one[1].as_posix()))[:_MOST]


def stamp(path: Path | None) -> tuple[Any, ...]:
    """Return what changes when a game day is played or taken away."""
    return tuple((str(one), written) for written, one in _files(path)) if path is not None else ()


def game_days(path: Path | None) -> tuple[GameDay, ...]:
    """
    Return the game days below a folder, the latest first.

    Parameters
    ----------
    path : Path or None
        What ``workbench gameday --into`` wrote, a folder that holds several of these, or a score card itself.
    """
    found: list[GameDay] = []
    for written, file in _files(path) if path is not None else ():
        name = file.parent.name
        try:
            if file.stat().st_size > _LARGEST:
                raise ValueError("it is larger than a score card can be")
            card = json.loads(file.read_bytes())
            if not isinstance(card, dict) or card.get("schema") not in SCHEMAS:
                raise ValueError(f"it is no {' or '.join(SCHEMAS)}")
            rounds = card.get("rounds")
            if not isinstance(rounds, list) or not all(isinstance(one, dict) for one in rounds):
                raise ValueError("it has no list of rounds")
            if not all(isinstance(one.get(name), int | float | None) for one in rounds for name in _NUMBERS):
                raise ValueError("a round has words where numbers belong")
            if not all(isinstance(one.get(name), list | None) for one in rounds for name in _LISTS):
                raise ValueError("a round has something else where a list belongs")
        except (OSError, ValueError, RecursionError) as error:
            found.append(GameDay(name, written, None, f"{file} cannot be read: {str(error)[:120]}"))
            continue
        if card["schema"] == SCHEMAS[1]:
            card["rounds"] = [{"detected": one.get("seen"), **one} for one in rounds]
        found.append(GameDay(name, written, card))
    return tuple(found)
