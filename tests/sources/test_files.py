"""Evidence folders: every document with its kind, lines and data; every hindrance a problem with its file and the way out."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

try:
    from compression import zstd  # Python 3.14
except ImportError:
    from backports import zstd

from workbench.model import Problem
from workbench.parse.scan import Scanner
from workbench.sources.files import Document, Limits, locate, read_evidence

SCAN = Scanner([("xid", r"NVRM: Xid"), ("oom", r"(?i)out of memory"), ("rank-error", r"RuntimeError: .*")], cache=False)
KERNEL = b"[ 12.345678] usb 1-1: new device\n[ 13.345678] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


def read(*paths: Path, limits: Limits | None = None, **more: Any) -> tuple[dict[str, Document], dict[str, Problem]]:
    documents, problems = {}, {}
    for each in read_evidence(list(paths), scan=SCAN, limits=limits, **more):
        if isinstance(each, Problem):
            assert each.message
            assert each.hint or each.status == "ok"
            problems[each.file] = each
        else:
            documents[each.name] = each
    return documents, problems


def test_folder_with_every_packing(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel/gpu-1.log").write_bytes(KERNEL)
    (tmp_path / "kernel/gpu-2.log.gz").write_bytes(gzip.compress(KERNEL) + gzip.compress(KERNEL))
    (tmp_path / "kernel/gpu-3.log.zst").write_bytes(zstd.compress(KERNEL) + zstd.compress(KERNEL))
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kernel/gpu-5.log", KERNEL)
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as archive:
        for name, data in (
            ("x/kernel/gpu-4.log", KERNEL),
            ("x/more.zip", inner.getvalue()),
            ("x/kernel/gpu-6.log.gz", gzip.compress(KERNEL)),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    documents, problems = read(tmp_path)
    assert not problems
    assert {name: document.node for name, document in documents.items()} == {
        "bundle.tar.gz!x/kernel/gpu-4.log": "gpu-4",
        "bundle.tar.gz!x/more.zip!kernel/gpu-5.log": "gpu-5",
        "bundle.tar.gz!x/kernel/gpu-6.log.gz": "gpu-6",
        "kernel/gpu-1.log": "gpu-1",
        "kernel/gpu-2.log.gz": "gpu-2",
        "kernel/gpu-3.log.zst": "gpu-3",
    }
    for name, document in documents.items():
        twice = 2 if "gpu-2" in name or "gpu-3" in name else 1
        assert (document.kind, document.total_lines, document.counts, document.complete) == (
            "kernel-log",
            2 * twice,
            {"xid": twice},
            True,
        )
        assert document.lines[1].hits == ("xid",)
        assert document.lines[1].no == 2


@pytest.mark.parametrize("packing", ["plain", "gz", "zst", "tar"])
def test_large_log_keeps_begin_end_and_matches(tmp_path: Path, packing: str) -> None:
    rows = [b"[rank%d]: step %d loss=1.5" % (number % 8, number) for number in range(20_000)]
    rows[9_000] = b"[rank3]: RuntimeError: CUDA error"
    data = b"\n".join(rows)
    name = {"plain": "job.log", "gz": "job.log.gz", "zst": "job.log.zst", "tar": "job.tar"}[packing]
    if packing == "tar":
        with tarfile.open(tmp_path / name, "w") as archive:
            entry = tarfile.TarInfo("job.log")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    else:
        (tmp_path / name).write_bytes({"plain": bytes, "gz": gzip.compress, "zst": zstd.compress}[packing](data))
    documents, problems = read(tmp_path, limits=Limits(whole=100_000, head=5_000, tail=20_000))
    assert not problems
    (document,) = documents.values()
    assert (document.size, document.total_lines, document.complete, document.counts) == (
        len(data),
        20_000,
        False,
        {"rank-error": 1},
    )
    numbers = [line.no for line in document.lines]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1
    assert numbers[-1] == 20_000
    assert len(numbers) < 2_000
    assert [line.no for line in document.lines if line.hits] == [9_001]
    assert {8_999, 9_000, 9_002, 9_003} <= set(numbers)
    assert all(line.text == rows[line.no - 1].decode() for line in document.lines)


def test_many_logs_share_the_room_for_text(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"rank-{number}.log").write_bytes(b"step\n" * 10_000 + b"out of memory\n" + b"step\n" * 10_000)
    documents, _ = read(tmp_path, limits=Limits(text=200_000))
    assert sum(len(document.lines) for document in documents.values()) < 60_000
    assert all(document.counts == {"oom": 1} and document.total_lines == 20_001 for document in documents.values())


def test_structured_documents(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
    (tmp_path / "nodes.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}, indent=1))
    (tmp_path / "two.json").write_text(json.dumps(node) + "\n" + json.dumps(node))
    (tmp_path / "warned.json").write_text("Warning: [old] version\n" + json.dumps(node))
    (tmp_path / "pods.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  creationTimestamp: 2026-05-04T11:02:03Z\n---\napiVersion: v1\nkind: Pod\n"
    )
    (tmp_path / "gpu.prom").write_text('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41\n')
    (tmp_path / "fr_trace_rank_0").write_bytes(pickle.dumps({"entries": [], "pg_config": {}}, protocol=2))
    (tmp_path / "fr_trace_rank_1").write_bytes(b"")
    documents, problems = read(tmp_path)
    assert documents["nodes.json"].data["items"] == [node]
    assert documents["two.json"].data == [node, node]
    assert documents["warned.json"].data == node
    assert documents["pods.yaml"].data[0]["metadata"]["creationTimestamp"] == "2026-05-04T11:02:03Z"
    assert documents["gpu.prom"].raw == b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41\n'
    assert documents["fr_trace_rank_0"].raw[:1] == b"\x80"
    assert (documents["fr_trace_rank_1"].kind, documents["fr_trace_rank_1"].size) == ("flight-recorder", 0)
    assert not problems
    assert locate(documents["nodes.json"].raw, "gpu-1") == (9, '    "name": "gpu-1"')


def test_json_cut_in_the_middle_keeps_whole_items(tmp_path: Path) -> None:
    items = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}", "labels": {"a": "b"}}} for number in range(5)
    ]
    text = json.dumps({"apiVersion": "v1", "items": items, "kind": "List"}, indent=1)
    cut = text[: text.index("pod-3") + 3]
    (tmp_path / "pods.json").write_text(cut)
    series = [{"metric": {"gpu": str(number)}, "values": [[1, "2"], [2, "3"]]} for number in range(4)]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})
    (tmp_path / "range.json").write_text(text[: text.rindex('"2"')])
    documents, problems = read(tmp_path)
    assert [item["metadata"]["name"] for item in documents["pods.json"].data["items"]] == ["pod-0", "pod-1", "pod-2"]
    assert problems["pods.json"].line == cut.count("\n") + 1
    assert not documents["pods.json"].complete
    assert [each["metric"]["gpu"] for each in documents["range.json"].data["data"]["result"]] == ["0", "1", "2"]


def test_yaml_with_an_alias_bomb_or_a_cut_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text("apiVersion: v1\nkind: List\na: &a [x]\nb: [" + ", ".join(["*a"] * 200) + "]\n")
    (tmp_path / "cut.yaml").write_text('apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n  name: a\n- kind: Pod\n  name: "b\n')
    documents, problems = read(tmp_path)
    assert documents["bomb.yaml"].data is None
    assert "alias" in problems["bomb.yaml"].message
    assert documents["cut.yaml"].data["items"] == [{"kind": "Pod", "name": "a"}]
    assert problems["cut.yaml"].line


def test_wrapped_container_logs_are_unwrapped(tmp_path: Path) -> None:
    docker = [{"log": f"[rank0]: step {n}\n", "stream": "stderr", "time": f"2026-05-04T11:02:0{n}Z"} for n in range(3)]
    docker[1]["log"] = "RuntimeError: out of memory\n"
    (tmp_path / "docker.log").write_text("\n".join(json.dumps(each) for each in docker))
    (tmp_path / "cri.log").write_text(
        "2026-05-04T11:02:03.1Z stderr P RuntimeError: out \n2026-05-04T11:02:03.2Z stderr F of memory\n2026-05-04T11:02:03.3Z stdout F end\n"
    )
    entry = {"__REALTIME_TIMESTAMP": "1777892523123456", "_HOSTNAME": "gpu-1", "_TRANSPORT": "kernel", "MESSAGE": "NVRM: Xid"}
    (tmp_path / "journal.json").write_text(json.dumps(entry) + "\n")
    documents, problems = read(tmp_path)
    assert not problems
    line = documents["docker.log"].lines[1]
    assert (line.no, line.text, set(line.hits)) == (2, "2026-05-04T11:02:01Z RuntimeError: out of memory", {"oom", "rank-error"})
    texts = [line.text for line in documents["cri.log"].lines]
    assert texts == ["2026-05-04T11:02:03.1Z RuntimeError: out of memory", "2026-05-04T11:02:03.3Z end"]
    assert documents["journal.json"].kind == "kernel-log"
    assert documents["journal.json"].lines[0].text == "2026-05-04T11:02:03.123456+00:00 gpu-1 kernel: NVRM: Xid"


def test_encodings_colours_and_line_ends(tmp_path: Path) -> None:
    (tmp_path / "utf16.log").write_bytes("[ 12.345678] NVRM: Xid 79 é\r\n[ 13.000000] end".encode("utf-16"))
    (tmp_path / "colour.log").write_bytes(
        b"\x1b[1;31mRuntimeError: \x1b[0mout of \x1b[1mmemory\x1b[0m\r\n10%\r20%\r30%\nlast \xff"
    )
    documents, problems = read(tmp_path)
    assert not problems
    assert [line.text for line in documents["utf16.log"].lines] == ["[ 12.345678] NVRM: Xid 79 é", "[ 13.000000] end"]
    assert documents["utf16.log"].counts == {"xid": 1}
    colour = documents["colour.log"]
    lines = [(line.no, line.text) for line in colour.lines]
    assert lines == [(1, "RuntimeError: out of memory"), (2, "10%"), (2, "20%"), (2, "30%"), (3, "last \ufffd")]
    assert colour.counts == {"oom": 1, "rank-error": 1}


def test_damaged_files_cost_only_themselves(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "outside.log").symlink_to("/etc/hostname")
    (tmp_path / "core.1").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(range(30)) * 100)
    (tmp_path / "plot.png").write_bytes(b"x")
    (tmp_path / ".hidden").write_bytes(b"x")
    noise = os.urandom(3_000_000)
    long = KERNEL + b"".join(b"[ 14.%06d] mce: %s\n" % (n, noise[n : n + 30].hex().encode()) for n in range(60_000))
    for name, data in (
        ("a.log.gz", gzip.compress(long, 1)),
        ("b.log.zst", zstd.compress(long)),
        ("c.log.gz", gzip.compress(KERNEL)),
    ):
        (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
    (tmp_path / "d.log.gz").write_bytes(b"\x1f\x8b\x08\x00junk that is no gzip at all")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in (("first.log", KERNEL), ("second.log", long)):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    (tmp_path / "cut.tar").write_bytes(plain.getvalue()[: len(long) // 2])
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04" + b"junk" * 100)
    (tmp_path / "good.log").write_bytes(KERNEL)
    documents, problems = read(tmp_path)
    assert {"good.log", "a.log.gz", "b.log.zst", "cut.tar!first.log"} <= set(documents)
    assert {"pipe.log", "self", "outside.log", "core.1", "a.log.gz", "b.log.zst", "c.log.gz", "d.log.gz", "broken.zip"} <= set(
        problems
    )
    assert any(name.startswith("cut.tar") for name in problems)
    assert "gdb" in problems["core.1"].hint
    assert documents["a.log.gz"].counts == documents["b.log.zst"].counts == {"xid": 1}
    assert documents["a.log.gz"].total_lines > 1_000
    assert not documents["a.log.gz"].complete
    assert "2 files" in problems[str(tmp_path)].message


def test_archives_that_attack(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "escape.tar", "w") as archive:
        for name in ("../../etc/evil.log", "/etc/evil.log", "fine.log"):
            entry = tarfile.TarInfo(name)
            entry.size = len(KERNEL)
            archive.addfile(entry, io.BytesIO(KERNEL))
        link = tarfile.TarInfo("link.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.log", b"step\n" * 10_000_000)
    data = KERNEL
    for depth in range(6):
        wrapped = io.BytesIO()
        with zipfile.ZipFile(wrapped, "w") as archive:
            archive.writestr("inner.log" if depth == 0 else f"level-{depth}.zip", data)
        data = wrapped.getvalue()
    (tmp_path / "matryoshka.zip").write_bytes(data)
    (tmp_path / "good.log").write_bytes(KERNEL)
    documents, problems = read(tmp_path, limits=Limits(expanded=20 << 20))
    assert {"escape.tar!fine.log", "good.log"} <= set(documents)
    assert "evil" not in "".join(documents)
    assert {"escape.tar!../../etc/evil.log", "escape.tar!/etc/evil.log", "escape.tar"} <= set(problems)
    assert any("expand" in problem.message for name, problem in problems.items() if name.startswith("bomb.zip"))
    assert any("nested" in problem.message for name, problem in problems.items() if name.startswith("matryoshka"))


def test_nothing_there(tmp_path: Path) -> None:
    documents, problems = read(tmp_path)
    assert not documents
    assert problems[str(tmp_path)].status == "missing"
    _, problems = read(tmp_path / "absent")
    assert problems[str(tmp_path / "absent")].hint


def test_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.log").write_bytes(KERNEL)
    (tmp_path / "open.log").write_bytes(KERNEL)
    real = open

    def refuse(path: Any, *args: Any, **more: Any) -> Any:
        if "secret" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **more)

    monkeypatch.setattr("builtins.open", refuse)
    documents, problems = read(tmp_path)
    assert list(documents) == ["open.log"]
    assert "Permission denied" in problems["secret.log"].message


def test_single_file_several_roots_and_stdin(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.log").write_bytes(KERNEL)
    assert set(read(tmp_path / "one/job.log")[0]) == {"job.log"}
    assert set(read(tmp_path / "one", tmp_path / "two")[0]) == {"one/job.log", "two/job.log"}
    documents, problems = read(Path("-"), stdin=io.BytesIO(gzip.compress(KERNEL)))
    assert not problems
    assert documents["stdin"].counts == {"xid": 1}
    seen: list[tuple[int, int, str]] = []
    read(tmp_path, progress=lambda done, total, name: seen.append((done, total, name)))
    assert seen[-1][:2] == (2 * len(KERNEL), 2 * len(KERNEL))


def test_json_of_tools_has_lines_too(tmp_path: Path) -> None:
    """Their parser reads lines, since JSON and text of one tool often stand in one file."""
    (tmp_path / "diag.json").write_text('{\n "DCGM Diagnostic": {\n  "test_categories": []\n }\n}\n')
    documents, _ = read(tmp_path)
    (document,) = documents.values()
    assert document.kind == "smi"
    assert len(document.lines) == 5
