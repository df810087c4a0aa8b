"""What on the host would disturb a measurement: read before timing, warned about, recorded."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ladder import fingerprint


def host_state(device: str) -> dict[str, Any]:
    """The host as it is now; anything that cannot be read is None."""
    return {
        **fingerprint.host(device),
        "host": platform.node(),
        "kernel": platform.release(),
        "os": _os_name(),
        "python": platform.python_version(),
        "logical_cpus": os.cpu_count(),
        "memory_mb": _memory_mb(),
        "governor": _first("/sys/devices/system/cpu", "cpu*/cpufreq/scaling_governor"),
        "turbo_off": _first("/sys/devices/system/cpu/intel_pstate", "no_turbo"),
        "cpu_quota": fingerprint.cpu_quota(),
        "on_battery": _on_battery(),
        "hypervisor": "hypervisor" in fingerprint.cpu_flags(),
    }


def warnings(state: dict[str, Any], load: float, threads: int) -> list[str]:
    """One sentence for each thing that makes latencies on this host less steady than they could be."""
    found = []
    if load > 0.3:
        found.append(f"load is {load:.1f} before the first run: other programs share the processor")
    if state["on_battery"]:
        found.append("the host runs on its battery: processors slow down to save it")
    if state["governor"] in ("powersave", "conservative", "ondemand"):
        found.append(f"the CPU frequency governor is '{state['governor']}'; 'performance' is steadier")
    if state["cpu_quota"] is not None and state["cpu_quota"] < threads:
        found.append(f"a cgroup grants {state['cpu_quota']:g} CPUs for {threads} threads: runs will be throttled")
    if state["physical_cores"] < threads:
        found.append(f"{threads} threads on {state['physical_cores']} physical cores")
    return found


def load_average() -> float | None:
    """Mean number of runnable processes over the last minute; None where the system has no such figure."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
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
