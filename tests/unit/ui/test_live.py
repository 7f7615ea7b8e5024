"""The live view of a job, with and without a terminal."""

from collections.abc import AsyncIterator
from io import StringIO

import pytest
from rich.console import Console

from hansa.common.ui.job.live import rendered, show_live
from hansa.common.values.history import Findings, Update, VersionView
from hansa.common.values.views import JobView, SiteProgress


def view(status: str, reason: str = "", *history: VersionView) -> JobView:
    done = len(history)
    return JobView(
        job="j1",
        name="try",
        status=status,
        reason=reason,
        version=done,
        rounds=done,
        rounds_asked=2,
        history=history,
    )


async def _play(*views: JobView) -> AsyncIterator[JobView]:
    for seen in views:
        yield seen


async def test_a_waiting_job_says_what_it_waits_for_and_when_it_continues(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = VersionView(version=1, round=1, seconds=3.0, updates=[Update(site="a")], evaluated=True)
    await show_live(
        _play(
            view("waiting", "needs 2 connected sites"),
            view("running"),
            view("running", "", first),
            view("running", "waiting for 2 sites", first),
            view("running", "waiting for 2 sites", first),
            view("running", "", first),
            view("failed", "1 of the 2 sites needed attended", first),
        )
    )
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "job j1 (try): waiting, needs 2 connected sites",
        "job j1 (try): running",
        "round 1/2     3.0 s  1 update",
        "job j1 (try): running, waiting for 2 sites",
        "job j1 (try): running",
        "job j1 failed: 1 of the 2 sites needed attended",
    ]


async def test_a_job_that_only_waits_for_its_last_evaluation_says_nothing_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = [
        VersionView(
            version=n,
            round=n,
            seconds=float(n),
            updates=[Update(site="a"), Update(site="b")],
            evaluated=n < 2,
        )
        for n in (1, 2)
    ]
    done = "all 2 rounds are done"
    await show_live(
        _play(view("running", "", *entries[:1]), view("running", done, *entries), view("completed", done))
    )
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "job j1 (try): running",
        "round 1/2     1.0 s  2 updates",
        "job j1 completed: all 2 rounds are done",
    ]


def test_sites_can_be_told_apart_on_a_narrow_terminal() -> None:
    console = Console(width=32, file=StringIO(), force_terminal=True, color_system=None)
    sites = tuple(
        SiteProgress(site=f"north-{n}", state="training", epochs=3, examples=1200, loss=0.5) for n in (1, 2)
    )
    console.print(rendered(view("running").model_copy(update={"sites": sites})))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "north-1" in shown
    assert "north-2" in shown


async def test_why_a_job_failed_is_left_to_a_caller_that_reports_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await show_live(_play(view("running"), view("failed", "no site came")), tell_failure=False)
    assert capsys.readouterr().out == "job j1 (try): running\n"
    console = Console(width=80, file=StringIO(), force_terminal=True, color_system=None)
    console.print(rendered(view("failed", "no site came"), tell_failure=False))
    assert isinstance(console.file, StringIO)
    assert "no site came" not in console.file.getvalue()


async def test_of_many_sites_a_few_are_named_in_the_order_of_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = {f"site-{n}": "slow" for n in range(40, 0, -1)}
    first = VersionView(
        version=1, round=1, seconds=3.0, updates=[Update(site="a")], evaluated=True, lost=lost
    )
    await show_live(_play(view("completed", "", first)))
    named = "lost: site-1, site-2, site-3, site-4, site-5 and 35 more"
    assert capsys.readouterr().out.splitlines()[0].endswith(named)


async def test_a_version_says_how_many_examples_its_metrics_cover_and_whose_are_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def version(number: int, examples: int, total: int | None, **missing: str) -> VersionView:
        return VersionView(
            version=number,
            round=number,
            seconds=float(number),
            updates=[Update(site="a")],
            metrics={"accuracy": 0.5} if examples else {},
            examples=examples,
            examples_total=total,
            evaluated=examples > 0,
            unevaluated=missing,
        )

    entries = [version(1, 100, None, b="no result in 60 s"), version(2, 100, 300, b="not connected")]
    await show_live(
        _play(view("running", "", *entries), view("completed", "done", *entries, version(3, 300, 300)))
    )
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][1:-1] == [
        (
            "round 1/2     1.0 s  1 update  accuracy 0.5000  on 100 of an unknown number of examples"
            "  not evaluated by: b"
        ),
        "round 2/2     2.0 s  1 update  accuracy 0.5000  on 100 of 300 examples  not evaluated by: b",
        "round 3/2     3.0 s  1 update  accuracy 0.5000  on 300 of 300 examples",
    ]


async def test_late_metrics_are_printed_once_all_evaluators_have_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = [
        VersionView(version=n, round=n, seconds=float(n), updates=[Update(site="a")]) for n in (1, 2, 3, 4)
    ]
    found = {"metrics": {"accuracy": 0.5}, "examples_total": 30}
    some = plain[0].model_copy(update=found | {"examples": 10})
    whole = plain[0].model_copy(update=found | {"examples": 30, "evaluated": True})
    await show_live(_play(view("running", "", some, *plain[1:3]), view("running", "", whole, *plain[1:])))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][1:-1] == [
        "round 1/2     1.0 s  1 update",
        "round 1 evaluated: accuracy 0.5000  on 30 of 30 examples",
        "round 2/2     2.0 s  1 update",
    ]


async def test_metrics_over_more_examples_are_printed_once_more_and_only_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last model was evaluated without b, which was late; it is asked again at the end, and reports."""
    some = VersionView(
        version=1,
        round=1,
        seconds=1.0,
        updates=[Update(site="a")],
        metrics={"accuracy": 0.9},
        examples=10,
        evaluated=True,
        unevaluated={"b": "no result in 60 s"},
    )
    again = some.model_copy(update={"evaluated": False, "unevaluated": {}})
    whole = again.model_copy(
        update={"metrics": {"accuracy": 0.5}, "examples": 30, "examples_total": 30, "evaluated": True}
    )
    plays = (view("running", "", some), view("running", "", some), view("running", "", again))
    await show_live(_play(*plays, view("running", "", whole), view("completed", "done", whole)))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][1:-1] == [
        (
            "round 1/2     1.0 s  1 update  accuracy 0.9000  on 10 of an unknown number of examples"
            "  not evaluated by: b"
        ),
        "round 1 evaluated: accuracy 0.5000  on 30 of 30 examples",
    ]


def test_the_table_says_which_version_the_metrics_are_of() -> None:
    console = Console(width=160, file=StringIO(), force_terminal=True, color_system=None)
    told = {"metrics": {"accuracy": 0.5}, "metrics_version": 7, "examples": 30, "examples_total": 30}
    console.print(rendered(view("running").model_copy(update=told)))
    assert isinstance(console.file, StringIO)
    assert "accuracy 0.5000   on 30 of 30 examples (version 7)" in console.file.getvalue()


@pytest.mark.parametrize(
    ("evaluators", "total", "said"),
    [
        (0, None, ["no evaluator is connected: no metrics"]),
        (2, 0, ["the evaluators have no examples: no metrics (validation.fraction may be 0, or too small)"]),
        (2, None, []),
        (2, 40, []),
    ],
)
async def test_missing_metrics_are_explained_once(
    capsys: pytest.CaptureFixture[str], evaluators: int, total: int | None, said: list[str]
) -> None:
    entries = [
        VersionView(version=n, round=n, seconds=1.0, updates=[Update(site="a")], examples_total=total)
        for n in (1, 2)
    ]
    views = [
        view("running", "", *entries[:1]),
        view("running", "", *entries),
        view("completed", "done", *entries),
    ]
    await show_live(_play(*(each.model_copy(update={"evaluators": evaluators}) for each in views)))
    assert [line for line in capsys.readouterr().out.splitlines() if "no metrics" in line] == said


async def test_what_test_sites_found_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings(
        metrics={"accuracy": 0.25}, examples=4, examples_total=None, unevaluated={"t": "slow"}
    )
    whole = Findings(metrics={"accuracy": 0.75}, examples=8, examples_total=8)
    entry = VersionView(
        version=1,
        round=1,
        seconds=1.0,
        updates=[Update(site="a")],
        evaluated=True,
        metrics={"accuracy": 0.5},
        examples=10,
        examples_total=10,
        test=findings,
        note="a note",
    )
    later = entry.model_copy(update={"test": whole})
    await show_live(
        _play(view("running", "", entry), view("running", "", later), view("completed", "", later))
    )
    assert capsys.readouterr().out.splitlines()[1:-1] == [
        "round 1/2     1.0 s  1 update  accuracy 0.5000  on 10 of 10 examples  a note",
        "  test sites  accuracy 0.2500  on 4 of an unknown number of examples  not evaluated by: t",
        "round 1 evaluated: accuracy 0.5000  on 10 of 10 examples",
        "  test sites  accuracy 0.7500  on 8 of 8 examples",
    ]
    console = Console(width=160, file=StringIO(), force_terminal=True, color_system=None)
    console.print(rendered(view("running").model_copy(update={"test": whole})))
    assert isinstance(console.file, StringIO)
    assert "accuracy 0.7500  on 8 of 8 examples" in console.file.getvalue()
