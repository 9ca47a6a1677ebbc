"""Turn the shipped table of thresholds and a site's own file into the policy of retries, each value with the place that decided it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from workbench.catalog import HERE
from workbench.config import time_span
from workbench.errors import CatalogError, ConfigError, WorkbenchError
from workbench.model import CLASSES

__all__ = ["SCHEMA", "Policy", "Threshold", "load_policy", "plain_value", "thresholds"]

SCHEMA = "workbench.retry/1"
_TIMES = frozenset(
    (
        "budget.window",
        "progress.unseen",
        "backoff.first",
        "backoff.cap",
        "wait.first",
        "wait.cap",
        "wait.patience",
        "exclude.age",
        "storm.window",
        "storm.pause",
        "storm.patience",
    )
)
_WORDS = {"nodes.exhausted": ("stop", "wait"), "checkpoint.scratch": ("always", "never", "unsaved")}


@dataclass(frozen=True, slots=True)
class Policy:
    """
    When a failed job starts again, waits or stops. Key ``SECTION.KEY`` of ``catalog/retry.toml`` is attribute ``SECTION_KEY``.

    Times are seconds. What each means, why it has its value and where that is from stands in that file and in ``workbench policy show``; the
    defaults here are its values, for programs that read no file. A supervisor that knows how many nodes it has says so:
    ``dataclasses.replace(policy, nodes_have=4)``.
    """

    budget_total: int = 500
    budget_user: int = 1
    budget_hardware: int = 60
    budget_driver: int = 20
    budget_platform: int = 20
    budget_unknown: int = 6
    budget_none: int = 3
    budget_window: float = 7 * 86400.0
    certain_confidence: float = 0.75
    certain_preemption: float = 0.75
    certain_classes: tuple[str, ...] = (
        "user/exception",
        "user/gpu-oom",
        "user/host-oom",
        "user/config",
        "user/collective-mismatch",
    )
    certain_exit_codes: tuple[int, ...] = (2, 126, 127)
    progress_restarts: int = 3
    progress_unseen: float = 3600.0
    backoff_first: float = 10.0
    backoff_factor: float = 2.0
    backoff_cap: float = 360.0
    backoff_jitter: float = 0.2
    wait_first: float = 60.0
    wait_cap: float = 1800.0
    wait_patience: float = 86400.0
    exclude_confidence: float = 0.5
    exclude_most: int = 128
    exclude_repeat: int = 2
    exclude_age: float = 7 * 86400.0
    nodes_have: int = 0
    nodes_min: int = 1
    nodes_exhausted: str = "stop"
    gpus_have: int = 0
    gpus_min: int = 0
    storm_window: float = 600.0
    storm_limit: int = 8
    storm_pause: float = 60.0
    storm_patience: float = 3600.0
    checkpoint_scratch: str = "unsaved"
    origin: Mapping[str, str] = field(
        default_factory=dict, compare=False
    )  # key → ``file:line`` of those that a site's file decided

    def budget(self, cause: str) -> int:
        """Return the restarts that failures of a cause get."""
        return int(getattr(self, f"budget_{cause}", self.budget_unknown))


@dataclass(frozen=True, slots=True)
class Threshold:
    """One value of a policy as people see it: key, value, where it was set, and of the shipped one source and reason."""

    key: str
    value: Any
    origin: str
    source: str
    reason: str


def _kinds() -> dict[str, str]:
    return {one.name.replace("_", ".", 1): str(one.type) for one in fields(Policy) if one.name != "origin"}


def load_policy(path: str | Path | None = None) -> Policy:
    """
    Return the shipped policy, overridden by what a site's file gives.

    Parameters
    ----------
    path : str or Path, optional
        A TOML file of schema ``workbench.retry/1`` with the sections of ``catalog/retry.toml``.

    Raises
    ------
    ConfigError
        The file cannot be read, or something in it is unknown or wrong; names file, line and the nearest key. Never a policy of which a part was
        left out.
    CatalogError
        The shipped table is wrong.
    """
    shipped = {key: row["value"] for key, row in _shipped().items()}
    values, origin = dict(shipped), {}
    if path is not None:
        file = Path(path)
        for key, value in _site(file).items():
            values[key], origin[key] = value[0], value[1]
    _together(values, str(path) if path is not None else "retry.toml")
    return Policy(**{key.replace(".", "_"): value for key, value in values.items()}, origin=origin)


def thresholds(policy: Policy) -> list[Threshold]:
    """Return every value of a policy with where it comes from, in the order of the table."""
    return [
        Threshold(
            key,
            getattr(policy, key.replace(".", "_")),
            policy.origin.get(key, "catalog/retry.toml"),
            row["source"],
            row["reason"],
        )
        for key, row in _shipped().items()
    ]


def plain_value(key: str, value: Any) -> str:
    """Return a value for people, a time with its unit."""
    if key in _TIMES:
        for span, unit in ((86400, "d"), (3600, "h"), (60, "m")):
            if value and value % span == 0:
                return f"{value / span:g}{unit}"
        return f"{value:g}s"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shipped() -> dict[str, dict[str, Any]]:
    """Return the shipped table: key → value, source, reason."""
    table = tomllib.loads((HERE / "retry.toml").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for section, rows in table.items():
        if section == "schema":
            continue
        for last, row in rows.items():
            key = f"{section}.{last}"
            if key not in _kinds() or set(row) != {"value", "source", "reason"} or not row["source"] or not row["reason"]:
                raise CatalogError(f"retry.toml: [{key}] is no threshold with value, source and reason")
            found[key] = {**row, "value": _typed(key, row["value"], f"retry.toml: {key}", CatalogError)}
    if missing := [key for key in _kinds() if key not in found]:
        raise CatalogError(f"retry.toml: there is no [{missing[0]}]")
    return found


def _site(file: Path) -> dict[str, tuple[Any, str]]:
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{file}: it cannot be read: {error.strerror}", hint="see docs/retries.md for a policy") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: it is no TOML: {error}", hint="see docs/retries.md for a policy") from None
    if table.pop("schema", None) != SCHEMA:
        raise ConfigError(f"{file}: it is no policy of retries", hint=f'the file begins with schema = "{SCHEMA}"')
    sections = {key.split(".")[0] for key in _kinds()}
    found: dict[str, tuple[Any, str]] = {}
    for section, rows in table.items():
        if section not in sections or not isinstance(rows, Mapping):
            _unknown(section, file, text)
        for last, value in rows.items():
            key = f"{section}.{last}"
            if key not in _kinds():
                _unknown(key, file, text)
            place = _place(key, file, text)
            if isinstance(value, Mapping) and "value" in value:  # as the shipped table has it
                if strange := sorted(set(value) - {"value", "source", "reason"}):
                    raise ConfigError(f"{place}: {key} has value, source and reason, no {strange[0]!r}")
                value = value["value"]
            found[key] = (_typed(key, value, f"{place}: {key}", ConfigError), place)
    return found


def _unknown(key: str, file: Path, text: str) -> None:
    known = list(_kinds())
    near = difflib.get_close_matches(key, [*known, *{one.split(".")[0] for one in known}], n=1)
    if not near and "." in key:  # right key, wrong section
        near = [one for one in known if one.endswith("." + key.split(".", 1)[1])][:1]
    raise ConfigError(
        f"{_place(key, file, text)}: there is no {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        hint="`workbench policy show` lists all keys",
    )


def _place(key: str, file: Path, text: str) -> str:
    """Return ``file:line`` of a key or section, or the file alone."""
    section, _, last = key.rpartition(".")
    current = ""
    for number, line in enumerate(text.split("\n"), 1):
        if found := re.match(r"\s*\[([^\[\]]+)\]", line):
            current = found[1].strip()
            if current == key:
                return f"{file}:{number}"
        elif (current == section and re.match(rf"\s*{re.escape(last)}\s*=", line)) or (
            not current and re.match(rf"\s*{re.escape(key)}\s*=", line)
        ):
            return f"{file}:{number}"
    return str(file)


def _typed(key: str, value: Any, where: str, error: type[WorkbenchError]) -> Any:
    """Return a value as the policy has it; raises when it is of another type or makes no sense."""
    kind = _kinds()[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in _TIMES:
        try:
            seconds = float(value) if number else time_span(value if isinstance(value, str) else repr(value))
        except ValueError as problem:
            raise error(f"{where}: {problem}") from None
        if seconds < 0:
            raise error(f"{where}: a time is not below 0")
        return seconds
    if kind.startswith("tuple[int"):
        if not isinstance(value, list) or not all(isinstance(one, int) and 1 <= one <= 255 for one in value):
            raise error(f"{where} is a list of exit codes from 1 to 255")
        return tuple(sorted(value))
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise error(f"{where} is a list of classes")
        for one in value:
            if one not in CLASSES:
                near = difflib.get_close_matches(one, CLASSES, n=1)
                raise error(f"{where}: {one!r} is no class" + (f"; did you mean {near[0]!r}?" if near else ""))
        return tuple(value)
    if key in _WORDS:
        if value not in _WORDS[key]:
            raise error(f"{where}: {value!r} is none of {', '.join(_WORDS[key])}")
        return value
    if kind == "int":
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise error(f"{where} is a whole number from 0 on, not {value!r}")
        return value
    if not number or value < 0 or value != value or value in (float("inf"),):
        raise error(f"{where} is a number from 0 on, not {value!r}")
    if key in ("certain.confidence", "certain.preemption", "exclude.confidence", "backoff.jitter") and value > 1:
        raise error(f"{where} is between 0 and 1, not {value!r}")
    if key == "backoff.factor" and value < 1:
        raise error(f"{where} is at least 1: a back-off that shrinks is none")
    return float(value)


def _together(values: Mapping[str, Any], where: str) -> None:
    """Refuse values that contradict each other."""
    if values["nodes.min"] < 1:
        raise ConfigError(f"{where}: nodes.min is at least 1")
    if values["nodes.have"] and values["nodes.have"] < values["nodes.min"]:
        raise ConfigError(f"{where}: nodes.have = {values['nodes.have']} is less than nodes.min = {values['nodes.min']}")
    if values["gpus.have"] and values["gpus.have"] < values["gpus.min"]:
        raise ConfigError(f"{where}: gpus.have = {values['gpus.have']} is less than gpus.min = {values['gpus.min']}")
    if strange := [one for one in values["certain.classes"] if not one.startswith("user/")]:
        raise ConfigError(f"{where}: certain.classes: {strange[0]!r} is no fault of the user, and is never stopped at once")
    if values["exclude.repeat"] < 1:
        raise ConfigError(f"{where}: exclude.repeat is at least 1")
