"""The contract of learners' plugins, as checks that run over any plugin: see `hansa.plugin.testing`.

The checks train a small network on a few rows, on the CPU.
"""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from hansa.common.app import App
from hansa.common.models.auxiliary import apart
from hansa.common.plugins.registry import Plugin
from hansa.common.plugins.testing import require
from hansa.common.site.files import DiskFiles
from hansa.common.torch.data import Data, Tensors
from hansa.common.torch.metrics import measure
from hansa.common.torch.model import spec_of
from hansa.common.torch.seeding import seed_generators
from hansa.common.values.errors import HansaError
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import AuxiliarySpec, LocalPluginSpec, ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.learner.memory.secret import Secret
from hansa.learner.memory.states import Recollection, State, States
from hansa.learner.plugins.contract import BatchSource, LocalPlugin, LocalRun, ProbeRun, Returned
from hansa.learner.plugins.selection import Company, asked_of, probed_by
from hansa.learner.training.loop import Trained, train

Check = Callable[[Any], None]
ROWS = 23
SEED = 7


# A task's plugins at work, without a learner around them.


def run_of(app: App, module: nn.Module, data: Data, work: Train, **more: Any) -> LocalRun:
    """Return a task as its plugins see it."""
    place: dict[str, Any] = {"job": JobId("j"), "site": SiteName("a"), "round": 1, "app": "app.py:app"}
    task = Task(id=TaskId("j-1"), seed=SEED, validation=ValidationSpec(), work=work, **place)
    known: dict[str, Any] = {
        "anchor": arrays_of(module),
        "auxiliary": apart({}, spec_of(module), [each.name for each in work.auxiliary]),
        "validation": data,
        "cancelled": lambda: False,
        "measure": lambda: measure(app, module, data),
        "pulse": lambda: None,
        "secret": Secret(lambda: bytes(32), lambda: task.id),
    }
    return LocalRun(app=app, task=task, work=work, seed=SEED, model=module, examples=data, **(known | more))


def returned_by(run: LocalRun) -> tuple[Trained, Returned]:
    """Train as the task asks, with the plugins it names; return what was done and what comes back."""
    company = Company(*asked_of(run.app, run.work), run)
    hooks = company.hooks(run.model.train)
    done = train(run.app, run.model, run.examples, run.work, run.seed, lambda *_: None, run.cancelled, hooks)
    run.model.train()
    metrics = company.finish()
    spec = spec_of(run.model)
    update = Returned(arrays_of(run.model, run.work.tensors), spec.roles, metrics=metrics)
    company.amend(update, spec.subset(run.work.tensors) if run.work.tensors else spec)
    return done, update


def trained_by(run: LocalRun) -> tuple[Trained, dict[str, float]]:
    """Train as the task asks, with the plugins it names; return what was done and the plugins' metrics."""
    done, update = returned_by(run)
    return done, update.metrics


def arrays_of(module: nn.Module, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Return copies of a network's tensors, all or those that are named."""
    tensors = module.state_dict().items()
    return {name: tensor.numpy().copy() for name, tensor in tensors if not names or name in names}


def remembering(**fields: Any) -> Recollection:
    """Return a site's memory of a job with these contents."""
    return Recollection(lambda: State(**fields))


def network() -> nn.Module:
    """Return a network with batch normalisation and dropout."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2))


def data() -> Tensors:
    """Return a few rows."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(ROWS, 3, generator=generator)
    return Tensors(rows, torch.randint(0, 2, (ROWS,), generator=generator))


APP = App(model=network, classes=2)


def work(plugin: Plugin | None = None, **more: Any) -> Train:
    """Return a task that names a plugin, as it arrives over the wire."""
    if plugin is not None:
        spec = LocalPluginSpec(name=plugin.kind, args=json.loads(plugin.model_dump_json()))
        more |= {"plugins": (spec,)} if isinstance(plugin, LocalPlugin) else {"source": spec}
    if isinstance(plugin, LocalPlugin):
        more["auxiliary"] = tuple(AuxiliarySpec(name=name) for name in plugin.auxiliary)
    fields: dict[str, Any] = {"epochs": 3, "batch_size": 5, "optimizer": OptimizerSpec(lr=0.1, momentum=0.9)}
    return Train(model=ModelKey("j/v0"), version=0, **(fields | more))


def state(module: nn.Module) -> dict[str, bytes]:
    """Return the numbers of a network."""
    return {name: tensor.detach().numpy().tobytes() for name, tensor in module.state_dict().items()}


# The checks.


def gives_the_same_update_again(plugin: Plugin) -> None:
    """The same task gives the same update and the same memory, whatever was drawn before."""
    results = []
    for disturbance in (1, 2):
        module = network()
        mine = remembering(memory={"mine": [1]}, arrays={"mine": np.arange(3)})
        run = run_of(APP, module, data(), work(plugin), recollection=mine)
        seed_generators(disturbance)  # their state must not matter
        done, update = returned_by(run)
        contents = [_contents(each) for each in (run.arrays, update.tensors, *update.auxiliary.values())]
        results.append((state(module), done, repr(update.metrics), json.dumps(run.memory), contents))
        require(plugin, done.steps > 0, "nothing was trained")
        require(plugin, run.memory["mine"] == [1], "it changed the notes of others")
        untouched = np.array_equal(run.arrays.get("mine", np.empty(0)), np.arange(3))
        require(plugin, untouched, "it changed the arrays of others")
    require(plugin, results[0] == results[1], "the same task gave two different updates")


def remembers_what_a_disk_can_keep(plugin: Plugin) -> None:
    """Memory and arrays can be written, and the next task goes on from what is read."""
    with TemporaryDirectory() as folder:
        after = ""
        for number in (1, 2):
            asked = work(plugin, after=after)
            run = run_of(APP, network(), data(), asked)
            task = run.task.model_copy(update={"id": TaskId(f"j-{number}")})
            states = States(DiskFiles(Path(folder)))
            run.recollection = states.recall(task, asked)
            returned_by(run)
            try:
                states.keep(task, asked, run.recollection, lambda *_: None)
            except HansaError as error:
                require(plugin, False, str(error))
            after = task.id


def goes_on_without_its_memory(plugin: Plugin) -> None:
    """A site that has lost its memory starts anew."""
    run = run_of(APP, network(), data(), work(plugin), recollection=remembering(lost=True))
    try:
        returned_by(run)
    except HansaError as error:
        require(plugin, False, f"it does not start anew when run.lost is true: {error}")


def _contents(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[str, bytes]]:
    return {name: (str(array.dtype), array.tobytes()) for name, array in arrays.items()}


def measures_without_training(plugin: LocalPlugin[Any]) -> None:
    """`begin`, `finish` and `amend` do not train, and metrics are numbers that can be sent."""
    module = network()
    run = run_of(APP, module, data(), work(plugin))
    before = state(module)
    held = plugin.begin(run)
    require(plugin, state(module) == before, "begin() changed the network")
    module.train()
    metrics = plugin.finish(held, run)
    require(plugin, state(module) == before, "finish() changed the network: it may measure, but not train")
    plugin.amend(held, run, Returned(arrays_of(module), spec_of(module).roles, metrics=dict(metrics)))
    require(plugin, state(module) == before, "amend() changed the network: it may change what is returned")
    facts = UpdateFacts(n_train=1, n_used=1, steps=1, epochs=1, seconds=0, metrics=metrics)
    numbers = all(isinstance(value, float) for value in facts.metrics.values())
    require(plugin, numbers, f"it reported {dict(facts.metrics)}: not all are numbers")


def probes_without_training(plugin: LocalPlugin[Any]) -> None:
    """A probe gives the same number again, and changes nothing."""
    if type(plugin).probe is LocalPlugin.probe:
        return
    results = []
    for _ in range(2):
        module = network()
        before = state(module)
        run = ProbeRun(
            app=APP,
            task=run_of(APP, module, data(), work()).task,
            batch_size=5,
            seed=SEED,
            model=module.train(),
            examples=data(),
            cancelled=lambda: False,
        )
        seed_generators(SEED)  # as the learner does, for dropout
        results.append(probed_by(plugin, run))
        require(plugin, state(module) == before, "probe() changed the network: it may measure, but not train")
    require(plugin, repr(results[0]) == repr(results[1]), "the same probe gave two different numbers")


def trains_only_the_tensors_of_its_task(plugin: LocalPlugin[Any]) -> None:
    """Tensors that a task does not name stay unchanged."""
    module = network()
    before = state(module)
    frozen = module.get_submodule("0")
    frozen.requires_grad_(requires_grad=False)  # as the learner freezes what a task does not name
    trained_by(run_of(APP, module, data(), work(plugin, tensors=("4.weight", "4.bias"))))
    after = state(module)
    same = {name for name in before if before[name] == after[name]}
    require(plugin, same >= {"0.weight", "0.bias"}, "it changed tensors that the task does not name")
    require(plugin, before["4.weight"] != after["4.weight"], "nothing was trained")


def yields_rows_by_the_chance_it_is_given(source: BatchSource) -> None:
    """A source yields rows of the site's data, the same rows from the same generator."""
    run = run_of(APP, network(), data(), work(source))
    orders = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        epochs = [[torch.as_tensor(rows) for rows in source.epoch(run, generator)] for _ in range(2)]
        batches = [rows for epoch in epochs for rows in epoch]
        sound = all(len(rows) and int(rows.min()) >= 0 and int(rows.max()) < ROWS for rows in batches)
        require(source, sound, "a batch is empty, or has rows that the site does not have")
        orders.append([[rows.tolist() for rows in epoch] for epoch in epochs])
    require(source, orders[0] == orders[1], "the same generator gave two different orders")


def checks_of(plugin: Plugin) -> list[Check]:
    """Return the checks of the contract that a plugin implements."""
    both: list[Check] = [
        remembers_what_a_disk_can_keep,
        gives_the_same_update_again,
        goes_on_without_its_memory,
    ]
    if isinstance(plugin, BatchSource):
        return [*both, yields_rows_by_the_chance_it_is_given]
    return [
        *both,
        measures_without_training,
        probes_without_training,
        trains_only_the_tensors_of_its_task,
    ]
