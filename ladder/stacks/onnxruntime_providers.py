"""ONNX Runtime's execution providers: what each is told for a rung, what it leaves behind, why one is not there.

Nothing here makes a session. A provider's options go to it as text, and what it took is read back from the session.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.errors import StepError
from ladder.files import sha256
from ladder.stacks import checks
from ladder.stacks.base import Rung

# Variables with which ONNX Runtime's providers and MIGraphX override what they are told, by their beginning.
_OVERRIDES = ("ORT_MIGRAPHX_", "ORT_TENSORRT_", "MIGRAPHX_")
_TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
_CHUNK = 2**20  # bytes


@dataclass(frozen=True)
class Provider:
    """One execution provider."""

    name: str
    library: str | None = None  # the file beside ONNX Runtime that has it; None: ONNX Runtime itself
    needs: str = ""  # what of the host, for a message
    kernels: tuple[str, ...] = ()  # beginnings of the names of the libraries whose code it runs
    options: tuple[str, ...] = ()  # of a rung, beside ONNX Runtime's own
    launches: tuple[str, ...] = ("eager",)
    compiles: bool = False  # makes one kernel of many nodes, for some shapes, and says nothing of what is in it
    static_only: bool = False  # compiles for one shape at a time, and again in a run that brings another
    allocates: bool = True  # its builds allocate in its memory from Python; others copy inputs there at binding

    @property
    def memory(self) -> str:
        """What ONNX Runtime's Python calls its memory: ``cuda`` is any GPU."""
        return "cuda" if self.library else "cpu"


CPU = Provider("CPUExecutionProvider")
CUDA = Provider(
    "CUDAExecutionProvider",
    "libonnxruntime_providers_cuda.so",
    needs="a driver, CUDA and cuDNN of the versions that this ONNX Runtime was built with (envs/cuda.txt has both)",
    kernels=("libcublas.", "libcudnn."),
    launches=("eager", "graph"),
)
TENSORRT = Provider(
    "TensorrtExecutionProvider",
    "libonnxruntime_providers_tensorrt.so",
    needs="what the CUDA provider needs and the TensorRT that this ONNX Runtime was built with (docs/nvidia.md)",
    kernels=("libnvinfer.",),
    options=("builder_level", "workspace_mb"),
    launches=("eager", "graph"),
    compiles=True,
)
MIGRAPHX = Provider(
    "MIGraphXExecutionProvider",
    "libonnxruntime_providers_migraphx.so",
    needs="the ROCm that it was built with, MIGraphX included, where the loader finds it (docs/amd.md)",
    kernels=("libmigraphx.", "libamdhip64."),
    options=("exhaustive_tune",),
    compiles=True,
    static_only=True,
    allocates=False,
)
ROCM = Provider(
    "ROCMExecutionProvider",
    "libonnxruntime_providers_rocm.so",
    needs="the ROCm that it was built with, MIOpen and hipBLAS included, where the loader finds it (docs/amd.md)",
    kernels=("libMIOpen.", "librocblas.", "libamdhip64."),
    allocates=False,
)
PROVIDERS = {each.name: each for each in (CPU, CUDA, TENSORRT, MIGRAPHX, ROCM)}


@dataclass(frozen=True)
class Cache:
    """The folder in which a provider that compiles keeps what it compiled."""

    folder: Path
    profile: Mapping[str, str]  # TensorRT's options of shapes, which hold for every batch

    def files(self) -> dict[str, str]:
        """sha256 by path of every file in the folder."""
        return {str(p.relative_to(self.folder)): sha256(p) for p in sorted(self.folder.rglob("*")) if p.is_file()}


def options_of(provider: Provider, rung: Rung, cache: Cache | None) -> dict[str, str]:
    """What the provider is told for a rung. Raises StepError for a precision or an option it cannot have."""
    if rung.precision.startswith("tf32") and (provider not in (CUDA, TENSORRT) or rung.precision != "tf32"):
        # neither provider tells convolutions from the rest
        raise StepError(f"ONNX Runtime's {provider.name} has no precision {rung.precision}", permanent=True)
    given = {"device_id": "0"} if provider.library else {}  # the only GPU that is visible to a run
    if provider is CUDA:
        given |= {"use_tf32": _flag(rung.precision == "tf32"), "enable_cuda_graph": _flag(rung.launch == "graph")}
    elif provider is TENSORRT:
        given |= _tensorrt_options(rung, cache)
    elif provider is MIGRAPHX:
        # FP16 and BF16 are MIGraphX's own lowering of the FP32 or Q/DQ file; INT8 is what stands in the Q/DQ file
        given |= {
            "migraphx_fp16_enable": _flag(rung.precision in ("fp16", "int8-fp16")),
            "migraphx_bf16_enable": _flag(rung.precision == "bf16"),
            "migraphx_int8_enable": "0",
            "migraphx_exhaustive_tune": _flag(checks.check_flag(rung, "exhaustive_tune")),
        }
        if cache:
            given["migraphx_model_cache_dir"] = str(cache.folder)
    return given


def _tensorrt_options(rung: Rung, cache: Cache | None) -> dict[str, str]:
    """Without a flag of a precision the network is strongly typed: the types in the ONNX file decide.

    Source: onnxruntime, pull request 18707.
    """
    given = {
        "trt_fp16_enable": "0",
        "trt_int8_enable": "0",
        "trt_cuda_graph_enable": _flag(rung.launch == "graph"),
    }
    if (level := _whole_number(rung, "builder_level")) is not None:
        given["trt_builder_optimization_level"] = str(level)
    if (megabytes := _whole_number(rung, "workspace_mb")) is not None:
        given["trt_max_workspace_size"] = str(megabytes * 10**6)
    if cache:
        given |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(cache.folder),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(cache.folder),
            **cache.profile,
        }
    return given


def tensorrt_profile(shapes: Mapping[str, Mapping[str, tuple[int, ...]]]) -> dict[str, str]:
    """TensorRT's options for the shape of each input by name at the profile's ends ``min``, ``opt`` and ``max``."""
    return {
        f"trt_profile_{end}_shapes": ",".join(f"{name}:{'x'.join(map(str, at[end]))}" for name, at in shapes.items())
        for end in ("min", "opt", "max")
    }


def refuse_overrides() -> None:
    """Raises StepError where a variable is set that a provider would believe more than its options."""
    if found := sorted(name for name in os.environ if name.startswith(_OVERRIDES)):
        raise StepError(f"{', '.join(found)} would override the rung's options; unset it")


def refuse_unknown(provider: Provider, folder: Path, given: Mapping[str, str], version: str) -> None:
    """Raises StepError for options that the installed provider does not know, before there is a session.

    ONNX Runtime lists no options, so they are looked for in the provider's library in ``folder``: their first 16
    letters, since compilers split a longer text. Those that every release has (``device_id``, CUDA's) are not.
    """
    names = [name for name in given if name.startswith(("migraphx_", "trt_"))]
    if not names or not provider.library:
        return
    lacking = set(names)
    with open(folder / provider.library, "rb") as stream:
        before = b""
        while lacking and (chunk := stream.read(_CHUNK)):
            lacking = {name for name in lacking if name[:16].encode() not in before + chunk}
            before = chunk[-16:]
    if lacking:
        raise StepError(
            f"{provider.name} of this ONNX Runtime ({version}) does not know {', '.join(sorted(lacking))}; "
            "use another version of it",
            permanent=True,
        )


def refuse_untaken(provider: Provider, given: Mapping[str, str], taken: Mapping[str, str]) -> None:
    """Raises StepError where an option read back from a session is not what was given."""
    for name, value in given.items():
        if (found := taken.get(name)) is None or _plain(found) != _plain(value):
            raise StepError(f"asked {provider.name} for {name}={value}, but it has {found}")


def preload(provider: Provider, onnxruntime: Any) -> None:
    """Have the libraries from NVIDIA's packages found, which the loader does not look for in site-packages."""
    if provider in (CUDA, TENSORRT) and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls(directory="")
    if provider is TENSORRT:
        with contextlib.suppress(ImportError):
            importlib.import_module("tensorrt")  # loads the libraries of its own package


def loading_fault(provider: Provider, folder: Path) -> str | None:
    """The loader's own words on why a provider's library cannot be loaded; None where it can."""
    if not provider.library:
        return None
    try:
        ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / provider.library))
    except OSError as error:
        return str(error)
    return None


def pack(cache: Cache, destination: Path) -> None:
    """Write what a provider compiled as one file: a zip, uncompressed, with ``profile.json`` beside the cache."""
    with zipfile.ZipFile(destination, "w") as archive:
        archive.writestr("profile.json", json.dumps(cache.profile))
        for name in cache.files():
            archive.write(cache.folder / name, f"cache/{name}")


def unpack(payload: Path | None, folder: Path) -> Cache:
    """What ``pack`` wrote, in ``folder``. Raises StepError for anything else."""
    if payload is None:
        raise StepError("this provider runs what was compiled at the build, and nothing was given")
    try:
        with zipfile.ZipFile(payload) as archive:
            profile = json.loads(archive.read("profile.json"))
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith("cache/")])
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise StepError(f"{payload} is not a whole engine file ({checks.reason(error)}): delete its folder") from error
    (folder / "cache").mkdir(exist_ok=True)
    return Cache(folder / "cache", profile)


@contextlib.contextmanager
def without_tf32(provider: Provider, rung: Rung) -> Iterator[None]:
    """TensorRT's provider has no option for TF32, which is on by default: only NVIDIA's variable turns it off."""
    checks.refuse_tf32_override()
    if provider is not TENSORRT or rung.precision == "tf32":
        yield
        return
    os.environ[_TF32_OVERRIDE] = "0"
    try:
        yield
    finally:
        del os.environ[_TF32_OVERRIDE]


def _flag(on: bool | None) -> str:
    return "1" if on else "0"


def _plain(value: str) -> str:
    """A value as it is given: some releases spell flags out and put paths in quotes."""
    return {"true": "1", "false": "0"}.get(value.lower(), value.strip('"'))


def _whole_number(rung: Rung, option: str) -> int | None:
    value = rung.options.get(option)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise StepError(f"option {option} must be a whole number, not {value!r}", permanent=True)
    return value
