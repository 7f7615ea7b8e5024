"""Tasks that ask for an encoding: it comes after all plugins, and what it loses belongs to the update."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.common.encodings import encoding_of
from hansa.common.encodings.model import encoded_spec
from hansa.common.site.policy import Policy
from hansa.common.values.errors import Forbidden, Rejected, Unequipped
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.learner.trainer import Trainer
from tests.unit.learner.test_amending import BESIDE, do, named
from tests.unit.learner.test_partial_tasks import OWN, TORCH, first_model, ref_of, trainer_of

TOPK = LocalPluginSpec(name="topk", args={"share": 0.2})
KINDS = [named("float16"), named("int8"), TOPK]
Arrays = dict[str, np.ndarray]


def start_of(trainer: Trainer) -> Arrays:
    return first_model(trainer.shelf.get(ref_of(trainer)).app)[1]


@pytest.mark.parametrize("encoding", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("app", [TORCH, OWN], ids=["network", "own training"])
def test_an_update_is_encoded_whether_hansa_or_the_app_trains_it(
    tmp_path: Path, app: str, encoding: LocalPluginSpec
) -> None:
    plain, whole, _ = do(trainer_of(tmp_path, app))
    sent, update, _ = do(trainer_of(tmp_path, app), encoding=encoding)
    assert update.manifest.spec == encoded_spec(encoding_of(encoding), whole.manifest.spec)
    assert set(sent) != set(plain)
    for name in set(sent) & set(plain):  # statistics, counters, and what would not get smaller
        assert np.array_equal(sent[name], plain[name])


def test_it_comes_after_all_plugins(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, TORCH)
    more: dict[str, Any] = {"encoding": named("float16"), "auxiliary": BESIDE}
    sent, update, _ = do(trainer, named("sum"), named("companion"), **more)
    plain, _, _ = do(trainer_of(tmp_path, TORCH), named("sum"), named("companion"), auxiliary=BESIDE)
    start = start_of(trainer)
    assert update.facts.metrics["tasks"] == 1
    for name in ("0.weight", "4.bias"):
        moved = (plain[name] - start[name]).astype(np.float16)
        assert np.array_equal(sent[f"{name}@float16"], moved)
        assert np.array_equal(sent[f"c/{name}"], plain[f"c/{name}"]), "auxiliary tensors stay as they are"


def test_what_the_controller_will_have_is_evaluated(tmp_path: Path) -> None:
    _, plain, _ = do(trainer_of(tmp_path, OWN))
    _, sparse, _ = do(trainer_of(tmp_path, OWN), encoding=TOPK)
    assert plain.facts.evaluation is not None
    assert sparse.facts.evaluation is not None
    # Of w1 (12 numbers) three move by one, of b1 and w2 (4) one; b2 (1) is sent as it is.
    assert (plain.facts.evaluation.loss_sum, sparse.facts.evaluation.loss_sum) == (21, 6)
    _, network, _ = do(trainer_of(tmp_path, TORCH), encoding=TOPK)
    _, whole, _ = do(trainer_of(tmp_path, TORCH))
    assert network.facts.evaluation is not None
    assert whole.facts.evaluation is not None
    assert network.facts.evaluation.loss_sum != whole.facts.evaluation.loss_sum


def test_only_tensors_of_the_task_are_sent_and_others_keep_what_they_lost(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, OWN)
    first, _, _ = do(trainer, encoding=TOPK)
    assert "w2@indices" in first
    second, _, _ = do(trainer, encoding=TOPK, tensors=("w1",), number=2, after="j-1")
    assert set(second) == {"w1@indices", "w1@values"}
    assert sorted(second["w1@values"].tolist()) == [2, 2, 2], "what was not sent the first time comes now"
    third, _, _ = do(trainer, encoding=TOPK, tensors=("w2",), number=3, after="j-2")
    assert third["w2@values"].tolist() == [2.0]


def test_what_is_lost_counts_if_and_only_if_the_update_was_accepted(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, TORCH)
    _, first, _ = do(trainer, encoding=TOPK)
    _, second, _ = do(trainer, encoding=TOPK, number=2, after="j-1")
    _, again, _ = do(trainer_of(tmp_path, TORCH), encoding=TOPK, number=2, after="j-1")  # after a restart
    assert again.manifest == second.manifest
    _, refused, _ = do(trainer, encoding=TOPK, number=2)  # the first update was never accepted
    assert refused.manifest != second.manifest
    _, once_more, _ = do(trainer, encoding=TOPK)
    assert once_more.manifest == first.manifest


def test_without_feedback_nothing_is_kept(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, OWN)
    encoding = LocalPluginSpec(name="topk", args={"share": 0.2, "feedback": False})
    first, _, _ = do(trainer, encoding=encoding)
    second, _, _ = do(trainer, encoding=encoding, number=2, after="j-1")
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not (tmp_path / "memory").exists()


def test_secret_noise_is_encoded_once_and_sent_as_it_was_finished(tmp_path: Path) -> None:
    _, update, task = do(trainer_of(tmp_path, TORCH), named("noise"), encoding=named("int8"))
    again = trainer_of(tmp_path, TORCH.replace("0.2", "0.7"))  # trains differently, as a GPU may
    _, finished, _ = do(again, named("noise"), encoding=named("int8"))
    assert finished.manifest == update.manifest
    assert finished.payload.tobytes() == update.payload.tobytes()
    again.commit(task)


def test_an_update_that_diverged_is_not_sent(tmp_path: Path) -> None:
    text = OWN.replace("array + 1 for", "array + np.nan for")
    with pytest.raises(Rejected, match="tensor w1 holds NaN or infinite values"):
        do(trainer_of(tmp_path, text), encoding=named("int8"))


def test_a_site_without_the_encoding_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unequipped, match="the rule asks for the encoding 'zip', which is not installed here"):
        do(trainer_of(tmp_path, OWN), encoding=named("zip"))


def test_what_is_kept_counts_as_memory_of_the_site(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, OWN)
    bounded = Trainer(trainer.options, trainer.shelf, lambda _: None, lambda: Policy(memory=10))
    with pytest.raises(Forbidden, match="memory"):
        do(bounded, encoding=TOPK)
