"""Personal models with real processes: `hansa run`, a folder that daemons share, and files of models."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from hansa.common.app import load_app
from tests.e2e.conftest import ROOT, Site, hansa

DIGITS = ROOT / "examples" / "digits"
FROZEN_APP = """
from torch import nn
from hansa import App

def build():
    base = nn.Linear(2, 64).requires_grad_(False)
    return nn.Sequential(base, nn.ReLU(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 2))

app = App(model=build, classes=2)
"""


def test_a_run_leaves_a_personal_model_at_each_site_that_fits_the_app(tmp_path: Path) -> None:
    words = ("--set", "rule=fedper", "--set", "pace.rounds=2", "--out", "out", "--json")
    app = f"app={DIGITS / 'app.py'}:app"
    done = hansa("run", str(DIGITS / "job.yaml"), "--set", app, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    last, job = report["history"][-1], report["job"]
    assert sorted(last["personal"]) == [f"site-{number}" for number in range(1, 6)]
    network = load_app(f"{DIGITS / 'app.py'}:app").model()
    assert isinstance(network, nn.Module)
    heads = []
    for site in last["personal"]:
        model = (
            "learner",
            "model",
            job,
            "--site",
            site,
            "--state",
            f"out/{site}",
            "-o",
            f"{site}.safetensors",
        )
        own = hansa(*model, cwd=tmp_path)
        assert own.returncode == 0, own.stderr
        assert "2 tensors, 2 of them the site's own" in own.stdout
        heads.append(load_file(tmp_path / f"{site}.safetensors"))
        joined = hansa(*model, "--community", "out/model.safetensors", cwd=tmp_path)
        assert joined.returncode == 0, joined.stderr
        network.load_state_dict(load_file(tmp_path / f"{site}.safetensors"))
        assert (tmp_path / f"{site}.safetensors").stat().st_mode & 0o777 == 0o600
    (name,) = (name for name in heads[0] if name.endswith("weight"))
    assert not torch.equal(heads[0][name], heads[1][name])
    community = load_file(tmp_path / "out" / "model.safetensors")
    assert not set(community) & set(heads[0])
    unknown = hansa(
        "learner", "model", "j0", "--site", "site-1", "--state", "out/site-1", "-o", "x", cwd=tmp_path
    )
    assert unknown.returncode == 1
    assert f"no tensors of its own of job 'j0'; there are some of {job}" in unknown.stderr


def test_daemons_with_states_of_their_own_share_a_folder_and_the_backbone_stays(scene: Site) -> None:
    (scene.folder / "app.py").write_text(FROZEN_APP)
    scene.controller()
    for site in "ab":
        for role in ("learner", "evaluator"):
            scene.daemon(role, site, "--personal", str(scene.folder / f"own-{site}"))
    layers = "layers={kind: trainable, personal: ['4.*']}"
    shown = scene.json("job", "submit", "job.yaml", "--set", layers, "--wait")
    assert shown["status"] == "completed", shown["reason"]
    history = scene.json("job", "show", shown["job"])["history"]
    assert sorted(history[-1]["personal"]) == ["a", "b"]
    assert all(entry["bytes_up"] <= 2 * (260 * 4 * 1.01 + (64 << 10)) for entry in history[1:])
    scene.cli("job", "model", shown["job"], "-o", "part.safetensors")
    assert set(load_file(scene.folder / "part.safetensors")) == {"2.weight", "2.bias"}
    whole = scene.cli("job", "model", shown["job"], "-o", "whole.safetensors", "--whole")
    assert whole.returncode == 0, whole.stderr
    state = load_file(scene.folder / "whole.safetensors")
    network = load_app(f"{scene.folder / 'app.py'}:app").model()
    assert isinstance(network, nn.Module)
    network.load_state_dict(state)
    (scene.folder / "other.py").write_text(FROZEN_APP.replace("base = ", "nn.Linear(1, 1)\n    base = "))
    command = ("job", "model", shown["job"], "-o", "other.safetensors", "--whole", "--app", "other.py:app")
    refused = scene.cli(*command)
    assert refused.returncode == 1
    assert "it is another app, or has other weights" in refused.stderr
    assert not (scene.folder / "other.safetensors").exists()


def test_a_frozen_model_that_travels_whole_is_warned_of(scene: Site) -> None:
    (scene.folder / "app.py").write_text(
        FROZEN_APP.replace("nn.Linear(64, 4)", "nn.Linear(64, 1)").replace("4, 2)", "1, 2)")
    )
    scene.controller()
    for site in "ab":
        scene.daemon("learner", site)
    shown = scene.json("job", "submit", "job.yaml", "--wait")
    assert any("`layers: {kind: trainable}`" in warning for warning in shown["warnings"])
