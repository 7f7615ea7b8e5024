"""Examinations: parts of a rule look at the numbers of updates before these are merged."""

from dataclasses import replace

import numpy as np
import pytest

from hansa.common.models.model import Role
from hansa.common.values.errors import PluginFailed, Stale
from hansa.common.values.ids import JobId, ModelKey, SiteName
from hansa.common.values.tasks import Task, Train
from hansa.controller.community.reading import Library
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.machine import Machine
from hansa.controller.engine.orders import Examine
from hansa.controller.plugin.evidence import Evidence, Findings
from hansa.controller.plugin.view import Contribution
from hansa.controller.storage.stores.memory import MemoryStore
from hansa.controller.work.drafts import Drafts
from hansa.controller.work.examine import StoredEvidence, examine
from tests.unit.engine.evaluated_updates import Alternate
from tests.unit.engine.examined import Measured, Onlooker, Seen, Sizes
from tests.unit.engine.play import JOB, Play, dropped, machine_of, merges, started
from tests.unit.samples import keep, spec_of, values


def _started(effects: list[Effect]) -> list[int]:
    return list(started(effects, Examine))


def _found(play: Play, number: int, kept: dict[str, str] | None = None, **sizes: float) -> list[Effect]:
    return play.examined(number, dict(sizes), kept)


def _round(play: Play) -> list[int]:
    """Let the updates of both sites arrive; return the examinations that begin."""
    effects: list[Effect] = []
    for task in play.tasks(Train).values():
        effects += play.update(task)
    assert not merges(effects)
    return _started(effects)


def _play(**fields: object) -> Play:
    play = Play(weigh={"kind": "measured"}, **fields)
    play.training("a", "b")
    return play


def test_a_merge_waits_for_what_the_weigher_wants_to_know_and_is_weighed_with_it() -> None:
    play = _play()
    (number,) = _round(play)
    assert play.machine.state.merging
    (merge,) = merges(_found(play, number, a=2.0, b=3.5))
    assert [member.weight for member in merge.added] == [2.0, 3.5]
    play.merged()
    assert play.machine.state.history[1].diagnostics == {
        "weigh": {"sizes": {"a": 2.0, "b": 3.5}, "troubles": 0},
    }


def test_a_merge_goes_on_without_findings_if_there_is_trouble() -> None:
    play = _play()
    (number,) = _round(play)
    (merge,) = merges(play.order_failed(number))
    assert [member.weight for member in merge.added] == [1.0, 1.0]
    memory = play.machine.memories["weigh"]
    assert isinstance(memory, Sizes)
    assert memory.troubles == ["no memory"]
    with pytest.raises(Stale):
        _found(play, number, a=1.0)


def test_findings_survive_a_crash_and_open_examinations_are_started_again() -> None:
    play = _play()
    (number,) = _round(play)
    again = play.again()
    assert _started(again.resume()) == [number]
    assert again.state == play.machine.state
    _found(play, number, {"a": "d1"}, a=0.1 + 0.2, b=1.0)
    play.save()
    again = play.again()
    assert again.state == play.machine.state
    assert again.memories == play.machine.memories
    assert _started(again.resume()) == []


def test_what_a_part_keeps_stays_until_it_keeps_something_else_or_the_job_ends() -> None:
    play = _play(pace={"rounds": 3})
    (first,) = _round(play)
    _found(play, first, {"a": "d1", "b": "d2"})
    play.merged()
    (second,) = _round(play)
    assert play.orders(Examine)[second].kept == {"a": f"{JOB}/x{first}.0", "b": f"{JOB}/x{first}.1"}
    effects = _found(play, second, {"a": "", "b": "d3"})
    assert dropped(effects) == {f"{JOB}/x{first}.0", f"{JOB}/x{first}.1"}
    assert {kept.key for kept in play.machine.state.kept["weigh"].values()} == {f"{JOB}/x{second}.1"}
    play.merged()
    assert f"{JOB}/x{second}.1" in play.machine.state.models
    assert f"{JOB}/x{second}.1" in dropped(play.cancel())


def test_several_parts_examine_one_merge() -> None:
    play = Play(weigh={"kind": "measured"}, pace={"rounds": 2})
    rule = replace(play.machine.rule, local=Onlooker())
    play.machine = Machine(JOB, play.spec, rule, 0.0)
    play.machine.start()
    play.training("a", "b")
    weigher, onlooker = _round(play)
    assert not merges(_found(play, weigher, a=2.0, b=2.0))
    assert merges(_found(play, onlooker))
    looked = play.machine.memories["local"]
    assert isinstance(looked, Seen)
    assert looked.looks == 1


def test_merges_stay_in_order_while_one_is_examined() -> None:
    play = Play(rule="async-fedavg", weigh={"kind": "measured"}, pace={"updates": 5})
    tasks = play.training("a", "b")
    (first,) = _started(play.update(tasks["b"]))
    assert not play.update(tasks["a"])
    (merge,) = merges(_found(play, first, b=1.0))
    assert merge.added[0].site == "b"
    (second,) = _started(play.merged())
    (merge,) = merges(_found(play, second, a=1.0))
    assert merge.added[0].site == "a"


def test_the_model_under_a_partial_update_is_kept_until_the_update_is_merged() -> None:
    play = Play(rule="async-fedavg", pace={"updates": 9}, merge={"kind": "mean"})
    rule = replace(play.machine.rule, local=Alternate())
    play.machine = Machine(JOB, play.spec, rule, 0.0)
    play.machine.start()
    tasks = play.training("a", "b", "c")
    play.update(tasks["a"])
    play.merged()  # from here on tasks are partial
    partial = play.tasks(Train)["a"]
    assert isinstance(partial.work, Train)
    assert partial.work.tensors
    base = partial.work.model
    play.update(tasks["b"])  # its merge makes the next version
    play.update(partial)
    effects = play.merged()
    assert base not in dropped(effects)
    assert base in dropped(play.merged())


SPEC = spec_of(
    {"layer.weight": ("float32", (3, 4)), "norm": ("bfloat16", (5,)), "none": ("float32", (0,))},
    {"norm": Role.STAT},
)


def _contribution(task: Task, key: str, tensors: tuple[str, ...], base: str) -> Contribution:
    work = task.work
    assert isinstance(work, Train)
    work = work.model_copy(update={"model": ModelKey(base), "tensors": tensors})
    partial = task.model_copy(update={"work": work})
    facts = {"n_train": 1, "n_used": 1, "steps": 1, "epochs": 1, "seconds": 0}
    return Contribution.model_validate({"task": partial, "model": key, "digest": "", "facts": facts})


def _evidence(memory: int = 1 << 20) -> tuple[MemoryStore, Examine, Evidence]:
    play = Play()
    tasks = play.training("a", "b")
    store = MemoryStore()
    keep(store, "j/v1", SPEC, values(SPEC, 1))
    keep(store, "j/u1", SPEC, values(SPEC, 2))
    keep(store, "j/u2", SPEC.subset(["norm"]), values(SPEC, 3))
    parts = (
        _contribution(tasks["a"], "j/u1", (), "j/gone"),
        _contribution(tasks["b"], "j/u2", ("norm",), "j/v1"),
    )
    order = Examine(
        point="weigh",
        question={"tensor": "layer.weight"},
        contributions=parts,
        current=ModelKey("j/v1"),
        kept={},
    )
    return store, order, StoredEvidence(order, Library(store.open), memory)


@pytest.mark.parametrize("memory", [0, 1 << 24])
def test_a_partial_update_is_read_as_laid_over_the_model_that_its_site_started_from(memory: int) -> None:
    _, order, evidence = _evidence(memory)
    whole, partial = order.contributions
    np.testing.assert_array_equal(evidence.numbers(whole, "layer.weight"), values(SPEC, 2)["layer.weight"])
    np.testing.assert_array_equal(evidence.numbers(partial, "layer.weight"), values(SPEC, 1)["layer.weight"])
    np.testing.assert_array_equal(evidence.numbers(partial, "norm"), values(SPEC, 3)["norm"])
    np.testing.assert_array_equal(evidence.community("norm"), values(SPEC, 1)["norm"])
    assert evidence.numbers(partial, "none").shape == (0,)
    assert list(evidence.carried(partial)) == ["norm"]
    (rows,) = evidence.rows(order.contributions, "layer.weight")
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows[1], values(SPEC, 1)["layer.weight"].ravel())


def test_an_examination_stores_what_it_keeps_and_reads_it_in_the_next() -> None:
    store, order, _ = _evidence()
    part = Measured()
    first, keys = examine(JobId("j"), 1, order, part, store, Drafts(store), 1 << 20)
    assert keys == (ModelKey("j/x1.0"), ModelKey("j/x1.1"))
    kept = dict(zip(sorted(first.kept), keys, strict=True))
    assert store.open(kept["a"]).manifest.digest.hex() == first.kept["a"]
    second, _ = examine(JobId("j"), 2, replace(order, kept=kept), part, store, Drafts(store), 1 << 20)
    assert isinstance(first.facts, dict)
    assert isinstance(second.facts, dict)
    assert second.facts["a"] == 2 * float(str(first.facts["a"]))


def test_findings_that_the_journal_cannot_store_are_refused() -> None:
    store, order, _ = _evidence()

    class Vague(Measured):
        def examine(self, *_: object) -> Findings:
            return Findings(float("nan"))

    with pytest.raises(PluginFailed, match="JSON"):
        examine(JobId("j"), 1, order, Vague(), store, Drafts(store), 1 << 20)


def test_a_job_that_ends_gives_its_examinations_up() -> None:
    play = _play()
    (number,) = _round(play)
    play.cancel()
    assert not play.machine.state.orders
    with pytest.raises(Stale):
        _found(play, number)
    assert machine_of(play.spec).state.kept == {}
    assert SiteName("a") in play.machine.state.learners
