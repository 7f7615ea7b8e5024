"""Plugins that change an update know which of its tensors are parameters, whatever trains the model."""

from pathlib import Path

import numpy as np
import pytest

from hansa.common.plugins.registry import register
from hansa.learner.plugins.contract import LocalPlugin, LocalRun, Returned
from hansa.plugin import Role
from tests.unit.learner.test_amending import do, named
from tests.unit.learner.test_partial_tasks import OWN, TORCH, first_model, ref_of, trainer_of

COUNTING = OWN.replace('"b2": np.zeros(1)', '"b2": np.zeros(1), "calls": np.zeros(2, np.int64)')


@register("learner", "withholding")
class Withholding(LocalPlugin):
    """Returns parameters as they were trained, and everything else as it came."""

    alone = ""

    def amend(self, held: None, run: LocalRun, update: Returned) -> None:
        """Put back what is not a parameter."""
        for name, array in update.tensors.items():
            if update.roles[name] is not Role.PARAM:
                array[...] = run.anchor[name]


@pytest.mark.parametrize(("app", "others"), [(TORCH, 3), (COUNTING, 1)])
def test_a_plugin_tells_parameters_from_statistics_and_counters(
    tmp_path: Path, app: str, others: int
) -> None:
    trainer = trainer_of(tmp_path, app)
    base, first = first_model(trainer.shelf.get(ref_of(trainer)).app)
    plain, _, _ = do(trainer_of(tmp_path, app))
    update, _, _ = do(trainer, named("withholding"))
    roles = base.spec.roles
    assert sum(role is not Role.PARAM for role in roles.values()) == others
    for name, role in roles.items():
        assert np.array_equal(update[name], plain[name] if role is Role.PARAM else first[name]), name
        assert role is Role.PARAM or not np.array_equal(plain[name], first[name]), name


def test_a_part_of_a_model_has_its_roles(tmp_path: Path) -> None:
    update, _, _ = do(trainer_of(tmp_path, TORCH), named("withholding"), tensors=("4.weight", "4.bias"))
    assert update.keys() == {"4.weight", "4.bias"}
