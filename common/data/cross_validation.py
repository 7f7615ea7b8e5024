"""Cross-validation by site: which sites of a job train, and which are held out (partitioning §9).

`hansa run` and simulations call these functions, so that the same job holds the same sites out. The folds are
those that `hansa data partition --folds` records.
"""

from collections.abc import Sequence
from typing import TypeVar

from hansa.common.data.partition.folds import Fold, folds
from hansa.common.job.spec import HoldoutSpec, JobSpec
from hansa.common.plugins.registry import rules
from hansa.common.values.errors import InvalidInput
from hansa.common.values.words import suggestion

T = TypeVar("T")
POOLED, BY_SITE = "pooled", "by-site"  # kinds of evaluation plans


def held_out(sites: Sequence[T], seed: int, holdout: HoldoutSpec) -> Fold[T]:
    """Return which sites test, validate and train in one fold; sites may be names or numbers."""
    return folds(sites, seed, holdout.folds, holdout.nested)[holdout.fold]


def fold_of(spec: JobSpec, sites: Sequence[str]) -> Fold[str]:
    """Return what each site of a job does, as `data.holdout` or else `sites` says; by default all train."""
    if spec.data and spec.data.holdout:
        return held_out(sites, spec.seed, spec.data.holdout)
    for field, names in (("validation", spec.sites.validation), ("test", spec.sites.test)):
        for name in names:
            if name not in sites:
                raise InvalidInput(f"sites.{field}: there is no site {name}" + suggestion(name, list(sites)))
    training = tuple(site for site in sites if site not in (*spec.sites.validation, *spec.sites.test))
    if not training:
        raise InvalidInput("sites: all sites are in `validation` or `test`, so none is left to train")
    return Fold(spec.sites.test, spec.sites.validation, training)


def assigned(spec: JobSpec, fold: Fold[str]) -> JobSpec:
    """Return a job whose sites do what a fold says, and which waits for all that train.

    If sites are held out, its metrics include means over sites, unless the job asks for another plan.
    """
    training = len(fold.train)
    if spec.sites.together > training:
        raise InvalidInput(f"sites.together: {training} sites cannot make models of {spec.sites.together}")
    sites = spec.sites.model_copy(
        update={"min": training, "names": None, "validation": fold.validation, "test": fold.test}
    )
    plan = dict(spec.evaluate or {})
    if spec.holds_out and (plan.get("kind") or rules()[spec.rule].part("evaluate")["kind"]) == POOLED:
        plan |= {"kind": BY_SITE}
    return spec.model_copy(update={"sites": sites, "evaluate": plan or None})
