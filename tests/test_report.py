from __future__ import annotations

import json
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
from hypothesis import given
from hypothesis import strategies as st

from ladder import attribution, tables
from ladder.aggregate import aggregate
from ladder.errors import StepError
from ladder.files import read_json, write_json
from ladder.report import figures
from ladder.report.build import SECTIONS, build
from ladder.report.console import ladder_text
from ladder.report.page import Block, Column, Figure, page, table
from ladder.report.read import read_table
from ladder.report.text import gain, gain_ms, interactions, number, weights_note

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


def specs_of(html: str) -> list[dict]:
    decoder = json.JSONDecoder()
    return [decoder.raw_decode(html, match.end())[0] for match in re.finditer(r'vegaEmbed\("#chart-[\d-]+", ', html)]


def without_scripts(html: str) -> str:
    return re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)


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


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize(("name", "element", "count"), [("waterfall", "svg", 6), ("latency", "canvas", 14)])
def test_figures_appear_in_a_browser_as_wide_as_its_window(report, tmp_path, name, element, count):
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=20000 --window-size=600,900 --dump-dom"
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
    steps = attribution.paths(steps_of(report[0], "cpu", 1))[1]
    data = figures.waterfall(steps)["datasets"]
    assert [bar["text"] for bar in data["totals"]] == [
        f"{number(steps[0]['from_ms'])} ms",
        f"{number(steps[1]['to_ms'])} ms",
    ]
    (shown,) = data["shown"]
    assert (shown["start"], shown["end"], shown["cause"]) == (steps[0]["from_ms"], steps[0]["to_ms"], "compilation")
    assert shown["low"] == pytest.approx(steps[0]["from_ms"] * (1 - steps[0]["ci_high_pct"] / 100))
    assert shown["low"] < shown["end"] < shown["high"]
    (undecided,) = data["undecided"]
    assert undecided["verdict"] == "within noise" and "within noise" in undecided["text"]


def test_a_slower_step_grows_the_bar_and_says_so():
    step = {
        "from": "a", "to": "b", "cause": "precision", "from_ms": 10.0, "to_ms": 12.0, "gain_ms": -2.0,
        "gain_pct": -20.0, "ci_low_pct": -22.0, "ci_high_pct": -18.0, "verdict": "slower",
    }  # fmt: skip
    (bar,) = figures.waterfall([step])["datasets"]["shown"]
    assert bar["text"] == "+2.0 ms, +20.0 %"
    assert (bar["low"], bar["high"]) == pytest.approx((11.8, 12.2))


def test_a_step_of_one_round_has_no_interval():
    step = {
        "from": "a", "to": "b", "cause": "launch", "from_ms": 10.0, "to_ms": 8.0, "gain_ms": 2.0, "gain_pct": 20.0,
        "ci_low_pct": None, "ci_high_pct": None, "verdict": "too few rounds",
    }  # fmt: skip
    data = figures.waterfall([step])["datasets"]
    assert data["intervals"] == [] and len(data["undecided"]) == 1


def test_both_orders_have_a_waterfall_and_their_interaction_is_told(report):
    html = without_scripts((report[1] / "report" / "waterfall.html").read_text(encoding="utf-8"))
    assert "launch, then compilation: eager to tensorrt-graph" in html
    assert "compilation, then launch: eager to tensorrt-graph" in html
    (line,) = interactions(steps_of(report[0], "orders", 8))
    assert line.startswith("Interaction of launch and compilation: −") and "less after the other" in line
    assert line in html


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
    spec, shown = figures.latency(runs, 100)
    assert [(p["i"], p["ms"], p["r"], p["p"]) for p in spec["datasets"]["points"]] == [
        (0, 3.0, 1, "odd"), (1, 1.0, 1, "odd"), (2, 5.0, 2, "even"),
    ]  # fmt: skip
    assert [(m["i"], m["to"], m["ms"]) for m in spec["datasets"]["medians"]] == [(0, 2, 2.0), (2, 3, 5.0)]
    assert shown == "3 iterations"


def test_latencies_that_are_left_out_are_counted():
    spec, shown = figures.latency([(1, np.arange(1000) * 1_000_000, 1.0)], 100)
    assert len(spec["datasets"]["points"]) == 100
    assert shown == "100 of 1,000 iterations, the lowest and highest of every 20"


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
    assert "run broke" in html and "logs/x.log" in html and "load is 0.7" in html


def test_a_run_that_measured_nothing_still_has_a_report(tmp_path):
    everything = dict.fromkeys((rung["name"] for rung in CPU["rungs"]), "export")

    def fail_all(results):
        for batch in CPU["batches"]:
            for number_ in range(1, 9):
                synthetic.write_round(results, CPU, batch, number_, 30, failed=everything)

    _, results = make(tmp_path, [CPU], fail_all)
    pages = {p.stem: without_scripts(p.read_text(encoding="utf-8")) for p in (results / "report").iterdir()}
    assert set(pages) == set(SECTIONS)
    assert "Nothing was measured" in pages["latency"]
    assert "no round holds both sides" in pages["waterfall"]
    assert "No throughput was measured" in pages["throughput"]
    assert "export broke" in pages["failures"]
    assert "too few rounds" in pages["ladder"]


def test_a_single_rung_has_no_step_to_compare(tmp_path):
    summary, results = make(tmp_path, [CPU | {"rungs": CPU["rungs"][:1], "steps": [], "batches": [1], "rounds": 1}])
    assert "no step to compare" in (results / "ladder.md").read_text(encoding="utf-8")
    assert "no step to compare" in (results / "report" / "ladder.html").read_text(encoding="utf-8")
    assert "no step to compare" in ladder_text(summary, [], "x", 80, False)


def test_missing_files_and_old_columns_are_named(report, tmp_path):
    with pytest.raises(StepError, match="summary.json is missing"):
        build(tmp_path, CAPTIONS, tmp_path)
    with pytest.raises(StepError, match="ladder.rst is missing"):
        build(report[1], tmp_path, tmp_path)
    (tmp_path / "failures.csv").write_text("platform,rung\n")
    with pytest.raises(StepError, match="other columns"):
        read_table(tmp_path / "failures.csv", tables.FAILURES)


@pytest.mark.parametrize("width", [40, 72, 80, 100, 160])
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
    assert gain(step) == "−1.8 % (−2.5 to +0.1)"
    assert gain_ms(step) == "−1.2"
    assert gain(step | {"ci_low_pct": None}) == "−1.8 %"
    assert gain(step | {"gain_pct": None}) == gain_ms(step | {"gain_ms": None}) == ""


def test_weights_are_labelled():
    assert weights_note("seeded(0)") == "seeded(0): random weights, timing only"
    assert weights_note("pretrained sha256:f37072fd") == "pretrained sha256:f37072fd"
    assert "not known" in weights_note(None)


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
    assert {path.stem for path in (tmp_path / "new").iterdir()} == set(SECTIONS)
    shown = subprocess.run(
        [sys.executable, scripts / "show.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "faster" in shown.stdout and "No result (1)" in shown.stdout and "Report: not made" in shown.stdout


def test_show_says_so_where_there_are_no_tables(tmp_path):
    command = [sys.executable, REPOSITORY / "scripts" / "show.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "No tables in results" in done.stderr


def test_the_summary_is_what_the_report_was_made_from(report):
    summary, results = report
    assert read_json(results / "summary.json") == json.loads(json.dumps(summary))
    write_json(results / "copy.json", summary)
