"""Plugins of installed packages, on both sides: the example of docs/adding-a-rule.md, as it stands there."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Site, hansa
from tests.redis_server import free_port
from tests.support import install

PAGE = (ROOT / "docs" / "adding-a-rule.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def installed(folder: Path, name: str = "Clip") -> str:
    """Install the example with a class of this name; return the path to be searched."""
    install(folder, f"{name.lower()}_rule", next(block for block in BLOCKS if f"class {name}(" in block))
    return os.pathsep.join((str(ROOT), str(folder)))


def test_a_package_brings_what_sites_do_while_they_train(tmp_path: Path) -> None:
    path = installed(tmp_path / "packages")
    job = str(ROOT / "examples" / "digits" / "job.yaml")
    told = {}
    for norm in ("0.01", "1000"):
        out = tmp_path / f"out-{norm}"
        words = ("--set", "pace.rounds=2", "--set", f"local={{kind: clip, norm: {norm}}}", "--out", str(out))
        done = hansa("run", job, *words, cwd=ROOT, PYTHONPATH=path)
        assert done.returncode == 0, done.stdout + done.stderr
        history = json.loads((out / "report.json").read_text())["history"]
        told[norm] = [entry["diagnostics"]["local"]["clipped"] for entry in history if entry["version"]]
        assert [len(shares) for shares in told[norm]] == [5, 5]
    assert {share for version in told["0.01"] for share in version.values()} == {1.0}
    assert {share for version in told["1000"] for share in version.values()} == {0.0}
    shown = hansa("rules", "show", "fedavg", cwd=ROOT, PYTHONPATH=path)
    assert "clip" in next(line for line in shown.stdout.splitlines() if "or: " in line and "proximal" in line)


def test_a_site_without_the_package_says_so(scene: Site) -> None:
    path = installed(scene.folder / "packages")
    scene.address = f"127.0.0.1:{free_port()}"
    state = str(scene.folder / "state" / "elsewhere")
    started = scene.cli(
        "controller", "start", "--daemon", "--listen", scene.address, "--state", state, PYTHONPATH=path
    )
    assert started.returncode == 0, started.stderr
    try:
        for site in "ab":
            scene.daemon("learner", site)
        one = ("--set", "local={kind: clip}", "--set", "sites.min=2")
        done = scene.cli("job", "submit", "job.yaml", "--wait", *one, PYTHONPATH=path)
        assert done.returncode == 1
        said = done.stdout + done.stderr
        assert ": the rule asks for the learner's plugin 'clip', which this learner does not have" in said, (
            said
        )
    finally:
        assert scene.cli("controller", "stop", "--state", state).returncode == 0


@pytest.mark.slow
def test_a_package_brings_an_encoding_of_updates(tmp_path: Path) -> None:
    path = installed(tmp_path / "packages", "Sign")
    job = str(ROOT / "examples" / "digits" / "job.yaml")
    sent = {}
    for kind in ("none", "sign"):
        out = tmp_path / kind
        words = ("--set", "pace.rounds=3", "--set", f"transfer.kind={kind}", "--out", str(out))
        done = hansa("run", job, *words, cwd=ROOT, PYTHONPATH=path)
        assert done.returncode == 0, done.stdout + done.stderr
        history = json.loads((out / "report.json").read_text())["history"]
        assert len(history) == 4
        sent[kind] = history[-1]["bytes_up"]
    assert 15 < sent["none"] / sent["sign"] < 32  # it is a small model: padding shows
