"""
Turn many open sessions of the dashboard into whether it holds: growth of its memory after warm-up, and how late updates come.

    python benchmarks/soak.py [--sessions 20] [--minutes 10] [--warm-up 2] [--gpus 16384] [--period 15] [--node 0.25]

Each session is a websocket that speaks Bokeh's protocol, as a browser's does: it pulls the document, takes patches and is told of each. An
update is late when a session hears of nothing for longer than two periods of the poller (the demo fleet changes with every poll). Budgets:
memory grows at most 10 % from the end of the warm-up to the end, no update later than 2 periods.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.browsing import serve  # noqa: E402

GROWTH, LATE = 0.10, 2.0


@dataclass
class Session:
    """One open page: when patches came (seconds since the begin), and how many bytes."""

    number: int
    path: str
    times: list[float] = field(default_factory=list)
    bytes: int = 0
    error: str = ""


@dataclass
class Soaked:
    """
    What came of it.

    Attributes
    ----------
    memory : list of (seconds, bytes)
        Resident memory of the server.
    growth : float
        From the median of the first minute (or the first fifth) after the warm-up to that of the last, as a share.
    gaps : list of float
        Seconds between two updates, of all sessions after the warm-up.
    """

    sessions: list[Session]
    memory: list[tuple[float, int]]
    growth: float
    gaps: list[float]
    period: float

    @property
    def latest(self) -> float:
        """The longest time between two updates, in periods."""
        return max(self.gaps, default=float("inf")) / self.period

    @property
    def errors(self) -> list[str]:
        """What went wrong in sessions."""
        return [f"session {one.number}: {one.error}" for one in self.sessions if one.error]


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found[1]) * 1024 if found else 0


def _token(address: str, path: str) -> str:
    """Load a page and return its session's token."""
    with urllib.request.urlopen(address + path, timeout=120) as answer:
        text = answer.read().decode("utf-8")
    token = re.search(r'"token":"([^"]+)"', text) or re.search(r"token&quot;:&quot;([^&]+)&quot;", text)
    if token is None:
        raise RuntimeError(f"{path} holds no session: {text[:200]!r}")
    return token[1]


async def open_page(address: str, path: str, *, token: str = "") -> tuple[Any, Callable[[], Awaitable[None]]]:
    """
    Open a page as a browser does, as far as its document, which is asked for and not yet read.

    Parameters
    ----------
    address, path : str
    token : str, optional
        Of a session that the server may have forgotten; default that of a fresh page.

    Returns
    -------
    websocket, callable
        The second says that the page is drawn: what waits for that begins then.
    """
    from tornado.httpclient import HTTPRequest
    from tornado.websocket import websocket_connect

    token = token or await asyncio.to_thread(_token, address, path)
    url = address.replace("http://", "ws://") + path.split("?")[0] + "/ws"
    request = HTTPRequest(url, headers={"Sec-WebSocket-Protocol": f"bokeh, {token}", "Origin": address}, request_timeout=60)
    socket = await websocket_connect(request, subprotocols=["bokeh", token], max_message_size=64 << 20)
    while '"ACK"' not in (await socket.read_message() or '"ACK"'):  # before it the server takes nothing
        pass
    await socket.write_message('{"msgid":"1","msgtype":"PULL-DOC-REQ"}')
    await socket.write_message("{}")
    await socket.write_message("{}")
    return socket, lambda: _loaded(socket)


async def close_page(socket: Any) -> None:
    """Close a page's websocket and hear the server out, so that nothing is left open when the loop ends."""
    socket.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while await socket.read_message() is not None:
                pass


async def _live(session: Session, address: str, begun: float, until: float) -> None:
    """Hold one page open: pull its document, then take what comes."""
    socket, drawn = await open_page(address, session.path)
    try:
        pulled = False
        while (left := until - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(socket.read_message(), left)
            except TimeoutError:
                break
            if message is None:
                why = f"{socket.close_code} {socket.close_reason or ''}".strip()
                session.error = f"the server closed it after {time.monotonic() - begun:.0f} s ({why})"
                break
            session.bytes += len(message)
            if not isinstance(message, str):
                continue
            if not pulled and message.startswith('{"doc"'):
                pulled = True
                await drawn()
            elif '"msgtype": "PATCH-DOC"' in message or '"msgtype":"PATCH-DOC"' in message:
                session.times.append(time.monotonic() - begun)
    finally:
        await close_page(socket)


async def _loaded(socket: Any) -> None:
    """Say that the page is drawn, as a browser does: what waits for that begins then."""
    event = {"type": "event", "name": "document_ready", "values": {"type": "map", "entries": []}}
    patch = {"events": [{"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": event}]}
    await socket.write_message('{"msgid":"2","msgtype":"PATCH-DOC"}')
    await socket.write_message("{}")
    await socket.write_message(json.dumps(patch))


async def _soak(address: str, pid: int, paths: list[str], seconds: float, warm: float, period: float) -> Soaked:
    begun = time.monotonic()
    until = begun + seconds
    sessions = [Session(number, path) for number, path in enumerate(paths)]
    memory: list[tuple[float, int]] = []

    async def watched(one: Session) -> None:
        await asyncio.sleep(one.number * min(0.5, warm / max(len(sessions), 1) / 2))  # people do not come all at once
        try:
            await _live(one, address, begun, until)
        except Exception as error:
            one.error = f"{type(error).__name__}: {error}"

    async def weigh() -> None:
        while time.monotonic() < until:
            memory.append((time.monotonic() - begun, resident(pid)))
            await asyncio.sleep(min(2.0, seconds / 50))

    await asyncio.gather(weigh(), *(watched(one) for one in sessions))
    span = min(60.0, (seconds - warm) / 5)
    first = statistics.median(size for at, size in memory if warm <= at < warm + span)
    last = statistics.median(size for at, size in memory if at >= seconds - span)
    gaps: list[float] = []
    for one in sessions:
        # several patches of one update come together
        times = [at for number, at in enumerate(one.times) if not number or at - one.times[number - 1] > 1.0]
        marks = [warm, *(at for at in times if at >= warm), seconds]
        gaps += [b - a for a, b in itertools.pairwise(marks)]
    return Soaked(sessions, memory, last / first - 1, gaps, period)


def soak(*, sessions: int, seconds: float, warm: float, gpus: int, period: float, nodes: float = 0.25) -> Soaked:
    """
    Hold pages open and return what came of it.

    Parameters
    ----------
    sessions : int
    seconds, warm : float
        How long in all, and how much of that is warm-up.
    gpus : int
        Of the played fleet.
    period : float
        Seconds between two polls.
    nodes : float
        Share of the sessions that look at a node instead of the fleet.
    """
    with serve("--demo", "--gpus", str(gpus), "--every", f"{period:g}s") as address:
        pid: int = serve.process  # type: ignore[attr-defined]
        for _ in range(240):
            with urllib.request.urlopen(f"{address}/api/fresh", timeout=60) as answer:
                fresh = json.load(answer)
            if (fresh.get("fleet") or {}).get("time") and (fresh.get("inbox") or {}).get("time"):
                break
            time.sleep(0.5)
        few = round(sessions * nodes)
        paths = ["/node?node=gpu-node-054" if number < few else "/fleet" for number in range(sessions)]
        return asyncio.run(_soak(address, pid, paths, seconds, warm, period))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="MINUTES")
    parser.add_argument("--gpus", type=int, default=16_384)
    parser.add_argument("--period", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--node", type=float, default=0.25, metavar="SHARE")
    options = parser.parse_args()
    found = soak(
        sessions=options.sessions, seconds=options.minutes * 60, warm=options.warm_up * 60, gpus=options.gpus, period=options.period, nodes=options.node
    )  # fmt: skip
    begin, end = found.memory[0][1], found.memory[-1][1]
    warm = min(found.memory, key=lambda row: abs(row[0] - options.warm_up * 60))[1]
    updates = [len(one.times) for one in found.sessions]
    print(f"{options.sessions} sessions, {options.minutes:g} min, {options.gpus:,} GPUs, a poll every {options.period:g} s")
    print(
        f"  memory      {begin >> 20} MB at first, {warm >> 20} MB warm, {end >> 20} MB at the end: {found.growth:+.1%} (budget +{GROWTH:.0%})"
    )
    print(
        f"  updates     {min(updates)} to {max(updates)} patches a session; {sum(one.bytes for one in found.sessions) / 1e6:.1f} MB in all"
    )
    middle = statistics.median(found.gaps)
    print(f"  lateness    median {middle:.1f} s, worst {max(found.gaps):.1f} s = {found.latest:.2f} periods (budget {LATE:g})")
    for line in found.errors:
        print(f"  problem: {line}")
    good = found.growth <= GROWTH and found.latest <= LATE and not found.errors
    print("  ok" if good else "  OVER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
