"""The notebook of the digits example, executed cell by cell against a real federation."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.e2e.conftest import ROOT, Site

DIGITS = ROOT / "examples" / "digits"


def shown(cell: Any) -> str:
    """Return what a cell shows: what it prints, and its value as HTML or text."""
    texts = []
    for output in cell.outputs:
        data = output.get("data", {})
        texts.append(output.get("text") or data.get("text/html") or data.get("text/plain", ""))
    return "".join(texts)


@pytest.mark.slow
def test_the_notebook_runs_against_two_sites(
    scene: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # jobs name the app as sites do
    subprocess.run(
        [sys.executable, DIGITS / "make_sites.py", tmp_path / "data"], check=True, capture_output=True
    )
    address = scene.controller()
    for site in ("site-1", "site-2"):
        scene.daemon("learner", site, "--app", "examples/digits/app.py:app", data=f"data/{site}.npz")
        scene.daemon(
            "evaluator",
            site,
            "--app",
            "examples/digits/app.py:app",
            "--split",
            "test",
            data=f"data/{site}.npz",
        )
    monkeypatch.setenv("HANSA_CONTROLLER", address)
    monkeypatch.setenv("HANSA_CONFIG", "")
    notebook = nbformat.read(DIGITS / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(DIGITS)}}).execute()
    cells = {cell.id: cell for cell in notebook.cells}
    assert f"<Client of {address}>" in shown(cells["client"])
    rounds = re.findall(
        r"^(\d+) accuracy 0\.\d{3} loss at .*site-1.*site-2", shown(cells["watch"]), re.MULTILINE
    )
    assert rounds == [str(number) for number in range(1, 9)]
    assert "<td>8</td>" in shown(cells["watch"])
    assert "completed" in shown(cells["watch"])
    assert "<table" in shown(cells["table"])
    share = re.search(r"version \d reads (.*)% of 359 test images", shown(cells["best"]))
    assert share
    assert float(share[1]) > 70
