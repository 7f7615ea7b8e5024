"""Metrics of evaluators, compared with numpy, and how the reports of sites are pooled."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.data.examples import Examples
from hansa.common.torch.data import Tensors, loss_of, to_tensors
from hansa.common.torch.metrics import measure
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.controller.evaluation.plans import BySite, Pooled
from hansa.controller.plugin.plans import EvalPlan

BATCH = Tensors.usual
CLASSIFY = App(model=nn.Module, classes=4)
REGRESS = App(model=nn.Module, task="regression")
LABEL = App(model=nn.Module, task="multilabel", classes=4)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs)


@pytest.mark.parametrize("rows", [1, 10, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH + 7])
def test_loss_and_confusion_are_those_of_numpy(rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, y = rng.standard_normal((rows, 5)).astype(np.float32), rng.integers(0, 4, rows)
    module = _linear(5, 4)
    found = measure(CLASSIFY, module, Tensors(torch.from_numpy(x), torch.from_numpy(y)))
    weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
    logits = (x @ weight.T + bias).astype(np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(rows), y]
    confusion = np.zeros((4, 4), np.int64)
    np.add.at(confusion, (y, logits.argmax(axis=1)), 1)
    assert found.n == rows
    assert found.confusion == tuple(tuple(row) for row in confusion.tolist())
    assert found.loss_sum == pytest.approx(float(losses.sum()), rel=1e-5)


@pytest.mark.parametrize("column", [True, False])
def test_regression_is_measured_by_squared_errors_without_a_confusion(column: bool) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2500, 3)).astype(np.float32), rng.standard_normal(2500).astype(np.float32)
    module = _linear(3, 1)
    targets = torch.from_numpy(y)
    found = measure(REGRESS, module, Tensors(torch.from_numpy(x), targets[:, None] if column else targets))
    outputs = (x @ module.weight.detach().numpy().T + module.bias.detach().numpy())[:, 0]
    assert (found.n, len(found.confusion)) == (2500, 0)
    assert found.loss_sum == pytest.approx(float(((outputs - y) ** 2).sum()), rel=1e-4)


@pytest.mark.parametrize("rows", [1, BATCH, 2 * BATCH + 7])
def test_hits_and_misses_of_each_label_are_those_of_numpy(rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, y = rng.standard_normal((rows, 5)).astype(np.float32), rng.random((rows, 4)) < [0.9, 0.5, 0.1, 0.0]
    module = _linear(5, 4)
    found = measure(LABEL, module, to_tensors(LABEL, Examples(x, y), "cpu"))
    logits = (x @ module.weight.detach().numpy().T + module.bias.detach().numpy()).astype(np.float64)
    counts = [[0, 0, 0] for _ in range(4)]
    for row, label in np.ndindex(rows, 4):
        match bool(logits[row, label] > 0), bool(y[row, label]):
            case True, True:
                counts[label][0] += 1
            case True, False:
                counts[label][1] += 1
            case False, True:
                counts[label][2] += 1
    assert (found.n, len(found.confusion)) == (rows, 0)
    assert found.labels == tuple(map(tuple, counts))
    losses = np.log1p(np.exp(logits)) - y * logits
    assert found.loss_sum == pytest.approx(float(losses.mean(axis=1).sum()), rel=1e-5)


def test_a_logit_of_zero_predicts_nothing_and_no_number_neither() -> None:
    logits = torch.tensor([[0.0, 1e-9, -1e-9, torch.nan]])
    found = measure(LABEL, nn.Identity(), Tensors(logits, torch.ones(1, 4)))
    assert found.labels == ((0, 0, 1), (1, 0, 0), (0, 0, 1), (0, 0, 1))


@pytest.mark.parametrize("outputs", [6, 1])
def test_a_model_needs_one_logit_for_each_label(outputs: int) -> None:
    with pytest.raises(
        ValueError, match=rf"gives scores of shape \[3, {outputs}\] for labels of shape \[3, 4\]"
    ):
        measure(LABEL, _linear(5, outputs), Tensors(torch.zeros(3, 5), torch.zeros(3, 4)))


def test_a_loss_of_the_apps_own_is_used() -> None:
    app = App(
        model=nn.Module,
        task="regression",
        loss=lambda outputs, targets: (outputs[:, 0] - targets).abs().mean(),
    )
    x, y = torch.arange(6.0)[:, None], torch.zeros(6)
    assert measure(app, nn.Identity(), Tensors(x, y)).loss_sum == pytest.approx(15.0)
    app = App(
        model=nn.Module,
        task="multilabel",
        classes=1,
        loss=lambda outputs, targets: (outputs - targets).mean(),
    )
    assert measure(app, nn.Identity(), Tensors(x, y[:, None])).loss_sum == pytest.approx(15.0)


def test_nothing_to_measure_gives_an_empty_report() -> None:
    nothing = Tensors(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    assert measure(CLASSIFY, _linear(5, 4), nothing) == Evaluation(n=0, loss_sum=0.0)
    assert measure(LABEL, _linear(5, 4), Tensors(nothing.x, torch.zeros(0, 4))) == Evaluation(
        n=0, loss_sum=0.0
    )


def test_several_targets_per_example_are_counted_one_by_one() -> None:
    scores = torch.zeros(2, 4, 3)  # two examples, four classes, three targets each
    scores[:, 2, :] = 5.0
    targets = torch.tensor([[2, 2, 1], [0, 2, 2]])
    found = measure(CLASSIFY, nn.Identity(), Tensors(scores, targets))
    assert found.n == 6
    assert np.array(found.confusion)[:, 2].tolist() == [1, 1, 4, 0]
    expected = float(nn.functional.cross_entropy(scores, targets, reduction="sum"))
    assert found.loss_sum == pytest.approx(expected, rel=1e-6)


def test_a_model_with_another_number_of_scores_is_refused() -> None:
    data = Tensors(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="gives 6 scores, but the app has classes=4"):
        measure(CLASSIFY, _linear(5, 6), data)


def test_measuring_uses_evaluation_mode_and_leaves_no_trace() -> None:
    module = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.5), _linear(5, 4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    data = Tensors(torch.randn(20, 5), torch.zeros(20, dtype=torch.int64))
    assert measure(CLASSIFY, module, data) == measure(CLASSIFY, module, data)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not any(parameter.grad is not None for parameter in module.parameters())


# Tensors.


def test_arrays_become_tensors_of_the_types_that_torch_trains_on() -> None:
    y = np.array([0, 3], np.int8)
    pixels = to_tensors(CLASSIFY, Examples(np.array([[0, 255], [51, 0]], np.uint8), y), "cpu")
    assert pixels.x.tolist() == [[0.0, 1.0], [pytest.approx(0.2), 0.0]]
    assert pixels.y.dtype == torch.int64
    assert to_tensors(CLASSIFY, Examples(np.zeros((2, 1)), y), "cpu").x.dtype == torch.float32
    assert to_tensors(CLASSIFY, Examples(np.zeros((2, 1), np.int32), y), "cpu").x.dtype == torch.int64
    assert to_tensors(REGRESS, Examples(np.zeros((2, 1)), np.array([1, 2])), "cpu").y.dtype == torch.float32


def test_a_column_of_outputs_is_compared_row_by_row() -> None:
    assert float(loss_of(REGRESS, torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0]))) == 2.0


# Pooling.


def _pooled(plan: EvalPlan | None = None, **reports: Evaluation) -> Mapping[str, float]:
    return (plan or Pooled()).combine({SiteName(site): report for site, report in reports.items()})


def test_sites_are_pooled_by_sums_not_by_means() -> None:
    a = Evaluation(n=10, loss_sum=5.0, confusion=((9, 1), (0, 0)))
    b = Evaluation(n=2, loss_sum=7.0, confusion=((0, 0), (1, 1)))
    metrics = _pooled(a=a, b=b)
    assert metrics["accuracy"] == 10 / 12
    assert metrics["weighted_f1"] == pytest.approx((10 * 18 / 20 + 2 * 2 / 4) / 12)
    assert metrics["loss"] == 1.0


def test_empty_reports_count_for_nothing() -> None:
    empty = Evaluation(n=0, loss_sum=0.0)
    assert _pooled(a=empty) == {}
    assert _pooled() == {}
    full = Evaluation(n=4, loss_sum=2.0, confusion=((4, 0), (0, 0)))
    assert _pooled(a=full, b=empty) == _pooled(a=full)


def test_without_confusion_there_is_no_accuracy() -> None:
    metrics = _pooled(a=Evaluation(n=4, loss_sum=2.0))
    assert metrics["loss"] == 0.5
    assert metrics.keys() == {"loss"}


def test_an_apps_own_metrics_are_means_over_the_sites_that_report_them() -> None:
    a = Evaluation(n=1, loss_sum=0.0, metrics={"auc": 1.0})
    b = Evaluation(n=3, loss_sum=0.0, metrics={"auc": 0.5, "mae": 2.0})
    metrics = _pooled(a=a, b=b)
    assert metrics["auc"] == pytest.approx(0.625)
    assert metrics["mae"] == 2.0


def test_sites_whose_confusion_matrices_differ_in_size_do_not_break_the_job() -> None:
    a = Evaluation(n=2, loss_sum=1.0, confusion=((1, 1), (0, 0)))
    b = Evaluation(n=3, loss_sum=1.0, confusion=((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    assert _pooled(a=a, b=b) == {"loss": 0.4}  # nobody knows who is right
    c = Evaluation(n=2, loss_sum=1.0, confusion=((2, 0), (0, 0)))
    assert _pooled(a=a, b=b, c=c)["accuracy"] == 3 / 4


def test_labels_are_pooled_by_sums_and_their_accuracy_is_the_share_of_labels_that_are_right() -> None:
    a = Evaluation(n=10, loss_sum=5.0, labels=((8, 0, 0), (0, 0, 2), (0, 0, 0)))
    b = Evaluation(n=10, loss_sum=7.0, labels=((1, 3, 1), (0, 1, 1), (0, 0, 0)))
    assert _pooled(a=a, b=b) == {
        "loss": 0.6,
        "accuracy": 52 / 60,
        "micro_f1": 18 / 26,
        "weighted_f1": pytest.approx((10 * 18 / 22 + 3 * 0) / 13),
    }
    alone = _pooled(BySite(), a=a, b=b)
    assert alone["micro_f1_by_site"] == pytest.approx((16 / 18 + 2 / 8) / 2)
    assert alone["accuracy_by_site"] == pytest.approx((28 / 30 + 24 / 30) / 2)
    most = (1 << 53) - 1
    assert _pooled(a=Evaluation(n=most, loss_sum=0.0, labels=((0, most, 0),) * 16_384))["accuracy"] == 0


def test_a_site_that_counts_something_else_than_most_does_not_break_the_job() -> None:
    a = Evaluation(n=2, loss_sum=1.0, labels=((1, 0, 0), (1, 1, 0)))
    b = Evaluation(n=2, loss_sum=1.0, confusion=((0, 1), (1, 0)), metrics={"micro_f1": 0.0, "auc": 0.5})
    assert _pooled(a=a, b=b) == {"loss": 0.5, "micro_f1": 0.0, "auc": 0.5}  # nobody knows who is right
    assert _pooled(a=a, b=b, c=a) == {
        "loss": 0.5,
        "accuracy": 0.75,
        "micro_f1": 0.8,
        "weighted_f1": pytest.approx((2 * 1 + 2 * 2 / 3) / 4),
        "auc": 0.5,
    }
    c = Evaluation(n=2, loss_sum=1.0, labels=((0, 0, 2),))
    assert _pooled(a=a, b=c, c=a)["accuracy"] == 0.75


def test_means_over_sites_let_a_small_site_count_as_much_as_a_large_one() -> None:
    a = Evaluation(n=10, loss_sum=5.0, confusion=((9, 1), (0, 0)))
    b = Evaluation(n=2, loss_sum=7.0, confusion=((0, 0), (1, 1)), metrics={"auc": 0.25})
    empty = Evaluation(n=0, loss_sum=0.0)
    metrics = _pooled(BySite(), a=a, b=b, c=empty)
    assert metrics == {
        **_pooled(a=a, b=b),
        "accuracy_by_site": pytest.approx(0.7),
        "weighted_f1_by_site": pytest.approx((18 / 19 + 2 / 3) / 2),
        "loss_by_site": 2.0,
        "auc_by_site": 0.25,
    }
    assert _pooled(BySite(), c=empty) == {}
