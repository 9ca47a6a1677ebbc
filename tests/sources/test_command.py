"""A command that hangs, floods, hides or is not there becomes a typed result within its deadline, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.sources import command
from workbench.sources.command import ENDINGS, Ran, environment, run

Script = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write an executable shell script and return its path."""

    def write(text: str, name: str = "tool", mode: int = 0o755) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(mode)
        return str(path)

    return write


def alive(pid: int) -> bool:
    """Tell whether a process runs: not gone, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def running_groups() -> set[str]:
    """Return the process groups that have a process that runs."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:  # it ended meanwhile
            continue
        if state != "Z":
            found.add(group)
    return found


def gone(pid: int, seconds: float = 2.0) -> bool:
    """Wait for a process to end."""
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def test_both_streams_are_kept_apart(script: Script) -> None:
    ran = run([script("echo out; echo err >&2")], seconds=5)

    assert (ran.ending, ran.code, ran.out, ran.err, ran.ok) == ("ok", 0, b"out\n", b"err\n", True)
    assert ran.sentence == "answered"


def test_arguments_reach_the_program_uninterpreted(script: Script, tmp_path: Path) -> None:
    ran = run([script('printf "%s|" "$@"'), "$(touch x)", "a b", "; id", "*"], seconds=5, cwd=str(tmp_path))

    assert ran.text == "$(touch x)|a b|; id|*|"
    assert not (tmp_path / "x").exists()


def test_the_environment_is_minimal(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    """What changes a tool's output, or is secret, does not reach it."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SACCT_FORMAT", "jobid")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")

    names = dict(line.split("=", 1) for line in run([script("env")], seconds=5, env={"TZ": "UTC"}).text.splitlines())

    assert names["LC_ALL"] == "C"
    assert names["TZ"] == "UTC"
    assert names["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert not {"SLURM_TIME_FORMAT", "SACCT_FORMAT", "AWS_SECRET_ACCESS_KEY"} & names.keys()


def test_sbin_is_searched_even_when_path_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert "/usr/sbin" in environment()["PATH"].split(":")
    monkeypatch.delenv("PATH")
    assert "/usr/bin" in environment()["PATH"].split(":")


def test_a_code_is_an_exit_with_the_tools_own_words(script: Script) -> None:
    ran = run([script("echo 'slurm_load: Connection refused' >&2; exit 3")], seconds=5)

    assert (ran.ending, ran.code, ran.signal) == ("exit", 3, None)
    assert ran.sentence == "ended with 3: slurm_load: Connection refused"


def test_a_signal_is_told(script: Script) -> None:
    ran = run([script("kill -SEGV $$")], seconds=5)

    assert (ran.ending, ran.code, ran.signal) == ("signal", None, signal.SIGSEGV)
    assert "SIGSEGV" in ran.sentence


def test_no_program() -> None:
    ran = run(["no-such-tool-of-anybody"], seconds=5)

    assert (ran.ending, ran.code) == ("missing", None)
    assert ran.sentence == "no-such-tool-of-anybody: no such program"


def test_a_folder_is_no_program(tmp_path: Path) -> None:
    assert run([str(tmp_path)], seconds=5).ending == "missing"


def test_no_interpreter(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/no/such/interpreter\n")
    tool.chmod(0o755)

    assert run([str(tool)], seconds=5).ending == "missing"


def test_not_executable(script: Script, tmp_path: Path) -> None:
    assert run([script("echo no", mode=0o644)], seconds=5).ending == "not-executable"
    binary = tmp_path / "binary"  # of another machine
    binary.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(60))
    binary.chmod(0o755)
    assert run([str(binary)], seconds=5).ending == "not-executable"


def test_a_nul_in_an_argument_is_refused_not_raised(script: Script) -> None:
    assert run([script("echo"), "a\0b"], seconds=5).ending == "not-executable"


def test_a_child_that_ignores_sigterm_is_killed_in_time(script: Script) -> None:
    begun = time.monotonic()
    ran = run([script("trap '' TERM; echo $$; while :; do sleep 30; done")], seconds=0.5)

    assert ran.ending == "time-out"
    assert time.monotonic() - begun < 1.5
    assert ran.code is None
    assert gone(int(ran.text))
    assert "did not answer within" in ran.sentence


def test_output_before_a_time_out_is_kept(script: Script) -> None:
    ran = run([script("echo first; echo why >&2; sleep 30")], seconds=0.5)

    assert (ran.ending, ran.out, ran.err) == ("time-out", b"first\n", b"why\n")


def test_a_grandchild_that_holds_the_pipes_costs_no_time(script: Script) -> None:
    begun = time.monotonic()
    ran = run([script("sleep 30 & echo $!; exit 0")], seconds=10)

    assert ran.ending == "ok"
    assert time.monotonic() - begun < 2
    assert gone(int(ran.text))


def test_a_grandchild_in_a_session_of_its_own_costs_no_time_either() -> None:
    begun = time.monotonic()
    code = "import os, time\npid = os.fork()\nif pid: print(pid, flush=True); os._exit(0)\nos.setsid(); time.sleep(20)\n"
    ran = run([sys.executable, "-c", code], seconds=10)

    assert ran.ending == "ok"
    assert time.monotonic() - begun < 2
    os.kill(int(ran.text), signal.SIGKILL)  # out of our reach, by its own wish


def test_all_of_the_group_ends_with_a_time_out(script: Script) -> None:
    ran = run([script("trap '' TERM; sh -c \"trap '' TERM; echo \\$\\$; sleep 30; sleep 30\" & sleep 30; sleep 30")], seconds=0.6)

    assert ran.ending == "time-out"
    assert gone(int(ran.text.split()[0]))


def test_output_without_end_is_stopped_at_the_limit(script: Script) -> None:
    begun = time.monotonic()
    ran = run([script("yes")], seconds=20, limit=1 << 20)

    assert (ran.ending, len(ran.out)) == ("too-much", 1 << 20)
    assert time.monotonic() - begun < 5
    assert "more than 1 MiB" in ran.sentence


def test_exactly_the_limit_is_no_flood(script: Script) -> None:
    assert run([script("head -c 1000 /dev/zero")], seconds=5, limit=1000).ending == "ok"


def test_errors_without_end_neither_block_nor_fill_memory(script: Script) -> None:
    ran = run([script("head -c 3000000 /dev/zero >&2; echo done")], seconds=10)

    assert (ran.ending, ran.out, len(ran.err)) == ("ok", b"done\n", 64 << 10)


def test_a_child_that_closes_its_streams_and_lives_on(script: Script) -> None:
    ran = run([script("echo hello; exec >&- 2>&-; sleep 30")], seconds=0.5)

    assert (ran.ending, ran.out) == ("time-out", b"hello\n")


def test_garbage_is_told_from_an_answer(script: Script) -> None:
    ran = run([script("echo '<html>login</html>'")], seconds=5, expect=lambda out: out.startswith(b"{"))

    assert (ran.ending, ran.code, ran.ok) == ("garbage", 0, False)
    assert "<html>" in ran.sentence
    assert run([script("true")], seconds=5, expect=bool).sentence == "printed nothing"


def test_standard_input(script: Script) -> None:
    assert run([script("cat")], seconds=5, stdin=b"given").out == b"given"
    assert run([script("cat; echo end")], seconds=5).out == b"end\n"
    assert run([script("exit 0")], seconds=5, stdin=b"nobody reads this").ok


def test_a_remote_shell_gets_quoted_words(script: Script) -> None:
    """What ssh runs at the other end is a shell: here `sh -c` plays it."""
    ssh = script('shift; exec sh -c "$*"', name="ssh")
    ran = run(["printf", "%s|", "$(id)", "a b", "'; echo hacked"], seconds=5, prefix=(ssh, "login-1"), env={"TZ": "UTC"})

    assert ran.text == "$(id)|a b|'; echo hacked|"
    assert run(["sh", "-c", "echo $LC_ALL $TZ"], seconds=5, prefix=(ssh, "login-1"), env={"TZ": "UTC"}).text == "C UTC\n"


@pytest.mark.parametrize(("code", "ending"), [(255, "unreachable"), (127, "missing"), (126, "not-executable"), (1, "exit")])
def test_what_a_remote_shell_ends_with(script: Script, code: int, ending: str) -> None:
    ssh = script(f"echo 'ssh: connect to host login-1 port 22: Connection refused' >&2; exit {code}", name="ssh")

    assert run(["sacct"], seconds=5, prefix=(ssh, "login-1")).ending == ending


def test_another_prefix_is_no_shell() -> None:
    assert run(["printf", "%s", "$(id)"], seconds=5, prefix=("nice", "-n", "5")).text == "$(id)"
    assert run(["no-such-tool-of-anybody"], seconds=5, prefix=("nice",)).ending == "missing"


def test_a_program_on_a_dead_file_server_costs_the_deadline_only(tmp_path: Path) -> None:
    """A FIFO without a writer blocks whoever opens it, as a file of a dead NFS server does."""
    tool = tmp_path / "tool"
    os.mkfifo(tool, 0o755)
    link = tmp_path / "bin"
    link.mkdir()
    begun = time.monotonic()
    original = Path.is_file
    try:
        Path.is_file = lambda self: self == tool or original(self)  # type: ignore[method-assign]
        ran = run([str(tool)], seconds=0.5)
    finally:
        Path.is_file = original  # type: ignore[method-assign]

    assert (ran.ending, ran.stuck) == ("time-out", True)
    assert time.monotonic() - begun < 1.5
    os.close(os.open(tool, os.O_WRONLY | os.O_NONBLOCK))  # let the thread go


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    """State D cannot be had on demand: here the signals are lost instead, which looks the same from outside."""
    monkeypatch.setattr(command, "_signal_group", lambda *_: None)
    begun = time.monotonic()
    ran = run([script("exec sleep 20")], seconds=0.3)

    assert (ran.ending, ran.stuck) == ("time-out", True)
    assert time.monotonic() - begun < 2
    assert "SIGKILL did not end it" in ran.sentence
    monkeypatch.undo()
    left = command._left[-1]
    left.kill()
    left.wait(5)
    run(["true"], seconds=5)
    assert left not in command._left


def test_without_pidfd_the_end_is_polled(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    def refused(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert run([script("sleep 30 & echo out; exit 4")], seconds=10).code == 4
    assert run([script("sleep 30")], seconds=0.3).ending == "time-out"


def test_no_seconds_left_is_a_time_out(script: Script) -> None:
    assert run([script("sleep 5")], seconds=-1).ending == "time-out"


def test_every_ending_has_a_sentence() -> None:
    for ending in ENDINGS:
        assert Ran(("tool",), ending, code=1, signal=9, err=b"\x1b[31mred\n").sentence
    assert "\x1b" not in Ran(("tool",), "exit", code=1, err=b"\x1b[31mred\n").sentence


def test_many_at_once_leave_nothing_behind(script: Script) -> None:
    """Sources run in threads of one process."""
    from concurrent.futures import ThreadPoolExecutor

    tool = script("echo $$; sleep 30 & exit 0")
    with ThreadPoolExecutor(8) as pool:
        pids = [int(ran.text) for ran in pool.map(lambda _: run([tool], seconds=5), range(40))]

    assert len(set(pids)) == 40
    groups = {str(pid) for pid in pids}
    until = time.monotonic() + 5
    while groups & running_groups() and time.monotonic() < until:  # they were killed, and take a moment to die
        time.sleep(0.05)
    assert not groups & running_groups()
