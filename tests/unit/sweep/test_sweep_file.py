"""The sweep file: what is varied, and what the messages about mistakes say."""

from pathlib import Path
from typing import Any

import pytest

from hansa.common.values.errors import InvalidJob
from hansa.simulation.sweep.plan import Plan, Way, make_plan
from tests.unit.sweep.samples import JOB, plan_of

ROOT = Path(__file__).resolve().parents[3]


def problems(**fields: Any) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        plan_of(**fields)
    return caught.value.problems


def titles(plan: Plan) -> list[str]:
    return [run.title for run in plan.runs]


# What is run.


def test_all_values_are_combined_and_one_seed_is_run_after_another() -> None:
    plan = plan_of(axes={"rule": ["fedavg", "fedprox"], "train.epochs": [1, 2]}, seeds=[7, 5])
    assert titles(plan)[:5] == [
        "rule=fedavg, train.epochs=1, seed=7",
        "rule=fedavg, train.epochs=2, seed=7",
        "rule=fedprox, train.epochs=1, seed=7",
        "rule=fedprox, train.epochs=2, seed=7",
        "rule=fedavg, train.epochs=1, seed=5",
    ]
    assert len(plan.runs) == 8
    assert [(run.spec.rule, run.spec.train.epochs, run.spec.seed) for run in plan.runs[3:5]] == [
        ("fedprox", 2, 7),
        ("fedavg", 1, 5),
    ]
    assert list(plan.rows()) == [("fedavg", "1"), ("fedavg", "2"), ("fedprox", "1"), ("fedprox", "2")]


def test_a_name_sets_several_fields_at_once() -> None:
    method = {"plain": None, "radfed 6": {"rule": "radfed", "pace.kind": "redistribute", "pace.hops": 6}}
    plan = plan_of(axes={"method": method}, set={"pace.rounds": 9})
    plain, radfed = (run.spec for run in plan.runs)
    assert (plain.rule, plain.pace) == ("fedavg", {"kind": "sync", "rounds": 9})
    assert (radfed.rule, radfed.pace) == ("radfed", {"kind": "redistribute", "rounds": 9, "hops": 6})
    assert [spec.name for spec in (plain, radfed)] == ["sweep-plain", "sweep-radfed-6"]


def test_later_axes_change_what_earlier_ones_have_set() -> None:
    paces = {"short": {"pace": {"kind": "sync"}}}
    (run,) = plan_of(set={"pace.rounds": 2}, axes={"paces": paces, "pace.rounds": [8]}).runs
    assert run.spec.pace == {"kind": "sync", "rounds": 8}


@pytest.mark.parametrize("seeds", ["0..2", ["0..1", 2], [0, 1, 2]])
def test_seeds_are_a_list_or_a_range(seeds: Any) -> None:
    plan = plan_of(seeds=seeds)
    assert [run.spec.seed for run in plan.runs] == [0, 1, 2]
    assert [axis.name for axis in plan.repeated] == ["seed"]
    assert list(plan.rows()) == [()]


def test_a_sweep_without_axes_is_the_job_itself() -> None:
    (run,) = plan_of().runs
    assert (run.title, run.spec.seed) == ("the job itself", 1990)


def test_values_may_be_whole_sections() -> None:
    plan = plan_of(axes={"data.partition": [{"kind": "iid"}, {"labels": 4}]})
    assert titles(plan) == ["data.partition=kind: iid", "data.partition=labels: 4"]
    assert plan.runs[1].spec.data is not None
    assert plan.runs[1].spec.data.partition == {"labels": 4}


def test_combinations_are_chosen_and_left_out() -> None:
    axes = {"rule": ["fedavg", "fedprox", "fedadam"], "train.epochs": [1, 2]}
    chosen = plan_of(
        axes=axes, only=[{"rule": "fedavg"}, {"train.epochs": 2}], exclude=[{"rule": ["fedadam"]}]
    )
    assert titles(chosen) == [
        "rule=fedavg, train.epochs=1",
        "rule=fedavg, train.epochs=2",
        "rule=fedprox, train.epochs=2",
    ]


def test_a_name_may_start_from_another_job_file(tmp_path: Path) -> None:
    for name, epochs in (("a", 3), ("b", 4)):
        text = (
            f"app: {ROOT}/examples/digits/app.py:app\ntrain: {{epochs: {epochs}}}\ndata: {{source: digits}}\n"
        )
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "sweep.yaml").write_text(
        "base: a.yaml\naxes: {method: {first: {}, second: {base: b.yaml}}}\n"
    )
    plan = make_plan(tmp_path / "sweep.yaml", Way("hand"))
    assert [run.spec.train.epochs for run in plan.runs] == [3, 4]
    assert plan.spec.name == "sweep"


def test_without_a_baseline_all_are_compared_with_the_first_combination() -> None:
    plan = plan_of(axes={"rule": ["fedavg", "fedadam"], "train.epochs": [1, 2]})
    assert {plan.compared_with(row) for row in plan.rows()} == {("fedavg", "1")}


def test_a_baseline_of_one_axis_compares_like_with_like_on_the_others() -> None:
    plan = plan_of(axes={"rule": ["fedavg", "fedadam"], "train.epochs": [1, 2]}, baseline={"rule": "fedadam"})
    assert plan.compared_with(("fedavg", "2")) == ("fedadam", "2")
    assert plan.compared_with(("fedadam", "1")) == ("fedadam", "1")


def test_other_axes_can_be_repetitions() -> None:
    plan = plan_of(axes={"rule": ["fedavg"], "validation.fraction": [0.1, 0.2]}, over=["validation.fraction"])
    assert list(plan.rows()) == [("fedavg",)]
    assert [plan.repetition(run) for run in plan.runs] == [("0.1",), ("0.2",)]


FILES = [
    *sorted((ROOT / "benchmarks" / "sweeps").glob("*.yaml")),
    *sorted((ROOT / "examples").rglob("sweep*.yaml")),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_sweeps_of_this_repository_can_be_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # apps are named relative to it
    plan = make_plan(file, Way("simulation"))
    assert len(plan.rows()) > 1
    assert len(plan.runs) == len(plan.rows()) * len(plan.repeated[0].points)


# What is refused.


def test_an_axis_that_names_no_field_is_refused_with_a_suggestion() -> None:
    (line,) = problems(axes={"train.epoch": [1]})
    assert line.startswith("the sweep: axes.train.epoch: there is no such field (did you mean 'train.epochs'")
    (line,) = problems(axes={"lr": [1]})
    assert "did you mean 'server.lr' or 'train.optimizer.lr'?" in line
    (line,) = problems(axes={"method": ["fedavg"]})
    assert line.endswith("an axis that is not a field has names with changes, such as {a: {rule: fedavg}}")
    (line,) = problems(axes={"method": {"a": {"pace.hopps": 2}}})
    assert line.startswith(
        "the sweep: axes.method.a.pace.hopps: there is no such field (did you mean 'pace.hops'"
    )
    (line,) = problems(set={"pace.rouns": 2})
    assert line.startswith("the sweep: set.pace.rouns: there is no such field (did you mean 'pace.rounds'")


@pytest.mark.parametrize("field", ["name", "operator", "made_with", "train.epochs.more.x", "nonsense"])
def test_fields_that_are_not_the_sweeps_to_set_are_refused(field: str) -> None:
    assert problems(set={field: 1})


def test_groups_of_sites_have_names_of_their_own() -> None:
    until = {"train.until": {"kind": "adaptive"}, "train.until.groups.slow": {"sites": ["site-1"]}}
    (run,) = plan_of(set={"rule": "async-dvw-adaptive", "pace": {"updates": 4}, **until}).runs
    assert run.spec.train.until is not None
    assert run.spec.train.until.groups["slow"].sites == ("site-1",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"base": 3}, "base: name a job file"),
        ({"seeds": 5}, "seeds: write [5] for one seed, or 0..4 for several"),
        ({"seeds": ["a"]}, "seeds: should be a list of whole numbers"),
        ({"seeds": "4..2"}, "seeds: 4..2: a range goes upwards"),
        ({"seeds": [1], "axes": {"seed": [2]}}, "seeds is short for the axis seed"),
        ({"axes": {"rule": {"a": {"rule": "fedavg"}}}}, "axes.rule: this is a field: give a list of values"),
        ({"axes": {"rule": []}}, "axes.rule: should be a list of 1 to"),
        ({"axes": {"rule": ["fedavg", "fedavg"]}}, "axes.rule: fedavg is there twice"),
        ({"axes": {"m": {"a": 3}}}, "axes.m.a: should be the changes of this name"),
        (
            {"axes": {"m": {"a": {"seed": 1}}}, "seeds": [2]},
            "axes.seed: it sets seed, and so does the axis m",
        ),
        (
            {"axes": {"train.epochs": [1], "m": {"a": {"train": {}}}}},
            "axes.m: it sets train, and so does the axis train.epochs",
        ),
        ({"axes": {"rule": ["fedavg"]}, "only": [{"rul": "x"}]}, "only.0.rul: there is no axis 'rul'"),
        (
            {"axes": {"rule": ["fedavg"]}, "exclude": [{"rule": "x"}]},
            "exclude.0.rule: x is not a value of this",
        ),
        ({"axes": {"rule": ["fedavg"]}, "exclude": [{"rule": "fedavg"}]}, "no combination is left to run"),
        (
            {"axes": {"rule": ["fedavg"]}, "baseline": {"rule": "y"}},
            "baseline.rule: y is not a value of this",
        ),
        ({"seeds": [1], "baseline": {"seed": 1}}, "baseline.seed: results are averaged over this axis"),
        ({"over": ["fold"]}, "over: there is no axis 'fold'"),
        ({"compare": "median"}, "compare: "),
        ({"last": 0}, "last: "),
        ({"axis": {}}, "axis: unknown key (did you mean 'axes'?)"),
        ({"seeds": "0..9999", "axes": {"train.epochs": [1, 2]}}, "20000 combinations are too many"),
    ],
)
def test_mistakes_are_named_with_their_field(fields: dict[str, Any], words: str) -> None:
    (line,) = problems(**fields)
    assert words in line


def test_a_baseline_that_is_not_run_is_refused() -> None:
    axes = {"rule": ["fedavg", "fedadam"]}
    (line,) = problems(axes=axes, baseline={"rule": "fedadam"}, exclude=[{"rule": "fedadam"}])
    assert line == "the sweep: baseline: rule=fedadam is not among the combinations that are run"


def test_every_job_is_checked_before_anything_runs_and_each_fault_is_named_once() -> None:
    axes = {"rule": ["fedavg", "fedavgg"], "train.epochs": [0, 1]}
    lines = problems(axes=axes, seeds=[1, 2, 3])
    assert len(lines) == 2
    assert lines[0].startswith("the sweep: rule=fedavg, train.epochs=0, seed=1 and 5 other runs: ")
    assert "train.epochs: input should be greater than or equal to 1 (given: 0)" in lines[0]
    assert lines[1].startswith("the sweep: rule=fedavgg, train.epochs=0, seed=1 and 5 other runs: ")
    assert "there is no rule 'fedavgg' (did you mean 'fedavg'" in lines[1]


def test_parts_that_do_not_go_together_are_refused() -> None:
    (line,) = problems(axes={"evaluate.virtual": [False, True]})
    assert "evaluate.virtual=true: " in line
    assert "no travelling models" in line


def test_a_partition_that_does_not_exist_is_refused() -> None:
    (line,) = problems(axes={"data.partition.kind": ["iid", "iidd"]})
    assert "data.partition.kind: there is no 'iidd' (did you mean 'iid'?)" in line


def test_files_are_named_with_lines(tmp_path: Path) -> None:
    job, sweep = tmp_path / "job.yaml", tmp_path / "sweep.yaml"
    job.write_text("app: app.py:app\ntrain:\n  epochs: -1\n")
    sweep.write_text("base: job.yaml\naxes:\n  rul: [fedavg]\n")
    with pytest.raises(InvalidJob, match=r"sweep\.yaml:3: axes\.rul: there is no such field"):
        make_plan(sweep, Way("hand"))
    sweep.write_text("base: job.yaml\naxes:\n  rule: [fedavg]\n")
    with pytest.raises(InvalidJob, match=r"rule=fedavg: .*job\.yaml:3: train\.epochs: input should be"):
        make_plan(sweep, Way("hand"))
    sweep.write_text("base: jobb.yaml\n")
    with pytest.raises(InvalidJob, match=r"jobb\.yaml: cannot be read: No such file"):
        make_plan(sweep, Way("hand"))
    sweep.write_text("- a\n")
    with pytest.raises(InvalidJob, match="expected a mapping of fields such as base, axes and seeds"):
        make_plan(sweep, Way("hand"))


def test_jobs_on_this_machine_need_data() -> None:
    base = {name: value for name, value in JOB.items() if name != "data"}
    (line,) = problems(base=base)
    assert "data: is required to run jobs on this machine" in line


def test_what_makes_no_difference_cannot_be_varied() -> None:
    fleet = Way("fleet", here=False, ignored={"data": "sites have their own"})
    for axes in ({"data.sites": [2, 3]}, {"size": {"small": {"data.sites": 2}}}):
        (line,) = problems(way=fleet, axes=axes)
        assert line.endswith("it changes `data`, which makes no difference here: sites have their own")
    assert plan_of(way=fleet, axes={"pace.rounds": [1]}, set={"data.sites": 2}).runs


def test_a_fleet_may_know_rules_that_are_unknown_here() -> None:
    fleet = Way("fleet", here=False)
    plan = plan_of(
        way=fleet,
        axes={"rule": ["fedavg", "theirs"], "weigh.theirs": [1]},
        base=JOB | {"weigh": {"kind": "other"}},
    )
    assert [run.spec.rule for run in plan.runs] == ["fedavg", "theirs"]
