"""A made-up NVML: two GPUs whose readings are known. Tests change its tables, a subprocess is told by FAKE_NVML (JSON).

An energy counter runs with the clock at ``watts``, in steps of ``step_s``. Processes that were started by
``scripts/run.py`` with the same FAKE_NVML count as being on the GPU. For the first ``rest_s`` its clock is down.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

NVML_TEMPERATURE_GPU = NVML_CLOCK_GRAPHICS = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_ERROR_NOT_SUPPORTED = 3
nvmlMemory_v2 = 0x02000028

TOLD = {
    "driver": True,
    "unsupported": [],
    "watts": 100.0,
    "step_s": 0.1,
    "reasons": 0x1,
    "processes": [],
    "rest_s": 0.0,
}
TOLD |= json.loads(os.environ.get("FAKE_NVML", "{}"))
BEGAN = time.monotonic()
UUIDS = ["GPU-aaaa1111-0000", "GPU-bbbb2222-0000"]
INSTANCE = "MIG-cccc3333-0000"  # of the first GPU, where TOLD has "mig"


class NVMLError(Exception):
    pass


class NVMLLibraryMismatchError(Exception):
    pass


def _call(name, answer):
    def function(*arguments):
        if name in TOLD["unsupported"]:
            raise NVMLError("Not Supported")
        return answer(*arguments)

    globals()[name] = function


def nvmlInit():
    if not TOLD["driver"]:
        raise NVMLError("Driver Not Loaded")


def _handle(index):
    if index >= len(UUIDS):
        raise NVMLError("Invalid Argument")
    return index


def _by_uuid(uuid):
    if uuid != INSTANCE or not TOLD.get("mig"):
        raise NVMLError("Not Found")
    return INSTANCE


def _instance(handle, index):
    if index:
        raise NVMLError("Not Found")
    return INSTANCE


def _whole(handle):
    if handle != INSTANCE:
        raise NVMLError("Invalid Argument")
    return 0


def _of_a_gpu(value):
    """A reading that a MIG instance does not have."""

    def answer(handle, *_):
        if handle == INSTANCE:
            raise NVMLError("Not Supported")
        return value() if callable(value) else value

    return answer


def _energy_mj():
    return int(time.monotonic() / TOLD["step_s"]) * int(TOLD["step_s"] * TOLD["watts"] * 1000)


def _relatives():
    """Children of this process and of its parent: quick to find, as a driver's answer is."""
    for pid in (os.getpid(), os.getppid()):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield Path("/proc", child)


def _processes(handle):
    found = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in TOLD["processes"]]
    marker = f"FAKE_NVML={os.environ.get('FAKE_NVML')}".encode()
    for process in _relatives() if "FAKE_NVML" in os.environ else ():
        try:
            if b"scripts/run.py" in (process / "cmdline").read_bytes() and marker in (process / "environ").read_bytes():
                found.append(SimpleNamespace(pid=int(process.name), usedGpuMemory=512_000_000))
        except OSError:
            continue
    return found


def _sm_mhz():
    return 345 if time.monotonic() < BEGAN + TOLD["rest_s"] else 1755


for _name, _answer in {
    "nvmlDeviceGetCount": lambda: len(UUIDS),
    "nvmlDeviceGetHandleByIndex": _handle,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceGetUUID": lambda handle: handle if handle == INSTANCE else UUIDS[handle],
    "nvmlDeviceGetName": lambda handle: TOLD.get("name", f"NVIDIA Fake {handle}"),
    "nvmlDeviceGetCudaComputeCapability": _of_a_gpu((9, 0)),
    "nvmlSystemGetDriverVersion": lambda: "599.01",
    "nvmlDeviceGetIndex": _of_a_gpu(0),
    "nvmlDeviceGetPersistenceMode": _of_a_gpu(1),
    "nvmlDeviceGetEnforcedPowerLimit": _of_a_gpu(700_000),
    "nvmlDeviceGetPowerManagementLimit": _of_a_gpu(650_000),
    "nvmlDeviceGetApplicationsClock": lambda handle, kind: {NVML_CLOCK_GRAPHICS: 1980, NVML_CLOCK_MEM: 3201}[kind],
    "nvmlDeviceGetEccMode": _of_a_gpu([1, 0]),
    "nvmlDeviceGetMigMode": _of_a_gpu(lambda: [int(TOLD.get("mig", False)), 0]),
    "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 2,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _whole,
    "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=b"00000000:1B:00.0"),
    "nvmlDeviceGetTemperature": _of_a_gpu(41),
    "nvmlDeviceGetPowerUsage": _of_a_gpu(lambda: TOLD["watts"] * 1000),
    "nvmlDeviceGetUtilizationRates": _of_a_gpu(SimpleNamespace(gpu=97, memory=23)),
    "nvmlDeviceGetMemoryInfo": lambda handle, version=None: SimpleNamespace(
        used=2_000_000_000 if version else 2_500_000_000
    ),
    "nvmlDeviceGetClockInfo": lambda handle, kind: _sm_mhz() if kind == NVML_CLOCK_SM else 3201,
    "nvmlDeviceGetPerformanceState": _of_a_gpu(lambda: TOLD.get("state", 0)),
    "nvmlDeviceGetCurrentClocksEventReasons": _of_a_gpu(lambda: TOLD["reasons"]),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _of_a_gpu(0x4),
    "nvmlDeviceGetTotalEnergyConsumption": _of_a_gpu(_energy_mj),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetComputeRunningProcesses_v2": lambda handle: [SimpleNamespace(pid=2, usedGpuMemory=None)],
    "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=1, usedGpuMemory=None)],
}.items():
    _call(_name, _answer)
