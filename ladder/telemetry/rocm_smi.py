"""AMD GPUs through the program rocm-smi, for hosts where amdsmi cannot be imported.

Each look starts a Python program, whose CPU time counts as the question's: looks are far apart, and most columns stay
empty. Keys are those of rocm_smi.py in ROCm 5.7 to 7; throttling and processes it does not tell in a form to build on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from ladder.errors import StepError
from ladder.telemetry import amd
from ladder.telemetry.base import SHARES, Question

SECONDS = 30.0  # it answers in less than one where the driver does
_IDENTITY = ("--showuniqueid", "--showproductname", "--showdriverversion", "--showmaxpower")
_READINGS = (
    "--showuniqueid", "--showtemp", "--showpower", "--showclocks", "--showuse", "--showmeminfo", "vram",
    "--showenergycounter",
)  # fmt: skip
_POWER = ("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)")  # MI300 on, and before


def program() -> str | None:
    """Where rocm-smi is: on PATH, or with ROCm; None where it is not."""
    return shutil.which("rocm-smi") or shutil.which(str(amd.rocm_path() / "bin/rocm-smi"))


class Gpu:
    """The GPU that HIP calls its first, or the one of this number or UUID. Raises StepError where it cannot be read."""

    def __init__(self, name: str | None = None):
        found = _ask(*_IDENTITY)
        cards = [name for name in found if re.fullmatch(r"card\d+", name)]
        cards.sort(key=lambda name: int(name.removeprefix("card")))
        uuids = [amd.uuid_of(found[name].get("Unique ID")) or "" for name in cards]
        self._place = amd.chosen(uuids, name)
        self.uuid, self._card = uuids[self._place], cards[self._place]
        self._about, self._driver = found[self._card], found.get("system", {}).get("Driver version")
        self.questions: Mapping[str, Question] = {**dict.fromkeys(SHARES, dict), "temperature": self._look}

    def visible(self) -> dict[str, str]:
        return amd.visible(self.uuid, self._place)

    def identity(self) -> dict[str, str]:
        told = {
            "name": self._about.get("Card Series") or self._about.get("Card series"),
            "compute_capability": self._about.get("GFX Version"),
            "driver": self._driver,
            "rocm": amd.rocm_version(),
        }
        return {name: value for name, value in told.items() if value and value != "N/A"}

    def state(self) -> dict[str, Any]:
        settings = ("persistence", "application_clock_mhz", "application_memory_clock_mhz", "ecc", "mig", "numa_node")
        return {
            **dict.fromkeys(settings),
            "index": self._place,
            "power_limit_w": _number(self._about.get("Max Graphics Package Power (W)")),
            "performance_level": None,
            "read_by": "rocm-smi",
        }

    def _look(self) -> dict[str, Any]:
        """All that one call tells. It stands under the temperature, which whoever waits for a device to cool asks."""
        try:
            told = _ask(*_READINGS).get(self._card, {})
        except StepError:
            told = {}
        energy_uj, memory = (
            _number(told.get(key)) for key in ("Accumulated Energy (uJ)", "VRAM Total Used Memory (B)")
        )
        return {
            "temperature_c": _number(told.get("Temperature (Sensor junction) (C)")),
            "power_w": next((watts for key in _POWER if (watts := _number(told.get(key)))), None),
            "gpu_pct": _number(told.get("GPU use (%)")),
            "memory_used_mb": None if memory is None else memory / 1e6,
            "sm_clock_mhz": _number(told.get("sclk clock speed:")),
            "memory_clock_mhz": _number(told.get("mclk clock speed:")),
            "energy_j": None if energy_uj is None else energy_uj / 1e6,
        }


def _ask(*flags: str) -> dict[str, Any]:
    """What rocm-smi prints as JSON. Raises StepError where it does not."""
    command = [program() or "rocm-smi", *flags, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        line = next(line for line in done.stdout.splitlines() if line.startswith("{"))  # warnings may stand before it
        return json.loads(line)
    except (OSError, subprocess.TimeoutExpired, StopIteration, ValueError) as error:
        raise StepError(f"{' '.join(command)} does not tell of the AMD GPU: {type(error).__name__} {error}") from None


def _number(text: Any) -> float | None:
    """The number in a text such as ``41.0`` or ``(2100Mhz)``; None of ``N/A`` and of what is not told."""
    found = re.fullmatch(r"\(?(-?\d+(?:\.\d+)?)(?:Mhz\))?", str(text))
    return float(found[1]) if found else None
