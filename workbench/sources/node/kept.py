"""Turn the state that earlier runs kept on this node into readings: which GPUs were here, what they lost, how its ports were."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["reference"]

_FOLDER = "/var/lib/workbench"  # as workbench.health.history.FOLDER, which writes it


def _state(kind: str, name: str, of: type, what: str) -> Callable[[World, Deadline], dict[str, Any]]:
    """Return a way to the state `kind`, which must hold `name` of the type `of`; `what` is what nobody has kept when there is none."""

    def read(world: World, deadline: Deadline) -> dict[str, Any]:
        file, schema = f"{world.settings.get('state') or _FOLDER}/{kind}.json", f"workbench.state.{kind}/1"
        try:
            text = world.text(file)
        except Unread as error:
            if error.ending == "missing":
                raise Unread("absent", f"no earlier run has kept {what}") from None
            raise
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Unread("garbage", f"{file} is damaged: {error}", "remove it; the next run keeps a new one") from None
        if not isinstance(value, dict) or value.get("schema") != schema or not isinstance(value.get(name), of):
            raise Unread("garbage", f"{file} is not of the schema {schema}", "remove it; the next run keeps a new one")
        return value

    return read


def reference(kept: Mapping[str, Any], boot_id: str) -> Mapping[str, Any]:
    """Return the GPUs to compare with: those of the boot before this one when they are kept, too (`workbench.health.inventory`)."""
    following = kept.get("next")
    if isinstance(following, Mapping) and isinstance(following.get("gpus"), list) and following.get("boot_id") != boot_id:
        return following
    return kept


def _gpus_before(world: World, deadline: Deadline) -> dict[str, Any]:
    try:
        boot = world.text("/proc/sys/kernel/random/boot_id", 100).strip()
    except Unread:
        boot = ""
    return dict(reference(_GPUS(world, deadline), boot))


_GPUS, _PORTS = _state("gpus", "gpus", list, "which GPUs were here"), _state("ports", "ports", dict, "how the ports were")
_ROWS = _state("rows", "gpus", dict, "what the GPUs had lost of their memory")
reader("kept-gpus", "the GPUs that an earlier run saw", seconds=3.0, ways=(Way("state file", _gpus_before),))
reader("kept-ports", "the network ports that an earlier run saw", seconds=3.0, ways=(Way("state file", _PORTS),))
reader("kept-rows", "what each GPU had lost of its memory at earlier looks", seconds=3.0, ways=(Way("state file", _ROWS),))
