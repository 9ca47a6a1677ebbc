"""Turn text that may leave the site into text without the names a site lists, without people, and without what looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.errors import ConfigError

__all__ = ["FIXED", "hide_document", "names_in", "redact", "redact_tree"]

# fields of our documents that machines read and whose words are a closed list: they stay, whatever a site lists
FIXED = ("schema", "cause", "class", "retry", "remediation", "status", "at_fault", "role", "signature", "action", "verb", "rung")

# Tokens that can be told by their shape alone, as their issuers document them (GitHub, GitLab, Slack, AWS, Google, Hugging Face, Weights &
# Biases, NVIDIA NGC, OpenAI and Anthropic, PyPI, npm, Docker, HashiCorp Vault, JSON Web Tokens).
_TOKENS = "|".join(
    (
        r"gh[pousr]_[A-Za-z0-9]{20,255}",
        r"github_pat_[A-Za-z0-9_]{22,255}",
        r"gl(?:pat|rt|dt|cbt|ptt|soat|ft|agent)-[A-Za-z0-9_.-]{20,255}",
        r"xox[abeoprs]-[A-Za-z0-9-]{10,255}",
        r"xapp-[A-Za-z0-9-]{10,255}",
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
        r"AIza[A-Za-z0-9_-]{35}",
        r"ya29\.[A-Za-z0-9_-]{20,}",
        r"GOCSPX-[A-Za-z0-9_-]{20,}",
        r"hf_[A-Za-z0-9]{20,}",
        r"wandb_v1_[A-Za-z0-9_]{20,}",
        r"local-[0-9a-f]{40}",
        r"nvapi-[A-Za-z0-9_-]{20,}",
        r"sk-[A-Za-z0-9_-]{20,}",
        r"pypi-[A-Za-z0-9_-]{20,}",
        r"npm_[A-Za-z0-9]{30,}",
        r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",
        r"hv[sbr]\.[A-Za-z0-9_-]{20,}",
        r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
    )
)
# systemd units (slurmd@gpu.service) and names that exist only inside a site look like e-mail addresses and are none
_NO_MAIL = r"(?!\S*\.(?:service|socket|timer|scope|slice|target|mount|path|device|swap|local|internal|lan|svc)\b)"

# Each row: words of which one must be there (lower case, so that most lines cost a search and no expression), what stands in its place, and
# the expression whose group 1 stays in front of it. The order counts: what holds others comes first.
_SHAPES: tuple[tuple[tuple[str, ...], str, re.Pattern[str]], ...] = (
    # -----BEGIN OPENSSH PRIVATE KEY----- …; a line that was cut has no end
    (
        ("private key-----",),
        "[key]",
        re.compile(
            r"()-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(?:(?!-----END)[\s\S]){0,20000}(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?"
        ),
    ),
    # Authorization: Bearer eyJhbGciOi…; Cookie: session=…
    (
        ("bearer", "basic"),
        "[token]",
        re.compile(r"(?i)\b((?:authorization\s*[:=]\s*)?(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{12,}"),
    ),
    (("cookie",), "[cookie]", re.compile(r"(?i)\b((?:set-)?cookie\s*:\s*)(?!\[cookie\])[^\r\n]{4,}")),
    # postgres://bob:secret@host/db; https://TOKEN@host: the account may be a person's
    (("://",), "[account]", re.compile(r"\b([a-z][a-z0-9+.-]{1,20}://)(?!\[account\]@)[^\s/@\"'<>]{1,300}(?=@)")),
    # the path of these addresses is the secret
    (("hooks.slack",), "[secret]", re.compile(r"(?i)(https?://hooks\.slack\.com/(?:services|workflows)/)[^\s\"'<>]+")),
    (("/webhooks/",), "[secret]", re.compile(r"(?i)(https?://(?:[\w-]+\.)?discord(?:app)?\.com/api/webhooks/)[^\s\"'<>]+")),
    (("webhook.office",), "[secret]", re.compile(r"(?i)(https?://[\w.-]+\.webhook\.office\.com/webhook\w*/)[^\s\"'<>]+")),
    # signed addresses of S3, GCS and Azure
    (
        ("sig", "x-amz", "x-goog", "awsaccess"),
        "[secret]",
        re.compile(
            r"(?i)([?&](?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|sig|Signature|AWSAccessKeyId)=)[^\s&\"'<>]{4,}"
        ),
    ),
    # WANDB_API_KEY=0123…  password: "hunter2"  aws_secret_access_key = …  AccountKey=…
    (
        ("passw", "passphrase", "secret", "key", "auth"),
        "[secret]",
        re.compile(
            r"(?i)\b([\w.-]{0,40}(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|account[_-]?key|auth[_-]?token|"
            r"private[_-]?key)[\w.-]{0,20}[\"']?\s*[=:]\s*[\"']?)(?!\[secret\])[^\s\"',;]{4,}"
        ),
    ),
    # HF_TOKEN=…, --token …: not `num_tokens=4096`, so what stands there must be long and hold a digit
    (
        ("token",),
        "[token]",
        re.compile(r"(?i)((?:\w{1,40}_|\b)token[\"']?\s*[=: ]\s*[\"']?)(?=[^\s\"',;]*\d)[A-Za-z0-9._~+/=-]{16,}"),
    ),
    ((), "[token]", re.compile(rf"(?<![A-Za-z0-9])()(?:{_TOKENS})(?![A-Za-z0-9])")),
    # wandb login 0123…: forty hexadecimal digits alone would be any Git commit
    (("wandb",), "[token]", re.compile(r"(?i)(\bwandb\b[^\n]{0,40}?\b)[0-9a-f]{40}\b")),
    (
        ("@",),
        "[email]",
        re.compile(
            rf"(?<![A-Za-z0-9._%+-])(){_NO_MAIL}[A-Za-z0-9._%+-]{{1,64}}@(?:[A-Za-z0-9-]{{1,63}}\.){{1,8}}[A-Za-z]{{2,24}}\b"
        ),
    ),
    # people: a shell's prompt, a home, a field that names the account
    (
        ("@",),
        "[user]",
        re.compile(r"^(\s*(?:\([\w.-]{1,60}\)\s*)?\[?)(?!root@)[A-Za-z_][\w.-]{0,31}(?=@[\w.-]{1,80}[: ][^#$%\n]{0,200}[#$%]\s)"),
    ),
    (
        ("/home/", "/users/", "/scratch/"),
        "[user]",
        re.compile(r"(/(?:home|users|Users|scratch)/)(?!\[user\])[^/\s\"'`:,;()<>\[\]]{1,64}"),
    ),
    (
        ("user", "logname", "owner"),
        "[user]",
        re.compile(
            r"(?i)(\b(?:slurm_job_|job_|k8s_)?(?:user|username|user_name|userid|user_id|logname)=[\"']?|"
            r"[\"'](?:user|username|user_name|owner)[\"']\s*:\s*[\"'])(?!\[user\]|root\b)[a-z_][\w.-]{0,63}"
        ),
    ),
)


def redact(names: Iterable[str] = (), *, people: Iterable[str] = ()) -> Callable[[str], str]:
    """
    Return a function that blanks secrets and people and replaces each of `names` by a pseudonym that is the same wherever it occurs.

    What is hidden without being listed: keys and tokens of known shapes, whatever stands behind a name such as ``password`` or
    ``HF_TOKEN``, accounts in addresses, signed addresses, e-mail addresses, and people in homes, prompts and fields that name an account.

    Parameters
    ----------
    names : iterable of str
        Words that must not leave: hosts, projects. Case is ignored; longer names are replaced first.
    people : iterable of str
        Accounts that the evidence names: each becomes ``[user]``.

    Examples
    --------
    >>> hide = redact(["gpu-node-017", "ACME"], people=["alice"])
    >>> hide("gpu-node-017: acme run of alice, api_key=abcdef123")
    '[name-1]: [name-2] run of [user], api_key=[secret]'
    """
    known = {name.strip().lower(): "[user]" for name in people if len(name.strip()) > 1}
    listed = 0
    for name in names:
        word = name.strip().lower()
        if word and not known.get(word, "").startswith("[name"):
            listed += 1
            known[word] = f"[name-{listed}]"
    ordered = sorted(known, key=len, reverse=True)
    # a name is not part of a longer word: `node-1` must not turn `node-17` into `[name-1]7`; nor of what was put in its place already
    pattern = (
        re.compile(r"(?i)(?<![A-Za-z0-9\[])(?:" + "|".join(map(re.escape, ordered)) + r")(?![A-Za-z0-9])") if ordered else None
    )

    def hide(text: str) -> str:
        low = text.lower()
        for words, instead, shape in _SHAPES:
            if not words or any(word in low for word in words):
                text = shape.sub(rf"\g<1>{instead}", text)
        if pattern is not None:
            text = pattern.sub(lambda match: known[match.group().lower()], text)
        return text

    return hide


def names_in(listed: Iterable[str]) -> list[str]:
    """
    Return the names of ``--redact`` or of the setting ``report.redact``, those of files (``@FILE``, one name a line) read.

    Raises
    ------
    ConfigError
        A file cannot be read: then nothing may leave, since nobody knows what it would have held back.
    """
    names: list[str] = []
    for name in listed:
        if name.startswith("@"):
            try:
                names += Path(name[1:]).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"--redact {name}: {error}", hint="give a text file with one name a line") from error
        else:
            names.append(name)
    return names


def redact_tree(value: Any, hide: Callable[[str], str]) -> Any:
    """Return a copy of a JSON value with `hide` applied to every text in it, keys included."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(str(key)): redact_tree(item, hide) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(item, hide) for item in value]
    return value


def hide_document(value: Any, hide: Callable[[str], str]) -> Any:
    """Return a copy of one of our JSON documents with `hide` applied to every text but those of `FIXED`; our own keys stay."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        # a key that is no plain word of ours (a node's name in `clock_skew`) is a text like any other
        return {
            (key if re.fullmatch(r"[a-z_]+", str(key)) else hide(str(key))): item if key in FIXED else hide_document(item, hide)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [hide_document(item, hide) for item in value]
    return value
