"""When the outcome of a task that a virtual site has begun is due."""

from hansa.common.values.results import Evaluation, Failure
from hansa.common.values.tasks import Evaluate, Init, Train
from hansa.simulation.clock.agenda import Rank
from hansa.simulation.clock.forecast import Forecast
from hansa.simulation.clock.timing import Timing
from hansa.simulation.crew.base import Paused, Update
from hansa.simulation.sites.daemons import Stint

Moment = tuple[int, Rank]  # a time, and what comes first at that time


class DueTimes:
    """Tells when outcomes are due: at the earliest while they are not known, and exactly when they are."""

    def __init__(self, timing: Timing, forecast: Forecast) -> None:
        self._timing, self._forecast = timing, forecast

    def soonest(self, stint: Stint, now: int) -> Moment:
        """Return the earliest moment at which something can come of a task."""
        work, site = stint.task.work, stint.site
        is_update = isinstance(work, Init | Train)
        soonest = (self._bound(stint), Rank.UPDATE if is_update else Rank.REPORT)
        if stint.pulses is None or not isinstance(work, Train):
            return soonest
        same = stint.epoch if work.source is None else 0  # all epochs are equally long
        steps = stint.reached + (same or self._forecast.epoch(site, work))
        epoch_ends = max(stint.began + self._timing.training(site, steps), now + 1)
        return min(soonest, (epoch_ends, Rank.EPOCH))

    def exactly(self, stint: Stint) -> Moment:
        """Return the moment at which the outcome of a task, which is known, happens."""
        outcome, site, timing = stint.outcome, stint.site, self._timing
        assert outcome is not None
        result, trained = outcome.result, stint.began + timing.training(site, outcome.steps)
        match result:
            case Paused():
                return trained, Rank.EPOCH
            case Update():
                return trained + timing.upload(result.nbytes), Rank.UPDATE
            case Failure():
                return self._bound(stint), Rank.FAILURE
            case Evaluation():
                return stint.began + timing.evaluation(site, result.n) + timing.upload(0), Rank.REPORT
        return self._bound(stint), Rank.REPORT

    def _bound(self, stint: Stint) -> int:
        """Return when a site can be done with a task at the earliest, as far as that is known."""
        site, work, timing = stint.site, stint.task.work, self._timing
        if isinstance(work, Train):
            steps = stint.reached or self._forecast.steps(site, work)
            upload = timing.upload(self._forecast.upload(stint.task))
            return stint.began + timing.training(site, steps) + upload
        if isinstance(work, Evaluate):
            examples = self._forecast.examples(site, work)
            return stint.began + timing.evaluation(site, examples) + timing.upload(0)
        return stint.began + 1 + timing.upload(0)
