"""Training tasks of models that travel in part: what is trained, what sleeps, and what stays."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from hansa.common.data.examples import Examples
from hansa.common.models.frames import Layout, views
from hansa.common.site.files import DiskFiles
from hansa.common.site.personal import PersonalFolder
from hansa.common.torch import networks
from hansa.common.values.errors import InvalidApp, Refused, Unfit
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import UpdateFacts
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import LocalPluginSpec, Travel, ValidationSpec
from hansa.common.values.tasks import Init, Task, Train
from hansa.learner.trainer import Trainer
from tests.unit.learner.test_partial_tasks import OWN, ref_of, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")
APP = """
import torch
from torch import nn
from hansa import App

class Net(nn.Module):
    modes = []

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(3, 4)
        self.fixed = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.adapter = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)
        self.base.requires_grad_(False)
        self.fixed.requires_grad_(False)

    def forward(self, x):
        asleep = [name for name, part in self.named_children() if not part.training]
        learning = [name for name, each in self.named_parameters() if each.requires_grad]
        if self.training:
            Net.modes.append((asleep, learning))
        return self.head(self.norm(self.adapter(self.drop(self.fixed(self.base(x)))).tanh()))

app = App(model=Net, classes=2)
"""
Arrays = dict[str, np.ndarray]
TRAINABLE = Travel(kind="trainable")
ADAPTERS = Travel(kind="trainable", personal=("head.*",))
PERSONAL = Travel(kind="personal", match=("head.*",))


def task_of(
    trainer: Trainer, work: Init | Train, travel: Travel, number: int = 1, backbone: str = ""
) -> Task:
    words: dict[str, Any] = {"round": number, "app": ref_of(trainer), "seed": 7}
    return Task(
        id=TaskId(f"j-{number}"),
        job=JobId("j"),
        site=SiteName("a"),
        validation=ValidationSpec(fraction=0),
        work=work,
        travel=travel,
        backbone=backbone,
        **words,
    )


def first(trainer: Trainer, travel: Travel) -> tuple[Any, Arrays, UpdateFacts]:
    """Build version 0."""
    app = trainer.shelf.get(ref_of(trainer)).app
    manifest, payload, facts = trainer.initialise(app, task_of(trainer, Init(), travel))
    return manifest, views(Layout(manifest.spec), payload), facts


def trained(
    trainer: Trainer, travel: Travel, number: int = 1, backbone: str | None = None, **words: Any
) -> tuple[Arrays, UpdateFacts]:
    """Train from version 0."""
    manifest, arrays, facts = first(trainer, travel)
    optimizer = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.1)
    usual = {"epochs": 2, "batch_size": 5, "optimizer": optimizer}
    work = Train(model=ModelKey("j/v0"), version=0, **usual | words)
    known = facts.backbone if backbone is None else backbone
    task = task_of(trainer, work, travel, number, known)
    app = trainer.shelf.get(task.app).app
    base, payload, facts = trainer.train(app, task, work, manifest, arrays, Event(), lambda _: None)
    copies = {name: array.copy() for name, array in views(Layout(base.spec), payload).items()}
    trainer.commit(task)
    return copies, facts


def modes(trainer: Trainer) -> list[tuple[list[str], list[str]]]:
    return list(trainer.shelf.get(ref_of(trainer)).app.model.modes)  # type: ignore[attr-defined]


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    """Free only what nothing refers to, as if the next collection were far away."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collector")
@pytest.mark.parametrize("plugins", [(), (LocalPluginSpec(name="proximal", args={"mu": 0.1}),)])
def test_a_network_is_built_once_and_a_task_leaves_nothing_else_in_memory(
    tmp_path: Path, plugins: Any
) -> None:
    trainer = trainer_of(tmp_path, APP)
    app = trainer.shelf.get(ref_of(trainer)).app
    manifest, payload, facts = trainer.initialise(app, task_of(trainer, Init(), TRAINABLE))
    arrays, start = views(Layout(manifest.spec), payload), weakref.ref(payload)
    network = trainer.jobs.network(app, task_of(trainer, Init(), TRAINABLE))
    words: dict[str, Any] = {"epochs": 1, "batch_size": 5, "optimizer": OptimizerSpec(lr=0.1)}
    work = Train(model=ModelKey("j/v0"), version=0, plugins=plugins, **words)
    task = task_of(trainer, work, TRAINABLE, backbone=facts.backbone)
    update = trainer.train(app, task, work, manifest, arrays, Event(), lambda _: None)
    result = weakref.ref(update.payload)
    del payload, arrays, update
    assert start() is None
    assert result() is None
    assert trainer.jobs.network(app, task) is network
    assert all(parameter.grad is None for parameter in network.parameters())


def test_version_0_is_the_same_again_after_training(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, APP)
    app = trainer.shelf.get(ref_of(trainer)).app
    task = task_of(trainer, Init(), TRAINABLE)
    version_0 = trainer.initialise(app, task).manifest
    trained(trainer, TRAINABLE)
    assert trainer.initialise(app, task).manifest == version_0


def test_a_backbone_is_asleep_and_stays_as_it_is_bit_for_bit(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, APP)
    _, arrays, facts = first(trainer, TRAINABLE)
    assert set(arrays) == {
        *("adapter.weight", "adapter.bias", "norm.weight", "norm.bias", "norm.running_mean"),
        *("norm.running_var", "norm.num_batches_tracked", "head.weight", "head.bias"),
    }
    update, _ = trained(trainer, TRAINABLE)
    assert all(not np.array_equal(update[name], arrays[name]) for name in arrays)
    assert set(map(str, modes(trainer))) == {
        str((["base", "fixed", "drop"], [n for n in arrays if "running" not in n and "num" not in n]))
    }
    app = trainer.shelf.get(ref_of(trainer)).app
    network = trainer.jobs.network(app, task_of(trainer, Init(), TRAINABLE))
    fresh = networks.build(app, 7, "cpu").state_dict()
    for name, tensor in network.state_dict().items():
        if name.startswith(("base", "fixed")):
            assert torch.equal(tensor, fresh[name]), name
    assert facts.anatomy is not None
    assert (facts.anatomy.parameters, facts.anatomy.frozen_parameters) == (62, 24)


def test_another_backbone_is_refused_with_both_digests(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, APP)
    _, _, facts = first(trainer, TRAINABLE)
    with pytest.raises(Unfit, match=f"digest is {facts.backbone} here and {'0' * 64} in the job"):
        trained(trainer, TRAINABLE, backbone="0" * 64)
    assert len(facts.backbone) == 64
    assert first(trainer, PERSONAL)[2].backbone == ""


def test_personal_tensors_go_on_from_the_last_accepted_task_and_a_repetition_repeats(tmp_path: Path) -> None:
    trainer, folder = trainer_of(tmp_path, APP), PersonalFolder(DiskFiles(tmp_path / "personal"))
    one, _ = trained(trainer, ADAPTERS)
    assert "head.weight" not in one
    after_one = folder.committed(JobId("j"))
    two, _ = trained(trainer, ADAPTERS, 2, after="j-1")
    after_two = folder.committed(JobId("j"))
    assert after_one is not None
    assert after_two is not None
    assert (after_one.task, after_two.task) == ("j-1", "j-2")
    assert not np.array_equal(after_one.arrays["head.weight"], after_two.arrays["head.weight"])

    (tmp_path / "again").mkdir()
    again = trainer_of(tmp_path / "again", APP)
    trained(again, ADAPTERS)
    folder = PersonalFolder(DiskFiles(tmp_path / "again" / "personal"))
    manifest, arrays, facts = first(again, ADAPTERS)
    work = Train(
        model=ModelKey("j/v0"),
        version=0,
        epochs=2,
        batch_size=5,
        optimizer=OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.1),
        after="j-1",
    )
    task = task_of(again, work, ADAPTERS, 2, facts.backbone)
    app = again.shelf.get(task.app).app
    for _ in range(2):  # the learner was killed before the update was accepted
        sent, payload, _ = again.train(app, task, work, manifest, arrays, Event(), lambda _: None)
        for name, array in views(Layout(sent.spec), payload).items():
            assert array.tobytes() == two[name].tobytes(), name
    again.commit(task)
    repeated = folder.committed(JobId("j"))
    assert repeated is not None
    assert repeated.arrays["head.weight"].tobytes() == after_two.arrays["head.weight"].tobytes()


def test_a_head_is_trained_first_and_the_body_after_it(tmp_path: Path) -> None:
    trainer, folder = trainer_of(tmp_path, APP), PersonalFolder(DiskFiles(tmp_path / "personal"))
    _, facts = trained(trainer, PERSONAL, personal_epochs=3, epochs=1)
    assert (facts.steps, facts.n_used, facts.epochs) == (4, 80, 4.0)  # steps behind what travels
    body, head = ["adapter.weight", "adapter.bias", "norm.weight", "norm.bias"], ["head.weight", "head.bias"]
    asleep = ["base", "fixed", "drop", "adapter", "norm"]
    assert modes(trainer) == [(asleep, head)] * 12 + [(["head"], body)] * 4
    own = folder.committed(JobId("j"))
    assert own is not None
    assert set(own.arrays) == set(head)


def test_the_body_of_a_head_that_is_trained_first_does_not_change_meanwhile(tmp_path: Path) -> None:
    """One epoch on the body after many on the head: the head is what the body was trained with."""
    trainer = trainer_of(tmp_path, APP)
    _, arrays, _ = first(trainer, PERSONAL)
    tiny = OptimizerSpec(lr=1e-30)
    update, _ = trained(trainer, PERSONAL, personal_epochs=5, epochs=1, optimizer=tiny)
    for name in ("base.weight", "adapter.weight", "adapter.bias"):
        np.testing.assert_array_equal(update[name], arrays[name])
    assert update["norm.num_batches_tracked"] == 4  # of the epoch on the body alone


def test_both_stages_take_the_steps_of_the_paper(tmp_path: Path) -> None:
    """With all examples in one batch, plain PyTorch must come to the same tensors."""
    trainer = trainer_of(tmp_path, APP.replace("nn.Dropout(0.5)", "nn.Identity()"))
    update, _ = trained(trainer, PERSONAL, personal_epochs=3, epochs=2, batch_size=100)
    own = PersonalFolder(DiskFiles(tmp_path / "personal")).committed(JobId("j"))
    assert own is not None
    known = trainer.shelf.get(ref_of(trainer))
    assert isinstance(known.examples, Examples)
    x, y = torch.from_numpy(known.examples.x), torch.from_numpy(known.examples.y)
    network = networks.build(known.app, 7, "cpu")
    head, body = network.head, (network.adapter, network.norm)
    for asleep, learning, epochs in ((network, (head,), 3), (head, body, 2)):
        network.train()
        asleep.eval()
        parameters = [each for part in learning for each in part.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)
        for _ in range(epochs):
            network.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for name, tensor in network.state_dict().items():
        np.testing.assert_allclose((update | dict(own.arrays))[name], tensor.numpy(), rtol=1e-6, atol=1e-6)


def test_stages_need_tensors_of_the_sites_own(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="but the whole model travels"):
        trained(trainer_of(tmp_path, APP), Travel(), personal_epochs=1)


def test_an_app_of_arrays_gets_all_of_them_and_is_told_what_to_train(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, OWN)
    travel = Travel(kind="trainable", match=("w2",), personal=("b2",))
    update, _ = trained(trainer, travel, optimizer=OptimizerSpec(lr=0.1))
    assert set(update) == {"w2"}
    assert update["w2"].min() == 1
    own = PersonalFolder(DiskFiles(tmp_path / "personal")).committed(JobId("j"))
    assert own is not None
    assert {name: float(array.max()) for name, array in own.arrays.items()} == {"b2": 1.0}
    again, _ = trained(trainer, travel, 2, after="j-1", optimizer=OptimizerSpec(lr=0.1))
    assert again["w2"].max() == 1  # from version 0 again
    own = PersonalFolder(DiskFiles(tmp_path / "personal")).committed(JobId("j"))
    assert own is not None
    assert float(own.arrays["b2"][0]) == 2.0
    with pytest.raises(InvalidApp, match="a function of its own, which trains all tensors together"):
        trained(trainer, travel, 3, personal_epochs=1)


def test_all_names_of_a_parameter_travel_or_none(tmp_path: Path) -> None:
    freezing = "        self.base.requires_grad_"
    tied = APP.replace(freezing, f"        self.head.weight = self.adapter.weight\n{freezing}")
    tied = tied.replace("nn.Linear(4, 2)", "nn.Linear(4, 4)").replace("classes=2", "classes=4")
    with pytest.raises(InvalidApp, match=r"adapter.weight and head.weight are one parameter; all of"):
        first(trainer_of(tmp_path, tied), PERSONAL)


def test_a_controller_that_asks_for_personal_tensors_does_not_get_them(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, APP)
    trained(trainer, PERSONAL)
    own = PersonalFolder(DiskFiles(tmp_path / "personal")).committed(JobId("j"))
    assert own is not None
    whole, arrays, _ = first(trainer, Travel())
    work = Train(
        model=ModelKey("j/v1"), version=1, epochs=1, batch_size=20, optimizer=OptimizerSpec(lr=1e-30)
    )
    app = trainer.shelf.get(ref_of(trainer)).app
    task = task_of(trainer, work, PERSONAL, 2)
    with pytest.raises(InvalidApp, match=r"not what travels of the app's model: unexpected head.weight"):
        trainer.train(app, task, work, whole, arrays, Event(), lambda _: None)

    other = Travel(kind="personal", match=("adapter.*",))  # so that the head would travel
    restarted = trainer_of(tmp_path, APP)
    update, _ = trained(restarted, other, 3, after="j-1", epochs=1, optimizer=OptimizerSpec(lr=1e-30))
    np.testing.assert_array_equal(update["head.weight"], arrays["head.weight"])
    assert not np.array_equal(update["head.weight"], own.arrays["head.weight"])
