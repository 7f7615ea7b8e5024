"""Samples of what plugins are given, for the checks of their contract and for tests."""

from typing import Any

from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.results import Evaluation, UpdateFacts
from hansa.common.values.settings.optimizers import OptimizerSpec
from hansa.common.values.settings.training import ValidationSpec
from hansa.common.values.tasks import Task, Train
from hansa.controller.plugin.view import Contribution, View

SITES = tuple(SiteName(name) for name in "abcdefg")


def view(round_: int = 1, version: int = 3, sites: tuple[SiteName, ...] = SITES) -> View:
    """Return what plugins see of a job with seven sites."""
    examples = {site: 10 * (i + 1) for i, site in enumerate(sites)}
    at: dict[str, Any] = {"version": version, "round": round_, "steps": 100, "seed": 7, "now": 1000.0}
    return View(sites=sites, busy=frozenset(), examples=examples, evaluators=sites, **at)


def work() -> Train:
    """Return the work of a task before policies have shaped it."""
    optimizer = OptimizerSpec(lr=0.1)
    return Train(model=ModelKey("j/v3"), version=3, committed=90, epochs=2, batch_size=8, optimizer=optimizer)


def contribution(site: SiteName, number: int, n_train: int = 10, loss: float = 0.5) -> Contribution:
    """Return an update that the other sites have evaluated."""
    place: dict[str, Any] = {"job": JobId("j"), "site": site, "round": 1, "app": "app.py:app", "seed": 7}
    task = Task(id=TaskId(f"j-{number}"), validation=ValidationSpec(), work=work(), **place)
    facts = UpdateFacts(n_train=n_train, n_used=n_train, steps=3, epochs=1, seconds=0.1, loss=loss)
    report = Evaluation(n=4, loss_sum=2.0, confusion=((2, 1), (0, 1)))
    reports = {other: report for other in SITES if other != site}
    return Contribution(
        task=task, model=ModelKey(f"j/u{number}"), digest="d", facts=facts, reports=reports, staleness=(2, 30)
    )
