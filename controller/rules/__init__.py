"""Rules: named compositions of plugins, one file for each method. Importing this package registers all.

The five papers' methods are here, the others in `baselines` and `personal`.

Installed packages register theirs through the entry point group `hansa.plugins`.
"""

from hansa.common.plugins.registry import discover
from hansa.controller import encodings
from hansa.controller.evaluation import plans
from hansa.controller.layers import parameters, travelling
from hansa.controller.pacers import asynchronous, redistribute, semisync, sync
from hansa.controller.rules import adaptive, divide, dvw, feddaf, fedmmb, radfed
from hansa.controller.rules.baselines import (
    fedasync,
    fedavg,
    fedbuff,
    fednova,
    fedopt,
    fedprox,
    power_of_choice,
    qfedavg,
    robust,
    scaffold,
    staleness,
)
from hansa.controller.rules.personal import ditto, fedbn, fedper, fedrep

__all__ = [
    "adaptive",
    "asynchronous",
    "ditto",
    "divide",
    "dvw",
    "encodings",
    "fedasync",
    "fedavg",
    "fedbn",
    "fedbuff",
    "feddaf",
    "fedmmb",
    "fednova",
    "fedopt",
    "fedper",
    "fedprox",
    "fedrep",
    "parameters",
    "plans",
    "power_of_choice",
    "qfedavg",
    "radfed",
    "redistribute",
    "robust",
    "scaffold",
    "semisync",
    "staleness",
    "sync",
    "travelling",
]

discover()
