"""A version's record: its updates, and what they say about its sites."""

import math

from hansa.common.values.history import Update, Version, VersionView

TWICE = Version(
    version=3,
    round=3,
    seconds=1.0,
    updates=[
        Update(site="a", task="j-1", weight=0.5, steps=4, staleness=(2, 9)),
        Update(site="b", task="j-2", weight=1.0, steps=3),
        Update(site="a", task="j-3", weight=1.0, steps=5, staleness=(0, 5)),
    ],
)


def test_a_site_with_several_updates_counts_with_all_of_them() -> None:
    assert TWICE.contributions == {"a": 1.5, "b": 1.0}
    assert TWICE.steps == {"a": 9, "b": 3}
    assert TWICE.staleness == {"a": (2, 9), "b": (0, 0)}, "the stalest of each site"


def test_the_entry_of_a_site_is_its_last_update() -> None:
    assert {site: update.task for site, update in TWICE.sites.items()} == {"a": "j-3", "b": "j-2"}


def test_an_update_whose_weight_is_not_finite_is_listed_but_does_not_count() -> None:
    record = Version(version=1, round=1, seconds=0, updates=[Update(site="a", weight=math.nan, steps=2)])
    assert (record.contributions, record.steps) == ({}, {"a": 2})


def test_json_has_the_updates_and_nothing_that_follows_from_them() -> None:
    document = TWICE.model_dump_json()
    assert VersionView.model_validate_json(document).updates == TWICE.updates
    assert not {"contributions", "steps", "staleness", "sites"} & TWICE.model_dump().keys()


def test_losses_and_metrics_that_json_cannot_express_are_null() -> None:
    update = Update(site="a", loss=math.inf, metrics={"clipped": math.nan, "kept": 0.5})
    assert (update.loss, update.metrics) == (None, {"clipped": None, "kept": 0.5})
