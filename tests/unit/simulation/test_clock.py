"""The virtual clock: schedules of three sites that were computed on paper.

An update has 4096 bytes, and 102,400 bytes per second go up: 40 ms. Downloads take no time but the latency,
which is 10 ms each way. A step takes 25 ms, times the site's factor, and a task has 4 of them: 40 examples
in batches of 10, none held out. So a site whose factor is f has its update there f · 100 + 60 ms after it was
asked. Version 0 takes 10 ms down, a nanosecond, and 50 ms up: the first tasks are issued at 60 ms.
"""

from pathlib import Path
from typing import Any

import pytest

from hansa.common.values.views import JobView
from tests.simulated import simulation

APPS = Path(__file__).parent / "clock_app.py"
SITES = ("a", "b", "c")
Job = dict[str, Any]
CLOCK = {"step_seconds": 0.025, "latency": 0.01, "bandwidth": {"up": 102_400, "down": 1e15}}
ASYNC: Job = {
    "rule": "fedasync",
    "local": {"kind": "plain"},
}  # a function of the app's own has no proximal term


def simulated(folder: Path, factors: tuple[float, ...], app: str = "plain", **job: Any) -> JobView:
    """Run a job with sites of these speeds."""
    clock = CLOCK | {"slow": {"sites": dict(zip(SITES, factors, strict=True))}} | job.pop("simulate", {})
    usual = {"train": {"batch_size": 10}, "validation": {"fraction": 0}, "evaluate": {"every": 1000}}
    view = simulation(folder, {**usual, **job, "simulate": clock}, f"{APPS}:{app}", SITES).run()
    assert view.status == "completed", view.reason
    return view


def schedule(view: JobView) -> list[tuple[float, dict[str, int]]]:
    """Return when each version was made, and the steps of its sites."""
    return [(entry.seconds, entry.steps) for entry in view.history]


def test_asynchronous_updates_are_merged_in_the_order_of_their_virtual_times(tmp_path: Path) -> None:
    view = simulated(tmp_path, (1, 2, 4.2), **ASYNC, pace={"updates": 9})
    # Sites need 160, 260 and 480 ms and are asked again at once:
    #   a   160  320  480  640  800
    #   b   260  520  780
    #   c   480                      a and c at the same time: the site that comes first in the list counts
    # first, and its merge, which takes no time, comes before the other's update.
    order = [(160, "a"), (260, "b"), (320, "a"), (480, "a"), (480, "c"), (520, "b"), (640, "a"), (780, "b")]
    merged = [(entry.seconds, entry.updates[0].site) for entry in view.history[1:]]
    assert merged == [(round(0.06 + at / 1000, 3), site) for at, site in [*order, (800, "a")]]
    # How many versions have been made since the one that a site was given: b was given version 0 and makes
    # version 2; a was given version 1 and makes version 3; and so on.
    assert [entry.updates[0].staleness[0] for entry in view.history[1:]] == [0, 1, 1, 0, 4, 3, 2, 1, 1]


def test_a_merge_that_takes_time_holds_up_the_sites_that_wait_for_it(tmp_path: Path) -> None:
    slowly = {"merge_seconds": 0.03}
    view = simulated(tmp_path, (1, 2, 3.4), **ASYNC, pace={"updates": 4}, simulate=slowly)
    # a 160 + 30 merge; next from 190: 350 + 30; b 260 + 30; c 400: its merge begins at once, and ends at 430.
    assert schedule(view)[1:] == [
        (0.25, {"a": 4}),
        (0.35, {"b": 4}),
        (0.44, {"a": 4}),
        (0.49, {"c": 4}),
    ]


def test_semisynchronous_rounds_last_as_long_as_the_slowest_site_and_meet_their_deadline(
    tmp_path: Path,
) -> None:
    view = simulated(tmp_path, (1, 2, 4), rule="semisync-fedavg", pace={"rounds": 3, "deadline": 0.46})
    # In round 1 c needs 400 + 60 ms: its update arrives exactly at the deadline and counts. An epoch of c
    # takes 400 ms, into which 16 steps of a and 8 of b fit; from now on all arrive exactly at the deadline.
    fast = {"a": 16, "b": 8, "c": 4}
    assert schedule(view)[1:] == [(0.52, {"a": 4, "b": 4, "c": 4}), (0.98, fast), (1.44, fast)]
    assert not any(entry.lost for entry in view.history)


def test_an_update_that_is_a_few_nanoseconds_late_does_not_count(tmp_path: Path) -> None:
    late = 4.00000004  # each of the 4 steps takes 100 ms and a nanosecond
    view = simulated(tmp_path, (1, 2, late), rule="semisync-fedavg", pace={"rounds": 2, "deadline": 0.46})
    # c is never measured, so b is the slowest: 200 ms, or 8 steps of a.
    assert schedule(view)[1:] == [(0.52, {"a": 4, "b": 4}), (0.98, {"a": 8, "b": 4})]
    assert all(list(entry.lost) == ["c"] for entry in view.history[1:])


@pytest.mark.parametrize(("seconds", "versions"), [(0.979, 1), (0.980000001, 2), (1.3, 2)])
def test_a_job_stops_at_its_time_limit(tmp_path: Path, seconds: float, versions: int) -> None:
    view = simulated(tmp_path, (1, 2, 4), rule="fedavg", pace={"rounds": 9}, stop={"seconds": seconds})
    # Rounds end at 520 and 980 ms, and a nanosecond; a merge at the very time of the limit still counts.
    assert view.version == versions
    assert view.reason == f"time limit of {seconds:g} s reached"


def test_a_job_stops_when_the_report_that_reaches_its_target_arrives(tmp_path: Path) -> None:
    target = {"metric": "loss", "value": -1.0}
    with_target: Job = {"stop": {"target": target}, "evaluate": {"every": 1}, "validation": {"fraction": 0.5}}
    never = simulated(tmp_path / "never", (1, 2, 4), rule="fedavg", pace={"rounds": 2}, **with_target)
    assert never.reason == "all 2 rounds are done"
    target["value"] = 1e9
    view = simulated(tmp_path / "soon", (1, 2, 4), rule="fedavg", pace={"rounds": 9}, **with_target)
    # 20 examples to train on: 2 steps, so version 1 is there at 60 + 260 ms. Evaluators fetch it in 10 ms,
    # need 20 × 0.1 ms × f, and report in 10 ms: the slowest has reported 28 ms later.
    assert view.version == 1
    assert view.seconds == 0.348


def test_an_evaluator_does_one_task_at_a_time(tmp_path: Path) -> None:
    slow = {"eval_seconds": 0.005}  # 20 examples: 100 ms
    more: Job = {"validation": {"fraction": 0.5}, "evaluate": {"every": 1}, "simulate": slow}
    view = simulated(tmp_path, (1, 1, 1), rule="fedavg", pace={"rounds": 2}, **more)
    # 2 steps: rounds of 110 ms end at 170 and 280 ms. Version 1 is offered at 170 and reported on at
    # 170 + 10 + 100 + 10 = 290; version 2, the last, is fetched after that, and reported on at 410.
    assert schedule(view)[1:] == [(0.17, dict.fromkeys(SITES, 2)), (0.28, dict.fromkeys(SITES, 2))]
    assert view.seconds == 0.41


def test_a_task_that_fails_does_so_when_it_would_have_been_done(tmp_path: Path) -> None:
    view = simulated(tmp_path, (1, 2, 9), app="failing", **ASYNC, pace={"updates": 4})
    # b fails at 260 ms and is asked again at once; its update is there at 520 ms.
    order = [(entry.seconds, entry.updates[0].site) for entry in view.history[1:]]
    assert order == [(0.22, "a"), (0.38, "a"), (0.54, "a"), (0.58, "b")]
