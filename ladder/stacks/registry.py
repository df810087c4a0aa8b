"""The stacks that come with the project, as data: planning never imports a runtime.

An entry in the configuration's ``stacks`` section has the same fields and replaces or adds to these.
"""

from __future__ import annotations

from typing import Any

_ONNX_PRECISIONS = ["fp32", "fp16", "bf16", "int8", "int8-fp16"]
_TORCH_PRECISIONS = {
    "cpu": ["fp32", "bf16"],
    "cuda": ["fp32", "tf32", "tf32-conv", "fp16", "bf16"],
    "rocm": ["fp32", "fp16", "bf16"],  # PyTorch has no TF32 there
}


def _torch(device: str, environment: str, compiler: str = "none") -> dict[str, Any]:
    return {
        "module": "ladder.stacks.pytorch",
        "arguments": {"device": device, "compiler": compiler},
        "environment": environment,
        "device": device,
        "api": "pytorch",
        "compiler": compiler,
        "source": "module",
        "precisions": _TORCH_PRECISIONS[device],
        "launches": ["eager"] if device == "cpu" or compiler != "none" else ["eager", "graph"],
        "packages": ["torch", "torchvision", "ultralytics", "transformers"],
    }


def _onnxruntime(
    device: str,
    environment: str,
    provider: str,
    compiler: str,
    package: str,
    precisions: list[str],
    launches: tuple[str, ...] = ("eager",),
    source: str = "onnx",
) -> dict[str, Any]:
    return {
        "module": "ladder.stacks.onnxruntime",
        "arguments": {"provider": provider},
        "environment": environment,
        "device": device,
        "api": "onnxruntime",
        "compiler": compiler,
        "source": source,
        "precisions": precisions,
        "launches": list(launches),
        "packages": [package],
    }


def _raw(
    device: str,
    environment: str,
    module: str,
    compiler: str,
    package: str,
    precisions: list[str],
    launches: tuple[str, ...] = ("eager",),
) -> dict[str, Any]:
    return {
        "module": f"ladder.stacks.{module}",
        "arguments": {},
        "environment": environment,
        "device": device,
        "api": compiler,
        "compiler": compiler,
        "source": "onnx",
        "precisions": precisions,
        "launches": list(launches),
        "packages": [package],
    }


def _tensorrt(environment: str, distribution: str, compiler: str = "tensorrt", **arguments: str) -> dict[str, Any]:
    """One of TensorRT's ways to build. What differs in the engine is another compiler, or A/A steps could join them."""
    precisions = ["fp32", "tf32", "fp16", "bf16", "int8", "int8-fp16"]
    entry = _raw("cuda", environment, "tensorrt", compiler, distribution, precisions, ("eager", "graph"))
    weak = arguments.get("typing") == "weak"
    return entry | {"api": "tensorrt", "arguments": arguments, "source": "fp32-onnx" if weak else "onnx"}


BUILT_IN: dict[str, dict[str, Any]] = {
    "pytorch-cpu": _torch("cpu", "main"),
    "pytorch-cuda": _torch("cuda", "cuda"),
    "pytorch-rocm": _torch("rocm", "rocm"),
    "pytorch-inductor-cuda": _torch("cuda", "cuda", "inductor"),
    "onnxruntime-cpu": _onnxruntime(
        "cpu", "main", "CPUExecutionProvider", "onnxruntime", "onnxruntime", _ONNX_PRECISIONS
    ),
    "onnxruntime-cuda": _onnxruntime(
        "cuda",
        "cuda",
        "CUDAExecutionProvider",
        "onnxruntime",
        "onnxruntime-gpu",
        ["tf32", *_ONNX_PRECISIONS],
        ("eager", "graph"),
    ),
    "onnxruntime-tensorrt": _onnxruntime(
        "cuda",
        "cuda",
        "TensorrtExecutionProvider",
        "tensorrt",
        "onnxruntime-gpu",
        ["tf32", *_ONNX_PRECISIONS],
        ("eager", "graph"),
    ),
    # lowers to FP16 and BF16 by the same calls of MIGraphX as the stack migraphx
    "onnxruntime-migraphx": _onnxruntime(
        "rocm",
        "migraphx",
        "MIGraphXExecutionProvider",
        "migraphx",
        "onnxruntime-migraphx",
        _ONNX_PRECISIONS,
        source="fp32-onnx",
    )
    | {"shapes": ["static"]},
    "onnxruntime-rocm": _onnxruntime(
        "rocm", "onnxruntime-rocm", "ROCMExecutionProvider", "onnxruntime", "onnxruntime-rocm", ["fp32", "fp16"]
    ),
    "openvino-cpu": _raw("cpu", "main", "openvino", "openvino", "openvino", ["fp32", "bf16", "int8"]),
    "tensorrt": _tensorrt("cuda", "tensorrt", typing="strong"),
    "tensorrt-weak": _tensorrt("cuda", "tensorrt", "tensorrt-weak", typing="weak"),
    "tensorrt-rtx": _tensorrt("tensorrt-rtx", "tensorrt-rtx-cu13", "tensorrt-rtx", package="tensorrt_rtx"),
    "migraphx": _raw("rocm", "rocm", "migraphx", "migraphx", "migraphx", _ONNX_PRECISIONS)
    | {"arguments": {"target": "gpu"}, "source": "fp32-onnx", "shapes": ["static"]},
}
