"""
Turn a command into a job under our eyes: its output kept and passed on, terminal and signals passed through, its end and what it left behind.

One loop, no thread: it waits for output, signals and the next look at the clock. All signals reach it through one pipe, so none is handled
in the middle of something else. Imports are few, since the job waits for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.training import lineage
from workbench.training.listening import STOPPING, Exit, Signals
from workbench.training.output import Record, Sink
from workbench.training.terminal import Terminal, same_file

__all__ = ["Child"]

_READ = 1 << 18
_PIPE = 1 << 20  # bytes that the job may be ahead of us, where the kernel allows it (/proc/sys/fs/pipe-max-size)
_TICK = 1.0  # seconds between two looks at progress; nothing else wakes us while the job is silent
_SETPIPE_SZ = 1031  # F_SETPIPE_SZ of linux/fcntl.h; Python has the name since 3.10, on Linux
_KILLING = 0.2  # seconds between two rounds of SIGKILL
_SETTLE = 3.0  # seconds after which what SIGKILL did not end is left behind: it hangs in the kernel
_LEFTOVER = 5.0  # seconds that processes may take to end once the command itself has ended
_DRAIN = 0.2  # seconds that the last output may take to arrive when somebody whom we cannot end holds the stream open
# Python ignores these two, and so would the job
_OWN_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)


class Child:
    """
    A command that runs.

    Parameters
    ----------
    command : sequence of str
        Program and arguments; never a shell.
    env : mapping
        Its whole environment.
    record : Record
        Where its output is kept.
    mark : str
        An entry of `env` that nobody else's processes have: `NAME=VALUE`.
    grace : float, optional
        Seconds between SIGTERM and SIGKILL.
    whole : bool, optional
        This process does nothing else and has no other children (the command line); a program that calls us has.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        record: Record,
        mark: str,
        *,
        grace: float = 30.0,
        whole: bool = False,
    ) -> None:
        self.command, self.env, self.record, self.mark = list(command), env, record, mark
        self.grace, self.whole = grace, whole
        self.pid = 0
        self.guard = 0
        self.helper = 0  # a process of ours beside the guard, which is none of the job's
        self.exit = Exit(time.time())
        self.stopped = False
        self._leash = -1
        self._status: int | None = None
        self._kill_at = self._give_up = 0.0
        self._interrupts = 0
        self._told: list[str] = []
        self._sources: dict[int, Sink] = {}  # our ends of the job's streams, and where their bytes go
        self._sinks: list[Sink] = []
        self._reading: set[int] = set()
        self._writing: dict[int, Sink] = {}
        self._feed: Callable[[bytes], object] | None = None
        self._polled = False  # nobody tells us of signals: we look
        self._terminal: Terminal | None = None

    # Start ---------------------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Start it; False, with the reason in `exit`, when it cannot be."""
        terminal = self._terminal = Terminal.wanted()
        actions: list[tuple[int, int, int] | tuple[int, int] | tuple[int, int, str, int, int]] = []
        close: list[int] = []
        if terminal.pty:
            slave = terminal.open()
            if terminal.reads:
                actions.append((os.POSIX_SPAWN_OPEN, 0, slave, os.O_RDWR, 0))
            actions.append((os.POSIX_SPAWN_OPEN, 1, slave, os.O_RDWR, 0))
            self._sources[terminal.master] = Sink(1)
            if os.isatty(2):
                actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
        else:
            out = self._pipe(1, close)
            actions.append((os.POSIX_SPAWN_DUP2, out, 1))
            if same_file(1, 2):
                actions.append((os.POSIX_SPAWN_DUP2, out, 2))
        if not any(len(one) == 3 and one[2] == 2 for one in actions):
            actions.append((os.POSIX_SPAWN_DUP2, self._pipe(2, close), 2))
        if self.whole:
            lineage.reaper()  # before it starts: what loses its parent at once must fall to us, too
        self.exit.started = time.time()
        try:
            words: dict[str, Any] = {"setsid": True} if terminal.pty else {"setpgroup": 0}
            self.pid = os.posix_spawnp(
                self.command[0],
                self.command,
                self.env,
                file_actions=actions,
                setsigdef=[*_OWN_DEFAULT, signal.SIGTTOU, *terminal.default],
                **words,
            )
        except OSError as error:
            self.exit.trouble = error.strerror or str(error)
            self.exit.code = 127 if isinstance(error, FileNotFoundError) else 126
            self._sources.pop(terminal.master, None)
            terminal.close()
            for source in self._sources:
                os.close(source)
            return False
        finally:
            for number in close:
                os.close(number)
        self._sinks = list(self._sources.values())
        terminal.give(self.pid)
        return True

    def _pipe(self, target: int, close: list[int]) -> int:
        source, sink = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(sink, _SETPIPE_SZ, _PIPE)
        self._sources[source] = Sink(target)
        close.append(sink)
        return sink

    def protect(self) -> None:
        """Start the guard that ends the job when we are killed."""
        beside = os.pipe()
        try:
            self.guard = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", lineage.__file__, self.mark, str(min(self.grace, 10.0))],
                {"PATH": os.defpath},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, beside[0], 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigdef=_OWN_DEFAULT,
            )
            self._leash = beside[1]
        except OSError:  # no memory for one more process: the job runs all the same
            os.close(beside[1])
            self.guard = 0
        finally:
            os.close(beside[0])

    # The loop ------------------------------------------------------------------------------------------------------------

    def watch(
        self,
        signals: Signals,
        tick: Callable[[float], str | None] | None = None,
        feed: Callable[[bytes], object] | None = None,
    ) -> Exit:
        """
        Follow it to its end.

        Parameters
        ----------
        signals : Signals
            Open.
        tick : callable, optional
            Called each second with the time (`time.monotonic`) while the job runs and is not stopped; a text that it returns says why the
            job must end now.
        feed : callable, optional
            Called with each piece of output.
        """
        terminal = self._terminal
        assert terminal is not None
        poll = select.poll()
        poll.register(signals.file, select.POLLIN)
        if terminal.pty and terminal.reads:
            poll.register(0, select.POLLIN)
        self._feed, self._polled = feed, signals.deaf
        next_tick, ended = time.monotonic() + _TICK, 0.0
        try:
            self._reap()  # it may have ended before we listened
            while True:
                now = time.monotonic()
                if self._status is not None and not ended:
                    ended = now
                    self._leftover(now)
                if self._kill_at and (ended or now >= self._kill_at):
                    self._check(now)
                if ended and not self._kill_at and self._drained(now - ended):
                    break
                self._listen(poll)
                for number, _ in poll.poll(self._wait(now, next_tick if tick else 0.0, bool(ended))):
                    if number == signals.file:
                        self._handle(signals.take(), terminal)
                    elif number in self._reading:
                        self._read(number, terminal)
                    elif number in self._writing:
                        self._writing[number].push()
                    elif number == 0 and not self._keys(terminal):
                        poll.unregister(0)
                if self.record.trouble:
                    self.record.flush()
                if terminal.full:
                    terminal.feed()
                if self._polled:
                    self._reap()
                now = time.monotonic()
                if tick and now >= next_tick:
                    next_tick = now + _TICK
                    if self._status is None and not self.stopped and not self._kill_at and (why := tick(now)):
                        self.exit.why = why
                        self.end(self.grace)
        finally:
            terminal.close()
            self._release()
        self.exit.warnings = tuple(self._told)
        return self.exit

    def _listen(self, poll: select.poll) -> None:
        """Read only from streams whose bytes can be passed on, and wait for those that cannot take them yet."""
        full = {sink.file: sink for sink in self._sinks if sink.waiting and not sink.gone}
        for number in [each for each in self._writing if each not in full]:
            poll.unregister(number)
            del self._writing[number]
        for number, sink in full.items():
            if number not in self._writing:
                poll.register(number, select.POLLOUT)
                self._writing[number] = sink
        for number, sink in self._sources.items():
            if sink.file in full:
                if number in self._reading:
                    poll.unregister(number)
                    self._reading.discard(number)
            elif number not in self._reading:
                poll.register(number, select.POLLIN)
                self._reading.add(number)
        for number in [each for each in self._reading if each not in self._sources]:  # at their end
            poll.unregister(number)
            self._reading.discard(number)
            if self._terminal is None or number != self._terminal.master:
                os.close(number)

    def _wait(self, now: float, tick: float, ended: bool) -> float | None:
        """Return milliseconds until there is something to do without being told; None when there is no such time."""
        times = [tick] if tick else []
        if self._kill_at:
            times.append(now + 0.05 if ended else self._kill_at)
        if ended:
            times.append(now + 0.02)
        if self.record.trouble or self._polled or (self._terminal is not None and self._terminal.full):
            times.append(now + 0.2)
        return max(0.0, (min(times) - now) * 1000) + 1 if times else None

    def _read(self, number: int, terminal: Terminal) -> None:
        try:
            data = os.read(number, _READ)
        except (InterruptedError, BlockingIOError):
            return
        except OSError:  # a pseudo terminal whose other end is closed says so in this way
            data = b""
        kept = data
        if number == terminal.master:
            kept = terminal.plain(data, end=not data)
        if kept:
            self.record.write(kept)
            if self._feed is not None:
                self._feed(kept)
        if data:
            self._sources[number].write(data)
            return
        del self._sources[number]

    def _drained(self, since: float) -> bool:
        """Tell whether all that was printed is read and passed on; what a process that we cannot end holds open is not waited for."""
        if any(sink.waiting and not sink.gone for sink in self._sinks):
            return False
        return not self._sources or since > _DRAIN

    # Signals -------------------------------------------------------------------------------------------------------------

    def _handle(self, numbers: bytes, terminal: Terminal) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                self._reap()
                continue
            name = signal.Signals(number).name
            if number == signal.SIGWINCH and terminal.pty:
                terminal.resize()
                continue
            if number == signal.SIGCONT:
                self._resume(terminal)
                continue
            if number != signal.SIGWINCH:
                self._told.append(name)
            if number == signal.SIGTSTP and terminal.pty:
                self.signal(signal.SIGSTOP)  # the group is an orphan in its session: the kernel would drop the other one
            elif number == signal.SIGINT:
                self.interrupt()
            else:
                self.signal(number)
                if number in STOPPING and self.exit.why == "exit":
                    self.exit.why = STOPPING[number]
                    self._kill_at = self._kill_at or time.monotonic() + self.grace

    def interrupt(self, *, sent: bool = False) -> None:
        """Pass on SIGINT; the second one ends the job in order, the third at once."""
        self._interrupts += 1
        if self.exit.why == "exit":
            self.exit.why = "interrupt"
        if self._interrupts == 1:
            if not sent:
                self.signal(signal.SIGINT)
        else:
            self.end(self.grace if self._interrupts == 2 else 0.0)

    def signal(self, number: int) -> None:
        """Send a signal to the job's process group."""
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def end(self, grace: float) -> None:
        """End the job in order: SIGTERM now, SIGKILL after the grace."""
        if grace > 0:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        at = time.monotonic() + grace
        self._kill_at = min(self._kill_at, at) if self._kill_at else at

    def _keys(self, terminal: Terminal) -> bool:
        """Pass on what is typed; False when there is no more."""
        typed = terminal.read()
        if typed is None:
            return False
        for key in terminal.control(typed):
            if key == "interrupt":
                self.interrupt(sent=True)
            elif key == "suspend" and terminal.foreground() == self.pid:
                self.signal(signal.SIGSTOP)
        return True

    def _suspend(self, terminal: Terminal) -> None:
        """The job was stopped: so are we, as the shell above us expects; from here on we run again."""
        terminal.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._resume(terminal)

    def _resume(self, terminal: Terminal) -> None:
        terminal.enter(self.pid)
        self.stopped = False
        self.signal(signal.SIGCONT)

    # The end -------------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Take the status of the command, and of whatever processes fell to us."""
        while self._status is None or self.whole:
            try:
                pid, status = os.waitpid(-1 if self.whole else self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self.pid:
                continue
            if os.WIFSTOPPED(status):
                self.stopped = True
                terminal = self._terminal
                if terminal is not None and (terminal.interactive or "SIGTSTP" in self._told[-1:]):
                    self._suspend(terminal)
            elif os.WIFCONTINUED(status):
                self.stopped = False
            else:
                self._status = status
                self.exit.ended = time.time()
                if os.WIFSIGNALED(status):
                    self.exit.signal = os.WTERMSIG(status)
                else:
                    self.exit.code = os.WEXITSTATUS(status)

    def left(self) -> set[int]:
        """Return processes of the job that still run."""
        found = lineage.of_job(self.mark, self.pid if self._status is None else 0)
        if self.whole:
            found |= lineage.descendants(os.getpid()) - {self.guard, self.helper}
        return found

    def _leftover(self, now: float) -> None:
        """The command has ended: tell what it left behind to end, too."""
        left = self.left()
        self._kill_at = 0.0
        if left:
            self.exit.asked = len(left)
            for number in (signal.SIGTERM, signal.SIGCONT):
                for pid in left:
                    _send(pid, number)
            self._kill_at = now + min(_LEFTOVER, self.grace)

    def _check(self, now: float) -> None:
        """Kill when it is time, give up what SIGKILL does not end, and see when all are gone."""
        left = self.left()
        if not left and self._status is not None:
            self._kill_at = 0.0
        elif now >= self._kill_at:
            if not self._give_up:
                self._give_up = now + _SETTLE
                self.exit.killed = len(left)
            if now > self._give_up:
                self.exit.stuck = tuple(sorted(left))
                self._kill_at = 0.0
                if self._status is None:  # the command itself hangs in the kernel: it is left behind
                    self._status, self.exit.signal, self.exit.ended = 0, int(signal.SIGKILL), time.time()
                return
            self.signal(signal.SIGKILL)
            for pid in left:
                _send(pid, signal.SIGKILL)
            self._kill_at = now + _KILLING

    def _release(self) -> None:
        """Let the guard go: the job needs it no more."""
        if self.guard:
            try:
                os.write(self._leash, b".")
            except OSError:
                pass
            os.close(self._leash)
            try:
                os.waitpid(self.guard, 0)
            except ChildProcessError:
                pass
            self.guard = 0


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass
