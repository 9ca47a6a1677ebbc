"""
Turn what an index says of its fields into what they mean: where a log line has its text, time, pod, node, job and rank.

The shippers each have their names (`catalog/log_fields.csv`). The preset is the one most of whose names the mapping has; what it lacks is
taken from the others, since sites mix them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.catalog import table
from workbench.errors import ConfigError
from workbench.sources.contract import Deadline
from workbench.sources.elasticsearch.server import BadAnswer, Server

__all__ = ["MEANINGS", "PRESETS", "Fields", "detect", "presets"]

MEANINGS = (
    "message",
    "time",
    "pod",
    "container",
    "namespace",
    "node",
    "job",
    "rank",
    "attempt",
    "file",
    "offset",
    "ingested",
    "kernel",
)
PRESETS = ("ecs", "beats", "fluentbit", "vector", "otel", "custom")
_WORDS = frozenset({"text", "match_only_text", "annotated_text"})
_EXACT = frozenset(
    {
        "keyword",
        "constant_keyword",
        "wildcard",
        "version",
        "ip",
        "long",
        "integer",
        "short",
        "byte",
        "unsigned_long",
        "double",
        "boolean",
    }
)
_LINE = 2600  # characters of names in one request line; a server takes 4096 in all


@dataclass(frozen=True)
class Fields:
    """
    What the fields of an index mean.

    Attributes
    ----------
    preset : str
        One of `PRESETS`.
    named : mapping
        Meaning → fields that exist, best first, in a form that can be filtered by and counted (``name.keyword`` where needed).
    message, time, offset : str
        The field with the line, with its time, and with its place in the file; empty when there is none.
    kernel : tuple of (field, value)
        A kernel line is one where any of these holds.
    words : bool
        The message is analysed into words; else it is kept as it is.
    searchable : bool
        The message can be searched at all.
    nanos : bool
        The time has nanoseconds in at least one index.
    indices : tuple of str
        Indices that match.
    """

    preset: str
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    message: str = ""
    time: str = ""
    offset: str = ""
    kernel: tuple[tuple[str, str], ...] = ()
    words: bool = True
    searchable: bool = True
    nanos: bool = False
    message_type: str = ""
    indices: tuple[str, ...] = ()

    def first(self, meaning: str) -> str:
        """Return the best field of a meaning, or an empty text."""
        return next(iter(self.named.get(meaning, ())), "")


def presets() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return preset → meaning → names of fields, best first, from the table."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for row in table("log_fields"):
        found.setdefault(row["preset"], {})[row["meaning"]] = tuple(row["fields"].split("|"))
    return found


def _names(every: Iterable[Mapping[str, Sequence[str]]]) -> list[str]:
    names: dict[str, None] = {}
    for meanings in every:
        for fields in meanings.values():
            for each in fields:
                name = each.partition("=")[0]
                names |= {name: None, f"{name}.keyword": None}
    return list(names)


def _caps(server: Server, index: str, names: Sequence[str], deadline: Deadline) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return name → type → what the mapping says of it, and the indices that match."""
    fields: dict[str, Any] = {}
    indices: tuple[str, ...] = ()
    params = {"ignore_unavailable": "true", "allow_no_indices": "true"}
    if not server.opensearch:
        params["include_empty_fields"] = "false"  # a shipper's template names thousands of fields that no document has
    chunks: list[list[str]] = [[]]
    for name in names:
        if sum(map(len, chunks[-1])) + len(chunks[-1]) > _LINE:
            chunks.append([])
        chunks[-1].append(name)
    for chunk in chunks:
        try:
            reply = server.ask("GET", f"/{index}/_field_caps", deadline, params={**params, "fields": ",".join(chunk)}).body
        except BadAnswer as error:
            if error.status != 400 or params.pop("include_empty_fields", None) is None:
                raise
            reply = server.ask("GET", f"/{index}/_field_caps", deadline, params={**params, "fields": ",".join(chunk)}).body
        fields.update(reply.get("fields") or {})
        indices = tuple(reply.get("indices") or indices)
    return fields, indices


def detect(
    server: Server, index: str, deadline: Deadline, *, preset: str = "", custom: Mapping[str, str | Sequence[str]] | None = None
) -> Fields:
    """
    Ask the server for the fields of an index and return what they mean.

    Parameters
    ----------
    server : Server
        Whom to ask.
    index : str
        Index, alias, data stream or pattern.
    deadline : Deadline
        Until when.
    preset : str
        One of `PRESETS`; empty means the one that fits.
    custom : mapping, optional
        Meaning → field or fields; goes before the preset's.

    Raises
    ------
    ConfigError
        There is no such preset or meaning.
    SourceError
        The server did not answer.
    """
    shipped = presets()
    if preset and preset not in PRESETS:
        raise ConfigError(
            f"elasticsearch.preset {preset!r} is none of {', '.join(PRESETS)}", hint="leave it out to have it detected"
        )
    own: dict[str, tuple[str, ...]] = {}
    for meaning, value in (custom or {}).items():
        if meaning not in MEANINGS:
            raise ConfigError(f"elasticsearch.fields.{meaning} is none of {', '.join(MEANINGS)}", hint="see docs/live.md")
        own[meaning] = (value,) if isinstance(value, str) else tuple(value)
    caps, indices = _caps(server, index, _names([*shipped.values(), own]), deadline)

    if not indices:
        _refused(server, index, deadline)

    def there(meanings: Mapping[str, Sequence[str]]) -> int:
        return sum(any(each.partition("=")[0] in caps for each in meanings.get(name, ())) for name in _TOLD)

    chosen = preset or (
        "custom" if own.get("message") else max(shipped, key=lambda name: (there(shipped[name]), -PRESETS.index(name)))
    )
    order = [own, shipped.get(chosen, {}), *(meanings for name, meanings in shipped.items() if name != chosen)]
    named: dict[str, tuple[str, ...]] = {}
    for meaning in MEANINGS:
        names = dict.fromkeys(name for meanings in order for name in meanings.get(meaning, ()))
        if meaning == "kernel":
            continue
        if meaning in ("message", "time", "offset", "ingested"):
            named[meaning] = tuple(name for name in names if name in caps and "object" not in caps[name])
        else:
            named[meaning] = tuple(exact for name in names if (exact := _exact(name, caps)))
    message = next(iter(named["message"]), "")
    kinds = set(caps.get(message, {}))
    time = next((name for name in named["time"] if {"date", "date_nanos"} & set(caps[name])), "")
    offset = next(
        (name for name in named["offset"] if {"long", "integer", "unsigned_long", "double", "float"} & set(caps[name])), ""
    )
    kernel = dict.fromkeys(each.partition("=")[::2] for meanings in order for each in meanings.get("kernel", ()))
    words = bool(kinds & _WORDS)
    return Fields(
        chosen, named, message, time, offset,
        tuple((exact, value) for name, value in kernel if (exact := _exact(name, caps))),
        words, not message or all(each.get("searchable", True) for each in caps.get(message, {}).values()),
        "date_nanos" in caps.get(time, {}), "/".join(sorted(kinds)), indices,
    )  # fmt: skip


def _refused(server: Server, index: str, deadline: Deadline) -> None:
    """Ask once more, strictly: an index that we may not read is left out above as if there were none."""
    try:
        server.ask("POST", f"/{index}/_search", deadline, body={"size": 0}, params={"allow_no_indices": "false"})
    except BadAnswer:  # 404: there is none
        return


# what tells the shippers apart: all of them have a message and a time
_TOLD = ("message", "pod", "container", "namespace", "node", "job", "rank", "file", "offset")


def _exact(name: str, caps: Mapping[str, Any]) -> str:
    """Return the form of a field that can be filtered by and counted, or an empty text."""
    for form in (name, f"{name}.keyword"):
        if set(caps.get(form, {})) & _EXACT:
            return form
    return ""
