"""Rules: named compositions of plugins, one file per paper or family. Importing this package registers all.

Installed packages register theirs through the entry point group `hansa.plugins`.
"""

from hansa.common.plugins.registry import discover
from hansa.controller.evaluation import plans
from hansa.controller.layers import parameters, travelling
from hansa.controller.pacers import asynchronous, redistribute, semisync, sync
from hansa.controller.rules import (
    adaptive,
    divide,
    dvw,
    fedasync,
    fedavg,
    fedbn,
    fedbuff,
    feddaf,
    fedmmb,
    fednova,
    fedopt,
    fedper,
    fedprox,
    fedrep,
    power_of_choice,
    qfedavg,
    radfed,
    robust,
    scaffold,
    staleness,
)

__all__ = [
    "adaptive",
    "asynchronous",
    "divide",
    "dvw",
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
