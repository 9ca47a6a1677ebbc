"""Turn a TOML file that describes a fleet into checked values; what it does not say is as in ``catalog/simulation.toml``."""

from __future__ import annotations

import datetime as dt
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.catalog import HERE, table
from workbench.config import time_span
from workbench.errors import ConfigError

__all__ = ["SCHEMA", "Fault", "Size", "Spec", "faults"]

SCHEMA = "workbench.fleet-spec/1"
_SHIPPED = HERE / "simulation.toml"
# keys whose value is a part of a whole
_SHARES = (
    "jobs.utilisation", "jobs.user_fails", "jobs.cancelled", "jobs.preempted", "jobs.user_certain", "jobs.user_early", "faults.lemons",
    "faults.storage_reach", "policy.named", "policy.check", "dirt.clock_skew", "dirt.no_metrics", "dirt.no_kernel", "dirt.foreign_xid",
    "dirt.second_fault", "dirt.truncated",
)  # fmt: skip
_AT_LEAST_ONE = ("nodes.count", "nodes.gpus", "faults.leaf_nodes")


@dataclass(frozen=True, slots=True)
class Fault:
    """
    A kind of fault of a node, a row of ``catalog/simulated_faults.csv``.

    Attributes
    ----------
    cls : str
        Failure class.
    share : float
        Of all faults, 0 to 1.
    scope : str
        ``gpu`` or ``node``.
    kills : float
        The chance that a job on it dies.
    told_by : str
        ``crash``, ``hang``, ``silence`` or ``slow``: how long it takes until it is known.
    lasts : float
        The chance that it is still there for the next job, until it is mended.
    slowdown : float
        Step time over the usual, for ``slow``.
    rung : str
        What is done about it first.
    hours : float
        How long that takes.
    fixes : float
        The chance that it helps.
    xid : str
        What the kernel log says, or empty.
    """

    cls: str
    share: float
    scope: str
    kills: float
    told_by: str
    lasts: float
    slowdown: float
    rung: str
    hours: float
    fixes: float
    xid: str

    @property
    def cause(self) -> str:
        """The part before the slash."""
        return self.cls.split("/")[0]


@lru_cache(maxsize=1)
def faults() -> tuple[Fault, ...]:
    """Return all kinds, as shares of their published counts."""
    rows = table("simulated_faults")
    total = sum(float(row["count"]) for row in rows)
    return tuple(
        Fault(
            cls=row["class"],
            share=float(row["count"]) / total,
            scope=row["scope"],
            kills=float(row["kills"]),
            told_by=row["told_by"],
            lasts=float(row["lasts"]),
            slowdown=float(row["slowdown"] or 1.0),
            rung=row["rung"],
            hours=float(row["hours"]),
            fixes=float(row["fixes"]),
            xid=row["xid"],
        )
        for row in rows
    )


@dataclass(frozen=True, slots=True)
class Size:
    """A size of jobs: GPUs, share of all jobs, median of their hours and spread (standard deviation of the logarithm)."""

    gpus: int
    share: float
    hours: float
    spread: float

    @property
    def mean_hours(self) -> float:
        """The mean of the log-normal distribution with that median and spread."""
        return self.hours * float(2.718281828459045 ** (self.spread**2 / 2))


class Spec(Mapping[str, Any]):
    """
    A fleet: ``spec["policy.interval"]`` is the value of ``interval`` in ``[policy]``, times in seconds, `begin` in seconds since the epoch.

    `Spec.read` makes one; `with_` gives another with some values changed.
    """

    def __init__(self, values: Mapping[str, Any], origin: str = "") -> None:
        self._values, self.origin = dict(values), origin

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def mix(self) -> tuple[Size, ...]:
        """The sizes of jobs; shares are of their sum."""
        rows = self["jobs.mix"]
        total = sum(row[1] for row in rows)
        return tuple(Size(int(row[0]), row[1] / total, float(row[2]), float(row[3])) for row in rows)

    @property
    def jobs_per_day(self) -> float:
        """Jobs a day that offer `jobs.utilisation` of all GPU time; those that end on their own half-way on average count for what they use."""
        used = 1 - self["jobs.user_fails"] * (1 + self["jobs.user_early"]) / 2 - self["jobs.cancelled"] / 2
        mean = used * sum(size.share * size.gpus * size.mean_hours for size in self.mix)
        return float(self["jobs.utilisation"] * self["nodes.count"] * self["nodes.gpus"] * 24 / mean)

    def with_(self, **changes: Any) -> Spec:
        """
        Return a fleet with values changed; a double underscore stands for the dot: ``with_(policy__interval="10m", days=7)``.

        Raises
        ------
        ConfigError
            There is no such value, or it cannot be that.
        """
        layer: dict[str, Any] = {}
        for name, value in changes.items():
            section, _, key = name.rpartition("__")
            if section:
                layer.setdefault(section, {})[key] = value
            else:
                layer[key] = value
        return Spec(_checked(self._values, layer, "", ""), self.origin)

    def clean(self) -> Spec:
        """Return the same fleet with evidence that nothing is wrong with."""
        return self.with_(**{key.replace(".", "__"): 0.0 for key in _SHARES if key.startswith("dirt.")})

    @classmethod
    def read(cls, path: str | Path | None = None) -> Spec:
        """
        Return the fleet of a file, or the shipped one.

        Raises
        ------
        ConfigError
            The file cannot be read or something in it is wrong: names file, line and what was meant.
        """
        base = _checked({}, tomllib.loads(_SHIPPED.read_text(encoding="utf-8")), str(_SHIPPED), "", shipped=True)
        if path is None:
            return cls(base, "catalog/simulation.toml")
        try:
            text = Path(path).read_text(encoding="utf-8")
            layer = tomllib.loads(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: {error}", hint="`workbench simulate --print-spec` prints one to begin with") from None
        if layer.get("schema") != SCHEMA:
            raise ConfigError(f"{path}: schema is {layer.get('schema')!r}", hint=f'the file begins with schema = "{SCHEMA}"')
        return cls(_checked(base, layer, str(path), text), str(path))


def _place(path: str, text: str, key: str) -> str:
    last = key.rpartition(".")[2]
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(rf"\s*\[?\s*{re.escape(last)}\s*[\]=]", line):
            return f"{path}:{number}"
    return path or "the fleet"


def _flat(layer: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{last}", inner) for last, inner in value.items())
        else:
            yield key, value


def _checked(base: Mapping[str, Any], layer: Mapping[str, Any], path: str, text: str, *, shipped: bool = False) -> dict[str, Any]:
    values = dict(base)
    for key, raw in _flat(layer):
        where = _place(path, text, key)
        if not shipped and key not in base:
            near = difflib.get_close_matches(key, base, n=1)
            raise ConfigError(
                f"{where}: there is no {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint="`workbench simulate --print-spec` prints all there is",
            )
        try:
            values[key] = _value(key, raw, None if shipped else base[key])
        except ValueError as error:
            raise ConfigError(f"{where}: {key}: {error}") from None
    if values["nodes.spares"] >= values["nodes.count"]:
        raise ConfigError(f"{path or 'the fleet'}: nodes.spares must be fewer than nodes.count")
    most = (values["nodes.count"] - values["nodes.spares"]) * values["nodes.gpus"]
    values["jobs.mix"] = [row for row in values["jobs.mix"] if row[0] <= most]  # what can never start is not offered
    if not values["jobs.mix"]:
        raise ConfigError(f"{path or 'the fleet'}: every size in jobs.mix is larger than the {most} GPUs there are")
    return values


def _value(key: str, raw: Any, was: Any) -> Any:
    """Return a value of the same kind as the shipped one (`was`; None for the shipped file itself)."""
    if key == "begin":
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            return float(raw)
        return dt.datetime.fromisoformat(str(raw)).replace(tzinfo=dt.UTC).timestamp()
    if key == "jobs.mix":
        rows = [list(row) for row in raw if isinstance(row, list | tuple) and len(row) == 4]
        if len(rows) != len(raw) or not rows or any(row[0] < 1 or row[1] < 0 or row[2] <= 0 or row[3] < 0 for row in rows):
            raise ValueError("each row is [GPUs, share, median hours, spread]")
        return rows
    if key in ("schema", "nodes.sku", "nodes.pool"):
        if not isinstance(raw, str):
            raise ValueError("it must be a text in quotes")
        return raw
    if key == "jobs.teams":
        if not isinstance(raw, list | tuple) or not raw or not all(isinstance(name, str) for name in raw):
            raise ValueError("it must be a list of names")
        return list(raw)
    if isinstance(raw, bool) or isinstance(was, bool):
        if not isinstance(raw, bool) or not (was is None or isinstance(was, bool)):
            raise ValueError(f"{raw!r} is neither true nor false" if isinstance(was, bool) else "it must be a number")
        return raw
    number = time_span(raw) if isinstance(raw, str) else raw
    if not isinstance(number, int | float) or number < 0:
        raise ValueError(f"it must be a number that is not negative, not {raw!r}")
    if key in _SHARES and number > 1:
        raise ValueError(f"it is a share, 0 to 1, not {raw!r}")
    if key in _AT_LEAST_ONE and (number < 1 or number != int(number)):
        raise ValueError(f"it must be a whole number from 1, not {raw!r}")
    if key == "days" and number <= 0:
        raise ValueError("it must be more than 0")
    if key == "policy.interval" and number <= 0:
        raise ValueError("it must be more than 0")
    return int(number) if isinstance(was, int) and number == int(number) and not isinstance(raw, str) else number
