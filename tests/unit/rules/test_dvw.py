"""Distributed validation weighting: weights from pooled reports, and what counts if reports are missing."""

import itertools
import math
from typing import Any

import pytest

from hansa.common.values.errors import InvalidJob, PluginFailed
from hansa.common.values.history import Score
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Evaluate, Task, Train
from hansa.controller.engine.effects import Effect
from hansa.controller.engine.subjects import OfUpdate
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.dvw import LEAST, Worth
from tests.unit.engine.play import Play, endings, job_spec, merges, sent


def right_of(right: int, n: int = 10, loss: float = 1.0) -> Evaluation:
    """Return what somebody found: so many right."""
    return Evaluation(n=n, loss_sum=loss * n, confusion=((right, n - right), (0, 0)))


NOBODY = Evaluation(n=0, loss_sum=0.0)
SWAPPED = 2  # a seed with which two sites change their slots in the second hop


class Dvw:
    """A job of learners and evaluators a, b, c, d under way."""

    def __init__(
        self, rule: str = "async-dvw", sites: str = "abcd", evaluators: str = "abcd", **fields: Any
    ) -> None:
        fields = {"sites": {"min": len(sites)}, "evaluate": {"every": 1000}, **fields}
        self.play = Play(rule=rule, **fields)
        self.play.join(*evaluators, role="evaluator")
        self.tasks = self.play.training(*sites)

    def update(
        self, site: str, own: Evaluation | None, others: dict[str, Evaluation | str] | None = None
    ) -> Score:
        """Have a site's update evaluated and merged; return its score. A text makes an evaluator fail."""
        asked = self.judged(site, own)
        for judge, found in (others or {}).items():
            self.answer(asked[judge], found)
        if not self.play.machine.state.plan:
            self.play.ring(f"update-{self.tasks[site].id}")
        self.play.merged()
        return self.newest(site)

    def judged(self, site: str, own: Evaluation | None) -> dict[str, Task]:
        self.tasks = self.play.tasks(Train)
        effects = self.play.update(self.tasks[site], own=own)
        return {task.site: task for task in sent(effects) if isinstance(task.work, Evaluate)}

    def answer(self, task: Task, found: Evaluation | str) -> list[Effect]:
        if isinstance(found, str):
            return self.play.fail(task, found)
        from hansa.controller.engine import events as ev

        return self.play.do(ev.Reported(at=self.play.now, task=task.id, site=task.site, evaluation=found))

    def newest(self, site: str) -> Score:
        return self.play.machine.state.history[-1].scores[SiteName(site)]

    @property
    def weights(self) -> dict[str, float]:
        return {
            str(site): weight for site, weight in self.play.machine.state.history[-1].contributions.items()
        }


def test_an_update_is_worth_the_score_of_the_pooled_matrix() -> None:
    job = Dvw()
    score = job.update("a", right_of(10), {"b": right_of(5), "c": right_of(0), "d": right_of(1, n=2)})
    assert job.weights == {"a": 16 / 32}
    assert (score.basis, score.coverage, score.missing) == ("pooled", 1.0, {})
    assert {site: (found.score, found.n) for site, found in score.found.items()} == {
        "a": (1.0, 10),
        "b": (0.5, 10),
        "c": (0.0, 10),
        "d": (0.5, 2),
    }


def test_all_other_sites_are_asked_at_once_on_their_validation_parts_and_the_learner_measures_its_own() -> (
    None
):
    job = Dvw()
    assert all(isinstance(task.work, Train) and task.work.validate_update for task in job.tasks.values())
    asked = job.judged("b", right_of(1))
    assert set(asked) == {"a", "c", "d"}
    assert {
        (task.work.model, task.work.validation) for task in asked.values() if isinstance(task.work, Evaluate)
    } == {(f"j1/u{job.tasks['b'].id.rpartition('-')[2]}", True)}


def test_identical_findings_give_equal_weights() -> None:
    job = Dvw("sync-dvw")
    asked = {site: job.judged(site, right_of(7)) for site in "abcd"}
    for tasks in asked.values():
        for task in tasks.values():
            job.answer(task, right_of(7))
    (merge,) = [job.play.machine.state.plan]
    assert merge is not None
    assert [member.weight for member in merge.added] == [0.7] * 4


def test_classes_that_an_evaluator_has_never_seen_are_rows_of_zeros() -> None:
    job = Dvw(sites="ab", evaluators="ab")
    own = Evaluation(n=4, loss_sum=1.0, confusion=((4, 0, 0), (0, 0, 0), (0, 0, 0)))
    other = Evaluation(n=4, loss_sum=1.0, confusion=((0, 0, 0), (0, 1, 1), (1, 0, 1)))
    job.update("a", own, {"b": other})
    assert job.weights == {"a": 6 / 8}


@pytest.mark.parametrize("order", list(itertools.permutations("bcd")))
def test_the_weight_does_not_depend_on_the_order_in_which_evaluators_report(order: tuple[str, ...]) -> None:
    job = Dvw(weigh={"metric": "inverse_loss"})
    losses = {"b": 0.1, "c": 0.2, "d": 0.3}  # (0.1 + 0.2) + 0.3 differs from 0.1 + (0.2 + 0.3)
    job.update("a", right_of(1, n=1, loss=0.7), {site: right_of(1, n=1, loss=losses[site]) for site in order})
    assert job.weights == {"a": 1 / (1e-6 + (0.7 + 0.1 + 0.2 + 0.3) / 4)}


@pytest.mark.parametrize(
    ("metric", "worth"),
    [("micro_f1", 0.65), ("gmean", (0.9 * 0.4) ** 0.5), ("inverse_loss", 1 / (0.5 + 1e-6))],
)
def test_the_metric_is_a_choice(metric: str, worth: float) -> None:
    job = Dvw(sites="ab", evaluators="ab", weigh={"metric": metric})
    own = Evaluation(n=10, loss_sum=2.0, confusion=((9, 1), (0, 0)))
    job.update("a", own, {"b": Evaluation(n=10, loss_sum=8.0, confusion=((0, 0), (6, 4)))})
    assert job.weights["a"] == pytest.approx(worth)


@pytest.mark.parametrize(
    ("metric", "worth"),
    [("micro_f1", 18 / 26), ("macro_f1", (18 / 22 + 0) / 2), ("inverse_loss", 1 / (0.5 + 1e-6))],
)
def test_where_examples_have_several_labels_the_counts_of_each_are_pooled(metric: str, worth: float) -> None:
    job = Dvw(sites="ab", evaluators="ab", weigh={"metric": metric})
    own = Evaluation(n=10, loss_sum=2.0, labels=((8, 0, 0), (0, 0, 2), (0, 0, 0)))
    score = job.update(
        "a", own, {"b": Evaluation(n=10, loss_sum=8.0, labels=((1, 3, 1), (0, 1, 1), (0, 0, 0)))}
    )
    assert job.weights["a"] == pytest.approx(worth)
    if metric == "micro_f1":
        assert {site: found.score for site, found in score.found.items()} == {"a": 16 / 18, "b": 2 / 8}


@pytest.mark.parametrize("metric", ["mcc", "gmean"])
def test_a_score_of_single_labels_is_refused_where_examples_have_several(metric: str) -> None:
    job = Dvw(sites="ab", evaluators="ab", weigh={"metric": metric})
    found = Evaluation(n=10, loss_sum=2.0, labels=((8, 0, 0),))
    asked = job.judged("a", found)
    with pytest.raises(PluginFailed) as caught:
        job.answer(asked["b"], found)
    assert str(caught.value) == (
        f"weigh 'dvw': weigh.metric {metric} needs confusion matrices; use micro_f1, macro_f1, weighted_f1"
        " or inverse_loss where an example may have several labels"
    )


# Findings that do not come.


def test_enough_findings_are_enough() -> None:
    job = Dvw()
    score = job.update("a", right_of(10), {"b": right_of(5), "c": "out of memory"})  # and d is slow
    assert job.weights == {"a": 15 / 20}
    assert score.basis == "pooled"
    assert dict(score.missing) == {"c": "out of memory", "d": "no report in time"}
    assert score.coverage == pytest.approx(0.5)


def test_with_too_few_findings_the_sites_last_score_counts() -> None:
    job = Dvw(weigh={"min_coverage": 0.6})
    job.update("a", right_of(10), dict.fromkeys("bcd", right_of(6)))
    score = job.update("a", right_of(0), {"b": right_of(0)})
    assert (score.value, score.basis, score.coverage) == (0.7, "previous", 0.5)
    assert job.weights == {"a": 0.7}


def test_with_too_few_findings_of_a_first_update_the_mean_of_the_others_counts() -> None:
    job = Dvw(weigh={"min_coverage": 0.6})
    job.update("b", right_of(10), dict.fromkeys("acd", right_of(10)))
    job.update("c", right_of(5), dict.fromkeys("abd", right_of(5)))
    score = job.update("a", right_of(1), {"b": right_of(1)})
    assert (score.value, score.basis) == (0.75, "mean of others")


def test_the_others_of_a_first_round_are_those_of_the_same_round() -> None:
    job = Dvw("sync-dvw", weigh={"min_coverage": 0.6})
    right = {"a": 1, "b": 2, "c": 10, "d": 5}
    asked = {site: job.judged(site, right_of(count)) for site, count in right.items()}
    for site, judges in asked.items():
        for judge, task in judges.items():
            job.answer(task, "down" if site in "ab" and judge != "c" else right_of(right[site]))
    job.play.merged()
    assert job.weights == {"a": 0.75, "b": 0.75, "c": 1.0, "d": 0.5}


def test_with_too_few_findings_of_the_very_first_update_its_own_counts() -> None:
    job = Dvw(weigh={"min_coverage": 0.6})
    score = job.update("a", right_of(4), {"b": right_of(1)})
    assert (score.value, score.basis, score.coverage) == (0.4, "own", 0.5)


def test_what_a_site_is_known_to_hold_out_is_missed_even_if_its_learner_is_gone() -> None:
    job = Dvw()
    job.update("a", right_of(5), {"b": right_of(5), "c": right_of(5), "d": right_of(5)})
    job.play.leave("b")
    assert job.update("c", right_of(5), {"a": right_of(5), "b": "down", "d": right_of(5)}).coverage == 0.75


@pytest.mark.parametrize("own", [None, NOBODY])
def test_an_update_that_no_site_has_evaluated_weighs_nothing(own: Evaluation | None) -> None:
    score = Dvw().update("a", own, {"b": "down", "c": "down", "d": "down"})
    assert (score.value, score.basis, score.coverage) == (0.0, "none", 0.0)


def test_if_all_evaluators_are_down_the_learners_own_finding_counts_and_coverage_says_so() -> None:
    job = Dvw(evaluators="")
    first = job.judged("a", right_of(4))
    assert first == {}
    job.play.merged()
    score = job.newest("a")
    assert (score.value, score.basis, score.coverage) == (0.4, "own", 0.25)
    assert set(score.missing.values()) == {"no evaluator of the site is connected"}


def test_a_score_of_the_learners_own_finding_alone_is_not_called_pooled() -> None:
    job = Dvw(sites="ab", evaluators="")
    score = job.update("a", right_of(4))
    assert (score.value, score.basis, score.coverage) == (
        0.4,
        "own",
        0.5,
    )  # half of all examples would be enough


def test_if_all_evaluators_are_down_the_learners_own_finding_counts_more_than_an_old_score() -> None:
    job = Dvw(sites="abc", evaluators="abc")
    job.update("a", right_of(10), {"b": right_of(6), "c": right_of(5)})
    score = job.update("a", right_of(2), {"b": "out of memory", "c": "out of memory"})
    assert (score.value, score.basis) == (0.2, "own")


def test_a_site_that_never_reported_is_taken_to_hold_out_as_much_as_the_others() -> None:
    job = Dvw(evaluators="abc")
    score = job.update("a", right_of(1, n=2), dict.fromkeys("bc", right_of(1, n=2)))  # of ten examples each
    assert score.coverage == pytest.approx(6 / 8)
    score = job.update(
        "b", None, {"a": right_of(1, n=2), "c": right_of(1, n=2)}
    )  # its learner has not measured it
    assert score.coverage == pytest.approx(4 / 8)


def test_the_rule_starts_from_the_specified_values() -> None:
    for rule in ("sync-dvw", "async-dvw", "async-dvw-adaptive"):
        weigh = compose(job_spec(rule=rule)).weigh
        assert weigh.model_dump() == {
            "metric": "micro_f1",
            "timeout": 60.0,
            "min_coverage": 0.5,
            "zero": "keep",
        }


def test_an_evaluator_that_leaves_in_mid_evaluation_is_not_waited_for() -> None:
    job = Dvw(sites="abc", evaluators="abc")
    asked = job.judged("a", right_of(8))
    job.answer(asked["b"], right_of(6))
    assert merges(job.play.leave("c", role="evaluator"))
    job.play.merged()
    assert job.weights == {"a": 0.7}
    assert dict(job.newest("a").missing) == {"c": "the site left"}


def test_a_site_without_validation_data_counts_for_nothing_and_is_weighed_by_the_others() -> None:
    job = Dvw(sites="ab", evaluators="ab")
    score = job.update("a", NOBODY, {"b": right_of(8)})
    assert (score.value, score.basis, score.coverage) == (0.8, "pooled", 1.0)
    score = job.update("b", right_of(9), {"a": NOBODY})
    assert (score.value, score.basis, score.coverage) == (0.9, "pooled", 1.0)


def test_a_federation_without_validation_data_is_refused() -> None:
    job = Dvw(sites="ab", evaluators="ab")
    asked = job.judged("a", NOBODY)
    with pytest.raises(PluginFailed) as caught:
        job.answer(asked["b"], NOBODY)
    told = "weigh 'dvw': no site has validation data, so the update of a cannot be scored"
    assert str(caught.value) == told
    with pytest.raises(InvalidJob, match=r"validation\.fraction: weigh: dvw needs"):
        compose(job_spec(rule="sync-dvw", validation={"fraction": 0}))


def test_a_matrix_of_another_size_than_most_is_left_out() -> None:
    job = Dvw()
    nonsense = Evaluation(n=9, loss_sum=1.0, confusion=((3, 0, 0), (0, 3, 0), (0, 0, 3)))
    score = job.update("a", right_of(5), {"b": nonsense, "c": right_of(5), "d": right_of(5)})
    assert (score.value, score.basis) == (0.5, "pooled")
    assert dict(score.missing) == {"b": "its matrix has 3 classes, most have 2"}


def test_findings_that_count_other_labels_or_classes_than_most_are_left_out() -> None:
    labels = Evaluation(n=10, loss_sum=1.0, labels=((3, 1, 1), (2, 0, 2)))
    more = Evaluation(n=10, loss_sum=1.0, labels=((9, 0, 0),) * 3)
    score = Dvw().update("a", labels, {"b": right_of(9), "c": more, "d": labels})
    assert (score.value, score.basis) == (10 / 14, "pooled")
    assert dict(score.missing) == {
        "b": "it counts 2 classes, most count 2 labels",
        "c": "it counts 3 labels, most count 2 labels",
    }
    others: dict[str, Evaluation | str] = {"b": right_of(5), "c": right_of(5), "d": labels}
    score = Dvw(weigh={"metric": "mcc"}).update("a", right_of(5), others)
    assert dict(score.missing) == {"d": "it counts 2 labels, most count 2 classes"}
    tied = Dvw(sites="ab", evaluators="ab").update("a", right_of(5), {"b": labels})
    assert dict(tied.missing) == {"b": "it counts 2 labels, most count 2 classes"}  # the learner is believed


def test_one_site_of_two_that_counts_what_the_metric_cannot_score_does_not_end_the_job() -> None:
    labels = Evaluation(n=10, loss_sum=1.0, labels=((3, 1, 1), (2, 0, 2)))
    right = Evaluation(n=10, loss_sum=1.0, confusion=((5, 0), (0, 5)))
    score = Dvw(sites="ab", evaluators="ab", weigh={"metric": "gmean"}).update("a", labels, {"b": right})
    assert (score.value, score.missing) == (1.0, {"a": "it counts 2 labels, most count 2 classes"})


def test_findings_without_a_matrix_do_not_outvote_one() -> None:
    score = Dvw().update("a", right_of(8), dict.fromkeys("bcd", Evaluation(n=10, loss_sum=1.0)))
    assert (score.value, score.basis, sorted(score.missing)) == (0.8, "own", ["b", "c", "d"])


def test_where_few_answer_one_matrix_of_another_size_does_not_outvote_what_is_known() -> None:
    job = Dvw(weigh={"min_coverage": 0.2})
    nonsense = Evaluation(n=9, loss_sum=1.0, confusion=((9,),))
    score = job.update("a", right_of(5), {"b": nonsense, "c": "gone", "d": "gone"})
    assert (
        dict(score.missing)["b"] == "its matrix has 1 classes, most have 2"
    )  # of the two the learner is believed
    job.update("c", right_of(5), {"a": right_of(5), "b": nonsense, "d": right_of(5)})
    score = job.update("d", NOBODY, {"a": "gone", "b": nonsense, "c": right_of(7)})
    assert (score.value, set(score.found)) == (0.7, {"c"})
    assert dict(score.missing) == {"a": "gone", "b": "its matrix has 1 classes, most have 2"}


def test_one_loss_that_is_not_a_number_is_left_out_but_a_model_without_a_finite_loss_weighs_nothing() -> None:
    job = Dvw(sites="abc", evaluators="abc", weigh={"metric": "inverse_loss"})
    bad = Evaluation(n=10, loss_sum=math.nan)
    score = job.update("a", Evaluation(n=10, loss_sum=5.0), {"b": bad, "c": Evaluation(n=10, loss_sum=15.0)})
    assert score.value == pytest.approx(1.0, abs=1e-5)
    assert dict(score.missing) == {"b": "its loss is not a number"}
    assert job.update("b", bad, {"a": bad, "c": bad}).value == 0
    infinite = [Evaluation(n=1, loss_sum=sign * math.inf) for sign in (1, -1)]
    assert job.update("c", NOBODY, {"a": infinite[0], "b": infinite[1]}).value == 0


def test_a_score_of_classes_is_refused_for_a_job_without_classes() -> None:
    job = Dvw(sites="ab", evaluators="ab")
    asked = job.judged("a", Evaluation(n=3, loss_sum=1.0))
    with pytest.raises(PluginFailed) as caught:
        job.answer(asked["b"], Evaluation(n=3, loss_sum=1.0))
    told = "weigh 'dvw': weigh.metric micro_f1 needs confusion matrices; use inverse_loss for regression"
    assert str(caught.value) == told


def test_where_few_answer_one_that_has_no_classes_does_not_end_a_job_in_which_others_have_them() -> None:
    job = Dvw(sites="ab", evaluators="ab")
    job.update("a", right_of(5), {"b": right_of(5)})
    score = job.update("a", Evaluation(n=10, loss_sum=1.0), {"b": "gone"})
    assert (score.value, score.basis) == (0.5, "previous")
    assert dict(score.missing) == {"a": "its matrix has 0 classes, most have 2", "b": "gone"}


# Nothing is worth anything.


def test_an_update_that_is_worth_nothing_replaces_its_sites_last_one() -> None:
    job = Dvw(sites="ab", evaluators="ab")
    job.update("a", right_of(5), {"b": right_of(5)})
    job.update("b", right_of(5), {"a": right_of(5)})
    asked = job.judged("a", right_of(0))
    (merge,) = merges(job.answer(asked["b"], right_of(0)))
    assert [(member.site, member.weight) for member in merge.added] == [("a", 0.0)]
    assert [(member.site, member.weight) for member in merge.removed] == [("a", 0.5)]


@pytest.mark.parametrize(("zero", "weight"), [("keep", 0.0), ("uniform", LEAST)])
def test_if_all_are_worth_nothing_it_is_counted(zero: str, weight: float) -> None:
    job = Dvw(sites="ab", evaluators="ab", weigh={"zero": zero})
    job.update("a", right_of(0), {"b": right_of(0)})
    job.update("b", right_of(0), {"a": right_of(0)})
    assert job.weights == {"b": weight}
    memory = job.play.machine.memories["weigh"]
    assert isinstance(memory, Worth)
    assert memory.nothing == 2
    job.update("a", right_of(1), {"b": right_of(0)})
    assert job.weights == {"a": 0.05}
    assert memory.nothing == 2
    assert weight < 0.05 / 1000, "the first score that is one carries the model with it"


@pytest.mark.parametrize(("zero", "weight"), [("keep", 0.0), ("uniform", LEAST)])
def test_with_rounds_only_the_rounds_own_updates_can_be_worth_something(zero: str, weight: float) -> None:
    job = Dvw("sync-dvw", sites="abc", evaluators="abc", weigh={"zero": zero})
    for right in (5, 0):  # in the second round c, which was worth something, does not answer
        tasks = job.play.tasks(Train)
        asked = {site: job.judged(site, right_of(right)) for site in ("abc" if right else "ab")}
        if not right:
            job.play.fail(tasks["c"])
        for judges in asked.values():
            for task in judges.values():
                job.answer(task, right_of(right))
        job.play.merged()
    assert job.weights == {"a": weight, "b": weight}
    memory = job.play.machine.memories["weigh"]
    assert isinstance(memory, Worth)
    assert memory.nothing == 1


def test_the_updates_of_a_site_that_left_no_longer_weigh_anything() -> None:
    job = Dvw(sites="ab", evaluators="ab", merge={"drop_on_leave": True}, weigh={"zero": "uniform"})
    job.update("a", right_of(5), {"b": right_of(5)})
    job.play.leave("a")
    job.play.merged()  # without a
    job.update("b", right_of(0), {"a": right_of(0)})
    assert job.weights == {"b": LEAST}
    memory = job.play.machine.memories["weigh"]
    assert isinstance(memory, Worth)
    assert memory.nothing == 1


# The job's memory.


def test_scores_survive_snapshots_and_replays() -> None:
    job = Dvw(sites="ab", evaluators="ab")
    job.update("a", right_of(5), {"b": right_of(4)})
    asked = job.judged("b", right_of(3))
    again = job.play.again()
    assert again.state == job.play.machine.state
    assert again.memories == job.play.machine.memories
    job.play.save()
    job.answer(asked["a"], "gone")
    job.play.merged()
    again = job.play.again()
    assert again.state == job.play.machine.state
    assert again.memories == job.play.machine.memories
    assert again.state.history[-1].scores == job.play.machine.state.history[-1].scores


def test_a_synchronous_job_runs_to_its_end() -> None:
    job = Dvw("sync-dvw", sites="ab", evaluators="ab", pace={"rounds": 1})
    first, second = job.judged("a", right_of(8)), job.judged("b", right_of(4))
    job.answer(first["b"], right_of(6))
    job.answer(second["a"], right_of(2))
    effects = job.play.merged()
    for task in job.play.tasks(Evaluate).values():
        effects = job.play.report(task)
    assert job.weights == {"a": 0.7, "b": 0.3}
    assert endings(effects)[0][0] == "completed"


def test_a_site_that_was_the_last_to_train_two_slots_has_the_score_of_each() -> None:
    pace = {"kind": "redistribute", "rounds": 2, "hops": 2, "retries": 0, "divergence": "none"}
    job = Dvw("radfed", "ab", "ab", pace=pace, weigh={"kind": "dvw"}, sample={"fraction": 1.0}, seed=SWAPPED)
    slots = {site: task.slot for site, task in job.tasks.items()}
    for task in job.tasks.values():
        job.play.update(task, own=right_of(4))
    second = job.play.tasks(Train)
    assert {site: task.slot for site, task in second.items()} == {"a": slots["b"], "b": slots["a"]}
    job.play.update(second["a"], own=right_of(6))
    job.play.fail(second["b"])  # so that its slot stays as a left it in the first hop
    while asked := job.play.tasks(Evaluate):
        own = job.play.machine.state.subjects[asked["b"].id] == OfUpdate(second["a"].id)
        job.answer(asked["b"], right_of(8 if own else 4))
    job.play.merged()
    scores = job.play.machine.state.history[-1].scores
    assert {name: score.value for name, score in scores.items()} == {
        f"a (slot {slots['a']})": 0.4,
        f"a (slot {slots['b']})": 0.7,
    }
    assert job.weights == {"a": pytest.approx(1.1)}
    memory = job.play.machine.memories["weigh"]
    assert isinstance(memory, Worth)
    assert set(memory.last) == {"a"}
    assert job.play.again().state == job.play.machine.state
