"""Cross-validation by site: which sites of a job are held out, and the same in every place."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hansa.common.cli import hansa
from hansa.common.data.cross_validation import assigned, fold_of, held_out
from hansa.common.data.division import divide
from hansa.common.job import rulebook
from hansa.common.job.check import parse_job
from hansa.common.job.spec import DataSpec, HoldoutSpec, JobSpec
from hansa.common.values.errors import InvalidInput, InvalidJob
from tests.published import write_mnist

NAMES = [f"site-{number}" for number in range(1, 11)]


def job(**fields: Any) -> JobSpec:
    rulebook.load()
    return JobSpec.model_validate({"app": "app.py:app", "data": {"source": "digits"}, **fields})


@given(st.integers(3, 12), st.integers(0, 60), st.integers(0, 1 << 32))
def test_over_the_folds_every_site_tests_once_and_validates_once(count: int, more: int, seed: int) -> None:
    sites = range(count + more)
    folds = [held_out(sites, seed, HoldoutSpec(folds=count, fold=fold)) for fold in range(count)]
    assert sorted(site for fold in folds for site in fold.test) == [*sites]
    assert sorted(site for fold in folds for site in fold.validation) == [*sites]
    for fold in folds:
        assert sorted(fold.test + fold.validation + fold.train) == [*sites], "every site does one thing"


def test_nested_folds_pair_every_test_set_with_every_other_set() -> None:
    pairs = [held_out(NAMES, 3, HoldoutSpec(folds=5, fold=fold, nested=True)) for fold in range(20)]
    plain = [held_out(NAMES, 3, HoldoutSpec(folds=5, fold=fold)) for fold in range(5)]
    sets = [fold.test for fold in plain]
    assert pairs[::4] == plain, "the first of four that test with a set is the plain fold"
    for number, fold in enumerate(pairs):
        assert fold.test == sets[number // 4]
        assert sorted(fold.test + fold.validation + fold.train) == sorted(NAMES)
    for at, test in enumerate(sets):
        others = {each for each in sets if each != test}
        assert {fold.validation for fold in pairs[4 * at : 4 * at + 4]} == others


@pytest.mark.parametrize("nested", [False, True])
def test_the_folds_are_those_that_a_partition_records(tmp_path: Path, nested: bool) -> None:
    words = ["--sites", "10", "--seed", "7", "--folds", "4", *(["--nested"] if nested else [])]
    done = CliRunner().invoke(hansa, ["data", "partition", "digits", *words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    recorded = json.loads((tmp_path / "out" / "partition.json").read_text())["folds"]
    assert len(recorded) == (12 if nested else 4)
    for number, fold in enumerate(recorded):
        data = {"source": "digits", "sites": 10, "holdout": {"folds": 4, "fold": number, "nested": nested}}
        chosen = fold_of(job(seed=7, data=data), NAMES)
        assert {name: tuple(sites) for name, sites in fold.items()} == vars(chosen)


def test_a_job_may_name_the_sites_itself_and_a_fold_takes_precedence() -> None:
    named = {"sites": {"validation": ["site-2"], "test": ["site-5", "site-1"]}}
    fold = fold_of(job(**named), NAMES)
    assert (fold.test, fold.validation) == (("site-5", "site-1"), ("site-2",))
    assert fold.train == tuple(name for name in NAMES if name not in ("site-1", "site-2", "site-5"))
    data = {"source": "digits", "holdout": {"folds": 5}}
    assert fold_of(job(**named, data=data), NAMES) == fold_of(job(data=data), NAMES)
    assert fold_of(job(), NAMES).train == tuple(NAMES)
    with pytest.raises(InvalidInput, match=r"sites\.test: there is no site site-11 \(did you mean"):
        fold_of(job(sites={"test": ["site-11"]}), NAMES)
    with pytest.raises(InvalidInput, match="none is left to train"):
        fold_of(job(sites={"test": ["a"], "validation": ["b"]}), ["a", "b"])


def test_a_job_waits_for_the_sites_that_train_and_has_means_over_sites() -> None:
    holdout = {"source": "digits", "holdout": {"folds": 5}}
    spec = job(data=holdout, sites={"min": 10, "wait": 5, "together": 3}, evaluate={"every": 2})
    fold = fold_of(spec, NAMES)
    ready = assigned(spec, fold)
    assert (ready.sites.min, ready.sites.together, ready.sites.wait) == (6, 3, 60)
    assert (ready.sites.validation, ready.sites.test) == (fold.validation, fold.test)
    assert ready.evaluate == {"kind": "by-site", "every": 2}
    chosen = job(data=holdout, evaluate={"kind": "pooled", "timeout": 5})
    assert assigned(chosen, fold).evaluate == chosen.evaluate
    everywhere = job(evaluate={"every": 2})
    assert assigned(everywhere, fold_of(everywhere, NAMES)).evaluate == {"every": 2}
    with pytest.raises(InvalidInput, match=r"sites\.together: 6 sites cannot make models of 7"):
        assigned(job(data=holdout, sites={"min": 7, "together": 7}), fold)


def test_everything_is_split_across_sites_if_whole_sites_test(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    usual = divide(DataSpec(source="mnist", sites=3), None, 1, tmp_path)
    assert len(usual.test)
    division = divide(DataSpec(source="mnist", sites=3, holdout=HoldoutSpec(folds=3)), None, 1, tmp_path)
    assert not len(division.test)
    rows = sorted(row for shard in division.shards for row in shard.rows)
    assert rows == [*range(len(division.data))]
    assert len(rows) == len(usual.data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"holdout": {"folds": 2}}, "data.holdout.folds: 2 are too few: test, validation and training need"),
        ({"holdout": {"fold": 5}}, "data.holdout: there is no fold 5: the 5 folds are numbered from 0 to 4"),
        ({"holdout": {"fold": -1}}, "data.holdout.fold: input should be greater than or equal to 0"),
        (
            {"holdout": {"fold": 20, "nested": True}},
            "data.holdout: there is no fold 20: the 20 pairs of a test set and a validation set are numbered",
        ),
        (
            {"holdout": {}, "test": 0.1},
            "data: test: with holdout, whole sites are held out instead of a share",
        ),
        ({"holdout": {"flods": 3}}, "data.holdout.flods: unknown key (did you mean 'folds' or 'fold'?)"),
        (
            {"files": {"a": "a.csv", "b": "b.csv"}, "holdout": {"folds": 3}},
            "data: holdout: 2 sites cannot make 3 folds; use fewer folds",
        ),
    ],
)
def test_folds_that_cannot_be_are_refused(data: dict[str, Any], message: str) -> None:
    source = {} if "files" in data else {"source": "digits"}
    with pytest.raises(InvalidJob) as caught:
        parse_job({"app": "app.py:app", "data": source | data})
    assert message in str(caught.value)


def test_sites_with_files_of_their_own_can_be_held_out() -> None:
    files = {name: f"{name}.csv" for name in "abc"}
    spec = parse_job({"app": "app.py:app", "data": {"files": files, "holdout": {"folds": 3, "fold": 1}}})
    fold = fold_of(spec, [*files])
    assert sorted(fold.test + fold.validation + fold.train) == ["a", "b", "c"]
