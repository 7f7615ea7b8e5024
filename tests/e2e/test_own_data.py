"""docs/first-federation.md, "Your own data": its blocks as they stand there, on data of somebody's own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.e2e.conftest import ROOT, hansa

PAGE = (ROOT / "docs" / "first-federation.md").read_text()
SECTION = PAGE.partition("## Your own data\n")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)


def test_the_section_on_data_of_ones_own_can_be_followed(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ages, pressures = rng.integers(20, 90, 300), rng.integers(90, 180, 300)
    rows = [f"{a},{p},{int(a + p / 2 > 120)}" for a, p in zip(ages, pressures, strict=True)]
    (tmp_path / "patients.csv").write_text("\n".join(["age,pressure,outcome", *rows]) + "\n")
    make, app = blocks("python")
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True)
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "job.yaml").write_text(blocks("yaml")[0])
    done = hansa("run", "job.yaml", "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["metrics"]["accuracy"] > 0.7
