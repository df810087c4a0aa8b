"""What a host is, as far as engines and measurements depend on it. Cheap: read while planning."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib import metadata
from typing import Any

from ladder import telemetry
from ladder.errors import StepError


@cache
def host(device: str) -> dict[str, Any]:
    """The fingerprint of this host for a kind of device (cpu, cuda, rocm).

    Holds processor, instruction set, cores and, for a GPU, its name, compute capability and driver;
    a GPU that cannot be seen from here is None. Never the host's name: equal hosts share artifacts.
    """
    cpu = _cpuinfo()
    result: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": cpu.get("model name") or platform.processor(),
        "instructions": hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:12],
        "physical_cores": physical_cores(),
    }
    if device == "cuda":
        result["gpu"] = _gpu(device)
    return result


@cache
def physical_cores() -> int:
    """Physical cores this process may use: its affinity, without hyper-threads, within a cgroup's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        cores.add((_read(f"{base}/physical_package_id"), _read(f"{base}/core_id") or str(cpu)))
    quota = cpu_quota()
    return max(1, min(len(cores), int(quota) if quota else len(cores)))


def cpu_quota() -> float | None:
    """CPUs that the cgroup grants (version 2 at the root of the process's view), None where unlimited."""
    limit, _, period = (_read("/sys/fs/cgroup/cpu.max") or "max").partition(" ")
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() else None


def device_uuid(device: str) -> str:
    """What identifies the device a round ran on: the GPU's UUID, or the machine and its boot for a CPU.

    Raises StepError where the GPU cannot be read.
    """
    machine = _read("/etc/machine-id") or platform.node()
    boot = _read("/proc/sys/kernel/random/boot_id") or ""
    if device == "cpu":
        return "cpu-" + hashlib.sha256(f"{machine}{boot}".encode()).hexdigest()[:12]
    return telemetry.open_reader(device).uuid


def versions(packages: list[str]) -> dict[str, str]:
    """Installed versions of distributions in this interpreter; one that is not installed is left out."""
    return {name: found for name in packages if (found := _version(name))}


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_flags() -> set[str]:
    """The instruction-set flags the kernel reports for the first CPU."""
    return set(_cpuinfo().get("flags", "").split())


@cache
def _cpuinfo() -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if not line.strip():
            break
        fields[key.strip()] = value.strip()
    return fields


def _gpu(device: str) -> dict[str, str] | None:
    """Name, compute capability and driver of the GPU that a round would run on; None where none can be read."""
    try:
        return telemetry.open_reader(device).identity()
    except StepError:
        return None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().strip()
    except OSError:
        return None
