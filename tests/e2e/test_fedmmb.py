"""Windows of batches and comparisons with real processes; central training is in test_examples.py."""

import asyncio
import json

from click.testing import CliRunner, Result

from hansa.common.cli import hansa
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.file import load_job
from hansa.common.job.spec import JobSpec
from hansa.common.values.views import JobView
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.e2e.conftest import OWN_APP, Site, weights

WINDOW = "train={batches: 2, batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}"

RECORDING = OWN_APP.replace(
    "    return arrays",
    """    with open("given.txt", "a") as file:
        print(run.epochs, run.steps, run.batch_size, *run.examples.x[:, 0].tolist(), file=file)
    return arrays""",
)


async def _run(address: str, specs: list[JobSpec]) -> dict[str, JobView]:
    """Run jobs side by side to their ends."""
    async with AsyncClient(address) as client:
        views = [(await client.submit(spec)).view for spec in specs]
        for view in views:
            async for _ in client.views(view.job):
                pass
        return {view.name: await client.show(view.job) for view in views}


def _compare(address: str, *words: str) -> Result:
    return CliRunner().invoke(hansa, ["job", "compare", "--controller", address, *words])


def _require_sound(scene: Site) -> None:
    """Stop the controller, and compute the models of its jobs again."""
    scene.nursery.stop(["controller"])
    state = scene.folder / "state" / "controller"
    with opened(f"disk:{state / 'store'}", state, lease=False) as backends:
        assert all(verify(backends, record)[2] == [] for record in backends.journal.jobs())


def test_fedmmb_with_dvw_and_server_mix(scene: Site) -> None:
    address = scene.controller()
    for site in "abc":
        scene.daemon("learner", site)
        scene.daemon("evaluator", site)
    parts = ("rule=fedmmb", "pace.rounds=4", "weigh={kind: dvw}", "server={kind: mix, alpha: 0.5}")
    spec = load_job(scene.folder / "job.yaml", ["sites={min: 3, wait: 60}", WINDOW, *parts])
    (shown,) = asyncio.run(_run(address, [spec])).values()
    assert (shown.status, shown.version) == ("completed", 4)
    for entry in shown.history[1:]:
        assert {site: score.value for site, score in entry.scores.items()} == entry.contributions
        assert all(0 < score <= 1 for score in entry.contributions.values())
        assert set(entry.steps.values()) == {2}  # windows of two batches
    _require_sound(scene)


def test_windows_go_with_other_rules_and_paces(scene: Site) -> None:
    address = scene.controller()
    for site in "abc":
        scene.daemon("learner", site)
    jobs = {
        "prox": ("rule=fedmmb", "pace.rounds=4", "local={kind: proximal, mu: 0.1}"),
        "async": ("rule=async-fedavg", "pace={updates: 12}"),
        "semisync": ("rule=semisync-fedavg", "pace={rounds: 3, lambda: 0.5}"),
    }
    specs = [
        load_job(scene.folder / "job.yaml", [f"name={name}", "sites={min: 3, wait: 60}", WINDOW, *words])
        for name, words in jobs.items()
    ]
    shown = asyncio.run(_run(address, specs))
    assert {view.status for view in shown.values()} == {"completed"}, shown
    # A fifth of 60 examples is held out: 48 are windows of 16.
    assert [set(entry.contributions.values()) for entry in shown["prox"].history[1:]] == [{16.0}] * 4
    assert {weight for entry in shown["async"].history[1:] for weight in entry.contributions.values()} == {
        16.0
    }
    assert set(shown["semisync"].history[1].contributions.values()) == {16.0}  # later rounds have what fits
    _require_sound(scene)


def test_an_app_that_trains_by_itself_gets_the_examples_of_its_window(scene: Site) -> None:
    (scene.folder / "app.py").write_text(RECORDING)
    scene.controller()
    scene.daemon("learner", "a")
    words = (
        "--set",
        "rule=fedmmb",
        "--set",
        WINDOW,
        "--set",
        "pace.rounds=4",
        "--set",
        "validation.fraction=0",
    )
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "sites.min=1", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    given = [line.split() for line in (scene.folder / "given.txt").read_text().splitlines()]
    assert [line[:3] for line in given] == [["1", "0", "8"]] * 4
    assert [len(line[3:]) for line in given] == [16, 16, 16, 12]
    assert len({value for line in given for value in line[3:]}) == 60  # each example once in a pass
    history = scene.json("job", "show", "plane")["history"]
    assert [weights(entry)["a"] for entry in history[1:]] == [16, 16, 16, 12]


def test_jobs_of_a_controller_are_compared(scene: Site) -> None:
    address = scene.controller()
    scene.daemon("learner", "a")
    scene.daemon("evaluator", "a")
    common = [
        "sites={min: 1, wait: 60}",
        "rule=fedsmb",
        "train={batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}",
    ]
    jobs = {"short": "pace.rounds=2", "long": "pace.rounds=4"}
    specs = [
        load_job(scene.folder / "job.yaml", [*common, f"name={name}", word]) for name, word in jobs.items()
    ]
    asyncio.run(_run(address, specs))
    same = json.loads(_compare(address, "long", "long", "--concordance", "--json").stdout)["concordance"][
        "against"
    ][0]
    assert (same["discordance"], same["distance"], same["concordant"]) == (0, 0, True)
    compared = _compare(address, "long", "short", "--concordance")
    assert compared.exit_code == 0, compared.output
    assert "of 2 and 4 evaluated versions, 2 are common to both" in compared.stdout
    unknown = _compare(address, "long", "nonsense")
    assert unknown.exit_code == 1
    assert "nonsense" in unknown.stderr


def test_settings_that_are_probably_mistakes_are_warned_of_when_a_job_is_submitted(scene: Site) -> None:
    scene.controller()
    adam = "train={batches: 2, batch_size: 8, optimizer: {kind: adam}}"
    done = scene.cli("job", "submit", "job.yaml", "--set", "rule=fedmmb", "--set", adam, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("hansa: warning: train.optimizer: adam starts over with every task")
    assert "warnings" in scene.json("job", "show", json.loads(done.stdout)["job"])
    refused = scene.cli("job", "submit", "job.yaml", "--set", "train.batches=2")
    assert refused.returncode == 2
    assert "job.yaml:7: train: a task has a number of epochs or of batches" in refused.stderr


def test_a_learner_that_lost_its_memory_says_so_and_goes_on(scene: Site) -> None:
    scene.controller()
    scene.daemon("learner", "a", pause=0.02)
    words = (
        "--set",
        "sites={min: 1, wait: 60}",
        "--set",
        "rule=fedmmb",
        "--set",
        WINDOW,
        "--set",
        "pace.rounds=40",
    )
    job = scene.json("job", "submit", "job.yaml", *words)["job"]
    scene.until(lambda: scene.json("job", "show", job)["version"] >= 2)
    scene.kill("learner-a")
    (scene.folder / "state" / "learner-a" / "windows" / f"{job}.json").unlink()
    scene.daemon("learner", "a", name="learner-a-again", state="learner-a")
    watched = scene.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    assert (
        f"job {job}: the place in the data is lost; a new pass begins"
        in scene.log("learner-a-again").read_text()
    )
