"""kill -9 of a learner that trains on windows: no example is skipped, and none is repeated needlessly."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import APP_TEXT
from tests.faults.conftest import Federation
from tests.faults.test_kills import digest

WORDS = (
    *("--set", "rule=fedmmb", "--set", "train={batches: 2, batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}"),
    *("--set", "sites={min: 3, wait: 120}", "--set", "validation.fraction=0", "--set", "pace.rounds=12"),
)
RECORDING = APP_TEXT.replace(
    "    return x\n",
    """    with open(f"batches-{os.environ.get('HANSA_LIFE', '')}.jsonl", "a") as file:
        file.write(repr(x[:, 0].tolist()) + "\\n")
    return x
""",
)
UNTRAINED = ("task-taken", "window-opened")
UNCOMMITTED = ("task-trained", "task-offered")
COMMITTED = ("task-uploaded", "window-used")  # before and after the learner has written it down
POINTS = (*UNTRAINED, *UNCOMMITTED, "task-uploading", *COMMITTED)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("federation", ["disk"], indirect=True)
def test_a_window_is_repeated_if_its_update_was_not_committed_and_not_if_it_was(
    federation: Federation,
) -> None:
    (federation.folder / "app.py").write_text(RECORDING)
    federation.bring_up("controller")
    for site in "ac":
        federation.bring_up(f"learner-{site}")
    job = federation.json("job", "submit", "job.yaml", *WORDS, "--set", "name=storm")["job"]
    for life, point in enumerate((*POINTS, "")):
        federation.bring_up("learner-b", f"{point}:1" if point else "", HANSA_LIFE=str(life))
        if point:
            federation.until(lambda: not federation.alive("learner-b"), 60, f"never reached {point}")
    watched = federation.cli("job", "watch", job)
    assert watched.returncode == 0, watched.stderr + watched.stdout
    mark = json.loads((federation.folder / "state" / "learner-b" / "windows" / f"{job}.json").read_text())
    assert (mark["taken"], mark["committed"], mark["end"]) == (12, True, None)

    lives = [_batches(federation.folder / f"batches-{life}.jsonl") for life in range(len(POINTS) + 1)]
    of = dict(zip(POINTS, lives, strict=False))
    assert [of[point] for point in UNTRAINED] == [[], []]
    assert (
        of["task-trained"] == of["task-offered"] == of["task-uploading"] != []
    )  # the next life begins it again
    # When the learner dies in uploading, all of a small update may be on its way: then it is committed, not
    # repeated.
    repeated = lives[len(POINTS) - len(COMMITTED)][:2] == of["task-uploading"]
    since = POINTS.index("task-uploading") + repeated
    committed = [batch for life in lives[since:] for batch in life]
    # Sixty examples are eight batches, and two of them in each of twelve rounds make three passes.
    rows = [row for batch in committed for row in batch]
    assert len(rows) == 180
    for at in (0, 60, 120):
        assert set(Counter(rows[at : at + 60]).values()) == {1}

    calm = federation.cli("job", "submit", "job.yaml", *WORDS, "--set", "name=calm", "--wait")
    assert calm.returncode == 0, calm.stderr + calm.stdout
    assert digest(federation, "storm") == digest(federation, "calm")


def _batches(path: Path) -> list[list[float]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
