"""Turn options of `workbench serve` into a server of its own process on a free port of this machine, which is stopped when it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Answer:
    """What a server answered."""

    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)


@dataclass
class Served:
    """A running `workbench serve`; `url` is what it printed."""

    options: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    url: str = ""
    said: list[str] = field(default_factory=list)

    def __enter__(self) -> Served:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workbench", "serve", "--port", "0", *self.options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url.startswith("http"), f"it did not start: {''.join(self.said)}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        """Ask it to end and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._reader.join(10)
            for stream in (self.process.stdout, self.process.stderr):
                if stream:
                    stream.close()

    def ask(
        self, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> Answer:
        """Ask for a path (with its query) below the printed address; errors are answers, redirects are not followed."""
        request = urllib.request.Request(self.url + path, body, headers or {}, method=method)
        try:
            with _OPENER.open(request, timeout=60) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def filled(self, count: int, seconds: float = 120) -> None:
        """Wait until the inbox holds so many incidents."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.ask("/api/fresh").json()["inbox"]["count"] >= count:
                return
            time.sleep(0.2)
        raise AssertionError(f"the inbox did not fill: {''.join(self.said)}")


def login(served: Served, user: str, password: str) -> Answer:
    """Log in and return the answer."""
    form = urllib.parse.urlencode({"username": user, "password": password}).encode()
    return served.ask("/login", body=form, headers={"Content-Type": "application/x-www-form-urlencoded"})


def cookies(answer: Answer) -> dict[str, str]:
    """Return the header that sends an answer's cookies back."""
    return {"Cookie": "; ".join(value.split(";")[0] for value in answer.headers.get_all("Set-Cookie") or ())}
