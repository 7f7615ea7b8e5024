"""The summary of a federation's report, and its virtual time."""

from typing import Any

from hansa.common.run.trial import outcome, virtual_times


def entry(version: int, *updates: tuple[str, int, int], accuracy: float | None = None) -> dict[str, Any]:
    """Return a version made of updates: site, steps, staleness in versions."""
    return {
        "version": version,
        "seconds": 10.0 + version,
        "metrics": {} if accuracy is None else {"accuracy": accuracy, "loss": 1 - accuracy},
        "covered": accuracy is not None,
        "updates": [
            {"site": site, "weight": 1.0, "steps": steps, "staleness": (stale, 0)}
            for site, steps, stale in updates
        ],
        "bytes_up": 3,
        "bytes_down": 5,
    }


def report(*history: dict[str, Any]) -> dict[str, Any]:
    return {"history": list(history)}


def test_a_round_takes_as_long_as_its_slowest_site() -> None:
    rounds = report(entry(0), entry(1, ("a", 10, 0), ("b", 4, 0)), entry(2, ("a", 10, 0), ("b", 4, 0)))
    assert virtual_times(rounds, {}) == [0, 10, 20]
    assert virtual_times(rounds, {"b": 5}) == [0, 20, 40]


def test_without_rounds_a_site_does_not_wait_for_others() -> None:
    merged = report(
        entry(0),
        entry(1, ("a", 10, 0)),  # a: 0 to 10
        entry(2, ("a", 10, 0)),  # a: 10 to 20
        entry(3, ("b", 4, 2)),  # b, from version 0, five times as slow: 0 to 20
        entry(4, ("c", 1, 0)),  # c joined late, and starts from version 3
    )
    assert virtual_times(merged, {"b": 5}) == [0, 10, 20, 20, 21]


def test_where_models_travel_every_hop_counts_and_waits_for_the_one_before() -> None:
    def travelled(version: int, *hops: dict[str, int]) -> dict[str, Any]:
        last = entry(version, *((site, steps, 0) for site, steps in hops[-1].items()))
        return last | {"hops": [{"hop": n, "steps": hop} for n, hop in enumerate(hops, 1)]}

    whole = report(
        entry(0),
        travelled(1, {"a": 10, "b": 4}, {"b": 4, "c": 3}),
        travelled(2, {"c": 3, "a": 10}, {"a": 10}),  # a model skipped a hop, and a was last to train both
    )
    assert virtual_times(whole, {}) == [0, 14, 34]
    assert virtual_times(whole, {"b": 5}) == [0, 40, 60]
    found = outcome(whole)
    assert (found.rounds, found.updates, found.steps, found.virtual) == (2, 7, 44, 34)
    assert found.updates_by_site == {"a": 3, "b": 2, "c": 2}


def test_what_lies_beyond_the_time_that_counts_is_left_out() -> None:
    whole = report(
        entry(0),
        entry(1, ("a", 10, 0), accuracy=0.5),
        entry(2, ("b", 10, 1), accuracy=0.75),
        entry(3, ("a", 20, 1)),
        entry(4, ("b", 90, 2), accuracy=0.9),
    )
    found = outcome(whole, {"b": 2}, within=30)
    assert (found.accuracy, found.best, found.loss) == (0.75, 0.75, 0.25)
    assert (found.rounds, found.updates, found.steps, found.virtual) == (3, 3, 40, 30)
    assert found.updates_by_site == {"a": 2, "b": 1}
    assert (found.bytes_up, found.bytes_down, found.seconds) == (12, 20, 3)
    assert found.curve == ((1, 1.0, 0.5), (2, 2.0, 0.75))
    everything = outcome(whole)
    assert (everything.accuracy, everything.updates, everything.virtual) == (0.9, 4, 100)


def test_the_best_version_is_one_that_was_evaluated_on_enough_examples() -> None:
    some = entry(2, ("b", 10, 1), accuracy=0.94) | {"covered": False}
    found = outcome(report(entry(0), entry(1, ("a", 10, 0), accuracy=0.5), some))
    assert (found.accuracy, found.best, found.curve) == (0.5, 0.5, ((1, 1.0, 0.5),))


def test_a_job_without_a_model_has_nothing_to_say() -> None:
    found = outcome(report())
    assert (found.accuracy, found.best, found.rounds, found.seconds) == (None, None, 0, 0.0)


def test_the_accuracy_can_be_that_of_the_sites_own_models() -> None:
    both = entry(1, ("a", 10, 0), accuracy=0.5)
    both["metrics"] |= {"accuracy_personal": 0.75, "loss_personal": 0.2}
    found = outcome(report(entry(0), both, entry(2, ("a", 10, 0), accuracy=0.6)), personal=True)
    assert (found.accuracy, found.loss, found.curve) == (0.75, 0.2, ((1, 1.0, 0.75),))
