"""Attribution: which rounds pair up, what a row says, and the paths of a waterfall."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from ladder import statistics
from ladder.attribution import RANKING, TOTAL, attribute, order, paths, ranking, totals
from ladder.errors import StepError
from ladder.tables import FLAGS, LADDER, RESULTS

quick = settings(max_examples=40, deadline=None)
two_rungs = arrays.arrays(float, st.tuples(st.just(2), st.integers(6, 10)), elements=st.floats(0.5, 200))


def table(medians: dict[str, list[float]], **columns) -> pd.DataFrame:
    """Rows of results.csv for run medians in ms by rung, one a round; a None is a run that is not there."""
    rows = [
        {"platform": "cpu", "host": "h", "device_uuid": "u", "model": "m", "weights": "seeded(0)", "ladder": "l",
         "rung": rung, "batch": 1, "round": number, "median_ms": median, **columns}
        for rung, values in medians.items() for number, median in enumerate(values) if median is not None
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(RESULTS))


def ladder(*steps: tuple[str, str, str], batches: tuple[int, ...] = (1,)) -> dict:
    named = [{"from": a, "to": b, "cause": cause} for a, b, cause in steps]
    return {
        "platform": "cpu", "ladder": "l", "model": "m", "weights": "seeded(0)", "batches": list(batches), "steps": named
    }  # fmt: skip


def compare(from_medians, to_medians) -> pd.Series:
    runs = table({"a": list(from_medians), "b": list(to_medians)})
    return attribute(runs, [ladder(("a", "b", "compilation"))]).iloc[0]


def test_a_row_is_what_the_method_says():
    a, b = np.array([10.0, 11, 9, 10, 10.5, 9.5, 10, 10]), np.array([5.0, 5.2, 4.9, 5.1, 5, 5, 4.8, 5.3])
    row = compare(a, b)
    d = np.log(a / b)
    assert tuple(row.index) == LADDER
    assert (row["rounds"], row["verdict"]) == (8, "faster")
    assert row["from_ms"] == pytest.approx(np.exp(np.log(a).mean()))
    assert row["gain_ms"] == pytest.approx(row["from_ms"] - row["to_ms"])
    assert row["gain_pct"] == pytest.approx(100 * (1 - np.exp(-d.mean())))
    assert row["gain_pct"] == pytest.approx(100 * row["gain_ms"] / row["from_ms"])
    half = 3.499483 * d.std(ddof=1) / np.sqrt(8)  # t(0.995, 7) from the published table
    assert row["ci_low_pct"] == pytest.approx(100 * (1 - np.exp(half - d.mean())))
    assert row["ci_high_pct"] == pytest.approx(100 * (1 - np.exp(-half - d.mean())))
    assert row["noise_floor_ms"] == pytest.approx(3.499483 * np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 8))
    assert row["mde_pct"] == pytest.approx(100 * (1 - np.exp(-5.12994 * d.std(ddof=1) / np.sqrt(8))))
    assert np.isnan(row["interaction_ms"])


@quick
@given(two_rungs)
def test_swapping_from_and_to_mirrors_the_row(medians):
    forth, back = compare(*medians), compare(*medians[::-1])
    mirror = {"faster": "slower", "slower": "faster"}
    assert back["verdict"] == mirror.get(forth["verdict"], forth["verdict"])
    assert back["gain_ms"] == pytest.approx(-forth["gain_ms"], abs=1e-9)
    assert (back["from_ms"], back["to_ms"]) == (forth["to_ms"], forth["from_ms"])
    for low, high in (("ci_low_pct", "ci_high_pct"), ("ci_high_pct", "ci_low_pct"), ("gain_pct", "gain_pct")):
        assert (1 - back[low] / 100) * (1 - forth[high] / 100) == pytest.approx(1)
    for same in ("noise_floor_ms", "mde_pct"):
        assert back[same] == pytest.approx(forth[same])


@quick
@given(two_rungs, st.floats(0.01, 100))
def test_a_slower_clock_changes_ms_and_nothing_else(medians, factor):
    row, scaled = compare(*medians), compare(*(factor * medians))
    for column in ("from_ms", "to_ms", "gain_ms", "noise_floor_ms"):
        assert scaled[column] == pytest.approx(factor * row[column], abs=1e-6)
    for column in ("gain_pct", "ci_low_pct", "ci_high_pct", "mde_pct"):
        assert scaled[column] == pytest.approx(row[column], rel=1e-6, abs=1e-6)


@quick
@given(two_rungs, st.randoms(use_true_random=False))
def test_neither_rows_nor_rounds_have_an_order(medians, random):
    numbers = list(range(medians.shape[1]))
    random.shuffle(numbers)
    runs = table({"a": list(medians[0]), "b": list(medians[1])})
    shuffled = table({"a": list(medians[0][numbers]), "b": list(medians[1][numbers])}).sample(frac=1, random_state=1)
    steps = [ladder(("a", "b", "compilation"))]
    pd.testing.assert_frame_equal(attribute(runs, steps), attribute(shuffled, steps))


@quick
@given(two_rungs)
def test_identical_runs_are_within_noise(medians):
    row = compare(medians[0], medians[0])
    assert (row["verdict"], row["gain_ms"], row["gain_pct"], row["mde_pct"]) == ("within noise", 0, 0, 0)


def test_attribution_and_calibration_apply_the_same_rule():
    lines = (Path(__file__).parent / "data" / "aa-onnxruntime-cpu.jsonl").read_text().splitlines()
    medians = np.array([np.median(json.loads(line)) for line in lines])
    rng = np.random.default_rng(6)
    for factor in (1.0, 1.3):
        for _ in range(10):
            first, second = rng.permutation(medians)[:16].reshape(2, 8) * [[1.0], [factor]]
            _, low, high = statistics.paired_interval(np.log(first / second))
            assert compare(first, second)["verdict"] == statistics.verdict(low, high, 8)


def kinds(medians: dict[str, list[float]], transfers: str = "excluded") -> pd.DataFrame:
    """``table`` of rungs that are named after their precision, e.g. ``b-fp32``."""
    parts = [
        table({rung: values}, precision=rung.rpartition("-")[2], transfers=transfers)
        for rung, values in medians.items()
    ]
    return pd.concat(parts)


STEADY = np.array([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0])
WILD = np.array([1.0, 1.4, 0.7, 1.1, 0.9, 1.3, 0.8, 1.0])


def test_rungs_of_a_batch_are_ranked_all_and_by_precision():
    medians = {"a-fp32": 10 * STEADY, "b-fp32": 6.2 * WILD, "c-fp32": 6 * STEADY[::-1], "d-int8": 5 * STEADY}
    ranks = ranking(kinds({rung: list(ms) for rung, ms in medians.items()}), [ladder(("a-fp32", "b-fp32", "tuning"))])
    assert tuple(ranks.columns) == RANKING and set(ranks["rounds"]) == {8}
    whole, fp32 = ranks[ranks["precision"].isna()], ranks[ranks["precision"] == "fp32"]
    assert len(whole) + len(fp32) == len(ranks)  # one rung in int8 is nothing to rank
    assert dict(zip(whole["rung"], whole["verdict"], strict=True)) == {
        "d-int8": "may be fastest", "c-fp32": "slower", "b-fp32": "may be fastest", "a-fp32": "slower"
    }  # fmt: skip
    assert fp32["verdict"].tolist() == ["may be fastest", "may be fastest", "slower"]
    a = fp32.iloc[-1]
    assert a["median_ms"] == pytest.approx(stats.gmean(10 * STEADY))
    assert a["slowdown"] == pytest.approx(a["median_ms"] / fp32.iloc[0]["median_ms"])
    ends = []
    for other in (medians["b-fp32"], medians["c-fp32"]):
        d = np.log(medians["a-fp32"] / other)
        half = stats.t.ppf(1 - 0.01 / 2 / 2, 7) * d.std(ddof=1) / np.sqrt(8)
        ends.append((d.mean() - half, d.mean() + half))
    assert a["slowdown_low"] == pytest.approx(np.exp(max(0, min(low for low, _ in ends))))
    assert a["slowdown_high"] == pytest.approx(np.exp(max(high for _, high in ends)))


def test_a_ranking_needs_rounds_that_all_of_its_rungs_have():
    """c has three rounds only, and is in no ranking rather than taking five from the others."""
    runs = kinds({"a-fp32": list(STEADY), "b-fp32": [*2 * STEADY[:7], None], "c-fp32": [None] * 5 + [0.1] * 3})
    ranks = ranking(runs, [ladder(("a-fp32", "b-fp32", "tuning"))])
    assert ranks["rung"].tolist() == ["a-fp32", "b-fp32"] and set(ranks["rounds"]) == {7}
    assert ranks["verdict"].tolist() == ["fastest", "slower"]
    few = ranking(runs[runs["round"] < 2], [ladder(("a-fp32", "b-fp32", "tuning"))])
    assert few["rung"].tolist() == ["a-fp32", "b-fp32"] and set(few["verdict"]) == {"too few rounds"}
    one = ranking(runs[runs["round"] == 0], [ladder(("a-fp32", "b-fp32", "tuning"))])
    assert one["slowdown"].tolist() == pytest.approx([1, 2]) and one["slowdown_low"].isna().all()
    assert ranking(runs[runs["rung"] == "a-fp32"], [ladder(("a-fp32", "b-fp32", "tuning"))]).empty
    assert ranking(table({}), [ladder(("a-fp32", "b-fp32", "tuning"))]).empty


def test_a_ranking_leaves_out_flagged_rounds_and_rounds_of_several_devices():
    runs = kinds({"a-fp32": list(STEADY), "b-fp32": list(2 * STEADY)}).reset_index(drop=True)
    runs["throttled"] = ["thermal"] + ["none"] * 15
    runs.loc[9, "device_uuid"] = "another"
    assert set(ranking(runs, [ladder(("a-fp32", "b-fp32", "tuning"))])["rounds"]) == {6}
    assert set(ranking(runs, [ladder(("a-fp32", "b-fp32", "tuning"))], exclude=())["rounds"]) == {7}


def test_rungs_that_time_copies_are_ranked_among_themselves():
    pair = {"a-fp32": list(STEADY), "b-fp32": list(2 * STEADY)}
    copied = kinds({f"copied-{rung}": values for rung, values in pair.items()}, transfers="included")
    ranks = ranking(pd.concat([kinds(pair), copied]), [ladder(("a-fp32", "b-fp32", "tuning"))])
    assert ranks["transfers"].tolist() == ["excluded"] * 2 + ["included"] * 2
    assert ranks["verdict"].tolist() == ["fastest", "slower"] * 2


def test_only_rounds_with_both_rungs_count():
    row = compare([10, 10, 10, 10, 10, 10, 99], [8, 8, 8, 8, 8, None, None])
    assert (row["rounds"], row["verdict"]) == (5, "too few rounds")
    assert row["from_ms"] == pytest.approx(10)
    assert row[["gain_pct", "ci_low_pct", "ci_high_pct"]].tolist() == pytest.approx([20] * 3)


def test_a_run_without_a_median_is_no_run():
    runs = table({"a": [10.0] * 8, "b": [8.0] * 8})
    runs.loc[0, "median_ms"] = np.nan
    assert attribute(runs, [ladder(("a", "b", "compilation"))])["rounds"].tolist() == [7]


def test_one_round_has_a_gain_and_no_interval():
    row = compare([10], [8])
    assert (row["rounds"], row["verdict"]) == (1, "too few rounds")
    assert row["gain_ms"] == pytest.approx(2)
    assert row[["ci_low_pct", "ci_high_pct", "noise_floor_ms", "mde_pct"]].isna().all()


@pytest.mark.parametrize("runs", [table({"a": [10.0] * 8}), table({})], ids=["rung missing", "no run at all"])
def test_a_missing_rung_keeps_its_row_empty(runs):
    row = attribute(runs, [ladder(("a", "b", "compilation"))]).iloc[0]
    assert (row["rounds"], row["verdict"]) == (0, "too few rounds")
    assert row[["from_ms", "to_ms", "gain_ms", "gain_pct", "ci_low_pct", "noise_floor_ms", "mde_pct"]].isna().all()


@pytest.mark.parametrize("column", ["device_uuid", "host"])
@pytest.mark.parametrize("other", ["elsewhere", None])
def test_a_pair_across_devices_is_left_out_aloud(caplog, column, other):
    runs = table({"a": [10.0] * 8, "b": [8.0] * 8})
    runs.loc[(runs["rung"] == "b") & (runs["round"] == 3), column] = other
    row = attribute(runs, [ladder(("a", "b", "compilation"))]).iloc[0]
    assert row["rounds"] == 7
    assert "round 3 is left out" in caplog.text
    assert "cpu, m, l, batch 1" in caplog.text


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flagged_run_takes_its_round_out_of_its_rungs_steps(flag):
    runs = table({"a": [10.0] * 8, "b": [8.0] * 8, "c": [6.0] * 8})
    runs[flag] = "none"
    runs.loc[(runs["rung"] == "b") & (runs["round"] < 2), [flag, "median_ms"]] = ["software power cap", 80.0]
    runs.loc[(runs["rung"] == "c") & (runs["round"] == 7), [flag, "median_ms"]] = ["7 (300 MB)", 60.0]
    steps = [ladder(("a", "b", "compilation"), ("b", "c", "precision"), ("a", "c", "wrapper"))]
    rows = attribute(runs, steps)
    assert rows["rounds"].tolist() == [6, 5, 7] and rows["rounds_excluded"].tolist() == [2, 3, 1]
    assert rows["gain_ms"].tolist() == pytest.approx([2, 2, 4])  # none of what was left out is in a figure
    told = attribute(runs, steps, exclude=[])
    assert told["rounds"].tolist() == [8] * 3 and told["rounds_excluded"].tolist() == [0] * 3
    other = [each for each in FLAGS if each != flag]
    assert attribute(runs, steps, exclude=other)["rounds_excluded"].tolist() == [0] * 3


def test_a_flagged_run_is_out_of_an_interaction_too():
    steps = (("a", "b", "launch"), ("b", "d", "compilation"), ("a", "c", "compilation"), ("c", "d", "launch"))
    runs = table({"a": [10.0] * 7, "b": [6.0] * 7, "c": [7.0] * 7, "d": [5.0] * 7})
    runs["throttled"] = "none"
    runs.loc[(runs["rung"] == "d") & (runs["round"] == 0), ["throttled", "median_ms"]] = ["sync boost", 500.0]
    rows = attribute(runs, [ladder(*steps)])
    assert rows["interaction_ms"].tolist() == pytest.approx([(7 - 5) - (10 - 6)] * 4)


def test_flags_that_could_not_be_read_leave_nothing_out():
    runs = table({"a": [10.0] * 8, "b": [8.0] * 8})
    for value in (None, float("nan"), "none"):
        runs["throttled"] = value
        assert attribute(runs, [ladder(("a", "b", "compilation"))])["rounds_excluded"].tolist() == [0]


def test_rounds_on_different_devices_and_devices_without_a_uuid_pair_up(caplog):
    runs = table({"a": [10.0] * 8, "b": [8.0] * 8})
    runs["device_uuid"] = [f"u{number % 2}" for number in runs["round"]]
    assert attribute(runs, [ladder(("a", "b", "compilation"))])["rounds"].tolist() == [8]
    runs["device_uuid"] = None
    assert attribute(runs, [ladder(("a", "b", "compilation"))])["rounds"].tolist() == [8]
    assert not caplog.records


@pytest.mark.parametrize("column", ["platform", "model", "weights", "ladder", "batch"])
def test_runs_of_something_else_do_not_count(column):
    runs = pd.concat([table({"a": [10.0] * 8, "b": [8.0] * 8}), table({"b": [1.0] * 8}, **{column: 99})])
    row = attribute(runs, [ladder(("a", "b", "compilation"))]).iloc[0]
    assert (row["rounds"], row["to_ms"]) == (8, pytest.approx(8))


def test_two_runs_of_a_rung_in_one_round_are_refused():
    runs = pd.concat([table({"a": [10.0] * 8, "b": [8.0] * 8}), table({"b": [7.0]})])
    with pytest.raises(StepError, match="rung 'b' has two runs in round 0"):
        attribute(runs, [ladder(("a", "b", "compilation"))])


def test_a_median_of_zero_is_refused():
    with pytest.raises(StepError, match="median of 0.0 ms"):
        compare([10.0] * 8, [0.0] * 8)


def test_rows_come_in_configured_order_one_a_batch_and_step():
    steps = ladder(("a", "b", "compilation"), ("b", "c", "precision"), batches=(4, 1))
    rows = attribute(table({"a": [1.0] * 8}), [steps])
    assert rows[["batch", "from", "to"]].to_numpy().tolist() == [
        [4, "a", "b"],
        [4, "b", "c"],
        [1, "a", "b"],
        [1, "b", "c"],
    ]


SQUARE = (("a", "b", "launch"), ("b", "d", "compilation"), ("a", "c", "compilation"), ("c", "d", "launch"))


def test_interaction_is_the_gain_of_one_cause_after_the_other_less_before_it():
    medians = {"a": [10.0] * 8, "b": [6.0] * 8, "c": [7.0] * 8, "d": [5.0] * 8, "e": [4.0] * 8}
    rows = attribute(table(medians), [ladder(*SQUARE, ("d", "e", "precision"))])
    assert rows["interaction_ms"][:4].tolist() == pytest.approx([(7 - 5) - (10 - 6)] * 4)
    assert np.isnan(rows["interaction_ms"][4])
    gain = rows.set_index(["from", "to"])["gain_ms"]
    for late, early in ((("c", "d"), ("a", "b")), (("b", "d"), ("a", "c"))):
        assert gain[late] - gain[early] == pytest.approx(-2)


def test_interaction_uses_rounds_that_have_all_four_rungs():
    medians = {"a": [10.0, 99], "b": [6.0, 6], "c": [7.0, 7], "d": [5.0, None]}
    rows = attribute(table(medians), [ladder(*SQUARE)])
    assert rows["interaction_ms"].tolist() == pytest.approx([-2] * 4)
    rows = attribute(table(medians | {"d": []}), [ladder(*SQUARE)])
    assert rows["interaction_ms"].isna().all()


def test_an_interaction_has_an_interval_in_which_what_rounds_share_cancels():
    noise = np.exp(np.linspace(-0.02, 0.02, 8))
    medians = {"a": list(10 * noise), "b": [6.0] * 8, "c": [7.0] * 8, "d": [5.0] * 8}
    (row, *_) = attribute(table(medians), [ladder(*SQUARE)]).to_dict("records")
    half = stats.t.ppf(0.995, 7) * np.std(10 * np.log(noise), ddof=1) / np.sqrt(8)
    assert row["interaction_ms"] == pytest.approx(-2)
    assert row["interaction_low_ms"] == pytest.approx(-2 - half)
    assert row["interaction_high_ms"] == pytest.approx(-2 + half)
    shared = {"a": medians["a"], "b": [6.0] * 8, "c": list(10 * noise), "d": [5.0] * 8}
    (row, *_) = attribute(table(shared), [ladder(*SQUARE)]).to_dict("records")
    assert [row[f"interaction{end}_ms"] for end in ("", "_low", "_high")] == pytest.approx([1.0] * 3)
    (row, *_) = attribute(table({rung: values[:1] for rung, values in medians.items()}), [ladder(*SQUARE)]).to_dict(
        "records"
    )
    assert np.isnan(row["interaction_low_ms"]) and not np.isnan(row["interaction_ms"])


def test_two_ways_by_one_cause_are_no_interaction():
    steps = [(a, b, "precision") for a, b, _ in SQUARE]
    rows = attribute(table({rung: [1.0] * 8 for rung in "abcd"}), [ladder(*steps)])
    assert rows["interaction_ms"].isna().all()


def test_a_step_in_two_squares_shows_the_first_and_names_the_other(caplog):
    more = (("b", "f", "precision"), ("d", "g", "precision"), ("f", "g", "compilation"))
    medians = {rung: [float(median)] * 8 for rung, median in zip("abcdfg", (10, 6, 7, 5, 4, 2), strict=True)}
    rows = attribute(table(medians), [ladder(*SQUARE, *more)])
    assert rows["interaction_ms"][:4].tolist() == pytest.approx([-2] * 4)
    assert rows["interaction_ms"][4:].isna().all()
    assert "between b and g" in caplog.text


@quick
@given(arrays.arrays(float, st.tuples(st.just(4), st.integers(6, 10)), elements=st.floats(0.5, 200)))
def test_a_total_is_a_step_from_the_first_rung_to_the_last_and_its_gain_is_the_sum_of_the_steps(medians):
    runs = table(dict(zip("abcd", map(list, medians), strict=True)))
    (total,) = totals(runs, [ladder(*SQUARE)]).to_dict("records")  # one for both orders
    (step,) = attribute(runs, [ladder(("a", "d", "tuning"))]).to_dict("records")
    assert tuple(total) == TOTAL and total == {column: step[column] for column in TOTAL}
    steps = attribute(runs, [ladder(*SQUARE)])["gain_ms"]
    assert total["gain_ms"] == pytest.approx(steps[0] + steps[1], abs=1e-9)
    assert total["gain_ms"] == pytest.approx(steps[2] + steps[3], abs=1e-9)


def test_a_single_step_has_no_total():
    assert totals(table({"a": [1.0], "b": [2.0]}), [ladder(("a", "b", "launch"))]).empty


def test_a_total_needs_its_ends_only():
    runs = table({"a": [4.0] * 8, "b": [None] * 8, "c": [2.0] * 7 + [None]})
    (total,) = totals(runs, [ladder(("a", "b", "launch"), ("b", "c", "precision"))]).to_dict("records")
    assert (total["rounds"], total["verdict"], total["gain_pct"]) == (7, "faster", pytest.approx(50))


def test_where_the_last_rung_has_no_run_the_total_up_to_the_last_that_has_follows():
    steps = (("a", "b", "launch"), ("b", "c", "compilation"), ("c", "d", "precision"))
    found = totals(table({"a": [4.0] * 8, "b": [3.0] * 8, "c": [2.0] * 8}), [ladder(*steps)]).to_dict("records")
    assert [(row["from"], row["to"], row["rounds"]) for row in found] == [("a", "d", 0), ("a", "c", 8)]
    assert found[1]["gain_pct"] == pytest.approx(50)
    assert len(totals(table({"a": [4.0] * 8, "b": [3.0] * 8}), [ladder(*steps)])) == 1  # a step is its own total
    assert len(totals(table({"b": [3.0] * 8, "c": [2.0] * 8}), [ladder(*steps)])) == 1


def test_paths_of_branches_and_of_both_orders():
    steps = ladder(*SQUARE, ("d", "e", "precision"), ("c", "f", "precision"))["steps"]
    assert [[step["to"] for step in path] for path in paths(steps)] == [["b", "d", "e"], ["c", "d", "e"], ["c", "f"]]
    assert order(paths(steps)[0]) == "launch, then compilation, then precision"
    assert order(paths(steps)[1]) == "compilation, then launch, then precision"
    assert paths([]) == []


def test_paths_start_at_every_root():
    steps = ladder(("a", "b", "launch"), ("c", "b", "wrapper"))["steps"]
    assert [[step["from"] for step in path] for path in paths(steps)] == [["a"], ["c"]]


@pytest.mark.parametrize("steps", [("ab", "ba"), ("ab", "bc", "cb")])
def test_a_circle_is_refused(steps):
    with pytest.raises(StepError, match="circle"):
        paths(ladder(*((a, b, "tuning") for a, b in steps))["steps"])
