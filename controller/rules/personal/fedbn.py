"""FedBN (Li et al., ICLR 2021): every site keeps its own normalisation layers, and all else is averaged.

It is FedAvg with `layers: {kind: personal, norm: true}`. The paper keeps batch normalisation; here all
normalisation layers stay, with their statistics, because they, too, fit features of a site's own scale.
"""

from hansa.common.plugins.registry import Rule, add_rule
from hansa.controller.rules.baselines.fedavg import FEDAVG

FEDBN = add_rule(
    Rule(
        name="fedbn",
        summary="FedAvg in which every site keeps normalisation layers of its own",
        paper="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021",
        parts=FEDAVG.parts | {"layers": {"kind": "personal", "norm": True}},
    )
)
