"""AMD GPUs through amdsmi. What the driver, the GPU or the library's release does not tell is None, never 0.

Names and units are those of amdsmi 6.0 to 7.x, as its py-interface/amdsmi_interface.py has them; where releases differ
all are understood. The package is the one that ROCm ships, since only that surely fits the driver's library.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from ladder.errors import StepError
from ladder.telemetry.base import Process, Question

_ROCR, _HIP, _CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
_NOT_TOLD = {2**16 - 1, 2**32 - 1, 2**64 - 1}  # what a field holds that the card does not fill
_NO_C, _NO_W = 1_000, 10_000  # no GPU is as hot or draws as much: from there on releases tell m°C and µW
_MIB = 2**20 / 1e6  # what amdsmi calls MB
_VIOLATIONS = {  # of amdsmi_get_violation_status, MI300 on
    "prochot_thrm": "processor hot",
    "ppt_pwr": "package power limit",
    "socket_thrm": "socket temperature",
    "vr_thrm": "voltage regulator temperature",
    "hbm_thrm": "memory temperature",
}
# first bit of each group of indep_throttle_status, before MI300. Source: Linux, amdgpu's SMU_THROTTLER_*_BIT
_THROTTLERS = {0: "power limit", 16: "current limit", 32: "temperature", 56: "other limit"}


class NotImported(StepError):
    """There is no amdsmi package here that works with this host's library."""


def rocm_path() -> Path:
    """Where ROCm is installed, by its own variable."""
    return Path(os.environ.get("ROCM_PATH", "/opt/rocm"))


def rocm_version() -> str | None:
    """The version of the installed ROCm, e.g. ``7.2.4``; None where there is none."""
    try:
        return (rocm_path() / ".info/version").read_text().strip().partition("-")[0] or None
    except OSError:
        return None


def uuid_of(unique_id: Any) -> str | None:
    """A GPU's name as ROCr and HIP have it, from its 64-bit unique id in hexadecimal; None where that is none."""
    try:
        number = int(str(unique_id), 16)
    except ValueError:
        return None
    return f"GPU-{number:016x}" if number and number not in _NOT_TOLD else None


def chosen(uuids: Sequence[str], name: str | None) -> int:
    """The place, in HIP's order, of the GPU so named (its number or UUID); without, the first HIP would give a process.

    ROCr leaves the GPUs that ROCR_VISIBLE_DEVICES names; HIP counts among these, by HIP_VISIBLE_DEVICES or, without
    that, CUDA_VISIBLE_DEVICES. Source: ROCm documentation, GPU isolation techniques. Raises StepError where there is
    none, or another that nothing tells from it.
    """
    place = _chosen(uuids, name)
    if not uuids[place] and len(uuids) > 1:
        raise StepError(f"GPU {place} of {len(uuids)} tells no UUID, so nothing tells them apart: use amd-smi-lib")
    if (parts := uuids.count(uuids[place])) > 1:
        raise StepError(f"{uuids[place]} is split into {parts} partitions that nothing tells apart")
    return place


def _chosen(uuids: Sequence[str], name: str | None) -> int:
    if name:
        place = _place(name, range(len(uuids)), uuids)
        if place is None:
            raise StepError(
                f"no AMD GPU of this host has the number or UUID '{name}'; amd-smi list -e has them as HIP_ID, HIP_UUID"
            )
        return place
    left: Sequence[int] = range(len(uuids))
    given = {name: os.environ[name] for name in (_ROCR, _HIP if _HIP in os.environ else _CUDA) if name in os.environ}
    for names in given.values():
        found = (_place(name.strip(), left, uuids) for name in names.split(","))
        left = [place for place in found if place is not None]
    if not left:
        listed = ", ".join(f"{name}='{value}'" for name, value in given.items())
        why = f"{listed} names no AMD GPU" if given and uuids else "no AMD GPU is visible"
        raise StepError(f"{why} on this host; amd-smi list lists what there is")
    return left[0]


def _place(name: str, left: Sequence[int], uuids: Sequence[str]) -> int | None:
    if name.isdigit():
        return left[int(name)] if int(name) < len(left) else None
    return next((place for place in left if name and uuids[place].lower() == name.lower()), None)


def visible(uuid: str, place: int) -> dict[str, str]:
    """The variables with which a process sees one GPU alone: ROCr leaves it, and to HIP it is the first."""
    return {_ROCR: uuid if uuid.startswith("GPU-") else str(place), _HIP: "0", _CUDA: "0"}


class Gpu:
    """The GPU that HIP calls its first, or the one of this number or UUID.

    Raises StepError where amdsmi cannot be used here, or that GPU cannot be read.
    """

    def __init__(self, name: str | None = None):
        self._amdsmi = _library()
        handles = sorted(self._call("amdsmi_get_processor_handles") or [], key=self._hip_id)
        uuids = [self._uuid(handle) for handle in handles]
        self._place = chosen(uuids, name)
        self.uuid, self._handle = uuids[self._place], handles[self._place]
        sensor, now = self._amdsmi.AmdSmiTemperatureType.HOTSPOT, self._amdsmi.AmdSmiTemperatureMetric.CURRENT
        clocks = self._amdsmi.AmdSmiClkType
        self.questions: Mapping[str, Question] = {
            "energy": lambda: {"energy_j": self._energy_j()},
            "clock reasons": lambda: {"clock_reasons": self._clock_reasons()},
            "processes": lambda: {"processes": self._processes()},
            "temperature": lambda: {"temperature_c": _celsius(self._told("amdsmi_get_temp_metric", sensor, now))},
            "power": lambda: {"power_w": self._power_w()},
            "sm clock": lambda: {"sm_clock_mhz": self._clock_mhz(clocks.GFX)},
            "memory clock": lambda: {"memory_clock_mhz": self._clock_mhz(clocks.MEM)},
            "memory": lambda: {
                "memory_used_mb": _scaled(_number(self._table("amdsmi_get_gpu_vram_usage").get("vram_used")), _MIB)
            },
            "utilisation": self._utilisation,
            "performance state": dict,  # the driver has settings in its place: see state()
        }

    def visible(self) -> dict[str, str]:
        return visible(self.uuid, self._place)

    def identity(self) -> dict[str, str]:
        asic = self._table("amdsmi_get_gpu_asic_info")
        told = {
            "name": _text(asic.get("market_name")),
            "compute_capability": _text(asic.get("target_graphics_version")),
            "driver": _text(self._table("amdsmi_get_gpu_driver_info").get("driver_version")),
            "rocm": rocm_version(),
        }
        return {name: value for name, value in told.items() if value is not None}

    def state(self) -> dict[str, Any]:
        partition = _text(self._told("amdsmi_get_gpu_compute_partition"))
        level = _text(self._told("amdsmi_get_gpu_perf_level"))
        blocks = self._told("amdsmi_get_gpu_ecc_enabled")
        return {
            "index": self._place,
            "persistence": None,  # this driver stays loaded
            "power_limit_w": _watts(_number(self._table("amdsmi_get_power_cap_info").get("power_cap"))),
            "application_clock_mhz": None,
            "application_memory_clock_mhz": None,
            "ecc": None if blocks is None else bool(blocks),
            "mig": partition and partition != "SPX",  # SPX: one device of the whole GPU
            "numa_node": _number(self._told("amdsmi_topo_get_numa_node_number")),
            "performance_level": level and level.removeprefix("AMDSMI_DEV_PERF_LEVEL_").lower(),
            "read_by": "amdsmi",
        }

    def _call(self, name: str, *arguments: Any) -> Any:
        """What amdsmi answers; None where this driver, GPU or release has no such call or answer.

        A ValueError comes from some releases where a card leaves a text blank that they take for a number.
        """
        function = getattr(self._amdsmi, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except (self._amdsmi.AmdSmiException, ValueError):
            return None

    def _told(self, name: str, *arguments: Any) -> Any:
        return self._call(name, self._handle, *arguments)

    def _table(self, name: str, *arguments: Any) -> Mapping[str, Any]:
        return self._told(name, *arguments) or {}

    def _hip_id(self, handle: Any) -> float:
        """HIP's number of a GPU; without it (before amdsmi 6.4) the order stays as it comes, by PCI address."""
        hip_id = _number((self._call("amdsmi_get_gpu_enumeration_info", handle) or {}).get("hip_id"))
        return 0 if hip_id is None else hip_id

    def _uuid(self, handle: Any) -> str:
        told = _text((self._call("amdsmi_get_gpu_enumeration_info", handle) or {}).get("hip_uuid"))
        serial = (self._call("amdsmi_get_gpu_asic_info", handle) or {}).get("asic_serial")
        return told or uuid_of(serial) or _text(self._call("amdsmi_get_gpu_device_uuid", handle)) or ""

    def _energy_j(self) -> float | None:
        counter = self._table("amdsmi_get_energy_count")
        steps = _number(counter.get("energy_accumulator", counter.get("power")))  # its name before 6.1
        step_uj = _number(counter.get("counter_resolution"))
        return steps * step_uj * 1e-6 if steps is not None and step_uj else None

    def _power_w(self) -> float | None:
        """MI300 and later tell the current power, older GPUs an average; 7.x has either under a third name.

        0 W is no reading: the second die of an MI250 has none of its own.
        """
        info = self._table("amdsmi_get_power_info")
        told = (_number(info.get(f"{kind}socket_power")) for kind in ("current_", "average_", ""))
        return _watts(next((value for value in told if value), None))

    def _clock_mhz(self, kind: Any) -> float | None:
        info = self._table("amdsmi_get_clock_info", kind)
        return _number(info.get("clk", info.get("cur_clk")))  # its name before 6.1

    def _utilisation(self) -> dict[str, Any]:
        used = self._table("amdsmi_get_gpu_activity")
        return {"gpu_pct": _number(used.get("gfx_activity")), "memory_pct": _number(used.get("umc_activity"))}

    def _clock_reasons(self) -> list[str] | None:
        """What held the clocks back in the 100 ms for which amdsmi waits; on older GPUs what does so now."""
        status = self._table("amdsmi_get_violation_status")
        active = {reason: _switch(status.get(f"active_{name}")) for name, reason in _VIOLATIONS.items()}
        if any(each is not None for each in active.values()):
            return [reason for reason, each in active.items() if each]
        metrics = self._table("amdsmi_get_gpu_metrics_info")
        bits = metrics.get("indep_throttle_status")
        if isinstance(bits, int) and not isinstance(bits, bool) and bits not in _NOT_TOLD:
            set_bits = [place for place in range(bits.bit_length()) if bits >> place & 1]
            return sorted({_THROTTLERS[max(first for first in _THROTTLERS if first <= place)] for place in set_bits})
        told = [_switch(bits), _switch(metrics.get("throttle_status"))]  # amdsmi 7 keeps only whether there are any
        throttled = next((each for each in told if each is not None), None)
        return None if throttled is None else ["throttled"] if throttled else []

    @cached_property
    def _watchers(self) -> set[int]:
        """This process and those it came from: they have the driver open, and compute nothing."""
        return {os.getpid(), *(each.pid for each in psutil.Process().parents())}

    def _processes(self) -> list[Process] | None:
        listed = self._told("amdsmi_get_gpu_process_list")
        if listed is None:
            return None
        told = [
            each if isinstance(each, Mapping) else self._table("amdsmi_get_gpu_process_info", each) for each in listed
        ]
        return [
            Process(each["pid"], _scaled(_number(each.get("memory_usage", {}).get("vram_mem")) or None, 1e-6))
            for each in told
            if "pid" in each and each["pid"] not in self._watchers
        ]


def _library() -> Any:
    """The amdsmi package, initialised. Raises NotImported, or StepError where no driver answers."""
    shipped, said = str(rocm_path() / "share/amd_smi"), io.StringIO()
    sys.path.insert(0, shipped)
    try:
        with redirect_stdout(said):  # it prints before it raises
            import amdsmi
    except ImportError:
        raise NotImported(
            f"amdsmi, which reads AMD GPUs, is neither in {shipped} nor installed in {sys.executable}; "
            "install ROCm's package amd-smi-lib"
        ) from None
    except (KeyError, OSError) as error:  # what it raises where its library cannot be loaded, by release
        reason = " ".join(said.getvalue().split()) or repr(error)
        raise NotImported(
            f"amdsmi finds no libamd_smi.so; install ROCm's package amd-smi-lib. It says: {reason}"
        ) from None
    except AttributeError as error:
        raise NotImported(
            f"this amdsmi package is of another release than ROCm's libamd_smi.so ({error}); "
            f"uninstall it from {sys.executable}, so that the one in {shipped} is used"
        ) from None
    finally:
        sys.path.remove(shipped)
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        reason = " ".join(str(error).split())
        raise StepError(f"no AMD driver answers on this host ({reason}); amd-smi list should list the GPU") from None
    return amdsmi


def _number(value: Any) -> Any:
    """A reading; None for "N/A", for what a field holds that is not filled, and for what is no number at all."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return None if value in _NOT_TOLD else value


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _celsius(value: Any) -> float | None:
    told = _number(value)
    return told / 1e3 if told is not None and abs(told) >= _NO_C else told


def _watts(value: float | None) -> float | None:
    return value / 1e6 if value is not None and value >= _NO_W else value


def _switch(value: Any) -> bool | None:
    """On or off, as bool or as a number; None for "N/A" and where nothing is told."""
    return value if isinstance(value, bool) else None if _number(value) in (None, 0xFF) else bool(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None
