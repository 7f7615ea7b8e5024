"""The synchronous pacer (McMahan et al., 2017; Metis)."""

from hansa.common.plugins.registry import register
from hansa.controller.pacers.rounds import Rounds, RoundState


@register("pace", "sync")
class Sync(Rounds[RoundState]):
    """All sites of a round train from the same model; the round is merged when all have answered.

    At the deadline it is merged with the updates received, if they meet the quorum. Below the quorum the
    round is issued once more, to sites that failed or are late, and then merged with whatever was received.
    """

    def begin(self) -> RoundState:
        """Return the state to start from."""
        return RoundState()
