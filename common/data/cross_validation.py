"""Cross-validation by site: which sites of a job train, and which are held out (partitioning §9).

`hansa run` and simulations call these functions, so that the same job holds the same sites out. The folds are
those that `hansa data partition --folds` records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hansa.common.data.partition.folds import Fold, folds
from hansa.common.data.site_files import Split
from hansa.common.job.spec import HoldoutSpec, JobSpec, SitesSpec
from hansa.common.plugins.registry import fill, rules
from hansa.common.values.errors import InvalidInput
from hansa.common.values.wording.words import suggestion

T = TypeVar("T")
POOLED, BY_SITE = "pooled", "by-site"  # kinds of evaluation plans


def held_out(sites: Sequence[T], seed: int, holdout: HoldoutSpec) -> Fold[T]:
    """Return which sites test, validate and train in one fold; sites may be names or numbers."""
    return folds(sites, seed, holdout.folds, holdout.nested)[holdout.fold]


def fold_of(spec: JobSpec, sites: Sequence[str]) -> Fold[str]:
    """Return what each site of a job does, as `data.holdout` or else `sites` says; by default all train."""
    if spec.data and spec.data.holdout:
        return held_out(sites, spec.seed, spec.data.holdout)
    known = set(sites)
    for field, names in (("validation", spec.sites.validation), ("test", spec.sites.test)):
        for name in names:
            if name not in known:
                raise InvalidInput(f"sites.{field}: there is no site {name}" + suggestion(name, list(sites)))
    held_out_sites = {*spec.sites.validation, *spec.sites.test}
    training = tuple(site for site in sites if site not in held_out_sites)
    if not training:
        raise InvalidInput("sites: all sites are in `validation` or `test`, so none is left to train")
    return Fold(spec.sites.test, spec.sites.validation, training)


def assigned(spec: JobSpec, fold: Fold[str]) -> JobSpec:
    """Return a job whose sites do what a fold says, and which waits for all that train, a minute or longer.

    If sites are held out, its metrics include means over sites, unless the job or its rule names a plan.
    """
    training = len(fold.train)
    if spec.sites.together > training:
        raise InvalidInput(f"sites.together: {training} sites cannot make models of {spec.sites.together}")
    sites = SitesSpec(
        min=training,
        together=spec.sites.together,
        wait=max(spec.sites.wait, 60),
        validation=fold.validation,
        test=fold.test,
    )
    plan, apart = dict(spec.evaluate or {}), bool(fold.validation or fold.test)
    if apart and "kind" not in plan and rules()[spec.rule].part("evaluate")["kind"] == POOLED:
        plan |= {"kind": BY_SITE}
    return spec.model_copy(update={"sites": sites, "evaluate": plan or None})


@dataclass(frozen=True)
class Roles:
    """Which sites have a learner, and which an evaluator."""

    learners: tuple[str, ...]
    evaluators: Mapping[str, Split]  # with what each evaluates on
    split: Split  # what community models are evaluated on, apart from test sites


def roles_of(spec: JobSpec, fold: Fold[str], split: Split) -> Roles:
    """Return the roles of a job's sites; `split` is what the evaluators of sites that train can use.

    Sites that are held out evaluate on all their data. If some of them validate, sites that train need an
    evaluator only for a rule that has updates evaluated.
    """
    evaluators: dict[str, Split] = dict.fromkeys((*fold.validation, *fold.test), "all")
    if not fold.validation:
        evaluators |= dict.fromkeys(fold.train, split)
    elif _evaluates_updates(spec):
        evaluators |= dict.fromkeys(fold.train, "validation")
    return Roles(fold.train, evaluators, "all" if fold.validation else split)


def _evaluates_updates(spec: JobSpec) -> bool:
    weigher: Any = fill("weigh", rules()[spec.rule], spec.weigh)
    return bool(weigher.evaluates)
