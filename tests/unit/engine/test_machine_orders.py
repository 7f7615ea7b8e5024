"""The engine of a job under any order of events: what always holds, and that a replay gives the same job."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.controller.engine import events as ev
from hansa.controller.values import history
from tests.unit.engine.any_jobs import ASYNC_JOBS, ASYNC_TOGETHER, BUFFERED, JOBS, ORDERS, TRAVELS, Step
from tests.unit.engine.any_order import AnyOrder


def begin(job: dict[str, Any], given_model: bool) -> AnyOrder:
    order = AnyOrder(job)
    if given_model:
        order.happen(lambda: order.play.do(ev.ModelGiven(at=0, digest="given")))
    order.happen(lambda: order.play.join("a", role="evaluator"))
    for site in ("a", "b"):
        order.happen(lambda site=site: order.play.join(site))  # type: ignore[misc]
    return order


@settings(max_examples=200, deadline=None)
@given(JOBS | ASYNC_JOBS | ASYNC_TOGETHER | BUFFERED | TRAVELS, st.booleans(), ORDERS)
def test_under_any_order_of_events_the_engine_keeps_its_promises_and_a_replay_gives_the_same_job(
    job: dict[str, Any], given_model: bool, steps: list[Step]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "CHAPTER", 2)  # so that the history of such small jobs has several
        order = begin(job, given_model)
        for name, pick in steps:
            order.step(name, pick)
            order.check()
        order.restart()


@settings(max_examples=200, deadline=None)
@given(JOBS | ASYNC_JOBS | ASYNC_TOGETHER | BUFFERED | TRAVELS, st.booleans(), ORDERS)
def test_under_any_order_of_events_a_job_that_has_not_ended_always_waits_for_something(
    job: dict[str, Any], given_model: bool, steps: list[Step]
) -> None:
    order = begin(job, given_model)
    for name, pick in steps:
        order.step(name, pick)
        order.check_something_can_happen()
