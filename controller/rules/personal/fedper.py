"""FedPer (Arivazhagan et al., 2019): every site keeps the last layers, and trains them with the others.

It is FedAvg with `layers: {kind: personal, last: 1}`; `layers.match` names other tensors. As in the paper,
one task trains base and personal layers together.
"""

from hansa.common.plugins.registry import Rule, add_rule
from hansa.controller.rules.baselines.fedavg import FEDAVG

FEDPER = add_rule(
    Rule(
        name="fedper",
        summary="FedAvg in which every site keeps a last layer of its own",
        paper="Arivazhagan et al., Federated Learning with Personalization Layers, 2019",
        parts=FEDAVG.parts | {"layers": {"kind": "personal", "last": 1}},
    )
)
