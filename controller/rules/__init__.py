"""Rules: named compositions of plugins, one file per paper or family. Importing this package registers them all.

Packages of others register theirs through the entry point group `hansa.plugins`.
"""

from hansa.common.plugins import discover
from hansa.controller.pacers import asynchronous, semisync, sync
from hansa.controller.rules import divide, dvw, evaluation, fedasync, fedavg, fedopt, fedprox, parameters, robust

__all__ = [
    "asynchronous",
    "divide",
    "dvw",
    "evaluation",
    "fedasync",
    "fedavg",
    "fedopt",
    "fedprox",
    "parameters",
    "robust",
    "semisync",
    "sync",
]

discover()
