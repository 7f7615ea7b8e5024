"""Held-out sites: they never train, and evaluate community models (partitioning §9)."""

from dataclasses import dataclass

from hansa.common.job.spec import SitesSpec
from hansa.common.values.ids import SiteName


@dataclass(frozen=True)
class HeldOut:
    """The sites that a job holds out for validation and for testing; it may have none."""

    validation: frozenset[str]
    test: frozenset[str]

    @classmethod
    def of(cls, sites: SitesSpec) -> "HeldOut":
        """Return the sites that a job names."""
        return cls(frozenset(sites.validation), frozenset(sites.test))

    def evaluates_models(self, site: SiteName) -> bool:
        """Whether a site evaluates community models: if some sites are for validation, the others do not."""
        return not self.validation or site in self.validation or site in self.test

    def evaluates_updates(self, site: SiteName) -> bool:
        """Whether a site may evaluate updates: what held-out sites find must not influence training."""
        return site not in self.validation and site not in self.test
