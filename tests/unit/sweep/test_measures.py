"""What is measured of a run, and the statistics over repetitions."""

from statistics import stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test

from hansa.simulation.sweep.results import Result, is_loss, measure, metrics_of, target_for, versions_of
from hansa.simulation.sweep.statistics import margin, sign_flip, smallest_p, summarise
from tests.unit.sweep.samples import entry, plan_of, report_of, result_of

CURVE = [0.1, 0.5, 0.4, 0.8, 0.6, 0.7]


def measured(metric: str = "accuracy", curve: list[float] = CURVE, **fields: Any) -> dict[str, float | None]:
    plan = plan_of(**fields)
    losses = {"loss": [1 - value for value in curve], "loss_validation": [0.9, 0.3, 0.2, 0.4, 0.2, 0.6]}
    result = result_of(plan, 0, curve, {name: values[: len(curve)] for name, values in losses.items()})
    return measure(result, metric, plan.spec, target_for(metric, plan.spec, ["accuracy", "loss"]))


def test_measures_of_a_curve_are_those_computed_by_hand() -> None:
    values = measured(last=2, target=0.5)
    assert values["final"] == 0.7
    assert values["mean"] == pytest.approx(3.1 / 6)
    assert values["last"] == pytest.approx(0.65)
    assert values["spread"] == pytest.approx(stdev([0.8, 0.6, 0.7]))
    assert values["rounds_to_target"] == 2
    assert values["bytes_to_target"] == 600


def test_of_a_loss_less_is_better() -> None:
    values = measured("loss", target={"metric": "loss", "value": 0.3})
    assert values["rounds_to_target"] == 4
    assert measured("loss", target={"metric": "accuracy", "value": 0.3})["rounds_to_target"] is None
    assert measured(minimise=["accuracy"], target=0.1)["rounds_to_target"] == 1


def test_the_best_version_is_the_first_that_is_best_on_validation_data() -> None:
    assert measured(select="loss_validation")["best"] == 0.4
    assert measured(select="loss_validation", minimise=["accuracy"])["best"] == 0.4


def test_sites_that_are_held_out_for_testing_are_measured_apart_and_choose_nothing() -> None:
    def held_out(version: int, validated: float, tested: float, examples: int = 8) -> dict[str, Any]:
        test = {"metrics": {"accuracy": tested}, "examples": examples, "examples_total": 8}
        return entry(version, metrics={"accuracy": validated}, test=test)

    plan = plan_of()
    history = [held_out(1, 0.5, 0.9), held_out(2, 0.8, 0.6), held_out(3, 0.9, 0.7, examples=5)]
    result = Result(plan.runs[0], "completed", versions=versions_of({"history": history}))
    assert metrics_of(plan.spec, [result]) == ("accuracy_test",)
    values = measure(result, "accuracy_test", plan.spec, None)
    assert values["final"] == 0.6, "the last version was not evaluated at all test sites"
    assert values["best"] == 0.6, "of the versions that were tested, the second is best at validation sites"
    assert measure(result, "accuracy", plan.spec, None)["best"] is None


def test_what_does_not_exist_is_never_a_number() -> None:
    values = measured()
    assert [values[name] for name in ("best", "rounds_to_target", "bytes_to_target")] == [None] * 3
    assert measured(select="nonsense")["best"] is None
    assert measured(target=0.95)["rounds_to_target"] is None
    assert set(measured("nonsense").values()) == {None}
    assert measured(curve=[0.4])["spread"] is None


def test_versions_count_if_they_were_evaluated_on_enough_examples() -> None:
    report = report_of([0.5, None, 0.7])
    report["history"].append(entry(4, metrics={"accuracy": 0.9}, covered=False))
    report["history"].append(entry(5, metrics={"accuracy": None, "loss": 0.2}))
    versions = versions_of(report)
    assert [version.metrics.get("accuracy") for version in versions] == [None, 0.5, None, 0.7, None, None]
    assert versions[-1].metrics == {"loss": 0.2}
    assert (versions[-1].bytes_up, versions[-1].bytes_down) == (500, 1000)


def test_a_metric_may_be_the_first_of_several_that_a_version_has() -> None:
    both, one = {"accuracy": 0.5, "accuracy_personal": 0.7}, {"accuracy": 0.6}
    history = [entry(1, metrics=both), entry(2, metrics=one), entry(3)]
    name = "accuracy_personal or accuracy"
    versions = versions_of({"history": history}, ["loss", name])
    assert [version.metrics.get(name) for version in versions] == [0.7, 0.6, None]


def test_what_all_sites_report_while_they_train_has_a_mean_and_a_maximum() -> None:
    updates = [{"metrics": {"starting_loss": loss, "rare": 1.0}} for loss in (1.0, 2.0, 6.0)]
    updates[1]["metrics"].pop("rare")
    (version,) = versions_of({"history": [entry(1, updates=updates)]})
    assert version.metrics == {"starting_loss_mean_of_sites": 3.0, "starting_loss_most_of_sites": 6.0}
    plan = plan_of()
    assert is_loss("starting_loss_most_of_sites", plan.spec)


def test_accuracy_is_compared_or_loss_where_there_is_none() -> None:
    plan = plan_of()
    assert metrics_of(plan.spec, [result_of(plan, 0, CURVE)]) == ("accuracy",)
    assert metrics_of(plan.spec, []) == ()
    assert metrics_of(plan_of(metrics=["micro_f1"]).spec, []) == ("micro_f1",)


def test_a_summary_leaves_out_what_does_not_exist() -> None:
    summary = summarise([1.0, None, 3.0])
    assert summary is not None
    assert (summary.n, summary.mean, summary.least, summary.most) == (2, 2.0, 1.0, 3.0)
    assert summary.deviation == pytest.approx(2**0.5)
    single = summarise([4.0])
    assert single is not None
    assert single.deviation is None
    assert summarise([None]) is None


def test_margins_are_of_pairs() -> None:
    base: dict[tuple[str, ...], float | None] = {("0",): 1.0, ("1",): 2.0, ("2",): 4.0, ("3",): None}
    values: dict[tuple[str, ...], float | None] = {
        ("3",): 7.0,
        ("2",): 5.0,
        ("1",): 4.0,
        ("0",): 1.5,
        ("9",): 8.0,
    }
    difference = margin(values, base)
    assert difference is not None
    assert (difference.n, difference.least, difference.most) == (3, 0.5, 2.0)
    assert difference.mean == pytest.approx(3.5 / 3)
    assert difference.p == 0.25
    assert margin({("0",): 1.0}, {("1",): 1.0}) is None
    single = margin({("0",): 3.0}, {("0",): 1.0})
    assert single is not None
    assert (single.mean, single.p) == (2.0, None)


def test_the_sign_flip_test_is_the_one_computed_by_hand() -> None:
    assert sign_flip([1, 2, 3]) == 0.25  # only ±(1 + 2 + 3) is as far from 0
    assert sign_flip([1, 2, -3]) == 1.0
    assert sign_flip([3, 3, -1]) == 0.5  # ±(3 + 3 - 1) and ±(3 + 3 + 1), of eight
    assert sign_flip([0, 0]) == 1.0
    assert sign_flip([0.1, 0.2, 0.3]) == sign_flip([0.3, 0.1, 0.2]) == 0.25


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_the_sign_flip_test_agrees_with_scipy(differences: list[float]) -> None:
    whole = [round(each * 16) / 16 for each in differences]  # sums are exact
    theirs = permutation_test((whole,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(whole) == pytest.approx(min(theirs.pvalue, 1))


def test_many_pairs_are_tested_with_random_signs_that_repeat() -> None:
    rng = np.random.default_rng(1)
    ahead = (rng.normal(size=40) + 2).tolist()
    even = (rng.normal(size=40) * np.tile([1, -1], 20)).tolist()
    assert sign_flip(ahead) == sign_flip(ahead) == smallest_p(40)
    assert sign_flip(even) > 0.05


def test_few_pairs_cannot_have_a_small_p() -> None:
    assert [smallest_p(pairs) for pairs in (1, 2, 3, 5, 6)] == [1, 0.5, 0.25, 0.0625, 0.03125]
    assert sign_flip([5.0] * 6) == smallest_p(6)
