"""The table of datasheets, and measuring peaks: small products on the CPU, whole ones on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ladder import locks, peaks, utilisation
from ladder.errors import StepError
from ladder.files import read_json, write_json

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    monkeypatch.setattr(peaks, "SIZES", (128, 256))
    monkeypatch.setattr(peaks, "PRODUCT_SECONDS", 0.02)
    monkeypatch.setattr(peaks, "COPY_SECONDS", 0.02)
    monkeypatch.setattr(peaks, "COPY_BYTES", {"cpu": 2**24})


def test_peaks_of_this_cpu(quick):
    found = peaks.measure("cpu", 1)
    assert found["tflops"].keys() | found["missing"].keys() == set(peaks.PRECISIONS)
    assert found["tflops"].keys().isdisjoint(found["missing"])
    assert 1e-4 < found["tflops"]["fp32"] < 10 and found["sizes"]["fp32"] in peaks.SIZES
    assert 0.1 < found["bandwidth_gb_s"] < 1000
    assert "no TF32" in found["missing"]["tf32"]
    assert found["threads"] == 1 and found["device"]
    json.dumps(found, allow_nan=False)


def test_a_precision_slower_than_fp32_has_no_peak(quick, monkeypatch):
    rates = {"fp32": 1.0, "fp16": 0.89, "bf16": 0.91, "int8": 4.0}

    def product(torch, place, precision, threads):
        if precision == "tf32":
            raise RuntimeError("not here")
        return rates[precision], 512

    monkeypatch.setattr(peaks, "_best_product", product)
    found = peaks.measure("cpu", 1)
    assert found["tflops"] == {"fp32": 1.0, "bf16": 0.91, "int8": 4.0}
    assert found["missing"] == {"tf32": "not here", "fp16": "a product reaches 0.89 TFLOPS, less than one in FP32"}


def test_the_best_size_counts_and_a_long_product_is_the_last(monkeypatch):
    import torch

    seconds = {512: 1e-3, 1024: 4e-3, 2048: 0.06, 4096: 0.1}
    monkeypatch.setattr(peaks, "_product_seconds", lambda _torch, _place, _precision, size, _threads: seconds[size])
    rate, size = peaks._best_product(torch, "cpu", "fp32", 1)
    assert size == 1024 and rate == pytest.approx(2 * 1024**3 / 4e-3 / 1e12)


def test_larger_products_than_memory_holds_are_left_out(monkeypatch):
    import torch

    def product(_torch, _place, _precision, size, _threads):
        if size > 1024:
            raise torch.OutOfMemoryError("no room")
        return 1e-3

    monkeypatch.setattr(peaks, "_product_seconds", product)
    assert peaks._best_product(torch, "cpu", "fp32", 1)[1] == 1024


def test_an_override_of_tf32_is_refused(quick, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(StepError, match="NVIDIA_TF32_OVERRIDE=1 is set"):
        peaks.measure("cpu", 1)


def test_a_device_that_is_not_there_is_a_failed_record(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    output, log = tmp_path / "peaks.json", tmp_path / "peaks.log"
    supervise = [sys.executable, SCRIPTS / "_supervise.py", "--stage", "peaks", "--alone", "--log", log]
    write_json(tmp_path / "spec.json", {"device": "cuda", "threads": 1})
    spec = ["--spec", tmp_path / "spec.json", "--output", output, "--log", log]
    command = [*supervise, "--outputs", output, "--", sys.executable, SCRIPTS / "peaks.py", *spec]
    subprocess.run(command, check=True, cwd=tmp_path)
    found = read_json(output)
    assert (found["status"], found["stage"], found["permanent"]) == ("failed", "peaks", False)
    assert "finds no cuda device" in found["reason"]


@pytest.mark.parametrize("name", peaks.DATASHEETS)
def test_the_figures_of_a_datasheet_fit_each_other(name):
    """Tensor cores double their rate with each halving of the width; so a figure with sparsity would stand out."""
    sheet = peaks.DATASHEETS[name]
    rates = sheet.tflops
    if "tf32" in rates:
        assert rates["bf16"] == pytest.approx(2 * rates["tf32"], rel=0.02)
        assert rates["int8"] == pytest.approx(2 * rates["fp16"], rel=0.02)
        assert round(rates["fp16"] / rates["bf16"], 1) in (1, 2)  # twice with FP16 accumulation on GeForce
    assert rates["fp32"] <= rates.get("tf32", rates["fp16"])
    assert "datasheet" in sheet.source or "whitepaper" in sheet.source


@pytest.mark.gpu
def test_measured_peaks_stay_below_the_datasheet():
    """Run it alone: beside engines being built int8 fell by a third (H200). The lock keeps workflows away, no others.

    The lower bounds are for a data centre's GPU at its own power limit: int8 47 %, the rest 65 to 81 % of an H200's.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    name = torch.cuda.get_device_name()
    if name not in peaks.DATASHEETS:
        pytest.skip(f"no datasheet of {name}")
    with locks.host_lock(exclusive=True, waiting="waiting: another workflow of this host is measuring or building"):
        found, sheet = peaks.measure("cuda", 1), peaks.DATASHEETS[name]
    print(found)
    assert found["device"] == name and not found["missing"]
    for precision, rate in sheet.tflops.items():
        least = 0.4 if precision == "int8" else utilisation.FAIR_SHARE
        assert least * rate < found["tflops"][precision] < 1.05 * rate
    assert 0.6 * sheet.bandwidth_gb_s < found["bandwidth_gb_s"] < sheet.bandwidth_gb_s
