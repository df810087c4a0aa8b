"""The driver's functions that the TensorRT runner stands on; all but the first test need a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from ladder.errors import StepError
from ladder.stacks import cuda


def gpu() -> cuda.Gpu | None:
    try:
        return cuda.Gpu()
    except StepError:
        return None


FOUND = gpu()
NEEDS_GPU = pytest.mark.skipif(FOUND is None, reason="no NVIDIA driver answers here")


@pytest.mark.skipif(FOUND is not None, reason="there is a GPU")
def test_a_host_without_a_gpu_says_so() -> None:
    with pytest.raises(StepError, match="no NVIDIA (driver|GPU)"):
        cuda.Gpu()


@pytest.mark.gpu
@NEEDS_GPU
def test_an_array_comes_back_from_the_device() -> None:
    assert FOUND and FOUND.name and FOUND.compute_capability >= (5, 0)
    stream, buffer = cuda.Stream(), cuda.Buffer((3, 5), np.dtype(np.float32))
    values = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    buffer.host[...] = values
    buffer.upload(stream)
    stream.synchronise()
    buffer.host[...] = 0
    buffer.download(stream)
    stream.synchronise()
    np.testing.assert_array_equal(buffer.host, values)
    buffer.close()
    stream.close()


@pytest.mark.gpu
@NEEDS_GPU
def test_a_graph_replays_what_was_captured() -> None:
    stream, buffer = cuda.Stream(), cuda.Buffer((4,), np.dtype(np.int64))
    buffer.host[...] = 7
    graph = cuda.Graph(stream, lambda: buffer.upload(stream))
    buffer.host[...] = 8  # read by each launch, not by the capture
    graph.launch()
    stream.synchronise()
    buffer.host[...] = 0
    buffer.download(stream)
    stream.synchronise()
    assert buffer.host.tolist() == [8, 8, 8, 8]
    for each in (graph, buffer, stream):
        each.close()


@pytest.mark.gpu
@NEEDS_GPU
def test_a_busy_device_waits_for_nothing() -> None:
    """A launch with a host that dawdles: its span holds the pause, its busy time does not."""
    import time

    stream, buffer = cuda.Stream(), cuda.Buffer((1 << 20,), np.dtype(np.float32))

    def launch() -> None:
        buffer.upload(stream)
        time.sleep(0.01)
        buffer.upload(stream)

    launch()
    busy_ms = stream.busy_ms(launch)
    assert busy_ms is not None and 0 < busy_ms < 5
    assert stream.span_ms(launch) > 10


@pytest.mark.gpu
@NEEDS_GPU
def test_a_launch_that_waits_for_its_own_end_has_no_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_WAIT_LIMIT_S", 0.2)
    stream = cuda.Stream()
    assert stream.busy_ms(stream.synchronise) is None
    stream.synchronise()


@pytest.mark.gpu
@NEEDS_GPU
def test_memory_that_is_not_there_is_a_failure_with_the_drivers_reason() -> None:
    with pytest.raises(StepError, match="cuMemAlloc failed: out of memory"):
        cuda.Buffer((1 << 45,), np.dtype(np.float32))
