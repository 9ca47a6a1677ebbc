"""
Turn the calls of NVML into lines of JSON, one an answer, as they come: a program that its parent kills when the driver hangs.

Run as ``python -P nvml_child.py FOLDER``, where FOLDER holds pynvml. Before each call a line says which: the last of them names the
call that did not return. It must not import anything of the workbench: it is a program of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

_LOST = 15  # NVML_ERROR_GPU_IS_LOST
_MISSING = 13  # NVML_ERROR_FUNCTION_NOT_FOUND
_MOST_GPUS = 256
_MOST_PROCESSES = 1000
# nvml.h, nvmlClocksEventReasons: what each bit of the mask means
_REASONS = (
    "idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",  # these two since CUDA 13
    "reliability",
)
_RECOVERY = (
    "None",
    "Reset",
    "Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)
_OLD_COUNTERS = (("replay_errors", 0), ("recovery_errors", 1), ("crc_flit_errors", 2), ("crc_data_errors", 3))
_NEW_COUNTERS = (
    ("receive_errors", "RCV_ERRORS"),
    ("malformed_packet_errors", "MALFORMED_PACKET_ERRORS"),
    ("integrity_errors", "LOCAL_LINK_INTEGRITY_ERRORS"),
    ("recovery_failed", "LINK_RECOVERY_FAILED_EVENTS"),
)
_FABRIC = ("Not Supported", "Not Started", "In Progress", "Completed")
_COMPUTE = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
# The driver's branch, and the first of three numbers of nvmlDeviceGetFieldValues that count the nanoseconds for which the GPU was slowed
# down: by software for heat, by hardware for heat, by the power brake. nvml.h of CUDA 12.9 (R575) has them at 251, that of 13.0 (R580 and
# on) at 269, and gives 251 to power smoothing. So it is the driver that decides, not the constant of the pynvml that happens to be here.
_SLOWED = ((580, 269), (575, 251))
# values that no GPU has are a library's or a driver's garbage
_MOST = {"celsius": 250, "watts": 10_000, "percent": 100, "mhz": 20_000, "bytes": 1 << 50, "generation": 20, "width": 64}
_MOST["microseconds"] = 1 << 50  # 35 years


class _Failed(Exception):
    """A call that gave no value: NVML's code (None when it was not NVML that failed), its words, and which call."""

    def __init__(self, code: int | None, error: str, call: str) -> None:
        super().__init__(error)
        self.code, self.error, self.call = code, error, call


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, ensure_ascii=True, default=str) + "\n")
    sys.stdout.flush()


class _Library:
    """pynvml, each call announced and each failure told apart."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.gpu: int | None = None
        self.driver = ""

    def call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.module, name, None)
        if function is None:
            raise _Failed(_MISSING, f"this pynvml has no {name}", name)
        _say({"asking": name, "gpu": self.gpu})
        try:
            return function(*arguments)
        except self.module.NVMLError as error:
            raise _Failed(int(error.value), str(error), name) from None
        except Exception as error:  # a struct of another release, a string that is no UTF-8: no value, whatever it was
            raise _Failed(None, f"{type(error).__name__}: {error}"[:200], name) from None

    def constant(self, name: str) -> int:
        value = getattr(self.module, name, None)
        if value is None:
            raise _Failed(_MISSING, f"this pynvml has no {name}", name)
        return int(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def _bounded(value: Any, kind: str, call: str) -> Any:
    if not isinstance(value, (int, float)) or value < 0 or value > _MOST[kind]:
        raise _Failed(None, f"no plausible value: {value}", call)
    return value


class _Gpu:
    """Reads one GPU; a GPU that is lost answers no more questions, and is asked none."""

    def __init__(self, library: _Library, index: int) -> None:
        self.library, self.index = library, index
        self.lost = 0
        self.handle: Any = None

    def put(self, key: str, read: Callable[[], Any]) -> Any:
        """Say one value, or why there is none."""
        if self.lost >= 3:
            return None
        try:
            value = _plain(read())
        except _Failed as failed:
            self.lost += failed.code == _LOST
            _say({"gpu": self.index, "key": key, "code": failed.code, "error": failed.error, "call": failed.call})
            return None
        self.lost = 0
        _say({"gpu": self.index, "key": key, "value": value})
        return value

    def ask(self, name: str, *arguments: Any) -> Any:
        return self.library.call(name, self.handle, *arguments)

    def number(self, key: str, kind: str, name: str, *arguments: Any, divide: float = 1) -> None:
        self.put(
            key, lambda: _bounded(self.ask(name, *arguments) / divide if divide != 1 else self.ask(name, *arguments), kind, name)
        )

    def read(self) -> None:
        n = self.library
        n.gpu = self.index
        handle = self.put("handle", lambda: self._open())
        if not handle:
            return
        for key, name in (("uuid", "nvmlDeviceGetUUID"), ("name", "nvmlDeviceGetName"), ("serial", "nvmlDeviceGetSerial")):
            self.put(key, lambda name=name: self.ask(name))  # type: ignore[misc]
        self.put("pci", lambda: _plain(self.ask("nvmlDeviceGetPciInfo").busId))
        self.put("minor", lambda: self.ask("nvmlDeviceGetMinorNumber"))
        self.put("vbios", lambda: self.ask("nvmlDeviceGetVbiosVersion"))
        self.put("gsp_firmware", lambda: self.ask("nvmlDeviceGetGspFirmwareVersion"))  # R470 and on; not supported: GSP is off
        for part in ("memory", "rows", "heat", "clocks", "slowed", "pcie", "modes", "fabric", "reset"):
            getattr(self, f"_{part}")()
        self._links()
        self._processes()

    def _open(self) -> bool:
        self.handle = self.library.call("nvmlDeviceGetHandleByIndex", self.index)
        return True

    def _memory(self) -> None:
        def memory() -> dict[str, int]:
            found = self.ask("nvmlDeviceGetMemoryInfo")
            return {
                key: _bounded(int(getattr(found, key)), "bytes", "nvmlDeviceGetMemoryInfo") for key in ("total", "used", "free")
            }

        def ecc_mode() -> dict[str, bool]:
            current, pending = self.ask("nvmlDeviceGetEccMode")
            return {"current": bool(current), "pending": bool(pending)}

        self.put("memory", memory)
        mode = self.put("ecc.mode", ecc_mode)
        if mode is not None and not mode["current"]:
            return  # nothing counts
        for span, counter in (("volatile", 0), ("aggregate", 1)):
            for kind, bit in (("corrected", 0), ("uncorrected", 1)):
                self.put(f"ecc.{span}.{kind}_total", lambda b=bit, c=counter: self.ask("nvmlDeviceGetTotalEccErrors", b, c))  # type: ignore[misc]
                for place, location in (("dram", 2), ("sram", 7)):
                    self.put(
                        f"ecc.{span}.{kind}_{place}",
                        lambda b=bit, c=counter, w=location: self.ask("nvmlDeviceGetMemoryErrorCounter", b, c, w),  # type: ignore[misc]
                    )
        self.put("ecc.sram_threshold_exceeded", self._sram)
        self.put(
            "repair_pending", lambda: dict(zip(("channel", "tpc"), map(bool, self.ask("nvmlDeviceGetRepairStatus")), strict=True))
        )

    def _sram(self) -> bool:
        structure = getattr(self.library.module, "c_nvmlEccSramErrorStatus_v1_t", None)
        if structure is None:
            raise _Failed(_MISSING, "this pynvml does not know it", "nvmlDeviceGetSramEccErrorStatus")
        status = structure()
        status.version = self.library.constant("nvmlEccSramErrorStatus_v1")
        self.ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
        return bool(status.bThresholdExceeded)

    def _rows(self) -> None:
        def remapped() -> dict[str, Any]:
            fixed, broken, pending, failure = self.ask("nvmlDeviceGetRemappedRows")
            return {"correctable": fixed, "uncorrectable": broken, "pending": bool(pending), "failure": bool(failure)}

        def banks() -> dict[str, int]:
            found = self.ask("nvmlDeviceGetRowRemapperHistogram")
            return {name: int(getattr(found, name)) for name in ("max", "high", "partial", "low", "none")}

        self.put("remapped_rows", remapped)
        self.put("remapped_rows_banks", banks)
        for key, cause in (("retired_pages.single_bit", 0), ("retired_pages.double_bit", 1)):
            self.put(key, lambda cause=cause: len(self.ask("nvmlDeviceGetRetiredPages", cause)))  # type: ignore[misc]
        self.put("retired_pages.pending", lambda: bool(self.ask("nvmlDeviceGetRetiredPagesPendingStatus")))

    def _heat(self) -> None:
        self.number("temperature.gpu", "celsius", "nvmlDeviceGetTemperature", 0)
        for key, threshold in (("shutdown", 0), ("slowdown", 1), ("memory_max", 2), ("gpu_max", 3)):
            self.number(f"temperature.{key}", "celsius", "nvmlDeviceGetTemperatureThreshold", threshold)
        self.put("temperature.margin", lambda: self.ask("nvmlDeviceGetMarginTemperature"))
        # Ada and on tell a distance: slowing down begins where the margin reaches this (negative) one
        self.put("temperature.slowdown_margin", lambda: self._field("NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT"))
        self.put(
            "temperature.memory", lambda: _bounded(self._field("NVML_FI_DEV_MEMORY_TEMP"), "celsius", "nvmlDeviceGetFieldValues")
        )
        self.number("power.watts", "watts", "nvmlDeviceGetPowerUsage", divide=1000)
        self.number("power.limit", "watts", "nvmlDeviceGetEnforcedPowerLimit", divide=1000)
        self.put("fan", lambda: self.ask("nvmlDeviceGetFanSpeed"))

    def _field(self, *names: str) -> Any:
        """One value of nvmlDeviceGetFieldValues, by the name of its constant."""
        return self._numbered(self.library.constant(names[0]), int(names[1]) if len(names) > 1 else 0, names[0])

    def _numbered(self, number: int, scope: int, name: str) -> Any:
        (found,) = self.ask("nvmlDeviceGetFieldValues", [(number, scope)])
        if found.nvmlReturn:
            code = int(found.nvmlReturn)
            raise _Failed(code, str(self.library.module.NVMLError(code)), f"nvmlDeviceGetFieldValues({name})")
        kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        return getattr(found.value, kinds[found.valueType] if found.valueType < len(kinds) else "ullVal")

    def _clocks(self) -> None:
        for key, clock in (("graphics", 0), ("sm", 1), ("memory", 2)):
            self.number(f"clocks.{key}", "mhz", "nvmlDeviceGetClockInfo", clock)
            self.number(f"clocks.{key}_max", "mhz", "nvmlDeviceGetMaxClockInfo", clock)
        self.put("performance_state", lambda: self.ask("nvmlDeviceGetPerformanceState"))

        def throttle() -> list[str]:
            try:
                mask = int(self.ask("nvmlDeviceGetCurrentClocksEventReasons"))
            except _Failed as failed:
                if failed.code != _MISSING:
                    raise
                mask = int(self.ask("nvmlDeviceGetCurrentClocksThrottleReasons"))  # its name before R535
            known = [name for bit, name in enumerate(_REASONS) if mask >> bit & 1]
            return known + [f"bit_{bit}" for bit in range(len(_REASONS), 64) if mask >> bit & 1]

        def load() -> dict[str, int]:
            found = self.ask("nvmlDeviceGetUtilizationRates")
            return {
                key: _bounded(int(getattr(found, key)), "percent", "nvmlDeviceGetUtilizationRates") for key in ("gpu", "memory")
            }

        self.put("throttle", throttle)
        self.put("utilization", load)

    def _slowed(self) -> None:
        """How long the GPU was slowed down since the driver was loaded, in microseconds as nvidia-smi prints it."""
        branch = self.library.driver.partition(".")[0]
        first = next((number for least, number in _SLOWED if branch.isdigit() and int(branch) >= least), None)

        def counted(at: int) -> Any:
            if first is None:
                raise _Failed(
                    _MISSING,
                    f"driver {self.library.driver or 'of an unknown version'} does not count it",
                    "nvmlDeviceGetFieldValues",
                )
            return self._numbered(first + at, 0, str(first + at))

        reads = [(key, lambda at=at: counted(at)) for at, key in enumerate(("sw_thermal", "hw_thermal", "power_brake"))]
        # below the clocks that were asked for; by power is usual under load
        for key, policy in (("power", 0), ("thermal", 1)):
            reads.append((key, lambda policy=policy: self.ask("nvmlDeviceGetViolationStatus", policy).violationTime))
        for key, read in reads:
            self.put(f"throttled.{key}", lambda read=read: int(_bounded(int(read()) / 1000, "microseconds", "")))  # type: ignore[misc]

    def _pcie(self) -> None:
        for key, kind, name in (
            ("generation", "generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
            ("generation_max", "generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
            ("width", "width", "nvmlDeviceGetCurrPcieLinkWidth"),
            ("width_max", "width", "nvmlDeviceGetMaxPcieLinkWidth"),
        ):
            self.number(f"pcie.{key}", kind, name)
        self.put("pcie.replays", lambda: self.ask("nvmlDeviceGetPcieReplayCounter"))

    def _modes(self) -> None:
        self.put("persistence", lambda: bool(self.ask("nvmlDeviceGetPersistenceMode")))
        self.put("compute_mode", lambda: _named(_COMPUTE, self.ask("nvmlDeviceGetComputeMode")))

        def mig() -> dict[str, bool]:
            current, pending = self.ask("nvmlDeviceGetMigMode")
            return {"current": bool(current), "pending": bool(pending)}

        mode = self.put("mig.mode", mig)
        if not mode or not mode["current"]:
            return
        most = self.put("mig.most", lambda: self.ask("nvmlDeviceGetMaxMigDeviceCount"))
        if most is not None:  # else: mig.most says why, and no list is not an empty one
            self.put("mig.instances", lambda: self._instances(min(int(most), 64)))

    def _instances(self, most: int) -> list[dict[str, Any]]:
        instances = []
        for place in range(most):
            try:
                handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
            except _Failed as failed:
                if failed.code in (2, 6):  # a place without an instance
                    continue
                raise
            instances.append({"index": place, "uuid": _plain(self.library.call("nvmlDeviceGetUUID", handle))})
            for key, name in (
                ("gpu_instance", "nvmlDeviceGetGpuInstanceId"),
                ("compute_instance", "nvmlDeviceGetComputeInstanceId"),
            ):
                instances[-1][key] = self.library.call(name, handle)
            # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"; without the name there is the instance, and its profile is not told
            try:
                name = str(_plain(self.library.call("nvmlDeviceGetName", handle)))
                instances[-1]["profile"] = name.rpartition(" MIG ")[2] if " MIG " in name else None
            except _Failed as failed:
                instances[-1] |= {"profile": None, "error": failed.error}
        return instances

    def _fabric(self) -> None:
        def newest() -> dict[str, Any]:
            module = self.library.module
            for version in ("v3", "v2"):
                structure = getattr(module, f"c_nvmlGpuFabricInfo_{version}_t", None)
                number = getattr(module, f"nvmlGpuFabricInfo_{version}", None)
                if structure is None or number is None:
                    continue
                info = structure()
                info.version = number
                try:
                    self.ask("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info))
                except _Failed as failed:
                    if failed.code in (_MISSING, 25, None):  # 25: the driver knows an older struct only
                        continue
                    raise
                health = int(getattr(info, "healthMask", 0))
                return {
                    "state": _named(_FABRIC, info.state),
                    "status": int(info.status),
                    "clique": int(info.cliqueId),
                    "health_mask": health,
                }
            structure = getattr(module, "c_nvmlGpuFabricInfo_t", None)
            if structure is None:
                raise _Failed(_MISSING, "this pynvml does not know it", "nvmlDeviceGetGpuFabricInfo")
            info = structure()
            self.ask("nvmlDeviceGetGpuFabricInfo", ctypes.byref(info))
            return {"state": _named(_FABRIC, info.state), "status": int(info.status)}

        self.put("fabric", newest)

    def _reset(self) -> None:
        self.put("recovery_action", lambda: _named(_RECOVERY, self._field("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")))

    def _links(self) -> None:
        links: list[dict[str, Any]] = []
        most = getattr(self.library.module, "NVML_NVLINK_MAX_LINKS", 18)
        for link in range(int(most)):
            if self.lost >= 3:
                return
            try:
                links.append({"link": link, "active": bool(self.ask("nvmlDeviceGetNvLinkState", link))})
            except _Failed as failed:
                self.lost += failed.code == _LOST
                if failed.code in (2, 3, _MISSING) or failed.code is None:  # no such link; none at all when it is the first
                    if not links:
                        self.put("nvlink", lambda failed=failed: _raise(failed))  # type: ignore[misc]
                        return
                    break
                links.append({"link": link, "active": None, "code": failed.code, "error": failed.error})
                if len(links) == 3 and all(one["active"] is None for one in links):  # it is not the links that do not answer
                    self.put("nvlink", lambda failed=failed: _raise(failed))  # type: ignore[misc]
                    return
                continue
            links[-1] |= self._link_errors(link)
        self.put("nvlink", lambda: links)

    def _link_errors(self, link: int) -> dict[str, int]:
        """Counters of one link: the old ones, or those that NVLink 5 has in their place; none when neither can be had."""
        try:
            return {key: int(self.ask("nvmlDeviceGetNvLinkErrorCounter", link, counter)) for key, counter in _OLD_COUNTERS}
        except _Failed as failed:
            self.lost += failed.code == _LOST
        try:
            return {key: int(self._field(f"NVML_FI_DEV_NVLINK_COUNT_{name}", str(link))) for key, name in _NEW_COUNTERS}
        except _Failed as failed:
            self.lost += failed.code == _LOST
        return {}

    def _newest(self, name: str) -> Any:
        """Ask by the newest form that this driver has: pynvml itself only knows one of them for a name without a number."""
        try:
            return self.ask(f"{name}_v3")
        except _Failed as failed:
            if failed.code != _MISSING:
                raise
        return self.ask(f"{name}_v2")  # before R510

    def _processes(self) -> None:
        found: list[dict[str, Any]] = []

        def listed() -> list[dict[str, Any]]:
            for kind, name in (("C", "nvmlDeviceGetComputeRunningProcesses"), ("G", "nvmlDeviceGetGraphicsRunningProcesses")):
                found.extend(
                    {"pid": int(process.pid), "type": kind, "memory": process.usedGpuMemory}
                    for process in list(self._newest(name))[:_MOST_PROCESSES]
                )
            return found

        self.put("processes", listed)


def _raise(failed: _Failed) -> Any:
    raise failed


def _named(names: Iterable[str], value: Any) -> str:
    known = tuple(names)
    return known[value] if isinstance(value, int) and 0 <= value < len(known) else f"unknown ({value})"


def _bus() -> list[dict[str, str]]:
    """NVIDIA's display devices as the kernel lists them: the driver cannot hide one that it lost, and has no say when not loaded."""
    devices = []
    root = "/sys/bus/pci/devices"
    for address in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        try:
            with open(f"{root}/{address}/vendor") as vendor, open(f"{root}/{address}/class") as kind:
                if vendor.read().strip() != "0x10de" or not kind.read().startswith("0x03"):
                    continue
        except OSError:
            continue
        driver = (
            os.path.basename(os.path.realpath(f"{root}/{address}/driver")) if os.path.exists(f"{root}/{address}/driver") else ""
        )
        devices.append({"pci": address, "driver": driver})
    return devices


def main() -> int:
    """Say everything; the last line is ``{"end": true}``."""
    _say({"key": "bus", "value": _bus()})
    sys.path.append(sys.argv[1])
    try:
        import pynvml
    except Exception as error:
        _say({"failed": "no-pynvml", "code": None, "error": f"{type(error).__name__}: {error}"})
        return 0
    library = _Library(pynvml)
    try:
        library.call("nvmlInit")
    except _Failed as failed:
        _say({"failed": "init", "code": failed.code, "error": failed.error})
        return 0
    value: Any = 0
    for key, name in (
        ("driver", "nvmlSystemGetDriverVersion"),
        ("nvml", "nvmlSystemGetNVMLVersion"),
        ("cuda", "nvmlSystemGetCudaDriverVersion_v2"),
        ("count", "nvmlDeviceGetCount"),
    ):
        try:
            value = _plain(library.call(name))
            if key == "count" and not 0 <= value <= _MOST_GPUS:
                raise _Failed(None, f"no plausible value: {value}", name)
            _say({"key": key, "value": f"{value // 1000}.{value % 1000 // 10}" if key == "cuda" else value})
            library.driver = str(value) if key == "driver" else library.driver
        except _Failed as failed:
            _say({"key": key, "code": failed.code, "error": failed.error, "call": failed.call})
            value = 0
    for index in range(value):
        _Gpu(library, index).read()
    library.gpu = None
    with contextlib.suppress(_Failed):
        library.call("nvmlShutdown")
    _say({"end": True})
    return 0


if __name__ == "__main__":
    sys.exit(main())
