"""What the harness adds to a TensorRT engine's latency: its loop against a bare one, same engine, same process.

    python docs/measurements/bare_loop.py artifacts/h200/yolo11n/tensorrt-weak-fp32 \\
        --inputs artifacts/yolo11n/inputs.npz

The bare loop is execute_async_v3 and a stream synchronisation between two readings of the clock, on one input that
never changes. Blocks of both alternate, so that drift cancels. Exits with 1 where the medians differ by more than 1 %
and 10 µs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ladder import measure, stacks  # noqa: E402
from ladder.files import read_json  # noqa: E402
from ladder.run import distinct_batches  # noqa: E402
from ladder.stacks.base import Rung, Source  # noqa: E402

BLOCKS, ITERATIONS = 20, 200
ALLOWED_PCT, ALLOWED_US = 1.0, 10.0
SETTINGS = {
    "warmup": 10,
    "repeats": 1,
    "iterations": ITERATIONS,
    "min_iterations": 1,
    "max_seconds": 60,
    "device_launches": 1,
    "throughput_iterations": 1,
    "throughput_seconds": 0,
    "queue": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of an engine: engine and id.json")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--inputs", type=Path, required=True, help="the model's inputs.npz")
    arguments = parser.parse_args()
    identity = read_json(arguments.folder / "id.json")
    rung = Rung(**{"name": "bare loop", **identity["rung"], "launch": "eager"})
    source = Source({}, None, None, identity["profile"], identity["axes"])
    stack = stacks.load(identity["stack"]["module"], identity["stack"]["arguments"])
    session = stack.open(source, arguments.folder / "engine", rung, arguments.batch)
    batches = distinct_batches(arguments.inputs, arguments.batch)
    session.bind(batches[0])
    pairs = [(harness_us(session, batches, arguments.batch), bare_us(session)) for _ in range(BLOCKS)]
    harness, bare = (statistics.median(each) for each in zip(*pairs, strict=True))
    differences = sorted(first - second for first, second in pairs)
    difference = statistics.median(differences)
    print(f"{arguments.folder.name}, batch {arguments.batch}: harness {harness:.1f} µs, bare loop {bare:.1f} µs")
    print(f"difference {difference:+.1f} µs ({100 * difference / bare:+.2f} %), ", end="")
    print(f"in blocks of {ITERATIONS} {differences[0]:+.1f} to {differences[-1]:+.1f} µs")
    sys.exit(abs(difference) > ALLOWED_US and abs(difference) > bare * ALLOWED_PCT / 100)


def harness_us(session, batches, batch: int) -> float:
    """Median latency of one block by the harness's own loop, µs."""
    measured = measure.measure(session, batches, batch, "excluded", SETTINGS)
    return statistics.median(measured.latencies_ns[0]) / 1e3


def bare_us(session) -> float:
    """Median latency of one block of bare launches, µs."""
    from cuda.bindings import driver

    context, stream, handle = session._context, session._stream.address, session._stream.handle
    latencies = []
    for _ in range(10 + ITERATIONS):
        start = time.perf_counter_ns()
        context.execute_async_v3(stream)
        driver.cuStreamSynchronize(handle)
        latencies.append(time.perf_counter_ns() - start)
    return statistics.median(latencies[10:]) / 1e3


if __name__ == "__main__":
    main()
