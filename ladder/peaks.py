"""The most a device can do: what its datasheet says, and what one rule measures of it.

``tflops`` are 10^12 operations a second of dense arithmetic by precision, two a multiply-accumulate (for int8 integer
operations); ``bandwidth_gb_s`` are 10^9 bytes a second between the device and its memory, read and written together.

The rule: the best rate of a product of two square matrices of random numbers, over sizes that double until one product
takes long, and the best of a copy within the device's memory. Random, since a GPU's power and with it its clock depend
on the data. PyTorch's own timer (torch.utils.benchmark) warms up, waits for the device and repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ladder import fingerprint
from ladder.errors import StepError
from ladder.stacks import checks

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")
SIZES = (512, 1024, 2048, 4096, 8192, 16384)  # rows and columns; three FP32 matrices of the last one take 3.2 GB
LONG_SECONDS = 0.05  # a product that takes so long fills any device; the next size would take eight times as long
PRODUCT_SECONDS, COPY_SECONDS = 0.2, 0.4  # spent on each size and on the copy, at least
# Each buffer is at least four times the last cache (McCalpin, STREAM), up to MI300X's 256 MiB
COPY_BYTES = {"cpu": 2**29, "cuda": 2**30}
NO_PEAK = 0.9  # of FP32's rate: whoever can do less in a lower precision computes it some other way


@dataclass(frozen=True)
class Datasheet:
    """What the vendor says: boost clock, no sparsity, FP32 without reduced precision inside."""

    tflops: dict[str, float]
    bandwidth_gb_s: float
    source: str


def _tensor_cores(
    fp32: float, tf32: float, fp16: float, bf16: float, int8: float, bandwidth_gb_s: float, source: str
) -> Datasheet:
    return Datasheet({"fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16, "int8": int8}, bandwidth_gb_s, source)


def _a100(bandwidth_gb_s: float) -> Datasheet:
    return _tensor_cores(19.5, 156, 312, 312, 624, bandwidth_gb_s, "NVIDIA A100 Tensor Core GPU, datasheet")


_HALVED = "halves of the figures with sparsity"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture, whitepaper V2; FP16 with FP16 accumulation"
_MI250X = "AMD Instinct MI250X, datasheet; half of it, since each of the two dies is a device; FP32 in matrix cores"

# By the name that the driver gives (NVML, HIP)
DATASHEETS: dict[str, Datasheet] = {
    "NVIDIA H200": _tensor_cores(
        67, 494.5, 989.5, 989.5, 1979, 4800, f"NVIDIA H200 Tensor Core GPU, datasheet; {_HALVED}"
    ),
    "NVIDIA H100 80GB HBM3": _tensor_cores(
        67, 494.5, 989.5, 989.5, 1979, 3350, f"NVIDIA H100 Tensor Core GPU (SXM), datasheet; {_HALVED}"
    ),
    "NVIDIA H100 PCIe": _tensor_cores(
        51, 378, 756.5, 756.5, 1513, 2000, f"NVIDIA H100 Tensor Core GPU (PCIe), datasheet; {_HALVED}"
    ),
    "NVIDIA A100-SXM4-40GB": _a100(1555),
    "NVIDIA A100-PCIE-40GB": _a100(1555),
    "NVIDIA A100-SXM4-80GB": _a100(2039),
    "NVIDIA A100 80GB PCIe": _a100(1935),
    "NVIDIA L4": _tensor_cores(30.3, 60, 121, 121, 242.5, 300, f"NVIDIA L4 Tensor Core GPU, datasheet; {_HALVED}"),
    "NVIDIA L40S": _tensor_cores(91.6, 183, 362.05, 362.05, 733, 864, "NVIDIA L40S, datasheet"),
    "NVIDIA GeForce RTX 3080": _tensor_cores(29.8, 29.8, 119, 59.5, 238, 760, f"{_GA102}; the 10 GB model"),
    "NVIDIA GeForce RTX 3090": _tensor_cores(35.6, 35.6, 142, 71, 284, 936, _GA102),
    "NVIDIA GeForce RTX 4090": _tensor_cores(
        82.6, 82.6, 330.3, 165.2, 660.6, 1008, "NVIDIA Ada GPU Architecture, whitepaper; FP16 with FP16 accumulation"
    ),
    "NVIDIA GeForce RTX 5090": _tensor_cores(
        104.8, 104.8, 419, 209.5, 838, 1792, "NVIDIA RTX Blackwell GPU Architecture, whitepaper; FP16 as on RTX 4090"
    ),
    "AMD Instinct MI300X": _tensor_cores(
        163.4, 653.7, 1307.4, 1307.4, 2614.9, 5300, "AMD Instinct MI300X, datasheet; FP32 in matrix cores"
    ),
    "AMD Instinct MI325X": _tensor_cores(
        163.4, 653.7, 1307.4, 1307.4, 2614.9, 6000, "AMD Instinct MI325X, datasheet; FP32 in matrix cores"
    ),
    "AMD Instinct MI250X": Datasheet({"fp32": 47.85, "fp16": 191.5, "bf16": 191.5, "int8": 191.5}, 1600, _MI250X),
}


def datasheet(device: str | None) -> Datasheet | None:
    """The datasheet of a device by the name that its driver gives it; a whole AMD GPU lent to a guest is that GPU."""
    return DATASHEETS.get((device or "").removesuffix(" VF"))


def measure(device: str, threads: int) -> dict[str, Any]:
    """Measure the peaks of a device (cpu, cuda, rocm) with PyTorch; ``threads`` are the CPU's.

    Returns ``device`` (its name), ``torch``, ``threads`` (None on a GPU), ``tflops`` and ``sizes`` (of the best
    product) by precision, ``bandwidth_gb_s``, ``copy_bytes``, and ``missing``: why a precision has no peak. Raises
    StepError where there is no such device, or neither FP32 products nor a copy can be had on it.
    """
    torch = checks.runtime("torch")
    checks.refuse_tf32_override()
    place = "cpu" if device == "cpu" else "cuda"  # ROCm's devices go by the same name
    if place == "cuda" and not torch.cuda.is_available():
        raise StepError(f"PyTorch {torch.__version__} finds no {device} device: check the driver and what is visible")
    tflops: dict[str, float] = {}
    sizes: dict[str, int] = {}
    missing: dict[str, str] = {}
    for precision in PRECISIONS:
        try:
            tflops[precision], sizes[precision] = _best_product(torch, place, precision, threads)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            missing[precision] = checks.reason(error)
    try:
        seconds = _copy_seconds(torch, place, threads)
    except RuntimeError as error:
        raise StepError(f"{place}: a copy of {COPY_BYTES[place]:,} bytes fails: {checks.reason(error)}") from error
    if "fp32" not in tflops:
        raise StepError(f"{place}: an FP32 matrix product fails: {missing['fp32']}")
    for precision in [each for each, rate in tflops.items() if rate < NO_PEAK * tflops["fp32"]]:
        missing[precision] = f"a product reaches {tflops.pop(precision):.3g} TFLOPS, less than one in FP32"
        del sizes[precision]
    return {
        "device": fingerprint.host("cpu")["processor"] if place == "cpu" else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "threads": threads if place == "cpu" else None,
        "tflops": tflops,
        "sizes": sizes,
        "bandwidth_gb_s": 2 * COPY_BYTES[place] / seconds / 1e9,
        "copy_bytes": COPY_BYTES[place],
        "missing": missing,
    }


def _best_product(torch: Any, place: str, precision: str, threads: int) -> tuple[float, int]:
    """The best rate of a product over SIZES, TFLOPS, and its size. Raises RuntimeError where there is none."""
    if precision == "tf32" and not _has_tf32(torch, place):
        raise RuntimeError("this device has no TF32, or PyTorch does not use it there")
    best, found = 0.0, 0
    for _ in _settings(torch, place, precision):
        for size in SIZES:
            try:
                seconds = _product_seconds(torch, place, precision, size, threads)
            except torch.OutOfMemoryError:
                if not found:
                    raise
                break
            if (rate := 2 * size**3 / seconds / 1e12) > best:
                best, found = rate, size
            if seconds >= LONG_SECONDS:
                break
    return best, found


def _settings(torch: Any, place: str, precision: str) -> Iterator[None]:
    """Each way in which a device may compute a product in this precision, as PyTorch's settings."""
    products = torch.backends.cuda.matmul
    products.allow_tf32 = precision == "tf32"
    yield
    if precision == "fp16" and place == "cuda" and hasattr(products, "allow_fp16_accumulation"):
        products.allow_fp16_accumulation = True  # twice as fast on GeForce, where runtimes use it
        yield
        products.allow_fp16_accumulation = False


def _has_tf32(torch: Any, place: str) -> bool:
    return place == "cuda" and not torch.version.hip and torch.cuda.get_device_capability() >= (8, 0)


def _product_seconds(torch: Any, place: str, precision: str, size: int, threads: int) -> float:
    if precision == "int8":
        first, second = (torch.randint(-128, 128, (size, size), dtype=torch.int8, device=place) for _ in range(2))
        return _best_seconds(torch, lambda: torch._int_mm(first, second.t()), PRODUCT_SECONDS, threads)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    first, second = (torch.randn(size, size, device=place).to(dtype) for _ in range(2))
    result = torch.empty_like(first)
    return _best_seconds(torch, lambda: torch.mm(first, second, out=result), PRODUCT_SECONDS, threads)


def _copy_seconds(torch: Any, place: str, threads: int) -> float:
    source = torch.ones(COPY_BYTES[place], dtype=torch.uint8, device=place)  # written to: else it has no memory yet
    target = torch.zeros_like(source)
    return _best_seconds(torch, lambda: target.copy_(source), COPY_SECONDS, threads)


def _best_seconds(torch: Any, call: Any, least: float, threads: int) -> float:
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=threads)
    return float(min(timer.blocked_autorange(min_run_time=least).times))
