"""Learners with --launcher: training in processes of their own, with the models of learners without it."""

from pathlib import Path

import pytest

from hansa.common.process.state import holder
from tests.e2e.conftest import Site
from tests.processes import marked, new_mark

pytestmark = pytest.mark.slow  # every task starts a process that imports PyTorch
PLAIN = "nice -n 1 {command}"
TRAIN = "train: {epochs: 2, batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}"
KEEPING = "train: {epochs: 2, batch_size: 8, optimizer: {kind: adam, lr: 0.05}, keep_optimizer: true}"


def trained(scene: Site, name: str, rounds: int, first: str = "") -> str:
    """Run a job with two learners, the first with a launcher if one is given; return its model's digest."""
    learners = [
        scene.daemon("learner", "a", *(["--launcher", first] if first else []), name=f"{name}-a"),
        scene.daemon("learner", "b", name=f"{name}-b"),
    ]
    changes = ("--set", f"name={name}", "--set", f"pace.rounds={rounds}")
    done = scene.cli("job", "submit", "job.yaml", "--wait", *changes)
    assert done.returncode == 0, done.stdout + done.stderr
    scene.nursery.stop(learners, patience=10)
    return str(scene.json("job", "model", name, "-o", str(scene.folder / f"{name}.safetensors"))["digest"])


def state(scene: Site, name: str) -> Path:
    return scene.folder / "state" / name


def processes(mark: dict[str, str]) -> list[int]:
    return [pid for pid, words in marked(mark).items() if " learner task " in words and "nice" not in words]


def test_models_are_those_of_learners_without_a_launcher(scene: Site) -> None:
    file = scene.folder / "job.yaml"
    file.write_text(file.read_text().replace(TRAIN, KEEPING))  # an optimizer that goes on from task to task
    scene.controller()
    assert trained(scene, "launched", 2, PLAIN) == trained(scene, "alone", 2)
    assert scene.log("launched-a").read_text().count(": started nice -n 1 ") == 2
    assert list((state(scene, "launched-a") / "launched").iterdir()) == []


def test_a_process_that_is_killed_fails_the_task_and_not_the_learner(scene: Site) -> None:
    once = scene.folder / "once"
    script = f'[ -e {once} ] || {{ touch {once}; echo the end; kill -9 $$; }}; exec "$@"'
    scene.controller()
    trained(scene, "plane", 2, f"sh -c '{script}' sh {{command}}")
    lost = [version["lost"] for version in scene.json("job", "show", "plane")["history"] if version["lost"]]
    killed = "the process of --launcher was killed by signal 9 (out of memory?) and left no result"
    assert lost == [{"a": f"{killed}; its last line: the end"}]


def test_a_process_ends_with_its_task_and_with_its_learner(scene: Site) -> None:
    mark = new_mark()
    scene.controller()

    def start(name: str) -> None:
        scene.daemon("learner", "a", "--launcher", PLAIN, name=name, pause=0.2, state="a", **mark)

    start("first")
    scene.daemon("learner", "b")
    scene.cli("job", "submit", "job.yaml", "--set", "train.epochs=1000")
    scene.until(lambda: processes(mark))
    scene.cli("job", "cancel", "plane")
    scene.until(lambda: not processes(mark), otherwise="the process goes on after its job was cancelled")
    assert holder(state(scene, "a"), "learner")
    scene.cli("job", "submit", "job.yaml", "--set", "name=again", "--set", "train.epochs=1000")
    (old,) = scene.until(lambda: processes(mark))
    scene.kill("first")
    start("second")
    scene.until(lambda: processes(mark) and old not in processes(mark), otherwise="two processes do one task")
    scene.cli("job", "cancel", "again")
    scene.until(lambda: not processes(mark))
