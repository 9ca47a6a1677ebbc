"""Turn `dcgmi` output (diag, health, discovery, nvlink; boxes of DCGM 2 to 4 and JSON) into one event per failed test and GPU."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from workbench.catalog import signatures, table
from workbench.model import Gpu, Problem
from workbench.parse.devices import from_dcgm
from workbench.parse.ids import pci, uuid
from workbench.parse.smi_doc import Document, Out, Row, number

__all__ = ["read_diag", "read_health", "read_hostengine", "read_json", "read_other"]

# "| GPU Memory                | Pass - GPUs: 1, 2, 3, 4, 5, 6, 7               |" | "|                           | GPU3: Fail |"
_RESULT = re.compile(r"(Pass|Fail|Warn|Skip)(?:ed)?(?: - (?:All|GPUs?: ([\d, ]+)))?$", re.I)
_ENTITY = re.compile(r"(GPU|CPU|NvSwitch|\w+) ?(\d+): (Pass|Fail|Warn|Skip)(?:ed)?$", re.I)
_NOTE = re.compile(r"(Warning|Error|Info|Skipped?(?: Reason)?|Runtime Error)(?:: (?:GPU ?)?(\d+))?$", re.I)
# "GPU 0's NvLink link 3 is currently down" | "GPU 4 Thermal violations totaling 13.3 seconds"
_GPU = re.compile(r"\bGPU ?(?:ID:? ?)?(\d{1,3})\b")
_LINK_DOWN = re.compile(r"NvLink link (\d{1,3}) is currently down", re.I)
# name of a test, as boxes and JSON of all versions spell it → the middle of its signature
_TESTS = {
    **dict.fromkeys(("gpu memory", "memory"), "memory"),
    **dict.fromkeys(("page retirement/row remap", "page retirement", "row remap"), "page-retirement"),
    **dict.fromkeys(("extended utility diagnostics", "eud"), "eud"),
    **dict.fromkeys(
        ("software", "denylist", "blacklist", "nvml library", "cuda main library", "cuda toolkit library",
         "cuda toolkit libraries",
         "permissions and os blocks", "persistence mode", "environment variables", "graphics processes"), "software"
    ),
    **{name: name.replace(" ", "-") for name in (
        "memtest", "memory bandwidth", "pcie", "nvlink", "nvbandwidth", "nccl tests", "diagnostic", "sm stress",
        "targeted stress", "targeted power", "pulse test", "context create", "inforom", "fabric manager", "cpu eud")},
}  # fmt: skip
_WATCHES = {"nvswitch non-fatal": "nvswitch", "nvswitch fatal": "nvswitch", "cpuset": "driver"}

# Words of DCGM's messages that say what failed more exactly than the name of the test, with the DCGM error they come from.
_WORDS: tuple[tuple[str, str], ...] = (
    (r"thermal violations? totaling", "DCGM_FR_THERMAL_VIOLATIONS"),
    (r"temperature .* (?:of|exceed)|max(?:imum)? (?:allowed )?temperature", "DCGM_FR_TEMP_VIOLATION"),
    (r"persistence mode", "DCGM_FR_PERSISTENCE_MODE"),
    (r"fallen off the bus|GPU is lost", "DCGM_FR_FALLEN_OFF_BUS"),
    (r"uncontained", "DCGM_FR_UNCONTAINED_ERROR"),
    (r"row remap\w* (?:has )?fail|remap failure", "DCGM_FR_ROW_REMAP_FAILURE"),
    (r"pending row remap|remap.*pending|row remappings? .*pending", "DCGM_FR_PENDING_ROW_REMAP"),
    (r"uncorrectable row remap|uncorrectable remapped", "DCGM_FR_UNCORRECTABLE_ROW_REMAP"),
    (r"page retirements? .*pending|pending page retirement", "DCGM_FR_PENDING_PAGE_RETIREMENTS"),
    (r"retired pages|page retirement .*limit", "DCGM_FR_RETIRED_PAGES_LIMIT"),
    (r"SRAM .*threshold", "DCGM_FR_SRAM_THRESHOLD"),
    (r"double.bit|ecc_dbe|\bDBE\b|uncorrectable (?:ECC|memory)|volatile DBE", "DCGM_FR_VOLATILE_DBE_DETECTED"),
    (r"single.bit|ecc_sbe|\bSBE", "DCGM_FR_VOLATILE_SBE_DETECTED"),
    (r"miscompare failure in the L1", "DCGM_FR_L1TAG_MISCOMPARE"),
    (r"faulty memory|memory mismatch|miscompare", "DCGM_FR_FAULTY_MEMORY"),
    (r"PCIe replay", "DCGM_FR_PCI_REPLAY_RATE"),
    (r"PCIe.*generation|link generation", "DCGM_FR_PCIE_GENERATION"),
    (r"PCIe.*(?:link )?width|link width", "DCGM_FR_PCIE_WIDTH"),
    (r"bandwidth .*(?:below|minimum|failed|less)", "DCGM_FR_LOW_BANDWIDTH"),
    (r"NvLink .*currently down", "DCGM_FR_NVLINK_DOWN"),
    (r"NvLink.*(?:CRC|replay|recovery|error)", "DCGM_FR_NVLINK_ERROR_THRESHOLD"),
    (r"NvSwitch .*(?:non-fatal|non fatal)", "DCGM_FR_NVSWITCH_NON_FATAL_ERROR"),
    (r"NvSwitch .*fatal", "DCGM_FR_NVSWITCH_FATAL_ERROR"),
    (r"IMEX", "DCGM_FR_IMEX_UNHEALTHY"),
    (
        r"fabric ?manager.*(?:not|fail)|fabric.*(?:not (?:yet )?(?:start|ready|complete)|training)",
        "DCGM_FR_CUDA_FM_NOT_INITIALIZED",
    ),
    (r"info ?rom", "DCGM_FR_CORRUPT_INFOROM"),
    (r"power (?:brake|violation)|clocks? .*power", "DCGM_FR_CLOCKS_EVENT_POWER"),
    (r"(?:clocks?|performance) .*(?:thermal|temperature)|throttl\w+ .*thermal", "DCGM_FR_CLOCKS_EVENT_THERMAL"),
    (r"cannot (?:open|load) .*lib|libcuda|lib\w+\.so", "DCGM_FR_CANNOT_OPEN_LIB"),
    (r"nouveau|denylist|blacklist", "DCGM_FR_DENYLISTED_DRIVER"),
    (r"NaN", "DCGM_FR_NAN_VALUE"),
    (r"busy or unavailable|unable to create CUDA context|CUDA API", "DCGM_FR_CUDA_API"),
    (r"Xid|XID", "DCGM_FR_XID_ERROR"),
)
# An error's severity in DCGM (MONITOR … ISOLATE) as weight: an ISOLATE asks to take the GPU out, a CONFIG is a setting.
_WEIGHTS = {"ISOLATE": 0.75, "RESET": 0.65, "TRIAGE": 0.55, "MONITOR": 0.5, "CONFIG": 0.3, "UNKNOWN": 0.3}
_UNPLUGGED = (
    "DCGM counts links of a card without bridge as down (NVIDIA/DCGM#49); only some links down among others speak of a fault"
)


@lru_cache(maxsize=1)
def _errors() -> tuple[dict[str, dict[str, str]], dict[int, dict[str, str]]]:
    rows = table("dcgm_errors")
    return {row["name"]: row for row in rows}, {int(row["code"]): row for row in rows if row["code"].isdigit()}


def _joined(parts: list[str]) -> str:
    """Join the pieces of a message that a box cut at a fixed width, in mid-word; a piece that ends early ends a sentence."""
    pads = [len(part) - len(part.rstrip()) for part in parts]
    least = min([2, *pads])
    joined = "".join(part.rstrip() + " " * (pad - least if pad < least + 2 else 1) for part, pad in zip(parts, pads, strict=True))
    return re.sub(r"\s+", " ", joined).strip()


def _emit(
    out: Out,
    row: Row,
    base: str,
    test: str,
    gpu: Gpu | None,
    status: str,
    message: str,
    code: int | None,
    odd: bool = False,
) -> None:
    """Add one event for a test (or watch) that failed on a GPU; the message decides the class when DCGM's table knows it."""
    names, codes = _errors()
    error = codes.get(code) if code else None
    if error is None:
        error = next((names[name] for words, name in _WORDS if re.search(words, message, re.I) and name in names), None)
    known = signatures()
    signature = base if base in known else "dcgmi-diag-fail" if base.endswith("-fail") else "dcgmi-health"
    default = known[signature]
    cls, weight, role = default.cls, default.weight, default.role
    if error:
        if error["class"] in ("hardware/gpu-other", "unknown") and default.cls.startswith("hardware/"):
            pass
        else:
            cls = error["class"]
        weight = _WEIGHTS.get(error["dcgm_severity"], weight)
        if cls.startswith(("hardware/", "driver/")) and error["dcgm_severity"] != "CONFIG":
            role = "cause"
            if default.cls.split("/")[0] != cls.split("/")[0]:
                # DCGM 4 files remap failures and the like under "software"; the GPU is to blame all the same
                signature = "dcgmi-diag-fail"
        if error["name"] == "DCGM_FR_THERMAL_VIOLATIONS":
            weight = max(weight, 0.7)
        if error["dcgm_severity"] == "CONFIG" and cls.startswith(("platform/", "unknown")):
            role = "context"
    if odd and role == "cause" and cls.startswith("hardware/"):
        weight = max(weight, 0.6)  # a limit that the other GPUs of the node keep is no wrong setting
    brief = re.search(r"violations? totaling ([\d.]+) seconds", message)
    if "can still perform workload" in message or (brief and (number(brief[1]) or 0.0) < 1.0):
        role, weight = "context", 0.2  # seen on any busy GPU (NVIDIA/DCGM#242, #285)
    down = {int(link) for link in _LINK_DOWN.findall(message)}
    if down and down == set(range(max(down) + 1)):
        role, weight = "context", 0.15
    if error and error["name"] == "DCGM_FR_IMEX_UNHEALTHY":
        # an idle or single-node system has no IMEX domain (NVIDIA/NVSentinel#1471)
        role, weight = "context", 0.2
    if status.lower() in ("warn", "warning") and role == "cause":
        weight = min(weight, 0.5)
    out.event(
        signature, row, gpu, key=(test, message[:80]), cls=cls, role=role, weight=weight, code=code or None,
        test=test, status=status, message=message[:1500] or None, error=error["name"] if error else None,
        severity=error["dcgm_severity"] if error else None,
        remediation=(error["remediation"] or None) if error else None, links_down=sorted(down) or None,
        note=_UNPLUGGED if down and role == "context" else None,
    )  # fmt: skip


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").strip()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def _box(doc: Document, at: int) -> bool:
    text = doc.rows[at].text.strip()
    return bool(text) and (text[0] in "|+" or text.startswith("Successfully ran diagnostic"))


class _Test:
    """One test of a diag box while it is read."""

    def __init__(self, name: str, row: Row) -> None:
        self.name, self.row = name, row
        self.bad: dict[int | None, tuple[str, Row]] = {}  # GPU → status and the row that says so; None: which one is not said
        self.notes: list[tuple[str, int | None, Row, list[str]]] = []

    def result(self, text: str, row: Row) -> bool:
        """Take a result such as ``Fail - GPUs: 0, 3`` or ``GPU3: Fail``; tell whether it was one."""
        if found := _ENTITY.match(text):
            if found[1].upper() == "GPU" and found[3].lower() in ("fail", "warn"):
                self.bad.pop(None, None)
                self.bad[int(found[2][:4])] = (found[3], row)
            return True
        if found := _RESULT.match(text):
            if found[1].lower() in ("fail", "warn"):
                for item in re.findall(r"\d{1,4}", found[2] or "") or [None]:
                    self.bad[None if item is None else int(item)] = (found[1], row)
            return True
        return False

    def close(self, out: Out) -> None:
        base = f"dcgmi-{_TESTS.get(_plain(self.name), _slug(self.name))}-fail"
        said = set()
        for kind, index, row, parts in self.notes:
            message = _joined(parts)
            if kind.lower().startswith(("info", "skip")) or (not self.bad and kind.lower() != "warning"):
                continue
            if index is None and (named := _GPU.search(message)):
                index = int(named[1])
            if index is None and len(self.bad) == 1:
                index = next(iter(self.bad))
            status = self.bad.get(index, self.bad.get(None, (kind, row)))[0]
            if index is not None and self.bad and index not in self.bad and None not in self.bad:
                continue
            said.add(index)
            _emit(out, row, base, self.name, Gpu(index=index) if index is not None else None, status, message, None)
        for index, (status, row) in self.bad.items():
            if index not in said and not (index is None and said):
                _emit(out, row, base, self.name, Gpu(index=index) if index is not None else None, status, "", None)


def read_diag(doc: Document, at: int, out: Out) -> int:
    """Read a box of `dcgmi diag` (or lines out of one) from row `at`; returns the row after it, or the same."""
    cells = doc.rows[at].cells
    opens = "Successfully ran diagnostic" in doc.rows[at].text or cells == ["Diagnostic", "Result"]
    if not opens and not (len(cells) == 2 and _plain(cells[0]) in _TESTS and _RESULT.match(cells[1])):
        return at
    test: _Test | None = None
    while at < len(doc.rows) and (_box(doc, at) or not doc.rows[at].text.strip()):
        row = doc.rows[at]
        cells = row.cells
        at += 1
        if len(cells) != 2:
            if test and row.text.strip().startswith(("+", "|--")):
                test.close(out)
                test = None
            continue
        left, right = cells
        if note := _NOTE.match(left):
            if test:
                test.notes.append((note[1], int(note[2][:4]) if note[2] else None, row, [row.tail]))
        elif left:
            if test:
                test.close(out)
            test = _Test(left, row) if _RESULT.match(right) else None
            if test:
                test.result(right, row)
            elif left == "Driver Version Detected":
                out.parsed.facts.setdefault("driver", right)
            elif left == "DCGM Version":
                out.parsed.facts.setdefault("dcgm", right)
        elif test and not (test.result(right, row) and not test.notes) and test.notes:
            test.notes[-1][3].append(row.tail)
    if test:
        test.close(out)
    return at


def read_health(doc: Document, at: int, out: Out) -> int:
    """Read a box of `dcgmi health -c` from row `at`; returns the row after it, or the same."""
    cells = doc.rows[at].cells
    if not (cells and re.match(r"Health Monitor Report|Overall Health|Group \d+|-> \d+$", cells[0])):
        return at
    if cells[0].startswith("Group") and "Health" not in " ".join(cells):
        return at
    gpu: Gpu | None = None
    watch: tuple[str, str, Row, list[str]] | None = None

    def close() -> None:
        if watch:
            name, status, row, parts = watch
            message = _joined(parts)
            named = _GPU.search(message)
            device = gpu or (Gpu(index=int(named[1])) if named else None)
            _emit(out, row, f"dcgmi-health-{_watch(name)}", name, device, status, message, None)

    while at < len(doc.rows) and (_box(doc, at) or not doc.rows[at].text.strip()):
        cells = doc.rows[at].cells
        row = doc.rows[at]
        at += 1
        if len(cells) != 2:
            continue
        left, right = cells[0], cells[1]
        name = left.removeprefix("->").strip()
        # DCGM 1: "| GPU ID: 0 | Warning |" and "|  | PCIe system: Warning - Detected more than 8 PCIe replays per minute |"
        old = re.match(r"([\w -]+? system): (Warning|Failure|Healthy)(?: - (.*))?$", right)
        if index := re.match(r"(?:GPU ID: )?(\d{1,3})$", name):
            close()
            watch, gpu = None, Gpu(index=int(index[1]))
        elif old:
            close()
            watch = (old[1], old[2], row, [old[3] or ""]) if old[2] != "Healthy" else None
        elif name and re.search(r"system$|^NvSwitch|^Driver$", name) and right in ("Failure", "Warning"):
            close()
            watch = (name, right, row, [])
        elif name:
            close()
            watch = None
        elif watch and right:
            # the first line of the message says more than the name of the watch above it
            watch = (watch[0], watch[1], watch[2] if watch[3] else row, [*watch[3], row.tail])
    close()
    return at


# 2025-12-22 10:41:07.221 ERROR [1514002:1514004] [[Health]] Detected a WARNING in health system Thermal: 'Detected clocks event …
_LOGGED = re.compile(
    r"(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) +)?(FATAL|CRITICAL|ERROR|WARN\w*|INFO|DEBUG|VERB\w*) +\[\d+:\d+\] (?:\[+([^\]]*)\]+ )?(.*)"
)
_FOUND = re.compile(r"Detected an? (WARNING|FAILURE|FAIL|ERROR)\w* in health system ([\w -]+): '?(.*)", re.I)


def read_hostengine(doc: Document, at: int, out: Out) -> int:
    """Read one line of ``nv-hostengine.log`` at row `at`: what a health watch found; returns the row after it, or the same."""
    row = doc.rows[at]
    logged = _LOGGED.match(row.text)
    if not logged:
        return at
    found = _FOUND.search(logged[4])
    if not found:
        if re.search(r"Profiling|GetSamples|PerfWorks", row.text) and logged[2][:4] in ("ERRO", "FATA", "CRIT"):
            out.event("dcgm-profiling-error", row, key=logged[4][:40])
        return at + 1
    named = _GPU.search(found[3])
    before = len(out.parsed.events)
    _emit(
        out, row, f"dcgmi-health-{_watch(found[2])}", found[2], Gpu(index=int(named[1])) if named else None,
        "Warning" if found[1].upper() == "WARNING" else "Failure", found[3].rstrip("'"), None,
    )  # fmt: skip
    for event in out.parsed.events[before:] if logged[1] else ():
        event.time = datetime.fromisoformat(logged[1]).replace(tzinfo=UTC).timestamp()  # the host's local time, read as UTC
    return at + 1


def _watch(name: str) -> str:
    plain = re.sub(r"\s*(?:system|errors?)$", "", name.lower()).strip()
    return _WATCHES.get(plain, _slug(plain))


def read_other(doc: Document, at: int, out: Out) -> int:
    """Read `dcgmi discovery -l` and `dcgmi nvlink --link-status` at row `at`; returns the row after it, or the same."""
    row = doc.rows[at]
    cells = row.cells
    # "| 0      | Name: NVIDIA H800        |" and below it "|        | PCI Bus ID: 00000000:18:00.0 |"
    if len(cells) == 2 and re.match(r"\d{1,3}$", cells[0]) and cells[1].startswith("Name:"):
        address = identity = None
        at += 1
        while at < len(doc.rows) and len(doc.rows[at].cells) == 2 and not doc.rows[at].cells[0]:
            text = doc.rows[at].cells[1]
            address = pci(text.partition(": ")[2]) or address
            identity = uuid(text) or identity
            at += 1
        out.see(Gpu(int(cells[0]), identity, address), listed=True)
        return at
    # "    gpuId 0:" and below it "        U U U D U U"
    found = re.match(r"\s*(?:gpuId|GPU) (\d{1,3}):\s*$", row.text)
    if found and at + 1 < len(doc.rows) and re.match(r"\s*(?:[UDX_]\s*)+$", doc.rows[at + 1].text):
        states = doc.rows[at + 1].text.split()
        down = [place for place, state in enumerate(states) if state == "D"]
        if down:
            mixed = "U" in states
            out.event(
                "smi-nvlink-inactive", doc.rows[at + 1], Gpu(index=int(found[1])), links=down, of=len(states),
                role=None if mixed else "context", weight=None if mixed else 0.2,
            )  # fmt: skip
        return at + 2
    return at


def _rows_with(doc: Document, start: int, end: int, text: str) -> Row:
    """Return the row of a JSON text that holds a message, or the first row."""
    needle = json.dumps(text)[1:61]
    return next((row for row in doc.rows[start:end] if needle and needle in row.text), doc.rows[start])


def read_json(doc: Document, at: int, out: Out) -> int:
    """Read JSON of `dcgmi diag -j` or `dcgmi health -j` from row `at`; returns the row after it, or the same."""
    if not doc.json or not doc.rows[at].text.lstrip().startswith("{"):
        return at
    text = "\n".join(row.text for row in doc.rows[at:])
    if not re.search(r'"DCGM (?:GPU )?Diagnostic"|"test_categories"|"Overall Health"|"Health Monitor Report"', text):
        doc.json = False
        return at
    start = at
    try:
        head = len(text) - len(text.lstrip())
        value, length = json.JSONDecoder().raw_decode(text, head)
        end = at + text.count("\n", 0, length) + 1
    except (ValueError, RecursionError) as error:
        out.parsed.problems.append(
            Problem(out.file, f"dcgmi JSON cannot be read: {error}", "collect it again; warnings were looked for line by line",
                    doc.rows[at].line.no, "smi", "partial")
        )  # fmt: skip
        _salvage(doc, start, out)
        return len(doc.rows)
    if not isinstance(value, dict):
        return end
    root = next((value[key] for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if key in value), value)
    body = value.get("body")
    metadata = value.get("metadata")
    for part in (root, metadata):
        if isinstance(part, dict):
            if isinstance(driver := part.get("Driver Version Detected"), str):
                out.parsed.facts.setdefault("driver", driver)
            if isinstance(version := part.get("version") or part.get("DCGM Version"), str):
                out.parsed.facts.setdefault("dcgm", version)
    from_dcgm(value, root, out, doc.rows[start].line.no)
    if isinstance(body, dict):
        _health(doc, start, end, body, None, out)
    if isinstance(root, dict):
        tests = [
            test for group in _list(root.get("test_categories")) if isinstance(group, dict) for test in _list(group.get("tests"))
        ]
        for test in [*tests, *_list(root.get("tests"))]:
            if isinstance(test, dict):
                _test(doc, start, end, test, out)
        if isinstance(broken := root.get("runtime_error"), str) and broken:
            out.event("dcgmi-runtime-error", _rows_with(doc, start, end, broken), message=broken[:1500])
    return end


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _test(doc: Document, start: int, end: int, test: dict[str, Any], out: Out) -> None:
    name = str(test.get("name") or "")
    base = f"dcgmi-{_TESTS.get(_plain(name), _slug(name))}-fail"
    others = any(
        isinstance(one, dict) and str(one.get("status")).lower().startswith("pass") for one in _list(test.get("results"))
    )
    for result in _list(test.get("results")):
        if not isinstance(result, dict):
            continue
        status = str(result.get("status") or "")
        if status.lower() not in ("fail", "warn", "failed", "warning"):
            continue
        entity = result.get("entity_id") if str(result.get("entity_group", "GPU")).upper() == "GPU" else None
        named = [str(item) for item in _list(result.get("gpu_ids"))] or re.findall(
            r"\d{1,4}", str(result.get("gpu_id") or result.get("gpu_ids") or "")
        )
        if entity is None and result.get("gpu_id") in (0, "0"):
            named = ["0"]
        if isinstance(entity, (int, str)) and str(entity).isdigit():
            named = [str(entity)]
        warnings = result.get("warnings") or result.get("warning") or [""]
        for warning in warnings if isinstance(warnings, list) else [warnings]:
            code = warning.get("error_id") if isinstance(warning, dict) else None
            message = str(warning.get("warning") or "" if isinstance(warning, dict) else warning)
            row = _rows_with(doc, start, end, message or name)
            found = _GPU.search(message)
            indexes = named or ([found[1]] if found else [])
            gpus: list[Gpu | None] = [Gpu(index=int(item[:4])) for item in indexes if item.isdigit()]
            for gpu in gpus or [None]:
                _emit(
                    out,
                    row,
                    base,
                    name,
                    gpu,
                    status,
                    message,
                    code if isinstance(code, int) and not isinstance(code, bool) else None,
                    others,
                )


def _health(doc: Document, start: int, end: int, node: dict[str, Any], gpu: Gpu | None, out: Out, depth: int = 0) -> None:
    for name, child in node.items():
        if not isinstance(child, dict) or depth > 8:
            continue
        value, children = child.get("value"), child.get("children")
        here = Gpu(index=int(name)) if re.match(r"\d{1,3}$", name) else gpu
        if re.search(r"system$|^NvSwitch|^Driver$", name, re.I) and value in ("Failure", "Warning"):
            words = " ".join(_texts(children))
            row = _rows_with(doc, start, end, (_texts(children) or [name])[0])
            _emit(out, row, f"dcgmi-health-{_watch(name)}", name, here, str(value), words, None)
        elif isinstance(children, dict):
            _health(doc, start, end, children, here, out, depth + 1)


def _texts(value: Any, depth: int = 0) -> list[str]:
    """Return the sentences below a health node: DCGM has them as values, as keys, or as items of a list."""
    if isinstance(value, str):
        return [value] if " " in value else []
    if isinstance(value, dict) and depth < 8:
        return [text for key, item in value.items() for text in ([key] if " " in key else []) + _texts(item, depth + 1)]
    if isinstance(value, list) and depth < 8:
        return [text for item in value for text in _texts(item, depth + 1)]
    return []


def _salvage(doc: Document, start: int, out: Out) -> None:
    """Take the warnings out of JSON that was cut: ``"warning" : "GPU 3 …"`` lines are whole in themselves."""
    test = ""
    for row in doc.rows[start:]:
        for key, text in re.findall(r'"(name|warnings?)"\s*:\s*"((?:[^"\\]|\\.)*)"', row.text[:200_000]):
            if key == "name":
                test = text
            elif text.strip():
                found = _GPU.search(text)
                base = f"dcgmi-{_TESTS.get(_plain(test), _slug(test))}-fail"
                _emit(out, row, base, test, Gpu(index=int(found[1])) if found else None, "fail", text, None)
