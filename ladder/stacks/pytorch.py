"""PyTorch running the model's own module: eager, as one CUDA graph, or compiled by inductor.

Threads, TF32 and cudnn.benchmark are settings of the whole process, made when a session opens: one rung a process.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.errors import StepError
from ladder.stacks import checks
from ladder.stacks.base import Arrays, Node, Rung, Source

_DTYPES = {"fp32": "float32", "tf32": "float32", "tf32-conv": "float32", "fp16": "float16", "bf16": "bfloat16"}
_PRECISIONS = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_OPTIONS = ("channels_last", "cudnn_benchmark")
_PRODUCT = re.compile(r"linear|matmul|addmm|baddbmm|::b?mm$|attention|einsum")
_WARM_UPS = 3  # runs on a side stream before a capture, as in the documentation of torch.cuda.CUDAGraph
_PROFILED_RUNS = 5  # after one that is not counted
_LABEL = "ladder operator "
_WAITS_MS = (5, 20, 80, 320)  # tried in turn; the host of an eager YOLO11n needs about 4 ms to submit it
_CYCLES_PER_MS = 2_000_000  # of a device at 2 GHz; a slower one waits longer, which is no harm


def create(device: str = "cpu", compiler: str = "none") -> PyTorch:
    return PyTorch(device, compiler)


class PyTorch:
    def __init__(self, device: str, compiler: str):
        self.device, self.compiler = device, compiler

    def build(self, source: Source, rung: Rung, destination: Path) -> dict[str, Any]:
        """Refuse a rung that PyTorch cannot run; there is no engine to write. Raises StepError."""
        self._check(rung)
        return {}

    def open(self, source: Source, payload: Path | None, rung: Rung, batch: int) -> Session:
        session = self._session(source, rung, batch)
        session.prepare()
        return session

    def nodes(self, source: Source, payload: Path | None, rung: Rung, batch: int, inputs: Arrays) -> list[Node]:
        """Every operator that computes; those that only give another view of their input run no kernel.

        Eager and CUDA graph: the operators PyTorch dispatches, each with its widest float output type, its time from
        torch.profiler. Where TF32 is allowed PyTorch does not tell which convolutions and products used it: their
        precision is unknown. Inductor: the kernels it made and the operators it calls, of unknown precision.
        """
        compiled = self.compiler == "inductor"
        session = self._session(source, rung, batch, {"cpp.enable_kernel_profile": True} if compiled else None)
        session.bind(inputs)
        session.run()
        nodes = _compiled_nodes(session) if compiled else _eager_nodes(session)
        session.close()
        return nodes

    def identity(self) -> dict[str, str]:
        torch = checks.runtime("torch")
        build = torch.__config__.show()
        blas, onednn = re.search(r"BLAS_INFO=(\w+)", build), re.search(r"MKL-DNN (.+)", build)
        identity = {
            "torch": torch.__version__,
            "torch_git": torch.version.git_version,
            "blas": blas[1] if blas else "none",
            "mkldnn": onednn[1].strip() if onednn else "none",
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        if self.device == "cuda":
            identity |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
        if self.device == "rocm":
            identity |= {"hip": str(torch.version.hip), "miopen": str(torch.backends.cudnn.version())}
        return identity

    def _session(
        self, source: Source, rung: Rung, batch: int, compile_options: dict[str, Any] | None = None
    ) -> Session:
        self._check(rung)
        checks.check_batch(source, batch)
        _configure(rung)
        device = "cpu" if self.device == "cpu" else "cuda"  # ROCm's devices go by the same name
        try:
            return Session(source, rung, batch, device, self.compiler, compile_options)
        except RuntimeError as error:
            raise StepError(f"PyTorch cannot put the model on {device}: {checks.reason(error)}") from error

    def _check(self, rung: Rung) -> None:
        checks.refuse_tf32_override()
        checks.check_options(rung, _OPTIONS, "PyTorch")
        for option in _OPTIONS:
            checks.check_flag(rung, option)
        if rung.precision not in _DTYPES:
            raise StepError(
                f"PyTorch runs the module as it is and has no precision {rung.precision}, only {', '.join(_DTYPES)}",
                permanent=True,
            )
        if self.compiler not in ("none", "inductor"):
            raise StepError(f"PyTorch has no compiler '{self.compiler}', only none and inductor", permanent=True)
        if self.device == "cpu":
            _check_cpu(rung)
        elif self.device in ("cuda", "rocm"):
            _check_gpu(rung, self.device)
        else:
            raise StepError(f"PyTorch has no device '{self.device}', only cpu, cuda and rocm", permanent=True)


class Session:
    """A module on its device with input buffers there; on a GPU they are filled through pinned host memory."""

    def __init__(
        self,
        source: Source,
        rung: Rung,
        batch: int,
        device: str,
        compiler: str,
        compile_options: dict[str, Any] | None,
    ):
        import torch

        from ladder import models

        self.device = torch.empty(0, device=device).device  # with its index
        self._launch, self._compiler = rung.launch, compiler
        precision = getattr(torch, _DTYPES[rung.precision])
        self._module = models.load(source.model, source.weights).eval().to(self.device, precision)
        layout = torch.channels_last if rung.options.get("channels_last") else torch.contiguous_format
        if layout is torch.channels_last:
            self._module = self._module.to(memory_format=layout)
        self._expected: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._buffers: dict[str, Any] = {}
        self._pinned: dict[str, tuple[np.ndarray, Any]] = {}
        for spec in models.input_specs(source.model, source.weights):
            shape, dtype = (batch, *spec.shape), getattr(torch, spec.dtype)
            self._expected[spec.name] = (shape, np.dtype(spec.dtype))
            held = precision if dtype.is_floating_point else dtype
            buffer = torch.zeros(shape, dtype=held, device=self.device)
            self._buffers[spec.name] = buffer.contiguous(memory_format=layout) if buffer.dim() == 4 else buffer
        self._output_names = models.output_names(source.model, source.weights)
        self._call: Callable[..., Any] = self._module
        self._compiled_shape = ""
        if compiler == "inductor":
            self._call, self._compiled_shape = self._compiled(source, rung, batch, compile_options)
        self._result: Any = None
        self._graph: Any = None

    @property
    def on_gpu(self) -> bool:
        return self.device.type != "cpu"

    def prepare(self) -> None:
        """Compile or capture on zeros. Raises StepError."""
        try:
            if self._compiler == "inductor" or self.on_gpu:
                self.forward()  # what a model makes once and keeps, such as YOLO's anchors, may come from the host
            if self._launch == "graph":
                self._capture()
            self.synchronise()
        except StepError:
            raise
        except Exception as error:
            raise StepError(f"PyTorch cannot run the model: {checks.reason(error)}") from error

    def forward(self) -> Any:
        import torch

        with torch.inference_mode():
            return self._call(*self._buffers.values())

    def bind(self, inputs: Arrays) -> None:
        import torch

        checks.check_inputs(inputs, self._expected)
        for name, array in inputs.items():
            if self.on_gpu:  # a lower precision is converted to on the device
                values = self._pinned_batch(name, array).to(self.device, non_blocking=True)
            else:
                with warnings.catch_warnings(action="ignore"):  # that it may not be written to: it is only read
                    values = torch.from_numpy(np.ascontiguousarray(array))
            self._buffers[name].copy_(values)
        self.synchronise()

    def _pinned_batch(self, name: str, array: np.ndarray) -> Any:
        """A batch in pinned memory: part of the copy of the whole that it is a slice of, or a copy of its own."""
        import torch

        whole, row = checks.whole_of(array)
        if whole is array:
            return torch.from_numpy(np.array(array)).pin_memory()
        if name not in self._pinned or self._pinned[name][0] is not whole:
            self._pinned[name] = (whole, torch.from_numpy(np.array(whole)).pin_memory())
        return self._pinned[name][1][row : row + len(array)]

    def run(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        try:
            self._result = self.forward()
        except Exception as error:
            raise StepError(f"PyTorch failed while running: {checks.reason(error)}") from error

    def synchronise(self) -> None:
        if self.on_gpu:
            import torch

            torch.cuda.synchronize(self.device)

    def device_ms(self, launches: int) -> dict[str, list[float]]:
        """The device's own clock; see ``ladder.stacks.base.Session``. A spinning kernel keeps the device waiting."""
        if not self.on_gpu:
            return {}
        spans = [self._between_events_ms(0) for _ in range(launches)]
        found = {"device_span_ms": [span for span in spans if span is not None]}
        for wait_ms in _WAITS_MS:
            if self._between_events_ms(wait_ms) is not None:
                busy = [ms for _ in range(launches) if (ms := self._between_events_ms(wait_ms)) is not None]
                if 2 * len(busy) > launches:
                    return found | {"device_busy_ms": busy}
        return found

    def _between_events_ms(self, wait_ms: int) -> float | None:
        """One launch between events, behind a device kept waiting; None where it began before the host was done."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if wait_ms:
            torch.cuda._sleep(wait_ms * _CYCLES_PER_MS)
        start.record()
        self.run()
        end.record()
        in_time = not wait_ms or not start.query()
        end.synchronize()
        return start.elapsed_time(end) if in_time else None

    def outputs(self) -> Arrays:
        """As numpy has them; bf16, which it lacks, as float32."""
        import torch

        results = [self._result] if isinstance(self._result, torch.Tensor) else list(self._result)
        if not 0 < len(results) <= len(self._output_names):
            raise StepError(f"the module gave {len(results)} outputs, expected {self._output_names}")
        results = [each.float() if each.dtype == torch.bfloat16 else each for each in results]
        return {name: np.array(each.cpu().numpy()) for name, each in zip(self._output_names, results, strict=False)}

    def facts(self) -> dict[str, Any]:
        import torch

        tensors = [*self._module.parameters(), *self._module.buffers()]
        four = [each for each in tensors if each.dim() == 4 and not each.is_contiguous()]
        precisions = {_precision(each.dtype) for each in tensors if each.is_floating_point()}
        facts: dict[str, Any] = {
            "threads": torch.get_num_threads(),
            "inter_op_threads": torch.get_num_interop_threads(),
            "provider": str(self.device),
            "devices": sorted({str(each.device) for each in (*tensors, *self._buffers.values())}),
            "precision_hint": "+".join(sorted(precisions)),
            "launch": "eager" if self._graph is None else "graph",
            "channels_last": any(each.is_contiguous(memory_format=torch.channels_last) for each in four),
        }
        if self.on_gpu:
            facts["tf32_matmul"] = torch.backends.cuda.matmul.allow_tf32
            facts["tf32_conv"] = torch.backends.cudnn.allow_tf32
            facts["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        if self._compiler == "inductor":
            from torch._dynamo.utils import counters

            facts["compiled_shape"] = self._compiled_shape
            facts["compiled_graphs"] = counters["stats"]["unique_graphs"]
            facts["graph_breaks"] = sum(counters["graph_break"].values())
        return facts

    def memory_mb(self) -> dict[str, float]:
        """Peak of torch's own allocator in MB (10⁶ bytes), which is blind to every other allocation."""
        if not self.on_gpu:
            return {}
        import torch

        return {"allocator_mem_mb": torch.cuda.max_memory_allocated(self.device) / 1e6}

    def close(self) -> None:
        self._graph = self._result = self._module = None
        self._call = lambda *_: None
        self._buffers, self._pinned = {}, {}
        if self.on_gpu:
            import torch

            torch.cuda.empty_cache()

    def _capture(self) -> None:
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._result = self.forward()  # every replay writes here
        self._graph = graph

    def _compiled(
        self, source: Source, rung: Rung, batch: int, options: dict[str, Any] | None
    ) -> tuple[Callable[..., Any], str]:
        """The compiled module, and whether its batch axis is dynamic: torch always specialises a size of 1."""
        import torch

        low, high = max(2, source.profile["min"]), source.profile["max"]
        if rung.shape == "static" or batch < 2 or low == high:
            return torch.compile(self._module, dynamic=False, options=options), "static"
        for buffer in self._buffers.values():
            torch._dynamo.mark_dynamic(buffer, 0, min=low, max=high)
        return torch.compile(self._module, options=options), "dynamic"


@dataclass(frozen=True)
class _Operator:
    """One dispatched operator and what it gave."""

    position: int  # among everything dispatched in one forward
    name: str
    type: str
    precision: str | None
    device: str


def _dispatched(forward: Callable[[], Any], labelled: bool = False) -> list[_Operator]:
    """Run ``forward`` and list the operators that compute, in order; with labels a profiler can time each."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    operators: list[_Operator] = []
    scopes: list[tuple[Any, str]] = []

    class Recorder(TorchDispatchMode):
        position = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if labelled:
                with torch.profiler.record_function(f"{_LABEL}{self.position}"):
                    result = function(*args, **(kwargs or {}))
            else:
                result = function(*args, **(kwargs or {}))
            given = [each for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
            taken = [e for e in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(e, torch.Tensor)]
            storages = {each.untyped_storage().data_ptr() for each in taken}
            views = all(each.untyped_storage().data_ptr() in storages for each in given)
            if given and (function._schema.is_mutable or not views):
                scope = scopes[-1][1] if scopes else ""
                kind = function._schema.name
                operators.append(
                    _Operator(
                        self.position,
                        f"{self.position}:{scope}/{kind.removeprefix('aten::')}",
                        kind,
                        _operator_precision(kind, given),
                        str(given[0].device),
                    )
                )
            self.position += 1
            return result

    with _following(scopes), Recorder():
        forward()
    return operators


@contextmanager
def _following(scopes: list[tuple[Any, str]]) -> Iterator[None]:
    """Keep the running modules and their paths in ``scopes``, innermost last.

    torch.utils.module_tracker gives a module that is used in several places (an activation) one of their names.
    """
    from torch.nn.modules import module as hooks

    def enter(module: Any, _: Any) -> None:
        if scopes:
            parent, path = scopes[-1]
            own = next((name for name, child in parent.named_modules() if child is module), type(module).__name__)
            scopes.append((module, f"{path}.{own}" if path else own))
        else:
            scopes.append((module, ""))

    def leave(*_: Any) -> None:
        scopes.pop()

    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _operator_precision(kind: str, given: list[Any]) -> str | None:
    """The widest float type an operator gave, else its first type; None where TF32 may or may not have been used."""
    import torch

    precision = checks.widest([_precision(each.dtype) for each in given])
    if precision == "fp32" and given[0].device.type != "cpu":
        may_use_tf32 = (torch.backends.cudnn.allow_tf32 and "conv" in kind) or (
            torch.backends.cuda.matmul.allow_tf32 and _PRODUCT.search(kind)
        )
        return None if may_use_tf32 else precision
    return precision


def _precision(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return _PRECISIONS.get(name, name)


def _eager_nodes(session: Session) -> list[Node]:
    operators: list[_Operator] = []

    def runs() -> None:
        for _ in range(_PROFILED_RUNS):
            operators[:] = _dispatched(session.forward, labelled=True)

    times: dict[str, float] = defaultdict(float)
    for event in _profiled(session, runs):
        if event.name.startswith(_LABEL) and event.device_type.name == "CPU":
            times[event.name] += _time_ms(event, session) / _PROFILED_RUNS
    return [
        Node(each.name, each.type, each.precision, each.device, times.get(f"{_LABEL}{each.position}"))
        for each in operators
    ]


def _compiled_nodes(session: Session) -> list[Node]:
    def runs() -> None:
        for _ in range(_PROFILED_RUNS):
            session.run()

    calls = []
    for event in _profiled(session, runs):
        parent = event.cpu_parent.name if event.cpu_parent else ""
        if event.name == "Activity Buffer Request":  # the profiler's own
            continue
        if parent.startswith("## Call CompiledFxGraph") or (not parent and event.name.startswith("aten::")):
            calls.append(event)
    count = len(calls) // _PROFILED_RUNS
    if not count or len(calls) != count * _PROFILED_RUNS:
        raise StepError(f"torch.profiler gave {len(calls)} kernels for {_PROFILED_RUNS} equal runs")
    return [
        Node(
            name=f"{i}:{calls[i].name}",
            type=calls[i].name,
            precision=None,
            provider=str(session.device),
            time_ms=sum(_time_ms(each, session) for each in calls[i::count]) / _PROFILED_RUNS,
        )
        for i in range(count)
    ]


def _profiled(session: Session, runs: Callable[[], None]) -> list[Any]:
    """The events of torch.profiler while ``runs`` ran, in order of their start."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if session.on_gpu else [])]
    with profile(activities=activities) as profiler:
        runs()
        session.synchronise()
    return sorted(profiler.events(), key=lambda event: event.time_range.start)


def _time_ms(event: Any, session: Session) -> float:
    """Time of an event with everything it called: on a GPU that of its kernels, else that of the host."""
    return float(event.device_time_total if session.on_gpu else event.cpu_time_total) / 1e3


def _configure(rung: Rung) -> None:
    """Set and read back the process's threads, TF32 and cudnn.benchmark. Raises StepError."""
    torch = checks.runtime("torch")
    torch.set_num_threads(rung.threads)
    if torch.get_num_interop_threads() != 1:
        try:
            torch.set_num_interop_threads(1)
        except RuntimeError as error:
            raise StepError(f"PyTorch's inter-op threads cannot be set to 1: {checks.reason(error)}") from error
    if torch.get_num_threads() != rung.threads:
        raise StepError(f"asked PyTorch for {rung.threads} threads, it has {torch.get_num_threads()}")
    # The older names: inductor reads them, and reading them fails once the newer fp32_precision is set.
    torch.backends.cuda.matmul.allow_tf32 = rung.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = rung.precision in ("tf32", "tf32-conv")
    torch.backends.cudnn.benchmark = bool(rung.options.get("cudnn_benchmark"))


def _check_cpu(rung: Rung) -> None:
    checks.check_eager(rung, "PyTorch on the CPU")
    if rung.precision.startswith("tf32"):
        raise StepError(f"PyTorch has no {rung.precision} on the CPU; use fp32", permanent=True)
    if rung.options.get("cudnn_benchmark"):
        raise StepError("the option cudnn_benchmark does nothing on the CPU; remove it", permanent=True)
    # OpenMP obeys these silently, while PyTorch goes on reporting the number it was told.
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    if limit.isdigit() and int(limit) < rung.threads:
        raise StepError(f"OMP_THREAD_LIMIT={limit} would keep PyTorch from its {rung.threads} threads; unset it")
    if os.environ.get("OMP_DYNAMIC", "false").lower() in ("true", "1"):
        raise StepError("OMP_DYNAMIC lets OpenMP choose the number of threads; unset it")


def _check_gpu(rung: Rung, device: str) -> None:
    torch = checks.runtime("torch")
    built_for = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    if built_for != device:
        raise StepError(f"the rung needs device {device}, but PyTorch {torch.__version__} is built for {built_for}")
    if not torch.cuda.is_available():
        raise StepError(f"PyTorch {torch.__version__} finds no {device} device: check the driver and what is visible")
    if rung.precision.startswith("tf32") and (device == "rocm" or torch.cuda.get_device_capability() < (8, 0)):
        raise StepError(f"PyTorch has no {rung.precision} on {torch.cuda.get_device_name()}; use fp32", permanent=True)
