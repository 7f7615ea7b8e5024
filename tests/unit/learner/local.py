"""A task's plugins at work in training, without a learner around them."""

from typing import Any

from torch import nn

from hansa.common.app import App
from hansa.common.torch.data import Tensors
from hansa.common.torch.metrics import measure
from hansa.common.values.ids import JobId, SiteName, TaskId
from hansa.common.values.tasks import Task, Train
from hansa.common.values.training import ValidationSpec
from hansa.learner.plugins.contract import LocalRun
from hansa.learner.plugins.selection import Company, asked_of
from hansa.learner.training.loop import Trained, train

SEED = 7


def run_of(app: App, module: nn.Module, data: Tensors, work: Train, **more: Any) -> LocalRun:
    """Return a task as its plugins see it."""
    task = Task(
        id=TaskId("j-1"),
        job=JobId("j"),
        site=SiteName("a"),
        round=1,
        app="app.py:app",
        seed=SEED,
        validation=ValidationSpec(),
        work=work,
    )
    known: dict[str, Any] = {
        "anchor": {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()},
        "validation": data,
        "memory": {},
        "cancelled": lambda: False,
        "measure": lambda: measure(app, module, data),
        "pulse": lambda: None,
    }
    return LocalRun(app=app, task=task, work=work, seed=SEED, model=module, examples=data, **(known | more))


def trained_by(run: LocalRun) -> tuple[Trained, dict[str, float]]:
    """Train as the task asks, with the plugins that it names; return what was done and what they found."""
    company = Company(*asked_of(run.app, run.work), run)
    hooks = company.hooks(run.model.train)
    done = train(run.app, run.model, run.examples, run.work, run.seed, lambda *_: None, run.cancelled, hooks)
    run.model.train()
    return done, company.finish()
