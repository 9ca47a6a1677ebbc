"""Turn a file of users, or a provider of OAuth, into Panel's login, with cookies that no other site can use and guesses that take their time."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from pathlib import Path
from typing import Any

from panel.auth import AUTH_PROVIDERS, BasicAuthProvider, BasicLoginHandler

from workbench.errors import ConfigError

__all__ = ["FileLogin", "offer_oauth", "users_of"]

_LOG = logging.getLogger(__name__)
PAUSE = 1.0  # seconds that a wrong password costs; the others of that connection wait, nobody else


def users_of(path: Path | str) -> dict[str, str]:
    """
    Return user → password of a JSON file.

    Raises
    ------
    ConfigError
        It cannot be read or is no such file: nobody gets in by a mistake in it.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--basic-auth {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"--basic-auth {path}: no JSON: {error}", hint='{"maria": "her password"}') from error
    if not isinstance(document, dict) or not document:
        raise ConfigError(f"--basic-auth {path}: it must map users to passwords", hint='{"maria": "her password"}')
    for user, password in document.items():
        if not user or not isinstance(password, str) or not password:
            raise ConfigError(f"--basic-auth {path}: {user!r} has no password", hint="an empty one would let everybody in")
    return document


class _OwnCookies:
    """Cookies of a login that no other site's page can send and no unencrypted connection carries."""

    request: Any

    def set_cookie(self, name: str, value: str | bytes, *words: Any, **more: Any) -> None:
        more.setdefault("samesite", "Lax")
        if self.request.protocol == "https":
            more.setdefault("secure", True)
        super().set_cookie(name, value, *words, **more)  # type: ignore[misc]


class _Handler(_OwnCookies, BasicLoginHandler):
    users: Path

    async def post(self) -> None:
        user, password = self.get_body_argument("username", ""), self.get_body_argument("password", "", strip=False)
        try:
            known = users_of(self.users)  # read anew: a user that is taken out is out
        except ConfigError as error:
            _LOG.error("%s", error)
            known = {}
        expected = known.get(user, "")
        # compared also for a user that there is not: the time must not tell who there is
        if hmac.compare_digest(password.encode(), expected.encode()) and expected:
            self.set_current_user(user)
            self.redirect(self._next())
            return
        _LOG.warning("a login failed, from %s", self.request.remote_ip)
        await asyncio.sleep(PAUSE)
        self.redirect("./login?error=1")

    def _next(self) -> str:
        from panel.auth import _validate_next_url
        from panel.io.state import state

        return str(_validate_next_url(self.get_cookie("next_url", state.base_url)) or state.base_url)


class FileLogin(BasicAuthProvider):
    """Panel's provider with our handler."""

    def __init__(self, users: Path | str, **templates: str) -> None:
        users_of(users)
        self._users = Path(users)
        super().__init__(**templates)

    @property
    def login_handler(self) -> type[_Handler]:
        """The handler of ``/login``."""
        _Handler._login_endpoint, _Handler._login_template, _Handler.users = (
            self._login_endpoint,
            self._login_template,
            self._users,
        )
        return _Handler


def offer_oauth(provider: str) -> None:
    """
    Let one of Panel's providers lead back to our login, wherever that is served, and set cookies as ours does.

    Panel leads back to the first page instead, which below a prefix is no page at all, and its cookies are open to other sites.

    Raises
    ------
    ConfigError
        There is no such provider, or what it knows the dashboard by is not set.
    """
    import panel as pn

    known = sorted(name for name in AUTH_PROVIDERS if name not in ("basic", "password", "pam"))
    if provider not in known:
        raise ConfigError(f"--oauth {provider}: there is no such provider", hint=f"one of {', '.join(known)}")
    if not pn.config.oauth_key or (provider != "auth_code" and not pn.config.oauth_secret):  # PKCE needs no secret
        raise ConfigError(
            f"--oauth {provider}: PANEL_OAUTH_KEY or PANEL_OAUTH_SECRET is not set", hint="both are what the provider gave you"
        )
    inner: Any = AUTH_PROVIDERS[provider]
    if not issubclass(inner, _OwnCookies):
        AUTH_PROVIDERS[provider] = type(inner.__name__, (_OwnCookies, inner), {"_redirect_uri": property(_back)})


def _back(handler: Any) -> str:
    """Return the address that the provider sends people back to: the one that is set, else the login of the name that they asked for."""
    from panel.config import config
    from panel.io.state import state

    return str(config.oauth_redirect_uri or f"{handler.request.protocol}://{handler.request.host}{state.base_url}login")
