"""Power of choice: who is a candidate, who takes part, and what happens if candidates do not answer."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hansa.common.methods.starting_loss import STARTING_LOSS
from hansa.common.values.errors import InvalidJob, Stale
from hansa.common.values.ids import SiteName
from hansa.common.values.tasks import Init, Probe, Train
from hansa.controller.plugin.samples import view
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.baselines.power_of_choice import Losses, PowerOfChoice
from tests.unit.engine.play import Play, job_spec, sent, withdrawn

SITES = tuple("abcdefgh")
LOSSES = dict(zip(SITES, (0.5, 4.0, 1.0, 0.1, 3.0, 2.0, 0.2, 0.3), strict=True))


def choosy(candidates: int = 4, fraction: float = 0.25, **more: Any) -> dict[str, Any]:
    sample = {"kind": "power-of-choice", "candidates": candidates, "fraction": fraction}
    return {"sample": sample, "pace": {"rounds": 5}, "evaluate": {"every": 1000}, **more}


def probing(**words: Any) -> Play:
    """Return a job whose first candidates have been asked."""
    play = Play(**choosy(**words))
    play.join(*SITES)
    play.update(play.tasks(Init)["a"])
    assert play.machine.state.phase == "probing"
    return play


def worst(sites: set[str], count: int) -> set[str]:
    return set(sorted(sites, key=lambda site: -LOSSES[site])[:count])


def test_before_every_round_the_candidates_report_and_the_worst_take_part() -> None:
    play = probing()
    drawn = []
    for number in range(1, 6):
        probes = play.tasks(Probe)
        assert len(probes) == 4
        assert not play.tasks(Train)
        for task in probes.values():
            assert isinstance(task.work, Probe)
            assert (task.work.model, task.work.plugin.name) == (play.machine.state.current, STARTING_LOSS)
        drawn.append(frozenset(probes))
        for site, task in probes.items():
            play.probe(task, LOSSES[site])
            assert play.again().state == play.machine.state
        assert set(play.tasks(Train)) == worst(set(probes), 2)
        assert play.machine.state.round == number
        play.round()
    assert len(set(drawn)) > 1
    assert play.machine.state.status == "completed"


def test_candidates_are_drawn_in_proportion_to_examples() -> None:
    sampler, counts = PowerOfChoice(candidates=1, fraction=0.01), Counter[SiteName]()
    for number in range(4000):
        (site,) = sampler.to_probe(sampler.begin(), view(number))
        counts[site] += 1
    examples = view().examples
    for site, share in examples.items():
        assert counts[site] / 4000 == pytest.approx(share / sum(examples.values()), abs=0.03)


def test_there_are_never_fewer_candidates_than_sites_that_take_part() -> None:
    sampler = PowerOfChoice(candidates=1, fraction=0.5)
    assert len(sampler.to_probe(sampler.begin(), view())) == 3
    everybody = PowerOfChoice(candidates=100, fraction=0.5)
    assert set(everybody.to_probe(everybody.begin(), view())) == set(view().sites)


def test_candidates_that_fail_leave_or_report_nonsense_are_replaced_by_others() -> None:
    play = probing(candidates=2, fraction=0.25)
    first, second = play.tasks(Probe).values()
    play.fail(first)
    play.probe(second, math.nan)
    assert len(play.tasks(Train)) == 2
    assert not {first.site, second.site} & set(play.tasks(Train))
    play.round()
    gone, rest = play.tasks(Probe).values()
    play.leave(gone.site)
    assert play.machine.state.phase == "probing"
    play.probe(rest, 1.0)
    training = play.tasks(Train)
    assert rest.site in training
    assert gone.site not in training


def test_the_history_has_the_losses_and_names_candidates_without_one() -> None:
    play = probing(candidates=3, fraction=0.25)
    failing, *others = play.tasks(Probe).values()
    play.fail(failing)
    for task in others:
        play.probe(task, LOSSES[task.site])
    play.round()
    for task in play.tasks(Probe).values():
        play.probe(task, LOSSES[task.site])
    play.round()
    first, second = (version.diagnostics["sample"] for version in play.machine.state.history[1:])
    assert first["losses"] == {task.site: LOSSES[task.site] for task in others}
    assert first["warning"] == f"power-of-choice: no loss was reported by {failing.site}"
    assert second.keys() == {"losses"}


def test_a_candidate_that_has_failed_trains_only_if_there_is_nobody_else() -> None:
    sampler, state = PowerOfChoice(candidates=100, fraction=1.0), Losses()
    sites = sampler.to_probe(state, view())
    sampler.probed(state, sites[0], 0.1)
    assert list(sampler.choose(state, view())) == list(sites)
    assert set(sampler.choose(state, view(), exclude=frozenset(sites[:1]))) == set(sites[1:])


def test_others_are_drawn_by_chance_of_their_own() -> None:
    """With the numbers that drew the candidates, the site after a silent one would nearly always be drawn."""
    sampler, distances = PowerOfChoice(candidates=1, fraction=0.01), Counter[int]()
    alike = replace(view(), examples=dict.fromkeys(view().sites, 10))
    for number in range(2000):
        state, at = Losses(), replace(alike, round=number)
        (silent,) = sampler.to_probe(state, at)
        (site,) = sampler.choose(state, at)
        distances[at.sites.index(site) - at.sites.index(silent)] += 1
    assert distances[0] == 0
    assert distances[1] == pytest.approx(distances[-1], rel=0.2)


def test_a_candidate_that_hangs_holds_up_no_round_for_ever() -> None:
    play = probing()
    play.probe(play.tasks(Probe)["b" if "b" in play.tasks(Probe) else min(play.tasks(Probe))], 9.0)
    late = play.tasks(Probe)
    effects = play.ring("probes")
    assert set(withdrawn(effects)) == {task.id for task in late.values()}
    assert len(sent(effects)) == 2
    with pytest.raises(Stale):
        play.probe(next(iter(late.values())), 1.0)
    play.round()
    assert play.machine.state.phase == "probing"  # the next round asks again


def test_losses_of_an_earlier_round_do_not_count() -> None:
    sampler, state = PowerOfChoice(candidates=2, fraction=0.3), Losses(reported={SiteName("a"): 1e9})
    sampler.to_probe(state, view())
    assert state.reported == {}


def test_too_few_sites_after_the_probes_wait_for_more() -> None:
    play = Play(**choosy(sites={"min": 3}))
    play.join("a", "b", "c")
    play.update(play.tasks(Init)["a"])
    probes = play.tasks(Probe)
    play.leave("a")
    for site in "bc":
        play.probe(probes[site], 1.0)
    assert play.machine.state.phase == "gathering"
    play.join("d")
    assert play.tasks(Train)  # the candidates have reported already
    assert play.again().state == play.machine.state


def test_a_target_that_is_reached_while_candidates_report_ends_the_job() -> None:
    words: dict[str, Any] = {
        "evaluate": {"every": 1},
        "stop": {"target": {"metric": "accuracy", "value": 0.9}},
    }
    play = Play(**choosy(**words))
    play.join(*SITES)
    play.join("a", role="evaluator")
    play.update(play.tasks(Init)["a"])
    for task in play.tasks(Probe).values():
        play.probe(task, 1.0)
    play.round()
    assert play.machine.state.phase == "probing"
    (evaluation,) = play.evaluations()
    play.report(evaluation, right=10)
    assert play.machine.state.status == "completed"
    assert "target reached" in play.machine.state.reason


def test_a_site_that_leaves_while_candidates_report_is_forgotten_if_the_rule_says_so() -> None:
    play = probing(merge={"kind": "latest", "drop_on_leave": True})
    for site, task in play.tasks(Probe).items():
        play.probe(task, LOSSES[site])
    play.round()
    assert play.machine.state.phase == "probing"
    member = min(play.machine.state.members)
    play.leave(member)
    play.merged()
    assert member not in play.machine.state.members
    assert play.again().state == play.machine.state


def test_excluded_sites_are_not_chosen() -> None:
    sampler, state = PowerOfChoice(fraction=0.3), Losses(reported={SiteName("a"): 5.0, SiteName("b"): 1.0})
    assert sampler.choose(state, view())[0] == "a"
    at = replace(view(), draw=(1,))
    assert sampler.choose(state, at, exclude=frozenset({SiteName("a")}))[0] == "b"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"rule": "async-fedavg"}, "sample: power-of-choice does not go with pace async"),
        ({"pace": {"kind": "redistribute"}}, "pace: redistribute does not go with sample power-of-choice"),
    ],
)
def test_what_draws_sites_otherwise_is_refused(words: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        compose(job_spec(**{"sample": {"kind": "power-of-choice"}, **words}))
    assert why in str(refusal.value)
