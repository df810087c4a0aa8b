"""A round on a GPU that is made up: what was seen beside each run is in its row and kept beside its latencies."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_round import measured, own_host_lock, spec  # noqa: F401
from test_telemetry import fake, fake_in_processes  # noqa: F401

from ladder.files import read_json, write_json
from ladder.records import RECORDED
from ladder.telemetry import sampler, summary

TELEMETRY = {"period_seconds": 0.02, "cooldown_below_c": None}


@pytest.fixture
def gpu_spec(spec, fake_in_processes, tmp_path):  # noqa: F811
    """A round of one rung on the second of two made-up GPUs, with a counter that steps every 20 ms."""
    fake_in_processes(step_s=0.02, watts=200.0, rest_s=1.3)
    spec |= {"platform": "gpu", "device": "cuda", "telemetry": dict(TELEMETRY), "rungs": spec["rungs"][:1]}
    spec["measure"] |= {"throughput_seconds": 2.0, "pause_seconds": 1.2}
    return spec


def test_a_run_on_a_gpu_is_watched(gpu_spec, measured, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for number in (1, 2, 3):  # a host that keeps the sampler from its looks leaves energy empty, and must say so
        record = measured({**gpu_spec, "round": number})
        (row,) = record["rows"]
        if row["power_w"] is not None:
            break
        assert row["energy_missing"]
    assert record["warnings"] == [] or "other programs" in record["warnings"][0]
    assert row["device_uuid"] == "GPU-bbbb2222-0000"
    assert (row["device_mem_mb"], row["device_mem_source"], row["contended"]) == (512, "process", "none")
    assert (row["throttled"], row["throughput_throttled"]) == ("none", "none")
    assert row["power_w"] == pytest.approx(200, rel=0.1) and 0.4 < row["energy_window_s"] < 2.02
    assert row["energy_j_per_image"] == pytest.approx(row["power_w"] / row["throughput_ips"])
    assert (row["idle_power_w"], row["temperature_start_c"], row["sm_clock_end_mhz"]) == (200, 41, 1755)
    assert row["cooldown_s"] is None and row["parent_cpu_pct"] is not None
    assert set(row) >= set(RECORDED)
    assert record["host_state"]["gpu_state"]["power_limit_w"] == 700
    samples = pq.read_table(tmp_path / "1.telemetry.parquet").to_pandas()
    assert set(samples.rung) == {"a"} and samples.at_ns.is_monotonic_increasing
    phases = record["details"]["a"]["phases"]
    assert samples.at_ns.min() < phases["opening_ns"] < phases["loops_ns"][0][0] < phases["throughput_ns"][0]
    assert phases["throughput_ns"][1] - phases["throughput_ns"][0] > 2.0e9


def test_the_rung_sees_the_watched_gpu_alone(gpu_spec, measured, monkeypatch, tmp_path):  # noqa: F811
    stack = tmp_path / "seeing.py"
    known = Path(gpu_spec["rungs"][0]["stack"]["module"]).read_text()
    facts = "{'threads': self.threads, 'sees': os.environ['CUDA_VISIBLE_DEVICES']}"
    stack.write_text(f"{known}\n\nimport os\nSession.facts = lambda self: {facts}\n")
    gpu_spec["rungs"][0]["stack"]["module"] = str(stack)
    gpu_spec["measure"] |= {"throughput_seconds": 0, "pause_seconds": 0}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert measured(gpu_spec)["details"]["a"]["facts"]["sees"] == "GPU-bbbb2222-0000"


def test_throttling_and_company_are_flagged(gpu_spec, measured, fake_in_processes):  # noqa: F811
    fake_in_processes(reasons=0x5, processes=[[9, 300_000_000]])
    gpu_spec["measure"] |= {"throughput_seconds": 0.1, "pause_seconds": 0}
    gpu_spec["telemetry"]["cooldown_below_c"] = 42
    (row,) = measured(gpu_spec)["rows"]
    assert (row["throttled"], row["contended"]) == ("software power cap", "9 (300 MB)")
    assert row["power_w"] is None  # too short
    assert row["idle_power_w"] is None and 0 <= row["cooldown_s"] < 5


def test_a_gpu_that_cannot_be_read_fails_the_run_and_is_tried_again(gpu_spec, measured, fake_in_processes):  # noqa: F811
    fake_in_processes(driver=False)
    record = measured(gpu_spec)
    (failure,) = record["failures"]
    assert failure["stage"] == "run" and failure["permanent"] is False
    assert "no NVIDIA driver answers" in failure["reason"] and record["host_state"]["gpu_state"] is None
    fake_in_processes(driver=True)
    assert measured(gpu_spec)["rows"]


def test_a_device_that_stays_too_hot_is_not_measured(gpu_spec, measured, monkeypatch):  # noqa: F811
    monkeypatch.setattr("ladder.preflight.COOLDOWN_SECONDS", 0.0)
    gpu_spec["telemetry"]["cooldown_below_c"] = 30
    (failure,) = measured(gpu_spec)["failures"]
    assert "still at 41 °C" in failure["reason"]


def test_a_sampler_that_dies_is_told(gpu_spec, measured, monkeypatch):  # noqa: F811
    started = []
    popen = sampler.subprocess.Popen

    def start(command, **options):
        started.append(popen(command, **options))
        return started[-1]

    monkeypatch.setattr(sampler.subprocess, "Popen", start)
    monkeypatch.setattr("ladder.preflight.busy_cpus", lambda: started[0].kill() if started else None)
    gpu_spec["measure"] |= {"throughput_seconds": 0.5, "pause_seconds": 0}
    record = measured(gpu_spec)
    (row,) = record["rows"]
    assert [text for text in record["warnings"] if "sampler ended (exit status -9)" in text]
    assert row["temperature_end_c"] is row["power_w"] is row["throttled"] is row["contended"] is None


def test_samples_are_set_aside_and_taken_back_with_their_round(gpu_spec, measured, tmp_path):  # noqa: F811
    gpu_spec["measure"] |= {"throughput_seconds": 0, "pause_seconds": 0}
    measured(gpu_spec)
    kept = (tmp_path / "1.telemetry.parquet").read_bytes()
    gpu_spec["telemetry"]["period_seconds"] = 0.03
    assert not measured(gpu_spec)["kept"]
    assert (tmp_path / "1.telemetry.parquet").read_bytes() != kept
    gpu_spec["telemetry"]["period_seconds"] = 0.02
    assert measured(gpu_spec)["kept"]
    assert (tmp_path / "1.telemetry.parquet").read_bytes() == kept
    for rung in gpu_spec["rungs"]:
        broken = {"status": "failed", "stage": "export", "reason": "typo", "permanent": True, "log": None}
        write_json(Path(rung["pass"]), broken)
    measured(gpu_spec)
    assert read_json(tmp_path / "1.json")["rows"] == [] and not (tmp_path / "1.telemetry.parquet").exists()
    assert len(list(tmp_path.glob("1.telemetry.*.parquet"))) == 2


def test_a_cpu_has_no_telemetry(spec, measured, tmp_path):  # noqa: F811
    for row in measured(spec)["rows"]:
        assert {row[column] for column in (*summary.COLUMNS, "cooldown_s")} == {None} and set(RECORDED) <= set(row)
    assert not (tmp_path / "1.telemetry.parquet").exists()
