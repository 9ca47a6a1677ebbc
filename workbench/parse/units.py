"""Turn what `systemctl show` prints of several units into one record each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PROPERTIES", "Unit", "parse_units"]

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "Type",
    "Result",
    "NRestarts",
    "ExecMainStatus",
    "ActiveEnterTimestampMonotonic",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """
    A unit of systemd.

    `load`, `active`, `sub`, `file` and `result` are its LoadState, ActiveState, SubState, UnitFileState and Result; `restarts` how often it was
    restarted by itself, `status` the exit code of its process, `entered` the seconds after boot when it became active; None for what was not
    told.
    """

    name: str
    load: str
    active: str
    sub: str
    file: str
    kind: str = ""
    result: str = ""
    restarts: int | None = None
    status: int | None = None
    entered: float | None = None

    @property
    def there(self) -> bool:
        """Whether it is installed."""
        return self.load not in ("not-found", "masked", "")

    @property
    def runs(self) -> bool:
        """Whether it does what it is there for: one that runs once and ended well does."""
        return self.active == "active" or (
            self.kind == "oneshot" and self.active == "inactive" and self.result == "success" and self.status == 0
        )

    @property
    def meant(self) -> bool:
        """Whether it is to start at boot."""
        return self.file in ("enabled", "enabled-runtime", "linked", "generated", "alias", "indirect")


def parse_units(text: str, names: Sequence[str]) -> dict[str, Unit]:
    """
    Return the units of ``systemctl show -p … NAME…`` by the names that were asked for; it answers in their order, an alias under its own name.

    A block without ActiveState or LoadState is left out: half an output tells nothing of it. When there are fewer blocks than names, nobody
    knows which is whose, and only those that bear their name are returned.
    """
    blocks = [block for block in text.replace("\r\n", "\n").strip("\n").split("\n\n") if block.strip()]
    out = {}
    for at, block in enumerate(blocks):
        told = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if not told.get("ActiveState") or not told.get("LoadState"):
            continue
        name = names[at] if len(blocks) == len(names) else told.get("Id", "").removesuffix(".service")
        if name not in names:
            continue
        entered = _number(told.get("ActiveEnterTimestampMonotonic", ""))
        out[name] = Unit(
            name,
            told["LoadState"],
            told["ActiveState"],
            told.get("SubState", ""),
            told.get("UnitFileState", ""),
            told.get("Type", ""),
            told.get("Result", ""),
            _number(told.get("NRestarts", "")),
            _number(told.get("ExecMainStatus", "")),
            entered / 1e6 if entered else None,
        )
    return out


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
