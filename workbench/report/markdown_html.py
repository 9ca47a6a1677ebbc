"""Turn the Markdown that our reports and a site's templates use into HTML: no raw HTML, no scripts, no pictures, all text escaped."""

from __future__ import annotations

import re
from html import escape, unescape

from workbench.report.text import clean

__all__ = ["to_html"]

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
_ITEM = re.compile(r"(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$")
_RULE = re.compile(r" {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})\s*([\w+-]*)\s*$")
_DELIMITER = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_BOX = re.compile(r"\[([ xX])\]\s+")
# what a backslash takes the meaning from (CommonMark 2.4)
_PUNCTUATION = r"!\"#$%&'()*+,./:;<=>?@[\]^_`{|}~-"
_INLINE = re.compile(
    rf"\\(?P<escaped>[{re.escape(_PUNCTUATION)}])"
    r"|(?P<fence>`+)(?P<code>.+?)(?<!`)(?P=fence)(?!`)"
    r"|(?P<entity>&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)"
    r"|(?<!!)\[(?P<label>(?:\\.|[^\]\[\\])*)\]\((?P<link>[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)\)"
    r"|(?P<strong>\*\*|__)(?=\S)(?P<bold>(?:\\.|`[^`]*`|(?!(?P=strong)).)+?)(?<=\S)(?P=strong)"
    r"|(?<![A-Za-z0-9])(?P<em>[*_])(?=\S)(?P<soft>(?:\\.|`[^`]*`|(?!(?P=em)).)+?)(?<=\S)(?P=em)(?![A-Za-z0-9])",
    re.DOTALL,
)
# where a link may lead: a page, a mail, a place in this page, a file beside it; never javascript: or data:
_SAFE = re.compile(r"(?:https?://|mailto:|#|(?![A-Za-z][A-Za-z0-9+.-]*:|//))[^\s\"'<>]*$", re.IGNORECASE)


def to_html(text: str) -> str:
    """
    Return Markdown as HTML: headings, paragraphs, lists, tables, quotes, rules, fences, code, emphasis and links.

    It is the part of CommonMark and of GitHub's tables that reports need. HTML in it is text, pictures are not loaded.

    Parameters
    ----------
    text : str
        Markdown; control and reordering characters are written out.
    """
    lines = ["\n".join(clean(part) for part in line.split("\n")) for line in text.expandtabs(4).split("\n")]
    return "".join(_blocks(lines, 0))


def _blocks(lines: list[str], depth: int) -> list[str]:
    out: list[str] = []
    paragraph: list[str] = []
    at = 0

    def flush() -> None:
        if paragraph:
            out.append(f"<p>{_inline(chr(10).join(part.strip() for part in paragraph))}</p>\n")
            paragraph.clear()

    while at < len(lines):
        line = lines[at]
        if not line.strip():
            flush()
            at += 1
        elif heading := _HEADING.match(line):
            flush()
            level = len(heading[1])
            out.append(f"<h{level}>{_inline(heading[2])}</h{level}>\n")
            at += 1
        elif fence := _FENCE.match(line):
            flush()
            end = at + 1
            while end < len(lines) and not re.match(rf" {{0,3}}{re.escape(fence[1][0])}{{{len(fence[1])},}}\s*$", lines[end]):
                end += 1
            out.append(f"<pre><code>{escape(chr(10).join(lines[at + 1 : end]))}\n</code></pre>\n")
            at = end + 1
        elif _RULE.match(line):
            flush()
            out.append("<hr>\n")
            at += 1
        elif line.lstrip().startswith(">") and depth < 8:
            flush()
            end = at
            while end < len(lines) and lines[end].lstrip().startswith(">"):
                end += 1
            inner = [re.sub(r"^\s*> ?", "", one) for one in lines[at:end]]
            out.append(f"<blockquote>\n{''.join(_blocks(inner, depth + 1))}</blockquote>\n")
            at = end
        elif "|" in line and at + 1 < len(lines) and "|" in lines[at + 1] and _DELIMITER.match(lines[at + 1]):
            flush()
            end = at + 2
            while end < len(lines) and lines[end].strip() and "|" in lines[end]:
                end += 1
            out.append(_table(lines[at], lines[at + 2 : end]))
            at = end
        elif _ITEM.match(line) and depth < 8:
            flush()
            end, made = _list(lines, at, depth)
            out.append(made)
            at = end
        else:
            paragraph.append(line)
            at += 1
    flush()
    return out


def _list(lines: list[str], at: int, depth: int) -> tuple[int, str]:
    """Return the row after a list, and the list; what is indented below an item belongs to it."""
    first = _ITEM.match(lines[at])
    assert first is not None
    indent, ordered = len(first[1]), first[2] is not None
    items: list[list[str]] = []
    while at < len(lines):
        line = lines[at]
        item = _ITEM.match(line)
        if item and len(item[1]) == indent and (item[2] is not None) == ordered:
            items.append([item[3]])
        elif items and line.strip() and len(line) - len(line.lstrip()) > indent:
            items[-1].append(line[min(indent + 2, len(line) - len(line.lstrip())) :])
        elif items and not line.strip() and at + 1 < len(lines) and lines[at + 1].startswith(" " * (indent + 2)):
            items[-1].append("")
        else:
            break
        at += 1
    tag = "ol" if ordered else "ul"
    start = f' start="{int(first[2])}"' if ordered and int(first[2]) != 1 else ""
    return at, f"<{tag}{start}>\n{''.join(_item(item, depth) for item in items)}</{tag}>\n"


def _item(item: list[str], depth: int) -> str:
    box = _BOX.match(item[0])
    mark = ""
    if box:
        mark = f'<input type="checkbox" disabled{" checked" if box[1] != " " else ""}> '
        item = [item[0][box.end() :], *item[1:]]
    tail = next((number for number, line in enumerate(item) if number and (_ITEM.match(line) or not line.strip())), len(item))
    text = _inline("\n".join(part.strip() for part in item[:tail]))
    rest = "".join(_blocks(item[tail:], depth + 1)) if tail < len(item) else ""
    return f"<li>{mark}{text}{rest}</li>\n"


def _cells(line: str) -> list[str]:
    text = line.strip()
    text = text[1:] if text.startswith("|") else text
    text = text[:-1] if text.endswith("|") and not text.endswith("\\|") else text
    # a bar that is escaped is no border, in a code span neither; the table takes that backslash away
    return [cell.strip().replace("\\|", "|") if "`" in cell else cell.strip() for cell in re.split(r"(?<!\\)\|", text)]


def _table(head: str, body: list[str]) -> str:
    names = _cells(head)
    rows = [(_cells(line) + [""] * len(names))[: len(names)] for line in body]
    top = "".join(f"<th>{_inline(name)}</th>" for name in names)
    top = f"<thead><tr>{top}</tr></thead>\n" if any(names) else ""
    inner = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table>\n{top}<tbody>\n{inner}</tbody>\n</table>\n"


def _inline(text: str, depth: int = 0) -> str:
    out: list[str] = []
    at = 0
    for found in _INLINE.finditer(text):
        out.append(escape(text[at : found.start()]))
        at = found.end()
        out.append(_span(found, depth))
    return "".join([*out, escape(text[at:])])


def _span(found: re.Match[str], depth: int) -> str:
    if found["escaped"] is not None:
        return escape(found["escaped"])
    if found["code"] is not None:
        code = found["code"].replace("\n", " ")
        code = code[1:-1] if code.startswith(" ") and code.endswith(" ") and code.strip() else code
        return f"<code>{escape(code)}</code>"
    if found["entity"] is not None:
        return escape(clean(unescape(found["entity"])))
    if depth > 4:
        return escape(found.group())
    if found["label"] is not None:
        label = _inline(found["label"], depth + 1)
        link = re.sub(r"\\(.)", r"\1", found["link"])
        return f'<a href="{escape(link)}" rel="noreferrer">{label}</a>' if _SAFE.match(link) else label
    if found["bold"] is not None:
        return f"<strong>{_inline(found['bold'], depth + 1)}</strong>"
    return f"<em>{_inline(found['soft'], depth + 1)}</em>"
