"""Plugins in a learner's tasks: what they remember, how they fail, and how they work together."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.plugins.registry import register
from hansa.common.site.daemon import SiteOptions
from hansa.common.site.shelf import Shelf
from hansa.common.values.errors import InvalidApp, PluginFailed, Refused, TooLarge
from hansa.common.values.settings.training import LocalPluginSpec
from hansa.common.values.tasks import Train
from hansa.learner.daemon import Learner
from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun
from hansa.learner.plugins.selection import asked_of
from hansa.learner.plugins.testing import APP, data, network, state, work
from tests.unit.learner.local import run_of, trained_by
from tests.unit.learner.local_parts import AllRounder, Diary, Some
from tests.unit.learner.test_learning_tasks import LINEAR, do
from tests.unit.learner.test_partial_tasks import TORCH, trainer_of

OWN = App(model=dict, task="regression", train=lambda arrays, _: arrays, evaluate=lambda *_: None)  # type: ignore[arg-type]


def named(kind: str, **args: Any) -> LocalPluginSpec:
    return LocalPluginSpec(name=kind, args=args)


@register("learner", "clumsy")
class Clumsy(LocalPlugin):
    """Fails, or tells and remembers what cannot be told or remembered."""

    raises: bool = False
    tells: str = ""
    remembers: str = ""

    def begin(self, run: LocalRun) -> None:
        """Raise at once, if it is to."""
        if self.raises:
            raise KeyError("lost")

    def finish(self, held: None, run: LocalRun) -> Mapping[str, float]:
        """Tell nonsense, if it is to."""
        if self.remembers:
            run.memory["clumsy"] = "x" * 2_000_000 if self.remembers == "much" else {1, 2}  # type: ignore[assignment]
        return {self.tells: 1.0} if self.tells else {}


@register("learner", "confused")
class Confused(LocalPlugin):
    """Returns what a method cannot return."""

    method: str
    what: str

    def penalty(self, held: None, run: LocalRun) -> Any:
        """Return no tensor, or too large a one."""
        return self._returned("penalty", None)

    def finish(self, held: None, run: LocalRun) -> Any:
        """Return nothing that has numbers by name."""
        return self._returned("finish", {})

    def _returned(self, method: str, usual: object) -> object:
        if method != self.method:
            return usual
        many = {f"m{number}": 1.0 for number in range(101)}
        return {"float": 0.5, "vector": torch.ones(3), "none": None, "number": {7: 1.0}, "many": many}[
            self.what
        ]


@register("learner", "curious")
class Curious(LocalPlugin):
    """Measures the model whenever it can."""

    def pull(self, held: None, run: LocalRun) -> None:
        """Measure between two batches."""
        run.measure()

    def finish(self, held: None, run: LocalRun) -> Mapping[str, float]:
        """Measure before others look at the network."""
        return {"loss": run.measure().loss_sum}


@register("learner", "ended")
class Ended(LocalPlugin):
    """Takes the next of what has come to its end."""

    def pull(self, held: None, run: LocalRun) -> None:
        """Raise StopIteration."""
        next(iter(()))


@register("batches", "odd")
class Odd(BatchSource):
    """Yields what is no row of the data."""

    what: str

    def epoch(self, run: LocalRun, generator: torch.Generator) -> Iterator[Any]:
        """Yield one batch of it."""
        yield {
            "negative": np.array([0, -1]),
            "beyond": torch.tensor([0, len(run.examples)]),
            "fractions": torch.tensor([0.5]),
            "masks": torch.ones(len(run.examples), dtype=torch.bool),
            "tables": torch.zeros((2, 2), dtype=torch.long),
            "nothing": torch.tensor([], dtype=torch.long),
            "words": ["first"],
            "complex": torch.tensor([1j]),
            "sets": {1, 2},
        }[self.what]


def test_plugins_of_a_task_work_together_in_its_order() -> None:
    plain, both = network(), network()
    none, _ = trained_by(run_of(APP, plain, data(), work()))
    specs = (named("proximal", mu=0.1), named("all-rounder", decay=0.5, epochs=2), named("diary"))
    done, found = trained_by(run_of(APP, both, data(), work(plugins=specs)))
    assert (none.epochs, done.epochs) == (3, 2)
    assert found["batches"] == done.steps == 10
    assert found["tasks"] == 1
    assert state(plain) != state(both)


def test_a_penalty_is_minimised_and_not_reported() -> None:
    """Where the data pull nowhere, the penalty alone moves the model; the loss is the app's."""
    module = nn.Linear(3, 2)
    app = App(model=lambda: module, classes=2, loss=lambda outputs, _: outputs.sum() * 0)
    before = float(sum(each.detach().square().sum() for each in module.parameters()))
    spec = named("all-rounder", decay=0.1, noise=0.0, epochs=9)
    done, _ = trained_by(run_of(app, module, data(), work(plugins=(spec,))))
    after = float(sum(each.detach().square().sum() for each in module.parameters()))
    assert after < before / 2
    assert done.loss == 0


def test_a_source_decides_how_much_an_epoch_is() -> None:
    done, _ = trained_by(run_of(APP, network(), data(), work(source=named("some", batches=2))))
    assert (done.steps, done.n_used) == (6, 30)  # three epochs of two batches of five
    steps, _ = trained_by(run_of(APP, network(), data(), work(source=named("some", batches=2), steps=7)))
    assert steps.steps == 7
    nothing, _ = trained_by(run_of(APP, network(), data(), work(source=named("some", batches=0))))
    assert (nothing.steps, nothing.n_used) == (0, 0)


def test_a_batch_of_one_row_is_left_out_where_the_network_normalises_batches() -> None:
    done, _ = trained_by(run_of(APP, network(), data(), work(source=named("some"), batch_size=1)))
    assert done.steps == 0


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("negative", "batches 'odd': row -1 does not exist: the site has rows 0 to 22"),
        ("beyond", "batches 'odd': row 23 does not exist"),
        *(
            (what, "batches 'odd': a batch must be a list of row numbers")
            for what in ("fractions", "masks", "tables")
        ),
        *((what, "batches 'odd': a batch must be a list of row numbers") for what in ("nothing", "words")),
        *((what, "batches 'odd': a batch must be a list of row numbers") for what in ("complex", "sets")),
    ],
)
def test_batches_that_are_not_row_numbers_are_refused(what: str, said: str) -> None:
    with pytest.raises(PluginFailed, match=said):
        trained_by(run_of(APP, network(), data(), work(source=named("odd", what=what))))


@register("batches", "arrays")
class Arrays(BatchSource):
    """Yields arrays as numpy makes them."""

    what: str

    def epoch(self, run: LocalRun, generator: torch.Generator) -> Any:
        """Return one batch, or no epoch at all."""
        return {"backwards": [np.arange(6)[::-1]], "unsigned": [np.arange(6, dtype=np.uint64)], "none": None}[
            self.what
        ]


@pytest.mark.parametrize("what", ["backwards", "unsigned"])
def test_rows_may_be_any_array_of_integers(what: str) -> None:
    done, _ = trained_by(run_of(APP, network(), data(), work(source=named("arrays", what=what))))
    assert (done.steps, done.n_used) == (3, 18)


def test_an_epoch_that_is_not_iterable_is_refused() -> None:
    with pytest.raises(
        PluginFailed, match="batches 'arrays': an epoch must be an iterable of batches, but is None"
    ):
        trained_by(run_of(APP, network(), data(), work(source=named("arrays", what="none"))))


@pytest.mark.parametrize(
    ("method", "what", "said"),
    [
        ("penalty", "float", "learner 'confused': a penalty must be a tensor of one number, but is 0.5"),
        ("penalty", "vector", "learner 'confused': a penalty must be a tensor of one number"),
        ("finish", "none", "learner 'confused': it reported None; metrics must be numbers by name"),
        ("finish", "number", "learner 'confused': it reported 7: 1.0; a metric is a name"),
        ("finish", "many", "the plugins reported 101 metrics; 100 are allowed"),
    ],
)
def test_what_a_plugin_must_not_return_is_refused_with_its_name(method: str, what: str, said: str) -> None:
    with pytest.raises((PluginFailed, TooLarge), match=said):
        trained_by(
            run_of(APP, network(), data(), work(plugins=(named("confused", method=method, what=what),)))
        )


async def test_a_plugin_that_comes_to_an_end_fails_its_task_and_does_not_leave_it_unanswered(
    tmp_path: Path,
) -> None:
    trainer = trainer_of(tmp_path, LINEAR)
    learner = Learner(cast(SiteOptions, trainer.options), cast(Shelf, trainer.shelf))

    def trained() -> None:
        trained_by(run_of(APP, network(), data(), work(plugins=(named("ended"),))))

    with pytest.raises(PluginFailed, match="StopIteration") as raised:
        await asyncio.wait_for(learner.compute(trained), 30)
    assert str(raised.value) == "learner 'ended': StopIteration"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            work(plugins=(named("telepathy"),)),
            "the learner's plugin 'telepathy', which this learner does not have",
        ),
        (
            work(source=named("telepathy")),
            "the source of batches 'telepathy', which this learner does not have",
        ),
        (work(plugins=(named("proximal", mu=-1),)), r"learner 'proximal': mu: .*greater than or equal to 0"),
        (work(plugins=(named("proximal"),)), "learner 'proximal': mu: is required"),
        (work(source=named("some", batch=3)), "batches 'some': batch: unknown key of some"),
        (
            work(source=named("some"), batches=3),
            "batches 'some': a task that is a window of batches has no other",
        ),
    ],
)
def test_what_a_learner_cannot_do_is_refused_with_a_reason(task: Train, said: str) -> None:
    with pytest.raises(Refused, match=said):
        asked_of(APP, task)


@pytest.mark.parametrize("plugin", [AllRounder(), Diary(), Some()])
def test_an_app_that_trains_by_itself_has_no_part_in_it(plugin: Any) -> None:
    with pytest.raises(InvalidApp, match="the app trains by a function of its own"):
        asked_of(OWN, work(plugin))


def test_two_plugins_cannot_tell_two_numbers_by_one_name() -> None:
    with pytest.raises(
        PluginFailed, match="learner 'diary': it reported 'tasks', as another plugin did before"
    ):
        trained_by(run_of(APP, network(), data(), work(plugins=(named("diary"), named("diary")))))


def test_what_plugins_find_comes_with_the_update_and_an_error_names_the_plugin(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, LINEAR)
    _, facts = do(trainer, named("diary"))
    assert facts.metrics == {"tasks": 1.0}
    with pytest.raises(PluginFailed) as raised:
        do(trainer, named("clumsy", raises=True))
    assert str(raised.value) == "learner 'clumsy': KeyError: 'lost'"
    with pytest.raises(
        PluginFailed, match=r"learner 'clumsy': it reported 'no name': 1.0; a metric is a name without spaces"
    ):
        do(trainer, named("clumsy", tells="no name"))
    with pytest.raises(Refused, match=r"run.memory\['clumsy'\] is not JSON"):
        do(trainer, named("clumsy", remembers="sets"))
    with pytest.raises(TooLarge, match="1048576 are allowed"):
        do(trainer, named("clumsy", remembers="much"))


@pytest.mark.parametrize("score", [named("importance"), named("importance", online=True)])
def test_a_plugin_that_evaluates_during_training_changes_neither_it_nor_what_others_find(
    tmp_path: Path, score: LocalPluginSpec
) -> None:
    trainer = trainer_of(tmp_path, TORCH)  # it drops out and normalises, in training mode
    plain, facts = do(trainer, score)
    both, more = do(trainer, named("curious"), score)
    assert np.array_equal(plain, both)
    assert facts.metrics["importance"] == more.metrics["importance"]
