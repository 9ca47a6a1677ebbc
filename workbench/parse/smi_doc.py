"""Turn the lines of a node's tool output into documents of one node each: prompts, pdsh prefixes and kernel lines taken apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.model import Event, Gpu, Line, Parsed, Placement
from workbench.parse.ids import pci, same_pci
from workbench.parse.text import clean

__all__ = ["Document", "Out", "Row", "documents", "number"]

# pdsh: "gpu-node-07: Failed to initialize NVML: Unknown Error"; a host name has a digit, a tool's or device's name is none
_PDSH = re.compile(r"([A-Za-z][A-Za-z0-9-]*\d[\w.-]*|\d{1,3}(?:\.\d{1,3}){3}): ?(?=\S|\s|$)")
_NO_HOST = re.compile(
    r"(?:GPU\d*|MIG.*|CA\d*|Port\d*|Link\d*|lane\d*|mlx5_\w+|hca\d*|eth\d+|en[opsx]\w+|ib\d+|bond\d+|nvidia.*|nvme.*|cuda.*|lib.*|line\d*|python[\d.]*)$"
)
# "root@gpu-7:~# nvidia-smi" | "[user@gpu-7 ~]$ nvidia-smi -q" | "(base) user@gpu-7:/data$ dcgmi diag -r 2"
_PROMPT = re.compile(r"\s*(?:\([\w.-]+\)\s*)?\[?[\w.-]+@([\w.-]+?)(?:[: ][^#$>%]*)?[#$%]\s+(\S.*)$")
# "$ nvidia-smi" | "# lspci | grep NVIDIA" | "+ nvidia-smi -L" (set -x)
_BARE_PROMPT = re.compile(
    r"\s*[#$>%+]+\s*((?:sudo\s+|timeout\s+\S+\s+|srun\s.*?)?(?:/\S*/)?(?:nvidia-smi|dcgmi|lspci|ib\w+|mlxlink|ethtool|systemctl|topo|docker|journalctl)\b.*)$"
)
# srun -l: "3: | NVIDIA-SMI 535.129.03 …"; kubectl logs --prefix: "[pod/smi-abc/main] | NVIDIA-SMI …"
_TASK = re.compile(r"\s*(\d{1,6}): ?|(\[pod/[^\]]+\]) ?")
# ansible: "gpu-7 | CHANGED | rc=0 >>"; clush/dshbak: a line of dashes, the name, a line of dashes; tail: "==> gpu-7 <=="
_ANSIBLE = re.compile(r"([\w.-]+) \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE)\b[^>]*>>")
_TAIL = re.compile(r"==> ([\w.-]+) <==$")
# echo "===== gpu-7 | before | 2026-08-13T07:53:30Z =====" of a script that collects
_BANNER = re.compile(r"[=#*]{3,} ([A-Za-z][\w.-]*)(?: \|[^=#*]*)? [=#*]{3,}$")
_DASHES = re.compile(r"-{5,}$")
_NAME = re.compile(r"[A-Za-z][\w.-]*$")
# what nvitop draws its table with, and what nvidia-smi does
_DRAWN = str.maketrans({"│": "|", **dict.fromkeys("╒├╞╘╕┤╡╛╤┬┼╪╧┴", "+"), **dict.fromkeys("═─", "-")})
# the node that gpustat names: "gpu-7                    Wed Jan 13 12:10:38 2021  455.32.00" |     "hostname": "gpu-7",
_GPUSTAT = re.compile(r'([A-Za-z][\w.-]*)\s{2,}\S.*\d\d:\d\d:\d\d.*?\s{2,}\d{3}(?:\.\d+)+\s*$|\s*"hostname": "([\w.-]+)",\s*$')
# a container's host name is its id; it says nothing of the node
_CONTAINER = re.compile(r"[0-9a-f]{12}$")
# "[ 1234.567890] NVRM: Xid …" | "May  4 11:02:03 node kernel: NVRM: …" | "<4>[…"
_KERNEL = re.compile(
    r"NVRM: |^(?:<\d+>)?\[\s*\d+\.\d{6}\]|^\[[A-Z][a-z]{2} [A-Z][a-z]{2}\s+\d+ [\d:]{8} \d{4}\]|\skernel(?:\[\d+\])?: "
)


@dataclass(slots=True)
class Row:
    """One line of output: `text` is what the tool printed, `line` what stood in the file, `command` what was typed before it."""

    line: Line
    text: str
    command: str = ""

    @property
    def cells(self) -> list[str]:
        """The cells of a line of a box, e.g. ``| a | b |`` → ``[a, b]``; empty for other lines."""
        text = self.text.strip()
        return [cell.strip() for cell in text[1:].rstrip("|").split("|")] if text.startswith("|") else []

    @property
    def tail(self) -> str:
        """The last cell of a line of a box with its padding, less the one space in front: a cut message keeps its blanks."""
        return self.text.rstrip().removesuffix("|").rpartition("|")[2].removeprefix(" ")


@dataclass(slots=True)
class Document:
    """The output of one node."""

    node: str | None
    rows: list[Row] = field(default_factory=list)
    json: bool = True  # False once it is known that no (more) dcgmi JSON follows


def _host(text: str) -> re.Match[str] | None:
    found = _PDSH.match(text)
    return found if found and not _NO_HOST.match(found[1]) else None


def documents(lines: Sequence[Line], node: str | None) -> tuple[list[Document], bool]:
    """
    Split output by the node that printed it.

    Parameters
    ----------
    lines : sequence of Line
        The whole file.
    node : str, optional
        Node the file is from, when its name or place says so; a prefix in front of the lines overrules it, a prompt does not.

    Returns
    -------
    tuple
        The documents in order of appearance, and whether kernel lines were left out.
    """
    found: dict[tuple[str | None, str], Document] = {}
    kernel, speaker, command = False, node, ""
    texts = [clean(line.text.rstrip("\r\n")) for line in lines]
    if any("NVITOP" in text for text in texts):
        texts = [text.translate(_DRAWN) for text in texts]
    if node is None:
        asked = any('"query_time"' in text for text in texts)  # other tools' JSON has other nodes' names in it
        speaker = next((host[1] or host[2] for text in texts if (host := _GPUSTAT.match(text)) and (host[1] or asked)), None)
    heads = [_host(text) for text in texts]
    filled = sum(1 for text in texts if text.strip())
    prefixed = sum(1 for head in heads if head) * 2 > filled
    tasks = sum(1 for text in texts if _TASK.match(text)) * 2 > filled
    task = ""
    for at, (line, text, head) in enumerate(zip(lines, texts, heads, strict=True)):
        if prefixed and head:
            speaker, text = head[1], text[head.end() :]
        elif tasks and (by := _TASK.match(text)):
            task, text = by[1] or by[2], text[by.end() :]
        elif prefixed and text.strip():
            speaker = node
        if banner := _ANSIBLE.match(text) or _TAIL.match(text.strip()):
            speaker, command = banner[1], ""
            continue
        if (banner := _BANNER.match(text.strip())) and re.search(r"\d|-\w$", banner[1]) and not _NO_HOST.match(banner[1]):
            speaker, command = banner[1], ""
            continue
        if _DASHES.match(text) and at + 2 < len(texts) and _NAME.match(texts[at + 1]) and _DASHES.match(texts[at + 2]):
            speaker = texts[at + 1]
            continue
        if _KERNEL.search(text):
            kernel = True
            continue
        if prompt := _PROMPT.match(text):
            command = prompt[2]
            if node is None and not prefixed and not _CONTAINER.match(prompt[1]):
                speaker = prompt[1]
            text = ""
        elif typed := _BARE_PROMPT.match(text):
            command, text = typed[1], ""
        found.setdefault((speaker, task), Document(speaker)).rows.append(Row(line, text, command))
    return list(found.values()), kernel


def number(text: str | None) -> float | None:
    """Return the number at the head of a value with its unit, e.g. ``16x`` → 16, ``33 C`` → 33; None for N/A and errors."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)", text or "")
    return float(found[1]) if found else None


class Out:
    """Collects what the readers of one document find; knows the GPUs seen so far, so that an index gets its address."""

    def __init__(self, parsed: Parsed, file: str, node: str | None) -> None:
        self.parsed = parsed
        self.file = file
        self.node = node
        self.gpus: list[Gpu] = []
        self.listed: set[str] = set()  # addresses that nvidia-smi listed
        self.on_bus: dict[str, Row] = {}  # addresses that lspci showed
        self.rows: dict[int, Row] = {}  # index → the row of nvidia-smi's table
        self.first = len(parsed.events)
        self._seen: set[tuple[Any, ...]] = set()

    def see(self, gpu: Gpu, listed: bool = False) -> Gpu:
        """Remember a GPU; merge with what is known of it; return it complete."""
        if listed and gpu.pci:
            self.listed.add(gpu.pci)
        for at, known in enumerate(self.gpus):
            same = (
                same_pci(gpu.pci, known.pci)
                if gpu.pci and known.pci
                else gpu.uuid == known.uuid
                if gpu.uuid and known.uuid
                else gpu.index is not None and gpu.index == known.index
            )
            if same:
                merged = Gpu(
                    index=known.index if known.index is not None else gpu.index,
                    uuid=known.uuid or gpu.uuid,
                    pci=known.pci or gpu.pci,
                )
                self.gpus[at] = merged
                return merged
        self.gpus.append(gpu)
        return gpu

    def event(self, signature: str, row: Row, gpu: Gpu | None = None, *, key: Any = None, **fields: Any) -> Event | None:
        """
        Add an event, once per (signature, GPU, key): a tool that prints twice the same state is one observation.

        `fields` named like fields of Event set them; all others go to `data`.
        """
        identity = (signature, gpu, key, None if gpu or key is not None else row.line.no)
        if identity in self._seen:
            return None
        self._seen.add(identity)
        own = {name: fields.pop(name) for name in ("role", "cls", "weight", "code", "time", "pid", "count") if name in fields}
        event = Event(
            signature=signature,
            source="smi",
            text=row.line.text[:2000],
            file=self.file,
            line=row.line.no,
            node=self.node,
            gpu=gpu,
            data={name: value for name, value in fields.items() if value is not None},
            order=row.line.no,
            **own,
        )
        self.parsed.events.append(event)
        return event

    def finish(self) -> None:
        """Complete the GPUs of this document's events and placements with what other tools said of the same GPU."""
        items: list[Event | Placement] = [*self.parsed.events[self.first :], *self.parsed.placements]
        for item in items:
            if item.gpu is None or item.node != self.node:
                continue
            for known in self.gpus:
                if item.gpu.pci:
                    same = same_pci(item.gpu.pci, known.pci)
                elif item.gpu.uuid:
                    same = item.gpu.uuid == known.uuid
                else:
                    same = item.gpu.index is not None and item.gpu.index == known.index
                if same:
                    item.gpu = replace(
                        item.gpu,
                        index=item.gpu.index if item.gpu.index is not None else known.index,
                        uuid=item.gpu.uuid or known.uuid,
                        pci=item.gpu.pci or pci(known.pci),
                    )
                    break
