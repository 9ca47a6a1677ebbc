"""Turn the state that earlier runs kept on this node into a reading: which GPUs were here."""

from __future__ import annotations

import json
from typing import Any

from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader

__all__: list[str] = []

_FOLDER = "/var/lib/workbench"  # as workbench.health.history.FOLDER, which writes it
_SCHEMA = "workbench.state.gpus/1"


def _gpus(world: World, deadline: Deadline) -> dict[str, Any]:
    name = f"{world.settings.get('state') or _FOLDER}/gpus.json"
    try:
        text = world.text(name)
    except Unread as error:
        if error.ending == "missing":
            raise Unread("absent", "no earlier run has kept which GPUs were here") from None
        raise
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Unread("garbage", f"{name} is damaged: {error}", "remove it; the next run keeps a new one") from None
    if not isinstance(value, dict) or value.get("schema") != _SCHEMA or not isinstance(value.get("gpus"), list):
        raise Unread("garbage", f"{name} is not of the schema {_SCHEMA}", "remove it; the next run keeps a new one")
    return value


reader("kept-gpus", "the GPUs that an earlier run saw", seconds=3.0, ways=(Way("state file", _gpus),))
