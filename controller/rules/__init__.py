"""Rules: named compositions of plugins, one file per paper or family. Importing this package registers them all."""

from hansa.controller.pacers import asynchronous, semisync, sync
from hansa.controller.rules import dvw, fedavg

__all__ = ["asynchronous", "dvw", "fedavg", "semisync", "sync"]
