"""When FedDAF imports torch and scipy, which take seconds: only if they are used, and before a fit."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("more", "imported"),
    [
        ("pass", "[]"),
        ("feddaf.Fusion(backend='em').warm_up()", "['scipy']"),
        ("feddaf.Fusion().warm_up()", "['torch', 'scipy']"),
    ],
)
def test_torch_and_scipy_are_imported_only_when_they_are_used_and_then_before_a_fit(
    more: str, imported: str
) -> None:
    said = "print([m for m in ('torch', 'scipy') if m in sys.modules])"
    code = f"import sys; from hansa.controller.rules import feddaf; {more}; {said}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == imported


@pytest.mark.slow
def test_a_fit_that_was_warmed_up_for_imports_nothing_more() -> None:
    code = """
import sys
import numpy as np
from hansa.controller.rules.feddaf import Fusion
Fusion().warm_up()
before = set(sys.modules)
from hansa.controller.rules.fusion.fit import Method, fit
centres = 3 * np.eye(2)[[0, 0, 0, 0, 0, 0, 1, 1]].repeat(250, axis=1)
vectors = np.random.default_rng(0).normal(size=(8, 500)) + centres
assert fit(vectors, np.full(8, 1 / 8), np.full(8, 3), Method()).allocation.shape == (8, 2)
print(sorted(name for name in set(sys.modules) - before if name.startswith(("torch", "scipy"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
