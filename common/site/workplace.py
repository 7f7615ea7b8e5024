"""What a site's work needs to know about its place: a daemon's options, or a virtual site of a simulation."""

from pathlib import Path
from typing import Protocol

from hansa.common.site.files import Files


class Workplace(Protocol):
    """Where a site works, and with what."""

    @property
    def data(self) -> Path:
        """The site's data."""

    @property
    def split(self) -> str:
        """The split of the data that the daemon works on."""

    @property
    def device(self) -> str:
        """Where tensors are."""

    @property
    def slow(self) -> float:
        """The factor by which training is slowed down."""

    @property
    def files(self) -> Files:
        """The files that must survive a restart."""

    @property
    def personal_files(self) -> Files:
        """The files of the site's own tensors, which its learner and its evaluator share."""
