"""Central training of a federation's data, as a job with one site: what federations are measured against."""

import math
from typing import Any

from hansa.common.job.duration import duration_of
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
    rounds = merges if pace.common_rounds else math.ceil(merges / sites)
    plain: dict[str, Any] = {point: None for point in POINTS if point != "evaluate"}
    plain |= {"rule": "fedavg", "pace": {"kind": "sync", "rounds": rounds}}
    if spec.evaluate and "virtual" in spec.evaluate:  # there is no mean between merges of one site's model
        plain["evaluate"] = {name: value for name, value in spec.evaluate.items() if name != "virtual"}
    hops: int = pace.trainings
    duration: Any = duration_of(spec, rule)
    batches: int | None = duration.batches if duration.windows else None
    if batches and hops > 1:
        # One window ends with a pass over the data at the latest; the next goes on from there.
        plain["pace"] = {"kind": "redistribute", "rounds": rounds, "hops": hops}
    layers: Any = fill("layers", rule, spec.layers)  # some set the epochs in which whole models are trained
    epochs: int = getattr(layers, "feature_epochs", None) or duration.usual_epochs
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
