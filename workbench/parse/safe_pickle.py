"""
Turn the bytes of a pickle into plain containers, text and numbers, and refuse everything that could name or run code.

A pickle is a program for a stack machine. This is an interpreter of that machine (protocols 0 to 5) without the opcodes that
look up a class, call something or ask the caller for an object: meeting one is an error that names the class. It exists because
flight-recorder dumps are pickles, and a dump is evidence from a machine that may not be trusted.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.errors import ParseError

__all__ = ["Cut", "Limits", "Machine", "loads", "salvage"]


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Bounds on what one pickle may cost.

    A full flight-recorder ring of 20,000 entries with 30 frames each is about 40 MB and 3 million values, so the defaults leave
    room.
    """

    max_bytes: int = 256 * 1024 * 1024
    max_depth: int = 64  # containers within containers
    max_items: int = 20_000_000  # values made, and values seen when shared containers are unfolded
    max_int_bytes: int = 256  # one integer; nothing in a dump needs more than eight


class Cut(ParseError):
    """The bytes end before the pickle does."""


# Opcodes that look up, call or build objects, or reach outside the stream.
_FORBIDDEN = {
    0x62: "BUILD", 0x6F: "OBJ", 0x52: "REDUCE", 0x50: "PERSID", 0x51: "BINPERSID", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX",
    0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}  # fmt: skip
_MAX_PROTOCOL = 5


def loads(raw: bytes, limits: Limits | None = None, *, file: str = "") -> Any:
    """
    Read one pickle of plain data.

    Parameters
    ----------
    raw : bytes
        The pickle; bytes after its end are ignored, as `pickle.loads` does.
    limits : Limits, optional
        Bounds on size, depth and count.
    file : str
        Named in errors.

    Returns
    -------
    object
        None, bool, int, float, str, bytes, bytearray, list, tuple, dict, set or frozenset of these.

    Raises
    ------
    ParseError
        The pickle is cut, damaged, too large, refers to itself, or holds a class (which the message names).
    """
    machine = Machine(raw, limits or Limits(), file)
    value = machine.run()
    machine.check(value)
    return value


def salvage(raw: bytes, limits: Limits | None = None, *, file: str = "") -> tuple[Any, ParseError | None]:
    """
    Read as much of a cut or damaged pickle as was complete before the damage.

    Parameters
    ----------
    raw, limits, file
        As for `loads`.

    Returns
    -------
    tuple
        The value (None when nothing was complete) and the error that stopped the reading, or None. A pickle with a class in it
        yields nothing: what is around a refused object is not to be trusted.
    """
    machine = Machine(raw, limits or Limits(), file)
    try:
        value = machine.run()
        error: ParseError | None = None
    except Cut as cut:
        value, error = machine.unwind(), cut
    except ParseError as refused:
        return None, refused
    try:
        machine.check(value)
    except ParseError as refused:
        return None, refused
    return value, error


class Machine:
    """The stack machine: `stack` is what has been built since the last mark, `marks` the stacks below."""

    def __init__(self, raw: bytes, limits: Limits, file: str) -> None:
        if len(raw) > limits.max_bytes:
            raise ParseError(
                f"a pickle of {len(raw)} bytes is larger than the limit of {limits.max_bytes}",
                file=file,
                hint="raise Limits.max_bytes",
            )
        self.raw, self.limits, self.file = raw, limits, file
        self.pos = 0
        self.made = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.ops = self._table()

    # Reading ------------------------------------------------------------------------------------------------------

    def error(self, message: str) -> ParseError:
        return ParseError(
            f"{message} (byte {self.pos})", file=self.file, hint="the file is not a flight-recorder dump, or is damaged"
        )

    def take(self, size: int) -> bytes:
        end = self.pos + size
        if size < 0 or end > len(self.raw):
            raise Cut(f"the pickle is cut: it ends at byte {len(self.raw)}", file=self.file, hint="copy the dump again")
        piece = self.raw[self.pos : end]
        self.pos = end
        return piece

    def text_line(self) -> bytes:
        end = self.raw.find(b"\n", self.pos)
        if end < 0:
            raise Cut(f"the pickle is cut: it ends at byte {len(self.raw)}", file=self.file, hint="copy the dump again")
        piece = self.raw[self.pos : end]
        self.pos = end + 1
        return piece

    def number(self, layout: str, size: int) -> Any:
        return struct.unpack(layout, self.take(size))[0]

    # Running ------------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        raw, size, ops = self.raw, len(self.raw), self.ops
        try:
            while self.pos < size:
                code = raw[self.pos]
                self.pos += 1
                if code == 0x2E:  # STOP
                    return self.pop()
                action = ops.get(code)
                if action is None:
                    raise self.refuse(code)
                action()
        except ParseError:
            raise
        except (ValueError, TypeError, OverflowError, UnicodeError, struct.error, IndexError, KeyError) as bad:
            raise self.error(f"the pickle is damaged: {type(bad).__name__}") from bad
        raise Cut(f"the pickle is cut: it ends at byte {size}", file=self.file, hint="copy the dump again")

    def refuse(self, code: int) -> ParseError:
        if code in (0x63, 0x69):  # GLOBAL, INST
            module = self.text_line().decode("utf-8", "replace")
            return self.refused_class(module, self.text_line().decode("utf-8", "replace"))
        if code == 0x93:  # STACK_GLOBAL
            module_name, name = ["?", "?", *self.stack][-2:]
            return self.refused_class(str(module_name)[:200], str(name)[:200])
        if code in _FORBIDDEN:
            return self.error(f"the pickle holds an object ({_FORBIDDEN[code]}), which is refused: only plain data is read")
        return self.error(f"the pickle has an unknown opcode 0x{code:02x}")

    def refused_class(self, module: str, name: str) -> ParseError:
        return ParseError(
            f"the pickle refers to the class or function {module}.{name}, which is refused: only plain data is read",
            file=self.file,
            hint="do not load this file with pickle; ask for the JSON form of the dump",
        )

    def push(self, value: Any) -> None:
        self.made += 1
        if self.made > self.limits.max_items:
            raise self.error(f"the pickle has more than {self.limits.max_items} values")
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise self.error("the pickle is damaged: nothing on its stack")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise self.error("the pickle is damaged: a mark is missing")
        items, self.stack = self.stack, self.marks.pop()
        return items

    def top(self, *kinds: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kinds):
            raise self.error("the pickle is damaged: a container is missing")
        return self.stack[-1]

    # Opcodes ------------------------------------------------------------------------------------------------------

    def _table(self) -> dict[int, Callable[[], object]]:
        push, take, number = self.push, self.take, self.number

        def integer(size: int) -> int:
            if size > self.limits.max_int_bytes or size < 0:
                raise self.error(f"an integer of {size} bytes is larger than the limit")
            return int.from_bytes(take(size), "little", signed=True)

        def text_integer() -> None:
            piece = self.text_line().rstrip(b"\r").rstrip(b"L")
            if len(piece) > 3 * self.limits.max_int_bytes:
                raise self.error("an integer is larger than the limit")
            push(piece == b"01" if piece in (b"00", b"01") else int(piece))  # protocol 0 writes booleans as I00 and I01

        def quoted() -> None:
            piece = self.text_line().strip()
            if len(piece) < 2 or piece[:1] != piece[-1:] or piece[:1] not in b"'\"":
                raise self.error("the pickle is damaged: a string is not quoted")
            push(codecs.escape_decode(piece[1:-1])[0].decode("utf-8", "replace"))

        def utf8(size: int) -> None:
            push(take(size).decode("utf-8", "surrogatepass"))

        def mark() -> None:
            self.marks.append(self.stack)
            if len(self.marks) > 4 * self.limits.max_depth:
                raise self.error("the pickle is nested too deep")
            self.stack = []

        def pop() -> None:
            if self.stack:
                self.stack.pop()
            else:
                self.since_mark()

        def fixed_tuple(size: int) -> None:
            if len(self.stack) < size:
                raise self.error("the pickle is damaged: nothing on its stack")
            items = tuple(self.stack[-size:])
            del self.stack[-size:]
            push(items)

        def append() -> None:
            item = self.pop()
            self.top(list).append(item)

        def set_items(items: list[Any]) -> None:
            if len(items) % 2:
                raise self.error("the pickle is damaged: a key has no value")
            self.top(dict).update(zip(items[::2], items[1::2], strict=True))

        def make_dict() -> None:
            items = self.since_mark()
            push({})
            set_items(items)

        def protocol() -> None:
            version = take(1)[0]
            if version > _MAX_PROTOCOL:
                raise self.error(f"pickle protocol {version} is not known")

        def put(key: int) -> None:
            if not self.stack or key < 0:
                raise self.error("the pickle is damaged: nothing to remember")
            self.memo[key] = self.stack[-1]

        def get(key: int) -> None:
            if key not in self.memo:
                raise self.error(f"the pickle is damaged: nothing is remembered as {key}")
            push(self.memo[key])

        return {
            0x28: mark,
            0x30: pop,
            0x31: self.since_mark,
            0x32: lambda: push(self.top(object)),
            0x4E: lambda: push(None),
            0x88: lambda: push(True),
            0x89: lambda: push(False),
            0x49: text_integer,
            0x4C: text_integer,
            0x4A: lambda: push(number("<i", 4)),
            0x4B: lambda: push(take(1)[0]),
            0x4D: lambda: push(number("<H", 2)),
            0x8A: lambda: push(integer(take(1)[0])),
            0x8B: lambda: push(integer(number("<i", 4))),
            0x46: lambda: push(float(self.text_line())),
            0x47: lambda: push(number(">d", 8)),
            0x53: quoted,
            0x54: lambda: push(take(number("<i", 4)).decode("utf-8", "replace")),
            0x55: lambda: push(take(take(1)[0]).decode("utf-8", "replace")),
            0x56: lambda: push(self.text_line().decode("raw-unicode-escape")),
            0x58: lambda: utf8(number("<I", 4)),
            0x8C: lambda: utf8(take(1)[0]),
            0x8D: lambda: utf8(number("<Q", 8)),
            0x42: lambda: push(take(number("<I", 4))),
            0x43: lambda: push(take(take(1)[0])),
            0x8E: lambda: push(take(number("<Q", 8))),
            0x96: lambda: push(bytearray(take(number("<Q", 8)))),
            0x5D: lambda: push([]),
            0x7D: lambda: push({}),
            0x29: lambda: push(()),
            0x8F: lambda: push(set()),
            0x61: append,
            0x65: lambda: (lambda items: self.top(list).extend(items))(self.since_mark()),
            0x6C: lambda: push(self.since_mark()),
            0x74: lambda: push(tuple(self.since_mark())),
            0x85: lambda: fixed_tuple(1),
            0x86: lambda: fixed_tuple(2),
            0x87: lambda: fixed_tuple(3),
            0x64: make_dict,
            0x73: lambda: (lambda value, key: set_items([key, value]))(self.pop(), self.pop()),
            0x75: lambda: set_items(self.since_mark()),
            0x90: lambda: (lambda items: self.top(set).update(items))(self.since_mark()),
            0x91: lambda: push(frozenset(self.since_mark())),
            0x80: protocol,
            0x95: lambda: take(8),
            0x70: lambda: put(int(self.text_line())),
            0x71: lambda: put(take(1)[0]),
            0x72: lambda: put(number("<I", 4)),
            0x94: lambda: put(len(self.memo)),
            0x67: lambda: get(int(self.text_line())),
            0x68: lambda: get(take(1)[0]),
            0x6A: lambda: get(number("<I", 4)),
        }

    # After the run ------------------------------------------------------------------------------------------------

    def unwind(self) -> Any:
        """Close the containers that were open when the bytes ended, innermost first, with what they had by then."""
        while self.marks:
            items = self.since_mark()
            if not self.stack:
                self.stack = [items] if items else []
            elif isinstance(self.stack[-1], list):
                self.stack[-1].extend(items)
            elif isinstance(self.stack[-1], dict):
                pairs = zip(items[::2], items[1::2], strict=False)
                try:
                    self.stack[-1].update(pairs)
                except TypeError:  # a key that is a container: the rest of this level is lost
                    continue
        return self.stack[0] if self.stack else None

    def check(self, value: Any) -> None:
        """
        Refuse values that refer to themselves, are too deep, or unfold to too much.

        Containers may be shared through the memo, so that a few bytes can stand for exponentially many values; each container
        is looked at once, and its unfolded size is the sum over its members.
        """
        done: dict[int, tuple[int, int]] = {}  # id -> (depth, unfolded size)
        open_now: set[int] = set()
        todo: list[tuple[Any, bool]] = [(value, False)]
        while todo:
            item, leaving = todo.pop()
            if not isinstance(item, (list, tuple, dict, set, frozenset)) or (id(item) in done and not leaving):
                continue
            members = list(item.keys()) + list(item.values()) if isinstance(item, dict) else list(item)
            inner = [m for m in members if isinstance(m, (list, tuple, dict, set, frozenset))]
            if leaving:
                open_now.discard(id(item))
                depth = 1 + max((done[id(m)][0] for m in inner), default=0)
                size = 1 + len(members) + sum(done[id(m)][1] for m in inner)
                if depth > self.limits.max_depth:
                    raise self.error(f"the pickle is nested deeper than {self.limits.max_depth}")
                if size > self.limits.max_items:
                    raise self.error(f"the pickle unfolds to more than {self.limits.max_items} values")
                done[id(item)] = (depth, size)
                continue
            if id(item) in open_now:
                continue
            open_now.add(id(item))
            todo.append((item, True))
            for member in inner:
                if id(member) in open_now:
                    raise self.error("the pickle refers to itself")
                todo.append((member, False))
