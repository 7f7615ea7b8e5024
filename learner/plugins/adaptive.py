"""The adaptive trigger: how long a learner trains before it hands in an update (Stripelis and Ambite, 2020).

A task is a validation cycle. After every epoch the model is evaluated on the site's validation part. An epoch
that does not lower the loss by enough percent is a failure; one failure more than allowed ends the cycle. So
does an effective staleness beyond the limit, however well training goes (metis-dvw §4, §5).
"""

import math
from collections.abc import Callable

from hansa.common.methods.adaptive import ADAPTIVE, Adaptive
from hansa.common.plugins.registry import register
from hansa.common.values.errors import HansaError
from hansa.learner.plugins.contract import LocalPlugin, LocalRun


class Diverged(HansaError):
    """The validation loss is no longer a finite number."""


class Trigger:
    """One validation cycle of a learner."""

    def __init__(
        self,
        thresholds: Adaptive,
        committed: int,
        measure: Callable[[], float | None],
        pulse: Callable[[], int | None],
    ) -> None:
        """`committed` steps are in the received model; `measure` returns its loss, if there is data."""
        self._thresholds = thresholds
        self._committed = committed
        self._measure, self._pulse = measure, pulse
        self._last = measure()
        self.tombstones = 0

    def enough(self, epoch: int, steps: int) -> bool:
        """Whether an update is due after this epoch and this many own steps."""
        return self._stopped_improving(epoch) or self._too_stale(steps)

    def _stopped_improving(self, epoch: int) -> bool:
        before, now = self._last, self._measure()
        if before is None or now is None:
            return epoch >= self._thresholds.epochs
        if not math.isfinite(now):
            raise Diverged(f"the validation loss is {now} after epoch {epoch}")
        self._last = now
        self.tombstones += is_failure(change(before, now), self._thresholds.vc_loss)
        return self.tombstones > self._thresholds.tombstones

    def _too_stale(self, steps: int) -> bool:
        """C3: steps committed by all sites since the model was received, as far as known, plus our own."""
        newest = self._pulse()
        if self._thresholds.limit is None or newest is None:
            return False
        return newest - self._committed + steps > self._thresholds.limit


def change(before: float, now: float) -> float:
    """Return by how many percent a loss has risen (Vpct)."""
    if not math.isfinite(before):
        return -math.inf  # any number is better
    if before == 0:
        return 0.0 if now == 0 else math.copysign(math.inf, now)
    return 100 * (now - before) / abs(before)


def is_failure(percent: float, least: float) -> bool:
    """Whether a loss did not fall (C1), or fell by no more than `least` percent (C2)."""
    return percent >= 0 or abs(percent) <= least


@register("learner", ADAPTIVE)
class UntilEnough(LocalPlugin[Trigger], Adaptive):
    """Trains until the validation loss hardly falls or the model is too stale."""

    alone = "train.until: the app trains by itself and cannot be stopped between epochs"

    def begin(self, run: LocalRun) -> Trigger:
        """Evaluate the model as it was received."""

        def loss() -> float | None:
            evaluation = run.measure()
            return evaluation.loss_sum / evaluation.n if evaluation.n else None

        return Trigger(self, run.work.committed, loss, run.pulse)

    def after_epoch(self, held: Trigger, run: LocalRun) -> bool:
        """Evaluate the model again."""
        return held.enough(run.epoch, run.steps)
