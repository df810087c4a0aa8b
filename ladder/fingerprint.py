"""What a host is, as far as engines and measurements depend on it. Cheap: read while planning.

A platform whose jobs run on another host is keyed by that host's declaration, which each of its jobs compares with
the host it finds itself on.
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ladder import telemetry
from ladder.errors import StepError
from ladder.files import read_json


@cache
def host(device: str, gpu: str | None = None) -> dict[str, Any]:
    """The fingerprint of this host for a kind of device (cpu, cuda, rocm), for the GPU so named or the first one seen.

    Holds processor, instruction set, cores and, for a GPU, its name, compute capability (AMD: its target), driver and,
    on AMD, ROCm's version; a GPU that cannot be seen from here is None. Never the host's name: equal hosts share
    artifacts.
    """
    cpu = _cpuinfo()
    result: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": cpu.get("model name") or platform.processor(),
        "instructions": hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:12],
        "physical_cores": physical_cores(),
    }
    if device != "cpu":
        result["gpu"] = _gpu(device, gpu)
    return result


def declaration(device: str) -> dict[str, Any]:
    """What this host is for a kind of device, with its name for people: ``{"device", "host", "fingerprint"}``.

    Raises StepError where it lacks the device.
    """
    found = host(device)
    if device != "cpu" and found.get("gpu") is None:
        raise StepError(
            f"{platform.node()} shows its job no {device} device; platforms.NAME.resources must ask the cluster for one"
        )
    return {"device": device, "host": platform.node(), "fingerprint": found}


def read_declaration(path: Path) -> dict[str, Any]:
    """A declaration that ``snakemake fingerprint`` left. Raises FileNotFoundError, StepError where it is not whole."""
    try:
        found = read_json(path)
        told = found["device"], found["host"], found["fingerprint"].items(), found["fingerprint"]["physical_cores"] > 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StepError(f"{path} is no host's declaration ({error!r}); call `snakemake fingerprint`") from None
    if not all(told):
        raise StepError(f"{path} does not say what its host is; call `snakemake fingerprint`")
    return found


def difference(declared: Path | None) -> str | None:
    """How this host differs from the one a platform was declared by, as a reason; None where it does not.

    No declaration, no difference: the platform is the host that the workflow was called on. One that cannot be read
    is a reason too.
    """
    if declared is None:
        return None
    try:
        there = read_declaration(declared)
    except (OSError, StepError) as error:
        return str(error)
    expected, found = (_flat(each) for each in (there["fingerprint"], host(there["device"])))
    other = [
        f"{key} {found.get(key)!r} instead of {expected.get(key)!r}"
        for key in sorted(expected | found)
        if found.get(key) != expected.get(key)
    ]
    if not other:
        return None
    return (
        f"this host, {platform.node()}, is not like {there['host']}, by which its platform was declared: "
        f"{'; '.join(other)}. Have platforms.NAME.resources name hosts of one kind, or call `snakemake fingerprint`"
    )


def unknown(found: dict[str, Any]) -> list[str]:
    """What engines depend on and a fingerprint lacks: fields that could not be read, of an AMD GPU ROCm's too."""
    lacking = [key for key, value in found.items() if value is None]
    if gpu := found.get("gpu"):
        is_amd = gpu.get("compute_capability", "").startswith("gfx")
        needed = ("name", "compute_capability", "driver", *(("rocm",) if is_amd else ()))
        lacking += [f"gpu.{key}" for key in needed if not gpu.get(key)]
    return lacking


def in_words(found: dict[str, Any]) -> str:
    """A host's device in words: its GPU, or its processor and physical cores."""
    gpu = found.get("gpu")
    return ", ".join(gpu.values()) if gpu else f"{found['processor']}, {found['physical_cores']} cores"


def _flat(found: dict[str, Any]) -> dict[str, Any]:
    """A fingerprint with its GPU's fields beside the others: gpu.name, gpu.driver, …"""
    gpu = {f"gpu.{key}": value for key, value in (found.get("gpu") or {}).items()}
    return {key: value for key, value in found.items() if key != "gpu"} | gpu


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


def _gpu(device: str, name: str | None) -> dict[str, str] | None:
    """Name, compute capability and driver of the GPU that a round would run on; None where none can be read."""
    try:
        return telemetry.open_reader(device, name).identity()
    except StepError:
        return None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().strip()
    except OSError:
        return None
