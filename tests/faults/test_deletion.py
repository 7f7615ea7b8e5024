"""kill -9 in the middle of a deletion: the next start finishes it, and the audit log stays sound."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.faults.conftest import Federation

POINTS = ("deletion-recorded", "models-deleted", "journal-shrinking")


@pytest.mark.timeout(120)
def test_a_deletion_is_finished_by_the_next_start_wherever_the_controller_was_killed(
    federation: Federation,
) -> None:
    where = ["--store", federation.store] if federation.redis else []
    verify = ("audit", "verify", "--state", str(federation.folder / "state" / "controller"), *where)
    save_file({"w": np.zeros((2, 2), np.float32)}, federation.folder / "first.safetensors")
    points = POINTS[:2] if federation.redis else POINTS  # Redis forgets a journal at once
    federation.bring_up("controller")
    settings = ("--set", "init=first.safetensors", "--set", "sites={min: 1, wait: 120}")
    jobs = [federation.json("job", "submit", "job.yaml", *settings)["job"] for _ in range(len(points) + 1)]
    for job in jobs:
        federation.json("job", "cancel", job)
        assert federation.leftovers(job)
    kept = jobs.pop()
    left = [kept, *reversed(jobs)]
    for point, job in zip(points, jobs, strict=True):
        federation.kill(f"controller.{federation.lives['controller']}")
        federation.bring_up("controller", kill_at=f"{point}:1")
        assert federation.cli("job", "delete", "--yes", job).returncode != 0
        federation.until(lambda: not federation.alive("controller"), 30, f"it never reached {point}")
        assert federation.json(*verify)["sound"]
        federation.bring_up("controller")
        left.remove(job)
        assert [view["job"] for view in federation.json("job", "list")] == left
    federation.nursery.stop([f"controller.{federation.lives['controller']}"])
    assert federation.json(*verify)["sound"]
    assert not any(federation.leftovers(job) for job in jobs)
    assert not any(federation.receipts(job) for job in jobs)
    assert federation.leftovers(kept)
