"""NVIDIA GPUs through NVML. What the driver, the GPU or the package's version does not tell is None, never 0.

Meanings and units: NVIDIA's NVML API reference. The package is nvidia-ml-py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ladder.errors import StepError
from ladder.telemetry.base import Process, Question

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_CLOCK_REASONS = {  # bits of nvmlDeviceGetCurrentClocksEventReasons
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
_UNKNOWN_STATE = 32  # NVML_PSTATE_UNKNOWN


class Gpu:
    """The GPU, or the MIG instance, that CUDA calls its first, or the one of this number or UUID.

    CUDA_VISIBLE_DEVICES is honoured; a number in it counts as nvidia-smi does, which is also CUDA's order where
    CUDA_DEVICE_ORDER is PCI_BUS_ID. Raises StepError where that GPU cannot be read from here.
    """

    def __init__(self, name: str | None = None):
        self._nvml = _library()
        self._handle = self._named(name) if name else self._first_visible()
        self.uuid = _text(self._nvml.nvmlDeviceGetUUID(self._handle))
        self.questions: Mapping[str, Question] = {
            "energy": lambda: {"energy_j": _scaled(self._told("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)},
            "clock reasons": lambda: {"clock_reasons": self._clock_reasons()},
            "processes": lambda: {"processes": self._processes()},
            "temperature": lambda: {
                "temperature_c": self._told("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
            },
            "power": lambda: {"power_w": _scaled(self._told("nvmlDeviceGetPowerUsage"), 1e-3)},
            "sm clock": lambda: {"sm_clock_mhz": self._told("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)},
            "memory clock": lambda: {
                "memory_clock_mhz": self._told("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM)
            },
            "memory": lambda: {"memory_used_mb": self._memory_used_mb()},
            "utilisation": self._utilisation,
            "performance state": lambda: {"performance_state": self._performance_state()},
        }

    def visible(self) -> dict[str, str]:
        return {_VISIBLE: self.uuid}

    def identity(self) -> dict[str, str]:
        asked = "nvmlDeviceGetCudaComputeCapability"
        capability = self._told(asked) or self._whole(asked)
        told = {
            "name": _text(self._told("nvmlDeviceGetName")),
            "compute_capability": capability and ".".join(map(str, capability)),
            "driver": _text(self._call("nvmlSystemGetDriverVersion")),
        }
        return {name: value for name, value in told.items() if value is not None}

    def state(self) -> dict[str, Any]:
        graphics, memory = self._nvml.NVML_CLOCK_GRAPHICS, self._nvml.NVML_CLOCK_MEM
        limit_mw = self._whole("nvmlDeviceGetEnforcedPowerLimit") or self._whole("nvmlDeviceGetPowerManagementLimit")
        return {
            "index": self._whole("nvmlDeviceGetIndex"),
            "persistence": _switch(self._whole("nvmlDeviceGetPersistenceMode")),
            "power_limit_w": _scaled(limit_mw, 1e-3),
            "application_clock_mhz": self._whole("nvmlDeviceGetApplicationsClock", graphics),
            "application_memory_clock_mhz": self._whole("nvmlDeviceGetApplicationsClock", memory),
            "ecc": _switch(_first(self._whole("nvmlDeviceGetEccMode"))),
            "mig": _switch(_first(self._whole("nvmlDeviceGetMigMode"))),
            "numa_node": self._numa_node(),
        }

    def _call(self, name: str, *arguments: Any) -> Any:
        """What NVML answers; None where this driver, GPU or package has no such call."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except (self._nvml.NVMLError, getattr(self._nvml, "NVMLLibraryMismatchError", self._nvml.NVMLError)):
            return None

    def _told(self, name: str, *arguments: Any) -> Any:
        return self._call(name, self._handle, *arguments)

    @cached_property
    def _whole_handle(self) -> Any:
        whole = self._told("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        return self._handle if whole is None else whole

    def _whole(self, name: str, *arguments: Any) -> Any:
        """The same of the whole GPU, where this is a MIG instance of it."""
        return self._call(name, self._whole_handle, *arguments)

    def _utilisation(self) -> dict[str, Any]:
        used = self._told("nvmlDeviceGetUtilizationRates")
        return {"gpu_pct": used and used.gpu, "memory_pct": used and used.memory}

    def _performance_state(self) -> str | None:
        state = self._told("nvmlDeviceGetPerformanceState")
        return None if state in (None, _UNKNOWN_STATE) else f"P{state}"

    def _memory_used_mb(self) -> float | None:
        """As nvidia-smi has it, without what the driver keeps for itself; an old driver counts that in."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        memory = self._told("nvmlDeviceGetMemoryInfo", version) if version is not None else None
        memory = memory or self._told("nvmlDeviceGetMemoryInfo")
        return memory and memory.used / 1e6

    def _clock_reasons(self) -> list[str] | None:
        bits = self._told("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # its name before driver 535
            bits = self._told("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None:
            return None
        set_bits = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
        return [_CLOCK_REASONS.get(bit, f"reason {bit:#x}") for bit in set_bits]

    def _processes(self) -> list[Process] | None:
        for version in ("_v3", "_v2", ""):
            found = self._told(f"nvmlDeviceGetComputeRunningProcesses{version}")
            if found is not None:
                return [Process(each.pid, _scaled(each.usedGpuMemory, 1e-6)) for each in found]
        return None

    def _numa_node(self) -> int | None:
        """Where the GPU is attached; None too where the kernel says -1, not knowing. Source: sysfs-bus-pci."""
        info = self._whole("nvmlDeviceGetPciInfo")
        if info is None:
            return None
        domain, _, place = (_text(info.busId) or "").lower().partition(":")
        try:
            node = int((_PCI_DEVICES / f"{domain[-4:]}:{place}" / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def _handles(self) -> Iterator[Any]:
        for index in range(self._call("nvmlDeviceGetCount") or 0):
            if (handle := self._call("nvmlDeviceGetHandleByIndex", index)) is not None:
                yield handle

    def _first_visible(self) -> Any:
        given = os.environ.get(_VISIBLE)
        handle = self._find("0" if given is None else given.split(",")[0].strip())
        if handle is None:
            why = "no NVIDIA GPU is visible" if given is None else f"{_VISIBLE}='{given}' names no GPU first"
            raise StepError(f"{why} on this host; nvidia-smi -L lists what there is")
        return handle

    def _first_instance(self, handle: Any) -> Any:
        """The first MIG instance of a GPU that is split, which is all that CUDA gives a process of it."""
        if not _first(self._call("nvmlDeviceGetMigMode", handle)):
            return None
        instances = range(self._call("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
        found = (self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in instances)
        return next((instance for instance in found if instance is not None), None)

    def _named(self, name: str) -> Any:
        handle = self._find(name)
        if handle is None:
            raise StepError(f"no NVIDIA GPU of this host has the number or UUID '{name}'; nvidia-smi -L lists them")
        return handle

    def _find(self, name: str) -> Any:
        """By its number, its UUID or, as CUDA allows, the beginning of that; None where there is none."""
        if name.startswith("MIG-"):
            return self._call("nvmlDeviceGetHandleByUUID", name)
        if name.isdigit():
            handle = self._call("nvmlDeviceGetHandleByIndex", int(name))
        else:
            told = ((handle, _text(self._call("nvmlDeviceGetUUID", handle))) for handle in self._handles())
            handle = next((handle for handle, found in told if name and found and found.startswith(name)), None)
        instance = None if handle is None else self._first_instance(handle)
        return handle if instance is None else instance


def _library() -> Any:
    try:
        import pynvml
    except ImportError:
        raise StepError(f"nvidia-ml-py, which reads NVIDIA GPUs, is not installed in {sys.executable}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise StepError(f"no NVIDIA driver answers on this host ({error}); nvidia-smi should list the GPU") from None
    return pynvml


def _text(value: Any) -> Any:
    """Older packages give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _switch(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _first(pair: Any) -> Any:
    """Of what is so now and what will be after a restart."""
    return None if pair is None else pair[0]
