"""
Turn the answers of a server into their shape, and compare it with the shape that the real server's had.

What the real server answered is kept in ``tests/data/conformance``; ``WORKBENCH_RECORD=1 make test-live`` writes it anew. Both the fake and
the real server are held against it: a fake that drifts fails without a server, a server that moved fails where there is one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["DATA", "compared", "shape"]

DATA = Path(__file__).resolve().parents[1] / "data" / "conformance"


def shape(value: Any, *, maps: tuple[str, ...] = (), at: str = "") -> Any:
    """
    Return keys and types of an answer; the items of a list are laid over one another, and so are the values of an object at `maps`.

    A key that only some of the items have ends with ``?``.
    """
    if isinstance(value, dict):
        if at.rsplit(".", 1)[-1] in maps:
            return {"*": _merged([shape(each, maps=maps, at=f"{at}.*") for each in value.values()])} if value else {}
        return {key: shape(each, maps=maps, at=f"{at}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_merged([shape(each, maps=maps, at=at) for each in value])] if value else []
    return {bool: "flag", int: "number", float: "number", str: "text", type(None): "null"}[type(value)]


def _merged(shapes: list[Any]) -> Any:
    """Lay several shapes over one another."""
    kinds = sorted({one for one in shapes if isinstance(one, str)})
    objects, lists = [one for one in shapes if isinstance(one, dict)], [one for one in shapes if isinstance(one, list)]
    found: list[Any] = ["|".join(kinds)] if kinds else []
    if objects:
        names = {name.rstrip("?") for one in objects for name in one}
        whole: dict[str, Any] = {}
        for name in sorted(names):
            mine = [one[key] for one in objects for key in (name, f"{name}?") if key in one]
            always = len(mine) == len(objects) and not any(f"{name}?" in one for one in objects)
            whole[name if always else f"{name}?"] = _merged(mine)
        found.append(whole)
    if lists:
        inner = [each for one in lists for each in one]
        found.append([_merged(inner)] if inner else [])
    return found[0] if len(found) == 1 else found


def compared(
    name: str, answers: dict[str, Any], *, real: bool, opened: tuple[str, ...] = (), maps: tuple[str, ...] = ()
) -> list[str]:
    """
    Return in what the shapes of some answers differ from those recorded of the real server.

    Parameters
    ----------
    name : str
        Of the file.
    answers : dict
        Question → answer.
    real : bool
        These are the real server's: they are recorded when ``WORKBENCH_RECORD`` is set.
    opened : tuple of str
        Keys below which the fake may lack what the server has; it may never have more, or of another type.
    maps : tuple of str
        Keys whose objects are keyed by data: labels, fields.
    """
    mine = {question: shape(answer, maps=maps) for question, answer in sorted(answers.items())}
    path = DATA / f"{name}.json"
    if real and os.environ.get("WORKBENCH_RECORD"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    recorded = json.loads(path.read_text(encoding="utf-8"))
    said = [f"{question}: not recorded" for question in mine if question not in recorded]
    said += [f"{question}: not asked any more" for question in recorded if question not in mine]
    for question in mine:
        if question in recorded:
            said += _differ(recorded[question], mine[question], question, opened, question in opened)
    return said


def _differ(real: Any, fake: Any, at: str, opened: tuple[str, ...], inside: bool) -> list[str]:
    if isinstance(real, list) and isinstance(fake, list) and len(real) < 2 and len(fake) < 2:
        return _differ(real[0], fake[0], at + "[]", opened, inside) if real and fake else []
    if isinstance(real, dict) and isinstance(fake, dict):
        said = []
        names = {key.rstrip("?"): key for key in real}
        mine = {key.rstrip("?"): key for key in fake}
        for key in sorted(names.keys() | mine.keys()):
            free = inside or key in opened
            if key not in mine:
                said += [] if inside or names[key].endswith("?") else [f"{at}.{key} lacks"]
            elif key not in names:
                said.append(f"{at}.{key} is not the server's")
            else:
                said += _differ(real[names[key]], fake[mine[key]], f"{at}.{key}", opened, free)
        return said
    kinds, others = _kinds(real), _kinds(fake)
    return [] if others <= kinds else [f"{at} is {sorted(others)}, of the server {sorted(kinds)}"]


def _kinds(told: Any) -> set[str]:
    if isinstance(told, str):
        return set(told.split("|"))
    if isinstance(told, dict):
        return {"object"}
    if len(told) < 2:
        return {"list"}
    return {kind for each in told for kind in (_kinds(each) if not isinstance(each, list) else {"list"})}
