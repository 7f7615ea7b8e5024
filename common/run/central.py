"""Central training of a federation's data, as a job with one site: what federations are measured against."""

import math
from typing import Any

from hansa.common.job.spec import JobSpec, SitesSpec
from hansa.common.plugins.registry import POINTS, fill, rules


def centralised(spec: JobSpec, sites: int) -> JobSpec:
    """Return plain central training in place of a job of so many sites.

    Of the rule only the number of rounds, of hops and of batches is left, and how models are evaluated. A
    step is over as many examples as a step of all sites together, so that each version comes after as many
    steps and examples.
    """
    rule = rules()[spec.rule]
    pace: Any = fill("pace", rule, spec.pace)
    merges: int = pace.rounds_asked()
    rounds = merges if "barrier" in pace.provides else math.ceil(merges / sites)
    plain: dict[str, Any] = {point: None for point in POINTS if point != "evaluate"}
    plain |= {"rule": "fedavg", "pace": {"kind": "sync", "rounds": rounds}}
    if spec.evaluate and "virtual" in spec.evaluate:  # there is no mean between merges of one site's model
        plain["evaluate"] = {name: value for name, value in spec.evaluate.items() if name != "virtual"}
    # Trainings one after the other before each merge.
    hops: int = pace.hops if "slots" in pace.provides else 1
    batches = spec.train.batches or rule.batches
    # One window ends with a pass over the data at the latest; the next goes on from there.
    if batches and hops > 1:
        plain["pace"] = {"kind": "redistribute", "rounds": rounds, "hops": hops}
    # Some say themselves how many epochs whole models are trained for.
    layers: Any = fill("layers", rule, spec.layers)
    epochs: int = getattr(layers, "feature_epochs", None) or spec.train.epochs or rule.epochs
    train = spec.train.model_copy(
        update={
            "proximal": None,
            "batch_size": sites * spec.train.batch_size,
            "batches": batches,
            "epochs": None if batches else hops * epochs,
        }
    )
    # There is one site, whatever the job asks for, and it makes the reference.
    made = {
        "name": central_name(spec),
        "train": train,
        "sites": SitesSpec(wait=spec.sites.wait),
        "reference": None,
    }
    return spec.model_copy(update=plain | made)


def central_name(spec: JobSpec) -> str:
    """Return what the central counterpart of a job is called."""
    return f"{spec.name[:56]}-central"
