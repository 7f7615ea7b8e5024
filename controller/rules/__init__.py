"""Rules: named compositions of plugins, one file per paper or family. Importing this package registers them all."""

from hansa.controller.pacers import sync
from hansa.controller.rules import fedavg

__all__ = ["fedavg", "sync"]
