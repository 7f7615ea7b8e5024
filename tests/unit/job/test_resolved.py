"""The resolved job: it is complete, can be read again, and means the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import hansa
from hansa.common.job.check import parse_job
from hansa.common.job.file import load_job
from hansa.common.job.spec import JobSpec
from hansa.common.plugins import packages
from hansa.common.plugins import registry as plugins
from hansa.common.plugins.registry import POINTS
from hansa.common.values.errors import InvalidJob
from hansa.common.values.resolved import MADE_WITH, PluginOrigin, Software
from hansa.controller.rulebook.compose import compose, composed_again
from hansa.controller.rulebook.resolve import resolved
from tests.support import install
from tests.unit.engine.play import job_spec

BUILT_IN = sorted(name for name, rule in plugins.rules().items() if "." not in name)


@pytest.mark.parametrize("rule", BUILT_IN)
def test_a_resolved_job_of_every_rule_means_the_same_when_it_is_read_again(rule: str) -> None:
    spec = job_spec(rule=rule)
    told = resolved(spec)
    again = parse_job(json.loads(json.dumps(told.job)))
    assert compose(again) == compose(spec)
    assert again.train.optimizer == spec.train.optimizer
    assert (again.seed, again.validation, again.survey, again.stop) == (
        spec.seed,
        spec.validation,
        spec.survey,
        spec.stop,
    )
    assert resolved(again) == told  # nothing is left to fill in


CHANGES: list[dict[str, Any]] = [
    {"train": {"proximal": 0.1}},
    {"train": {"batches": 7}},
    {"train": {"until": {"vc_loss": 2.0, "groups": {"slow": {"sites": ["a"], "tombstones": 3}}}}},
    {"train": {"epochs": 4, "keep_optimizer": True}},
    {"rule": "semisync-fedavg", "pace": {"lambda": 3.5}},
    {"rule": "async-dvw", "weigh": {"metric": "mcc"}},
    {"pace": {"rounds": 3, "deadline": 20.5, "quorum": 2}, "sample": {"kind": "uniform", "fraction": 0.3}},
    {"stop": {"target": {"metric": "loss", "value": 0.1}}, "survey": {"standardise": "global", "columns": 3}},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_what_a_job_says_itself_is_kept(changes: dict[str, Any]) -> None:
    spec = job_spec(**changes)
    told = resolved(spec)
    assert compose(parse_job(dict(told.job))) == compose(spec)


def test_every_part_is_there_with_every_parameter() -> None:
    told = resolved(job_spec(rule="fedadam", seed=3))
    for point in POINTS:
        part = told.job[point]
        assert isinstance(part, dict)
        fields = plugins.kinds(point)[str(part["kind"])].model_fields
        assert set(part) == {"kind"} | {field.alias or name for name, field in fields.items()}
    assert told.job["seed"] == 3
    assert told.job["app"] == "app.py:app"
    assert told.job["rule"] == "fedadam"
    train = told.job["train"]
    assert isinstance(train, dict)
    assert train["epochs"] == compose(job_spec(rule="fedadam")).epochs
    assert train["optimizer"] == {
        "kind": "sgd",
        "lr": 0.01,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "amsgrad": False,
    }
    assert told.made_with.hansa == hansa.__version__
    assert told.made_with.plugins["server"] == PluginOrigin(
        kind="adam", package="hansa", version=hansa.__version__
    )


def test_models_that_come_with_a_job_are_named_by_their_digests_and_not_as_files() -> None:
    told = resolved(JobSpec(app="app.py:app", init="ab" * 32, reference="cd" * 32, operator="ana"))
    assert (told.init, told.reference) == ("ab" * 32, "cd" * 32)
    assert not {"init", "reference", "operator", "data"} & told.job.keys()


def test_a_file_that_says_what_it_was_made_with_is_a_job_file(tmp_path: Path) -> None:
    told = resolved(job_spec(rule="fedavg"))
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**told.job, MADE_WITH: told.made_with.model_dump()}))
    assert compose(load_job(path, here=True)) == compose(job_spec(rule="fedavg"))


def test_the_software_is_recorded_when_a_job_is_submitted_and_not_when_it_is_shown() -> None:
    then = Software(hansa="0.0.1")
    assert resolved(job_spec(made_with=then)).made_with == then


@pytest.mark.parametrize(
    ("changes", "package"),
    [
        ({"rule": "gone"}, "gone-rules 2.0"),
        ({"weigh": {"kind": "gone"}}, "gone-parts 1.5"),
        ({"rule": "gone", "weigh": {"kind": "gone"}}, "gone-parts 1.5"),
    ],
)
def test_a_package_that_a_job_was_run_with_and_that_is_missing_is_named(
    changes: dict[str, Any], package: str
) -> None:
    parts = {"weigh": PluginOrigin(kind="gone", package="gone-parts", version="1.5")}
    used = {"gone-rules": "2.0"} if "weigh" not in changes else {"gone-parts": "1.5", "gone-rules": "2.0"}
    then = Software(hansa="0.0.1", plugins=parts if "weigh" in changes else {}, packages=used)
    with pytest.raises(InvalidJob, match=f"the job was run with {package}, which is not installed here"):
        composed_again(job_spec(made_with=then, **changes))


def test_a_rule_that_is_missing_though_the_packages_are_there_is_named() -> None:
    with pytest.raises(InvalidJob, match="there is no rule 'gone'"):
        composed_again(job_spec(rule="gone", made_with=Software(hansa="0.0.1")))


def test_a_submission_cannot_say_what_it_is_run_with() -> None:
    with pytest.raises(InvalidJob, match="made_with: only the controller says"):
        parse_job({"app": "app.py:app", "made_with": {"hansa": "9"}})


PACKAGE = """
from hansa.common.plugins.registry import register
from hansa.controller.rules.baselines.fedavg import ByExamples

@register("weigh", "test-foreign")
class Foreign(ByExamples):
    '''Weighs by examples.'''
"""


def test_a_plugin_of_another_package_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "foreign_rule", PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = plugins.contents()
    packages.providers.cache_clear()
    try:
        plugins.discover()
        told = resolved(job_spec(weigh={"kind": "test-foreign"}))
        foreign = PluginOrigin(kind="test-foreign", package="foreign_rule", version="1.0")
        assert told.made_with.plugins["weigh"] == foreign
        assert told.made_with.packages["foreign_rule"] == "1.0"
    finally:
        plugins.restore(before)
        packages.providers.cache_clear()
