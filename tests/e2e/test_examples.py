"""The examples that need published data, shortened, over small files in the same formats."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.published import write_hospitals, write_mnist


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


def test_hospitals_are_compared_alone_federated_and_pooled(tmp_path: Path) -> None:
    write_hospitals(tmp_path, rows=40)
    shown = _script(tmp_path, "examples/hospitals/compare.py", "--seeds", "1", "--rounds", "3").splitlines()
    assert shown[2].split() == ["cleveland", "hungarian", "switzerland", "va", "all"]
    assert [line.split()[0] for line in shown[3:]] == ["guess", "alone", "federated", "pooled", "patients"]
    assert all(0 <= float(share.rstrip("%")) <= 100 for line in shown[3:7] for share in line.split()[1:])
    assert shown[7].split()[1:] == ["8", "8", "8", "8", "32"]


def test_more_writers_can_be_tried(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=60, test=20, writers=3)
    shown = _script(tmp_path, "examples/writers/more_writers.py", "2", "--rounds", "1").splitlines()
    assert len(shown) == 2
    assert shown[1].split()[0] == "2"


@pytest.mark.parametrize("name", ["hospitals", "writers"])
def test_without_the_data_an_example_says_what_is_missing(tmp_path: Path, name: str) -> None:
    job = f"examples/{name}/job.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "hansa", "run", job, "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env={"PATH": "", "HANSA_CONFIG": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Set HANSA_DATA or --root" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
