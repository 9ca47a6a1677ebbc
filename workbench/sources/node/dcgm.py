"""Turn DCGM's health watches, and a run of its diagnostic, into readings."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.model import Event, Line
from workbench.parse.dcgm_results import Diag, overall_health, subtests
from workbench.parse.smi import parse_smi
from workbench.sources.command import Ran
from workbench.sources.contract import Deadline
from workbench.sources.node.active import free_gpus
from workbench.sources.node.world import Unread, Way, World, lines_of, reader, tool

__all__ = ["LEVELS", "DcgmHealth", "DiagRun"]

# seconds that `dcgmi diag -r N` may take. NVIDIA's reference says: 1 seconds, 2 about two minutes, 3 about fifteen minutes, 4 longer (an
# hour and more with eight GPUs). Three times that, since a limit that is too tight would call a slow node sick
LEVELS = {1: 120.0, 2: 600.0, 3: 2700.0, 4: 10800.0}
# https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgmi/dcgmi-diag.html
_HINT = "is nv-hostengine running? systemctl status nvidia-dcgm"
# the way that is left when DCGM does not answer is a check of its own for each thing that it watches; what they cannot show is its alone
_MEANWHILE = "; meanwhile gpu-memory, nvlink, pcie, thermal-power and recovery judge by NVML what it watches, but for the InfoROM"
_ALL = "0"  # DCGM's group of all GPUs


@dataclass(frozen=True, slots=True)
class DcgmHealth:
    """What the watches say: of the whole, in DCGM's word, and each incident."""

    overall: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class DiagRun:
    """A run of the diagnostic: level, subtests, and an event for each failure, with the class that DCGM's error speaks for."""

    level: int
    diag: Diag
    events: tuple[Event, ...]


def _missing(world: World, error: Unread, *settings: str) -> Unread:
    """A node without DCGM has nothing to ask, unless the site counts on it."""
    if error.ending == "missing" and not any(world.settings.get(name) for name in settings):
        return Unread("absent", f"DCGM is not installed here, and health.{settings[0]} does not ask for it")
    return error


def _events(ran: Ran, begin: str) -> tuple[Event, ...]:
    lines = [Line(at, text) for at, text in enumerate(lines_of(ran.text), 1)]
    found = parse_smi(lines, file=ran.asked).events
    return tuple(event for event in found if event.signature.startswith(begin))


def _health(world: World, deadline: Deadline, *more: str) -> DcgmHealth:
    try:
        ran = tool(world, ("dcgmi", "health", "-g", _ALL, "-c", *more), deadline, limit=1 << 20, seconds=15.0)
    except Unread as error:
        if "atches not enabled" in error.detail:
            raise Unread("exit", error.detail, "switch the watches on: dcgmi health -g 0 -s a") from None
        raise _missing(
            world, Unread(error.ending, error.detail, (_HINT if error.ending == "exit" else error.hint) + _MEANWHILE), "dcgm"
        ) from None
    overall = overall_health(ran.text)
    if not overall:
        enabled = "atches not enabled" not in ran.text
        hint = _HINT + _MEANWHILE if enabled else "switch the watches on: dcgmi health -g 0 -s a"
        raise Unread("garbage", f"{ran.asked} says nothing of the overall health: {ran.text.strip()[:120]!r}", hint)
    return DcgmHealth(overall, _events(ran, "dcgmi-health"))


def _health_json(world: World, deadline: Deadline) -> DcgmHealth:
    return _health(world, deadline, "-j")


def level_of(world: World) -> int:
    """Return the level that ``health.diag`` asks for; 1 when it says nothing. Raises `Unread` for one that is none."""
    raw = world.settings.get("diag")
    try:
        level = int(1 if raw is None else raw)
    except (TypeError, ValueError):
        level = 0
    if level not in LEVELS:
        raise Unread("garbage", f"health.diag is {raw!r}, and can be 1 to 4", "correct the setting")
    return level


def _diag(world: World, deadline: Deadline) -> DiagRun:
    level = level_of(world)
    try:
        tool(
            world, ("dcgmi", "--version"), deadline, codes=range(256), seconds=10.0
        )  # whether there is one, before GPUs are looked at
    except Unread as error:
        if error.ending in ("missing", "not-executable", "time-out"):
            raise _missing(world, error, "dcgm", "diag") from None
    free_gpus(world, deadline, whole=False)
    # what failed is said by the exit code, too (226 and the like): whole JSON is an answer whatever the code
    ran = tool(world, ("dcgmi", "diag", "-r", str(level), "-j"), deadline, codes=range(256), limit=8 << 20, seconds=LEVELS[level])
    diag = subtests(ran.text)
    if diag is None or not (diag.subtests or diag.error):
        said = ran.text.strip().splitlines()
        raise Unread("garbage", f"{ran.asked} gave no results: {said[0][:200] if said else ran.said!r}", _HINT)
    if diag.error and not diag.subtests:
        raise Unread(
            "exit", f"{ran.asked} could not run: {diag.error[:200]}", "run it by hand; see /var/log/nvidia-dcgm/nvvs.log"
        )
    return DiagRun(level, diag, _events(ran, "dcgmi-"))


reader(
    "dcgm-health",
    "what DCGM's health watches found",
    seconds=15.0,
    ways=(Way("dcgmi health -j", _health_json), Way("dcgmi health", _health)),
)
reader(
    "dcgm-diag",
    "a run of DCGM's diagnostic",
    seconds=max(LEVELS.values()) + 60.0,
    ways=(Way("dcgmi diag", _diag, ("what the level does not test",)),),
    active=True,
)
