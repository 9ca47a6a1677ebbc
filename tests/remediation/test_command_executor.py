"""A site's command runs once, goes on when the controller dies, and what became of it is told or said to be unknown."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, soon
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers
from tests.remediation.kept_world import KeptWorld
from workbench.errors import ConfigError
from workbench.model import Gpu
from workbench.remediation.executors import command as command_module
from workbench.remediation.executors import run_once
from workbench.remediation.executors.command import Command, Commands, commands_of
from workbench.remediation.executors.contract import ExecutorError
from workbench.remediation.model import Action, NodeState, Step

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
RESET = Action(
    "act-1", "reset-gpu", "reset-gpu", "gpu-7", gpu=Gpu(index=3, uuid="GPU-1", pci="00000000:5D:00.0"), why="memory errors"
)


def script(folder: Path, body: str, name: str = "reset") -> str:
    """Write a program of the site."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


def until(what: str, holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.02)


def ended(executor: Commands, action: Action = RESET) -> Step:
    """Begin, and wait until it is over."""
    step = executor.begin(action, soon())
    end = time.monotonic() + PATIENCE
    while step.status == "pending":
        assert time.monotonic() < end, step
        time.sleep(0.05)
        step = executor.look(action, soon())
    return step


class CommandWorld(KeptWorld):
    """A command that appends a line to a log: so each run is counted."""

    def __init__(self, folder: Path) -> None:
        self.log = folder.parent / "log"
        self.log.touch()
        self.program = script(folder.parent, f'echo "$@" >> {self.log}')
        super().__init__(folder)

    def make(self) -> Commands:
        argv = (self.program, "{node}", "{uuid}", "{reason}")
        node = self.scheduler.executor.node
        return Commands({verb: Command(argv) for verb in ("reset-gpu", "validate")}, self.folder, node=node)

    def writes(self) -> int:
        return len(self.log.read_text().splitlines())

    def shape(self, action: Action) -> Any:
        return [line for line in self.log.read_text().splitlines() if line.split()[0] == action.node]

    def settle(self, action: Action) -> None:
        until("the end", lambda: self.executor.look(action, soon()).status not in ("pending", "absent"))

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        """The command is started, and whoever started it cannot see anything of it any more."""
        patch, real, sent = pytest.MonkeyPatch(), command_module.spawn, []
        patch.setattr(command_module, "spawn", lambda folder: sent.append(real(folder)))
        there = command_module.there
        lost = ExecutorError("the disk does not answer")

        def gone(folder: Path, path: Path) -> bool:
            if sent:
                raise lost
            return there(folder, path)

        patch.setattr(command_module, "there", gone)
        try:
            yield
        finally:
            patch.undo()


class TestCommands(Acts, RespectsOthers):
    """The suite of all executors."""

    VERBS = ("reset-gpu", "validate")

    @pytest.fixture
    def world(self, tmp_path: Path) -> CommandWorld:
        return CommandWorld(tmp_path / "commands")


class TestCommandsDry(DryActs, DryRespectsOthers):
    """The same questions to a dry run of it: no command runs."""

    VERBS = TestCommands.VERBS

    @pytest.fixture
    def world(self, tmp_path: Path) -> CommandWorld:
        return CommandWorld(tmp_path / "commands")


# ---- how a command ends


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ("echo all good; echo GPU is reset", "done", "GPU is reset"),
        ("exit 3", "done", ""),
        ("echo 2 processes use it >&2; exit 75", "blocked", "2 processes use it"),
        ("echo no such GPU >&2; exit 1", "failed", "exit code 1: no such GPU"),
        ("kill -KILL $$", "unknown", "signal 9 ended it"),
        ("kill -SEGV $$", "unknown", "signal 11 ended it"),
        ("printf 'evil \\033[31m\\377 words\\n'; exit 1", "failed", "evil ?[31m\ufffd words"),
    ],
)
def test_an_exit_code_means_what_the_policy_says(tmp_path: Path, body: str, status: str, detail: str) -> None:
    step = ended(Commands({"reset-gpu": Command((script(tmp_path, body),), good=(0, 3), busy=(75,))}, tmp_path / "c"))
    assert step.status == status
    assert detail in step.detail


@pytest.mark.parametrize("program", ["/nowhere/reset", "{tmp}/no-program", "{tmp}"])
def test_a_program_that_cannot_be_run_is_a_failure_not_a_doubt(tmp_path: Path, program: str) -> None:
    (tmp_path / "no-program").write_text("just text\n")
    step = ended(Commands({"reset-gpu": Command((program.replace("{tmp}", str(tmp_path)),))}, tmp_path / "c"))
    assert step.status == "failed"


def test_what_hangs_is_ended_with_its_children_and_nobody_says_that_it_was_done(tmp_path: Path) -> None:
    child = script(tmp_path, f"trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/pid; sleep 600; exit' & wait; wait")
    executor = Commands({"reset-gpu": Command((child,), seconds=0.5)}, tmp_path / "c")
    step = ended(executor)
    assert step.status == "unknown"
    assert "within 0.5 s" in step.detail
    until("the end of the child", lambda: not alive(int((tmp_path / "pid").read_text())))
    assert executor.begin(RESET, soon()).status == "unknown"  # and it is never begun again


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_flood_of_output_is_ended_and_does_not_fill_the_disk(tmp_path: Path) -> None:
    executor = Commands({"reset-gpu": Command((script(tmp_path, "exec yes evidence"),))}, tmp_path / "c")
    step = ended(executor)
    assert step.status == "unknown"
    assert "printed more than" in step.detail
    assert len(step.detail) < 500
    (tmp_path / "c/act-1/out").unlink()


def test_what_it_writes_elsewhere_is_its_own_affair(tmp_path: Path) -> None:
    """A dump of the GPU's state is large, and no output."""
    body = f"dd if=/dev/zero of={tmp_path}/dump bs=1M count=20 2>/dev/null && echo dumped"
    assert ended(Commands({"reset-gpu": Command((script(tmp_path, body),))}, tmp_path / "c")).status == "done"
    assert (tmp_path / "dump").stat().st_size == 20 << 20


def test_busy_is_tried_again_when_asked_again_and_counts_as_one_when_it_works(tmp_path: Path) -> None:
    program = script(tmp_path, f"echo run >> {tmp_path}/log; [ -e {tmp_path}/free ] || {{ echo in use; exit 75; }}")
    executor = Commands({"reset-gpu": Command((program,), busy=(75,))}, tmp_path / "c")
    assert ended(executor).status == "blocked"
    assert executor.look(RESET, soon()).status == "blocked"
    assert (tmp_path / "log").read_text() == "run\n"  # looking does not try again
    assert ended(executor).status == "blocked"
    (tmp_path / "free").touch()
    assert ended(executor).status == "done"
    assert ended(executor).status == "done"
    assert (tmp_path / "log").read_text() == "run\n" * 3


# ---- crashes

_CONTROLLER = """
import sys, time
from pathlib import Path
from workbench.remediation.executors.command import Command, Commands
from workbench.remediation.executors.contract import Deadline
from workbench.remediation.model import Action
action = Action("act-1", "reset-gpu", "reset-gpu", "gpu-7")
print(Commands({"reset-gpu": Command((sys.argv[1],))}, Path(sys.argv[2])).begin(action, Deadline(30)).status, flush=True)
time.sleep(600)
"""


def test_a_command_outlives_the_controller_and_the_next_one_sees_its_end(tmp_path: Path) -> None:
    program = script(tmp_path, f"echo run >> {tmp_path}/log; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo reset")
    words = [sys.executable, "-c", _CONTROLLER, program, str(tmp_path / "c")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "pending\n"
        os.killpg(controller.pid, signal.SIGKILL)
    executor = Commands({"reset-gpu": Command((program,))}, tmp_path / "c")
    until("the command", lambda: (tmp_path / "log").exists())
    assert executor.look(RESET, soon()).status == "pending"
    assert executor.begin(RESET, soon()).status == "pending"
    (tmp_path / "go").touch()
    assert ended(executor) == Step("done", "reset")
    assert (tmp_path / "log").read_text() == "run\n"


def test_who_runs_it_killed_means_that_nobody_knows(tmp_path: Path) -> None:
    """As a crash of the controller's machine leaves it: begun, no end, nobody there."""
    program = script(tmp_path, f"echo run >> {tmp_path}/log; sleep 600")
    executor = Commands({"reset-gpu": Command((program,))}, tmp_path / "c")
    assert executor.begin(RESET, soon()).status == "pending"
    until("the command", lambda: (tmp_path / "log").exists())
    runner = json.loads((tmp_path / "c/act-1/started").read_text())["pid"]
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    os.kill(runner, signal.SIGKILL)
    for one in children:
        os.killpg(int(one), signal.SIGKILL)
    until("its end", lambda: executor.look(RESET, soon()).status == "unknown")
    assert executor.begin(RESET, soon()).status == "unknown"
    time.sleep(0.3)
    assert (tmp_path / "log").read_text() == "run\n"


@pytest.mark.parametrize("crash", ["before-command", "command-only", "started-only", "torn-temporary"])
def test_each_point_of_a_crash_has_one_answer(tmp_path: Path, crash: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "c/act-1"
    folder.mkdir(parents=True)
    program = script(tmp_path, f"echo run >> {tmp_path}/log")
    executor = Commands({"reset-gpu": Command((program,))}, tmp_path / "c")
    if crash == "torn-temporary":
        (folder / ".command.json.1f").write_text('{"argv": ["rm"')
    if crash in ("command-only", "started-only"):
        run_once.write_whole(folder / "command.json", {"argv": [program], "seconds": 5, "asked": run_once.asked_now()})
    if crash == "started-only":
        (folder / "started").write_text("{}")
        assert executor.look(RESET, soon()).status == "unknown"
        assert ended(executor).status == "unknown"
        assert not (tmp_path / "log").exists()
        return
    if crash == "command-only":
        # the one who was asked may be on his way: not yet absent, and then for good
        assert executor.look(RESET, soon()).status == "pending"
        assert executor.begin(RESET, soon()).status == "pending"
        later = run_once.asked_now() | {"up": run_once.asked_now()["up"] + 3600}
        monkeypatch.setattr(run_once, "asked_now", lambda: later)
        assert executor.look(RESET, soon()).status == "absent"
        assert run_once.run_once(folder) == 1  # he comes after all, an hour late
        assert not (tmp_path / "log").exists()
        monkeypatch.undo()
        run_once.write_whole(
            folder / "command.json", {"argv": [program], "seconds": 5, "asked": later | {"boot": "the one before"}}
        )
    assert executor.look(RESET, soon()).status == "absent"
    assert ended(executor).status == "done"
    assert (tmp_path / "log").read_text() == "run\n"


def test_two_controllers_at_once_run_it_once(tmp_path: Path) -> None:
    program = script(tmp_path, f"echo run >> {tmp_path}/log; sleep 0.3")
    words = [sys.executable, "-c", _CONTROLLER, program, str(tmp_path / "c")]
    both = [subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        for one in both:
            assert one.stdout is not None
            assert one.stdout.readline().strip() in ("pending", "done")
        assert ended(Commands({"reset-gpu": Command((program,))}, tmp_path / "c")).status == "done"
    finally:
        for one in both:
            one.kill()
            one.communicate()
    assert (tmp_path / "log").read_text() == "run\n"


def test_who_only_looks_does_not_keep_it_from_beginning(tmp_path: Path) -> None:
    program = script(tmp_path, "echo done")
    folder = tmp_path / "act-1"
    folder.mkdir()
    run_once.write_whole(folder / "command.json", {"argv": [program], "seconds": 5, "asked": run_once.asked_now()})
    (folder / "lock").touch()
    with (folder / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        runner = subprocess.Popen([sys.executable, "-m", run_once.__name__, str(folder)], cwd=ROOT)
        with pytest.raises(subprocess.TimeoutExpired):
            runner.wait(0.5)
    assert runner.wait(PATIENCE) == 0
    assert json.loads((folder / "end.json").read_text())["code"] == 0


def test_who_comes_after_it_was_begun_does_not_run_it_again(tmp_path: Path) -> None:
    """Also when he was asked at the same time and was only slow: the one before has ended, or was cut off."""
    executor = Commands({"reset-gpu": Command((script(tmp_path, f"echo run >> {tmp_path}/log"),))}, tmp_path / "c")
    assert ended(executor).status == "done"
    assert run_once.run_once(tmp_path / "c/act-1") == 1
    (tmp_path / "c/act-1/end.json").unlink()
    assert run_once.run_once(tmp_path / "c/act-1") == 1
    assert (tmp_path / "log").read_text() == "run\n"


def test_no_space_for_the_mark_means_that_it_does_not_run(tmp_path: Path) -> None:
    """The command runs only when it is on the disk that it does."""
    folder = tmp_path / "c/act-1"
    folder.mkdir(parents=True)
    program = script(tmp_path, f"echo run >> {tmp_path}/log")
    run_once.write_whole(folder / "command.json", {"argv": [program], "seconds": 5, "asked": run_once.asked_now()})
    # a limit of the process stands for a full disk: it writes nothing at all
    words = ["prlimit", "--fsize=0", sys.executable, "-m", run_once.__name__, str(folder)]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, timeout=PATIENCE).returncode != 0
    assert not (tmp_path / "log").exists()
    assert not (folder / "started").exists()


def test_a_folder_that_cannot_be_written_is_an_error_and_nothing_has_happened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    executor = Commands({"reset-gpu": Command((script(tmp_path, f"touch {tmp_path}/ran"),))}, tmp_path / "file" / "c")
    with pytest.raises(ExecutorError):
        executor.begin(RESET, soon())
    with pytest.raises(ExecutorError):
        executor.look(RESET, soon())
    assert not (tmp_path / "ran").exists()


def test_a_damaged_end_is_told_and_not_taken_for_one(tmp_path: Path) -> None:
    executor = Commands({"reset-gpu": Command((script(tmp_path, "true"),))}, tmp_path / "c")
    assert ended(executor).status == "done"
    for text in ("", "{", "[]", '{"code": 0}'):
        (tmp_path / "c/act-1/end.json").write_text(text)
        with pytest.raises(ExecutorError):
            executor.look(RESET, soon())


# ---- words


def test_names_are_arguments_and_never_a_shell(tmp_path: Path) -> None:
    program = script(tmp_path, f'for word in "$@"; do printf "%s\\n" "$word"; done > {tmp_path}/said')
    argv = (program, "{node}", "--gpu={uuid}", "{pci}", "{index}", "{reason}", "{{literally}}", "$HOME; touch x")
    action = replace(RESET, why="bad'; touch /tmp/pwned; $(id) \x1b[31m`id`\nX: y\x00")
    assert ended(Commands({"reset-gpu": Command(argv)}, tmp_path / "c"), action).status == "done"
    assert (tmp_path / "said").read_text().splitlines() == [
        "gpu-7",
        "--gpu=GPU-1",
        "00000000:5D:00.0",
        "3",
        "bad'; touch /tmp/pwned; $(id) ?[31m`id`?X: y?",
        "{literally}",
        "$HOME; touch x",
    ]


@pytest.mark.parametrize("why", ["-rf /", "--config=/etc/shadow", "@/etc/shadow", "=cmd|' /C calc'!A0", "-@ -x"])
def test_a_reason_is_never_an_option_or_a_file_to_read(tmp_path: Path, why: str) -> None:
    program = script(tmp_path, f'printf "%s" "$1" > {tmp_path}/said')
    assert (
        ended(Commands({"reset-gpu": Command((program, "{reason}"))}, tmp_path / "c"), replace(RESET, why=why)).status == "done"
    )
    assert (tmp_path / "said").read_text()[0].isalnum()


@pytest.mark.parametrize(
    "node", ["-oProxyCommand=id", "root@gpu-7", "gpu 7", "gpu-7;id", "$(id)", "../gpu-7", "gpu-7\n", "", "gpu\x007"]
)
def test_a_name_that_is_none_is_given_to_nobody(tmp_path: Path, node: str) -> None:
    program = script(tmp_path, f"touch {tmp_path}/ran")
    step = ended(Commands({"reset-gpu": Command((program, "{node}"))}, tmp_path / "c"), replace(RESET, node=node))
    assert step.status == "failed"
    assert not (tmp_path / "ran").exists()


def test_what_nobody_knows_is_not_left_empty(tmp_path: Path) -> None:
    program = script(tmp_path, f"touch {tmp_path}/ran")
    step = ended(Commands({"reset-gpu": Command((program, "-i", "{uuid}"))}, tmp_path / "c"), replace(RESET, gpu=None))
    assert step.status == "failed"
    assert "nobody knows it" in step.detail
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("identity", ["../../evil", "/etc/cron.d/x", "", ".", "a/b", "a\x00b", "x" * 200])
def test_an_id_leads_nowhere_else(tmp_path: Path, identity: str) -> None:
    executor = Commands({"reset-gpu": Command((script(tmp_path, "true"),))}, tmp_path / "c")
    for call in (executor.begin, executor.look):
        with pytest.raises(ExecutorError) as error:
            call(replace(RESET, id=identity), soon())
        assert not error.value.sent
    assert list((tmp_path / "c").iterdir()) == []


def test_a_command_gets_none_of_the_controllers_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TOKEN", "secret")
    monkeypatch.setenv("KUBECONFIG", "/root/.kube/config")
    assert ended(Commands({"reset-gpu": Command((script(tmp_path, f"env > {tmp_path}/env"),))}, tmp_path / "c")).status == "done"
    told = (tmp_path / "env").read_text()
    assert "secret" not in told
    assert "KUBECONFIG" not in told
    assert "PATH=" in told


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"fly": {"argv": ["x"]}}, "none of"),
        ({"reboot": "reboot {node}"}, "has argv"),
        ({"reboot": {"argv": "reboot {node}"}}, "never a line for a shell"),
        ({"reboot": {"argv": []}}, "list of words"),
        ({"reboot": {"argv": ["ssh", ""]}}, "list of words"),
        ({"reboot": {"argv": ["ssh", "{host}"]}}, "{host}"),
        ({"reboot": {"argv": ["ssh", "{}"]}}, "is none of"),
        ({"reboot": {"argv": ["ssh", "{node.__class__}"]}}, "is none of"),
        ({"reboot": {"argv": ["ssh", "{node!r}"]}}, "a name alone"),
        ({"reboot": {"argv": ["ssh", "{node:>{index}}"]}}, "a name alone"),
        ({"reboot": {"argv": ["ssh", "{node"]}}, "expected"),
        ({"reboot": {"argv": ["/opt/{node}", "x"]}}, "named by the policy"),
        ({"reboot": {"argv": ["x"], "seconds": 0}}, "above 0"),
        ({"reboot": {"argv": ["x"], "seconds": True}}, "above 0"),
        ({"reboot": {"argv": ["x"], "good": [256]}}, "exit codes"),
        ({"reboot": {"argv": ["x"], "good": 0}}, "exit codes"),
        ({"reboot": {"argv": ["x"], "busy": [True]}}, "exit codes"),
        ({"reboot": {"argv": ["x"], "busy": [0]}}, "both good and busy"),
        ({"reboot": {"argv": ["x"], "shell": True}}, "'shell'"),
    ],
)
def test_a_policy_that_is_wrong_names_its_entry(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=r"^policy") as error:
        commands_of(table, "policy.toml")
    assert words in str(error.value)


def test_a_policy_that_is_right() -> None:
    found = commands_of(
        {"reboot": {"argv": ["ssh", "{node}", "sudo", "reboot"], "good": [0, 255], "busy": [75], "seconds": 30}}, "p"
    )
    assert found == {"reboot": Command(("ssh", "{node}", "sudo", "reboot"), 30.0, (0, 255), (75,))}


# ---- a reboot is over when the node is back


def test_a_reboot_is_done_when_another_boot_runs(tmp_path: Path) -> None:
    node = NodeState("gpu-7", boot="boot-1")
    seen: list[NodeState | None] = [node]
    executor = Commands({"reboot": Command((script(tmp_path, "true"),))}, tmp_path / "c", node=lambda name, deadline: seen[0])
    action = replace(RESET, verb="reboot", expects={"boot": "boot-1"})
    assert executor.begin(replace(action, expects={}), soon()).status == "changed"
    assert executor.begin(action, soon()).status == "pending"
    for state in (replace(node, ready=False), None, node):
        seen[0] = state
        assert executor.look(action, soon()).status == "pending"
    seen[0] = replace(node, boot="boot-2")
    assert executor.look(action, soon()).status == "done"
    assert executor.undo(action, {}, soon()).status == "failed"


def test_without_boot_ids_a_later_boot_time_ends_a_reboot(tmp_path: Path) -> None:
    """As with Slurm: a second's difference is the same boot."""
    seen = [NodeState("gpu-7", booted=1000.0)]
    executor = Commands({"reboot": Command((script(tmp_path, "true"),))}, tmp_path / "c", node=lambda name, deadline: seen[0])
    action = replace(RESET, verb="reboot", expects={"booted": 1001.0})
    assert executor.begin(action, soon()).status == "pending"
    for booted in (None, 999.0, 1002.0, 500.0):
        seen[0] = NodeState("gpu-7", booted=booted)
        assert executor.look(action, soon()).status == "pending"
    seen[0] = NodeState("gpu-7", booted=1200.0)
    assert executor.look(action, soon()).status == "done"
    assert executor.begin(replace(action, id="act-2"), soon()).status == "changed"
