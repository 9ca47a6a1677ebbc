"""
Turn a pickle with classes and tensors in it into names, arguments and sizes, without importing or calling any of them.

`workbench.parse.safe_pickle` refuses everything that names code. A checkpoint always names some (`torch._utils._rebuild_tensor_v2`), so
here such a name becomes a `Name`, a call a `Thing` that remembers what would have been called, and a storage a `Storage` with its size.
Nothing is looked up.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workbench.catalog import table
from workbench.errors import ParseError
from workbench.parse.safe_pickle import Cut, Limits, Machine
from workbench.training.checkpoints.files import Source

__all__ = ["Name", "Odd", "Pickled", "Storage", "Thing", "read_pickle"]

# 64 MiB: the pickle of 500,000 tensors with names of 60 letters. Values cost some 100 bytes each, so 5 million are half a GiB at worst
LIMITS = Limits(max_bytes=64 << 20, max_depth=200, max_items=5_000_000)


@lru_cache(maxsize=1)
def _dangerous() -> frozenset[tuple[str, str]]:
    """Return module and name (empty: all of the module) of what runs programs, opens files or talks to the network."""
    return frozenset((row["module"], row["name"]) for row in table("unsafe_pickle_names"))


# bytes of one element by the class of a storage; torch/storage.py (_dtype_to_storage_type_map), 2.14
_WIDTHS = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4, "ShortStorage": 2,
    "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexDoubleStorage": 16, "ComplexFloatStorage": 8, "QUInt8Storage": 1,
    "QInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1, "UntypedStorage": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function that the pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"[:200]

    @property
    def dangerous(self) -> bool:
        """Whether loading the file would reach for what runs programs, opens files or talks to the network."""
        parts, known = self.module.split("."), _dangerous()
        modules = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        return any((module, "") in known or (module, self.name.split(".")[0]) in known for module in modules)


class Thing:
    """What a call would have made: who would have been called with what, and what would have been put into it."""

    __slots__ = ("args", "fn", "items", "members", "state")

    def __init__(self, fn: Any, args: Any) -> None:
        self.fn, self.args = fn, args
        self.state: Any = None
        self.items: dict[Any, Any] = {}
        self.members: list[Any] = []

    def field(self, name: str) -> Any:
        """An attribute of the object as its state has it; None without."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # of a class with slots: (dict, slots)
            state = {**(state[0] or {}), **(state[1] or {})} if all(isinstance(half, dict | None) for half in state) else None
        return state.get(name) if isinstance(state, dict) else None


class Odd:
    """A key that is no text or small number; wrapped, since a file can choose keys that make a dictionary of Python very slow."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class Storage:
    """The numbers of a tensor, which lie outside of the pickle: their key, and how many bytes of them there must be."""

    key: str
    kind: str
    count: int
    width: int | None  # None: a class of storage that is not known

    @property
    def bytes(self) -> int | None:
        """How many bytes they are."""
        return None if self.width is None else self.count * self.width


@dataclass(slots=True)
class Pickled:
    """
    A pickle that was read.

    Attributes
    ----------
    value : Any
        Plain data with `Name`, `Thing` and `Storage` in it; it may be shared and refer to itself: do not walk it without a bound.
    storages : dict
        Key → `Storage`.
    names : set of Name
        All classes and functions in it.
    end : int
        Offset after its last byte.
    """

    value: Any
    storages: dict[str, Storage]
    names: set[Name]
    end: int


def read_pickle(source: Source, start: int = 0, *, limits: Limits = LIMITS, whole: bool = False) -> Pickled:
    """
    Read the pickle that begins at an offset.

    Parameters
    ----------
    source : Source
    start : int
        Offset of its first byte.
    limits : Limits
        Bounds; what is larger is a `ParseError`.
    whole : bool
        The source is the pickle: read all of it at once. Otherwise pieces are tried, each four times as large as the one before.

    Raises
    ------
    Cut
        The source ends before the pickle does.
    ParseError
        It is damaged, too large, or uses what no checkpoint needs.
    OSError
        The source cannot be read.
    """
    left = max(0, source.size - start)
    if whole and left > limits.max_bytes:
        raise ParseError(f"a pickle of {left} bytes is larger than what is looked into ({limits.max_bytes} bytes)")
    piece = left if whole else min(left, 1 << 20)
    collecting = gc.isenabled()
    gc.disable()  # looking for cycles again and again among millions of new values takes longer than making them
    try:
        while True:
            machine = _Objects(source.read(start, piece), limits, "")
            try:
                value = machine.run()
            except Cut:
                if piece >= left:
                    raise
                if piece >= limits.max_bytes:
                    raise ParseError(f"the pickle is larger than what is looked into ({limits.max_bytes} bytes)") from None
                piece = min(left, piece * 4, limits.max_bytes)
                continue
            return Pickled(value, machine.storages, machine.names, start + machine.pos)
    finally:
        if collecting:
            gc.enable()


def _key(value: Any) -> Any:
    """Return a key that is safe in a dictionary: numbers beyond 2^60 and tuples can be chosen to collide, texts and bytes cannot."""
    if isinstance(value, str | bytes | float | bool | Name) or value is None:
        return value
    if isinstance(value, int) and -(1 << 60) < value < 1 << 60:
        return value
    return Odd(value)


class _Objects(Machine):
    """The stack machine, with names and calls as data."""

    def __init__(self, raw: bytes, limits: Limits, file: str) -> None:
        self.storages: dict[str, Storage] = {}
        self.names: set[Name] = set()
        super().__init__(raw, limits, file)

    def run(self) -> Any:
        """
        Interpret the pickle.

        Of a metadata file of 16,384 ranks nine opcodes in ten are the dozen that are done right here: half the time of a call for each. They
        mean what `Machine` says; the others, and the last bytes, where one may be cut, go through its table.
        """
        raw, memo, ops, most = self.raw, self.memo, self.ops, self.limits.max_items
        safe = len(raw) - 5  # up to here an opcode's number is not cut
        pos, made, stack = self.pos, self.made, self.stack
        while pos < safe and made < most:
            code = raw[pos]
            if code == 0x71 and stack:  # BINPUT
                memo[raw[pos + 1]] = stack[-1]
                pos += 2
            elif code == 0x94 and stack:  # MEMOIZE
                memo[len(memo)] = stack[-1]
                pos += 1
            elif code == 0x72 and stack:  # LONG_BINPUT
                memo[int.from_bytes(raw[pos + 1 : pos + 5], "little")] = stack[-1]
                pos += 5
            elif code == 0x68 and raw[pos + 1] in memo:  # BINGET
                stack.append(memo[raw[pos + 1]])
                pos, made = pos + 2, made + 1
            elif code == 0x4B:  # BININT1
                stack.append(raw[pos + 1])
                pos, made = pos + 2, made + 1
            elif code == 0x4D:  # BININT2
                stack.append(raw[pos + 1] | raw[pos + 2] << 8)
                pos, made = pos + 3, made + 1
            elif code == 0x28 and len(self.marks) < 4 * self.limits.max_depth:  # MARK
                self.marks.append(stack)
                self.stack = stack = []
                pos += 1
            elif code == 0x7D:  # EMPTY_DICT
                stack.append({})
                pos, made = pos + 1, made + 1
            elif code == 0x29:  # EMPTY_TUPLE
                stack.append(())
                pos, made = pos + 1, made + 1
            elif code == 0x86 and len(stack) > 1:  # TUPLE2
                stack[-2:] = [(stack[-2], stack[-1])]
                pos, made = pos + 1, made + 1
            elif code == 0x74 and self.marks:  # TUPLE
                items = tuple(stack)
                self.stack = stack = self.marks.pop()
                stack.append(items)
                pos, made = pos + 1, made + 1
            elif code == 0x2E:  # STOP
                break
            else:
                action = ops.get(code)
                self.pos, self.made = pos + 1, made
                if action is None:
                    raise self.refuse(code)
                try:
                    action()
                except ParseError:
                    raise
                except (ValueError, TypeError, OverflowError, UnicodeError, struct.error, IndexError, KeyError) as bad:
                    raise self.error(f"the pickle is damaged: {type(bad).__name__}") from bad
                pos, made, stack = self.pos, self.made, self.stack
        self.pos, self.made = pos, made
        return super().run()

    def name(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.error("the pickle is damaged: a class has no name")
        found = Name(module[:500], name[:500])
        if len(self.names) < 10_000 or found.dangerous:
            self.names.add(found)
        return found

    def called(self, fn: Any, args: Any) -> Any:
        if isinstance(fn, Name) and fn.module == "collections" and fn.name in ("OrderedDict", "defaultdict"):
            return {}
        return Thing(fn, args)

    def storage(self, pid: Any) -> Any:
        # ('storage', <class torch.FloatStorage>, key, location, count of elements[, view]); torch/serialization.py, persistent_id
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            return Thing("persistent", pid)
        _, kind, key, _, count = pid[:5]
        if not isinstance(kind, Name) or not isinstance(count, int) or count < 0 or not isinstance(key, str):
            raise self.error("the pickle is damaged: a tensor without class, key or size")
        found = Storage(key[:200], kind.name, count, _WIDTHS.get(kind.name))
        known = self.storages.get(found.key)
        if known is None or (found.bytes or 0) > (known.bytes or 0):
            self.storages[found.key] = found
        return found

    def _table(self) -> dict[int, Callable[[], object]]:
        table = super()._table()
        push, pop = self.push, self.pop

        def line() -> str:
            return self.text_line().decode("utf-8", "replace")

        def stack_global() -> None:
            name, module = pop(), pop()
            push(self.name(module, name))

        def reduce() -> None:
            args, fn = pop(), pop()
            push(self.called(fn, args))

        def new_with_words() -> None:
            words, args, fn = pop(), pop(), pop()
            push(Thing(fn, (args, words)))

        def build() -> None:
            state = pop()
            target = self.top(object)
            if isinstance(target, Thing):
                target.state = state

        def object_since_mark() -> None:
            items = self.since_mark()
            if not items:
                raise self.error("the pickle is damaged: an object has no class")
            push(self.called(items[0], tuple(items[1:])))

        def instance() -> None:
            fn = self.name(line(), line())
            push(self.called(fn, tuple(self.since_mark())))

        def set_items(items: list[Any]) -> None:
            if len(items) % 2:
                raise self.error("the pickle is damaged: a key has no value")
            target = self.top(dict, Thing)
            into = target.items if isinstance(target, Thing) else target
            for key, value in zip(items[::2], items[1::2], strict=True):
                into[_key(key)] = value

        def append(items: list[Any]) -> None:
            target = self.top(list, Thing)
            (target.members if isinstance(target, Thing) else target).extend(items)

        def make_dict() -> None:
            items = self.since_mark()
            push({})
            set_items(items)

        def empty_set() -> None:
            self.made += 3  # two hundred bytes of memory for one of the file
            push(set())

        return table | {
            0x63: lambda: push(self.name(line(), line())),  # GLOBAL
            0x93: stack_global,
            0x52: reduce,
            0x81: reduce,  # NEWOBJ
            0x92: new_with_words,  # NEWOBJ_EX
            0x62: build,
            0x6F: object_since_mark,  # OBJ
            0x69: instance,  # INST
            0x51: lambda: push(self.storage(pop())),  # BINPERSID
            0x50: lambda: push(Thing("persistent", line())),  # PERSID
            0x73: lambda: (lambda value, key: set_items([key, value]))(pop(), pop()),
            0x75: lambda: set_items(self.since_mark()),
            0x64: make_dict,
            0x61: lambda: append([pop()]),
            0x65: lambda: append(self.since_mark()),
            0x8F: empty_set,
            0x90: lambda: (lambda items: self.top(set).update(map(_key, items)))(self.since_mark()),
            0x91: lambda: push(frozenset(map(_key, self.since_mark()))),
        }
