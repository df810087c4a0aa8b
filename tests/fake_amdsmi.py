"""A made-up amdsmi: two GPUs whose readings are known, told as its releases 6.0, 6.4 and 7.0 tell them.

Fields, units, exceptions and missing calls are those of the packages of these releases on PyPI. A test changes TOLD; a
process that imports a copy of this file as ``amdsmi`` is told by FAKE_AMDSMI (JSON). An energy counter runs with the
clock at ``watts``.
"""

from __future__ import annotations

import json
import os
import time
from enum import IntEnum

TOLD = {
    "release": "7.0",
    "driver": True,
    "unsupported": [],  # calls that this card does not answer
    "watts": 300.0,
    "active": [],  # violations
    "throttlers": None,  # indep_throttle_status of a card before MI300; None: the card has no such field
    "processes": [],  # pid and bytes of device memory
    "blank": [],  # fields that the card does not fill
}
TOLD |= json.loads(os.environ.get("FAKE_AMDSMI", "{}"))
UUIDS = ["GPU-aaaa111122223333", "GPU-bbbb111122223333"]  # in HIP's order
VIOLATIONS = ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")
STEP_UJ = 15.3


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __str__(self):
        return "Error code:\n\t2 | AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported"


class AmdSmiParameterException(AmdSmiException):
    pass


class AmdSmiTemperatureType(IntEnum):
    EDGE, HOTSPOT = 0, 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiClkType(IntEnum):
    GFX, MEM = 1, 5


class Handle:
    def __init__(self, hip_id: int):
        self.hip_id = hip_id


HANDLES = [Handle(1), Handle(0)]  # not in HIP's order, but of one release that cannot tell it


def _release() -> float:
    return float(TOLD["release"])


def _filled(fields: dict, blank: object = None) -> dict:
    """A table as the release tells it: what the card leaves blank is "N/A" or, in 6.0, all bits set."""
    unfilled = blank if blank is not None else 0xFFFF if _release() < 6.4 else "N/A"
    return {name: unfilled if name in TOLD["blank"] else value for name, value in fields.items()}


def amdsmi_init(flag=None):
    if not TOLD["driver"]:
        raise AmdSmiLibraryException


def amdsmi_get_processor_handles():
    return HANDLES if _release() >= 6.4 else HANDLES[::-1]


def _power(handle):
    fields = {"current_socket_power": int(TOLD["watts"]), "average_socket_power": 0xFFFF, "power_limit": 750}
    if _release() >= 6.4:
        fields["average_socket_power"] = "N/A"
    if _release() >= 7:
        fields["socket_power"] = int(TOLD["watts"])
    return _filled(fields)


def _energy(handle):
    steps = int(time.monotonic() * TOLD["watts"] / STEP_UJ * 1e6)
    return {"power" if _release() < 6.4 else "energy_accumulator": steps, "counter_resolution": STEP_UJ, "timestamp": 1}


def _temperature(handle, sensor, metric):
    if not isinstance(sensor, AmdSmiTemperatureType) or not isinstance(metric, AmdSmiTemperatureMetric):
        raise AmdSmiParameterException
    if sensor != AmdSmiTemperatureType.HOTSPOT:
        raise AmdSmiLibraryException
    return 41_000 if _release() < 6.4 else 41


def _clock(handle, kind):
    if not isinstance(kind, AmdSmiClkType):
        raise AmdSmiParameterException
    name = "cur_clk" if _release() < 6.4 else "clk"
    return _filled({name: {AmdSmiClkType.GFX: 2100, AmdSmiClkType.MEM: 1300}[kind], "max_clk": 2100, "min_clk": 132})


def _activity(handle):
    return _filled({"gfx_activity": 97, "umc_activity": 23, "mm_activity": "N/A"})


def _processes(handle):
    entries = [
        {"name": "python", "pid": pid, "mem": used, "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": used}}
        for pid, used in TOLD["processes"]
    ]
    return [Handle(number) for number in range(len(entries))] if _release() < 6.4 else entries


def _process(handle, process):
    pid, used = TOLD["processes"][process.hip_id]
    return {"name": "python", "pid": pid, "mem": used, "memory_usage": {"vram_mem": used}}


def _violations(handle):
    if TOLD["throttlers"] is not None:
        raise AmdSmiLibraryException
    fields = {f"active_{name}": name in TOLD["active"] for name in VIOLATIONS}
    return _filled(fields | {f"per_{name}": 0 for name in VIOLATIONS} | {"active_low_utilization": [[True]]}, "N/A")


def _metrics(handle):
    bits = TOLD["throttlers"]
    if bits is None:
        bits, throttled = 2**64 - 1, 2**32 - 1
    else:
        throttled = int(bits != 0)
    if _release() < 6.4:
        return {"indep_throttle_status": bits, "throttle_status": throttled}
    told = ("N/A", "N/A") if TOLD["throttlers"] is None else (bool(bits), bool(throttled))
    return dict(zip(("indep_throttle_status", "throttle_status"), told, strict=True))


def _asic(handle):
    serial = UUIDS[handle.hip_id].removeprefix("GPU-")
    fields = {
        "market_name": "AMD Instinct MI300X",
        "asic_serial": serial if _release() < 6.4 else f"0x{serial.upper()}",
    }
    return _filled(fields if _release() < 6.4 else fields | {"target_graphics_version": "gfx942"}, "N/A")


def _enumeration(handle):
    return {"hip_id": handle.hip_id, "hip_uuid": UUIDS[handle.hip_id], "drm_render": 128}


_CALLS = {
    "amdsmi_get_power_info": _power,
    "amdsmi_get_energy_count": _energy,
    "amdsmi_get_temp_metric": _temperature,
    "amdsmi_get_clock_info": _clock,
    "amdsmi_get_gpu_activity": _activity,
    "amdsmi_get_gpu_vram_usage": lambda handle: {"vram_total": 196_592, "vram_used": 2000},
    "amdsmi_get_gpu_process_list": _processes,
    "amdsmi_get_gpu_metrics_info": _metrics,
    "amdsmi_get_power_cap_info": lambda handle: {"power_cap": 750 if _release() < 6.4 else 750_000_000},
    "amdsmi_get_gpu_device_uuid": lambda handle: f"d7ff74a1-0000-1000-80{handle.hip_id}0-000000000000",
    "amdsmi_get_gpu_driver_info": lambda handle: {"driver_name": "amdgpu", "driver_version": "6.16.6"},
    "amdsmi_get_gpu_asic_info": _asic,
    "amdsmi_topo_get_numa_node_number": lambda handle: 1,
    "amdsmi_get_gpu_compute_partition": lambda handle: "SPX",
    "amdsmi_get_gpu_perf_level": lambda handle: "AMDSMI_DEV_PERF_LEVEL_AUTO",
    "amdsmi_get_gpu_ecc_enabled": lambda handle: 0b1001,
    **({"amdsmi_get_gpu_process_info": _process} if _release() < 6.4 else {}),
    **(
        {"amdsmi_get_violation_status": _violations, "amdsmi_get_gpu_enumeration_info": _enumeration}
        if _release() >= 6.4
        else {}
    ),
}


def _call(name, answer):
    def function(handle, *arguments):
        if not isinstance(handle, Handle):
            raise AmdSmiParameterException
        if name in TOLD["unsupported"]:
            raise AmdSmiLibraryException
        return answer(handle, *arguments)

    globals()[name] = function


for _name, _answer in _CALLS.items():
    _call(_name, _answer)
