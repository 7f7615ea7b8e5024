"""Asynchronous jobs do not wait for slow sites: the benchmark of it, shortened."""

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import ROOT

MEASURE = """
import json, async_gain
print(json.dumps(async_gain.measure(["fedavg", "async-dvw"], sites=4, factor=4.0, seconds=4.0)))
"""


@pytest.mark.slow
def test_with_slow_sites_an_asynchronous_job_merges_more_in_the_same_time_and_completes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        cwd=ROOT,
        env={"PATH": "", "HANSA_CONFIG": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sync, asynchronous = json.loads(done.stdout.splitlines()[-1])
    assert (sync["status"], asynchronous["status"]) == ("completed", "completed")
    assert asynchronous["merges"] > 2 * sync["merges"] > 0
    assert sync["updates_of_fast"] == sync["updates_of_slow"]
    assert asynchronous["updates_of_fast"] > asynchronous["updates_of_slow"] > 0
