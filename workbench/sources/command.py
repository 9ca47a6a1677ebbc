"""
Turn a command line into what became of it: both streams within a limit of bytes, how it ended, and all of it within a deadline.

A command of a sick machine hangs: on a dead file server, in a driver that does not answer. Such a process cannot even be killed
(state D), and neither can a thread that waits for it. So nothing here waits without a limit: the command gets a process group of its own,
which is ended as a whole, and what does not end is left behind and said so.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ENDINGS", "LIMIT", "Ran", "environment", "run"]

# how a command can end; all but the first are no answer
ENDINGS = {
    "ok": "it ended with 0 and said what was expected",
    "exit": "it ended with another code",
    "signal": "a signal ended it, and not ours",
    "time-out": "it did not end in time and was killed",
    "too-much": "it printed more than is allowed and was killed",
    "missing": "there is no such program",
    "not-executable": "the program is there and may not or cannot be run",
    "unreachable": "the host in front of the command (ssh) did not let us in",
    "garbage": "it ended with 0 and said something else than expected",
}
LIMIT = 64 << 20  # bytes of standard output
_ERR_LIMIT = 64 << 10  # bytes of standard error that are kept; more is read and dropped, since a full pipe would stop the command
_GRACE = 0.4  # seconds between SIGTERM and SIGKILL, and again until a killed process is given up
_DRAIN = 0.2  # seconds that output may still come after the command ended: a grandchild can hold the pipes open for ever
# what a tool may need of our environment. Not SLURM_TIME_FORMAT, SACCT_FORMAT and the like: they change what a tool prints
_KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "SLURM_CONF",
    "SSH_AUTH_SOCK",
    "KRB5CCNAME",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# programs that join their arguments with blanks and hand them to a shell at the other end
_REMOTE_SHELLS = frozenset({"ssh", "rsh", "slogin", "gsissh", "autossh"})
_left: list[subprocess.Popen[bytes]] = []  # killed and not dead: reaped when they are
_leaving = threading.Lock()  # commands run in several threads: none may lose what another puts there


@dataclass(frozen=True, slots=True)
class Ran:
    """
    What became of one command.

    Attributes
    ----------
    argv : tuple of str
        The whole argument list, its prefix included.
    ending : str
        One of `ENDINGS`.
    code : int or None
        Exit code, when it ended by itself.
    signal : int or None
        The signal that ended it.
    out, err : bytes
        Both streams, cut at their limits.
    seconds : float
        How long it took.
    stuck : bool
        SIGKILL did not end it within the grace: it hangs in the kernel.
    about : str
        What the operating system said when the program could not be started.
    """

    argv: tuple[str, ...]
    ending: str
    code: int | None = None
    signal: int | None = None
    out: bytes = b""
    err: bytes = b""
    seconds: float = 0.0
    stuck: bool = False
    about: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended with 0 and said what was expected."""
        return self.ending == "ok"

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are no UTF-8 become replacement characters."""
        return self.out.decode("utf-8", "replace")

    @property
    def asked(self) -> str:
        """The command as a person would type it."""
        return shlex.join(self.argv)

    @property
    def said(self) -> str:
        """The last line that it wrote to standard error, or else to standard output, fit for a sentence; empty when none."""
        for stream in (self.err, b"" if self.ok else self.out[-4096:]):
            lines = [line.strip() for line in stream.decode("utf-8", "replace").splitlines() if line.strip()]
            if lines:
                return "".join(letter if letter.isprintable() else "?" for letter in lines[-1])[:300]
        return ""

    @property
    def sentence(self) -> str:
        """How it ended, in words that fit after the name of what was asked."""
        tool, said = self.argv[0].rsplit("/", 1)[-1], self.said
        quoted = f": {said}" if said else ""
        if self.ending == "ok":
            return "answered"
        if self.ending == "missing":
            return f"{self.about or tool}: no such program{quoted}"
        if self.ending == "not-executable":
            return f"{self.about or tool} cannot be run{quoted}"
        if self.ending == "unreachable":
            return f"{tool} did not get there{quoted}"
        if self.ending == "time-out":
            hangs = ", and hangs in the kernel: SIGKILL did not end it" if self.stuck else " and was killed"
            return f"did not answer within {self.seconds:.1f} s{hangs}{quoted}"
        if self.ending == "too-much":
            return f"printed more than {len(self.out) >> 20} MiB and was stopped"
        if self.ending == "signal":
            return f"was ended by {_signal_name(self.signal)}{quoted}"
        if self.ending == "garbage":
            start = "".join(letter if letter.isprintable() else " " for letter in self.text[:120]).strip()
            return f"said something else than expected: {start}" if start else "printed nothing"
        return f"ended with {self.code}{quoted}"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the small environment that commands get: where programs and credentials are, the C locale, and what `extra` adds."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # administrators' tools live in sbin, which the PATH of a service or a user often lacks
    kept["PATH"] = f"{kept['PATH']}:/usr/sbin:/sbin" if kept.get("PATH") else _DEFAULT_PATH
    return kept | {"LC_ALL": "C", "LANG": "C"} | dict(extra or {})


@dataclass
class _Started:
    """What the thread that starts a command found."""

    process: subprocess.Popen[bytes] | None = None
    ending: str = ""
    about: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    given_up: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


def _start(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bool, found: _Started) -> None:
    try:
        program = shutil.which(argv[0], os.F_OK, path=env.get("PATH"))
        if program is None or not Path(program).is_file():
            found.ending, found.about = "missing", argv[0]
            return
        if not os.access(program, os.X_OK):
            found.ending, found.about = "not-executable", program
            return
        # A program on a dead file server is met here, in a thread that can be left behind. Starting it would block the whole
        # interpreter, which holds its lock from vfork to exec.
        with open(program, "rb") as stream:
            stream.read(4096)
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,  # a group of its own, and no terminal to ask a password from
            bufsize=0,
        )
        with found.lock:
            found.process = process
            if found.given_up:  # it started after all, and nobody waits for it
                _end(process)
    except FileNotFoundError as error:  # its interpreter, or the folder to start in
        found.ending, found.about = "missing", str(error.filename or argv[0])
    except OSError as error:  # a script without #!, a binary of another machine, no memory to fork
        found.ending, found.about = "not-executable", f"{argv[0]} ({error.strerror})"
    except ValueError as error:  # a NUL in an argument
        found.ending, found.about = "not-executable", f"{argv[0]} ({error})"
    finally:
        found.done.set()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        # the group outlives its leader: whatever the command started and left behind is in it, too
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _end(process: subprocess.Popen[bytes]) -> bool:
    """End the whole group, politely first; return whether its leader is gone."""
    _signal_group(process, signal.SIGTERM)
    gone = _waited(process, _GRACE)
    _signal_group(process, signal.SIGKILL)  # also when the leader went: its children may have ignored the first
    gone = gone or _waited(process, _GRACE)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if not gone:
        with _leaving:
            _left.append(process)
    return gone


def _waited(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def _selecting(process: subprocess.Popen[bytes]) -> Iterator[tuple[selectors.BaseSelector, bool]]:
    """Yield a selector over both streams and, where the kernel has them, the process itself."""
    descriptor = -1
    with selectors.DefaultSelector() as selector:
        try:
            for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            try:
                descriptor = os.pidfd_open(process.pid)
                selector.register(descriptor, selectors.EVENT_READ, "end")
            except (AttributeError, OSError):  # no Linux, or one before 5.3: the caller polls
                pass
            yield selector, descriptor >= 0
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _read(process: subprocess.Popen[bytes], until: float, limit: int, out: bytearray, err: bytearray) -> str:
    """Read both streams until the command ended; return ``""``, or ``time-out`` or ``too-much`` when it did not."""
    with _selecting(process) as (selector, told):
        open_streams, ended, last = 2, False, until
        while True:
            wait = last - time.monotonic()
            if wait <= 0:
                return "" if ended else "time-out"
            if not open_streams and ended:
                return ""
            for key, _ in selector.select(wait if told or ended else min(wait, 0.05)):
                if key.data == "end":
                    selector.unregister(key.fileobj)
                    ended, last = True, min(until, time.monotonic() + _DRAIN)
                    continue
                block = os.read(key.fd, 1 << 20 if key.data == "out" else 1 << 16)
                if not block:
                    selector.unregister(key.fileobj)
                    open_streams -= 1
                elif key.data == "out":
                    out += block[: limit - len(out) + 1]
                    if len(out) > limit:
                        del out[limit:]
                        return "too-much"
                elif len(err) < _ERR_LIMIT:
                    err += block[: _ERR_LIMIT - len(err)]
            if not told and not ended and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                ended, last = True, min(until, time.monotonic() + _DRAIN)


def run(
    argv: Sequence[str],
    *,
    seconds: float,
    prefix: Sequence[str] = (),
    limit: int = LIMIT,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: bytes = b"",
    expect: Callable[[bytes], bool] | None = None,
) -> Ran:
    """
    Run one command and return what became of it; never raises for what a command does.

    Parameters
    ----------
    argv : sequence of str
        Program and arguments; never a shell, so nothing in them is interpreted.
    seconds : float
        After this time the command is ended. The call returns at most a second later, also when the command cannot be killed.
    prefix : sequence of str
        What to put in front, e.g. ``("ssh", "login-1")`` or ``("sudo", "-n")``. With a remote shell in it every argument is quoted for
        that shell, and the locale and `env` travel along.
    limit : int
        Bytes of standard output after which the command is stopped.
    env : mapping, optional
        Added to `environment`.
    cwd : str, optional
        Where to run it.
    stdin : bytes
        At most 64 KiB for its standard input; without any it reads end of file.
    expect : callable, optional
        Told the output of a command that ended with 0, returns whether it is what was asked for; if not, the ending is ``garbage``.

    Returns
    -------
    Ran
        With one of `ENDINGS`; output that came before a time-out is kept.
    """
    begun = time.monotonic()
    with _leaving:
        _left[:] = [process for process in _left if process.poll() is None]
    whole = [*prefix, *argv]
    if prefix:
        passed = {"LC_ALL": "C"} | dict(env or {})
        argv = ["env", *(f"{name}={value}" for name, value in passed.items()), *argv]
        whole = [*prefix, *(shlex.quote(word) for word in argv)] if _remote(prefix) else [*prefix, *argv]
    shown = tuple(whole)
    until = begun + max(seconds, 0.0)
    found = _Started()
    starter = threading.Thread(
        target=_start, args=(whole, environment(env), cwd, bool(stdin), found), name="workbench-start", daemon=True
    )
    starter.start()
    if not found.done.wait(max(0.0, until - time.monotonic())):
        with found.lock:
            found.given_up = True
            process = found.process
        if process is None:
            return Ran(shown, "time-out", seconds=time.monotonic() - begun, stuck=True)
    if found.process is None:
        return Ran(shown, found.ending, seconds=time.monotonic() - begun, about=found.about)
    process = found.process
    if process.stdin is not None:
        try:  # fits into the pipe, so this cannot block
            process.stdin.write(stdin[: 64 << 10])
        except BrokenPipeError:
            pass
        process.stdin.close()
    out, err = bytearray(), bytearray()
    failed = _read(process, until, limit, out, err)
    # While the leader is not waited for, the number of its group cannot be anybody else's.
    gone = _end(process) if failed else _tidied(process)
    code = process.returncode if gone else None
    return Ran(
        shown,
        failed or _ending(code, bytes(out), prefix, expect),
        code=code if code is not None and code >= 0 and not failed else None,
        signal=-code if code is not None and code < 0 else None,
        out=bytes(out),
        err=bytes(err),
        seconds=time.monotonic() - begun,
        stuck=not gone,
    )


def _tidied(process: subprocess.Popen[bytes]) -> bool:
    """End what a command that ended left in its group, and take its exit code; return whether it was there."""
    _signal_group(process, signal.SIGKILL)
    gone = _waited(process, _GRACE)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if not gone:
        with _leaving:
            _left.append(process)
    return gone


def _ending(code: int | None, out: bytes, prefix: Sequence[str], expect: Callable[[bytes], bool] | None) -> str:
    if code is None:
        return "time-out"
    if code < 0:
        return "signal"
    if code == 255 and _remote(prefix):
        return "unreachable"
    if prefix and code in (126, 127):  # what env, sudo and shells end with
        return "missing" if code == 127 else "not-executable"
    if code:
        return "exit"
    return "ok" if expect is None or expect(out) else "garbage"


def _remote(prefix: Sequence[str]) -> bool:
    return any(word.rsplit("/", 1)[-1] in _REMOTE_SHELLS for word in prefix)
