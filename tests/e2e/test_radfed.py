"""RADFed and its variants with real learners and evaluators."""

from hansa.controller.engine.state import JobState
from hansa.controller.storage.backends import opened
from hansa.controller.verify.check import verify
from tests.e2e.conftest import OWN_APP, Site

HOPS = ("--set", "pace={rounds: 2, hops: 3}", "--set", "sample.fraction=0.67", "--set", "sites.min=3")
COMPOSED = (  # radfed × fedprox × importance × fedadam
    *("--set", "rule=radfed", "--set", "local={kind: proximal, mu: 0.01}"),
    *("--set", "sample={kind: importance, fraction: 0.67, init: probe}"),
    *("--set", "server={kind: adam, lr: 0.05}"),
    *("--set", "pace={rounds: 3, hops: 3}", "--set", "evaluate.virtual=true", "--set", "sites.min=3"),
)


def _start(scene: Site) -> None:
    scene.controller()
    for site in "abc":
        scene.daemon("learner", site)
    scene.daemon("evaluator", "a")


def _run(scene: Site, *words: str) -> JobState:
    """Run a job to its end, verify it and return its state, as the journal tells it."""
    done = scene.cli("job", "submit", "job.yaml", *words, "--wait")
    assert done.returncode == 0, done.stderr + done.stdout
    folder = scene.folder / "state" / "controller"
    with opened(f"disk:{folder / 'store'}", folder, lease=False) as backends:
        machine, _, findings = verify(backends, backends.journal.jobs()[-1])
    assert findings == []
    return machine.state


def test_every_variant_trains_hop_by_hop_and_can_be_verified(scene: Site) -> None:
    _start(scene)
    variants = {
        "radfed": (),
        "radfed-p": (),
        "radfed-m": ("--set", "server.alpha=0.9"),
        "radfed-a": ("--set", "server.lr=0.05"),
        "radfed-i": ("--set", "sample.online=true"),
    }
    for rule, words in variants.items():
        state = _run(scene, "--set", f"rule={rule}", *HOPS, *words)
        for record in state.history[1:]:
            assert [(hop.hop, hop.trained) for hop in record.hops] == [(1, 2), (2, 2), (3, 2)], rule
            assert all(hop.divergence and 0 < hop.divergence < 2 for hop in record.hops), rule
            assert sum(record.contributions.values()) == 2, rule
        assert (state.history[-1].metrics["accuracy"] or 0) > 0.6, rule


def test_radfed_with_fedprox_importance_and_fedadam(scene: Site) -> None:
    _start(scene)
    state = _run(scene, *COMPOSED)
    assert (state.status, state.version) == ("completed", 3)
    assert (state.history[-1].metrics["accuracy"] or 0) > 0.8
    hops = [hop for record in state.history[1:] for hop in record.hops]
    assert len(hops) == 9
    evaluated = [hop for hop in hops if hop.metrics]
    assert evaluated, "the mean of the travelling models was never evaluated"
    assert all(hop.hop < 3 and hop.examples == 12 for hop in evaluated)
    shown = scene.json("job", "show", "plane")["history"][-1]["hops"]
    assert [hop["divergence"] for hop in shown] == [hop.divergence for hop in hops[-3:]]
    assert "3 hops, divergence 0." in scene.cli("job", "show", "plane").stdout


def test_how_far_every_version_is_from_a_reference_is_shown(scene: Site) -> None:
    _start(scene)
    _run(scene, "--set", "rule=radfed", *HOPS)
    saved = str(scene.folder / "models" / "other.safetensors")
    (scene.folder / "models").mkdir()
    assert scene.cli("job", "model", "plane", "-o", saved).returncode == 0
    state = _run(
        scene,
        "--set",
        "rule=radfed",
        *HOPS,
        "--set",
        "name=near",
        "--set",
        "reference=models/other.safetensors",
    )
    assert [record.distance == 0 for record in state.history] == [
        False,
        False,
        True,
    ]  # the same job comes to the same end
    history = scene.json("job", "show", "near")["history"]
    assert [entry["distance"] for entry in history] == [record.distance for record in state.history]
    shown = scene.cli("job", "show", "near").stdout
    assert "distance" in shown
    assert f"{state.history[1].distance:.4f}" in shown
    assert "distance" not in scene.cli("job", "show", "plane").stdout
    lost = scene.cli("job", "submit", "job.yaml", "--set", "reference=nowhere.safetensors")
    assert (lost.returncode, "nowhere.safetensors: cannot be read" in lost.stderr) == (2, True)


def test_a_divided_model_travels_in_parts_with_yogi_at_the_server(scene: Site) -> None:
    _start(scene)
    words = ("--set", "rule=radfed", "--set", "pace={rounds: 4, hops: 2}", "--set", "sample.fraction=0.67")
    divided = (
        "--set",
        "layers={kind: divide, prepass: 2, split: 1}",
        "--set",
        "server={kind: yogi, lr: 0.05}",
    )
    state = _run(scene, *words, *divided, "--set", "sites.min=3")
    assert [record.phase for record in state.history[1:]] == ["prepass", "prepass", "feature", "fine-tuning"]
    for record in state.history[1:]:
        assert [hop.trained for hop in record.hops] == [2, 2]
        assert all(hop.divergence is not None for hop in record.hops)
    (members,) = {frozenset(m.tensors or ()) for held in state.members.values() for m in held}
    assert members == {"2.weight", "2.bias"}  # the last round was for the classifier


def test_a_learner_that_dies_in_the_middle_of_a_hop_loses_its_model_to_another_site(scene: Site) -> None:
    scene.controller()
    scene.daemon("learner", "a")
    scene.daemon("learner", "b", HANSA_KILL_AT="task-taken:3")
    scene.daemon("learner", "c")
    words = ("--set", "rule=radfed", "--set", "pace={rounds: 1, hops: 7}", "--set", "sample.fraction=0.67")
    state = _run(scene, *words, "--set", "sites.min=3", "--set", "train.epochs=1")
    hops = state.history[1].hops
    assert [(hop.lost, hop.trained, hop.skipped) for hop in hops if hop.lost] == [
        ({"b": "the site left"}, 2, 0)
    ]
    assert all(hop.trained == 2 for hop in hops)  # the two sites that are left are enough
    assert set(state.history[1].contributions) <= {"a", "c"}


def test_a_site_whose_owner_forbids_it_does_not_take_part_in_redistribution(scene: Site) -> None:
    (scene.folder / "policy.toml").write_text("min_sites = 1\n")
    scene.controller()
    scene.daemon("learner", "a", "--policy", str(scene.folder / "policy.toml"))
    one = ("--set", "rule=radfed", "--set", "pace={rounds: 1, hops: 1}", "--set", "sites.min=1")
    assert _run(scene, *one).status == "completed"  # nobody goes on from another site's model
    two = ("--set", "rule=radfed", "--set", "pace={rounds: 1, hops: 2}", "--set", "sites.min=1")
    done = scene.cli("job", "submit", "job.yaml", "--wait", *two)
    assert done.returncode == 1
    assert "its rule would show this site's own model to other sites" in done.stdout + done.stderr


def test_importance_is_refused_where_the_app_trains_by_itself(scene: Site) -> None:
    (scene.folder / "app.py").write_text(OWN_APP)
    scene.controller()
    scene.daemon("learner", "a")
    done = scene.cli("job", "submit", "job.yaml", "--wait", "--set", "rule=radfed-i", "--set", "sites.min=1")
    assert done.returncode == 1
    assert "site a: sample importance: the app trains by a function of its own" in done.stdout
