"""Examples with several labels: real learners and evaluators against gradient descent and F1 in numpy."""

from typing import Any

import numpy as np
import pytest

from hansa.common.data.examples import Examples, load_npz
from hansa.common.data.holdout import split
from hansa.common.values.ids import SiteName
from hansa.common.values.settings.training import ValidationSpec
from tests.e2e.conftest import Site, weights

APP = """
from torch import nn
from hansa import App

def build():
    network = nn.Linear(5, 3)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network

app = App(model=build, task="multilabel", classes=3)
"""
SEED, STEPS, LR, FRACTION = 7, 5, 0.5, 0.3
SITES = {"a": 60, "b": 40, "c": 20}


def _write(scene: Site) -> dict[str, tuple[Examples, Examples]]:
    """Write every site's data; return what its learner trains on, and what is held out."""
    (scene.folder / "app.py").write_text(APP)
    rng = np.random.default_rng(3)
    truth, parts = rng.normal(size=(5, 3)), {}
    for number, (site, rows) in enumerate(SITES.items()):
        x = rng.normal(number, 1, (rows, 5)).astype(np.float32)
        y = x @ truth + rng.normal(0, 2, (rows, 3)) > [0, 1, 4]
        np.savez(scene.folder / f"{site}.npz", x=x, y=y if site == "a" else y.astype(np.int8))
        held = load_npz(scene.folder / f"{site}.npz", "train")
        train, validation = split(held.y, ValidationSpec(fraction=FRACTION), SEED, SiteName(site))
        parts[site] = held.take(train), held.take(validation)
    return parts


def _trained(examples: Examples) -> np.ndarray:
    """Descend the gradient of the mean binary cross-entropy over examples and labels; the bias comes last."""
    x = np.hstack([examples.x, np.ones((len(examples), 1))])
    weights = np.zeros((6, 3))
    for _ in range(STEPS):
        weights -= LR * x.T @ (1 / (1 + np.exp(-x @ weights)) - examples.y) / examples.y.size
    return weights


def _counts(weights: np.ndarray, examples: Examples) -> np.ndarray:
    """Return TP, FP and FN of each label."""
    said, true = examples.x @ weights[:5] + weights[5] > 0, examples.y.astype(bool)
    return np.array([(said & true).sum(axis=0), (said & ~true).sum(axis=0), (~said & true).sum(axis=0)]).T


def _micro(counts: Any) -> float:
    tp, fp, fn = np.sum(counts, axis=(0, 1))
    return float(2 * tp / (2 * tp + fp + fn))


def test_updates_are_weighed_by_the_micro_f1_of_all_sites_labels(scene: Site) -> None:
    parts = _write(scene)
    scene.controller()
    for site in SITES:
        scene.daemon("learner", site)
        scene.daemon("evaluator", site)
    # A batch is all of a site's examples.
    train = f"{{epochs: {STEPS}, batch_size: 100, optimizer: {{lr: {LR}}}}}"
    changes = (
        f"train={train}",
        f"validation.fraction={FRACTION}",
        "rule=sync-dvw",
        "pace.rounds=1",
        "sites.min=3",
    )
    words = [word for change in changes for word in ("--set", change)]
    done = scene.cli("job", "submit", "job.yaml", "--wait", *words)
    assert done.returncode == 0, done.stderr + done.stdout

    newest = scene.json("job", "show", "plane")["history"][-1]
    models = {site: _trained(training) for site, (training, _) in parts.items()}
    found = {site: {by: _counts(models[site], held) for by, (_, held) in parts.items()} for site in SITES}
    worth = {site: _micro(list(counts.values())) for site, counts in found.items()}
    assert weights(newest) == worth
    for site, score in newest["scores"].items():
        assert (score["value"], score["basis"], score["coverage"]) == (worth[site], "pooled", 1.0)
        expected = {
            by: {"score": _micro([counts]), "n": len(parts[by][1])} for by, counts in found[site].items()
        }
        assert score["found"] == expected
        assert worth[site] != pytest.approx(np.mean([each["score"] for each in expected.values()]))

    mean = np.average([models[site] for site in SITES], axis=0, weights=[worth[site] for site in SITES])
    counts = [_counts(mean, held) for _, held in parts.values()]
    labels = sum(held.y.size for _, held in parts.values())
    assert newest["metrics"]["micro_f1"] == _micro(counts)
    assert newest["metrics"]["accuracy"] == pytest.approx(1 - np.sum(counts, axis=(0, 1))[1:].sum() / labels)
    assert newest["metrics"]["accuracy"] != pytest.approx(newest["metrics"]["micro_f1"])
    assert newest["examples"] == labels / 3
    assert "micro_f1" in scene.cli("job", "show", "plane").stdout

    for change, why in {
        "weigh.metric=mcc": "weigh.metric mcc needs confusion matrices; use micro_f1, macro_f1, "
        "weighted_f1 or inverse_loss",
        "survey={classes: true}": "survey.classes: no classes to count: the app's "
        "examples do not have one label each",
    }.items():
        refused = scene.cli(
            "job", "submit", "job.yaml", "--wait", *words, "--set", change, "--set", "name=refused"
        )
        assert refused.returncode == 1
        assert why in refused.stdout


def test_labels_that_are_neither_0_nor_1_keep_a_site_out_with_the_row_named(scene: Site) -> None:
    _write(scene)
    np.savez(scene.folder / "b.npz", x=np.zeros((2, 5), np.float32), y=np.array([[0, 1, 1], [0, 2, 1]]))
    scene.controller()
    scene.daemon("learner", "b", "--keep-going")
    scene.until(lambda: scene.json("site", "list"))
    assert "label 2 at row 1 is outside 0 … 1 (1 such label)" in str(scene.json("site", "list"))
