"""`hansa job compare` on folders of `hansa run`: concordance, and jobs that differ (fedmmb §4, §7.7)."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hansa.common.cli import hansa
from hansa.common.job.spec import JobSpec, SitesSpec
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.run.central import centralised
from hansa.common.ui.job.concordance import discordance, distance
from hansa.common.values.errors import InvalidInput
from hansa.controller.rulebook.compose import compose
from tests.hostile_text import FORGED, NASTY, require_clean
from tests.support import filled, sealed, small_spec


def leave(
    folder: Path, name: str, losses: list[float | None], value: float = 1.0, examples: int = 20, **more: Any
) -> Path:
    """Write the report and the model of a run with these test losses into a folder."""
    where = folder / name
    where.mkdir()
    history = [
        {
            "version": version,
            "round": version,
            "seconds": 0.5 * version,
            "metrics": {"loss": loss} if version else {},
            "examples": examples if version else 0,
            "covered": version > 0,
            "bytes_up": 10,
            "bytes_down": 20,
        }
        for version, loss in enumerate([None, *losses])
    ]
    report = {
        "job": f"j-{name}",
        "name": name,
        "status": "completed",
        "version": len(losses),
        "history": history,
    }
    (where / "report.json").write_text(json.dumps(report | more))
    save_checkpoint(where / "model.safetensors", *sealed(small_spec(), filled(small_spec(), value)))
    return where


def compare(*words: object) -> Result:
    return CliRunner().invoke(hansa, ["job", "compare", *map(str, words)])


def concordance(*words: object) -> Any:
    done = compare(*words, "--concordance", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["concordance"]


def test_the_discordance_of_a_series_with_itself_is_nothing_and_differences_are_squared() -> None:
    assert discordance([0.3, 0.1], [0.3, 0.1]) == 0
    assert discordance([1, 2], [1, 4]) == 2
    assert discordance([1e200], [0]) == float("inf")


def test_the_distance_of_models_is_relative_to_the_reference_and_over_parameters() -> None:
    spec = small_spec()
    one, two = sealed(spec, filled(spec, 1)), sealed(spec, filled(spec, 2))
    assert distance(one, one) == 0
    assert distance(two, one) == 1
    assert distance(one, two) == 0.5
    changed = sealed(spec, filled(spec, 1) | {"norm.mean": np.full(4, 9, np.float32)})
    assert distance(changed, one) == 0  # statistics do not count
    zero = sealed(spec, filled(spec, 0))
    assert distance(zero, zero) == 0
    assert distance(one, zero) == math.inf
    other = small_spec(rows=5)
    with pytest.raises(InvalidInput, match=r"different tensors: layer\.weight differs"):
        distance(sealed(other, filled(other, 1)), one)


def test_jobs_are_compared_with_the_first(tmp_path: Path) -> None:
    central, near, far = (
        leave(tmp_path, "central", [1.0, 0.5]),
        leave(tmp_path, "near", [1.05, 0.55], value=1.5),
        leave(tmp_path, "far", [2.0, 2.5]),
    )
    found = concordance(central, near, far)
    assert (found["reference"], found["epsilon"]) == ("central", 0.01)
    one, other = found["against"]
    assert one["discordance"] == pytest.approx(0.0025)
    assert (one["concordant"], one["distance"], one["versions"], one["remarks"]) == (True, 0.5, 2, [])
    assert other["discordance"] == pytest.approx(2.5)
    assert (other["concordant"], other["distance"]) == (False, 0.0)
    assert concordance(central, near, "--epsilon", "0.002")["against"][0]["concordant"] is False
    # The discordance must be below ε.
    assert concordance(central, far, "--epsilon", "2.5")["against"][0]["concordant"] is False


def test_people_get_tables(tmp_path: Path) -> None:
    a, b = leave(tmp_path, "a", [1.0] * 30), leave(tmp_path, "b", [0.5] * 30)
    plain = compare(a, b)
    assert plain.exit_code == 0, plain.output
    assert "(20 of 30 versions; --json has all)" in plain.output
    assert "concordant" not in plain.output
    assert "930 B" in plain.output  # 30 bytes in each of 31 versions
    shown = compare(a, b, "--concordance").output
    assert "concordant (δ < 0.01)" in shown
    assert shown.splitlines()[-1].split() == ["b", "0.25", "no", "0", "30"]


def test_jobs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    a, b = leave(tmp_path, "a", [1.0]), leave(tmp_path / "again", "a", [1.0], job="j-b")
    found = concordance(a, b)
    assert (found["reference"], found["against"][0]["job"]) == ("a (j-a)", "a (j-b)")


@pytest.mark.parametrize(
    ("mine", "theirs", "more", "remark"),
    [
        ([1.0], [1.0, 2.0], {}, "of 1 and 2 evaluated versions, 1 are common to both"),
        ([1.0], [1.0, 2.0], {}, "the last models are of versions 1 and 2"),
        ([], [1.0], {}, "mine has no test losses: no evaluator has evaluated it"),
        ([None, 1.0], [1.0, 1.0], {}, "at 1 versions a loss is not a finite number"),
        ([1.0], [1.0], {"examples": 7}, "the test data are not the same"),
    ],
)
def test_what_cannot_be_compared_is_said(
    tmp_path: Path, mine: list[float | None], theirs: list[float | None], more: dict[str, int], remark: str
) -> None:
    reference = leave(tmp_path, "theirs", theirs)
    (found,) = concordance(reference, leave(tmp_path, "mine", mine, **more))["against"]
    assert any(remark in each for each in found["remarks"]), found["remarks"]
    if None in mine or not mine:
        assert (found["discordance"], found["concordant"]) == (None, False)


def test_a_run_without_a_model_or_with_another_network_has_no_distance(tmp_path: Path) -> None:
    a, b, c = (leave(tmp_path, name, [1.0]) for name in "abc")
    (b / "model.safetensors").unlink()
    save_checkpoint(c / "model.safetensors", *sealed(small_spec(5), filled(small_spec(5), 1)))
    found = concordance(a, b, c)["against"]
    assert [each["distance"] for each in found] == [None, None]
    assert found[0]["remarks"] == ["b has no model, so there is no distance"]
    assert found[1]["remarks"] == ["no distance: the models have different tensors: layer.weight differs"]
    assert [each["concordant"] for each in found] == [True, True]  # which depends only on the losses


def test_versions_that_were_evaluated_on_some_of_the_examples_are_left_out(tmp_path: Path) -> None:
    a, b = leave(tmp_path, "a", [1.0, 0.5]), leave(tmp_path, "b", [9.0, 0.5])
    report = json.loads((b / "report.json").read_text())
    report["history"][1] |= {"covered": False, "examples": 5, "examples_total": 20}
    (b / "report.json").write_text(json.dumps(report))
    (found,) = concordance(a, b)["against"]
    assert (found["discordance"], found["versions"]) == (0, 1)
    assert "1 version of b left out: evaluated on too few of all test examples" in found["remarks"]
    shown = compare(a, b).output
    assert "b: 1 version left out, evaluated on too few of all test examples" in shown
    assert "loss 9.0000" not in shown
    whole = json.loads(compare(a, b, "--json").stdout)["jobs"][1]["history"][1]
    assert (whole["examples"], whole["examples_total"], whole["covered"]) == (5, 20, False)


def test_reports_of_other_versions_of_hansa_are_read_as_far_as_they_are_compared(tmp_path: Path) -> None:
    a, b = leave(tmp_path, "a", [1.0], survey=7, unheard_of={}), leave(tmp_path, "b", [1.0])
    report = json.loads((a / "report.json").read_text())
    report["history"][1]["updates"] = "another form"
    (a / "report.json").write_text(json.dumps(report))
    assert concordance(a, b)["against"][0]["discordance"] == 0


def test_what_a_report_claims_prints_clean(tmp_path: Path) -> None:
    one = leave(tmp_path, "one", [0.3])
    other = leave(tmp_path, "other", [0.2], job=NASTY, status=NASTY)
    report = json.loads((other / "report.json").read_text())
    report["name"] = f"{NASTY}\n{FORGED}"
    report["history"].append(report["history"][-1] | {"version": 2, "covered": False})
    (other / "report.json").write_text(json.dumps(report))
    done = compare(other, one, "--concordance")
    assert done.exit_code == 0, done.output
    assert "1 version left out" in done.output
    require_clean(done.output, "hansa job compare")


def test_what_is_not_a_job_is_refused(tmp_path: Path) -> None:
    good = leave(tmp_path, "good", [1.0])
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "report.json").write_text('{"history": [1]}')
    told = (
        ((good,), "name at least two jobs"),
        ((good, tmp_path / "empty"), "there is no report.json in it"),
        ((good, tmp_path / "odd"), "not the report of a job"),
        ((good, good, "--epsilon", "0"), "--epsilon"),
    )
    for words, why in told:
        done = compare(*words)
        assert done.exit_code == 2
        assert why in done.stderr


# Central training.


@pytest.mark.parametrize(
    ("fields", "epochs"),
    [
        ({"rule": "fedavg"}, 1),
        ({"rule": "sync-dvw"}, 4),
        ({"rule": "sync-dvw", "train": {"epochs": 2, "proximal": 0.1}}, 2),
        ({"rule": "divide"}, 20),
        ({"rule": "divide", "layers": {"feature_epochs": 5, "fine_epochs": 1}}, 5),
    ],
)
def test_central_training_has_the_epochs_of_the_rule_or_the_job(fields: dict[str, Any], epochs: int) -> None:
    made = centralised(JobSpec.model_validate({"app": "app.py:app", **fields}), 3)
    assert (made.train.epochs, compose(made).epochs, made.train.proximal) == (epochs, epochs, None)


@pytest.mark.parametrize(
    ("fields", "rounds", "batches"),
    [
        ({"rule": "fedsmb", "pace": {"rounds": 7}}, 7, 1),
        ({"rule": "fedmmb", "pace": {"rounds": 7}, "train": {"batches": 3, "batch_size": 32}}, 7, 3),
        ({"rule": "fedadam", "pace": {"rounds": 7}, "server": {"lr": 0.5}}, 7, None),
        ({"rule": "async-fedavg", "pace": {"updates": 42}}, 5, None),
        ({"rule": "fedbuff", "pace": {"updates": 42, "buffer": 4}}, 5, None),
        ({"rule": "krum", "sample": {"kind": "uniform", "fraction": 0.5}}, 10, None),
        (
            {"rule": "radfed", "pace": {"rounds": 7, "hops": 4}, "train": {"epochs": 2, "batch_size": 32}},
            7,
            None,
        ),
        (
            {"rule": "radfed", "pace": {"rounds": 7, "hops": 4}, "train": {"batches": 3, "batch_size": 32}},
            7,
            3,
        ),
    ],
)
def test_central_training_has_the_same_steps_over_the_batches_of_all_sites(
    fields: dict[str, Any], rounds: int, batches: int | None
) -> None:
    spec = JobSpec.model_validate(
        {"app": "app.py:app", "name": "x" * 64, "train": {"batch_size": 32}, **fields}
    )
    made = centralised(spec, 10)
    assert made.train.batch_size == 320
    assert made.train.batches == batches
    if spec.rule == "radfed" and not batches:
        assert made.train.epochs == 8  # as many as a model is trained for before it is averaged
    assert JobSpec.model_validate_json(made.model_dump_json()) == made
    rule = compose(made)
    assert rule.pace.rounds_asked() == rounds
    # Windows follow one another, because no window goes beyond a pass.
    travels = spec.rule == "radfed" and batches
    assert rule.pace.model_dump().get("hops") == (4 if travels else None)
    plain = compose(JobSpec(app="app.py:app")).parts
    for point in ("sample", "local", "layers", "transfer", "merge", "server"):
        assert rule.parts[point] == plain[point]
    assert made.evaluate == spec.evaluate


def test_central_training_makes_the_reference_and_needs_none() -> None:
    spec = JobSpec(app="a.py:a", init="first.safetensors", reference="central.safetensors")
    made = centralised(spec, 10)
    assert (made.init, made.reference) == (spec.init, None)


def test_central_training_is_of_one_site_however_many_the_job_asks_for() -> None:
    sites = {"min": 3, "together": 3, "wait": 7, "names": ["a", "b", "c"]}
    made = centralised(JobSpec.model_validate({"app": "a.py:a", "sites": sites}), 3)
    assert made.sites == SitesSpec(min=1, together=1, wait=7)


def test_central_training_has_no_travelling_models_to_evaluate() -> None:
    spec = JobSpec.model_validate(
        {"app": "a.py:a", "rule": "radfed", "evaluate": {"every": 3, "virtual": True}}
    )
    made = centralised(spec, 10)
    assert made.evaluate == {"every": 3}
    assert compose(made).evaluate.timeout == compose(spec).evaluate.timeout


def test_many_jobs_fit_a_terminal_and_are_told_apart_by_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folders = []
    for number, rate in enumerate((0.1, 0.2, 0.3)):
        job = {
            "app": "app.py:app",
            "seed": 7,
            "train": {"epochs": 2, "optimizer": {"kind": "sgd", "lr": rate}},
        }
        resolved = {"job": job, "made_with": {"hansa": "0.1.0"}}
        (tmp_path / str(number)).mkdir()
        losses = [1 / (version + rate) for version in range(1, 51)]
        folders.append(leave(tmp_path / str(number), "plane", [*losses], resolved=resolved))
    done = compare(*folders)
    assert done.exit_code == 0, done.output
    table = done.stdout.split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= 80
    assert table.startswith("loss of version")
    assert [line.split("  ")[0] for line in table.splitlines()[1:4]] == [
        f"plane (lr={rate})" for rate in (0.1, 0.2, 0.3)
    ]
    assert "of 50 versions; --json has all" in table
