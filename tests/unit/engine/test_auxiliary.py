"""Auxiliary tensors in the engine: what tasks, orders and receipts say about them, and what is kept."""

import re
from typing import Any, cast

import pytest

from hansa.common.values.digests import joined
from hansa.common.values.errors import InvalidJob
from hansa.common.values.settings.training import AuxiliarySpec
from hansa.common.values.tasks import Init, Train
from hansa.controller.engine.orders import Merge
from hansa.controller.rulebook.compose import compose
from tests.unit.engine.beside import Seen
from tests.unit.engine.play import Play, job_spec

LOCAL = {"kind": "beside"}


def merge_in(play: Play) -> Merge:
    (order,) = play.orders(Merge).values()
    return order


def works(play: Play) -> list[Train]:
    return [task.work for task in play.tasks(Train).values() if isinstance(task.work, Train)]


def memory(play: Play) -> Seen:
    return cast(Seen, play.machine.memories["local"])


def test_tasks_name_the_tensors_beside_the_model_and_say_when_they_are_reset() -> None:
    play = Play(local=LOCAL | {"reset_after": 1}, pace={"rounds": 3})
    play.training("a", "b")
    for reset in (False, True, False):
        wanted = (AuxiliarySpec(name="mean"), AuxiliarySpec(name="sum", reset=reset))
        assert [work.auxiliary for work in works(play)] == [wanted, wanted]
        for task in play.tasks(Train).values():
            play.update(task)
        assert merge_in(play).resets == (("sum",) if reset else ())
        play.merged()
    assert memory(play).rounds == [1, 2, 3]
    assert play.again().state == play.machine.state


def test_jobs_without_them_say_nothing_about_them() -> None:
    play = Play()
    play.training("a", "b")
    assert [work.auxiliary for work in works(play)] == [(), ()]


def test_a_sum_is_over_the_sites_that_were_there_when_the_round_began() -> None:
    play = Play(local=LOCAL, pace={"rounds": 2}, sample={"kind": "uniform", "fraction": 0.5})
    play.join("a", "b", "c", "d")
    (init,) = play.tasks(Init).values()
    play.update(init)
    assert len(play.tasks(Train)) == 2
    absent = next(site for site in "abcd" if site not in play.tasks(Train))
    play.leave(absent)
    play.join("e")
    play.join("f")
    for task in play.tasks(Train).values():
        play.update(task)
    assert merge_in(play).sites == 4
    play.merged()
    for task in play.tasks(Train).values():
        play.update(task)
    assert merge_in(play).sites == 5


def test_without_rounds_a_sum_is_over_the_sites_that_are_there_now() -> None:
    play = Play(rule="async-fedavg", local=LOCAL, pace={"updates": 4})
    tasks = play.training("a", "b")
    play.join("c")
    play.update(tasks["a"])
    assert merge_in(play).sites == 3
    assert memory(play).rounds == []


def test_policies_learn_what_each_update_counted_in_a_merge() -> None:
    play = Play(local=LOCAL, pace={"rounds": 2})
    for task in play.training("a", "b").values():
        play.update(task, n_train=10 if task.site == "a" else 0)
    play.merged()
    assert memory(play).merges == [{"a": 10.0, "b": 0.0}]


def test_the_receipt_covers_the_model_and_what_is_beside_it() -> None:
    play = Play(local=LOCAL, pace={"rounds": 2})
    play.training("a", "b")
    for task in play.tasks(Train).values():
        play.update(task)
    play.merged(digest="aa", auxiliary="bb")
    assert play.machine.issued is not None
    assert play.machine.issued.digest == joined("aa", "bb")
    record = play.machine.state.history[1]
    assert (record.digest, record.auxiliary, record.stored_digest) == ("aa", "bb", joined("aa", "bb"))
    assert play.machine.state.basis == {"j1/u1": "d-j1-1"}, "needed to compute the sum again"


def test_without_them_the_version_before_is_not_kept() -> None:
    play = Play(pace={"rounds": 2})
    play.training("a", "b")
    play.round()
    assert play.machine.state.basis == {}


def test_a_partial_update_carries_those_of_its_tensors() -> None:
    from hansa.common.models.model import Role
    from hansa.controller.plugin.outline import Outline, TensorOutline

    tensors = [("w", Role.PARAM), ("mean", Role.STAT)]
    outline = tuple(TensorOutline(name=name, layer=0, role=role, shape=(2,)) for name, role in tensors)
    play = Play(local=LOCAL, layers={"kind": "parameters"}, pace={"rounds": 1})
    play.outline = Outline(layers=("w",), tensors=outline)
    play.training("a", "b")
    for task in play.tasks(Train).values():
        play.update(task)
    assert [member.tensors for member in merge_in(play).added] == [frozenset({"w", "mean/w", "sum/w"})] * 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rule": "radfed", "local": LOCAL},
            "redistribute does not go with local beside: auxiliary tensors",
        ),
        ({"local": LOCAL, "layers": {"kind": "beside-too"}}, "two sets of auxiliary tensors are called sum"),
        (
            {"layers": {"kind": "beside-astray"}},
            "failed: TypeError: its auxiliary tensors are None, which is not a tuple of Auxiliary",
        ),
        (
            {"rule": "divide", "local": LOCAL, "layers": {"restart": True}},
            "divide does not go with local beside: it may begin again from version 0",
        ),
    ],
)
def test_what_does_not_go_with_them_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=re.escape(message)):
        compose(job_spec(**fields))
