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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workbench.errors import ConfigError

__all__ = ["SETTINGS", "Config", "Setting", "Value", "defaults", "load_config", "size_of", "time_span"]


@dataclass(frozen=True, slots=True)
class Setting:
    """
    One thing that can be set.

    Attributes
    ----------
    key : str
        Section and name as in the file: ``prometheus.url``.
    kind : str
        ``text``, ``url``, ``path``, ``flag``, ``number``, ``time`` (30s, 5m, 2h, 1d), ``size`` (512MiB), ``words`` (a list of texts),
        ``table`` (texts by name) or ``secret`` (the name of a file that holds it, or an environment variable).
    meaning : str
        What it does, in a line.
    default : Any
        Value when nobody sets it.
    exported : tuple of str
        Variables that other tools read and people export anyway.
    choices : tuple of str
        The only values, when there are few.
    """

    key: str
    kind: str
    meaning: str
    default: Any = None
    exported: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable of our own that sets it."""
        return "WORKBENCH_" + self.key.replace(".", "_").upper()


def _server(section: str, what: str, *exported: str) -> tuple[Setting, ...]:
    return (
        Setting(f"{section}.url", "url", f"address of {what}", exported=exported),
        Setting(f"{section}.token", "secret", "bearer token: `token_file` names a file that holds it"),
        Setting(f"{section}.username", "text", "name for basic authentication"),
        Setting(f"{section}.password", "secret", "its password: `password_file` names a file that holds it"),
        Setting(f"{section}.headers", "table", "headers sent with each request, such as X-Scope-OrgID"),
        Setting(f"{section}.ca", "path", "certificates of the authority that signed the server's"),
        Setting(f"{section}.certificate", "path", "client certificate (PEM)"),
        Setting(f"{section}.key", "path", "its private key (PEM)"),
        Setting(f"{section}.verify", "flag", "check the server's certificate", True),
        Setting(f"{section}.enabled", "flag", "ask it at all", True),
    )


SETTINGS: tuple[Setting, ...] = (
    Setting("profile", "text", "the profile used when none is named"),
    Setting("deadline", "time", "how long one source may take", 30.0),
    Setting("since", "time", "how far back evidence is looked for when nothing tells when the job ran", 6 * 3600.0),
    Setting("limit", "size", "bytes that a collected incident may have", 2 << 30),
    *_server("prometheus", "Prometheus, Thanos, Mimir or VictoriaMetrics", "PROMETHEUS_URL", "PROM_URL"),
    Setting("prometheus.job_label", "text", "label that carries the job's name, when your relabelling adds one"),
    *_server("elasticsearch", "Elasticsearch or OpenSearch", "ELASTICSEARCH_URL", "ES_URL", "OPENSEARCH_URL"),
    Setting(
        "elasticsearch.api_key",
        "secret",
        "API key: `api_key_file` names a file that holds it",
        exported=("ELASTICSEARCH_API_KEY", "ES_API_KEY"),
    ),
    Setting("elasticsearch.index", "text", "indices or data streams that hold job logs", "logs-*,filebeat-*,fluent-bit-*"),
    Setting(
        "elasticsearch.fields",
        "text",
        "how fields are named; `auto` looks at the mapping",
        "auto",
        choices=("auto", "ecs", "beats", "fluentbit", "vector", "otel", "custom"),
    ),
    Setting(
        "elasticsearch.custom",
        "table",
        "names of your fields: message, time, pod, node, container, namespace, job, rank, file, offset",
    ),
    Setting(
        "elasticsearch.product",
        "text",
        "which client is used (an address from OPENSEARCH_URL means opensearch)",
        "elasticsearch",
        choices=("elasticsearch", "opensearch"),
    ),
    Setting("kubernetes.kubeconfig", "path", "default: ~/.kube/config, else the pod's own account", exported=("KUBECONFIG",)),
    Setting("kubernetes.context", "text", "context of the kubeconfig"),
    Setting("kubernetes.namespace", "text", "namespace of jobs; default: all that may be read"),
    Setting("kubernetes.enabled", "flag", "ask it when a kubeconfig or a pod's account is there", True),
    Setting("slurm.prefix", "words", 'words in front of sacct and scontrol, such as ["ssh", "login-1"]', ()),
    Setting("slurm.enabled", "flag", "ask it when sacct is there or a prefix is set", True),
    Setting("health.gpus", "number", "how many GPUs this node should have; 0 for a node without"),
    Setting("health.mounts", "words", "file systems that must be mounted, answer and have space"),
    Setting(
        "health.required",
        "words",
        "checks that make the node unfit while they are critical or unknown, beside those that do anyway",
    ),
    Setting("health.optional", "words", "checks that never make the node unfit"),
    Setting("health.driver", "text", "version of the driver that the node should have, or its begin: 570 or 570.133.20"),
    Setting("health.vbios", "text", "version of the VBIOS that all GPUs should have"),
    Setting("health.persistence", "flag", "whether persistence mode should be on", True),
    Setting("health.compute_mode", "text", "compute mode that GPUs should have: Default, Exclusive_Process"),
    Setting("health.mig", "text", "off, on, how many MIG instances each GPU should have, or which: 1g.10gb=4,3g.40gb=1"),
    Setting("health.exclusive", "flag", "jobs get whole nodes: before one starts nobody may compute on a GPU", False),
    Setting("health.dcgm", "flag", "DCGM must be there and list the same GPUs", False),
    Setting("health.state", "path", "folder for what must outlive a run", "/var/lib/workbench"),
    Setting("health.space_warning", "number", "percent of space or inodes left that is little; 5 when not set"),
    Setting("health.space_critical", "number", "percent of space or inodes left that is none; 0.5 when not set"),
    Setting("health.mount_seconds", "time", "how long a mounted file system has to answer; 5s when not set"),
    Setting("health.memory", "size", "memory of the node, as /proc/meminfo says on a good one, such as 2015GiB"),
    Setting("health.smart", "flag", "ask every disk for its SMART; not having it is unknown then"),
    Setting("health.clock_offset", "time", "by how much the clock may be off; 50ms when not set"),
    Setting("health.units", "words", "systemd units that must run, such as slurmd and nvidia-fabricmanager"),
    Setting("health.memlock", "text", "locked memory that jobs must be allowed: unlimited, or a size"),
    Setting("health.files", "number", "open files that jobs must be allowed"),
    Setting("health.shm", "size", "size that /dev/shm must have"),
    Setting("health.blocked", "number", "how many processes waiting in the kernel are too many; 10 when not set"),
    Setting("health.containers", "flag", "jobs run in containers: a node that cannot give them its GPUs is unfit"),
    Setting("health.ports", "number", "how many RDMA ports (InfiniBand, RoCE, EFA) must be active"),
    Setting("health.port_rate", "number", "Gb/s that a port must run at to count"),
    Setting("health.port_names", "words", "RDMA devices and network interfaces that must be up, such as mlx5_0 and ens10f0"),
    Setting("health.diag", "number", "level 1 to 4 of dcgmi diag with --context idle; 1 when not set"),
    Setting("health.probe_python", "path", "a Python with torch or cupy, for products of matrices with --context idle"),
    Setting("health.checks_folder", "words", "folders of executables that are checks of your own"),
    Setting("remediation.policy", "path", "file that says what may be done, how much at once, and what needs no person"),
    Setting("remediation.journal", "path", "file in which every intent and outcome is kept", "/var/lib/workbench/journal.jsonl"),
    Setting("remediation.folder", "path", "folder for evidence, reports and runs of commands", "/var/lib/workbench/remediation"),
    Setting(
        "remediation.scheduler",
        "text",
        "what changes nodes; `auto`: Kubernetes when it is configured, else Slurm",
        "auto",
        choices=("auto", "kubernetes", "slurm"),
    ),
    Setting("node.enabled", "flag", "read this machine's own GPUs and kernel log, when the job ran on it", True),
)
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
                ("(set, not shown)" if self[key] else "") if _KNOWN[key].kind == "secret" else _text(self[key], _KNOWN[key].kind),
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
    if kind == "table":
        return ", ".join(f"{name}=…" for name in value)  # headers may carry a secret
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
