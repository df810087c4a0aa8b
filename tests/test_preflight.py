"""What would disturb a measurement is seen and said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ladder import fingerprint, preflight, summary

CALM = {"on_battery": False, "governor": "performance", "cpu_quota": None, "physical_cores": 4}


def test_a_calm_host_gives_no_warning():
    assert preflight.warnings(CALM, 0.0, 4) == []


def test_rounds_and_runs_are_called_busy_by_one_rule():
    """The bound that docs/method.md gives."""
    held = {"platform": "p", "model": "m", "ladder": "l", "rung": "r", "batch": 1, "round": 1}
    for cpus, is_busy in ((0.5, False), (0.51, True)):
        assert bool(preflight.warnings(CALM, cpus, 4)) == is_busy
        assert bool(summary.busy_runs([held | {"load_before": cpus}])) == is_busy


@pytest.mark.parametrize(
    ("state", "busy", "part"),
    [
        ({}, 1.3, "other programs kept 1.3 CPUs busy before the round"),
        ({"on_battery": True}, 0.0, "battery"),
        ({"governor": "powersave"}, 0.0, "'powersave'"),
        ({"cpu_quota": 1.5}, 0.0, "grants 1.5 CPUs for 4 threads"),
        ({"physical_cores": 2}, 0.0, "4 threads on 2 physical cores"),
        ({"gpu_state": {"persistence": False}}, 0.0, "persistence mode is off"),
    ],
)
def test_each_disturbance_is_one_warning(state, busy, part):
    (line,) = preflight.warnings(CALM | state, busy, 4)
    assert part in line


def test_what_cannot_be_read_is_no_warning():
    unread = dict.fromkeys(CALM) | {"physical_cores": 4}
    for gpu_state in (None, {"persistence": None}):
        assert preflight.warnings(unread | {"gpu_state": gpu_state}, None, 4) == []


def test_a_busy_processor_is_seen():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        seen = max(preflight.busy_cpus() for _ in range(3))
    finally:
        busy.kill()
        busy.wait()
    assert seen > 0.7


def test_the_host_state_holds_the_fingerprint():
    assert fingerprint.host("cpu").items() <= preflight.host_state("cpu").items()
