"""What a device says of itself while a run goes on: temperature, power, clocks, memory, who uses it.

``base`` is the interface, one module a vendor's library implements it, ``sampler`` is the process that asks beside a
run, ``summary`` turns its samples into columns.
"""

from __future__ import annotations

from ladder.errors import StepError
from ladder.telemetry.base import Reader


def open_reader(device: str, uuid: str | None = None) -> Reader:
    """The device of this kind (cuda) that a process here would run on, or the one with this UUID.

    Raises StepError where it cannot be read from here.
    """
    if device == "cuda":
        from ladder.telemetry import nvml

        return nvml.Gpu(uuid)
    raise StepError(f"device '{device}' has no reader on this host yet")
