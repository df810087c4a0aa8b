"""What on the host would disturb a measurement: read before timing, warned about, recorded."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from ladder import fingerprint, telemetry
from ladder.errors import StepError
from ladder.telemetry.base import Reader

COOLDOWN_SECONDS = 300.0  # a device that stays too hot for longer will not become as cool as asked
BUSY_LIMIT = 0.5  # CPUs, before a round, a run or a peak: a quiet host reads 0 to 0.05, a single busy program 1


def host_state(device: str, gpu: str | None = None) -> dict[str, Any]:
    """The host as it is now, a GPU's settings under ``gpu_state``; anything that cannot be read is None.

    Of the GPU with this UUID, or of the first one seen.
    """
    return {
        **fingerprint.host(device, gpu),
        **({} if device == "cpu" else {"gpu_state": _gpu_state(device, gpu)}),
        "host": platform.node(),
        "kernel": platform.release(),
        "os": _os_name(),
        "python": platform.python_version(),
        "logical_cpus": os.cpu_count(),
        **_topology(),
        "memory_mb": _memory_mb(),
        "governor": _first("/sys/devices/system/cpu", "cpu*/cpufreq/scaling_governor"),
        "turbo_off": _first("/sys/devices/system/cpu/intel_pstate", "no_turbo"),
        "cpu_quota": fingerprint.cpu_quota(),
        "on_battery": _on_battery(),
        "hypervisor": "hypervisor" in fingerprint.cpu_flags(),
    }


def warnings(state: dict[str, Any], busy: float | None, threads: int) -> list[str]:
    """One sentence for each thing that makes latencies on this host less steady than they could be."""
    found = []
    if busy is not None and busy > BUSY_LIMIT:
        found.append(f"other programs kept {busy:.1f} CPUs busy before the round: latencies may be unsteady")
    if state["on_battery"]:
        found.append("the host runs on its battery: processors slow down to save it")
    if state["governor"] in ("powersave", "conservative", "ondemand"):
        found.append(f"the CPU frequency governor is '{state['governor']}'; 'performance' is steadier")
    if state["cpu_quota"] is not None and state["cpu_quota"] < threads:
        found.append(f"a cgroup grants {state['cpu_quota']:g} CPUs for {threads} threads: runs will be throttled")
    if state["physical_cores"] < threads:
        found.append(f"{threads} threads on {state['physical_cores']} physical cores")
    if (state.get("gpu_state") or {}).get("persistence") is False:
        found.append("the GPU's persistence mode is off: its driver may be unloaded between runs (nvidia-smi -pm 1)")
    if (state.get("gpu_state") or {}).get("read_by") == "rocm-smi":
        found.append("the GPU is read by rocm-smi, minutes apart, since amdsmi cannot be imported (docs/amd.md)")
    return found


def _gpu_state(device: str, uuid: str | None) -> dict[str, Any] | None:
    try:
        return telemetry.open_reader(device, uuid).state()
    except StepError:
        return None


def cool_down(device: Reader, below_c: float | None) -> float | None:
    """Wait until the device is cooler than this (°C); s waited, None where nothing is asked.

    Raises StepError where it does not tell its temperature, or stays hotter for ``COOLDOWN_SECONDS``.
    """
    if below_c is None:
        return None
    start = time.monotonic()
    while (temperature_c := device.questions["temperature"]()["temperature_c"]) is None or temperature_c >= below_c:
        if temperature_c is None:
            raise StepError("telemetry.cooldown_below_c is set, but this device does not tell its temperature")
        if (waited := time.monotonic() - start) > COOLDOWN_SECONDS:
            asked = f"telemetry.cooldown_below_c asks for less than {below_c:g}"
            raise StepError(f"the device is still at {temperature_c:g} °C after {waited:.0f} s; {asked}")
        time.sleep(0.5)
    return round(time.monotonic() - start, 3)


def busy_cpus(seconds: float = 0.2) -> float | None:
    """CPUs that other programs keep busy just now, seen over a short wait (seconds, s); None where unreadable.

    Not the load average, which a minute later still holds the run before. Source: proc(5), stat.
    """
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    if before is None or after is None or sum(after) == sum(before):
        return None
    idle = sum(after[3:5]) - sum(before[3:5])  # idle and waiting for input or output
    return round((1 - idle / (sum(after) - sum(before))) * (os.cpu_count() or 1), 2)


def _cpu_ticks() -> list[int] | None:
    try:
        with open("/proc/stat", encoding="utf-8") as stream:
            return [int(field) for field in stream.readline().split()[1:9]]
    except (OSError, ValueError):
        return None


def _first(folder: str, pattern: str) -> str | None:
    for path in sorted(Path(folder).glob(pattern)):
        try:
            return path.read_text().strip()
        except OSError:
            continue
    return None


def _on_battery() -> bool | None:
    supplies = list(Path("/sys/class/power_supply").glob("*/online"))
    states = [path.read_text().strip() for path in supplies]
    return all(state == "0" for state in states) if states else None


def _topology() -> dict[str, int | None]:
    """Sockets, cores of a socket and threads of a core, as lscpu counts them over the whole host."""
    cpus = [
        tuple(_first(str(place), name) for name in ("physical_package_id", "core_id"))
        for place in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology")
    ]
    if not cpus or None in {part for cpu in cpus for part in cpu}:
        return dict.fromkeys(("sockets", "cores_per_socket", "threads_per_core"))
    sockets, cores = len({cpu[0] for cpu in cpus}), len(set(cpus))
    return {
        "sockets": sockets,
        "cores_per_socket": cores // sockets,
        "threads_per_core": len(cpus) // cores,
    }


def _memory_mb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6)
    except (ValueError, OSError):
        return None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()
