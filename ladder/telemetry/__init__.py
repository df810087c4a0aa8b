"""What a device says of itself while a run goes on: temperature, power, clocks, memory, who uses it.

``base`` is the interface, one module a vendor's library implements it, ``sampler`` is the process that asks beside a
run, ``summary`` turns its samples into columns.
"""

from __future__ import annotations

from ladder.errors import StepError
from ladder.telemetry.base import Reader


def open_reader(device: str, name: str | None = None) -> Reader:
    """The device of this kind (cuda, rocm) that a process here would run on, or the one of this number or UUID.

    Numbers count all devices of the host: NVIDIA's as nvidia-smi does, AMD's as HIP does (HIP_ID of amd-smi list -e).
    Raises StepError where it cannot be read from here.
    """
    if device == "cuda":
        from ladder.telemetry import nvml

        return nvml.Gpu(name)
    if device == "rocm":
        from ladder.telemetry import amd, rocm_smi

        try:
            return amd.Gpu(name)
        except amd.NotImported:
            if not rocm_smi.program():
                raise
            return rocm_smi.Gpu(name)
    raise StepError(f"device '{device}' has no reader on this host yet")
