"""The end of a task: plugins change what is returned, and remember arrays."""

import re
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from hansa.common.models.frames import Layout, views
from hansa.common.plugins.registry import register
from hansa.common.site.policy import Policy
from hansa.common.values.errors import Forbidden, InvalidApp, PluginFailed, Refused
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import AuxiliarySpec, LocalPluginSpec, ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.memory.finished import Update
from hansa.learner.plugins.contract import LocalPlugin, LocalRun, Returned
from hansa.learner.trainer import Trainer
from hansa.plugin.testing import ContractBroken, check
from tests.unit.learner.local_parts import Noise, Sum
from tests.unit.learner.test_learning_tasks import LINEAR
from tests.unit.learner.test_partial_tasks import OWN, TORCH, first_model, ref_of, trainer_of

ROOT = Path(__file__).resolve().parents[3]


def named(kind: str, **args: Any) -> LocalPluginSpec:
    return LocalPluginSpec(name=kind, args=args)


def do(
    trainer: Trainer, *plugins: LocalPluginSpec, number: int = 1, after: str = "", **more: Any
) -> tuple[dict[str, np.ndarray], Update, Task]:
    """Train from the app's first model; return the numbers of the update, and the update."""
    ref = ref_of(trainer)
    app = trainer.shelf.get(ref).app
    base, arrays = first_model(app)
    fields = {"epochs": 1, "batch_size": 5, "optimizer": OptimizerSpec(lr=0.1), "validate_update": True}
    work = Train(model=ModelKey("j/v0"), version=0, plugins=plugins, after=after, **(fields | more))
    place = {"job": JobId("j"), "site": SiteName("a"), "app": ref, "validation": ValidationSpec(fraction=0.2)}
    task = Task(id=TaskId(f"j-{number}"), round=number, seed=7, work=work, **place)
    update = trainer.train(app, task, work, base, arrays, Event(), lambda _: None)
    numbers = views(Layout(update.manifest.spec), update.payload)
    return {name: array.copy() for name, array in numbers.items()}, update, task


@register("learner", "meddler")
class Meddler(LocalPlugin):
    """Does to an update what it is told to."""

    does: str = ""

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Change the update in an odd way."""
        weight = update.tensors["weight"]
        match self.does:
            case "drop":
                del update.tensors["bias"]
            case "add":
                update.tensors["more"] = weight
            case "reshape":
                update.tensors["weight"] = weight.ravel()
            case "widen":
                update.tensors["weight"] = weight.astype(np.float64)
            case "list":
                update.tensors["weight"] = weight.tolist()
            case "auxiliary":
                update.auxiliary["c"] = {"weight": weight}
            case "no auxiliary":
                update.auxiliary = None  # type: ignore[assignment]
            case "word":
                update.metrics["a word"] = 1.0
            case "huge":
                update.metrics["huge"] = 10**400
            case "numpy":
                numbers: Any = {"norm": np.float32(0.5), "count": np.int64(3)}
                update.metrics |= numbers
            case "raise":
                raise KeyError("lost")
            case "swap":  # parts of the payload change places
                update.tensors["weight"] = weight[::-1]
                weight[0, 0] = 99


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("drop", "it changed which tensors are returned"),
        ("add", "it changed which tensors are returned"),
        ("reshape", r"it returned weight as float32 \[6\]; it must stay float32 \[2, 3\]"),
        ("widen", r"it returned weight as float64 \[2, 3\]; it must stay float32"),
        ("list", "it returned list in place of the array weight"),
        ("auxiliary", "it returned auxiliary tensors 'c', which the rule does not declare"),
        ("no auxiliary", "it returned None as its auxiliary tensors"),
        ("word", "it reported 'a word': 1.0; a metric is a name"),
        ("huge", "it reported 'huge': 1000.*; a metric is a name without spaces, and a number"),
        ("raise", "KeyError: 'lost'"),
    ],
)
def test_an_update_that_no_longer_fits_is_refused_with_the_plugins_name(
    tmp_path: Path, does: str, said: str
) -> None:
    with pytest.raises(PluginFailed, match=f"^learner 'meddler': {said}"):
        do(trainer_of(tmp_path, LINEAR), named("sum"), named("meddler", does=does))


def test_metrics_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    _, update, _ = do(trainer_of(tmp_path, LINEAR), named("meddler", does="numpy"))
    assert update.facts.metrics == {"norm": 0.5, "count": 3.0}


@register("learner", "companion")
class Companion(LocalPlugin):
    """Returns auxiliary tensors, which may be wrong."""

    does: str = ""
    alone = ""

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Return 2·x + 1 of what came down, or something that does not fit."""
        beside: Any = {name: 2 * array + 1 for name, array in run.auxiliary["c"].items()}
        match self.does:
            case "nothing":
                return
            case "drop":
                del beside["bias"]
            case "add":
                beside["more"] = beside["bias"]
            case "widen":
                beside["bias"] = beside["bias"].astype(np.float64)
            case "list":
                beside["bias"] = beside["bias"].tolist()
            case "array":
                beside = beside["bias"]
        update.auxiliary["c"] = beside


BESIDE = (AuxiliarySpec(name="c"),)


@pytest.mark.parametrize("app", [LINEAR, OWN])
def test_auxiliary_tensors_follow_the_update(tmp_path: Path, app: str) -> None:
    plain, before, _ = do(trainer_of(tmp_path, app))
    amended, update, _ = do(trainer_of(tmp_path, app), named("companion"), auxiliary=BESIDE)
    assert all(np.array_equal(amended[name], plain[name]) for name in plain)
    assert update.manifest.model_digest == before.manifest.digest
    beside = {name: array for name, array in amended.items() if name not in plain}
    assert beside
    assert all(name.startswith("c/") and (array == 1).all() for name, array in beside.items())


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("drop", "its auxiliary tensors do not fit the update: missing c/bias"),
        ("add", "its auxiliary tensors do not fit the update: unexpected c/more"),
        ("widen", r"its auxiliary tensors do not fit the update: c/bias \(float64 \[2\]\) should be"),
        ("list", "its auxiliary tensors do not fit the update: c: they must be arrays"),
        ("array", "its auxiliary tensors do not fit the update: c: they must be arrays"),
    ],
)
def test_auxiliary_tensors_that_do_not_fit_are_refused_with_the_plugins_name(
    tmp_path: Path, does: str, said: str
) -> None:
    with pytest.raises(PluginFailed, match=f"^learner 'companion': {said}"):
        do(trainer_of(tmp_path, LINEAR), named("companion", does=does), auxiliary=BESIDE)


@pytest.mark.parametrize("plugins", [(), ("companion",)])
def test_auxiliary_tensors_that_no_plugin_returns_fail_the_task(
    tmp_path: Path, plugins: tuple[str, ...]
) -> None:
    asked = [named(name, does="nothing") for name in plugins]
    with pytest.raises(Refused, match="no plugin returned c/weight, c/bias"):
        do(trainer_of(tmp_path, LINEAR), *asked, auxiliary=BESIDE)


def test_a_tensor_may_be_replaced_by_parts_of_the_update_itself(tmp_path: Path) -> None:
    plain, _, _ = do(trainer_of(tmp_path, LINEAR))
    swapped, _, _ = do(trainer_of(tmp_path, LINEAR), named("meddler", does="swap"))
    plain["weight"][0, 0] = 99
    assert np.array_equal(swapped["weight"], plain["weight"][::-1])
    assert np.array_equal(swapped["bias"], plain["bias"])


@pytest.mark.parametrize("app", [LINEAR, TORCH, OWN])
def test_what_is_amended_is_sent_evaluated_and_reported(tmp_path: Path, app: str) -> None:
    plain, before, _ = do(trainer_of(tmp_path, app))
    trainer = trainer_of(tmp_path, app)
    # The sum begins with zero, so the first update is as it was, and the second twice as large.
    first, _, task = do(trainer, named("sum"))
    assert all(np.array_equal(first[name], plain[name]) for name in plain)
    trainer.commit(task)
    second, update, _ = do(trainer, named("sum"), number=2, after=task.id)
    alone, _, _ = do(trainer_of(tmp_path, app), number=2)
    for name in (name for name, array in plain.items() if array.dtype.kind == "f"):
        assert np.allclose(second[name], alone[name] + plain[name]), name
    assert update.facts.metrics["tasks"] == 2
    assert before.facts.evaluation is not None
    assert update.facts.evaluation is not None
    assert update.facts.evaluation.loss_sum != before.facts.evaluation.loss_sum


def test_plugins_amend_in_their_order_and_see_all_metrics(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, LINEAR)
    _, update, _ = do(trainer, named("all-rounder"), named("sum"), named("noise", seen="tasks"))
    assert update.facts.metrics["seen"] == 1.0
    assert update.facts.metrics["batches"] > 0
    with pytest.raises(PluginFailed, match=r"^learner 'noise': KeyError: 'tasks'"):
        do(trainer, named("all-rounder"), named("noise", seen="tasks"), named("sum"))


def test_a_part_of_a_model_is_amended_alone(tmp_path: Path) -> None:
    update, _, _ = do(trainer_of(tmp_path, TORCH), named("noise"), tensors=("4.weight", "4.bias"))
    assert update.keys() == {"4.weight", "4.bias"}


def test_a_plugin_that_takes_part_in_training_cannot_claim_to_work_with_any_app(tmp_path: Path) -> None:
    @register("learner", "impostor")
    class Impostor(LocalPlugin):
        """Says that it needs no training loop, but overrides what one calls."""

        alone = ""

        def pull(self, held: None, run: LocalRun) -> None:
            """Change gradients."""

    with pytest.raises(InvalidApp, match="trains by a function of its own, in which no plugin can take part"):
        do(trainer_of(tmp_path, OWN), named("impostor"))


def test_a_site_keeps_no_more_arrays_than_its_owner_allows(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, LINEAR)
    policy = Policy.model_validate({"memory": "31B"})
    strict = Trainer(trainer.options, trainer.shelf, lambda _: None, lambda: policy)
    said = "its plugins want to keep arrays of 32 bytes at the site, and at most 31 bytes are allowed"
    with pytest.raises(Forbidden, match=f"the policy of site a refuses this job: {said}"):
        do(strict, named("sum"))


@register("learner", "odd-memory")
class OddMemory(LocalPlugin):
    """Remembers what no disk can keep, trains in `amend`, draws from the air, or needs its memory."""

    does: str = ""

    def begin(self, run: LocalRun) -> None:
        """Expect its memory to be there."""
        if self.does == "needs" and run.lost:
            raise KeyError("memory")

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Break the contract."""
        if self.does == "set":
            run.arrays["odd"] = {1, 2}  # type: ignore[assignment]
        if self.does == "others" and "mine" in run.arrays:
            run.arrays["mine"] += 1
        if self.does == "air":
            update.tensors["0.weight"] += np.random.default_rng().normal(size=(5, 3)).astype(np.float32)
        if self.does == "train":
            next(run.model.parameters()).data += 1


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("set", "run.arrays: odd is set"),
        ("others", "it changed the arrays of others"),
        ("air", "the same task gave two different updates"),
        ("train", "amend\\(\\) changed the network"),
        ("needs", "it does not start anew when run.lost is true: learner 'odd-memory': KeyError: 'memory'"),
    ],
)
def test_the_shipped_checks_find_what_breaks_the_contract(does: str, said: str) -> None:
    with pytest.raises(ContractBroken, match=said):
        check(OddMemory(does=does))


def test_the_example_of_the_documents_keeps_the_contract() -> None:
    page = (ROOT / "docs" / "adding-a-rule.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (example,) = [block for block in blocks if "class LocalMomentum(" in block]
    names: dict[str, Any] = {"__name__": "tests.documents"}
    exec(example, names)
    check(names["LocalMomentum"](beta=0.9))


def test_plugins_that_amend_and_remember_keep_the_contract() -> None:
    check(Sum())
    check(Noise())
