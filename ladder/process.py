"""Child processes that never outlive their parent, and what processes cost."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# variables that choose a runtime's threads, code paths or allocator behind the configuration's back, by their beginning
_TUNING = (
    "AMD_SERIALIZE_", "ATEN_", "CUBLAS_", "CUDA_LAUNCH_BLOCKING", "CUDNN_", "DNNL_", "GOMP_", "HIPBLASLT_",
    "HIP_LAUNCH_BLOCKING", "KMP_", "MALLOC_", "MIGRAPHX_", "MIOPEN_", "MKL_", "OMP_", "ONEDNN_", "ORT_", "OV_",
    "PYTORCH_", "ROCBLAS_", "TORCHINDUCTOR_", "TORCH_",
)  # fmt: skip
PARENT = "LADDER_PARENT"  # rules/common.smk sets it for Snakemake


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere nothing happens).

    The signal is not inherited: every process of a chain asks for itself. A parent says who it is in its child's
    ``PARENT`` variable (``as_parent``), so that one that died before its child could ask is noticed. Source: prctl(2).
    """
    parent = int(os.environ.pop(PARENT, os.getppid()))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def as_parent() -> dict[str, str]:
    """The variable with which this process starts a child that is to die with it."""
    return {PARENT: str(os.getpid())}


def environment() -> dict[str, str]:
    """This process's variables for a child that builds, audits or measures, without those that tune a runtime."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_TUNING)}


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process so far, s; None where it cannot be read. Source: proc(5), stat."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory_mb() -> float | None:
    """Largest resident size of this process since its program started, MB (10^6 bytes); None if unreadable.

    Not getrusage: its ru_maxrss starts at the size of the process that forked. Source: proc(5), VmHWM.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return int(line.split()[1]) * 1024 / 1e6 if line else None
