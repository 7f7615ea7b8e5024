"""How a sweep runs: what is run again, what is not, and what a failure means."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hansa.common.cli import hansa
from hansa.common.job.spec import JobSpec
from hansa.common.run.trial import Report
from hansa.common.values.errors import HansaError, Taken, Unreachable
from hansa.simulation.sweep.api import run_sweep
from hansa.simulation.sweep.driver import claimed
from hansa.simulation.sweep.plan import Plan, Way
from hansa.simulation.sweep.records import Record, note_job, noted_job, read_record, write_record
from hansa.simulation.sweep.table import Table
from tests.unit.sweep.samples import JOB, WAY, ByHand, plan_of, report_of

AXES = {"rule": ["fedavg", "fedprox"]}


def fine(spec: JobSpec) -> Report:
    return report_of([0.5, 0.6])


def failing(rule: str, error: BaseException) -> Callable[[JobSpec], Report]:
    def answer(spec: JobSpec) -> Report:
        if spec.rule == rule:
            raise error
        return fine(spec)

    return answer


def go(
    plan: Plan, folder: Path, answer: Callable[[JobSpec], Report] = fine, retry: bool = True
) -> tuple[Table, list[str]]:
    """Run what is missing; return the table and the rules that were run."""
    runner = ByHand(answer)
    table = run_sweep(plan, folder, runner, retry, quiet=True)
    return table, [spec.rule for spec in runner.jobs]


def statuses(table: Table) -> list[str]:
    return [result.status for result in table.results]


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    plan = plan_of(axes=AXES, seeds=[0, 1])
    table, ran = go(plan, tmp_path)
    assert ran == ["fedavg", "fedprox"] * 2
    assert statuses(table) == ["completed"] * 4
    again, ran = go(plan, tmp_path)
    assert ran == []
    assert again.documents() == table.documents()


def test_a_larger_sweep_runs_only_what_is_new(tmp_path: Path) -> None:
    go(plan_of(axes=AXES, seeds=[0]), tmp_path)
    _, ran = go(plan_of(axes={"rule": ["fedavg", "fedadam"]}, seeds=[0]), tmp_path)
    assert ran == ["fedadam"]


@pytest.mark.parametrize(
    "change", [{"set": {"train.epochs": 3}}, {"base": JOB | {"seed": 3}}, {"way": Way("other")}]
)
def test_a_changed_sweep_does_not_take_old_results(tmp_path: Path, change: dict[str, Any]) -> None:
    before = plan_of(axes=AXES)
    go(before, tmp_path)
    changed = plan_of(axes=AXES, **change)
    _, ran = go(changed, tmp_path)
    assert ran == ["fedavg", "fedprox"]
    _, ran = go(before, tmp_path)
    assert ran == [], "the old results are still there"


def test_defaults_that_are_written_out_and_names_change_nothing() -> None:
    one, other = plan_of(name="a"), plan_of(name="b", set={"rule": "fedavg", "train.batch_size": 32})
    assert one.runs[0].digest == other.runs[0].digest


def test_an_app_that_has_changed_is_another_run(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("app = 1\n")
    base = JOB | {"app": f"{app}:app"}
    before = plan_of(base=base).runs[0].digest
    app.write_text("app = 2\n")
    assert plan_of(base=base).runs[0].digest != before


def test_a_failure_does_not_end_the_sweep_and_is_tried_again(tmp_path: Path) -> None:
    plan = plan_of(axes=AXES, seeds=[0, 1])
    table, ran = go(plan, tmp_path, failing("fedavg", HansaError("hansa: no data\nhansa: try again")))
    assert ran == ["fedavg", "fedprox"] * 2
    assert statuses(table) == ["failed", "completed", "failed", "completed"]
    assert table.results[0].reason == "no data; try again"
    table, ran = go(plan, tmp_path, retry=False)
    assert ran == []
    assert statuses(table)[0] == "failed"
    table, ran = go(plan, tmp_path)
    assert ran == ["fedavg", "fedavg"]
    assert statuses(table) == ["completed"] * 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Unreachable("nobody answers")])
def test_an_interrupted_sweep_keeps_what_is_finished_and_goes_on(
    tmp_path: Path, error: BaseException
) -> None:
    plan = plan_of(axes={"rule": ["fedavg", "fedprox", "fedadam"]})
    with pytest.raises(type(error)):
        go(plan, tmp_path, failing("fedprox", error))
    whole = json.loads((tmp_path / "sweep.json").read_text())
    assert [run["status"] for run in whole["runs"]] == ["completed", "missing", "missing"]
    _, ran = go(plan, tmp_path)
    assert ran == ["fedprox", "fedadam"]


def test_damaged_results_are_made_again(tmp_path: Path) -> None:
    plan = plan_of(axes=AXES)
    go(plan, tmp_path)
    (tmp_path / "runs" / plan.runs[0].folder / "report.json").write_text('{"history": [{}]}')
    (tmp_path / "runs" / plan.runs[1].folder / "run.json").write_text("{")
    _, ran = go(plan, tmp_path)
    assert ran == ["fedavg", "fedprox"]


def test_two_sweeps_cannot_use_one_folder(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(Taken, match="in use by another sweep"):
        go(plan_of(), tmp_path)
    go(plan_of(), tmp_path)


def test_a_run_remembers_its_job_on_a_controller(tmp_path: Path) -> None:
    assert noted_job(tmp_path) is None
    write_record(tmp_path, Record("abc", "running"))
    assert noted_job(tmp_path) is None
    note_job(tmp_path, "j12")
    assert noted_job(tmp_path) == "j12"
    assert read_record(tmp_path) == Record("abc", "running", job="j12")


def test_jobs_of_one_seed_differ_only_in_what_is_varied() -> None:
    plan = plan_of(axes={"train.epochs": [1, 2]}, seeds=[0, 1])
    first, second, third, _ = (run.spec.model_dump(exclude={"name", "train"}) for run in plan.runs)
    assert first == second, "partition, first model and draws follow from the job's seed"
    assert first["seed"] != third["seed"]


# The command.


def sweep_file(folder: Path, **fields: object) -> str:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({"base": JOB, "axes": AXES, "seeds": [0, 1]} | fields))
    return str(path)


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(hansa, ["sweep", *words], env={"HANSA_CONFIG": ""})
    return done.exit_code, done.output


def test_a_dry_run_lists_the_runs_and_runs_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, shown = call(sweep_file(tmp_path), "--out", str(out), "--dry-run")
    assert code == 0
    assert shown.startswith("small: 4 runs of 2 rule × 2 seed, by simulation\n  rule=fedavg, seed=0\n")
    assert not out.exists()
    code, shown = call(sweep_file(tmp_path), "--out", str(out), "--dry-run", "--json")
    assert [run["status"] for run in json.loads(shown)["runs"]] == ["missing"] * 4


def test_results_are_shown_without_running_anything(tmp_path: Path) -> None:
    code, shown = call(sweep_file(tmp_path), "--out", str(tmp_path / "out"), "--show")
    assert code == 1
    assert "4 runs of 4 missing" in shown


def test_wrong_options_and_files_are_refused(tmp_path: Path) -> None:
    file = sweep_file(tmp_path)
    code, shown = call(file, "--processes", "--controller", "127.0.0.1:1")
    assert (code, "leave out --fleet and --controller" in shown) == (2, True)
    code, shown = call(file, "--processes", "--workers", "2")
    assert (code, "--workers is for simulations" in shown) == (2, True)
    code, shown = call(file, "--table", str(tmp_path / "a.txt"))
    assert (code, "must end in .csv" in shown) == (2, True)
    code, shown = call(sweep_file(tmp_path, axes={"rul": ["a"]}))
    assert (code, "small.yaml:2: axes.rul: there is no such field" in shown) == (2, True)
    code, shown = call(sweep_file(tmp_path, axes={"data.sites": [2]}), "--controller", "127.0.0.1:1")
    assert (code, "have data of their own" in shown) == (2, True)


def test_an_address_in_the_environment_alone_does_not_choose_a_fleet(tmp_path: Path) -> None:
    words = ["sweep", sweep_file(tmp_path), "--dry-run"]
    environment = {"HANSA_CONFIG": "", "HANSA_CONTROLLER": "127.0.0.1:1"}
    assert "by simulation" in CliRunner().invoke(hansa, words, env=environment).output
    assert (
        "by controller 127.0.0.1:1" in CliRunner().invoke(hansa, [*words, "--fleet"], env=environment).output
    )


def test_the_ways_of_running_do_not_share_results() -> None:
    assert plan_of(way=WAY).runs[0].folder != plan_of(way=Way("another")).runs[0].folder
