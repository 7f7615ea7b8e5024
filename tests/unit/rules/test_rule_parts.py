"""Server updates and aggregators in the engine: which models it keeps, what it refuses, what it shows."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.job.check import parse_job
from hansa.common.job.file import load_job
from hansa.common.job.spec import JobSpec
from hansa.common.job.training import UntilSpec
from hansa.common.methods.proximal import PROXIMAL
from hansa.common.plugins.registry import register, rules
from hansa.common.values.errors import InvalidJob, Stale
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Evaluation
from hansa.common.values.tasks import Train
from hansa.controller.engine.index.retention import Retention
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.baselines.fedavg import Equal
from tests.unit.engine.play import Play, dropped, endings, job_spec, merges, sent

# Models that a version stands on.


def test_the_model_before_and_the_moments_are_kept_until_the_next_version() -> None:
    play = Play(rule="fedadam", pace={"rounds": 4})
    play.training("a", "b")
    play.round()
    state = play.machine.state
    assert state.basis == {
        "j1/u1": "d-j1-1",
        "j1/v1.m": "v1.m",
        "j1/v1.v": "v1.v",
    }  # version 0 was task 1's update
    assert play.machine.moments(1) == {"m": "j1/v1.m", "v": "j1/v1.v"}
    assert play.machine.moments(0) == {}
    for task in play.tasks(Train).values():
        play.update(task)
    gone = dropped(play.merged())
    assert "j1/u1" in gone
    assert set(state.basis) == {"j1/v1", "j1/v1.m", "j1/v1.v", "j1/v2.m", "j1/v2.v"}
    assert set(state.basis) <= state.models
    for task in play.tasks(Train).values():
        play.update(task)
    assert {"j1/v1", "j1/v1.m", "j1/v1.v"} <= dropped(play.merged())
    assert set(state.basis) == {"j1/v2", "j1/v2.m", "j1/v2.v", "j1/v3.m", "j1/v3.v"}


def test_a_plain_rule_keeps_nothing_but_the_newest_model_and_its_updates() -> None:
    play = Play(rule="fedavg", pace={"rounds": 3})
    play.training("a", "b")
    for _ in range(2):
        play.round()
    assert play.machine.state.basis == {}
    members = {member.model for held in play.machine.state.members.values() for member in held}
    assert play.machine.state.models == members | {"j1/v2"}


@pytest.mark.parametrize("rule", ["fedadam", "fedavgm", "fedasync", "server-mix"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_what_a_version_stands_on_survives_a_crash(rule: str, snapshot: bool) -> None:
    play = Play(rule=rule)
    play.training("a", "b", "c")
    for turn in range(3):
        for task in list(play.tasks(Train).values()):
            play.update(task)
            if rule == "fedasync":
                play.merged()
        if rule != "fedasync":
            play.merged()
        if snapshot and turn == 1:
            play.save()
    again = play.again()
    assert again.state == play.machine.state
    held, counted = Retention(again.state), Retention(play.machine.state)
    assert held.drop_idle() == counted.drop_idle() == []


def test_the_receipt_of_a_version_names_its_moments() -> None:
    play = Play(rule="fedyogi", pace={"rounds": 1})
    play.training("a", "b")
    play.round()
    plain = Play(pace={"rounds": 1})
    plain.training("a", "b")
    plain.round()
    issued, other = play.machine.issued, plain.machine.issued
    assert issued is not None
    assert other is not None
    assert issued.moments == {"m": "v1.m", "v": "v1.v"}
    assert issued.sealed().hash == issued.hash
    assert issued.model_copy(update={"moments": {"m": "another", "v": "v1.v"}}).sealed().hash != issued.hash
    assert other.moments == {}


# Staleness.


def _stale_play(limit: int) -> tuple[Play, Any]:
    """Let site a bring updates until the task of site b is one version too old; return it."""
    play = Play(rule="fedasync", pace={"updates": 50}, server={"max_staleness": limit})
    slow = play.training("a", "b")["b"]
    for _ in range(limit + 1):
        play.update(play.tasks(Train)["a"])
        play.merged()
    return play, slow


def test_an_update_that_is_too_stale_is_answered_with_the_newest_model_and_no_version_is_made_of_it() -> None:
    play, slow = _stale_play(2)
    effects = play.update(slow)
    assert merges(effects) == []
    assert dropped(effects) == {"j1/u1", "j1/u3"}  # the update, and the model that it started from
    fresh = play.tasks(Train)["b"]
    assert isinstance(fresh.work, Train)
    assert fresh.work.version == play.machine.state.version == 3
    assert play.machine.state.receipts[SiteName("b")].task == slow.id  # it was received
    play.update(play.tasks(Train)["a"])
    play.merged()
    newest = play.machine.state.history[-1]
    assert newest.contributions == {"a": 1.0}
    assert newest.lost == {"b": "3 versions stale, which is more than max_staleness 2"}
    for _ in range(5):  # it is no failure: the site is not given up
        play.update(play.tasks(Train)["a"])
        play.merged()
    assert play.again().state == play.machine.state


def test_merges_that_wait_count_as_versions_to_come() -> None:
    play = Play(rule="fedasync", server={"max_staleness": 0})
    tasks = play.training("a", "b")
    assert len(merges(play.update(tasks["a"]))) == 1
    assert merges(play.update(tasks["b"])) == []
    play.merged()
    assert play.machine.state.queue == []
    assert play.machine.state.history[-1].contributions == {"a": 1.0}


def test_an_update_that_becomes_too_stale_while_it_is_evaluated_does_not_count() -> None:
    play = Play(rule="fedasync", weigh={"kind": "dvw"}, server={"max_staleness": 0}, evaluate={"every": 1000})
    play.join("a", "b", role="evaluator")
    tasks = play.training("a", "b")
    found = Evaluation(n=4, loss_sum=1.0, confusion=((3, 1), (0, 0)))
    asked = {site: sent(play.update(tasks[site], own=found))[0] for site in ("a", "b")}
    for site, weight in (("a", 8 / 14), ("b", 0.0)):
        (merge,) = merges(play.report(asked[site]))
        assert [(member.site, member.weight) for member in merge.added] == [(site, weight)]
        play.merged()
    assert play.machine.state.history[1].lost == {}
    assert play.machine.state.history[2].lost == {"b": "1 versions stale, which is more than max_staleness 0"}


def test_the_mixing_share_is_that_of_the_version_before_the_merge() -> None:
    play = Play(rule="fedasync")
    slow = play.training("a", "b")["b"]
    for _ in range(3):
        play.update(play.tasks(Train)["a"])
        play.merged()
    (merge,) = merges(play.update(slow))
    assert (merge.version, merge.staleness) == (4, 3)


def test_an_update_after_the_last_one_is_stale_even_if_it_would_be_refused() -> None:
    play = Play(rule="fedasync", pace={"updates": 1}, server={"max_staleness": 0})
    tasks = play.training("a", "b")
    play.update(tasks["a"])
    with pytest.raises(Stale):
        play.update(tasks["b"])


# Tasks.


def test_fedprox_and_fedasync_ask_learners_for_a_proximal_term() -> None:
    for rule, mu in (("fedprox", 0.01), ("fedasync", 0.005)):
        task = Play(rule=rule).training("a", "b")["a"]
        assert isinstance(task.work, Train)
        assert [(plugin.name, plugin.args) for plugin in task.work.plugins] == [(PROXIMAL, {"mu": mu})]
    task = Play(rule="fedasync", local={"kind": "plain"}).training("a", "b")["a"]
    assert isinstance(task.work, Train)
    assert task.work.plugins == ()


# The kinds of pace, sample, local, weigh, merge, server and layers.
COMPOSED = {
    "fedavg": "sync all plain examples mean plain all",
    "async-fedavg": "async all plain examples incremental plain all",
    "semisync-fedavg": "semisync all plain examples mean plain all",
    "fedprox": "sync all proximal examples mean plain all",
    "fedbn": "sync all plain examples mean plain personal",
    "fedper": "sync all plain examples mean plain personal",
    "fedrep": "sync all head-first examples mean plain personal",
    "ditto": "sync all ditto examples mean plain all",
    "fedasync": "async all proximal equal mean mix all",
    "fedasync-constant": "async all proximal equal mean mix all",
    "fedasync-hinge": "async all proximal equal mean mix all",
    "fedbuff": "async all plain staleness delta momentum all",
    "server-mix": "sync all plain examples mean mix all",
    "fedadam": "sync all plain examples mean adam all",
    "fedyogi": "sync all plain examples mean yogi all",
    "fedadagrad": "sync all plain examples mean adagrad all",
    "fedavgm": "sync all plain examples mean momentum all",
    "fednova": "sync all plain nova mean nova all",
    "q-fedavg": "sync all plain loss-power mean q all",
    "sync-dvw": "sync all plain dvw mean plain all",
    "async-dvw": "async all plain dvw incremental plain all",
    "async-dvw-adaptive": "async all plain dvw incremental plain all",
    "median": "sync all plain equal median plain all",
    "trimmed-mean": "sync all plain equal trimmed plain all",
    "krum": "sync all plain equal krum plain all",
    "multi-krum": "sync all plain equal krum plain all",
    "divide": "sync all plain equal mean plain divide",
    "feddaf": "sync all plain fusion mean plain all",
    "fedmmb": "sync all plain used mean plain all",
    "fedsmb": "sync all plain used mean plain all",
    "radfed": "redistribute uniform plain equal mean plain all",
    "radfed-p": "redistribute uniform proximal equal mean plain all",
    "radfed-i": "redistribute importance plain equal mean plain all",
    "radfed-m": "redistribute uniform plain equal mean mix all",
    "radfed-a": "redistribute uniform plain equal mean adam all",
    "scaffold": "sync all scaffold equal mean plain all",
}


def test_rules_are_composed_as_specified() -> None:
    points = ("pace", "sample", "local", "weigh", "merge", "server", "layers")
    composed = {name: compose(job_spec(rule=name)).parts for name in rules()}
    assert {
        name: " ".join(parts[point].kind for point in points) for name, parts in composed.items()
    } == COMPOSED
    assert {parts["evaluate"].kind for parts in composed.values()} == {"pooled"}
    assert {parts["transfer"].kind for parts in composed.values()} == {"none"}


def test_tasks_have_the_epochs_of_the_rule_unless_the_job_says_otherwise() -> None:
    several = {rule: compose(job_spec(rule=rule)).epochs for rule in rules()}
    assert {rule: epochs for rule, epochs in several.items() if epochs != 1} == {
        **dict.fromkeys(("sync-dvw", "async-dvw", "async-dvw-adaptive"), 4),
        "divide": 20,
    }
    assert compose(job_spec(rule="sync-dvw", train={"epochs": 1})).epochs == 1
    play = Play(rule="sync-dvw")
    assert {
        task.work.epochs for task in play.training("a", "b").values() if isinstance(task.work, Train)
    } == {4}


@pytest.mark.parametrize(
    ("rule", "mu"), [("fedavg", 0.1), ("fedprox", 0.1), ("fedasync", 1.0), ("fedprox", 0.0)]
)
def test_the_proximal_term_can_be_said_in_short(rule: str, mu: float) -> None:
    local = compose(job_spec(rule=rule, train={"proximal": mu})).parts["local"]
    assert (local.kind, local.model_dump()) == (("proximal", {"mu": mu}) if mu else ("plain", {}))
    twice = {"app": "app.py:app", "rule": rule, "train": {"proximal": mu}, "local": {"kind": "plain"}}
    with pytest.raises(InvalidJob, match=r"^train: proximal is short for local: .*; give one of them"):
        parse_job(twice)


def test_rules_of_the_same_parts_differ_in_their_parameters() -> None:
    def part(rule: str, point: str) -> dict[str, Any]:
        return compose(job_spec(rule=rule)).parts[point].model_dump()

    how = {rule: part(rule, "server")["staleness"] for rule in rules() if rule.startswith("fedasync")}
    assert how == {"fedasync": "polynomial", "fedasync-constant": "constant", "fedasync-hinge": "hinge"}
    assert part("server-mix", "server")["staleness"] == "constant"
    assert part("krum", "merge") == {"attackers": 1, "chosen": 1}
    assert part("multi-krum", "merge") == {"attackers": 1, "chosen": 0}


def test_a_note_of_the_aggregator_is_in_the_history() -> None:
    play = Play(rule="krum", pace={"rounds": 1})
    for task in play.training("a", "b").values():
        play.update(task)
    play.merged(note="krum took a")
    assert play.machine.state.history[-1].note == "krum took a"


def test_a_failed_merge_ends_the_job_with_the_last_model() -> None:
    play = Play(rule="fedadam")
    play.training("a", "b")
    play.round()
    for task in play.tasks(Train).values():
        play.update(task)
    effects = play.order_failed(2, "the server update 'adam' makes NaN")
    assert endings(effects) == [("failed", "merging version 2: the server update 'adam' makes NaN")]
    assert play.machine.state.current == "j1/v1"
    assert {"j1/v1", "j1/v1.m", "j1/v1.v"} <= play.machine.state.models


# Refused combinations.

REFUSED = [
    (
        "async-fedavg",
        {"weigh": {"kind": "together"}},
        "weigh: together does not go with merge incremental: it weighs all updates together",
    ),
    (
        "async-fedavg",
        {"server": {"kind": "mix"}},
        "merge: incremental does not go with server mix: it averages",
    ),
    ("fedasync", {"merge": {"kind": "latest"}}, "merge: latest does not go with server mix: it averages"),
    (
        "median",
        {"pace": {"kind": "async"}},
        "pace: async does not go with merge median: without rounds, most updates",
    ),
    (
        "krum",
        {"weigh": {"kind": "examples"}},
        "weigh: examples does not go with merge krum: robust merges count every site the same",
    ),
    (
        "async-fedavg",
        {"sample": {"kind": "uniform"}},
        "sample: uniform does not go with pace async: every site that is",
    ),
    ("fedavg", {"merge": {"kind": "trimmed"}}, "weigh: examples does not go with merge trimmed: robust"),
    ("fedbn", {"merge": {"bn": "pooled"}}, "merge.bn: pooled does not go with layers personal"),
    ("fedper", {"layers": {"match": ["*"]}}, "layers.match: '*' matches every tensor: nothing would travel"),
    (
        "fedavg",
        {"layers": {"kind": "trainable", "personal": ["*"]}},
        "layers.personal: '*' matches every tensor: nothing would travel",
    ),
    ("fedavg", {"layers": {"kind": "personal"}}, "layers: personal needs to know what stays at the sites"),
    ("fedrep", {"layers": {"kind": "all"}}, "layers: all does not go with local head-first: no tensors are"),
    ("fedrep", {"layers": {"kind": "trainable"}}, "layers: trainable does not go with local head-first"),
    ("fedrep", {"pace": {"kind": "semisync"}}, "pace: semisync does not go with local head-first: it sets"),
    ("fedrep", {"train": {"batches": 3}}, "train: batches does not go with local head-first: it decides"),
    ("fedrep", {"train": {"epochs": 3}}, "train.epochs: with local head-first, local.head_epochs and"),
    ("fedrep", {"train": {"keep_optimizer": True}}, "train.keep_optimizer: each of the two stages"),
    (
        "ditto",
        {"layers": {"kind": "personal", "last": 1}},
        "layers: personal does not go with local ditto: some",
    ),
    (
        "ditto",
        {"layers": {"kind": "trainable", "personal": ["head.*"]}},
        "layers: trainable does not go with local ditto: some tensors",
    ),
    ("ditto", {"layers": {"kind": "divide"}}, "layers: divide does not go with local ditto: every round"),
    ("ditto", {"pace": {"kind": "redistribute"}}, "pace: redistribute does not go with local ditto: sites"),
    ("ditto", {"pace": {"kind": "semisync"}}, "pace: semisync does not go with local ditto: it plans"),
    ("ditto", {"train": {"batches": 3}}, "train: batches does not go with local ditto: both models"),
    ("ditto", {"train": {"until": {}}}, "train: until does not go with local ditto: both models"),
    (
        "ditto",
        {"train": {"keep_optimizer": True}},
        "train.keep_optimizer: local ditto keeps a site's own model",
    ),
    (
        "divide",
        {"train": {"schedule": {"kind": "cosine"}}},
        "train.schedule: layers: divide lowers the learning rate from round to round itself",
    ),
    (
        "fedavg",
        {"pace": {"rounds": 9}, "train": {"schedule": {"kind": "cosine", "over": 5}}},
        "train.schedule.over: the schedule ends after 5 rounds, and the job has 9",
    ),
    (
        "fedasync",
        {"train": {"schedule": {"kind": "cosine"}}},
        "train.schedule.over: with pace async the schedule counts tasks of a site; say over how many",
    ),
    (
        "fedasync",
        {"train": {"schedule": {"kind": "cosine", "over": 5}}},
        "train.schedule.least: a site may have more tasks, with a learning rate of 0",
    ),
    (
        "fedavg",
        {"train": {"until": {}, "schedule": {"kind": "cosine", "by": "step"}}},
        "train.schedule.over: with until nobody knows how many steps a task has",
    ),
    (
        "fedavg",
        {"stop": {"target": {"metric": "accuracy_personal", "value": 0.9}}},
        "stop.target.metric: sites have no models of their own beside the community's",
    ),
    (
        "fedavg",
        {"keep": {"best": {"metric": "accuracy_personal"}}},
        "keep.best.metric: sites have no models of their own beside the community's",
    ),
]


@register("weigh", "together")
class Together(Equal):
    """Weights that are for all updates of a merge together."""

    joint: ClassVar[bool] = True


@pytest.mark.parametrize(("rule", "parts", "message"), REFUSED)
def test_parts_that_do_not_go_together_are_refused_by_name(
    rule: str, parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        compose(JobSpec.model_validate({"app": "app.py:app", "rule": rule, **parts}))
    assert any(problem.startswith(message) for problem in caught.value.problems), caught.value.problems


def test_the_line_of_a_refused_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("app: app.py:app\nrule: krum\npace: {kind: async}\n")
    with pytest.raises(InvalidJob) as caught:
        load_job(tmp_path / "job.yaml")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path}/job.yaml:3: pace: async does not go with merge krum")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("server={kind: adam, tau: 0}", "server.tau: input should be greater than 0"),
        ("server={kind: adam, beta1: 1}", "server.beta1: input should be less than 1"),
        ("server={kind: mix, alpha: 1.5}", "server.alpha: input should be less than or equal to 1"),
        (
            "server={kind: mix, staleness: linear}",
            "server.staleness: input should be 'constant', 'polynomial'",
        ),
        ("server={kind: adan}", "server.kind: there is no 'adan' (did you mean 'adam'?)"),
        ("merge={kind: trimmed, trim: 0.5}", "merge.trim: input should be less than 0.5"),
        ("merge={kind: krum, attackers: 1.5}", "merge.attackers: input should be a valid integer"),
        ("local={kind: proximal, mu: -1}", "local.mu: input should be greater than or equal to 0"),
        ("local={kind: proximal, mu: .nan}", "local.mu: input should be a finite number"),
        ("rule=fedadamm", "there is no rule 'fedadamm'"),
        ("rule=FedYogi", "there is no rule 'FedYogi' (did you mean 'fedyogi'"),
        (
            "rule=dvw",
            "there is no rule 'dvw' (did you mean 'sync-dvw' or 'async-dvw' or 'async-dvw-adaptive'?)",
        ),
        ("rule=zzz", "there is no rule 'zzz'; see `hansa rules list`"),
        ("rule=power-of-choice", "no rule 'power-of-choice'; write sample: {kind: power-of-choice}, with"),
        (
            "train.optimizer=adam",
            "train.optimizer: should be a section of keys and values, such as {kind: adam}",
        ),
        (
            "weigh={kind: dvw, min_coverage: 1.1}",
            "weigh.min_coverage: input should be less than or equal to 1",
        ),
        ("evaluate={min_coverage: 0}", "evaluate.min_coverage: input should be greater than 0"),
        ("evaluate={min_coverage: 90}", "evaluate.min_coverage: input should be less than or equal to 1"),
        ("weigh={kind: dvw, timeout: 0}", "weigh.timeout: input should be greater than 0"),
        ("train.until.groups={slow: [a]}", "train.until.groups.slow: should be a section of keys and values"),
        (
            "train.until.groups={slow: {sites: a}}",
            "train.until.groups.slow.sites: should be a list, as in [a, b] (given: 'a')",
        ),
        (
            "train.until.groups={slow: {sites: []}}",
            "train.until.groups.slow.sites: should have 1 or more, not 0",
        ),
    ],
)
def test_wrong_parameters_are_named(tmp_path: Path, change: str, message: str) -> None:
    (tmp_path / "job.yaml").write_text("app: app.py:app\n")
    with pytest.raises(InvalidJob) as caught:
        compose(load_job(tmp_path / "job.yaml", [change]))
    assert message in str(caught.value)


@pytest.mark.parametrize("rule", ["scaffold", "ditto", "fedrep"])
@pytest.mark.parametrize("mu", [0, 0.1])
def test_a_proximal_term_does_not_silently_replace_what_makes_up_a_rule(rule: str, mu: float) -> None:
    with pytest.raises(InvalidJob, match=f"train.proximal: .* without which there is no {rule}; leave"):
        compose(job_spec(rule=rule, train={"proximal": mu}))
    assert compose(job_spec(rule=rule, local={"kind": "proximal", "mu": mu})).local.kind == "proximal"


def test_with_an_unknown_rule_the_faults_of_its_parts_are_reported_as_well(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "app: app.py:app\nrule: fedadamm\npace: {rounds: -1}\nserver: {taw: 1}\nweigh: {kind: nonsense}\n"
        "merge: {trim: 0.2}\nsample: {fraction: 2}\nlocal: {mu: 0.1}\n"
    )
    with pytest.raises(InvalidJob) as caught:
        compose(load_job(tmp_path / "job.yaml"))
    told = str(caught.value)
    for said in (
        "rule: there is no rule 'fedadamm' (did you mean 'fedadam'",
        "pace.rounds: input should be greater than or equal to 1 (given: -1)",
        "server.taw: unknown key",
        "weigh.kind: there is no 'nonsense'",
        "sample.fraction: input should be less than or equal to 1 (given: 2)",
    ):
        assert said in told
    assert "merge" not in told, "some kind of merge has a trim"
    assert "local" not in told


def test_a_run_on_this_machine_refuses_an_unknown_rule_before_it_starts_anything(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("app: app.py:app\nrule: fedag\n")
    assert load_job(path).rule == "fedag"  # a controller elsewhere may know it
    with pytest.raises(
        InvalidJob, match=r"job\.yaml:2: rule: there is no rule 'fedag' \(did you mean 'fedavg'"
    ):
        load_job(path, here=True)


def test_a_rolling_limit_is_allowed_with_a_warning() -> None:
    spec = job_spec(rule="async-dvw-adaptive", train={"until": {"rolling": True}})
    ((where, why),) = compose(spec).warnings(spec)
    assert where == ("train", "until", "rolling")
    assert why.startswith("every task that the staleness limit ends")
    still = job_spec(rule="async-dvw-adaptive", train={"until": {}})
    assert compose(still).warnings(still) == []


@pytest.mark.parametrize(
    ("rule", "parts", "where"),
    [
        ("async-fedavg", {"merge": {"kind": "mean"}}, ["merge"]),
        ("async-fedavg", {"merge": {"kind": "mean"}, "weigh": {"kind": "dvw"}}, ["merge", "weigh"]),
        ("fedasync", {"weigh": {"kind": "dvw"}}, ["weigh"]),
        ("fedasync", {}, []),
        ("async-dvw", {}, []),
        ("async-dvw", {"merge": {"kind": "latest"}}, []),
    ],
)
def test_parts_that_do_little_with_one_update_at_a_time_are_warned_of(
    rule: str, parts: dict[str, Any], where: list[str]
) -> None:
    spec = job_spec(rule=rule, **parts)
    assert [path[0] for path, _ in compose(spec).warnings(spec)] == where


# Commands.


def _cli(*words: str) -> str:
    done = CliRunner().invoke(hansa, words, env={"HANSA_CONFIG": None})
    assert done.exit_code == 0, done.output
    return done.output


def test_rules_are_listed_with_a_line_and_a_paper() -> None:
    shown = _cli("rules", "list").splitlines()
    assert len(shown) == len(rules()) + 1
    assert any(line.startswith("fedadam ") and "Reddi" in line for line in shown)


def test_a_rule_is_shown_with_its_own_defaults_and_what_it_refuses() -> None:
    shown = _cli("rules", "show", "fedasync-hinge")
    for said in (
        "staleness = hinge",
        "mu = 0.005",
        "alpha = 0.6",
        "a = none  default: 0.5 for polynomial, 10 for hinge",
        "(refused: incremental does not go with server mix",
    ):
        assert said in shown


def test_a_rule_that_is_not_there_cannot_be_shown() -> None:
    done = CliRunner().invoke(hansa, ["rules", "show", "nothing-like-it"], env={"HANSA_CONFIG": None})
    assert (done.exit_code, done.stderr) == (
        1,
        "hansa: there is no rule 'nothing-like-it'; see `hansa rules list`\n",
    )


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ("fedavg", set()),
        ("krum", {"sites.together: 2"}),
        ("fedasync", {"sites.together: 2"}),
        ("semisync-fedavg", {"train.until"}),
        ("fedmmb", {"train.until"}),
        ("sync-dvw", {"validation.fraction: 0"}),
        ("async-dvw-adaptive", {"train.batches", "validation.fraction: 0"}),
    ],
)
def test_settings_that_a_rule_does_not_go_with_are_shown(rule: str, refused: set[str]) -> None:
    told = json.loads(_cli("rules", "show", rule, "--json"))["refused"]
    assert set(told) == refused
    shown = _cli("rules", "show", rule)
    assert all(f"{setting}\n    (refused: {why})" in shown for setting, why in told.items())


@pytest.mark.parametrize("rule", sorted(rules()))
def test_every_rule_can_be_shown(rule: str) -> None:
    assert _cli("rules", "show", rule).startswith(f"{rule}: ")
    assert '"refused"' in _cli("rules", "show", rule, "--json")


@pytest.mark.parametrize(
    ("rule", "said"), [("sync-dvw", {"epochs": 4}), ("fedavg", {"epochs": 1}), ("fedsmb", {"batches": 1})]
)
def test_how_long_tasks_are_is_shown(rule: str, said: dict[str, int]) -> None:
    assert json.loads(_cli("rules", "show", rule, "--json"))["train"] == said
    ((what, number),) = said.items()
    assert f"    {what} = {number}  of each task\n" in _cli("rules", "show", rule)


def test_an_adaptive_rule_is_shown_with_what_its_learners_go_by() -> None:
    shown = _cli("rules", "show", "async-dvw-adaptive")
    assert "train.until: Sites train until" in shown
    for said in (
        "kind = adaptive",
        "vc_loss = 1.0  percent",
        "tombstones = 1  ",
        "max_epochs = 100  ",
        "cycles = 20  ",
        "groups = none  ",
        "epochs = 4  of a site without validation data",
    ):
        assert said in shown
    told = json.loads(_cli("rules", "show", "async-dvw-adaptive", "--json"))["train.until"]
    assert {each["name"] for each in told} == set(UntilSpec.model_fields)
    assert all(each["meaning"] for each in told)
    assert "train.until" not in _cli("rules", "show", "async-dvw")
