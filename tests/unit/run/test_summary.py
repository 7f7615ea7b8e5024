"""What `hansa run` prints about a job's result, and `hansa job show` about its versions."""

import pytest

from hansa.common.run.summary import quality, quality_at_test_sites
from hansa.common.ui.job.job_documents import details, summary
from hansa.common.ui.job.versions import print_versions
from hansa.common.values.history import Findings, VersionView
from hansa.common.values.views import JobView

FULL = VersionView(
    version=1, round=1, seconds=1, metrics={"accuracy": 0.5}, examples=100, examples_total=100, covered=True
)
SOME = VersionView(
    version=2,
    round=2,
    seconds=2,
    metrics={"accuracy": 0.94},
    examples=10,
    examples_total=100,
    unevaluated={"b": "not connected", "c": "out of memory"},
)
MISSING = "missing: b: not connected, c: out of memory"
NONE = {"examples": 0, "unevaluated": dict.fromkeys("abcde", "it is down")}


def job(*history: VersionView, counts: VersionView | None = None, last: int = 2) -> JobView:
    shown = counts or VersionView(version=0, round=0, seconds=0)
    return JobView(
        job="j1",
        name="try",
        status="completed",
        version=last,
        metrics=shown.metrics,
        metrics_version=counts.version if counts else None,
        examples=shown.examples,
        examples_total=shown.examples_total,
        history=history,
    )


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (job(FULL, counts=FULL, last=1), ["accuracy 50.0% on 100 "]),
        (job(SOME, counts=SOME), ["accuracy 94.0% on 10 of 100 "]),
        (job(FULL, SOME, counts=FULL), ["accuracy 50.0% on 100 ", "version 1", "only on 10 of 100", MISSING]),
        (job(SOME), ["not measured on enough examples, only on 10 of 100", MISSING]),
        (
            job(SOME.model_copy(update=NONE)),
            ["not measured; ", "a: it is down, b: it is down, c: it is down and 2 more"],
        ),
        (job(), ["not measured"]),
    ],
)
def test_a_runs_result_is_that_of_a_version_that_counts_or_says_why_there_is_none(
    view: JobView, said: list[str]
) -> None:
    for words in said:
        assert words in quality(view, "test")
    assert view.metrics or "94" not in quality(view, "test")


def test_documents_for_programs_say_of_how_many_examples_metrics_are() -> None:
    told = summary(job(FULL, SOME, counts=FULL))
    assert (told["metrics"], told["metrics_version"]) == ({"accuracy": 0.5}, 1)
    assert (told["examples"], told["examples_total"]) == (100, 100)
    history = details(job(FULL, SOME, counts=FULL))["history"]
    assert isinstance(history, list)
    assert [(entry["examples"], entry["examples_total"], entry["covered"]) for entry in history] == [
        (100, 100, True),
        (10, 100, False),
    ]


def test_what_test_sites_found_is_told_apart_from_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings(
        metrics={"accuracy": 0.25}, examples=40, examples_total=50, unevaluated={"t": "too slow"}
    )
    view = job(FULL.model_copy(update={"test": findings}), counts=FULL, last=1)
    assert quality(view, "all") == "accuracy 50.0% on 100 examples of the validation sites"
    assert quality_at_test_sites(findings) == "accuracy 25.0% on 40 of 50 examples of the test sites"
    nothing = Findings(unevaluated={"t": "too slow"})
    assert quality_at_test_sites(nothing) == "not measured; missing: t: too slow"
    print_versions(view)
    shown = capsys.readouterr().out
    assert "test sites" in shown
    assert "accuracy 0.2500 (40 of 50)" in shown
    assert "t: too slow" in shown
    history = details(view)["history"]
    assert isinstance(history, list)
    assert history[0]["test"] == findings.model_dump()
    print_versions(job(FULL, counts=FULL, last=1))
    assert "test sites" not in capsys.readouterr().out
