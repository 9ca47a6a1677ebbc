"""The library that tests play NVML with against NVIDIA's own nvml.h, of CUDA 12 and 13: every constant, struct and function, by the compiler."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.parse import nvml_doc
from workbench.sources.node import nvml_child

pytestmark = pytest.mark.live

SERVICE = Path(__file__).resolve().parent.parent / "services" / "nvml"
HEADERS = ("nvidia-nvml-dev-cu12==12.9.79", "nvidia-nvml-dev==13.5.37")
# the one struct that grew: the caller says by its version which it means (fake_nvml.c, nvmlDeviceGetGpuFabricInfoV)
ALIASES = {"nvmlGpuFabricInfoV_t": "nvmlGpuFabricInfo_v2_t", "nvmlEccSramErrorStatus_t": "nvmlEccSramErrorStatus_v1_t"}
NEWER = {"nvmlDeviceGetRepairStatus", "nvmlRepairStatus_t"}  # not yet in CUDA 12.9
FUNCTION = re.compile(r"\bnvmlReturn_t\s+(nvml\w+)\s*\(([^)]*)\)\s*[;{]")


@pytest.fixture(scope="module", params=HEADERS)
def include(request: pytest.FixtureRequest) -> str:
    """The folder of NVIDIA's header."""
    done = subprocess.run(
        [str(SERVICE / "header"), sys.executable, request.param], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def preprocessed(source: str, *options: str) -> str:
    """Return C as the compiler sees it."""
    words = ["gcc", "-E", "-P", "-x", "c", *options, "-"]
    return subprocess.run(words, input=source, capture_output=True, text=True, check=True, timeout=60).stdout


def functions(text: str) -> dict[str, list[str]]:
    """Return the functions that a preprocessed text declares or defines: name → types of the arguments."""
    found = {}
    for name, arguments in FUNCTION.findall(text):
        types = [re.sub(r"\w+\s*$", "", one).strip() for one in arguments.split(",")]
        found[name] = [] if arguments.strip() == "void" else [one or arguments.strip() for one in types]
    return found


def structs(text: str) -> dict[str, list[str]]:
    """Return the structs of nvml_min.h: name → fields, of unions the union."""
    found = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (nvml\w+);", text, re.S):
        flat = re.sub(r"union \{.*?\}", "union_", body, flags=re.S)
        found[name] = [
            re.sub(r"\[.*", "", part).split()[-1] for line in flat.split(";") if line.strip() for part in line.split(",")
        ]
    return found


def comparison(include: str) -> tuple[str, int]:
    """Return a C file that compiles only if ours is like theirs, and how many things it compares."""
    mine = (SERVICE / "nvml_min.h").read_text(encoding="utf-8")
    theirs = functions(
        preprocessed(f'#include "{include}/nvml.h"\n')
        + preprocessed(f'#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include "{include}/nvml.h"\n')
    )
    renamed = re.sub(r"\bnvml(\w+_t)\b", r"our\1", re.sub(r"^#define.*$", "", mine, flags=re.M))
    # their handle is a pointer, too, and their return value is an enum
    lines = [f'#include "{include}/nvml.h"', "#include <stddef.h>", renamed.replace("nvmlDevice_st", "ourDevice_st")]
    asserts = []
    for name, value in re.findall(r"^#define (NVML_\w+) (\w+)", mine, re.M):
        asserts.append(f'_Static_assert({name} == {value}, "{name}");')
    newer = NEWER if "cu12" in include else set()
    if not newer:  # written by its offset, since the struct of CUDA 12 ends before it
        asserts.append('_Static_assert(offsetof(nvmlGpuFabricInfo_v3_t, healthSummary) == 36, "healthSummary");')
    for name, fields in structs(mine).items():
        if name in newer:
            continue
        real, our = ALIASES.get(name, name), name.replace("nvml", "our", 1)
        asserts.append(f'_Static_assert(sizeof({real}) == sizeof({our}), "{name}");')
        for field in fields:
            same = f"offsetof({real}, {field}) == offsetof({our}, {field}) && sizeof((({real} *)0)->{field}) == sizeof((({our} *)0)->{field})"
            asserts.append(f'_Static_assert({same}, "{name}.{field}");')
    for name, types in functions(preprocessed(f'#include "{SERVICE}/fake_nvml.c"\n')).items():
        if name in newer:
            continue
        assert name in theirs, f"{name}: NVML has no such function"
        assert len(theirs[name]) == len(types), f"{name}: {theirs[name]}"
        for at, (real, our) in enumerate(zip(theirs[name], types, strict=True)):
            real, our = re.sub(r"\bconst\b", "", real).strip(), re.sub(r"\bnvml(\w+_t)\b", r"our\1", our)
            for alias, meant in ALIASES.items():
                real = real.replace(alias, meant)
            assert real.count("*") == our.count("*"), f"{name}: {real} and {our}"
            size = "*({} )0" if "*" in our else "{}"
            asserts.append(f'_Static_assert(sizeof({size.format(real)}) == sizeof({size.format(our)}), "{name}, argument {at}");')
    return "\n".join([*lines, *asserts]) + "\n", len(asserts)


def compiled(source: str, folder: Path) -> list[str]:
    """Return what the compiler does not like."""
    (folder / "compare.c").write_text(source)
    done = subprocess.run(
        ["gcc", "-std=c11", "-fsyntax-only", "compare.c"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return [line for line in done.stderr.splitlines() if "error:" in line]


def test_constants_structs_and_functions_are_those_of_the_real_header(include: str, tmp_path: Path) -> None:
    source, count = comparison(include)
    assert count > 200
    assert compiled(source, tmp_path) == []


def test_numbers_mean_to_our_reader_what_the_header_says(include: str) -> None:
    text = (Path(include) / "nvml.h").read_text(encoding="utf-8")
    masks = re.findall(r"#define nvmlClocks(?:Event|Throttle)Reason([A-Z]\w+)\s+0x([0-9a-f]{16})LL", text, re.I)
    reasons = {
        int(mask, 16).bit_length() - 1: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name, mask in masks if int(mask, 16)
    }
    assert len(reasons) >= 9
    assert {bit: nvml_child._REASONS[bit].replace("idle", "gpu_idle") for bit in reasons} == reasons
    tables = {
        "NVML_GPU_RECOVERY_ACTION_": nvml_child._RECOVERY,
        "NVML_GPU_FABRIC_STATE_": nvml_child._FABRIC,
        "NVML_COMPUTEMODE_": nvml_child._COMPUTE,
    }
    for prefix, ours in tables.items():
        theirs = {int(number): name for name, number in re.findall(rf"\b{prefix}([A-Z]\w*)\s*=?\s*(\d+)", text)}
        assert len(theirs) >= 4
        for number, name in theirs.items():
            words = set(ours[number].upper().replace("_", " ").split())
            assert words & set(name.split("_")), (prefix, number, name)
    counters = {int(number): word for word, number in re.findall(r"NVML_NVLINK_ERROR_DL_(\w+)\s*=\s*(\d)", text)}
    assert all(key.startswith(counters[number].lower()) for key, number in nvml_child._OLD_COUNTERS)
    shifts = {word.lower(): int(bits) for word, bits in re.findall(r"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_(\w+)\s+(\d+)", text)}
    shifts["bandwidth"] = shifts["degraded_bw"]
    assert {key: shift for key, (shift, _) in nvml_doc._FABRIC_HEALTH.items()} == {
        key: shifts[key] for key in nvml_doc._FABRIC_HEALTH
    }
    assert set(
        re.findall(r"NVML_GPU_FABRIC_HEALTH_MASK_(?:DEGRADED_BW|ROUTE_UNHEALTHY|ACCESS_TIMEOUT_RECOVERY)_TRUE\s+(\d)", text)
    ) == {"1"}


@pytest.mark.parametrize(
    ("said", "instead", "where"),
    [
        ("#define NVML_ERROR_GPU_IS_LOST 15", "#define NVML_ERROR_GPU_IS_LOST 14", "NVML_ERROR_GPU_IS_LOST"),
        ("unsigned gpu, memory;", "unsigned memory, gpu;", "nvmlUtilization_t.gpu"),
        ("char busIdLegacy[16];", "char busIdLegacy[20];", "nvmlPciInfo_t"),
    ],
)
def test_the_comparison_sees_a_difference(
    said: str, instead: str, where: str, include: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvml_min.h", "fake_nvml.c"):
        text = (SERVICE / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(said, instead))
    monkeypatch.setattr("tests.live.test_nvml_header_live.SERVICE", tmp_path)
    source, _ = comparison(include)
    errors = compiled(source, tmp_path)
    assert any(where in line for line in errors), errors
