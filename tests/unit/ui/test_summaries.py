"""What people read of sites and models: in their order, a few of many, by what the app measures."""

from pathlib import Path
from typing import Any, Literal

import pytest

from hansa.common.job.spec import JobSpec
from hansa.common.process.clock import SystemClock
from hansa.common.run.summary import print_summary, quality
from hansa.common.ui.job.versions import shares
from hansa.common.values.history import Update, VersionView
from hansa.common.values.ids import SiteName, TaskId
from hansa.common.values.views import JobView
from hansa.common.values.wording.remarks import remarks
from hansa.controller.fleet.fleet import Fleet
from hansa.controller.fleet.sessions import DaemonRole, Session


class Nobody:
    def attended(self, session: Session) -> None:
        pass

    def left(self, site: SiteName, role: DaemonRole) -> None:
        pass


def test_the_fleet_is_listed_in_the_order_of_people() -> None:
    fleet = Fleet(SystemClock(), Nobody(), 5, 15)
    hand = {TaskId("j1-10"), TaskId("j1-9")}
    for number in (10, 2, 1, 20):
        site = SiteName(f"site-{number}")
        fleet.attend(Session(site, "learner", "x", {}, hand, 0.0, 0.0))
    assert [view.site for view in fleet.views()] == ["site-1", "site-2", "site-10", "site-20"]
    assert fleet.views()[0].doing == ("j1-9", "j1-10")


def test_a_version_names_a_few_of_many_sites_and_each_reason_once() -> None:
    entry = VersionView(
        version=1,
        round=1,
        seconds=1,
        updates=[Update(site=f"site-{n}", weight=1.0) for n in range(30, 0, -1)],
        lost={"site-12": "too slow", "site-2": "too slow", "site-3": "no memory"},
    )
    assert shares(entry) == ", ".join(f"site-{n} 1" for n in range(1, 11)) + " and 20 more"
    assert list(remarks(entry)) == ["site-2, site-12: too slow", "site-3: no memory"]


@pytest.mark.parametrize(
    ("metrics", "part", "said"),
    [
        (
            {"loss": 0.3, "accuracy": 0.912},
            "test",
            "accuracy 91.2% on 90 test examples that no site trained on",
        ),
        ({"loss": 0.3}, "validation", "loss 0.3000 on 90 validation examples that sites kept back"),
        (
            {"loss": 0.3, "mae": 0.16},
            "test",
            "loss 0.3000, mae 0.1600 on 90 test examples that no site trained on",
        ),
        (
            {"loss": 0.3, "accuracy": 0.9, "micro_f1": 0.5},
            "test",
            "accuracy 90.0%, micro_f1 0.5000 on 90 test examples that no site trained on",
        ),
        (
            {"loss": None, "accuracy": None},
            "validation",
            "the loss on 90 validation examples is not a finite number",
        ),
    ],
)
def test_a_summary_says_what_the_app_measures_on_what(
    metrics: dict[str, float], part: Literal["test", "validation"], said: str
) -> None:
    view = JobView(
        job="j1",
        name="x",
        status="completed",
        metrics=metrics,
        metrics_version=0,
        examples=90,
        examples_total=90,
    )
    assert quality(view, part) == said


def test_a_summary_says_that_there_was_nothing_to_measure_on() -> None:
    entry = VersionView(
        version=1, round=1, seconds=1, updates=[Update(site="a", weight=1.0)], examples_total=0
    )
    view = JobView(job="j1", name="x", status="completed", version=1, evaluators=1, history=(entry,))
    assert quality(view, "validation").startswith("not measured: the evaluators have no examples")


@pytest.mark.parametrize(
    ("words", "own", "said"),
    [
        ({}, False, "load out/model.safetensors with safetensors.torch.load_file"),
        ({"rule": "ditto"}, True, "model j1 --site a --state out/a -o a.safetensors     the model of a site"),
        ({"rule": "fedper"}, True, "-o a.safetensors --community out/model.safetensors     the model of a"),
        ({"layers": {"kind": "trainable"}}, False, "strict=False) into the app's model, built after"),
    ],
)
def test_a_summary_says_how_the_model_can_be_used(
    words: dict[str, Any],
    own: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = VersionView(version=1, round=1, seconds=1, personal={"b": "t2", "a": "t1"} if own else {})
    view = JobView(job="j1", name="x", status="completed", version=1, history=(entry,))
    spec = JobSpec.model_validate({"name": "x", "app": "app.py:app", "data": {"source": "digits"}, **words})
    print_summary(view, tmp_path / "out", Path("job.yaml"), spec, "test")
    shown = capsys.readouterr().out
    assert said in shown
    whole = words.get("rule", "fedavg") != "fedper" and "layers" not in words
    assert (", with the tensors that travel" in shown) == (not whole)
