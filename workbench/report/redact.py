"""Turn text that may leave the site into text without the names a site lists and without anything that looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["redact", "redact_tree"]

# Each row: what it is, and the expression whose group 1 (when there is one) stays. Shapes as their issuers document them.
_SECRETS: tuple[tuple[str, re.Pattern[str]], ...] = (
    # Authorization: Bearer eyJhbGciOi…
    ("token", re.compile(r"(?i)\b((?:authorization\s*[:=]\s*)?(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{12,}")),
    # postgres://user:secret@host/db
    ("password", re.compile(r"([a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,80}:)[^\s/@]{1,200}(?=@)")),
    # WANDB_API_KEY=0123…  password: "hunter2"  aws_secret_access_key = …
    (
        "secret",
        re.compile(
            r"(?i)\b([\w.-]{0,40}(?:password|passwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token|private[_-]?key)[\w.-]{0,20}"
            r"[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]{4,}"
        ),
    ),
    # hf_… (Hugging Face), ghp_… (GitHub), sk-… , AKIA… (AWS key id), eyJ….eyJ….… (JWT)
    (
        "token",
        re.compile(r"\b()(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16})\b"),
    ),
    ("token", re.compile(r"\b()eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*")),
)


def redact(names: Iterable[str] = ()) -> Callable[[str], str]:
    """
    Return a function that blanks secrets and replaces each of `names` by a pseudonym that is the same wherever it occurs.

    Parameters
    ----------
    names : iterable of str
        Words that must not leave: hosts, people, projects. Case is ignored; longer names are replaced first.

    Examples
    --------
    >>> hide = redact(["gpu-node-017", "ACME"])
    >>> hide("gpu-node-017: acme run, api_key=abcdef123")
    '[name-1]: [name-2] run, api_key=[secret]'
    """
    numbers: dict[str, str] = {}
    for name in names:
        if name.strip():
            numbers.setdefault(name.strip().lower(), f"[name-{len(numbers) + 1}]")
    ordered = sorted(numbers, key=len, reverse=True)
    # a name is not part of a longer word: `node-1` must not turn `node-17` into `[name-1]7`
    listed = re.compile(r"(?i)(?<![A-Za-z0-9])(?:" + "|".join(map(re.escape, ordered)) + r")(?![A-Za-z0-9])") if ordered else None

    def hide(text: str) -> str:
        for what, shape in _SECRETS:
            text = shape.sub(rf"\g<1>[{what}]", text)
        if listed is not None:
            text = listed.sub(lambda match: numbers[match.group().lower()], text)
        return text

    return hide


def redact_tree(value: Any, hide: Callable[[str], str]) -> Any:
    """Return a copy of a JSON value with `hide` applied to every text in it, keys included."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(str(key)): redact_tree(item, hide) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(item, hide) for item in value]
    return value
