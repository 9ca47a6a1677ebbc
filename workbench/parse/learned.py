"""Learn, from the tracebacks of a file, the heads that some wrapper put in front of its lines and no rule knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.parse.json_record import record_of
from workbench.parse.prefix import NO_CONTEXT, Context, Prefix, context, split_prefix

__all__ = ["Learned", "learned_context", "split"]

_HEAD = "Traceback (most recent call last):"
#   File "/workspace/train.py", line 258, in main     (a CSV export doubles the quotes)
_FILE = re.compile(r'( *)File ""?[^"\n]{1,400}""?, line \d+, in ')
_CLEAN = re.compile(r"[\s|+]*$")
# a word with a digit in it (stamp, counter, pid, UUID, pod) or a level may be another one in the next line
_WORD = re.compile(r"[\w.:,+#/@-]*\d[\w.:,+#/@-]*|\b(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|NOTICE|stdout|stderr)\b|\s+")
_LEVELS = {"WARN": "WARNING", "FATAL": "CRITICAL", "NOTICE": "INFO"}
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|NOTICE)\b")
_STAMP = re.compile(
    r"\d{4}[-/]\d{2}[-/]\d{2}[T _]\d{1,2}:\d{2}|(?<![\d:])\d{1,2}:\d{2}:\d{2}|(?<!\d)1\d{9}\.\d+|[A-Z][a-z]{2} [A-Z]?"
)
_RANK = re.compile(r"(?<![a-z])(?<!local_)(?<!local )(?<!node_)rank[ =:_-]{0,2}(\d{1,5})\b", re.IGNORECASE)
_PID = re.compile(r"\bpid[ =:]{0,2}(\d{1,8})\b", re.IGNORECASE)
_NODE = re.compile(r"\b(?:host|hostname|node|ip)=([A-Za-z\d][\w.-]*)")
# logs/rank-2.log:[2025-01-17 …   |   worker-0.out:318:E0117 …   (grep over several files)
_GREP = re.compile(
    r"([\w./-]{1,150}\.(?:log|out|err|txt)(?:\.\d{1,3})?):(?:\d{1,9}:)?(?=[\[(A-Z]|\d{4}[-/]\d\d|[a-z][\w.-]*\d[\w.-]*:)"
)
_NAMED = 160  # characters within which the name of a file ends
_LONGEST = 300  # characters of a head
_MOST = 8  # templates of one file


@dataclass(frozen=True, slots=True)
class _Template:
    pattern: re.Pattern[str]
    speaker: tuple[int, ...]  # groups that name who speaks: they stay the same over many lines


@dataclass(frozen=True, slots=True)
class Learned:
    """The templates of the heads of one file; none where every head is known."""

    templates: tuple[_Template, ...] = ()

    def cut(self, text: str) -> tuple[str, str, str] | None:
        """Return (head, name of its speaker, rest) of a line, or None when it begins with no learned head."""
        for number, template in enumerate(self.templates):
            if found := template.pattern.match(text):
                who = "/".join(str(found[group]) for group in template.speaker)
                head, rest = found[0], text[found.end() :]
                if head.endswith('"'):  # a cell of a CSV export
                    rest = rest.rstrip().removesuffix('"').replace('""', '"')
                return head, f"learned{number}/{who}", rest
        return None


def _expression(head: str) -> str:
    """Return an expression for heads like this one."""
    parts, at = [], 0
    for found in _WORD.finditer(head):
        parts.append(re.escape(head[at : found.start()]))
        at = found.end()
        if not found[0].isspace():
            parts.append(r"([\w.:,+#/@-]+)")
        else:
            parts.append(re.escape(found[0]) if at == len(head) else r"\s+")
    return "".join(parts) + re.escape(head[at:])


def _heads(text: str, ctx: Context) -> list[str]:
    """Return what stands in front of the head or of a frame of a traceback, when no rule takes it away."""
    if _HEAD in text:
        rest = split_prefix(text, ctx).rest
        at = rest.find(_HEAD)
        if at >= 0 and not _CLEAN.match(rest[:at]):
            return [text[: text.index(_HEAD)]]
    elif (found := _FILE.search(text)) is not None:
        rest = split_prefix(text, ctx).rest
        inner = _FILE.search(rest)
        if inner is not None and not _CLEAN.match(rest[: inner.start()]):
            indent = min(2, len(found[1]) - (1 if len(found[1]) in (1, 3) else 0))
            return [text[: found.start(1) + len(found[1]) - max(indent, 0)]]
    return []


def learn(lines: Sequence[str], ctx: Context = NO_CONTEXT) -> Learned:
    """
    Look over (a sample of) the lines of a file for tracebacks behind a head that no rule takes away.

    A head counts when at least two lines of tracebacks, one of them a frame, have it: one alone may be a sentence that quotes.
    """
    anchors = [text for text in lines if "Traceback (most" in text or ("File " in text and ", line " in text)]
    if not anchors:
        return Learned()
    seen: dict[str, int] = {}
    for text in anchors[:2000]:
        for head in _heads(text[:4000], ctx):
            if head and len(head) <= _LONGEST and not (head[-1].isalnum() or head[-1] in "_/."):
                key = _expression(head)
                seen[key] = seen.get(key, 0) + 1
    made: list[_Template] = []
    for key in sorted(seen, key=lambda key: (-seen[key], key)):
        pattern = re.compile(key)
        matching = [found for text in lines if (found := pattern.match(text)) is not None]
        framed = sum(1 for found in matching if _FILE.match(found.string, found.end()))
        if len(matching) < 3 or framed < 1 or any(one.pattern.match(text) for one in made for text in (matching[0].string,)):
            continue
        speaker = tuple(
            group
            for group in range(1, pattern.groups + 1)
            if len({found[group] for found in matching}) <= max(1, len(matching) // 3)
            and not any(_LEVEL.fullmatch(found[group]) or _STAMP.match(found[group]) for found in matching[:50])
        )
        made.append(_Template(pattern, speaker))
        if len(made) == _MOST:
            break
    return Learned(tuple(made))


def learned_context(lines: Iterable[str], year: int | None = None) -> tuple[Context, Learned]:
    """Return what the whole file tells about its heads, and the heads that only its tracebacks tell."""
    texts = list(lines)
    whole = context(texts, year)
    learned = learn(texts, whole)
    if learned.templates:
        whole = context([cut[2] if (cut := learned.cut(text)) else text for text in texts], whole.year)
    return whole, learned


def _record(text: str) -> tuple[str, str, str] | None:
    """Cut what a collector (fluentd, tail) put in front of a record of a structured logger."""
    if not text.endswith("}") or text[:1] == "{" or (at := text.find(' {"', 0, _LONGEST)) < 0:
        return None
    record = record_of(text[at + 1 :])
    if record is None or not (record.stamp is not None or record.level or '"stream"' in text):
        return None
    return text[:at], "record", text[at + 1 :]


def split(text: str, ctx: Context, learned: Learned) -> Prefix:
    """Split a line as `split_prefix` does, after the name of a file that grep put there, or a learned head, was read and taken away."""
    listed = _GREP.match(text) if ":" in text[:_NAMED] else None
    if listed is None:
        return _split(text, ctx, learned)
    head = _split(text[listed.end() :], ctx, learned)
    head.stream = f"{listed[1]}/{head.stream}"
    return head


def _split(text: str, ctx: Context, learned: Learned) -> Prefix:
    cut = learned.cut(text) if learned.templates else _record(text)
    if cut is None:
        return split_prefix(text, ctx)
    outer, who, rest = cut
    plain, head = split_prefix(text, ctx), split_prefix(rest, ctx)
    if learned.templates and len(plain.rest) <= len(head.rest):
        return plain  # of this line the rules know more than was learned from others
    said = Prefix()
    for stamp in _STAMP.finditer(outer):
        said = split_prefix(outer[stamp.start() :], ctx)
        if said.time is not None or said.clock is not None:
            break
    if head.time is None and head.clock is None:
        head.time, head.naive, head.yearless, head.clock = said.time, said.naive, said.yearless, said.clock
    if head.rank is None:
        head.rank = int(found[1]) if (found := _RANK.search(outer)) else plain.rank
        head.local_rank = plain.local_rank if head.local_rank is None else head.local_rank
        head.node, head.pod = head.node or plain.node, head.pod or plain.pod
    if head.pid is None and (found := _PID.search(outer)):
        head.pid = int(found[1])
    if head.node is None and (found := _NODE.search(outer)):
        head.node = found[1]
    if not head.level and (found := _LEVEL.search(outer)):
        head.level = _LEVELS.get(found[1], found[1])
    head.stream = f"{who}/{head.stream}"
    return head
