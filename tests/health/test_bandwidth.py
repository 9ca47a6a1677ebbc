"""Bandwidth: the GPU or pair that is slower than its peers is named; wrong values of an all-reduce count more than its speed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.health.gpu_node import UUIDS, Node, one
from workbench.catalog.bandwidth import usual_bandwidth
from workbench.catalog.skus import skus
from workbench.health import Finding
from workbench.health.slow_pairs import slow_of
from workbench.parse.nccl_tests import parse_nccl
from workbench.parse.nvbandwidth import parse_nvbandwidth

H2D, D2H, D2D = "host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce"
HEAD = "nvbandwidth Version: v0.8\nBuilt from Git version: v0.8\n\nCUDA Runtime Version: 13000\nCUDA Driver Version: 13000\nDriver Version: 580.95.05\n\n"
ABOUT = {
    H2D: "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    D2H: "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
    D2D: "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
}
Matrix = list[list[float | None]]


def flat(value: float, count: int = 8) -> Matrix:
    return [[value + 0.01 * at for at in range(count)]]


def square(value: float, count: int = 8) -> Matrix:
    return [[None if a == b else value + 0.1 * ((a * 3 + b) % 5) for b in range(count)] for a in range(count)]


def as_text(**tests: Matrix | str) -> str:
    out = (
        HEAD + "".join(f"Device {at}: NVIDIA H100 80GB HBM3 (00000000:{bus}:00)\n" for at, bus in enumerate(("19", "3b"))) + "\n"
    )
    for name, matrix in tests.items():
        if isinstance(matrix, str):
            out += f"Running {name}.\n{matrix}\n\n"
            continue
        out += f"Running {name}.\n{ABOUT[name]}\n" + " " + "".join(f"{at:>10}" for at in range(len(matrix[0]))) + "\n"
        for at, row in enumerate(matrix):
            out += f"{at:>2}" + "".join(f"{'N/A' if value is None else f'{value:.2f}':>10}" for value in row) + "\n"
        out += f"\nSUM {name} {sum(value or 0 for row in matrix for value in row):.2f}\n\n"
    return out + "NOTE: The reported results may not reflect the full capabilities of the platform.\n"


def as_json(**tests: Matrix | str) -> str:
    cases = []
    for name, matrix in tests.items():
        if isinstance(matrix, str):
            cases.append({"name": name, "status": matrix})
        else:
            rows = [["N/A" if value is None else f"{value:.6g}" for value in row] for row in matrix]
            cases.append({"name": name, "status": "Passed", "bandwidth_description": ABOUT[name], "bandwidth_matrix": rows})
    return json.dumps({"nvbandwidth": {"version": "v0.8", "CUDA Runtime Version": 13000, "testcases": cases}}, indent=2)


def nvbandwidth(node: Node, json: str, text: str = "") -> None:
    """JSON when asked with -j; one that knows no -j ends with 1 and prints its usage."""
    node.file("bin/nvbandwidth.json", json)
    node.file("bin/nvbandwidth.txt", text)
    ask = f'test "$1" = -j && {{ /bin/cat {node.tools}/nvbandwidth.json; test -s {node.tools}/nvbandwidth.json; exit; }}'
    node.file("bin/nvbandwidth", f"#!/bin/sh\n{ask}\n/bin/cat {node.tools}/nvbandwidth.txt\n").chmod(0o755)


def check(node: Node, **tests: Matrix | str) -> list[Finding]:
    nvbandwidth(node, as_json(**({H2D: flat(55.3), D2H: flat(55.1), D2D: square(371.0)} | tests)))
    return node.check("gpu-bandwidth", context="idle")


def codes(findings: Sequence[Finding]) -> list[str]:
    return sorted(each.code or each.status for each in findings)


def test_eight_healthy_h100(node: Node) -> None:
    assert codes(check(node)) == ["ok"] * 3


def test_text_and_json_say_the_same(node: Node) -> None:
    tests: dict[str, Matrix | str] = {H2D: flat(55.3), D2H: flat(55.1), D2D: square(371.0)}
    text, json = parse_nvbandwidth(as_text(**tests)), parse_nvbandwidth(as_json(**tests))
    assert text.tests.keys() == json.tests.keys() == {H2D, D2H, D2D}
    for name in tests:
        for row, other in zip(text.tests[name], json.tests[name], strict=True):
            assert row == tuple(None if value is None else pytest.approx(value, rel=1e-3) for value in other)
    assert text.devices == {0: "0000:19:00.0", 1: "0000:3b:00.0"}


def test_a_version_without_json_is_read_as_text(node: Node) -> None:
    nvbandwidth(node, "", as_text(**{H2D: flat(55.3), D2H: flat(55.1), D2D: square(371.0)}))
    findings = node.check("gpu-bandwidth", context="idle")
    assert codes(findings) == ["ok"] * 3
    assert findings[0].path == "nvbandwidth"


def test_a_gpu_whose_slot_is_slow(node: Node) -> None:
    row = flat(55.3)
    row[0][3] = 13.1
    found = one(check(node, **{H2D: row}), "gpu-host-slow")
    assert found.gpu is not None
    assert (found.gpu.uuid, found.status, found.action) == (UUIDS[3], "critical", "drain")


@pytest.mark.parametrize("side", ["row", "column", "both"])
def test_a_gpu_that_is_slow_with_all_is_the_culprit_and_its_peers_are_not(node: Node, side: str) -> None:
    matrix = square(371.0)
    for at in range(8):
        if at != 5:
            if side in ("row", "both"):
                matrix[5][at] = 90.0
            if side in ("column", "both"):
                matrix[at][5] = 90.0
    findings = check(node, **{D2D: matrix})
    assert codes(findings) == ["gpu-peers-slow", "ok", "ok"]
    found = one(findings, "gpu-peers-slow")
    assert found.gpu is not None
    assert found.gpu.uuid == UUIDS[5]


def test_a_pair_that_is_slow_with_each_other_only(node: Node) -> None:
    matrix = square(371.0)
    matrix[2][6] = matrix[6][2] = 40.0
    found = one(check(node, **{D2D: matrix}), "gpu-pair-slow")
    assert (found.part, found.gpu) == ("2-6", None)
    assert "neither is slow with the rest" in found.summary


def test_two_culprits_and_a_pair_at_the_same_time() -> None:
    matrix = square(371.0)
    for bad in (1, 4):
        for at in range(8):
            if at != bad:
                matrix[bad][at] = matrix[at][bad] = 60.0
    matrix[0][7] = 50.0
    slow = slow_of(matrix)
    assert set(slow.gpus) == {1, 4}
    assert set(slow.pairs) == {(0, 7)}


@pytest.mark.parametrize("count", [3, 4, 5, 8, 16])
def test_one_bad_gpu_or_one_bad_pair_is_named_in_every_size(count: int) -> None:
    for bad in range(count):
        matrix = square(100.0, count)
        for at in range(count):
            if at != bad:
                matrix[bad][at] = matrix[at][bad] = 30.0
        assert (set(slow_of(matrix).gpus), slow_of(matrix).pairs) == ({bad}, {})
        matrix = square(100.0, count)
        other = (bad + 1) % count
        matrix[bad][other] = matrix[other][bad] = 30.0
        assert set(slow_of(matrix).pairs) == {(min(bad, other), max(bad, other))}
        assert not slow_of(matrix).gpus


def test_two_sockets_of_pcie_are_no_fault_and_bridged_pairs_nothing_to_compare() -> None:
    # six RTX A6000 of NVIDIA/nvbandwidth#50
    near, far = 26.34, 21.9
    matrix: Matrix = [[None if a == b else near if (a < 3) == (b < 3) else far for b in range(6)] for a in range(6)]
    assert slow_of(matrix) == slow_of(square(5.0, 2))
    # V100 of a cube mesh: some pairs over two links, some over one, some over PCIe
    mesh: Matrix = [[None if a == b else (48.0, 24.0, 9.0)[(a ^ b) % 3] for b in range(8)] for a in range(8)]
    assert slow_of(mesh).mixed


def test_behind_nvswitches_unevenness_and_missing_pairs_are_faults(node: Node) -> None:
    mesh: Matrix = [[None if a == b else (371.0, 180.0, 90.0)[(a ^ b) % 3] for b in range(8)] for a in range(8)]
    assert "gpu-fabric-uneven" in codes(check(node, **{D2D: mesh}))
    matrix = square(371.0)
    matrix[1][2] = matrix[2][1] = None
    assert one(check(node, **{D2D: matrix}), "gpu-pair-unreachable").part == "1-2"


def test_all_slow_together_is_a_warning(node: Node) -> None:
    found = one(check(node, **{H2D: flat(26.0)}), "bandwidth-below-usual")
    assert found.status == "warning"
    assert "known for 52" in found.summary


def test_what_was_waived_failed_or_is_not_there(node: Node) -> None:
    findings = check(node, **{D2D: "Waived", H2D: "Error"})
    assert {(each.part, each.status) for each in findings} == {(D2D, "not-applicable"), (H2D, "unknown"), (D2H, "ok")}
    nvbandwidth(node, as_json(**{H2D: flat(55.0)}))
    assert codes(node.check("gpu-bandwidth", context="idle")) == ["ok", "unread", "unread"]
    row = flat(55.0)
    row[0][2] = None
    assert "unread" in codes(check(node, **{H2D: row}))


def test_without_the_tool_or_with_mig(node: Node) -> None:
    (missing,) = node.check("gpu-bandwidth", context="idle")
    assert (missing.status, missing.required) == ("unknown", False)
    assert "not installed" in missing.summary
    nvbandwidth(node, as_json(**{H2D: flat(55.0)}))
    (mig,) = node.check("gpu-bandwidth", context="idle", env={"FAKE_NVML": "mig=1"})
    assert mig.status == "not-applicable"


@pytest.mark.parametrize(
    "out",
    ["", "garbage", '{"nvbandwidth": {}}', '{"nvbandwidth": {"error": "CUDA_ERROR_NO_DEVICE"}}', as_json(**{H2D: flat(5.0)})[:150], HEAD,
     HEAD + "Running host_to_device_memcpy_ce.\n", "[]", '{"nvbandwidth": {"testcases": [{"name": "x", "bandwidth_matrix": [["1"], ["1", "2"]]}]}}'],
)  # fmt: skip
def test_no_whole_answer_is_unknown(node: Node, out: str) -> None:
    nvbandwidth(node, out, out)
    assert [each.status for each in node.check("gpu-bandwidth", context="idle")] == ["unknown"]


# ---- nccl-tests


def nccl_output(busbw: float = 362.0, wrong: int = 0, *, checked: bool = True, whole: bool = True) -> str:
    lines = ["# nThread 1 nGpus 8 minBytes 8388608 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0", "#",
             "# Using devices"]  # fmt: skip
    lines += [
        f"#  Rank {at:>2} Group  0 Pid   6899 on      gpu-7 device {at:>2} [0000:04:00] NVIDIA H100 80GB HBM3" for at in range(8)
    ]
    lines += ["#", "#                                                              out-of-place                       in-place          ",
              "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
              "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       "]  # fmt: skip
    for size in (8388608, 1073741824):
        told = f"{wrong if size > 1 << 29 else 0:>7g}" if checked else "    N/A"
        share = busbw if size > 1 << 29 else busbw / 4
        side = f"  {size / share / 1000:7.1f}  {share / 1.75:6.2f}  {share:6.2f} {told}"
        lines.append(f"{size:>12}  {size // 4:>12}     float     sum      -1{side}{side}")
    if whole:
        lines += [
            f"# Out of bounds values : {2 * wrong} {'FAILED' if wrong else 'OK'}",
            f"# Avg bus bandwidth    : {busbw / 1.6:g} ",
            "#",
            "",
        ]
    return "\n".join(lines)


def nccl(node: Node, out: str, code: int = 0, after: str = "") -> list[Finding]:
    node.file("bin/nccl.out", out)
    node.file("bin/all_reduce_perf", f"#!/bin/sh\n/bin/cat {node.tools}/nccl.out\n{after}\nexit {code}\n").chmod(0o755)
    return node.check("nccl", context="idle")


def test_a_good_all_reduce(node: Node) -> None:
    findings = nccl(node, nccl_output())
    assert [(each.part, each.status) for each in findings] == [("values", "ok"), ("bandwidth", "ok")]


def test_wrong_values_are_silent_corruption(node: Node) -> None:
    findings = nccl(node, nccl_output(wrong=3), code=1)
    found = one(findings, "nccl-wrong")
    assert (found.status, found.cls) == ("critical", "hardware/sdc")
    assert "6 values" in found.summary
    assert "1073741824" in found.summary
    assert "nccl-failed" not in codes(findings)


def test_too_little_bandwidth_and_values_that_were_not_checked(node: Node) -> None:
    assert one(nccl(node, nccl_output(busbw=42.0)), "bandwidth-below-usual").status == "warning"
    assert codes(nccl(node, nccl_output(checked=False))) == ["ok", "unread"]


def test_a_failure_that_nccl_names_is_one(node: Node) -> None:
    out = nccl_output(whole=False).rsplit("\n", 2)[0] + "\ngpu-7: Test NCCL failure common.cu:1015 'unhandled cuda error / '\n"
    found = one(nccl(node, out, code=3), "nccl-failed")
    assert "unhandled cuda error" in found.summary


@pytest.mark.parametrize(
    ("out", "code"),
    [
        ("", 0),
        ("garbage", 0),
        ("", 1),
        (nccl_output(whole=False), 0),
        ("all_reduce_perf: error while loading shared libraries: libnccl.so.2", 127),
    ],
)
def test_one_that_did_not_begin_is_unknown(node: Node, out: str, code: int) -> None:
    assert [each.status for each in nccl(node, out, code)] == ["unknown"]


def test_one_that_hangs_after_it_began_is_a_fault(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sources.node.bandwidth._NCCL_SECONDS", 2.0)
    (node.tools / "sleep").symlink_to("/bin/sleep")
    (found,) = nccl(node, nccl_output(whole=False), after="sleep 600 & wait")
    assert (found.code, found.status) == ("nccl-hang", "critical")
    assert "the last size that came back was 1073741824 B" in found.summary
    (found,) = nccl(node, "", after="sleep 600 & wait")
    assert found.status == "unknown"


def test_one_gpu_has_nobody_to_talk_to(node: Node) -> None:
    node.file("bin/all_reduce_perf", "#!/bin/sh\n").chmod(0o755)
    (found,) = node.check("nccl", context="idle", env={"FAKE_NVML": "count=1"})
    assert found.status == "not-applicable"


def test_lines_that_mpirun_and_srun_tagged() -> None:
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in nccl_output(wrong=1).splitlines())
    labelled = "".join(f"0: {line}\n" for line in nccl_output(wrong=1).splitlines())
    for text in (tagged, labelled):
        run = parse_nccl(text)
        assert (run.wrong, run.ranks, run.whole, len(run.sizes)) == (2, 8, True, 2)


def test_every_row_of_known_figures_is_of_a_product_that_the_catalog_knows() -> None:
    from workbench.catalog import table

    known = {sku.product for sku in skus()}
    for row in table("bandwidth"):
        assert row["product"] in known
        assert row["test"] in (H2D, D2H, D2D, "all_reduce_perf")
        assert usual_bandwidth(row["product"], row["test"]) == float(row["usual"])
