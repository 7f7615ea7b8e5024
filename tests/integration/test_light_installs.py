"""Controllers and operators need no PyTorch; what needs it says so."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hansa.common.process.state import stop
from tests.light_install import ROOT, LightInstall

EXTRA = "pip install 'hansa[torch]'"
NEEDS = (  # commands that cannot do without it, and what they call themselves
    (["run", "job.yaml"], "hansa run"),
    (["simulate", "job.yaml"], "hansa simulate"),
    (["sweep", "sweep.yaml"], "a sweep by simulation"),
    (["learner", "start", "--site", "a", "--data", "d.npz", "--app", "app.py:app"], "hansa learner start"),
    (
        ["evaluator", "start", "--site", "a", "--data", "d.npz", "--app", "app.py:app"],
        "hansa evaluator start",
    ),
)
JOB = "name: j\napp: app.py:app\nrule: {rule}\npace: {{rounds: 1}}\nsites: {{min: 1, wait: 600}}\n{more}"


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> LightInstall:
    return LightInstall(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def work(light: LightInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with job files, and the address of a controller without PyTorch."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copy(ROOT / "examples" / "digits" / "app.py", folder)  # which imports torch
    (folder / "job.yaml").write_text(JOB.format(rule="fedavg", more="data: {source: digits, sites: 2}"))
    (folder / "sweep.yaml").write_text("name: s\nbase: job.yaml\naxes: {rule: [fedavg]}\nseeds: [1]\n")
    (folder / "vae.yaml").write_text(JOB.format(rule="feddaf", more=""))
    (folder / "em.yaml").write_text(JOB.format(rule="feddaf", more="weigh: {kind: fusion, backend: em}"))
    (folder / "own.yaml").write_text(JOB.format(rule="fedper", more="layers: {kind: personal, last: 1}"))
    state = folder / "state"
    started = light.run(
        "controller", "start", "--daemon", "--listen", "127.0.0.1:0", "--state", str(state), cwd=folder
    )
    assert started.returncode == 0, started.stderr
    try:
        yield folder, json.loads((state / "controller.lock").read_text())["address"]
    finally:
        stop(state, "controller")


def test_an_operator_uses_a_controller(light: LightInstall, work: tuple[Path, str]) -> None:
    folder, address = work
    for words in (
        ["controller", "status"],
        ["controller", "health"],
        ["site", "list"],
        ["job", "submit", "own.yaml"],
        ["job", "submit", "em.yaml", "--set", "name=em"],
        ["job", "list"],
        ["job", "show", "em"],
        ["job", "cancel", "em"],
    ):
        done = light.run(*words, "--controller", address, cwd=folder)
        assert done.returncode == 0, done.stderr
    for words in (["rules", "show", "feddaf"], ["audit", "verify", "--state", "state"], ["data", "list"]):
        done = light.run(*words, cwd=folder)
        assert done.returncode == 0, done.stderr


def test_the_autoencoder_is_refused_at_submission(light: LightInstall, work: tuple[Path, str]) -> None:
    folder, address = work
    done = light.run("job", "submit", "vae.yaml", "--controller", address, cwd=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "hansa: weigh: fusion needs torch, which the controller does not have:"
        f" {EXTRA} there, or use weigh.backend: em\n"
    )


@pytest.mark.parametrize(("words", "name"), NEEDS, ids=[name for _, name in NEEDS])
@pytest.mark.slow
def test_what_needs_torch_names_the_extra(
    words: list[str], name: str, light: LightInstall, work: tuple[Path, str]
) -> None:
    done = light.run(*words, cwd=work[0])
    assert done.returncode == 1
    assert done.stderr == f"hansa: {name} needs PyTorch, which is not installed here: {EXTRA}\n"
