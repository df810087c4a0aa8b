"""What a runner needs of CUDA, through cuda-python's driver bindings (12.9 or 13) alone: no torch, no compiler.

Everything is done on the primary context of the first visible GPU, which runtimes built on the CUDA runtime use too.
Each call raises StepError with the driver's own words where it fails.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ladder.errors import StepError
from ladder.stacks import checks

# Constants of CUDA's driver API, cuda.h
_NON_BLOCKING = 0x1  # CU_STREAM_NON_BLOCKING: no implicit order with the default stream
_MAPPED = 0x2  # CU_MEMHOSTALLOC_DEVICEMAP
_WAIT_EQUAL = 0x1  # CU_STREAM_WAIT_VALUE_EQ
_WAIT_LIMIT_S = 2.0  # a launch that fills the device's queue blocks the host, which could then not let it go on


class Gpu:
    """The first visible GPU, its primary context current on this thread. Raises StepError where there is none."""

    def __init__(self) -> None:
        driver = checks.runtime("cuda.bindings.driver")
        try:
            (error,) = driver.cuInit(0)
        except RuntimeError as missing:  # the bindings' own, where there is no driver library
            raise StepError(f"no NVIDIA driver answers, so nothing runs here: {checks.reason(missing)}") from missing
        if error:
            raise StepError(f"no NVIDIA GPU can be used here: {_reason(error)}; nvidia-smi should list one")
        self._device = call("cuDeviceGet", 0)
        call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", self._device))
        attribute = driver.CUdevice_attribute
        self.name = call("cuDeviceGetName", 256, self._device).split(b"\0")[0].decode()
        self.compute_capability: tuple[int, int] = (
            call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self._device),
            call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self._device),
        )


class Buffer:
    """An array on the device and its twin in pinned host memory; copies are queued on a stream."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype):
        self._bytes = math.prod(shape) * dtype.itemsize
        self._device = call("cuMemAlloc", max(self._bytes, 1))
        self._host = call("cuMemHostAlloc", max(self._bytes, 1), 0)
        self.address = int(self._device)
        self.host = _view(self._host, shape, dtype)

    def upload(self, stream: Stream, source: int | None = None) -> None:
        """Copy from its own twin, or from another pinned address."""
        host = self._host if source is None else source
        call("cuMemcpyHtoDAsync", self._device, host, self._bytes, stream.handle)

    def download(self, stream: Stream) -> None:
        call("cuMemcpyDtoHAsync", self._host, self._device, self._bytes, stream.handle)

    def close(self) -> None:
        """Free both; ``host`` must not be touched afterwards."""
        call("cuMemFree", self._device)
        call("cuMemFreeHost", self._host)


class Pinned:
    """A copy of an array in pinned host memory, from which the device copies without the host's caches."""

    def __init__(self, array: np.ndarray):
        self._memory = call("cuMemHostAlloc", max(array.nbytes, 1), 0)
        self._row_bytes = array.strides[0]
        _view(self._memory, array.shape, array.dtype)[...] = array
        self.array = array  # what it is a copy of

    def address_of(self, row: int) -> int:
        return int(self._memory) + row * self._row_bytes

    def close(self) -> None:
        call("cuMemFreeHost", self._memory)


class Stream:
    """A stream of its own, with the means to time what is queued on it by the device's clock."""

    def __init__(self) -> None:
        self._driver = checks.runtime("cuda.bindings.driver")
        self.handle = call("cuStreamCreate", _NON_BLOCKING)
        self.address = int(self.handle)
        self._start, self._end = call("cuEventCreate", 0), call("cuEventCreate", 0)
        self._gate_memory = call("cuMemHostAlloc", 4, _MAPPED)
        self._gate = _view(self._gate_memory, (1,), np.dtype(np.uint32))
        self._gate_address = call("cuMemHostGetDevicePointer", self._gate_memory, 0)

    def synchronise(self) -> None:
        (error,) = self._driver.cuStreamSynchronize(self.handle)
        if error:
            raise StepError(f"the GPU failed while running: {_reason(error)}")

    def span_ms(self, launch: Callable[[], None]) -> float:
        """Device time between events around ``launch()``, ms: with every gap in which it waited for the host."""
        self._between_events(launch)
        return self._elapsed_ms()

    def busy_ms(self, launch: Callable[[], None]) -> float | None:
        """The same with all of it queued before the device may begin, ms: nothing waits for the host.

        None where this device cannot be made to wait, or the launch does not fit its queue.
        """
        self.synchronise()
        self._gate[0] = 0
        (error,) = self._driver.cuStreamWaitValue32(self.handle, self._gate_address, 1, _WAIT_EQUAL)
        if error:
            return None
        given_up = threading.Event()

        def open_gate() -> None:
            given_up.set()
            self._gate[0] = 1

        watchdog = threading.Timer(_WAIT_LIMIT_S, open_gate)
        watchdog.daemon = True
        watchdog.start()
        try:
            self._between_events(launch)
            queued_in_time = not given_up.is_set()
        finally:
            watchdog.cancel()
            self._gate[0] = 1
        elapsed = self._elapsed_ms()
        return elapsed if queued_in_time else None

    def close(self) -> None:
        self.synchronise()
        call("cuEventDestroy", self._start)
        call("cuEventDestroy", self._end)
        call("cuMemFreeHost", self._gate_memory)
        call("cuStreamDestroy", self.handle)

    def _between_events(self, launch: Callable[[], None]) -> None:
        call("cuEventRecord", self._start, self.handle)
        launch()
        call("cuEventRecord", self._end, self.handle)

    def _elapsed_ms(self) -> float:
        call("cuEventSynchronize", self._end)
        return call("cuEventElapsedTime", self._start, self._end)


class Graph:
    """Everything that ``launch()`` queues on a stream, captured once and launched as one."""

    def __init__(self, stream: Stream, launch: Callable[[], None]):
        self._driver = checks.runtime("cuda.bindings.driver")
        self._stream = stream.handle
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call("cuStreamBeginCapture", self._stream, mode)
        try:
            launch()
        finally:
            error, graph = self._driver.cuStreamEndCapture(self._stream)
        if error:
            raise StepError(f"the launch cannot be captured as a CUDA graph: {_reason(error)}")
        self._executable = call("cuGraphInstantiate", graph, 0)
        call("cuGraphDestroy", graph)

    def launch(self) -> None:
        (error,) = self._driver.cuGraphLaunch(self._executable, self._stream)
        if error:
            raise StepError(f"the CUDA graph cannot be launched: {_reason(error)}")

    def close(self) -> None:
        call("cuGraphExecDestroy", self._executable)


def call(function: str, *arguments: Any) -> Any:
    """The result of one of the driver's functions. Raises StepError with its name and the driver's reason."""
    error, *results = getattr(checks.runtime("cuda.bindings.driver"), function)(*arguments)
    if error:
        raise StepError(f"CUDA's {function} failed: {_reason(error)}")
    return results[0] if results else None


def _reason(error: Any) -> str:
    _, text = checks.runtime("cuda.bindings.driver").cuGetErrorString(error)
    return f"{text.decode()} ({error.name})" if text else error.name


def _view(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Host memory at an address as an array [shape]; it must outlive the array."""
    memory = (ctypes.c_byte * (math.prod(shape) * dtype.itemsize)).from_address(int(address))
    return np.ndarray(shape, dtype, memoryview(memory))
