"""
Turn `workbench.toml`, the environment and flags into settings, each with the place that decided it.

What is nearest decides: a flag, then ``WORKBENCH_<SECTION>_<KEY>``, then the variable that people export anyway (``PROMETHEUS_URL``),
then the named profile of the file, then the file, then the default. Secrets come from a file or the environment only, and are never shown.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workbench.errors import ConfigError
from workbench.settings import SETTINGS, Setting

__all__ = ["SETTINGS", "Config", "Setting", "Value", "defaults", "load_config", "moment_of", "size_of", "time_span"]

_KNOWN = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and where it comes from: ``flag --since``, ``environment PROMETHEUS_URL``, ``workbench.toml:3``, ``default``."""

    value: Any
    origin: str


class Config(Mapping[str, Any]):
    """
    All settings by key; `origin` tells who decided.

    Iterating gives the keys of `SETTINGS` in their order, also of those that nobody set.
    """

    def __init__(self, values: Mapping[str, Value], *, file: Path | None = None, profile: str | None = None) -> None:
        self._values = dict(values)
        self.file = file
        self.profile = profile

    def __getitem__(self, key: str) -> Any:
        return self._values[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def origin(self, key: str) -> str:
        """Return where a setting's value comes from."""
        return self._values[key].origin

    def section(self, name: str) -> dict[str, Any]:
        """Return the settings of one section by their last word."""
        return {key.split(".", 1)[1]: self[key] for key in self if key.startswith(name + ".")}

    def shown(self) -> list[tuple[str, str, str]]:
        """Return (key, value, origin) of every setting for people; of a secret only whether it is set."""
        return [
            (
                key,
                ("(set, not shown)" if self[key] else "")
                if _KNOWN[key].kind == "secret"
                else _text(self[key], "headers" if key.endswith(".headers") else _KNOWN[key].kind),
                self.origin(key),
            )
            for key in self
        ]

    def __repr__(self) -> str:
        return f"<Config of {self.file or 'no file'}, profile {self.profile or '-'}>"


def _text(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == "flag":
        return "true" if value else "false"
    if kind == "time":
        return next(
            f"{value / span:g}{unit}"
            for unit, span in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
            if value % span == 0 or span == 1
        )
    if kind == "size":
        return next(
            f"{value >> shift}{unit}"
            for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10), ("", 0))
            if not value % (1 << shift)
        )
    if kind == "headers":
        return ", ".join(f"{name}=…" for name in value)  # they may carry a secret
    if kind == "table":
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if kind == "url":
        parts = urlsplit(str(value))
        return str(value).replace(f"{parts.netloc}", parts.netloc.rsplit("@", 1)[-1]) if "@" in parts.netloc else str(value)
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZES = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 1 << 10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 1 << 20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 1 << 30,
}


def time_span(text: str) -> float:
    """Return the seconds that a text such as ``30s``, ``5m``, ``2h`` or ``1d`` means; ValueError when it means none."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if not found or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no time span, such as 30s, 5m or 2h")
    return float(found[1]) * _UNITS[found[2]]


def moment_of(text: str, now: float) -> float:
    """
    Return the seconds since the epoch that ``6h`` (ago) or ``2026-05-04T10:00Z`` means; ValueError when it means none.

    A date without a zone is UTC, as everywhere here.
    """
    with suppress(ValueError):
        return now - time_span(text)
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time") from None
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()


def size_of(text: str) -> int:
    """Return the bytes that a text such as ``512MiB`` or ``2GB`` means; ValueError when it means none."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].lower() not in _SIZES:
        raise ValueError(f"{text!r} is no size, such as 512MiB or 2GB")
    return int(float(found[1]) * _SIZES[found[2].lower()])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def _typed(setting: Setting, raw: Any) -> Any:
    """Return a value as its setting wants it; ValueError says what is wrong with it."""
    kind = setting.kind
    if kind == "flag":
        if isinstance(raw, bool):
            return raw
        if str(raw).lower() in ("1", "true", "yes", "on"):
            return True
        if str(raw).lower() in ("0", "false", "no", "off"):
            return False
        raise ValueError(f"{raw!r} is neither true nor false")
    if kind == "words":
        if isinstance(raw, str):
            return tuple(raw.split())
        if isinstance(raw, list) and all(isinstance(word, str) for word in raw):
            return tuple(raw)
        raise ValueError("it must be a list of texts")
    if kind == "table":
        if isinstance(raw, dict) and all(isinstance(item, str) for item in raw.values()):
            return dict(raw)
        if isinstance(raw, str):  # from the environment: name=value,name=value
            return dict(pair.split("=", 1) for pair in raw.split(",") if "=" in pair)
        raise ValueError("it must be a table of texts")
    if isinstance(raw, (bool, list, dict)):
        raise ValueError(f"it must be a {kind}")
    if kind in ("time", "size", "number"):
        if isinstance(raw, (int, float)):
            return float(raw) if kind != "size" else int(raw)
        return {"time": time_span, "size": size_of, "number": _number}[kind](raw)
    if not isinstance(raw, str):
        raise ValueError("it must be a text in quotes")
    if kind == "url":
        parts = urlsplit(raw)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{raw!r} is no address that begins with http:// or https://")
        return raw.rstrip("/")
    if kind == "path":
        return str(Path(raw).expanduser())
    if setting.choices and raw not in setting.choices:
        raise ValueError(f"{raw!r} is none of {', '.join(setting.choices)}")
    return raw


def defaults() -> Config:
    """Return the settings when nobody sets any."""
    return Config({setting.key: Value(setting.default, "default") for setting in SETTINGS})


def load_config(
    file: str | Path | None = None,
    *,
    profile: str | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """
    Return the settings.

    Parameters
    ----------
    file : str or Path, optional
        Default ``$WORKBENCH_CONFIG``, else ``./workbench.toml``, else ``$XDG_CONFIG_HOME/workbench/workbench.toml``, else none.
    profile : str, optional
        One of the file's ``[profiles.NAME]``, for sites with several clusters; default ``$WORKBENCH_PROFILE``, else what the file says.
    flags : mapping, optional
        Key to value of what the command line sets; None values are left out.
    environ : mapping, optional
        Default `os.environ`.

    Raises
    ------
    ConfigError
        The file cannot be read, or a setting is unknown or wrong; the message names file, line and key.
    """
    environ = os.environ if environ is None else environ
    path = _find(file, environ)
    document, text = _read(path)
    name = profile or environ.get("WORKBENCH_PROFILE") or document.get("profile")
    profiles = document.pop("profiles", {})
    chosen: dict[str, Any] = {}
    if name:
        if not isinstance(profiles, dict) or name not in profiles:
            known = sorted(profiles) if isinstance(profiles, dict) else []
            raise ConfigError(
                f"there is no profile {name!r}" + (f" in {path}" if path else ", since there is no configuration file"),
                hint=f"known profiles: {', '.join(known)}"
                if known
                else "write [profiles.NAME] with its sections into workbench.toml",
            )
        chosen = profiles[name]
    values = {setting.key: Value(setting.default, "default") for setting in SETTINGS}
    for layer, mark, inside in ((document, "", ""), (chosen, f"profile {name}, ", f"profiles.{name}.")):
        for key, raw in _flat(layer, path, text):
            whole = key if key in _KNOWN else key.removesuffix("_file")
            values[whole] = _from_file(key, raw, path, text, mark, inside)
    for setting in SETTINGS:
        for variable in (setting.variable, *setting.exported):
            raw = environ.get(variable)
            if raw and (variable == setting.variable or values[setting.key].origin == "default"):
                values[setting.key] = _checked(setting, raw, f"environment {variable}")
                break
        if setting.kind == "secret" and (named := environ.get(setting.variable + "_FILE")):
            values[setting.key] = Value(_secret(named, setting.variable + "_FILE"), f"environment {setting.variable}_FILE")
    for key, raw in (flags or {}).items():
        if raw is not None:
            values[key] = _checked(_KNOWN[key], raw, "flag --" + key.replace(".", "-").replace("_", "-"))
    return Config(values, file=path, profile=name)


def _find(file: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    named = file or environ.get("WORKBENCH_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"{path}: there is no such configuration file", hint="give the path of a workbench.toml with --config"
            )
        return path
    home = environ.get("XDG_CONFIG_HOME") or (str(Path(environ["HOME"]) / ".config") if environ.get("HOME") else None)
    places = [Path("workbench.toml"), *([Path(home) / "workbench" / "workbench.toml"] if home else [])]
    return next((path for path in places if path.is_file()), None)


def _read(path: Path | None) -> tuple[dict[str, Any], str]:
    if path is None:
        return {}, ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}", hint="check its permissions") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: it is no TOML: {error}", hint='texts stand in quotes: url = "http://prometheus:9090"'
        ) from error


def _flat(layer: Mapping[str, Any], path: Path | None, text: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a file's settings; a key that is not known is an error, since a typo must not switch a source off."""
    for name, item in layer.items():
        if name in _KNOWN:
            yield name, item
        elif isinstance(item, dict) and any(key.startswith(name + ".") for key in _KNOWN):
            for last, inner in item.items():
                key = f"{name}.{last}"
                if key not in _KNOWN and not (last.endswith("_file") and key.removesuffix("_file") in _KNOWN):
                    _unknown(key, path, text)
                yield key, inner
        else:
            _unknown(name, path, text)


def _unknown(key: str, path: Path | None, text: str) -> None:
    sections = {each.split(".")[0] for each in _KNOWN}
    near = difflib.get_close_matches(key, [*_KNOWN, *sections], n=1)
    raise ConfigError(
        f"{_place(key, path, text)}: there is no setting {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        hint="`workbench config show` lists all settings",
    )


_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")


def _place(key: str, path: Path | None, text: str, profile: str = "") -> str:
    """Return ``file:line`` of a key, of a section's header when the key is one, or the file alone."""
    section, _, last = f"{profile}{key}".rpartition(".")
    current = ""
    for number, line in enumerate(text.split("\n"), 1):
        if found := _HEADER.match(line):
            current = found[1].strip()
            if current == key or current == f"{profile}{key}":
                return f"{path}:{number}"
        elif current == section and re.match(rf"\s*{re.escape(last)}\s*=", line):
            return f"{path}:{number}"
    return str(path)


def _from_file(key: str, raw: Any, path: Path | None, text: str, mark: str, profile: str) -> Value:
    place = f"{mark}{_place(key, path, text, profile)}"
    if key not in _KNOWN:  # token_file
        if not isinstance(raw, str):
            raise ConfigError(
                f"{place}: {key}: it must be the path of a file, in quotes",
                hint=f'{key.rsplit(".", 1)[-1]} = "/run/secrets/token"',
            )
        return Value(_secret(raw, place), place)
    setting = _KNOWN[key]
    if setting.kind == "secret":
        raise ConfigError(
            f"{place}: {key}: a secret may not stand in the file",
            hint=f'write {key.rsplit(".", 1)[-1]}_file = "PATH" instead, or set {setting.variable} in the environment',
        )
    return _checked(setting, raw, place)


def _checked(setting: Setting, raw: Any, origin: str) -> Value:
    try:
        return Value(_typed(setting, raw), origin)
    except ValueError as error:
        shown = "the value is wrong" if setting.kind == "secret" else str(error)
        raise ConfigError(f"{origin}: {setting.key}: {shown}", hint=setting.meaning) from None


def _secret(name: str, origin: str) -> str:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"{origin}: {name}: the secret cannot be read: {reason}", hint="check the path and its permissions"
        ) from None
