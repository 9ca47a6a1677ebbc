"""Turn what an action expects and a node as it is now into what does not fit, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from workbench.remediation.model import NodeState

__all__ = ["misfit", "same_boot"]

_FIELDS = frozenset(one.name for one in fields(NodeState)) | {"healthy", "ours", "foreign"}
_SHORT = 40
_JITTER = 5.0  # seconds: a boot time is the clock less the uptime, both rounded; Slurm 22.05 and 24.11 told one boot with a second's difference


def same_boot(one: float, other: float) -> bool:
    """Whether two boot times (epoch seconds) may be of the same boot."""
    return abs(one - other) <= _JITTER


def misfit(expects: Mapping[str, Any], state: NodeState | None, *, foreign: bool = True) -> str:
    """
    Return why an action does not fit the node as it is; empty when it does.

    ``work`` is what may be lost: identities (or, without one, ids) of all that may run there. Everything else is a field of `NodeState`
    that must be equal; what is none cannot be checked, and so does not fit. With `foreign`, what somebody else restricted never fits.
    """
    if state is None:
        return "there is no such node any more"
    for key, wanted in expects.items():
        if key == "work":
            strange = sorted(one.id for one in state.busy() if one.uid not in wanted and one.id not in wanted)
            if strange:
                return f"{', '.join(strange[:3])}{' and more' if len(strange) > 3 else ''} runs there by now, which nobody agreed to lose"
        elif key not in _FIELDS:
            return f"the action expects {key!r} of the node, which cannot be checked"
        elif key == "booted" and state.booted is not None and wanted is not None:
            if not same_boot(state.booted, float(wanted)):
                return "another boot runs by now"
        elif getattr(state, key) != wanted:
            return f"{key} is {_told(getattr(state, key))}, and the action expects {_told(wanted)}"
    if foreign and state.foreign:
        said = f" ({state.reason})" if state.reason else ""
        return f"{state.owner} restricted the node{said}: it is not ours to change"
    return ""


def _told(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else value or "empty"
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"
