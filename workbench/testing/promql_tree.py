"""
Turn the text of a PromQL query into its tree, for the part of the language that the workbench asks.

What is not known here is refused as the server refuses a query that it cannot parse: a wrong answer would be worse than none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["AGGREGATIONS", "NAME", "OVER_TIME", "PLAIN", "SETS", "Matcher", "Node", "PromqlError", "parse"]

NAME = "__name__"
AGGREGATIONS = frozenset({"sum", "min", "max", "avg", "count", "group"})
OVER_TIME = frozenset({
    "count_over_time", "last_over_time", "present_over_time", "sum_over_time", "avg_over_time", "max_over_time", "min_over_time", "changes",
    "resets",
})  # fmt: skip
PLAIN = frozenset({"abs", "ceil", "floor"})
SETS = ("or", "and", "unless")
_FUNCTIONS = {*OVER_TIME, *PLAIN, "scalar", "vector", "timestamp", "absent", "absent_over_time"}
_RANKED = ("quantile", "topk", "bottomk")
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">=", "<=", ">", "<"), ("+", "-"), ("*", "/", "%"))
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
  | (?P<duration>(?:\d+(?:ms|[smhdwy]))+)(?![\w.])
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
  | (?P<word>[a-zA-Z_:][\w:]*)
  | (?P<op>=~|!~|==|!=|>=|<=|[-+*/%^<>=(){}\[\],@])
    )""",
    re.VERBOSE,
)


class PromqlError(Exception):
    """A query that cannot be answered: `kind` is Prometheus's errorType."""

    def __init__(self, message: str, kind: str = "bad_data") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Matcher:
    """``label op "value"``."""

    label: str
    op: str
    value: str

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a series has it; one without the label has the empty text."""
        mine = labels.get(self.label, "")
        if self.op in ("=", "!="):
            return (mine == self.value) == (self.op == "=")
        return (_regexp(self.value).fullmatch(mine) is not None) == (self.op == "=~")


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a query: `kind` says which, `parts` are the queries in it."""

    kind: str  # number string selector range subquery call aggregate binary
    parts: tuple[Node, ...] = ()
    word: str = ""  # function, operator or aggregation
    number: float = 0.0  # the number, or seconds of a range
    step: float = 0.0  # of a subquery
    matchers: tuple[Matcher, ...] = ()
    labels: tuple[str, ...] | None = None  # by, without, on, ignoring
    without: bool = False  # the labels are those left out


def _regexp(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.DOTALL)  # RE2's syntax, as far as it is asked here, is Python's too
    except re.error as error:
        raise PromqlError(f"invalid parameter: error parsing regexp: {error}") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens: list[tuple[str, str]] = []
        while self.at < len(text.rstrip()):
            found = _TOKEN.match(text, self.at)
            if not found:
                raise PromqlError(f"parse error: unexpected character {text[self.at :].lstrip()[:1]!r} in {text[:200]!r}")
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            self.at = found.end()
        self.at = 0

    def peek(self, *words: str) -> bool:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
        return text in words and kind in ("op", "word")

    def take(self) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise PromqlError("parse error: unexpected end of input")
        self.at += 1
        return self.tokens[self.at - 1]

    def want(self, word: str) -> None:
        kind, text = self.take()
        if text != word or kind == "string":
            raise PromqlError(f"parse error: unexpected {text!r}, expected {word!r}")

    def whole(self) -> Node:
        if not self.tokens:
            raise PromqlError("parse error: no expression found in input")
        node = self.binary(0)
        if self.at < len(self.tokens):
            raise PromqlError(f"parse error: unexpected {self.tokens[self.at][1]!r}")
        return node

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek(*_LEVELS[level]):
            word = self.take()[1]
            labels, without = None, True
            if self.peek("on", "ignoring"):
                without = self.take()[1] == "ignoring"
                labels = self.names()
            if self.peek("bool", "group_left", "group_right"):
                raise PromqlError(f"parse error: the modifier {self.take()[1]} is not known here")
            left = Node("binary", (left, self.binary(level + 1)), word, labels=labels, without=without)
        return left

    def unary(self) -> Node:
        if self.peek("-", "+"):
            sign = self.take()[1]
            inner = self.unary()
            return inner if sign == "+" else Node("binary", (Node("number", number=-1.0), inner), "*")
        return self.ranged(self.primary())

    def ranged(self, node: Node) -> Node:
        while self.peek("["):
            self.take()
            seconds = self.seconds()
            kind, text = self.take()
            if (kind, text) == ("op", "]"):
                if node.kind != "selector":
                    raise PromqlError("parse error: ranges only allowed for vector selectors")
                node = Node("range", (node,), number=seconds)
                continue
            if not text.startswith(":"):
                raise PromqlError(f"parse error: unexpected {text!r} in subquery or range")
            step = _duration(text[1:]) if text[1:] else self.seconds()
            self.want("]")
            node = Node("subquery", (node,), number=seconds, step=step)
        if self.peek("offset", "@"):
            raise PromqlError("parse error: offset and @ are not known here")
        return node

    def seconds(self) -> float:
        kind, text = self.take()
        if kind != "duration":
            raise PromqlError(f"parse error: bad duration {text!r}")
        return _duration(text)

    def names(self) -> tuple[str, ...]:
        self.want("(")
        found: list[str] = []
        while not self.peek(")"):
            kind, text = self.take()
            if kind != "word":
                raise PromqlError(f"parse error: unexpected {text!r} in grouping opts, expected label")
            found.append(text)
            if not self.peek(")"):
                self.want(",")
        self.take()
        return tuple(found)

    def primary(self) -> Node:
        if self.peek("("):
            self.take()
            node = self.binary(0)
            self.want(")")
            return node
        if self.peek("{"):
            return Node("selector", matchers=self.matchers(""))
        kind, text = self.take()
        if kind == "number":
            return Node("number", number=float(text))
        if kind == "string":
            return Node("string", word=_unquoted(text))
        if kind != "word":
            raise PromqlError(f"parse error: unexpected {text!r}")
        if (text in AGGREGATIONS or text in _RANKED) and self.peek("by", "without", "("):
            return self.aggregate(text)
        if self.peek("("):
            return self.call(text)
        if text.lower() in ("nan", "inf"):
            return Node("number", number=float(text))
        return Node("selector", matchers=self.matchers(text))

    def aggregate(self, word: str) -> Node:
        labels, without = None, False
        if self.peek("by", "without"):
            without = self.take()[1] == "without"
            labels = self.names()
        parts = self.arguments()
        if labels is None and self.peek("by", "without"):
            without = self.take()[1] == "without"
            labels = self.names()
        if len(parts) != (2 if word in _RANKED else 1):
            raise PromqlError(f"parse error: wrong number of arguments for aggregate expression {word}")
        return Node("aggregate", parts, word, labels=labels if labels is not None or without else (), without=without)

    def call(self, word: str) -> Node:
        if word not in _FUNCTIONS:
            raise PromqlError(f"parse error: unknown function with name {word!r}")
        parts = self.arguments()
        if len(parts) != 1:
            raise PromqlError(f"parse error: expected 1 argument(s) in call to {word!r}, got {len(parts)}")
        ranged = parts[0].kind in ("range", "subquery")
        if ranged != (word in OVER_TIME or word == "absent_over_time"):
            wanted = "instant vector" if ranged else "range vector"
            raise PromqlError(f"parse error: expected type {wanted} in call to function {word!r}")
        return Node("call", parts, word)

    def arguments(self) -> tuple[Node, ...]:
        self.want("(")
        parts: list[Node] = []
        while not self.peek(")"):
            parts.append(self.binary(0))
            if not self.peek(")"):
                self.want(",")
        self.take()
        return tuple(parts)

    def matchers(self, name: str) -> tuple[Matcher, ...]:
        found = [Matcher(NAME, "=", name)] if name else []
        if self.peek("{"):
            self.take()
            while not self.peek("}"):
                kind, label = self.take()
                if kind not in ("word", "string"):
                    raise PromqlError(f"parse error: unexpected {label!r} in label matching, expected identifier or '}}'")
                op = self.take()[1]
                kind, value = self.take()
                if kind != "string" or op not in ("=", "!=", "=~", "!~"):
                    raise PromqlError(f"parse error: unexpected {value!r} in label matching, expected string")
                found.append(Matcher(label, op, _unquoted(value)))
                if not self.peek("}"):
                    self.want(",")
            self.take()
        if all(each.fits({}) for each in found):
            raise PromqlError("parse error: vector selector must contain at least one non-empty matcher")
        return tuple(found)


def _duration(text: str) -> float:
    found = re.findall(r"(\d+)(ms|[smhdwy])", text)
    if not found or "".join(map("".join, found)) != text:
        raise PromqlError(f"parse error: not a valid duration string: {text!r}")
    return math.fsum(int(number) * _UNITS[unit] for number, unit in found)


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1]
    escapes = {"n": "\n", "t": "\t", "r": "\r"}

    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if code[0] in "ux" else escapes.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", one, text[1:-1])


def parse(text: str) -> Node:
    """Return the tree of a query; raises `PromqlError`."""
    return _Parser(text).whole()
