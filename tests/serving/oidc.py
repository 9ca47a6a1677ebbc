"""Turn a table of people into an OpenID provider on a free port of this machine: authorize, token, userinfo, as much as a login needs."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

__all__ = ["Provider"]

CLIENT, SECRET = "workbench", "a secret of the test"


class Provider:
    """
    A running provider; who logs in is `user`, as if he had typed his password already.

    Attributes
    ----------
    user : str
    id_token : bool
        Whether the token endpoint gives an ID token, or only what userinfo wants.
    asked : list of str
        Paths that were asked for, with their query.
    """

    def __init__(self) -> None:
        self.user, self.id_token = "maria", False
        self.asked: list[str] = []
        self.refused: list[str] = []
        self._codes: dict[str, tuple[str, str]] = {}
        self._tokens: dict[str, str] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def _send(self, status: int, document: Any = None, **headers: str) -> None:
                body = b"" if document is None else json.dumps(document).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                provider.asked.append(self.path)
                url = urllib.parse.urlsplit(self.path)
                words = dict(urllib.parse.parse_qsl(url.query))
                if url.path == "/authorize":
                    if words.get("client_id") != CLIENT or words.get("response_type") != "code":
                        self._send(400, {"error": "invalid_request"})
                        return
                    code = secrets.token_urlsafe(8)
                    provider._codes[code] = (provider.user, words["redirect_uri"])
                    back = urllib.parse.urlencode({"code": code, "state": words["state"]})
                    self._send(302, Location=f"{words['redirect_uri']}?{back}")
                elif url.path == "/userinfo":
                    user = provider._tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
                    self._send(200 if user else 401, {"email": user, "sub": user} if user else {"error": "invalid_token"})
                else:
                    self._send(404, {"error": "not_found"})

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                words = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                user, redirect = provider._codes.pop(words.get("code", ""), ("", ""))
                good = (words.get("client_id"), words.get("client_secret"), words.get("redirect_uri")) == (
                    CLIENT,
                    SECRET,
                    redirect,
                )
                if self.path != "/token" or not user or not good or words.get("grant_type") != "authorization_code":
                    provider.refused.append(str(words))
                    self._send(400, {"error": "invalid_grant"})
                    return
                token = secrets.token_urlsafe(16)
                provider._tokens[token] = user
                answer = {"access_token": token, "token_type": "Bearer", "expires_in": 3600}
                if provider.id_token:
                    answer["id_token"] = _jwt({"email": user, "sub": user, "aud": CLIENT})
                self._send(200, answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def environment(self, redirect: str = "") -> dict[str, str]:
        """Return the variables by which Panel's generic provider knows this one."""
        urls = {"AUTHORIZE_URL": "/authorize", "TOKEN_URL": "/token", "USER_URL": "/userinfo"}
        return {
            "PANEL_OAUTH_KEY": CLIENT,
            "PANEL_OAUTH_SECRET": SECRET,
            "PANEL_OAUTH_EXTRA_PARAMS": json.dumps({name: self.url + path for name, path in urls.items()}),
            **({"PANEL_OAUTH_REDIRECT_URI": redirect} if redirect else {}),
        }

    def __enter__(self) -> Provider:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def _jwt(claims: dict[str, str]) -> str:
    """Return claims as a token; nobody checks its signature, since it comes from the provider itself."""
    parts = (json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "c2lnbmF0dXJl"])
