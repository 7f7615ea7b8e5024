"""`hansa run` and the messages of the command line, as a newcomer meets them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hansa import HansaError, run
from hansa.common.app import load_app
from hansa.common.data.examples import load_npz
from hansa.common.data.holdout import split
from hansa.common.job.file import load_job
from hansa.common.job.spec import DataSpec
from hansa.common.run.processes import why_ended
from hansa.common.run.summary import suits_ten_sites
from hansa.common.torch import networks
from hansa.common.torch.data import to_tensors
from hansa.common.torch.seeding import task_seed
from hansa.common.values.ids import JobId, ModelKey, SiteName, TaskId
from hansa.common.values.tasks import Task, Train
from hansa.learner.training.loop import train
from hansa.learner.training.optimizers import make_optimizer
from tests.e2e.conftest import ROOT, hansa
from tests.waiting import until

DIGITS = str(ROOT / "examples" / "digits" / "job.yaml")


def processes_below(folder: Path) -> list[str]:
    """Return the command lines of processes whose files lie in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                open_files = [str(fd.readlink()) for fd in (entry / "fd").iterdir()]
            except OSError:
                continue
            if any(name.startswith(str(folder)) for name in open_files):
                found.append((entry / "cmdline").read_text())
    return found


def fork_server_imports(run: int) -> bool:
    """Whether another process in the session of a run has begun to import libraries."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != run:
            try:
                if os.getsid(int(entry.name)) == run and "numpy" in (entry / "maps").read_text():
                    return True
            except OSError:
                continue
    return False


def test_settings_of_another_federation_do_not_disturb_a_run(tmp_path: Path) -> None:
    settings = '[controller]\nstore = "redis://127.0.0.1:1"\n[learner]\npolicy = "gone.toml"\n'
    settings += '[evaluator]\ntls = "gone"\n'
    (tmp_path / "hansa.toml").write_text(settings)
    words = ("--set", "pace.rounds=1", "--set", f"app={ROOT / 'examples' / 'digits' / 'app.py'}:app")
    elsewhere = str(tmp_path / "elsewhere.log")
    done = hansa("run", DIGITS, "--out", "out", *words, cwd=tmp_path, timeout=120, HANSA_LOG_FILE=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "listens on" in (tmp_path / "out" / "logs" / "controller.log").read_text()
    assert not Path(elsewhere).exists()


BROKEN = """
from torch import nn
from hansa import App

def loss(outputs, targets):
    raise ValueError("no loss today")

app = App(model=lambda: nn.Linear(64, 10), task="classification", classes=10, loss=loss)
"""


@pytest.mark.slow
def test_a_federation_runs_from_python_and_a_job_that_fails_is_returned(tmp_path: Path) -> None:
    small = {"pace.rounds": 2, "data.partition.labels": 5, "sites": {"min": 2}}
    small["app"] = f"{ROOT / 'examples' / 'digits' / 'app.py'}:app"
    done = run(DIGITS, sites=2, set=small, out=tmp_path / "done")
    assert (done.status, done.view.version, done.folder) == ("completed", 2, tmp_path / "done")
    assert done.rows[-1]["accuracy"] == done.metrics["accuracy"] == done.history[2].metrics["accuracy"]
    assert done.state_dict()["0.weight"].shape == (64, 64)
    (tmp_path / "app.py").write_text(BROKEN)
    broken = small | {"app": f"{tmp_path / 'app.py'}:app"}
    failed = run(DIGITS, sites=2, set=broken, out=tmp_path / "failed")
    assert failed.status == "failed"
    assert "no loss today" in failed.reason
    with pytest.raises(HansaError, match=r"train\.epoch: unknown"):
        run(DIGITS, set={"train.epoch": 2})
    with pytest.raises(HansaError, match="it holds the results of another run"):
        run(DIGITS, out=tmp_path / "done")


def test_the_digits_example_reaches_its_accuracy_and_leaves_nothing_running(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = hansa("run", DIGITS, "--out", str(out), "--json", cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    keys = {
        "job",
        "name",
        "status",
        "reason",
        "version",
        "rounds",
        "seconds",
        "metrics",
        "bytes_up",
        "bytes_down",
    }
    keys |= {"metrics_version", "examples", "examples_total", "drawn", "test"}
    assert set(result) == keys | {"warnings"}
    assert result["warnings"] == []
    assert result["test"] is None
    assert (result["metrics_version"], result["examples"], result["examples_total"]) == (20, 359, 359)
    assert (result["status"], result["rounds"], result["version"]) == ("completed", 20, 20)
    assert result["metrics"]["accuracy"] >= 0.90
    assert (out / "model.safetensors").exists()
    report = json.loads((out / "report.json").read_text())
    assert len(report["history"]) == 21
    assert all(len(entry["updates"]) == 5 for entry in report["history"][1:])
    assert processes_below(out) == []


def test_the_plain_view_and_the_summary_tell_a_newcomer_what_happened(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = hansa(
        "run", DIGITS, "--out", str(out), "--sites", "10", "--set", "pace.rounds=2", cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "round 2/2" in done.stdout
    assert "Done: 10 sites trained one model together in 2 rounds" in done.stdout
    assert "no data left a site" in done.stdout
    assert "Next:" in done.stdout


def test_why_a_run_failed_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from torch import nn\nfrom hansa import App\n"
        "app = App(model=lambda: nn.Linear(60, 10), classes=10)\n"
    )
    (tmp_path / "job.yaml").write_text("app: app.py:app\ndata: {source: digits, sites: 2}\n")
    done = hansa("run", "job.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "The federation failed: " in done.stderr
    assert (done.stdout + done.stderr).count("cannot be multiplied") == 1


def start_run(out: Path, *options: str) -> subprocess.Popen[str]:
    """Start `hansa run` of the digits in a process group of its own; every line is told at once."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "hansa", "run", DIGITS, "--out", str(out), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_killing_a_run_leaves_no_process_and_keeps_the_state(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start_run(out, "--set", "pace.rounds=100000")
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("round 2/"):
            break
    run.kill()
    run.communicate(timeout=60)
    assert run.returncode == -9
    until(lambda: not processes_below(out), 20, lambda: str(processes_below(out)))
    assert (out / "controller" / "journal.sqlite").exists()


def test_ctrl_c_while_a_run_starts_its_processes_stops_it_without_a_traceback(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start_run(out)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("starting a controller")
    until(lambda: fork_server_imports(run.pid))
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said == f"\nstopped; every process has ended, the state is kept in {out}\n"
    assert processes_below(out) == []


@pytest.mark.slow
def test_a_run_whose_reader_has_gone_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = start_run(out, "--set", "pace.rounds=100000")
    assert run.stdout is not None
    assert run.stderr is not None
    assert run.stdout.readline().startswith("starting a controller")
    run.stdout.close()
    assert run.wait(timeout=60) == 1
    assert run.stderr.read() == ""
    assert processes_below(out) == []
    run.stderr.close()


def test_what_became_of_a_process_is_its_signal_or_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "learner-a.log"
    log.write_text("INFO receipt 31 for task j1-17\n")
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = subprocess.run([sys.executable, "-c", suicide], check=False)
    assert why_ended(killed.returncode, log) == f"killed by SIGKILL; its log is {log}"
    assert why_ended(1, log) == "INFO receipt 31 for task j1-17"
    assert why_ended(1, tmp_path / "none") == "it left no message"


@pytest.mark.parametrize(
    ("partition", "suits"),
    [
        ({}, True),
        ({"kind": "non-iid-l", "labels": 4}, True),
        ({"by": "hospital"}, False),
        ({"sizes": "powerlaw(1)", "classes": "8x1,4x2"}, False),
        ({"groups": "16 of 0-4, 4 of 5-9"}, False),
        ({"kind": "color-skew"}, False),
    ],
)
def test_ten_sites_are_proposed_only_where_the_data_can_be_parted_among_them(
    partition: dict[str, object], suits: bool
) -> None:
    assert suits_ten_sites(DataSpec(source="digits", partition=partition)) == suits


def test_a_job_without_data_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("app: app.py:app\n")
    done = hansa("run", "job.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "data: is required by `hansa run`" in done.stderr


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ("{kind: non-iid-l, labels: 3}", "5 sites × 3 labels is not a multiple of 10 classes"),
        ("{kind: iidd}", "data.partition.kind: there is no 'iidd' (did you mean 'iid'"),
        ("{kind: non-iid-l, label: 4}", "data.partition.label: unknown key (did you mean 'labels'?)"),
    ],
)
def test_a_bad_partition_is_named(tmp_path: Path, partition: str, message: str) -> None:
    done = hansa(
        "run", DIGITS, "--set", f"data.partition={partition}", "--out", str(tmp_path / "o"), cwd=ROOT
    )
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "site-1=0.5",
            "hansa: --slow site-1=0.5: write SITE=FACTOR with a factor of at least 1, such as site-1=5",
        ),
        ("site-77=2", "hansa: --slow site-77: there is no such site (did you mean"),
    ],
)
def test_only_sites_that_exist_can_be_slowed_down(tmp_path: Path, word: str, message: str) -> None:
    done = hansa("run", DIGITS, "--out", str(tmp_path / "out"), "--slow", word, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith(message)


def test_usage_errors_exit_2_and_an_unreachable_controller_exits_3(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("app: app.py:app\ntrain: {epoch: 2}\npace: {round: 1}\nsede: 4\n")
    bad = hansa("job", "submit", "bad.yaml", cwd=tmp_path)
    assert bad.returncode == 2
    assert bad.stderr.splitlines() == [
        "hansa: bad.yaml:2: train.epoch: unknown key (did you mean 'epochs'?)",
        "hansa: bad.yaml:3: pace.round: unknown key of sync (did you mean 'rounds'?)",
        "hansa: bad.yaml:4: sede: unknown key (did you mean 'seed' or 'server'?)",
    ]
    (tmp_path / "good.yaml").write_text("app: app.py:app\n")
    away = hansa("job", "submit", "good.yaml", "--controller", "127.0.0.1:9", cwd=tmp_path)
    assert away.returncode == 3
    assert "no controller answers at 127.0.0.1:9" in away.stderr
    for words in (
        ("jbo",),
        ("job", "show"),
        ("site", "list", "--controller", "nowhere"),
        ("learner", "start"),
    ):
        assert hansa(*words, cwd=tmp_path).returncode == 2
    missing = hansa(
        "learner", "start", "--site", "a", "--data", "no.npz", "--app", "app.py:app", cwd=tmp_path
    )
    assert missing.returncode == 2
    assert "no such file" in missing.stderr


def test_rules_are_listed_and_shown(tmp_path: Path) -> None:
    listed = hansa("rules", "list", cwd=tmp_path)
    assert "fedavg" in listed.stdout
    shown = hansa("rules", "show", "fedavg", cwd=tmp_path)
    assert "rounds = 10  how many rounds" in shown.stdout
    unknown = hansa("rules", "show", "fedavgg", cwd=tmp_path)
    assert unknown.returncode == 1
    assert "did you mean 'fedavg'" in unknown.stderr


def test_options_come_from_flags_then_variables_then_the_toml_file(tmp_path: Path) -> None:
    (tmp_path / "hansa.toml").write_text('[operator]\ncontroller = "127.0.0.1:11"\n')
    by_file = hansa("job", "list", cwd=tmp_path)
    by_variable = hansa("job", "list", cwd=tmp_path, HANSA_CONTROLLER="127.0.0.1:12")
    by_flag = hansa(
        "job", "list", "--controller", "127.0.0.1:13", cwd=tmp_path, HANSA_CONTROLLER="127.0.0.1:12"
    )
    assert "127.0.0.1:11" in by_file.stderr
    assert "127.0.0.1:12" in by_variable.stderr
    assert "127.0.0.1:13" in by_flag.stderr
    (tmp_path / "hansa.toml").write_text("[operatr]\n")
    assert "unknown section [operatr]" in hansa("job", "list", cwd=tmp_path).stderr


def test_an_optimizer_that_is_kept_goes_on_from_round_to_round(tmp_path: Path) -> None:
    out = tmp_path / "out"
    changes = ("pace.rounds=3", "train.epochs=1", "train.keep_optimizer=true", "data.examples=200")
    words = [word for change in (*changes, "data.partition={kind: iid}") for word in ("--set", change)]
    done = hansa("run", DIGITS, "--sites", "1", "--out", str(out), "--json", *words, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "no optimizer state" not in (out / "logs" / "learner-site-1.log").read_text()

    # The same by hand: one site and one optimizer, so rounds make no difference to it.
    app = load_app(f"{ROOT / 'examples' / 'digits' / 'app.py'}:app")
    spec = load_job(Path(DIGITS), changes)
    held = load_npz(out / "data" / "site-1.npz", "train")
    rows, _ = split(held.y, spec.validation, spec.seed, SiteName("site-1"))
    data = to_tensors(app, held.take(rows), "cpu")
    module = networks.build(app, spec.seed, "cpu")
    kept = make_optimizer(spec.train.optimizer, module)
    train_spec = spec.train
    work = Train(
        model=ModelKey("m"),
        version=0,
        epochs=1,
        batch_size=train_spec.batch_size,
        optimizer=train_spec.optimizer,
    )
    for round_ in (1, 2, 3):
        task = Task(
            id=TaskId("t"),
            job=JobId("j"),
            site=SiteName("site-1"),
            round=round_,
            app=spec.app,
            seed=spec.seed,
            validation=spec.validation,
            work=work,
        )
        train(app, module, data, work, task_seed(task), lambda *_: None, lambda: False, optimizer=kept)
    for name, value in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(value, module.state_dict()[name])


NORMAL = """
from torch import nn
from hansa import App

build = lambda: nn.Sequential(
    nn.Linear(64, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU(), nn.Linear(16, 10)
)
app = App(model=build, classes=10)
"""


def test_batch_norm_statistics_can_stay_at_the_sites(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(NORMAL)
    changes = (f"app={tmp_path / 'app.py'}:app", "pace.rounds=3", "rule=sync-dvw", "data.examples=400")
    words = [word for change in (*changes, "data.partition={kind: iid}") for word in ("--set", change)]
    found = {}
    for kind in ("all", "parameters"):
        out = tmp_path / kind
        more = ("--sites", "2", "--out", str(out), "--json", "--set", f"layers.kind={kind}")
        done = hansa("run", DIGITS, *words, *more, cwd=ROOT, timeout=120)
        assert done.returncode == 0, done.stderr
        found[kind] = json.loads(done.stdout), load_file(out / "model.safetensors")
    (_, shared), (result, own) = found["all"], found["parameters"]
    assert shared["1.running_mean"].abs().max() > 0
    assert own["1.running_mean"].abs().max() == 0, "nobody told, so they are those of version 0"
    assert int(own["1.num_batches_tracked"]) == 0
    assert result["metrics"]["accuracy"] > 0.6, "evaluators find statistics of their own"
    assert result["bytes_up"] < found["all"][0]["bytes_up"]
