"""Turn rows with a few columns into the whole frames of the fleet's account that its tests count in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from workbench.fleet.cells import frame_of
from workbench.fleet.tables import TABLES


def frame(table: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of a table as a frame; what a row does not name was not told, a text of the key is empty."""
    columns = TABLES[table].columns

    def cell(row: Mapping[str, Any], name: str, kind: str) -> Any:
        value = row.get(name, "" if kind == "text" and name in TABLES[table].key else None)
        return json.dumps(value) if kind == "words" and value is not None else value

    return frame_of(
        [(one.name, one.kind) for one in columns], [tuple(cell(row, one.name, one.kind) for one in columns) for row in rows]
    )
