"""Central training on a federation's data, as a job with one site, for comparison with the federation."""

import math
from typing import Any

from hansa.common.job.duration import duration_of
from hansa.common.job.spec import JobSpec, SitesSpec
from hansa.common.plugins.registry import POINTS, fill, rules


def centralised(spec: JobSpec, sites: int) -> JobSpec:
    """Return the central counterpart of a job with this many sites.

    It keeps only the numbers of rounds, hops and batches of the rule, and how models are evaluated. A step is
    over as many examples as a step of all sites together, so each version comes after as many steps and
    examples.
    """
    rule = rules()[spec.rule]
    pace: Any = fill("pace", rule, spec.pace)
    rounds = pace.rounds_asked() if pace.common_rounds else math.ceil(pace.updates_asked() / sites)
    plain: dict[str, Any] = {point: None for point in POINTS if point != "evaluate"}
    plain |= {"rule": "fedavg", "pace": {"kind": "sync", "rounds": rounds}}
    if spec.evaluate and "virtual" in spec.evaluate:  # a single site has no mean between merges
        plain["evaluate"] = {name: value for name, value in spec.evaluate.items() if name != "virtual"}
    hops: int = pace.trainings  # one after another, before each merge
    duration: Any = duration_of(spec, rule)
    batches: int | None = duration.batches if duration.windows else None
    # A window ends with a pass over the data at the latest; the next window continues from there.
    if batches and hops > 1:
        plain["pace"] = {"kind": "redistribute", "rounds": rounds, "hops": hops}
    # Some kinds have their own number of epochs for whole models.
    layers: Any = fill("layers", rule, spec.layers)
    epochs: int = getattr(layers, "feature_epochs", None) or duration.usual_epochs
    train = spec.train.model_copy(
        update={
            "proximal": None,
            "batch_size": sites * spec.train.batch_size,
            "batches": batches,
            "epochs": None if batches else hops * epochs,
        }
    )
    # There is one site, whatever the job asks for, and its model is the reference.
    own = {
        "name": central_name(spec),
        "train": train,
        "sites": SitesSpec(wait=spec.sites.wait),
        "reference": None,
    }
    return spec.model_copy(update=plain | own)


def central_name(spec: JobSpec) -> str:
    """Return the name of a job's central counterpart."""
    return f"{spec.name[:56]}-central"
