"""Turn a JSON document into one POST within a deadline, and every way in which that fails into words without a secret in them."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from workbench.errors import ConfigError
from workbench.sources.http_words import retry_after

__all__ = ["SECONDS", "Undelivered", "checked", "deliver", "place"]

SECONDS = 15.0  # that a receiver gets


@dataclass(frozen=True, slots=True)
class Undelivered:
    """
    Why a receiver did not take a document.

    Attributes
    ----------
    said : str
        One sentence; of the address only what may be shown.
    code : int or None
        What it answered; None when it did not.
    unsure : bool
        Whether it may have taken it all the same: there is no answer, and the request may have arrived.
    again : float or None
        After how many seconds it asks to be tried again; None when it does not say.
    """

    said: str
    code: int | None = None
    unsure: bool = False
    again: float | None = None


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None  # it would carry what is secret to somebody else


def checked(address: str, what: str, hint: str = "") -> str:
    """Return an address that may be posted to; ConfigError, which does not show it, when it is none."""
    try:
        parts = urlsplit(address.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{what} is no http or https address", hint="the file or variable holds the address and nothing else")
    if parts.username is not None:
        raise ConfigError(f"{what} has an account in it, which is not sent", hint=hint or "put the secret into its path")
    return address.strip()


def place(address: str) -> str:
    """Return what of an address may be shown: its path may be the secret."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def deliver(address: str, body: bytes, headers: Mapping[str, str] | None = None, seconds: float = SECONDS) -> Undelivered | None:
    """Post a JSON document; return why it was not taken, None when it was. A receiver that answers drop by drop is given up too."""
    result: list[Undelivered | None] = []
    sent = {"Content-Type": "application/json", **(headers or {})}
    worker = threading.Thread(target=lambda: result.append(_sent(address, body, sent, seconds)), daemon=True, name="webhook")
    worker.start()
    worker.join(seconds + 1.0)
    return result[0] if result else Undelivered(f"{place(address)} did not answer in time, within {seconds:.0f} s", unsure=True)


def _sent(address: str, body: bytes, headers: dict[str, str], seconds: float) -> Undelivered | None:
    where = place(address)
    try:
        request = urllib.request.Request(address, body, headers, method="POST")
        with urllib.request.build_opener(_Stay).open(request, timeout=seconds):
            return None
    except urllib.error.HTTPError as error:
        with error:
            wait = retry_after(error.headers.get("Retry-After"), error.headers.get("Date"))
        return Undelivered(f"{where} answered {error.code} {_plain(error.reason)}", error.code, again=wait)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        never = isinstance(reason, ConnectionRefusedError | socket.gaierror)
        return Undelivered(f"{where} did not take it: {_plain(reason)}", unsure=not never)
    except Exception as error:  # whatever a broken answer makes of the client
        return Undelivered(f"{where} did not take it: {type(error).__name__}", unsure=True)


def _plain(text: object) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))[:200]
