from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import synthetic
import vl_convert
from docutils.core import publish_parts
from hypothesis import given
from hypothesis import strategies as st

from ladder import attribution, tables
from ladder.aggregate import aggregate
from ladder.errors import StepError
from ladder.files import read_json, write_json
from ladder.report import figures
from ladder.report.build import (
    SECTIONS,
    _disturbances,
    _disturbed,
    _environment,
    _named_values,
    _reading,
    _rungs_of_engines,
    _untimed,
    _value,
    build,
)
from ladder.report.by_rung import CLOCKS, MEMORY, by_rung, runs_by_rung
from ladder.report.console import ladder_text
from ladder.report.energy import DISAGREES, energy_note
from ladder.report.page import Block, Column, Figure, page, table
from ladder.report.read import read_table
from ladder.report.text import (
    audit_notes,
    fastest,
    from_to,
    gain,
    gain_ms,
    interactions,
    number,
    peaks_note,
    ran_in,
    rankings,
    releases,
    shown,
    totals,
    weights_note,
)
from ladder.telemetry.base import Sample
from ladder.telemetry.summary import summarise

REPOSITORY = Path(__file__).parents[1]
CAPTIONS = REPOSITORY / "docs" / "captions"
CPU = synthetic.CPU_LADDER | {"batches": [1, 4]}
GPU = synthetic.GPU_LADDER | {"batches": [8]}


def make(root: Path, ladders, spoil=None):
    """Rounds, tables and pages of some ladders under ``root``, which becomes the working directory meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        results = Path("results")
        plan, rounds = synthetic.write_run(results, ladders)
        audits = [path for ladder in ladders for path in synthetic.write_audits(results, ladder)]
        if spoil:
            spoil(results)
        summary = aggregate(plan, rounds, audits, results)
        build(results, CAPTIONS, results / "report")
    return summary, root / "results"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    def fail_one(results):
        synthetic.write_round(results, CPU, 4, 3, 30, failed={"openvino-int8": "run"})

    return make(tmp_path_factory.mktemp("report"), [CPU, GPU], fail_one)


class Captions(HTMLParser):
    """Collects the text of every <caption> of a page."""

    def __init__(self):
        super().__init__()
        self.captions, self.inside = [], False

    def handle_starttag(self, tag, attrs):
        self.inside = tag == "caption"
        self.captions += [""] * self.inside

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.captions[-1] += data


def copied(report, destination):
    """The results folder of a report somewhere else, without its pages, and what making them there says."""
    shutil.copytree(report[1], destination, ignore=shutil.ignore_patterns("report"))

    def pages():
        return build(destination, CAPTIONS, destination / "report")

    return destination, pages


def test_a_copied_results_folder_has_the_same_pages_wherever_it_is(report, tmp_path, monkeypatch):
    """The working folder has rounds of the same names, of another host, which must not be taken."""
    folder, pages = copied(report, tmp_path / "elsewhere")
    shutil.copytree(report[1], tmp_path / "results")
    for raw in (tmp_path / "results").rglob("*.parquet"):
        raw.write_bytes(b"another host's")
    monkeypatch.chdir(tmp_path)
    made = next(page for page in pages() if page.name == "latency.html")
    assert made.read_bytes() == (report[1] / "report" / "latency.html").read_bytes()
    shutil.rmtree(folder / CPU["platform"] / "rounds")
    with pytest.raises(StepError, match=r"elsewhere/results.csv names raw latencies in results/.*; bring its rounds"):
        pages()


def test_rounds_of_one_ladder_and_batch_may_lie_flat_and_others_are_not_taken_for_them(tmp_path):
    one = CPU | {"batches": [4]}
    folder, pages = copied(make(tmp_path, [one]), tmp_path / "elsewhere")
    shutil.move(next(folder.glob("*/rounds/*/*/b4")), folder / "rounds")
    shutil.rmtree(folder / CPU["platform"])
    assert "latency.html" in {page.name for page in pages()}
    shutil.copy(folder / "rounds" / "2.parquet", folder / "rounds" / "1.parquet")
    with pytest.raises(StepError, match="1.parquet: not the raw latencies of .*, batch 4, round 1: the median is not"):
        pages()


def specs_of(html: str) -> list[dict]:
    return [json.loads(text) for text in re.findall(r'<script type="application/json" id="[^"]+">(.*?)</script>', html)]


def without_scripts(html: str) -> str:
    return re.sub(r"<script[^>]*>.*?</script>", "", html, flags=re.DOTALL)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_page_is_self_contained_and_states_the_weights_with_every_table(report, name):
    html = (report[1] / "report" / f"{name}.html").read_text(encoding="utf-8")
    visible = without_scripts(html)
    assert not re.search(r"(src|href)\s*=|url\(|@import|<link", visible)
    parser = Captions()
    parser.feed(visible)
    for caption in parser.captions:
        assert "seeded(0): random weights, timing only" in caption or "pretrained sha256:f37072fd" in caption
    assert "Synthetic GPU" in visible and "onnxruntime 1.99.0" in visible and "2030-01-01" in visible
    text = (CAPTIONS / f"{name}.rst").read_text(encoding="utf-8")
    assert re.sub(r"[*]", "", text).split()[0] in visible


@pytest.mark.parametrize(("name", "count"), [("waterfall", 6), ("throughput", 2), ("latency", 14), ("audit", 13)])
def test_every_figure_is_valid_vega_lite_without_warnings(report, name, count):
    html = (report[1] / "report" / f"{name}.html").read_text(encoding="utf-8")
    specs = specs_of(html)
    assert len(specs) == count
    for spec in specs:
        assert spec["width"] == "container" and spec["description"]
        svg = vl_convert.vegalite_to_svg(spec | {"width": 400}, vl_version="6.4")
        assert "<path" in svg and "NaN" not in svg


def test_the_page_on_throughput_says_what_rungs_are_bound_by(report):
    text = without_scripts((report[1] / "report" / "throughput.html").read_text(encoding="utf-8"))
    assert text.count("<caption>Utilisation. Weights") == 2
    assert text.count(">host share</th>") == 1  # a CPU's ladder has none
    assert '<td data-title="bound by" class="bound">host</td>' in text
    assert "Peaks of Synthetic GPU, measured: fp16 600 TFLOPS, fp32 40.0 TFLOPS, memory 4,000 GB/s" in text


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize(("name", "element", "count"), [("waterfall", "svg", 6), ("latency", "canvas", 14)])
def test_figures_appear_in_a_browser_as_wide_as_its_window(report, tmp_path, name, element, count):
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=30000 --window-size=600,9000 --dump-dom"
    address = (report[1] / "report" / f"{name}.html").as_uri()
    command = ["chromium", *flags.split(), f"--user-data-dir={tmp_path}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    drawn = [tag for tag in re.findall(rf"<{element} [^>]*>", done.stdout) if 'class="marks"' in tag]
    widths = [int(re.search(r' width="(\d+)"', tag)[1]) for tag in drawn]
    assert len(widths) == count
    assert min(widths) > 530 and max(widths) <= 600 - 2 * 16  # the body's padding


def steps_of(summary, ladder, batch):
    return next(e["steps"] for e in summary["ladders"] if (e["ladder"], e["batch"]) == (ladder, batch))


def test_a_waterfall_holds_the_ladders_own_figures(report):
    entry = next(e for e in report[0]["ladders"] if (e["ladder"], e["batch"]) == ("cpu", 1))
    steps = attribution.paths(shown(entry))[1]
    data = figures.waterfall(steps, figures.waterfall_reach_ms(steps))["datasets"]
    assert [bar["text"] for bar in data["totals"]] == [
        f"{number(steps[0]['from_ms'])} ms",
        f"{number(steps[1]['to_ms'])} ms",
    ]
    (bar,) = data["shown"]
    assert (bar["start"], bar["end"], bar["cause"]) == (steps[0]["from_ms"], steps[0]["to_ms"], "compilation")
    assert bar["low"] == pytest.approx(steps[0]["from_ms"] * (1 - steps[0]["ci_high_pct"] / 100))
    assert bar["low"] < bar["end"] < bar["high"]
    (undecided,) = data["undecided"]
    assert undecided["verdict"] == "within noise"
    assert undecided["text"].endswith("\nwithin noise\nran in int8: 77.0 % of FLOPs")


def test_an_interval_beyond_the_axis_ends_in_an_arrow(report):
    steps = attribution.paths(shown(next(e for e in report[0]["ladders"] if (e["ladder"], e["batch"]) == ("cpu", 1))))
    wide = [{**step, "ci_low_pct": -900.0} for step in steps[1]]
    reach_ms = figures.waterfall_reach_ms(wide)
    arrows = figures.waterfall(wide, reach_ms)["datasets"]["beyond"]
    assert [arrow["edge"] for arrow in arrows] == [reach_ms] * len(wide)
    assert not figures.waterfall(steps[1], figures.waterfall_reach_ms(steps[1]))["datasets"]["beyond"]


@given(st.floats(0.1, 99.9), st.floats(0.1, 99.9), st.sampled_from(["precision", "launch"]))
def test_a_label_has_the_room_that_it_needs_on_a_narrow_screen(from_ms, to_ms, cause):
    step = {
        "from": "a", "to": "b", "cause": cause, "from_ms": from_ms, "to_ms": to_ms, "gain_ms": from_ms - to_ms,
        "gain_pct": 100 * (1 - to_ms / from_ms), "ci_low_pct": None, "ci_high_pct": None, "verdict": "within noise",
        "ran_in": "int8: 77.0 % of FLOPs",
    }  # fmt: skip
    label = figures._bar(step, 100.0)
    room = (100 - label["edge"] if label["align"] == "left" else label["edge"]) / 100
    assert label["edge"] == 0 or room * figures.NARROW_CHARACTERS >= max(map(len, label["text"].split("\n")))


def test_no_latency_axis_begins_below_zero():
    runs = [(1, np.array([1_000, 90_000_000, 40_000_000], dtype=np.int64), 40.0)]
    spec, _ = figures.latency(runs, 100)
    low, high = next(layer["encoding"]["y"]["scale"]["domain"] for layer in spec["layer"])
    assert low == 0 and high > 90


def test_a_slower_step_grows_the_bar_and_says_so():
    step = {
        "from": "a", "to": "b", "cause": "precision", "from_ms": 10.0, "to_ms": 12.0, "gain_ms": -2.0,
        "gain_pct": -20.0, "ci_low_pct": -22.0, "ci_high_pct": -18.0, "verdict": "slower",
        "ran_in": "int8: 0.3 % of FLOPs",
    }  # fmt: skip
    assert figures.waterfall_reach_ms([step]) == pytest.approx(1.02 * 12.2)
    (bar,) = figures.waterfall([step], 12.4)["datasets"]["shown"]
    assert bar["text"] == "gain −2.0 ms, −20.0 %\nran in int8: 0.3 % of FLOPs"
    assert (bar["low"], bar["high"]) == pytest.approx((11.8, 12.2))


def test_the_total_of_a_waterfall_is_told_with_its_interval_everywhere(report):
    summary, results = report
    entry = next(e for e in summary["ladders"] if e["ladder"] == "orders")
    (total,) = entry["totals"]
    assert (total["from"], total["to"], total["verdict"]) == ("eager", "tensorrt-graph", "faster")
    line = f"All causes together, eager → tensorrt-graph: {from_to(total)} ms, gain {gain(total)}, faster; 8 rounds"
    assert "(+" in gain(total)
    for name in ("ladder", "waterfall", "start"):
        assert line in without_scripts((results / "report" / f"{name}.html").read_text(encoding="utf-8"))
    assert line in (results / "ladder.md").read_text(encoding="utf-8").replace("\u00a0", " ")
    assert line in ladder_text(summary, [], "x", 200, False)
    specs = [spec["datasets"] for spec in specs_of((results / "report" / "waterfall.html").read_text(encoding="utf-8"))]
    ends = [data["totals"][-1]["text"] for data in specs if "tensorrt-graph" in data["totals"][-1]["label"]]
    assert ends == [f"{number(total['to_ms'])} ms, total:\n{gain(total)}"] * 2


def test_a_total_that_is_not_shown_to_be_more_than_noise_says_so():
    step = {"from": "a", "to": "b", "cause": "launch", "from_ms": 10.0, "to_ms": 9.0, "gain_ms": 1.0, "ran_in": ""}
    step |= {"gain_pct": 10.0, "ci_low_pct": -5.0, "ci_high_pct": 23.0, "verdict": "within noise", "rounds": 8}
    total = figures.waterfall([step], 12.0, step)["datasets"]["totals"][-1]
    assert total["text"] == "9.00 ms, total within noise:\n+10.0 % (−5.0 to +23.0)"
    rungs = [dict.fromkeys(("requested_precision", "verdict", "reason")) | {"name": name} for name in "ab"]
    shares = dict.fromkeys(("flops_at_precision_pct", "nodes_at_precision_pct"))
    entry = {"rungs": [rung | shares for rung in rungs], "totals": [step | {"rounds": 0}]}
    assert totals(entry) == ["All causes together, a → b: no round holds both"]


def test_a_step_of_one_round_has_no_interval():
    step = {
        "from": "a", "to": "b", "cause": "launch", "from_ms": 10.0, "to_ms": 8.0, "gain_ms": 2.0, "gain_pct": 20.0,
        "ci_low_pct": None, "ci_high_pct": None, "verdict": "too few rounds", "ran_in": "",
    }  # fmt: skip
    assert figures.waterfall_reach_ms([step]) == pytest.approx(10.2)
    data = figures.waterfall([step], 10.2)["datasets"]
    assert data["intervals"] == [] and len(data["undecided"]) == 1
    wild = step | {"ci_low_pct": -900.0, "ci_high_pct": 99.0}
    assert figures.waterfall_reach_ms([wild]) == pytest.approx(1.02 * 13)  # such an interval goes on beyond the axis


def test_both_orders_have_a_waterfall_and_their_interaction_is_told(report):
    html = without_scripts((report[1] / "report" / "waterfall.html").read_text(encoding="utf-8"))
    for one, other in (("launch", "compilation"), ("compilation", "launch")):
        assert re.search(
            rf"eager to tensorrt-graph: {one}, then {other}</h3>\s*"
            rf"<p>[^<]+ ms; gains: {one} \+\S+ ms, then {other} \+\S+ ms</p>",
            html,
        )
    (line,) = interactions(steps_of(report[0], "orders", 8))
    assert "8 rounds; intervals are 99 % ones." in html
    assert line.startswith("Interaction of launch and compilation: −") and "less after the other" in line
    assert line in html
    (step, *_) = steps_of(report[0], "orders", 8)
    row = step | {"interaction_ms": 0.1, "interaction_low_ms": -0.2, "interaction_high_ms": 0.4}
    assert ": +0.100 ms (−0.200 to +0.400): no more than noise; the order" in interactions([row])[0]
    older = {key: value for key, value in row.items() if key not in ("interaction_low_ms", "interaction_high_ms")}
    assert "(" not in interactions([older])[0]
    few = interactions([row | {"verdict": "too few rounds"}])
    assert few == ["Interaction of launch: +0.100 ms; too few rounds to tell it from noise."]


def test_saturation_is_ringed_where_it_is_reached_and_told_where_not():
    def rows(rung, ips):
        return [
            {"rung": rung, "batch": b, "median_ips": v, "min_ips": v, "max_ips": v, "rounds": 8} for b, v in ips.items()
        ]

    points = rows("flat", {1: 100.0, 2: 101.0}) + rows("rising", {1: 100.0, 2: 200.0})
    spec = figures.throughput(
        points, [{"rung": "flat", "batch": 1}, {"rung": "rising", "batch": None}], ["flat", "rising"]
    )
    assert [(ring["rung"], ring["batch"]) for ring in spec["datasets"]["rings"]] == [("flat", 1)]


def test_a_single_batch_can_be_drawn():
    row = {"rung": "r", "batch": 1, "median_ips": 5.0, "min_ips": 4.0, "max_ips": 6.0, "rounds": 8}
    spec = figures.throughput([row], [], ["r"])
    assert "NaN" not in vl_convert.vegalite_to_svg(spec | {"width": 400}, vl_version="6.4")


def test_latencies_are_all_shown_where_they_fit():
    runs = [(1, np.array([3_000_000, 1_000_000]), 2.0), (2, np.array([5_000_000]), 5.0)]
    spec, told = figures.latency(runs, 100)
    assert [(p["i"], p["ms"], p["r"], p["p"]) for p in spec["datasets"]["points"]] == [
        (0, 3.0, 1, 0), (1, 1.0, 1, 0), (2, 5.0, 2, 1),
    ]  # fmt: skip
    assert [(m["i"], m["to"], m["ms"]) for m in spec["datasets"]["medians"]] == [(0, 2, 2.0), (2, 3, 5.0)]
    assert told == "3 iterations"


def test_latencies_that_are_left_out_are_counted():
    spec, told = figures.latency([(1, np.arange(1000) * 1_000_000, 1.0)], 100)
    assert len(spec["datasets"]["points"]) == 100
    assert told == "100 of 1,000 iterations, the lowest and highest of every 20"


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.integers(2, 50))
def test_thinning_keeps_order_and_the_extremes_of_every_block(values, block):
    kept = figures.extremes(np.array(values), block)
    assert sorted(set(kept)) == list(kept)
    for start in range(0, len(values), block):
        part = values[start : start + block]
        held = [values[i] for i in kept if start <= i < start + block]
        assert 1 <= len(held) <= 2
        assert (min(held), max(held)) == (min(part), max(part))


def test_colours_of_a_figure_differ():
    for colours in (figures.CAUSE_COLOURS, figures.PRECISION_COLOURS):
        assert len(set(colours.values())) == len(colours)
    assert len(set(figures.RUNG_COLOURS)) == len(set(figures.RUNG_SHAPES)) == 8


def test_text_is_escaped_everywhere():
    evil = "</script><b>&"
    cell = table([Column("a", evil)], [{"a": evil}], evil)
    html = page(evil, "", [evil], [Block(evil, [evil], [Figure(evil, {"title": evil})], [cell], [evil])])
    assert evil not in html
    assert specs_of(html) == [{"title": evil}]


def test_failures_and_warnings_are_listed(report):
    html = without_scripts((report[1] / "report" / "failures.html").read_text(encoding="utf-8"))
    assert "run broke" in html and "logs/x.log" in html and "other programs kept 0.6 to 1.2 CPUs" in html


def test_a_run_that_measured_nothing_still_has_a_report(tmp_path):
    everything = dict.fromkeys((rung["name"] for rung in CPU["rungs"]), "export")

    def fail_all(results):
        for batch in CPU["batches"]:
            for number_ in range(1, 9):
                synthetic.write_round(results, CPU, batch, number_, 30, failed=everything)

    _, results = make(tmp_path, [CPU], fail_all)
    pages = {p.stem: without_scripts(p.read_text(encoding="utf-8")) for p in (results / "report").iterdir()}
    assert set(pages) == {*SECTIONS, "start"}
    assert "Nothing was measured" in pages["latency"]
    assert "no round holds both sides" in pages["waterfall"]
    assert "No throughput was measured" in pages["throughput"]
    assert "export broke" in pages["failures"]
    assert "no result" in pages["ladder"] and "too few rounds" not in pages["ladder"]


def test_the_fastest_rung_is_told_everywhere_and_all_are_ranked(report):
    summary, results = report
    entry = next(each for each in summary["ladders"] if each["model"] == "yolo11n" and each["batch"] == 1)
    whole, fp32, int8 = rankings(entry)
    assert [row["precision"] for row in (whole[0], fp32[0], int8[0])] == [None, "fp32", "int8"]
    assert {row["name"] for row in whole} == {rung["name"] for rung in entry["rungs"]}
    lines = fastest(entry)
    assert len(lines) == 3
    assert lines[0].startswith("Fastest at batch 1: onnxruntime-int8 ⚠ (") and "; slower: " in lines[0]
    assert lines[1].startswith("Fastest in fp32 at batch 1: onnxruntime-fp32 (") and "openvino-fp32 1.0" in lines[1]
    pages = [(results / "report" / f"{name}.html").read_text(encoding="utf-8") for name in ("ladder", "start")]
    for text in (
        *pages,
        (results / "ladder.md").read_text(encoding="utf-8"),
        ladder_text(summary, [], "x", 900, False),
    ):
        assert all(line.replace("\u00a0", " ") in text.replace("\u00a0", " ") for line in lines)
    for html in pages:
        rows = cells_of(html.partition("Ranking, fastest first")[2].partition("</table>")[0])
        assert "onnxruntime-int8 ⚠" in rows and any(re.fullmatch(r"1\.00 times \(1\.00 to .*\)", cell) for cell in rows)


def test_what_is_not_ranked_is_named_and_copies_are_told_apart():
    rung = {
        "verdict": None,
        "requested_precision": None,
        "flops_at_precision_pct": None,
        "nodes_at_precision_pct": None,
    }
    row = {"precision": None, "rounds": 3, "median_ms": 2.0, "slowdown": 1.0, "slowdown_low": 1.0, "slowdown_high": 9.0}
    row |= {"verdict": "too few rounds"}
    ranked = [row | {"rung": name, "transfers": t} for t in ("excluded", "included") for name in (f"a-{t}", f"b-{t}")]
    names = [*(each["rung"] for each in ranked), "broken"]
    entry = {"batch": 4, "ranking": ranked, "rungs": [rung | {"name": name} for name in names]}
    few = "3 rounds are too few to tell it from the others"
    assert [line.replace("\u00a0", " ") for line in fastest(entry)] == [
        f"Fastest with transfers excluded at batch 4: a-excluded (2.00 ms); {few}",
        f"Fastest with transfers included at batch 4: a-included (2.00 ms); {few}",
        "Not ranked, for want of rounds that the others have too: broken",
    ]
    one = {"batch": 4, "ranking": [each | {"rounds": 1} for each in ranked[:2]]}
    (line,) = fastest(one | {"rungs": [*entry["rungs"][:2], rung | {"name": "unbuilt", "verdict": "failed"}]})
    assert line.endswith("; 1 round is too few to tell it from the others")
    assert fastest(entry | {"ranking": []}) == [] and rankings({"rungs": []}) == []


def test_an_engine_that_could_not_be_built_leaves_the_rest_of_the_ladder_as_it_is(tmp_path):
    """Two models, of which one's last rung has no engine."""
    ends = (
        ("eager", "graph", "launch"),
        ("graph", "tensorrt-graph", "compilation"),
        ("tensorrt-graph", "tensorrt", "none"),
    )
    resnet = GPU | {"steps": synthetic._steps(*ends)}
    yolo = resnet | {"model": "yolo11n"}
    reason = "could not build: no implementation for node {ForeignNode[conv...sigmoid]}"

    def spoil(results):
        for each in range(1, 9):
            synthetic.write_round(results, resnet, 8, each, 30, failed={"tensorrt": "engine"})
        audit = results / "synthetic-gpu/audit/resnet18/tensorrt.json"
        audit.write_text("")
        why = {"stage": "engine", "permanent": True, "reason": reason, "log": None}
        write_json(audit.with_suffix(".pass.json"), {"status": "failed", **why})

    summary, results = make(tmp_path, [yolo, resnet], spoil)
    whole, lacking = summary["ladders"]
    assert [(total["to"], total["rounds"]) for total in whole["totals"]] == [("tensorrt", 8)]
    assert [(total["to"], total["rounds"]) for total in lacking["totals"]] == [("tensorrt", 0), ("tensorrt-graph", 8)]
    assert next(rung for rung in lacking["rungs"] if rung["name"] == "tensorrt")["requested_precision"] == "fp32"
    assert not any("Not ranked" in line for line in fastest(lacking))
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (results / "report").glob("*.html")}
    drawn = [spec["datasets"]["totals"][1] for spec in specs_of(pages["waterfall"])]
    assert [bar["label"].split("\n")[1] for bar in drawn] == ["tensorrt", "tensorrt-graph"]
    assert drawn[1]["text"].endswith(gain(lacking["totals"][1]))
    for name in ("ladder", "waterfall"):
        assert f"tensorrt: not measured, {reason}" in pages[name]
    assert "nothing was built or measured" not in pages["audit"]
    parity = pages["audit"].partition("resnet18 (platform")[2].partition("Parity with the reference")[2]
    assert '<td data-title="engine" class="engine">tensorrt</td>' not in parity.partition("</table>")[0]


def test_a_single_rung_has_no_step_to_compare(tmp_path):
    summary, results = make(tmp_path, [CPU | {"rungs": CPU["rungs"][:1], "steps": [], "batches": [1], "rounds": 1}])
    assert "no step to compare" in (results / "ladder.md").read_text(encoding="utf-8")
    assert "no step to compare" in (results / "report" / "ladder.html").read_text(encoding="utf-8")
    assert "no step to compare" in ladder_text(summary, [], "x", 80, False)


WARNING = "⚠ onnxruntime-int8: requested int8, but only 0.3 % of the FLOPs run in it"


def test_no_table_or_figure_lets_a_reader_believe_that_a_requested_precision_ran(report):
    summary, results = report
    for name in ("ladder", "waterfall", "throughput", "latency", "start"):
        html = (results / "report" / f"{name}.html").read_text(encoding="utf-8")
        assert WARNING in without_scripts(html), name
        assert not re.search(r"onnxruntime-int8(?! ⚠|:)", html), name
    for text in (ladder_text(summary, [], "x", 200, False), (results / "ladder.md").read_text(encoding="utf-8")):
        assert WARNING in text.replace("\u00a0", " ")
        assert not re.search(r"onnxruntime-int8(?! ⚠|:)", text)


def test_an_engine_that_was_kept_out_is_explained_below_the_table():
    rung = {"name": "a", "verdict": "exclude", "reason": "an output is not finite"}
    assert audit_notes({"rungs": [rung, rung | {"verdict": None}]}) == ["⚠ a: not measured, an output is not finite"]


def test_precision_that_ran_is_told_by_flops_else_by_nodes_else_not_at_all():
    rung = {"requested_precision": "int8", "flops_at_precision_pct": 0.313, "nodes_at_precision_pct": 2.1}
    assert ran_in(rung) == "int8: 0.3 % of FLOPs"
    assert ran_in(rung | {"flops_at_precision_pct": None}) == "int8: 2.1 % of nodes"
    assert ran_in(dict.fromkeys(rung)) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026.4.1-22982-e213a147257-releases/2026/4", "2026.4.1"), ("2.14.1+cu130", "2.14.1+cu130"),
        ("v3.12.0 (Git Hash 80afa71049cd)", "v3.12.0"), (["1.2.3", "1.2.4"], "1.2.3 and 1.2.4"),
        ("5c4886908584029761b5", ""), ("mkl", ""), ("ORT Build Info: git-branch=HEAD", ""), (None, ""),
    ],
)  # fmt: skip
def test_only_releases_stand_beside_a_table(value, text):
    assert releases(value) == text


def test_the_chart_of_time_says_what_it_leaves_out(report):
    html = (report[1] / "report" / "audit.html").read_text(encoding="utf-8")
    assert "Left out, since their runtimes do not time them: pytorch-fp32." in html
    nodes = [{"engine": "a", "nodes": 3, "time_ms": 1.0}, {"engine": "a", "nodes": 2, "time_ms": None}]
    assert _untimed(nodes) == "Left out, since their runtimes do not time them: a (2 of 5 nodes)."
    assert _untimed(nodes[:1]) == ""


def test_each_step_says_what_disturbed_its_runs(report):
    summary, results = report
    html = without_scripts((results / "report" / "ladder.html").read_text(encoding="utf-8"))
    assert html.count('<td data-title="disturbed" class="disturbed">') == 4 + 4 + 4
    assert "disturbed" not in (results / "report" / "start.html").read_text(encoding="utf-8")
    place = {"platform": "p", "model": "m", "ladder": "l"}
    entry, step = {**place, "batch": 1}, {"from": "a", "to": "b"}
    run = {**place, "batch": "1", "device": "cuda", "throttled": "none", "contended": "none"}
    runs = [run | {"rung": rung} for rung in "aab"] + [run | {"rung": "c", "throttled": "hot"}]

    def told(runs, unsteady=(), busy=()):
        listed = {"unsteady_runs": [entry | {"rung": rung} for rung in unsteady]}
        listed |= {"busy_runs": [entry | {"rung": rung} for rung in busy]}
        return _disturbed(entry, step, _disturbances(listed, runs))

    assert told(runs) == "nothing seen"
    assert told([]) == "" and told([run | {"rung": "c"}]) == ""
    assert told(runs, unsteady="abc", busy="b") == "of 3 runs 2 unsteady, 1 beside busy programs"
    hot, unseen = runs[0] | {"throttled": "power cap"}, runs[2] | {"contended": ""}
    assert told([hot, unseen]) == "of 2 runs 1 throttled, 1 not known whether contended"
    assert told([unseen | {"device": "cpu", "throttled": ""}]) == "nothing seen"


def test_the_audit_names_the_rungs_that_use_an_engine(report):
    html = without_scripts((report[1] / "report" / "audit.html").read_text(encoding="utf-8"))
    assert '<td data-title="of the rungs" class="rungs">onnxruntime-int8 ⚠</td>' in html
    assert re.search(r"<h3>onnxruntime-int8</h3>\s*<p>onnxruntime-int8 ⚠</p>", html)
    place = {"platform": "p", "model": "m"}
    rungs = [{"name": name, "engine": "e", "verdict": "pass"} for name in ("eager", "graph")]
    entry = {**place, "ladder": "l", "rungs": rungs}
    assert _rungs_of_engines({"ladders": [entry, entry]}) == {("p", "m", "e"): "eager, graph"}
    told = _rungs_of_engines({"ladders": [entry, {**entry, "ladder": "k", "rungs": rungs[:1]}]})
    assert told == {("p", "m", "e"): "eager (l), graph (l), eager (k)"}


def test_a_page_of_many_parts_is_folded_and_draws_a_figure_only_when_it_is_near():
    figure = Figure("f", {"title": "t"})
    many, few = ([Block(f"part {i}", figures=[figure]) for i in range(count)] for count in (9, 8))
    assert page("", "", [], many).count("<details") == 9 and page("", "", [], many).count("<details open>") == 1
    assert "<details" not in page("", "", [], few)
    assert page("", "", [], few).count("IntersectionObserver(") == 1


def test_what_the_report_opens_with_links_to_every_page(report, monkeypatch):
    html = (report[1] / "report" / "start.html").read_text(encoding="utf-8")
    assert "<script" not in html
    for name, (title, _) in SECTIONS.items():
        assert f"results/report/{name}.html" in html and f">{title}</a>" in html
    monkeypatch.chdir(report[1].parent)  # Snakemake renders the description so, from where it was called
    description = (CAPTIONS / "start.rst").read_text(encoding="utf-8")
    assert html in publish_parts(description, writer="html")["html_body"]


def test_missing_files_and_old_columns_are_named(report, tmp_path):
    with pytest.raises(StepError, match="summary.json is missing"):
        build(tmp_path, CAPTIONS, tmp_path)
    with pytest.raises(StepError, match="ladder.rst is missing"):
        build(report[1], tmp_path, tmp_path)
    (tmp_path / "failures.csv").write_text("platform,rung\n")
    with pytest.raises(StepError, match="other columns"):
        read_table(tmp_path / "failures.csv", tables.FAILURES)


@pytest.mark.parametrize("width", [40, 72, 80, 120, 200])
def test_the_terminal_table_fits_and_is_plain_without_colour(report, width):
    summary, results = report
    failures = read_table(results / "failures.csv", tables.FAILURES)
    text = ladder_text(summary, failures, "results/report.html", width, colour=False)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    flat = " ".join(text.split())
    for needed in ("faster", "within noise", "seeded(0): random weights, timing only", "+", "run broke"):
        assert needed in flat
    assert "Report: results/report.html" in flat


def test_a_terminal_row_is_never_broken_where_a_line_of_it_fits(report):
    def lines(width):
        return ladder_text(report[0], [], "x", width, colour=False).splitlines()

    assert any(
        re.search("^onnxruntime-fp32 → onnxruntime-int8 ⚠ .* int8: 0.3 % of FLOPs  ", line) for line in lines(200)
    )
    middle = [line for line in lines(150) if line.startswith("onnxruntime-fp32 → onnxruntime-int8 ⚠  precision ")]
    assert middle and all("int8: 0.3 % of FLOPs" in line for line in middle)
    assert any("smallest findable" in line for line in lines(120))
    narrow = lines(80)
    at = narrow.index("onnxruntime-fp32 → onnxruntime-int8 ⚠ (precision; int8: 0.3 % of FLOPs)")
    assert re.search(r"^ +\S+ → \S+ ms   \+\S+ % \(\+\S+ to \+\S+\)   faster$", narrow[at + 1])


def test_the_terminal_table_is_coloured_where_asked(report, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in ladder_text(report[0], [], "results/report.html", 100, colour=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (0, "0.00"), (86.149, "86.1"), (4.7149, "4.71"), (0.05567, "0.0557"), (9.996, "10.0"),
        (1234.6, "1,235"), (99.96, "100"), (-0.0485, "-0.0485"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


def test_gains_are_written_with_their_sign_and_interval():
    step = {"gain_ms": -1.25, "from_ms": 69.4, "gain_pct": -1.8, "ci_low_pct": -2.5, "ci_high_pct": 0.1}
    step |= {"verdict": "within noise"}
    assert gain(step | {"verdict": "too few rounds"}) == "−1.8 %"
    assert gain(step) == "−1.8 % (−2.5 to +0.1)"
    assert gain_ms(step) == "−1.2"
    assert gain(step | {"ci_low_pct": None}) == "−1.8 %"
    assert gain(step | {"gain_pct": None}) == gain_ms(step | {"gain_ms": None}) == ""


def test_weights_are_labelled():
    assert weights_note("seeded(0)") == "seeded(0): random weights, timing only"
    assert weights_note("pretrained sha256:f37072fd") == "pretrained sha256:f37072fd"
    assert "not known" in weights_note(None)


def cells_of(markup):
    return re.findall(r"<td [^>]*>([^<]*)</td>", markup.replace("\u00a0", " "))


def test_a_gpus_clocks_are_told_by_rung_and_batch():
    ends = [f"{what}_{end}" for what in ("temperature", "sm_clock", "memory_clock") for end in ("start", "end")]
    keys = [end + ("_c" if end.startswith("t") else "_mhz") for end in ends]
    readings = {1: ("38", "40", "1980", "1980", "3201", ""), 2: ("37", "", "1980", "1965", "3201", "3201")}
    rows = [{"rung": "a", "batch": "8"} | dict(zip(keys, each, strict=True)) for each in readings.values()]
    cells = cells_of(by_rung(runs_by_rung(rows), {"a": "a"}, "", CLOCKS)[0])
    assert cells == ["a", "8", "37 to 40", "1965 to 1980", "3201"]


def test_a_table_of_rungs_keeps_their_order_and_leaves_out_what_nothing_says():
    rows = [
        {"rung": rung, "batch": batch, "ms": ms} for rung, batch, ms in (("a", 1, 9.0), ("b", 8, None), ("b", 4, 7.0))
    ]
    cells = {Column("ms", "p50, ms", True): lambda row: number(row["ms"]), Column("no", "no"): lambda row: ""}
    (told,) = by_rung(rows, {"b": "b ⚠", "a": "a"}, "", cells)
    assert cells_of(told) == ["b ⚠", "4", "7.00", "b ⚠", "8", "", "a", "1", "9.00"]
    assert by_rung(rows[1:2], {"b": "b"}, "", cells) == []


GPU_RUN = {"device": "cuda", "power_w": "", "energy_missing": ""}
STILL, UNTOLD = ({**GPU_RUN, "energy_missing": text} for text in ("it stands still", "no energy counter is told"))
WRONG = [GPU_RUN | {"energy_missing": f"the energy counter gives {w} W, the power readings 80 W"} for w in (200, 210)]


@pytest.mark.parametrize(
    ("runs", "asked_s", "text"),
    [
        ([GPU_RUN | {"device": "cpu"}], 1.0, "Platform p has no energy: it is read of GPUs only."),
        ([GPU_RUN | {"power_w": "412.5"}], 10.0, ""),
        ([STILL, STILL, UNTOLD, GPU_RUN | {"power_w": "412.5"}], 1.5,
         "Platform p has no energy in 3 of 4 runs: it stands still (2), no energy counter is told (1). A short "
         "throughput pass sees too little of the counter: set measure.throughput_seconds to 10 (it was 1.5) "
         "and call again."),
        ([UNTOLD], None,
         "Platform p has no energy in 1 of 1 runs: no energy counter is told (1). A short throughput pass sees "
         "too little of the counter: set measure.throughput_seconds to 10 and call again."),
        ([STILL], 10.0,
         "Platform p has no energy in 1 of 1 runs: it stands still (1). Throughput passes of 10 s are long enough for "
         "a counter that works: where it has too few steps longer ones may help, else the GPU, its driver or a "
         "container does not give it."),
        (WRONG, 1.0,
         "Platform p has no energy in 2 of 2 runs: the energy counter gives 200 to 210 W, the power readings 80 W (2). "
         "That counter is wrong or counts in another unit than it says; no setting changes that."),
    ],
)  # fmt: skip
def test_missing_energy_is_told_with_its_reasons_and_what_to_do(runs, asked_s, text):
    assert energy_note("p", runs, asked_s) == text


def test_reasons_of_missing_energy_are_those_that_the_telemetry_gives():
    seconds = [Sample(at * 10**9, 0, energy_j=500.0 * at, power_w=100.0, temperature_c=40.0) for at in range(40)]
    columns = summarise(
        seconds, {"pid": 1, "opening_ns": 0, "loops_ns": [(0, 1)], "throughput_ns": (0, 39 * 10**9)}, 10, 1
    )
    assert columns["energy_missing"].startswith(DISAGREES)


def test_the_report_says_once_a_platform_why_energy_is_missing(report):
    pages = {path.stem: without_scripts(path.read_text(encoding="utf-8")) for path in (report[1] / "report").iterdir()}
    for line in (
        "Platform synthetic-cpu has no energy: it is read of GPUs only.",
        "Platform synthetic-gpu has no energy in 32 of 32 runs: the GPU was not looked at in the throughput pass (32).",
    ):
        assert [html.count(line) for name, html in pages.items() if line in html] == [1]
        assert line in pages["throughput"]


def test_memory_and_percentiles_are_told_with_their_units(report):
    pages = {
        name: without_scripts((report[1] / "report" / f"{name}.html").read_text(encoding="utf-8"))
        for name in ("throughput", "latency")
    }
    assert pages["throughput"].count("<caption>Peak memory, lowest to highest over rounds. Weights") == 2
    assert '<td data-title="process, MB" class="number">410</td>' in pages["throughput"]  # rounded half to even
    assert pages["latency"].count('<td data-title="p99, ms"') == 14  # a row a rung and batch
    run = {"device_mem_source": "device"} | dict.fromkeys(
        ("process_mem_mb", "device_mem_mb", "allocator_mem_mb", "weights_mb", "activations_mb", "context_mb"), ""
    )
    runs = [{"rung": "a", "batch": 1, "runs": [run | {"device_mem_mb": "1907.2"}, run | {"device_mem_mb": ""}]}]
    assert cells_of(by_rung(runs, {"a": "a"}, "", MEMORY)[0]) == ["a", "1", "1,907", "the whole GPU"]


def test_a_gpu_without_a_name_has_peaks_of_its_own():
    measured = {"tflops": {"fp32": 40.0}, "bandwidth_gb_s": 4000.0}
    told = peaks_note({"device": None, "measured": measured, "datasheet": None})
    assert told == "Peaks of a GPU that tells no name, measured: fp32 40.0 TFLOPS, memory 4,000 GB/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), ([], "none"), ([None, "a"], "unreadable, a"), (True, "yes"), ({"min": 1, "max": 2}, "1 to 2"),
        ([[1, 3, 640], [8, 3, 640]], "[1, 3, 640], [8, 3, 640]"),
    ],
)  # fmt: skip
def test_a_reading_is_told_as_it_is(value, text):
    assert _value(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("static_batch", None, "none: its batch is dynamic"), ("static_batch", 8, "8"),
        ("cpu_quota", None, "none found"), ("cpu_quota", 1.5, "1.5"), ("governor", None, ""),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_apart_from_what_could_not_be_read(name, value, text):
    assert _reading(name, value) == text
    assert cells_of(_named_values({name: value}, "")) == [name, text]


def test_the_environment_says_how_runs_were_timed_and_what_was_asked_of_each_rung(report, tmp_path):
    html = without_scripts((report[1] / "report" / "environment.html").read_text(encoding="utf-8"))
    row = re.search(r">onnxruntime-int8 ⚠</td>.*?</tr>", html, flags=re.DOTALL)[0]
    for title, value in {"precision": "int8", "transfers": "excluded", "threads": "2", "options": "none"}.items():
        assert f'<td data-title="{title}" class="{title}">{value}</td>' in row
    assert "<h2>How runs were timed" not in html  # this plan does not tell
    protocol = {
        "measure": {"throughput_seconds": 1.5, "iterations": None},
        "inputs": {"m": {"height": 640, "width": 480}},
    }
    blocks = _environment(report[0] | {"protocol": protocol}, report[1])
    assert blocks[0].heading == "How runs were timed"
    assert cells_of(blocks[0].tables[0])[:6] == [
        "throughput_seconds", "1.5", "iterations", "as many as the other settings ask for", "inputs.m",
        "height 640, width 480",
    ]  # fmt: skip


def test_scripts_write_the_pages_and_show_the_ladder(report, tmp_path):
    shutil.copytree(report[1], tmp_path / "results")
    scripts = REPOSITORY / "scripts"
    command = [
        sys.executable,
        scripts / "pages.py",
        "--results",
        "results",
        "--captions",
        CAPTIONS,
        "--output-dir",
        "new",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert {path.stem for path in (tmp_path / "new").iterdir()} == {*SECTIONS, "start"}
    shown = subprocess.run(
        [sys.executable, scripts / "show.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "faster" in shown.stdout and "No result (1)" in shown.stdout and "Report: not made" in shown.stdout


def test_a_terminal_without_unicode_is_shown_the_ladder_too(report, tmp_path):
    shutil.copytree(report[1], tmp_path / "results")
    plain = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, REPOSITORY / "scripts" / "show.py"]
    shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=os.environ | plain)
    assert b"pytorch-fp32 ? onnxruntime-fp32" in shown.stdout and shown.stdout.isascii()


@pytest.mark.parametrize("script", ["aggregate.py", "pages.py"])
def test_tables_and_pages_wait_for_a_measurement(report, tmp_path, script):
    """While another folder measures nothing is computed; what is waited for is said, and then it is done."""
    shutil.copytree(report[1], tmp_path / "results")
    write_json(tmp_path / "plan.json", {"ladders": []})
    lock = tmp_path / "host.lock"
    arguments = {
        "aggregate.py": ["--plan", "plan.json"],
        "pages.py": ["--results", "results", "--captions", CAPTIONS],
    }
    command = [sys.executable, REPOSITORY / "scripts" / script, *arguments[script], "--output-dir", "new"]
    with open(lock, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        environment = os.environ | {"LADDER_HOST_LOCK": str(lock)}
        waiting = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment)
        assert "waiting, another workflow of this host is measuring" in waiting.stdout.readline()
        assert waiting.poll() is None and not (tmp_path / "new").exists()
    assert waiting.wait(60) == 0
    waiting.stdout.close()
    assert any((tmp_path / "new").iterdir())


def test_show_says_so_where_there_are_no_tables(tmp_path):
    command = [sys.executable, REPOSITORY / "scripts" / "show.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "No tables in results" in done.stderr


def test_the_summary_is_what_the_report_was_made_from(report):
    summary, results = report
    assert read_json(results / "summary.json") == json.loads(json.dumps(summary))
    write_json(results / "copy.json", summary)
