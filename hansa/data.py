"""Data sets, their partitions and standardisation, for scripts; `hansa data` and `hansa run` use the same."""

from hansa.common.data.shards import write_shards
from hansa.common.data.sources import load_source
from hansa.common.data.standard import pooled, profile, standardised
from hansa.common.job.spec import DataSpec
from hansa.common.values.results import Profile
from hansa.common.values.settings.training import Standard

__all__ = [
    "DataSpec",
    "Profile",
    "Standard",
    "load_source",
    "pooled",
    "profile",
    "standardised",
    "write_shards",
]
