"""Turn the tracebacks of a log (chained, grouped, wrapped by workers, of many ranks woven together) into raised exceptions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Raised", "Tracebacks", "exception_of"]


@dataclass(slots=True)
class Raised:
    """One exception as the log tells it."""

    no: int  # line of the final exception line, 1-based
    text: str  # that line as it was, without its head
    exception: str
    message: str
    stream: str = ""
    start: int = 0  # line of the traceback's head
    frames: list[str] = field(default_factory=list)  # the innermost five, "file:line function"
    user_frame: str | None = None  # the innermost frame outside installed packages
    where: str = ""  # dataloader checkpoint init collective backward optimizer compile import forward
    chained_from: Raised | None = None  # raised while handling, or directly caused by, that one
    wraps: Raised | None = None  # only passes on what a worker raised (DataLoader, Ray, DataParallel)
    continued: bool = False  # the log says that another one was raised while this one was handled
    bare: bool = False  # no traceback was seen before it
    intro: str = ""  # the line in front of the head, as a logger prints it
    intro_no: int = 0


@dataclass(slots=True)
class _Open:
    start: int
    indent: int
    intro: str
    intro_no: int
    frames: list[tuple[str, str, str]] = field(default_factory=list)
    chained_from: Raised | None = None
    wrapped_by: Raised | None = None


@dataclass(slots=True)
class _Stream:
    stack: list[_Open] = field(default_factory=list)
    last: Raised | None = None
    chain: bool = False
    inside: bool = False  # the line before belonged to a traceback
    before: str = ""
    before_no: int = 0


_HEAD = "Traceback (most recent call last):"
#   File "/workspace/train.py", line 258, in main    (faulthandler: … line 258 in main)
_FILE = re.compile(r'^\s*(?:\|\s*)*File "([^"]+)", line (\d+),? in (.+?)\s*$')
# KeyError: 'labels' | torch.OutOfMemoryError: CUDA out of memory. | botocore.errorfactory.NoSuchKey: An error | MemoryError
_FINAL = re.compile(r"^(\s*(?:\|\s+)*)((?:[A-Za-z_]\w*\.)*_*[A-Z]\w*)(?:\(([\w.]+)\))?(?::(?: (.*)|$)|\s*$)")
_STANDARD = re.compile(r"(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Failure|Timeout|Expired|Cancelled|Fault|Abort)$")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# RuntimeError: Caught KeyError in DataLoader worker process 0. | Caught OutOfMemoryError in replica 0 on device 0.
_WRAPPER = re.compile(r"Caught \w+ in |RayTaskError|ray::|The original exception|Worker\w* raised|call failed on worker")
_INSTALLED = re.compile(
    r"site-packages|dist-packages|/lib/python\d|^<|/usr/local/bin/|/bin/(?:torchrun|accelerate|deepspeed)$|/torch/|runpy\.py"
)
_NOT_NAMES = frozenset(
    {"INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL", "NOTE", "WARN", "FATAL", "TODO", "N/A", "None", "True", "False"}
)
# first matching row names the phase; the innermost frames count most, so the loop below goes from the inside out
_PHASES = (
    ("dataloader", re.compile(r"utils/data/|/data(?:loader|set)?s?\.py|__getitem__|_get_data|collate|webdataset|/datasets/")),
    ("checkpoint", re.compile(r"checkpoint|serialization\.py|safetensors|state_dict|save_pretrained|from_pretrained|save_model")),
    ("init", re.compile(r"rendezvous|init_process_group|_create_c10d_store|init_distributed|_new_process_group_helper")),
    ("collective", re.compile(r"distributed_c10d\.py|c10d_logger\.py|all_?reduce|all_?gather|reduce_scatter|barrier")),
    ("compile", re.compile(r"_inductor|_dynamo|/triton/|torch/jit")),
    ("backward", re.compile(r"autograd/|\bbackward\b")),
    ("optimizer", re.compile(r"/optim/|optimizer|lr_scheduler|clip_grad")),
    ("import", re.compile(r"<frozen importlib|<module>$")),
    ("forward", re.compile(r"_call_impl|\bforward\b")),
)  # fmt: skip


def exception_of(text: str) -> tuple[str, str] | None:
    """Return (exception, message) of a final exception line at the start of a text, or None; only names that end like one."""
    found = _FINAL.match(text)
    if not found or not _STANDARD.search(found[2]) or found[2] in _NOT_NAMES:
        return None
    return found[3] or found[2], found[4] or ""


def _where(frames: list[tuple[str, str, str]]) -> str:
    for file, _, function in reversed(frames[-8:]):
        for name, pattern in _PHASES:
            if name not in ("import", "forward") and pattern.search(f"{file} {function}"):
                return name
    for file, _, function in reversed(frames[-8:]):
        for name, pattern in _PHASES[-2:]:
            if pattern.search(f"{file} {function}"):
                return name
    return ""


class Tracebacks:
    """
    Follow the tracebacks of a file line by line.

    Lines of one speaker share a stream (`Prefix.stream`). Where a launcher weaves the lines of many ranks together without a
    prefix, heads and final lines are only counted against each other: frames may then be mixed, exceptions are not lost.
    """

    def __init__(self) -> None:
        self.raised: list[Raised] = []
        self._streams: dict[str, _Stream] = {}

    def feed(self, no: int, stream: str, text: str) -> tuple[bool, Raised | None]:
        """
        Take the next line.

        Returns
        -------
        inside : bool
            The line belongs to a traceback (head, frame, code, final line).
        raised : Raised or None
            The exception, when this is its final line.
        """
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _Stream()
        if _HEAD in text:
            return self._head(state, no, text), None
        stripped = text.strip()
        if not state.stack and not state.chain and not stripped.startswith(('File "', *_CHAIN)):
            found = exception_of(text)
            if stripped:
                state.before, state.before_no = stripped, no
            if found is None or len(text) - len(text.lstrip()) > 8 or "Warning" in found[0]:
                state.inside = False
                return False, None
            return True, self._final(state, no, stream, text, *found, bare=True)
        if stripped.startswith(_CHAIN):
            state.chain = True
            if state.last is not None:
                state.last.continued = True
            return True, None
        if found_file := _FILE.match(text):
            if not state.stack:
                top = _Open(no, max(0, len(text) - len(text.lstrip()) - 2), state.before, state.before_no)
                if state.inside and state.last is not None and _WRAPPER.search(state.last.text):
                    top.wrapped_by = state.last  # Ray prints what a task raised below its own line, without a head
                state.stack.append(top)
            state.stack[-1].frames.append((found_file[1], found_file[2], found_file[3]))
            state.inside = True
            return True, None
        if not stripped:
            return False, None
        if state.stack and (found_end := _FINAL.match(text)) and found_end[2] not in _NOT_NAMES:
            top = state.stack[-1]
            indent = len(found_end[1].replace("|", " "))
            known = bool(_STANDARD.search(found_end[2])) or found_end[3] is not None
            plausible = known or "." in found_end[2] or (state.inside and indent <= top.indent and not found_end[2].isupper())
            if plausible and indent <= top.indent + (0 if top.frames else 1):
                return True, self._final(state, no, stream, text, found_end[3] or found_end[2], found_end[4] or "")
        if state.stack and (text[:1] in " \t|" or set(stripped) <= set("^~- +|")):
            state.inside = True
            return True, None
        state.before, state.before_no, state.inside = stripped, no, False
        if state.stack and len(state.stack) > 64:  # heads whose ends never came: forget the oldest
            del state.stack[:32]
        return False, None

    def _head(self, state: _Stream, no: int, text: str) -> bool:
        at = text.index(_HEAD)
        lead = text[:at]
        indent = len(lead) - len(lead.lstrip(" |+-")) if lead.strip(" |+-") else len(lead)
        wrapped_by = None
        if "Original" in lead or (state.last and _WRAPPER.search(state.last.text) and state.inside):
            wrapped_by = state.last
        intro, intro_no = (
            (lead.strip(), no) if lead.strip(" |+-") and "traceback :" not in lead else (state.before, state.before_no)
        )
        for _ in range(text.count(_HEAD)):
            state.stack.append(
                _Open(no, indent, intro, intro_no, chained_from=state.last if state.chain else None, wrapped_by=wrapped_by)
            )
        state.chain = False
        state.inside = True
        return True

    def _final(self, state: _Stream, no: int, stream: str, text: str, exception: str, message: str, bare: bool = False) -> Raised:
        top = state.stack.pop() if state.stack else _Open(no, 0, state.before if not bare else "", state.before_no)
        frames = top.frames
        raised = Raised(
            no=no, text=text.strip(), exception=exception, message=message, stream=stream, start=top.start,
            frames=[f"{file}:{line} {function}" for file, line, function in frames[-5:]],
            where=_where(frames), bare=bare, intro=top.intro, intro_no=top.intro_no, chained_from=top.chained_from,
        )  # fmt: skip
        for file, line, function in reversed(frames):
            if not _INSTALLED.search(file):
                raised.user_frame = f"{file}:{line} {function}"
                break
        if top.wrapped_by is not None and top.wrapped_by.wraps is None:
            top.wrapped_by.wraps = raised
        if not frames and bare:
            state.chain = False
        state.last = raised
        state.inside = True
        self.raised.append(raised)
        return raised
