"""Models that travel from site to site: how far apart they are after each hop, and how good their mean is."""

from collections.abc import Sequence

import numpy as np
import pytest

from hansa.common.values.tasks import Evaluate, Task
from hansa.controller.engine.effects import StartOrder
from hansa.controller.engine.orders import ExamineHop
from hansa.controller.engine.subjects import OfHop
from tests.unit.engine.play import Play, dropped, endings, sent, withdrawn
from tests.unit.engine.travel import FIRST, SITES, Arrays, Travel, arrays_of, hop_of, noise, radfed, trip_of


def test_the_divergence_of_each_hop_is_in_the_history_and_is_least_right_after_a_merge() -> None:
    play = Travel(noise, **radfed(rounds=2, hops=5)).run(*SITES, first=FIRST)
    for record in play.machine.state.history[1:]:
        divergences = [hop.divergence for hop in record.hops]
        assert None not in divergences
        assert divergences[0] == min(divergences)  # type: ignore[type-var]
    slots = [task for task in play.tasks_given if (task.round, task.hop) == (1, 1)]
    flat = []
    for task in sorted(slots, key=lambda task: task.slot):
        made = noise(FIRST, task)
        flat.append(np.concatenate([made[name].astype(np.float64).ravel() for name in ("w", "b")]))
    assert play.machine.state.history[1].hops[0].divergence == pytest.approx(_apart(flat), rel=1e-9)


def _apart(flat: Sequence[np.ndarray]) -> float:
    """Return the mean of 1 − cos over all pairs, by hand."""
    units = [each / np.linalg.norm(each) for each in flat]
    return float(np.mean([1 - units[i] @ units[j] for i in range(len(units)) for j in range(i)]))


def test_the_divergence_of_changes_is_that_of_what_each_site_added() -> None:
    def along(arrays: Arrays, task: Task) -> Arrays:
        """All go in the same direction, from wherever they are."""
        return {n: a + (a.dtype.type(int(task.site[1:]) + 1) if n == "b" else 0) for n, a in arrays.items()}

    play = Travel(along, **radfed(rounds=1, hops=3, pace={"divergence": "delta"})).run(*SITES, first=FIRST)
    assert [hop.divergence for hop in play.machine.state.history[1].hops] == pytest.approx(
        [0, 0, 0], abs=1e-6
    )
    turned = Travel(noise, **radfed(rounds=1, hops=2, pace={"divergence": "delta"})).run(*SITES, first=FIRST)
    of = {(task.hop, task.slot): task for task in turned.tasks_given}
    changes = []  # of the second hop alone: from what the first had made of each slot
    for slot in (1, 2, 3, 4):
        before = noise(FIRST, of[1, slot])
        after = noise(before, of[2, slot])
        changes.append(
            np.concatenate([(after[n].astype(np.float64) - before[n]).ravel() for n in ("w", "b")])
        )
    assert turned.machine.state.history[1].hops[1].divergence == pytest.approx(_apart(changes), rel=1e-9)
    still = Travel(lambda arrays, _: arrays, **radfed(rounds=1, hops=2, pace={"divergence": "delta"}))
    still.run(*SITES, first=FIRST)
    assert [hop.divergence for hop in still.machine.state.history[1].hops] == [0, 0]


def test_the_mean_of_the_slots_is_evaluated_between_merges_and_training_does_not_notice() -> None:
    plain = Travel(noise, **radfed(rounds=2, hops=3)).run(*SITES, first=FIRST)
    play = Travel(noise, **radfed(rounds=2, hops=3, evaluate={"virtual": True}))
    play.join("e", role="evaluator")
    play.run(*SITES, first=FIRST)
    assert play.digest == plain.digest
    assert play.machine.state.status == "completed"
    evaluated = [bool(hop.metrics) for record in play.machine.state.history[1:] for hop in record.hops]
    assert any(evaluated)
    assert not evaluated[2]
    assert not evaluated[5]  # the last hop's mean is the community model
    assert set(play.store.keys()) == play.machine.state.models


@pytest.mark.parametrize("weight", ["equal", "hops"])
def test_what_is_evaluated_between_merges_is_the_mean_that_a_merge_would_make_now(weight: str) -> None:
    def train(arrays: Arrays, task: Task) -> Arrays:
        made[task.hop, task.slot] = noise(arrays, task)
        return made[task.hop, task.slot]

    made: dict[tuple[int, int], Arrays] = {}
    fields = radfed(
        rounds=1, hops=2, pace={"retries": 0, "weight": weight, "catch_up": 1}, evaluate={"virtual": True}
    )
    play = Travel(train, **fields)
    play.fails = lambda task: (task.hop, task.slot) == (2, 4)
    play.join("e", role="evaluator")
    means: dict[int, Arrays] = {}

    def look() -> bool:
        """Have hops examined and evaluated at once, so that none is skipped because the evaluator is busy."""
        for effect in [
            e for e in play.waiting if isinstance(e, StartOrder) and isinstance(e.order, ExamineHop)
        ]:
            play.waiting.remove(effect)
            play.carry_out(effect)
        for task in list(play.machine.state.tasks.values()):
            if isinstance(task.work, Evaluate):
                subject = play.machine.state.subjects[task.id]
                if isinstance(subject, OfHop):
                    means[subject.hop] = arrays_of(play.store, *task.models)
                play.report(task)
        return False

    play.run(*SITES, first=FIRST, until=look)
    after_second = [made[2, slot] for slot in (1, 2, 3)] + [made[1, 4]]
    counts = {"equal": [1, 1, 1, 1], "hops": [2, 2, 2, 1]}[weight]
    wanted = sum(n * slot["b"] for n, slot in zip(counts, after_second, strict=True)) / sum(counts)
    np.testing.assert_allclose(means[1]["b"], np.mean([made[1, slot]["b"] for slot in (1, 2, 3, 4)], axis=0))
    np.testing.assert_allclose(means[2]["b"], wanted)


def test_means_that_are_being_evaluated_do_not_keep_a_job_from_its_end() -> None:
    pace = {"divergence": "none"}
    play = Play(**radfed(rounds=1, hops=2, evaluate={"virtual": True}, pace=pace, sites={"min": 4}))
    play.join("a", role="evaluator")
    for task in play.training("a", "b", "c", "d").values():
        play.update(task)
    (effect,) = sent(play.hop_examined(1, 1, mean=True))
    assert isinstance(effect.work, Evaluate)
    assert effect.work.model == "j1/h1.1"
    for task in hop_of(play).values():
        play.update(task)
    before = set(play.machine.state.models)
    effects = play.merged()
    assert effect.id in withdrawn(effects)
    assert dropped(effects) == before - play.machine.state.models, "what is no longer kept is deleted"
    assert "j1/h1.1" in dropped(effects)
    (last,) = play.tasks(Evaluate).values()
    assert endings(play.report(last)) == [("completed", "the round is done")]


def test_with_one_hop_the_mean_of_slots_is_not_evaluated_as_it_may_be_one_sites_model() -> None:
    play = Play(
        **radfed(
            rounds=1,
            hops=1,
            evaluate={"virtual": True},
            pace={"divergence": "none", "retries": 0, "catch_up": 1},
            sites={"min": 4},
        )
    )
    play.join("a", role="evaluator")
    first, second = play.training("a", "b", "c", "d").values()
    play.update(first)
    play.fail(second)
    assert trip_of(play).hop == 2  # the other slot catches up
    assert play.orders(ExamineHop) == {}
