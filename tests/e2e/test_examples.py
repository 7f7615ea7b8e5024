"""The examples that need published data, shortened, over small files in the same formats."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hansa.common.cli import hansa as command_line
from hansa.common.job.file import load_job
from hansa.common.plugins.registry import rules
from hansa.controller.pacers.redistribute import Redistribute
from hansa.controller.rulebook.compose import compose
from hansa.controller.rules.fedmmb import Window
from tests.e2e.conftest import ROOT, hansa, weights
from tests.published import write_covertype, write_hospitals, write_mnist


def _script(data: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={"PATH": "", "HANSA_CONFIG": "", "HANSA_DATA": str(data), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _command(data: Path, *words: str) -> str:
    done = hansa(*words, cwd=ROOT, timeout=110, HANSA_DATA=str(data))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_hospitals_are_compared_alone_in_federations_and_pooled(tmp_path: Path) -> None:
    write_hospitals(tmp_path, rows=40)
    words = ("--seeds", "1", "--rounds", "3", "--federations", "sync-dvw")
    shown = _script(tmp_path, "examples/hospitals/compare.py", *words).splitlines()
    assert shown[2].split() == ["cleveland", "hungarian", "switzerland", "va", "all"]
    assert [line.split()[0] for line in shown[3:]] == ["guess", "alone", "sync-dvw", "pooled", "patients"]
    assert all(0 <= float(share.rstrip("%")) <= 100 for line in shown[3:7] for share in line.split()[1:])
    assert shown[7].split()[1:] == ["8", "8", "8", "8", "32"]


@pytest.mark.slow
def test_more_writers_can_be_tried(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=60, test=20, writers=3)
    shown = _script(tmp_path, "examples/writers/more_writers.py", "2", "--rounds", "1").splitlines()
    assert len(shown) == 2
    assert shown[1].split()[0] == "2"


@pytest.mark.slow
def test_fashion_can_be_compared_with_rounds_and_without(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion-mnist", train=60, test=20)
    words = ("fedadam", "fedasync", "power-of-choice", "q-fedavg", "--rounds", "1", "--sites", "2")
    shown = _script(tmp_path, "examples/fashion/compare.py", *words).splitlines()
    assert shown[0].split() == ["rule", "seed", "accuracy", "loss", "updates", "seconds"]
    assert [line.split()[:2] for line in shown[1:]] == [[rule, "1990"] for rule in words[:4]]
    assert [line.split()[4] for line in shown[1:]] == ["2"] * 4


@pytest.mark.timeout(240)
def test_concordance_with_central_training_can_be_tried(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion-mnist", train=60, test=20)
    small = ("--set", "data.sites=2", "--set", "data.partition.labels=5", "--set", "pace.rounds=2")
    runs = {"fedsmb": ("fedsmb",), "fedmmb": ("fedmmb",), "central": ("fedsmb", "--central")}
    for name, (job, *more) in runs.items():
        words = ("run", f"examples/concordance/{job}.yaml", *small, "--set", "evaluate.every=1", *more)
        shown = _command(tmp_path, *words, "--out", str(tmp_path / name))
    assert "central training: one site holds all data, in batches of 100 examples" in shown
    assert "Done: 1 site trained one model in 2 rounds" in shown
    folders = [str(tmp_path / name) for name in ("central", "fedsmb", "fedmmb")]
    compared = CliRunner().invoke(command_line, ["job", "compare", *folders, "--concordance", "--json"])
    found = json.loads(compared.stdout)["concordance"]
    assert found["reference"] == "concordance-fedsmb-central"
    single, multiple = found["against"]
    # Batches of 50 are all of a site's 30 examples: central training has no other order to take them in.
    assert (single["concordant"], single["versions"], single["remarks"]) == (True, 2, [])
    assert single["discordance"] < 1e-10
    assert single["distance"] < 1e-5
    assert multiple["distance"] > 100 * single["distance"]
    report = json.loads((tmp_path / "fedsmb" / "report.json").read_text())
    assert weights(report["history"][1]) == {"site-1": 30, "site-2": 30}


def test_fashion_has_a_job_for_every_rule_and_they_differ_in_the_rule_alone() -> None:
    jobs = {path.stem: load_job(path) for path in (ROOT / "examples" / "fashion").glob("*.yaml")}
    wanted = {name for name, rule in rules().items() if rule.paper != "-"}
    assert wanted <= {spec.rule for spec in jobs.values()}
    for name, spec in jobs.items():
        assert spec.name == f"fashion-{name}"
        assert name in (spec.rule, "equal", "compressed", "power-of-choice")
        rounds = compose(spec).pace.rounds_asked()
        window = compose(spec).train
        if isinstance(window, Window):
            assert rounds * window.batches == 10 * 60_000 / (10 * 50)  # as many batches as ten epochs have
        elif isinstance(pace := compose(spec).pace, Redistribute):
            assert rounds * pace.hops * (spec.sample or {})["fraction"] == 10  # as many trainings
        else:
            share = (spec.sample or {}).get("fraction", 1)
            assert pace.updates_asked() * share == (10 if pace.common_rounds else 100)
        usual = jobs["fedavg"]
        assert (spec.seed, spec.data) == (usual.seed, usual.data)
        assert spec.app == usual.app or name == "fedbn"  # which needs a network with normalisation
        train = spec.train.model_copy(update={"batches": None, "epochs": 1})
        assert train == usual.train or name in ("fedsmb", "q-fedavg", "scaffold")  # without momentum


@pytest.mark.parametrize("name", ["radfed", "radfed-i", "composed", "fedavg"])
@pytest.mark.slow
def test_redistribution_runs_in_short(tmp_path: Path, name: str) -> None:
    write_mnist(tmp_path / "mnist", train=80, test=20)
    job, out = f"examples/redistribution/{name}.yaml", tmp_path / "out"
    pace = "pace.rounds=2" if name == "fedavg" else "pace={rounds: 1, hops: 2}"
    few = ("--set", "data.sites=4", "--set", "data.partition={kind: iid}", "--set", "sample.fraction=0.5")
    words = ("run", job, "--out", str(out), "--set", pace, *few, "--set", "evaluate.every=1")
    shown = _command(tmp_path, *words)
    history = json.loads((out / "report.json").read_text())["history"]
    newest = history[-1]
    sites = {site for entry in history for site in weights(entry)}
    sites |= {site for entry in history for hop in entry["hops"] for site in hop["sites"]}
    assert f"Done: {len(sites)} sites trained one model together" in shown, "not only those of the last hop"
    assert newest["metrics"]["accuracy"] >= 0
    assert [hop["trained"] for hop in newest["hops"]] == ([] if name == "fedavg" else [2, 2])


@pytest.mark.slow
def test_redistribution_is_measured_against_central_training(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=80, test=20)
    job, runs = "examples/redistribution/radfed.yaml", [tmp_path / "central", tmp_path / "radfed"]
    few = ("--set", "data.sites=4", "--set", "data.partition={kind: iid}", "--set", "sample.fraction=0.5")
    words = ("run", job, *few, "--set", "pace={rounds: 3, hops: 2}")
    measured = ("--set", f"reference={runs[0]}/model.safetensors")
    _command(
        tmp_path, *words, "--central", *measured, "--out", str(runs[0])
    )  # it makes what the job file names
    shown = _command(tmp_path, *words, *measured, "--out", str(runs[1]))
    central, ours = (json.loads((run / "report.json").read_text())["history"] for run in runs)
    assert {entry["distance"] for entry in central} == {None}
    distances = [entry["distance"] for entry in ours]
    assert len(distances) == 4
    assert all(0 < distance < 2 for distance in distances)
    assert [f"distance {distance:.4f}" in shown for distance in distances[1:]] == [True] * 3
    said = json.loads(_command(tmp_path, "job", "compare", "--concordance", "--json", *map(str, runs)))
    assert said["concordance"]["against"][0]["distance"] == distances[-1]


def _paper_sweep(name: str) -> dict[str, Any]:
    """Return a sweep of the RADFed paper's experiment, as its file says it."""
    sweep: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "radfed" / f"{name}-sweep.yaml").read_text())
    return sweep


@pytest.mark.parametrize(("name", "hops"), [("covertype", 20), ("mnist", 15)])
def test_all_rows_of_the_radfed_paper_train_and_are_evaluated_equally_often(name: str, hops: int) -> None:
    base = load_job(ROOT / "examples" / "radfed" / f"{name}.yaml")
    rounds = compose(base).pace.rounds_asked()
    sweep = _paper_sweep(name)
    rows = sweep["axes"]["method"]
    assert (len(rows), sweep["axes"]["data.holdout.fold"]) == (4, "0..4")
    redistributed = [row for row in rows.values() if row and "pace.hops" in row]
    assert len(redistributed) == 2
    for row in redistributed:
        assert (row["pace.hops"], row["pace.rounds"] * row["pace.hops"]) == (hops, rounds)
        assert row["evaluate.every"] * hops == (base.evaluate or {})["every"]
    assert all("pace.rounds" not in (row or {}) for row in rows.values() if row not in redistributed)


@pytest.mark.parametrize("name", ["covertype", "mnist"])
@pytest.mark.slow
def test_the_experiment_of_the_radfed_paper_runs_in_short(tmp_path: Path, name: str) -> None:
    write_covertype(tmp_path / "covertype")
    write_mnist(tmp_path / "mnist", train=200, test=100)
    sweep = _paper_sweep(name)
    for row in sweep["axes"]["method"].values():
        if row and "pace.hops" in row:
            row |= {"pace.rounds": 1, "pace.hops": 2}
    sweep["axes"]["data.holdout.fold"] = [0, 1]
    sweep["base"] = f"{ROOT}/examples/radfed/{name}.yaml"
    sweep["set"] = {"pace.rounds": 2, "evaluate.every": 2, "sample.fraction": 0.5, "data.sites": 10}
    sweep["set"]["data.partition.moves"] = {"burn_in": 100, "search": 100}  # 600,000 moves take seconds
    sweep["metrics"] = sweep["metrics"][:1]  # there are four pictures for each
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False))
    out = tmp_path / "out"
    found = json.loads(_command(tmp_path, "sweep", str(tmp_path / "short.yaml"), "--out", str(out), "--json"))
    assert [row["combination"]["method"] for row in found["rows"]] == [
        "fedavg",
        "fedprox",
        "radfed",
        "radfed-m",
    ]
    for row in found["rows"]:
        assert (row["completed"], row["failed"]) == (2, 0)
        assert all(0 <= row["metrics"][metric]["best"]["mean"] <= 1 for metric in sweep["metrics"])
    reports = [json.loads(path.read_text()) for path in out.glob("runs/*/report.json")]
    assert len({report["bytes_up"] for report in reports}) == 1, "six trainings in every row"
    for report in reports:
        assert 0 < report["test"]["examples"] == report["test"]["examples_total"] < 300, "two of ten sites"


@pytest.mark.slow
def test_the_few_count_more_where_many_sites_are_alike(tmp_path: Path) -> None:
    """A twin of the groups example: six sites instead of twenty, and noise with a bright row for clothes."""
    write_mnist(tmp_path / "fashion-mnist", train=400, test=60)
    job, out = "examples/groups/feddaf.yaml", tmp_path / "out"
    changes = (
        "pace.rounds=2",
        "weigh.time_limit=100",
        "data.sites=6",
        "data.partition={groups: '4 of 0-4, 2 of 5-9', most: 40}",
    )
    words = [word for change in changes for word in ("--set", change)]
    _command(tmp_path, "run", job, "--out", str(out), "--json", *words)
    (told,) = [
        e["diagnostics"]["weigh"] for e in json.loads((out / "report.json").read_text())["history"][1:2]
    ]
    assert (told["kind"], told["warning"]) == ("norm", "")
    assert set(told["weights"]) == {f"site-{number}" for number in range(1, 7)}
    assert sum(told["weights"].values()) == pytest.approx(1)
    assert told["why"] or told["weights"]["site-6"] > 1 / 6 > told["weights"]["site-1"]


@pytest.mark.slow
def test_what_groups_are_compared_with_runs_in_short(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion-mnist", train=400, test=60)
    job, out = "examples/groups/equal.yaml", tmp_path / "out"
    changes = ("pace.rounds=2", "data.sites=6", "data.partition={groups: '4 of 0-4, 2 of 5-9', most: 40}")
    words = [word for change in changes for word in ("--set", change)]
    _command(tmp_path, "run", job, "--out", str(out), "--json", *words)
    history = json.loads((out / "report.json").read_text())["history"]
    assert [set(weights(entry).values()) for entry in history[1:]] == [{1.0}, {1.0}]
    assert [(len(entry["updates"]), len(weights(entry))) for entry in history[1:]] == [(6, 6), (6, 6)]
    assert history[-1]["metrics"]["accuracy"] >= 0


@pytest.mark.slow
def test_feddaf_goes_with_fedmmb(tmp_path: Path) -> None:
    """Groups are sought among updates of a window of batches, whose base weights are the examples used."""
    write_mnist(tmp_path / "fashion-mnist", train=400, test=60)
    job, out = "examples/groups/feddaf.yaml", tmp_path / "out"
    changes = (
        *("pace.rounds=3", "data.sites=6", "data.partition={groups: '4 of 0-4, 2 of 5-9', most: 40}"),
        "train={batches: 2, batch_size: 8, optimizer: {kind: sgd, lr: 0.1}}",
        "weigh={backend: em, base: used, refit: 1, time_limit: 60}",
    )
    words = [word for change in changes for word in ("--set", change)]
    _command(tmp_path, "run", job, "--out", str(out), "--json", *words)
    history = json.loads((out / "report.json").read_text())["history"][1:]
    assert len(history) == 3
    for fit, entry in enumerate(history, 1):
        told = entry["diagnostics"]["weigh"]
        left = 1 if fit == 3 else 2  # 40 examples are five batches: the third window of a pass has one
        assert (told["fit"], told["kind"], {update["steps"] for update in entry["updates"]}) == (
            fit,
            "norm",
            {left},
        )
        total = sum(weights(entry).values())
        assert {site: p / total for site, p in weights(entry).items()} == pytest.approx(told["weights"])


def test_the_jobs_of_groups_differ_in_their_weights_alone() -> None:
    ours, plain = (load_job(ROOT / "examples" / "groups" / f"{name}.yaml") for name in ("feddaf", "equal"))
    assert (ours.seed, ours.app, ours.train, ours.data) == (plain.seed, plain.app, plain.train, plain.data)
    assert (compose(ours).weigh.kind, compose(plain).weigh.kind) == ("fusion", "equal")
    assert compose(ours).merge == compose(plain).merge


@pytest.mark.parametrize(
    "name", ["hospitals/job", "writers/job", "fashion/fedavg", "redistribution/radfed", "groups/feddaf"]
)
def test_without_the_data_an_example_says_what_is_missing(tmp_path: Path, name: str) -> None:
    job = f"examples/{name}.yaml"
    done = hansa("run", job, "--out", str(tmp_path / "out"), cwd=ROOT, HANSA_DATA="")
    assert done.returncode == 1
    assert "Set HANSA_DATA to the folder" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
