"""Turn address, credentials and certificates into a `PrometheusConnect` that asks nothing twice and sends its secrets to one host only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from workbench.errors import ConfigError, SourceUnavailable

__all__ = ["connect"]


def connect(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    username: str | None = None,
    password: str | None = None,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    verify: bool = True,
) -> Any:
    """
    Return a `PrometheusConnect` for a server.

    Parameters
    ----------
    url : str
        With the path prefix that the server has, e.g. ``https://vm.example/select/0/prometheus``; ``user:password@`` is taken out.
    headers : mapping, optional
        Sent with every request.
    token, token_file : optional
        Bearer token; a file is read again for each request, since cluster tokens rotate.
    username, password : str, optional
        Basic authentication.
    ca : path, optional
        Authority to trust.
    certificate, key : path, optional
        Client certificate, and its private key when that is in another file.
    verify : bool
        False trusts any certificate.
    """
    try:
        import requests
        from prometheus_api_client import PrometheusConnect
        from urllib3.util.retry import Retry
    except ImportError as error:
        raise SourceUnavailable(
            f"the Prometheus client is not installed: {error}", hint="pip install 'gpu-reliability-workbench[sources]'"
        ) from error
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{url.rsplit('@', 1)[-1]!r} is no address of a Prometheus", hint="http://HOST:9090 or https://HOST/PREFIX"
        )
    if parts.username and username is None:
        username, password = unquote(parts.username), unquote(parts.password or "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    url = urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path.rstrip("/"), "", ""))
    session = requests.Session()
    session.verify = str(ca) if ca else verify
    if certificate:
        session.cert = (str(certificate), str(key)) if key else str(certificate)
    if token or token_file:
        # as an object, not as a header: requests puts a ~/.netrc entry in place of a header that is there
        session.auth = _bearer(token, token_file)
    elif username is not None:
        session.auth = requests.auth.HTTPBasicAuth((username or "").encode(), (password or "").encode())
    # what is retried, and for how long, depends on the deadline, which the adapter does not know
    retry = Retry(total=0, redirect=0, status=0, respect_retry_after_header=False)
    return PrometheusConnect(url=url, headers=dict(headers or {}), session=session, retry=retry)


def _bearer(token: str | None, file: str | Path | None) -> Callable[[Any], Any]:
    def sign(request: Any) -> Any:
        word = token
        if file is not None:
            try:
                word = Path(file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigError(f"the token file {file} cannot be read: {error.strerror}") from error
        request.headers["Authorization"] = f"Bearer {word}"
        return request

    return sign
