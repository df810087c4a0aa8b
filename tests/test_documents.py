from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import synthetic
import yaml
from hypothesis import given
from hypothesis import strategies as st
from workflow_run import ROOT

from ladder import audit, config, tables
from ladder.aggregate import aggregate, write_table
from ladder.documents import FILES, beyond_tops, deep_gap, gpu_bench, paths
from ladder.documents.runs import Round, Run
from ladder.documents.write import write
from ladder.errors import StepError
from ladder.files import read_json, write_json
from ladder.stacks import checks
from ladder.stacks.base import Node
from ladder.telemetry import raw as telemetry_raw
from ladder.telemetry.base import Sample

LADDERS = [
    synthetic.CPU_LADDER | {"batches": [1, 4], "rounds": 3},
    synthetic.GPU_LADDER | {"batches": [1], "rounds": 2},
]
# as the documents have them, written out a second time
DEEP_GAP = (
    "timestamp_utc,device,sweep_id,repeat_id,model,batch_size,threads,iters,warmup_iters,median_ms,mean_ms,"
    "std_latency_ms,p99_latency_ms,throughput_ips,hostname,os,kernel,arch,cpu_model,cpu_sockets,cpu_cores_per_socket,"
    "cpu_threads_per_core,cpu_logical_cpus,mem_total_mb,python_version,torch_version,cuda_available,"
    "torchvision_version,gpu_peak_mem_mb"
)
NVIDIA_SMI = (
    "timestamp,index,name,temperature.gpu,power.draw,pstate,clocks.sm,clocks.mem,utilization.gpu,utilization.memory,"
    "memory.used"
)
GPU_BENCH = "run_label,model,rung,batch_size,warmup,iterations,median_ms,p95_ms,images_per_s,torch_memory_mb"
SECOND = 10**9


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of all documents of a run on a CPU and on a watched GPU; never changed."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("documents")
        patched.chdir(folder)
        plan, rounds = synthetic.write_run(Path("results"), LADDERS)
        audits = [path for ladder in LADDERS for path in synthetic.write_audits(Path("results"), ladder)]
        for number, path in enumerate(sorted(path for path in rounds if "gpu" in str(path))):
            start = (1_800_000_000 + 100 * number) * SECOND
            moments = [Sample(0, start + i * SECOND, 50 + i, 70.5, 99, 9, 2048.0 + i, 1500, 5000, "P0") for i in (0, 1)]
            telemetry_raw.write(path.with_suffix(".parquet"), {"graph": moments[1:], "eager": moments[:1]})
        exported = {"sha256": "ab" * 32, "exporters": {"torch": "2.98.0", "torchvision": "0.98.0"}}
        write_json(Path("artifacts/resnet18/fp32.id.json"), exported)
        write_json(Path("artifacts/yolo11n/fp32.id.json"), exported | {"sha256": "another file"})
        aggregate(plan, rounds, audits, Path("results"))
        for document in FILES:
            write(document, Path("results"), Path("results/documents") / document)
    return folder / "results"


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("flat", [False, True])
def test_a_copied_results_folder_has_the_same_documents_wherever_it_is(made, tmp_path, monkeypatch, flat):
    """Of the whole tree, or of one ladder and batch with its rounds in ``rounds``."""
    copy, rows = tmp_path / "elsewhere", table(made / "results.csv")
    shutil.copytree(made, copy, ignore=shutil.ignore_patterns("documents"))
    if flat:
        place = Path(rows[0]["raw"]).parent
        rows = [row for row in rows if Path(row["raw"]).parent == place]
        shutil.move(copy / place.relative_to("results"), copy / "rounds")
        write_table(copy / "results.csv", tables.RESULTS, rows)
    monkeypatch.chdir(tmp_path)
    write("deep-gap", copy, copy / "documents")
    found = [row["median_ms"] for row in table(copy / "documents/benchmark_results_final.csv")]
    original = table(made / "documents/deep-gap/benchmark_results_final.csv")
    wanted = [row for row in original if not flat or (row["batch_size"], row["device"]) == ("1", "cpu")]
    assert found and found == [row["median_ms"] for row in wanted]


def test_each_document_that_may_be_asked_for_has_its_files(made):
    (asked,) = get_args(config.Config.model_fields["documents"].annotation)
    assert set(get_args(asked)) == set(FILES)
    written = {str(path.relative_to(made.parent)) for path in made.glob("documents/*/*")}
    assert written == set(paths(list(FILES)))


def test_the_columns_are_the_documents_own(made):
    for name, expected in {
        "gpu-bench/results.csv": GPU_BENCH,
        "deep-gap/benchmark_results_final.csv": DEEP_GAP,
        "deep-gap/gpu_telemetry_full_run.csv": NVIDIA_SMI,
    }.items():
        with open(made / "documents" / name, encoding="utf-8") as stream:
            assert stream.readline().strip() == expected


def test_gpu_bench_appends_every_run_and_its_memory_is_torchs(made):
    ours = sorted(table(made / "results.csv"), key=lambda row: row["started_at"])
    rows = table(made / "documents/gpu-bench/results.csv")
    assert [(row["rung"], row["median_ms"], row["images_per_s"]) for row in rows] == [
        (row["rung"], row["median_ms"], row["latency_ips"]) for row in ours
    ]
    assert rows[0]["run_label"] == f"{ours[0]['platform']}/{ours[0]['ladder']}/round 1"
    assert len(rows) == 2 * 3 * 5 + 2 * 4
    memory = dict.fromkeys(tables.RESULTS, "1") | {"allocator_mem_mb": "12.5"}
    apis = ("pytorch", "onnxruntime")
    assert [row["torch_memory_mb"] for row in gpu_bench.rows([memory | {"api": api} for api in apis])] == ["12.5", None]


def test_deep_gap_takes_the_devices_clock_of_a_gpu_and_the_hosts_of_a_cpu(made):
    rows = table(made / "documents/deep-gap/benchmark_results_final.csv")
    gpu = [row for row in rows if row["device"] == "cuda"]
    assert len(gpu) == 2 * 4 and len(rows) == len(gpu) + 2 * 3 * 5
    for row in gpu:
        assert [float(row[key]) for key in ("iters", "median_ms", "mean_ms", "std_latency_ms")] == pytest.approx(
            [3, 1.5, np.mean([1.5, 1.25, 2.0]), np.std([1.5, 1.25, 2.0])]
        )
        assert float(row["throughput_ips"]) == pytest.approx(1000 / 1.5)
        assert (row["sweep_id"] in "12", row["repeat_id"], row["cuda_available"]) == (True, "1", "True")
        assert (row["torchvision_version"], row["python_version"]) == ("0.98.0", "3.99.0")
    assert {row["torch_version"] for row in gpu} == {"2.99.0+cu199", "2.98.0"}  # the run's own, else the exporter's
    ours = {(row["rung"], row["batch"], row["round"]): row for row in table(made / "results.csv")}
    for row in (row for row in rows if row["device"] == "cpu"):
        one = ours[row["model"].removeprefix("yolo11n_"), row["batch_size"], row["sweep_id"]]
        assert float(row["median_ms"]) == pytest.approx(float(one["median_ms"]))
        assert row["gpu_peak_mem_mb"] == row["cuda_available"] == row["torchvision_version"] == ""
        sizes = ("cpu_sockets", "cpu_cores_per_socket", "cpu_threads_per_core", "cpu_logical_cpus", "mem_total_mb")
        assert [row[key] for key in sizes] == ["1", "2", "2", "4", "15259"]  # MiB of 16000 MB


def test_deep_gap_has_the_whole_devices_memory_and_every_sample_in_order(made):
    rows = table(made / "documents/deep-gap/benchmark_results_final.csv")
    memory = {row["model"]: row["gpu_peak_mem_mb"] for row in rows if row["device"] == "cuda"}
    assert memory == {
        "resnet18_eager": "1953.1", "resnet18_graph": "1954.1", "resnet18_tensorrt": "", "resnet18_tensorrt-graph": "",
    }  # fmt: skip
    samples = table(made / "documents/deep-gap/gpu_telemetry_full_run.csv")
    assert [sample["timestamp"] for sample in samples] == sorted(sample["timestamp"] for sample in samples)
    assert len(samples) == 4
    assert list(samples[1].values()) == [
        "2027/01/15 08:00:01.000", "0", "Synthetic GPU", "51.0", "70.5", "P0",
        "1500.0", "5000.0", "99.0", "9.0", "1954",
    ]  # fmt: skip


def run_of(device: str, device_ms: list) -> Run:
    row = dict.fromkeys(tables.RESULTS, "1") | {"device": device, "started_at": "2030-01-01T00:00:00.000+00:00"}
    return Run(row, {}, {}, [np.array([7.0, 9.0])] * len(device_ms), device_ms)


HOST = dict.fromkeys(
    ("os", "kernel", "machine", "processor", "sockets", "cores_per_socket", "threads_per_core", "logical_cpus")
) | {"memory_mb": None}


def test_a_gpu_without_a_clock_of_its_own_has_no_latency_in_deep_gaps_file():
    (row,) = deep_gap.rows(Round(HOST, [run_of("cuda", [{}])], []))
    assert not {"iters", "median_ms", "mean_ms", "std_latency_ms", "p99_latency_ms", "throughput_ips"} & set(row)
    (row,) = deep_gap.rows(Round(HOST, [run_of("cpu", [{}])], []))
    assert (row["median_ms"], row["timestamp_utc"]) == (8, "2030-01-01T00:00:00.000")


@given(st.lists(st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=20), min_size=1, max_size=4))
def test_each_repeat_is_a_row_of_its_own_launches(repeats):
    rows = deep_gap.rows(Round(HOST, [run_of("cuda", [{"device_span_ms": spans} for spans in repeats])], []))
    assert [row["repeat_id"] for row in rows] == list(range(1, len(repeats) + 1))
    for row, spans in zip(rows, repeats, strict=True):
        assert row["iters"] == len(spans)
        assert min(spans) <= row["median_ms"] <= max(spans) * (1 + 1e-9)
        assert row["median_ms"] <= row["p99_latency_ms"] * (1 + 1e-9)
        assert row["throughput_ips"] * row["median_ms"] == pytest.approx(1000)


def test_beyond_tops_report_tells_each_rung_and_batch(made):
    report = read_json(made / "documents/beyond-tops/report.json")
    summary = read_json(made / "summary.json")
    assert len(report["rungs"]) == len(summary["latency"]) == 2 * 5 + 4
    entry = next(each for each in report["rungs"] if (each["rung"], each["batch"]) == ("openvino-int8", 4))
    pooled = next(each for each in summary["latency"] if (each["rung"], each["batch"]) == ("openvino-int8", 4))
    assert entry["latency_ms"] == {of: pooled[f"{of}_ms"] for of in ("p50", "p90", "p99")}
    assert (entry["trials"], entry["requested_precision"], entry["flops_at_precision_pct"]) == (3, "int8", 76.96)
    assert set(entry["power"].values()) == {None} and entry["achieved_tops"] > 0
    assert len(report["comparisons"]) == 2 * 4 + 4 and report["versions"] == summary["versions"]
    assert report["saturation"] == summary["saturation"]


def test_beyond_tops_draws_throughput_against_batch(made):
    text = (made / "documents/beyond-tops/saturation.html").read_text(encoding="utf-8")
    assert "yolo11n (ladder cpu, platform synthetic-cpu)" in text and re.search(
        r"openvino-int8: saturation point (batch|not)", text
    )
    assert '"median_ips"' in text and "seeded(0): random weights" in text


def pitfalls(made, results=(), failures=(), **summary):
    told = beyond_tops.pitfalls(
        read_json(made / "summary.json") | summary,
        [dict.fromkeys(tables.RESULTS, "") | {"device": "cuda", "warmup": "20", **row} for row in results],
        [dict.fromkeys(tables.FAILURES, "") | row for row in failures],
    )
    return {each["pitfall"]: (each["found"], each["where"]) for each in told}


QUIET = {"unsteady_runs": [], "latency": [], "ladders": []}


def test_a_pitfall_that_nothing_could_tell_is_null(made):
    told = pitfalls(made, **QUIET)
    assert {found for found, _ in told.values()} == {None}
    told = pitfalls(made, [{"throttled": "none", "contended": "", "load_before": "0.1", "power_w": "80"}], **QUIET)
    assert told["throttling while latencies were timed"] == (False, [])
    assert told["device shared with other processes"][0] is None
    assert told["warm-up skipped"][0] is told["noisy host"][0] is told["out of memory"][0] is False


@pytest.mark.parametrize(
    ("pitfall", "row", "failure"),
    [
        ("warm-up skipped", {"warmup": "0"}, {}),
        ("noisy host", {"load_before": "1.5"}, {}),
        ("throttling while latencies were timed", {"throttled": "software power cap"}, {}),
        ("throttling while throughput was timed", {"throughput_throttled": "sync boost"}, {}),
        ("device shared with other processes", {"contended": "4711 (512 MB)"}, {}),
        ("no steady window to tell the power", {"power_w": ""}, {}),
        ("out of memory", {}, {"rung": "a", "batch": "64", "reason": "CUDA out of memory. Tried to allocate 2 GiB"}),
        (
            "accelerator unused: work fell back to another device",
            {},
            {"rung": "a", "reason": audit.placement([Node("n", "Conv", "fp32", "CPU")], "cuda:0")[1]},
        ),
    ],
)
def test_each_pitfall_is_found_where_it_is(made, pitfall, row, failure):
    found, where = pitfalls(made, [row], [failure] if failure else [], **QUIET)[pitfall]
    assert found is True and len(where) == 1


def test_work_that_a_stack_would_have_done_elsewhere_is_a_fallback_and_a_gpu_too_old_is_none(made):
    with pytest.raises(StepError) as refused:
        checks.check_placement(["n (Conv, CPUExecutionProvider)"], 5, "CUDAExecutionProvider")
    told = {
        str(refused.value): True,
        "CUDAExecutionProvider cannot be loaded: no libcuda.so.1. Without it 2 nodes would run on the CPU: a, b": True,
        "TensorRT-RTX 1.7 does not run on NVIDIA H200 (compute capability 9.0)": False,
    }
    for reason, found in told.items():
        failure = {"rung": "a", "reason": reason}
        assert (
            pitfalls(made, [{}], [failure], **QUIET)["accelerator unused: work fell back to another device"][0] is found
        )


def test_pitfalls_of_the_summary_are_named(made):
    told = pitfalls(made, [{}])
    assert told["fewer than 5 trials"][0] is True
    found, where = told["another precision than the one requested"]
    assert found and len(where) == 1 and "onnxruntime-int8: requested int8" in where[0]


def test_the_step_writes_a_document_by_hand(made, tmp_path, monkeypatch):
    monkeypatch.setenv("LADDER_HOST_LOCK", str(tmp_path / "host.lock"))  # nobody's measurement is waited for
    command = [sys.executable, str(ROOT / "scripts/documents.py"), "--document", "gpu-bench", "--results", "results"]
    subprocess.run([*command, "--output-dir", str(tmp_path)], cwd=made.parent, check=True)
    assert (tmp_path / "results.csv").read_text() == (made / "documents/gpu-bench/results.csv").read_text()


@pytest.mark.parametrize("document", FILES)
def test_each_preset_asks_for_its_documents_files(document):
    assert yaml.safe_load((ROOT / f"presets/{document}.yaml").read_text())["documents"] == [document]


def test_what_the_documentation_says_of_the_columns_is_all_of_them():
    text = (ROOT / "docs/presets.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))
    for columns in (gpu_bench.COLUMNS, deep_gap.COLUMNS, deep_gap.TELEMETRY_COLUMNS):
        assert set(columns) <= named
    assert {name for names in FILES.values() for name in names} <= named
