"""`workbench run` as a user calls it, with small children: output, signals, terminal, nothing left behind, what follows a failure."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from workbench.training.lineage import marked

ROOT = Path(__file__).resolve().parents[2]
QUICK = 'schema = "workbench.retry/1"\n[backoff]\nfirst = "0s"\ncap = "0s"\n[wait]\nfirst = "0s"\ncap = "0s"\n'
LONG = 60.0  # seconds that nothing here takes on a machine that works


def as_from_a_terminal() -> None:
    """Signals as a login shell hands them on: a background job of a script has some ignored, and a supervisor respects that."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Runs:
    """Starts `workbench run` in a folder of its own, and ends what a test left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.policy = folder / "retry.toml"
        self.policy.write_text(QUICK)
        self.started: list[subprocess.Popen[bytes]] = []

    def words(self, *command: str, options: Sequence[str] = ()) -> list[str]:
        own = ["--run-dir", str(self.run), "--policy", str(self.policy), "--grace", "2s", *options]
        return [sys.executable, "-m", "workbench", "run", *own, "--", *command]

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "SLURM"))}
        # the kernel log of a machine that runs tests all day tells of other jobs that were killed
        return {**kept, "PYTHONPATH": str(ROOT), "WORKBENCH_NODE_ENABLED": "false", "TMPDIR": str(self.folder)}

    def start(self, *command: str, options: Sequence[str] = (), **more: Any) -> subprocess.Popen[bytes]:
        words: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "preexec_fn": as_from_a_terminal,
        } | more
        process = subprocess.Popen(self.words(*command, options=options), env=self.env, cwd=self.folder, **words)
        self.started.append(process)
        # who waits for a line that does not come gets the end of the output instead
        watchdog = threading.Timer(2 * LONG, process.kill)
        watchdog.daemon = True
        watchdog.start()
        return process

    def done(self, *command: str, options: Sequence[str] = (), **more: Any) -> tuple[int, bytes, bytes]:
        process = self.start(*command, options=options, **more)
        out, err = process.communicate(timeout=LONG)
        return process.returncode, out or b"", err or b""

    def log(self, attempt: int = 1) -> bytes:
        return (self.run / f"attempt-{attempt}" / "logs" / "launcher.log").read_bytes()

    def about(self, attempt: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / f"attempt-{attempt}.json").read_text())
        return found

    def alive(self) -> set[int]:
        return marked(f"WORKBENCH_RUN={self.run.resolve()}")

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + LONG
        while not holds():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """A folder for runs."""
    made = Runs(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    for pid in made.alive():
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            os.kill(pid, signal.SIGKILL)


def python(text: str) -> list[str]:
    """Return a command that runs a program of Python."""
    return [sys.executable, "-u", "-c", text]


# Output ----------------------------------------------------------------------------------------------------------------------


def test_every_byte_is_on_disk_and_passed_on_on_its_own_stream(runs: Runs) -> None:
    code, out, err = runs.done(
        *python(
            "import os\n"
            "for n in range(300):\n"
            "    os.write(1, bytes(range(256)) * 7)\n"
            "    os.write(2, b'\\xff\\x00 err %d\\r\\n' % n)\n"
            "os.write(1, b'no end of line')\n"
        )
    )
    wanted = bytes(range(256)) * 2100 + b"no end of line"
    said = b"".join(b"\xff\x00 err %d\r\n" % n for n in range(300))
    assert code == 0
    assert out == wanted
    assert err == said
    log = runs.log()
    assert len(log) == len(wanted) + len(said)
    assert log.replace(b"\xff\x00 err ", b"", 0).count(b" err ") == 300


def test_streams_that_are_one_file_keep_their_order(runs: Runs) -> None:
    code, out, _ = runs.done("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done", stderr=subprocess.STDOUT)
    assert code == 0
    assert out == b"".join(b"o%d\ne%d\n" % (n, n) for n in range(1, 10))
    assert runs.log() == out


def test_the_log_is_there_before_the_command_starts(runs: Runs) -> None:
    code, out, _ = runs.done("sh", "-c", 'test -f "$WORKBENCH_RUN/attempt-$WORKBENCH_ATTEMPT/logs/launcher.log" && echo there')
    assert (code, out) == (0, b"there\n")


def test_a_healthy_command_says_nothing_more_than_it_says_itself(runs: Runs) -> None:
    assert runs.done("echo", "well") == (0, b"well\n", b"")
    assert runs.about()["state"] == "completed"


def test_a_reader_that_goes_away_does_not_end_the_job(runs: Runs) -> None:
    process = runs.start("sh", "-c", "echo first; sleep 0.3; for i in 1 2 3; do echo $i; done; exit 0")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    process.wait(LONG)
    assert process.returncode == 0
    assert runs.log() == b"first\n1\n2\n3\n"


def test_a_reader_that_is_slow_slows_the_job_and_signals_still_pass(runs: Runs) -> None:
    process = runs.start("sh", "-c", "trap 'exit 9' USR1; while :; do echo 0123456789012345678901234567890123456789; done")
    runs.until(lambda: (runs.run / "attempt-1/logs/launcher.log").exists() and len(runs.log()) > 60_000)
    time.sleep(0.3)
    size = len(runs.log())
    time.sleep(0.3)
    assert len(runs.log()) - size < 2_000_000  # nobody reads: it stands
    process.terminate()
    assert process.stdout is not None
    while process.stdout.read(1 << 16):
        pass
    assert process.wait(LONG) == 128 + signal.SIGTERM


def test_a_log_that_the_disk_refuses_does_not_end_the_job(runs: Runs) -> None:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    code, out, err = runs.done(
        *python("print('x' * 199, end='\\n' * 1)\nfor _ in range(2000): print('y' * 199)"), preexec_fn=small
    )
    assert code == 0
    assert len(out) == 2001 * 200
    assert len(runs.log()) == 65536
    (rest,) = runs.folder.glob("workbench-run-*.log")  # which the same limit cut
    assert b"65536 of the last" in err
    assert str(rest).encode() in err
    assert rest.stat().st_size == 65536


# Ends ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"), [(["no-such-program-here"], 127), (["/etc/passwd"], 126)], ids=["not there", "not to be run"]
)
def test_what_cannot_be_started_ends_as_in_a_shell(runs: Runs, command: list[str], code: int) -> None:
    runs.policy.write_text(QUICK + "[budget]\nunknown = 0\nnone = 0\nplatform = 0\n")
    found, _, err = runs.done(*command)
    assert found == code
    assert command[0].encode() in err


def test_nothing_is_left_behind_in_whatever_session_it_is(runs: Runs) -> None:
    code, _, _ = runs.done(
        "sh",
        "-c",
        "setsid sleep 1000 & (setsid env -i sleep 1001 &) ; trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1002' & exit 0",
    )
    assert code == 0
    assert runs.alive() == set()
    assert subprocess.run(["pgrep", "-f", "sleep 100[012]"], capture_output=True, check=False).stdout == b""
    left = runs.about()["left_behind"]
    assert left["asked"] >= 3
    assert left["killed"] >= 1
    assert left["stuck"] == []


def test_when_the_supervisor_is_killed_the_job_ends_and_the_next_run_goes_on(runs: Runs) -> None:
    process = runs.start("sh", "-c", "setsid sleep 1000 & echo begun; wait")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    assert len(runs.alive()) >= 2
    runs.until(lambda: (runs.run / "attempt-1.json").exists())
    process.kill()
    runs.until(lambda: not runs.alive())
    assert runs.done("sh", "-c", 'echo "attempt $WORKBENCH_ATTEMPT"')[:2] == (0, b"attempt 2\n")
    words = [sys.executable, "-m", "workbench", "run", "--show", str(runs.run), "-o", "json"]
    shown = json.loads(subprocess.run(words, env=runs.env, capture_output=True, check=True).stdout)
    assert [(row["attempt"], row["state"]) for row in shown["attempts"]] == [(1, "running"), (2, "completed")]
    assert "was killed" in shown["attempts"][0]["summary"]
    above = subprocess.run([*words[:5], str(runs.run.parent)], env=runs.env, capture_output=True, text=True)
    assert above.returncode == 69
    assert f"the newest: workbench run --show {runs.run}" in above.stderr


def test_two_supervisors_do_not_share_a_folder(runs: Runs) -> None:
    process = runs.start("sh", "-c", "echo begun; sleep 1000")
    assert process.stdout is not None
    process.stdout.readline()
    code, _, err = runs.done("echo", "never")
    assert code == 75
    assert b"another `workbench run` works in this folder" in err


def test_a_wrong_policy_is_told_before_anything_starts(runs: Runs) -> None:
    runs.policy.write_text('schema = "workbench.retry/1"\n[budget]\nusr = 3\n')
    code, out, err = runs.done("echo", "never")
    assert (code, out) == (78, b"")
    assert b"usr" in err
    assert not list(runs.run.glob("attempt-*"))


# Signals ---------------------------------------------------------------------------------------------------------------------

TRAPS = """
import os, signal, sys, time
def told(number, frame):
    os.write(1, b"got %d\\n" % number)
    if number == signal.SIGTERM: sys.exit(5)
for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH"):
    signal.signal(getattr(signal, "SIG" + name), told)
os.write(1, b"ready\\n")
while True: time.sleep(1)
"""


def test_signals_reach_the_job_and_its_code_is_ours(runs: Runs) -> None:
    process = runs.start(*python(TRAPS))
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    for name in ("SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGWINCH", "SIGINT", "SIGTERM"):
        number = getattr(signal, name)
        process.send_signal(number)
        assert process.stdout.readline() == b"got %d\n" % number
    assert process.wait(LONG) == 5


def test_a_second_interrupt_kills_what_ignores_the_first(runs: Runs) -> None:
    process = runs.start("sh", "-c", "trap '' INT TERM; echo ready; while :; do sleep 0.1; done")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(LONG) == 128 + signal.SIGKILL
    assert runs.alive() == set()
    assert runs.about()["state"] == "cancelled"


def test_a_preemption_waits_for_the_job_starts_nothing_and_costs_no_budget(runs: Runs) -> None:
    text = "import signal, sys, time\nsignal.signal(15, lambda *_: (time.sleep(0.5), print('saved', flush=True), sys.exit(0)))\nprint('ready', flush=True)\ntime.sleep(1000)"
    process = runs.start(*python(text))
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (0, b"saved\n")
    assert b"preempted after 1 attempt" in err
    assert not (runs.run / "decisions.jsonl").exists()
    assert json.loads((runs.run / "attempts.jsonl").read_text())["state"] == "preempted"


def test_after_a_preemption_that_keeps_the_allocation_it_starts_again(runs: Runs) -> None:
    text = "import os, time\nprint('ready', flush=True)\nif os.environ['WORKBENCH_ATTEMPT'] == '1': time.sleep(1000)"
    process = runs.start(*python(text), options=["--keeps-allocation"])
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=LONG)
    assert process.returncode == 0
    assert b"preempted, which is no failure and costs no budget" in err


def test_stop_and_continue_pass_through(runs: Runs) -> None:
    # no shell: one that waits in vfork for a child that was stopped before its exec cannot stop itself
    process = runs.start(*python("import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.05); print(1, flush=True)"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTSTP)
    runs.until(lambda: state(process.pid) == "T")
    size = len(runs.log())
    time.sleep(0.4)
    assert len(runs.log()) - size < 200
    process.send_signal(signal.SIGCONT)
    runs.until(lambda: len(runs.log()) > size + 20)
    process.terminate()
    process.communicate(timeout=LONG)


def state(pid: int) -> str:
    """Return the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# A terminal ------------------------------------------------------------------------------------------------------------------


class Screen:
    """A terminal with `workbench run` in it."""

    def __init__(self, runs: Runs, *command: str) -> None:
        self.seen = b""
        words = runs.words(*command)
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(runs.folder)
            os.execve(words[0], words, runs.env)

    def until(self, text: bytes) -> None:
        end = time.monotonic() + LONG
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.file], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.file, 65536)
                except OSError:
                    assert text in self.seen, self.seen

    def type(self, keys: bytes) -> None:
        os.write(self.file, keys)

    def end(self) -> int:
        try:
            while os.read(self.file, 65536):
                pass
        except OSError:
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.file)
        return code


def test_in_a_terminal_the_job_has_one_and_its_output_is_kept_as_it_wrote_it(runs: Runs) -> None:
    import fcntl
    import struct
    import termios

    text = (
        "import os, signal, sys\n"
        "def size(*_): print('size', *os.get_terminal_size(), flush=True)\n"
        "signal.signal(signal.SIGWINCH, size)\n"
        "print('tty', os.isatty(0), os.isatty(1), os.isatty(2), flush=True)\n"
        "while True:\n"
        "    line = sys.stdin.readline()\n"
        "    print('line', line.strip(), flush=True)\n"
        "    if 'bye' in line: sys.exit(4)\n"
    )
    runs.policy.write_text(QUICK + "[budget]\nunknown = 0\nnone = 0\n")
    screen = Screen(runs, *python(text))
    screen.until(b"tty True True True\r\n")
    fcntl.ioctl(screen.file, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    screen.until(b"size 101 33\r\n")
    screen.type(b"hello\r")
    screen.until(b"line hello\r\n")
    screen.type(b"bye\r")
    screen.until(b"exit code 4")
    assert screen.end() == 4
    log = runs.log()
    assert b"\r" not in log
    assert log.startswith(b"tty True True True\nsize 101 33\n")


def test_keys_of_a_terminal_interrupt_suspend_and_continue(runs: Runs) -> None:
    text = (
        "import signal, sys, time\nsignal.signal(2, lambda *_: (print('int', flush=True), sys.exit(7)))\nprint('ready', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    screen = Screen(runs, *python(text))
    screen.until(b"ready")
    screen.type(b"\x1a")
    runs.until(lambda: state(screen.pid) == "T")
    os.kill(screen.pid, signal.SIGCONT)
    runs.until(lambda: state(screen.pid) != "T")
    screen.type(b"\x03")
    screen.until(b"int\r\n")
    assert screen.end() == 7
    assert runs.about()["state"] == "cancelled"


# After a failure -------------------------------------------------------------------------------------------------------------

BUG = """
import sys
print("step 3/10 loss 1.5", flush=True)
raise KeyError("labels")
"""


def test_a_certain_fault_of_the_user_is_not_tried_again(runs: Runs) -> None:
    code, _, err = runs.done(*python(BUG))
    assert code == 1
    lines = err.decode().splitlines()
    assert lines[-5].startswith("workbench run: failed after 1 attempt")
    assert "user/exception" in lines[-4]
    assert lines[-1].startswith("  next:   user: ")
    decision = json.loads((runs.run / "decisions.jsonl").read_text())
    assert (decision["action"], decision["cause"], decision["who"]) == ("stop", "user", "user")
    assert not (runs.run / "attempt-2").exists()
    evidence = {row["source"]: row["status"] for row in runs.about()["evidence"]}
    assert evidence == {"job": "ok", "flight-recorder": "missing", "kernel": "missing", "smi": "missing"}


ONCE = """
import os, sys
print("attempt", os.environ["WORKBENCH_ATTEMPT"], sys.argv[1:], flush=True)
if os.environ["WORKBENCH_ATTEMPT"] == "1":
    os.kill(os.getpid(), 9)
"""


def test_what_may_go_better_is_started_again_and_told_in_five_lines(runs: Runs) -> None:
    ledger = runs.folder / "fleet.sqlite"
    code, out, err = runs.done(*python(ONCE), "--n={attempt}", "--resume", "{resume_from}", options=["--ledger", str(ledger)])
    assert code == 0
    assert out == b"attempt 1 ['--n=1']\nattempt 2 ['--n=2']\n"
    assert b"completed after 2 attempts" in err
    assert b"next:   nobody has to do anything" in err
    shown = subprocess.run(
        [sys.executable, "-m", "workbench", "run", "--show", str(runs.run)],
        env=runs.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "attempt 1" in shown.stdout
    assert "→ restart" in shown.stdout
    assert "unknown 1 of 6" in shown.stdout or "none 1 of 3" in shown.stdout or "user 1 of 1" in shown.stdout

    from workbench.fleet.ledger import Ledger

    with Ledger.open(ledger, "ro") as kept:
        attempts = kept.frame("attempts")
        assert attempts["state"].tolist() == ["failed", "completed"]
        assert attempts["exit_code"].tolist() == [-9, 0]
        assert kept.frame("jobs")["state"].tolist() == ["completed"]


def test_who_takes_the_folder_in_later_knows_as_much_as_the_ledger_that_was_told_at_once(runs: Runs) -> None:
    """The folder is all that a team without servers keeps."""
    from workbench.fleet.ingest.lines import of_run
    from workbench.fleet.ingest.told import take_in
    from workbench.fleet.ledger import Ledger

    once, later = runs.folder / "once.sqlite", runs.folder / "later.sqlite"
    steps = "import time\nfor step in range(3):\n    print(f'step {step} loss 1.0', flush=True)\n    time.sleep(0.05)\n" + ONCE
    code, _, err = runs.done(*python(steps), options=["--ledger", str(once)])
    assert code == 0, err
    with Ledger.open(later) as ledger:
        told = of_run(runs.run)
        assert not told.problems
        take_in(ledger, told)
    frames = []
    for path in (once, later):
        with Ledger.open(path, "ro") as ledger:
            frames.append(
                {
                    name: ledger.frame(name).drop(columns=["recorded", "name"], errors="ignore")
                    for name in ("jobs", "attempts", "phases")
                }
            )
    for name, frame in frames[0].items():
        assert len(frame) >= 1
        pd.testing.assert_frame_equal(frame, frames[1][name], check_like=True)
    assert frames[0]["attempts"]["node_names"].map(len).tolist() == [1, 1]


def test_a_ledger_that_cannot_be_written_costs_the_job_nothing(runs: Runs) -> None:
    code, _, err = runs.done("true", options=["--ledger", "/proc/nowhere/fleet.sqlite"])
    assert code == 0
    assert b"not in the fleet's ledger" in err


HANG = """
import os, time
for step in range(1, 8):
    print(f"step {step}/50 loss 1.0", flush=True)
    time.sleep(0.1)
    if step == 6 and os.environ["WORKBENCH_ATTEMPT"] == "1":
        time.sleep(1000)
"""


def test_a_job_that_makes_no_step_any_more_is_ended_and_started_again(runs: Runs) -> None:
    code, out, err = runs.done(*python(HANG), options=["--max-hang", "1500ms"])
    assert code == 0
    assert out.count(b"step 7/50") == 1
    assert b"no progress for" in err
    assert runs.about(1)["why"] == "hang"
    assert runs.about(1)["hang"]["phase"] == "training"
    assert (runs.about(1)["first_step"], runs.about(1)["last_step"]) == (1, 6)
    assert runs.alive() == set()
