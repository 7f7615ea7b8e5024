"""The evaluator's daemon: fetches models, has them evaluated on the site's data, and reports the results."""

from threading import Event

from hansa.common.process import faults
from hansa.common.rpc import codec
from hansa.common.site.daemon import SiteDaemon, SiteOptions
from hansa.common.site.shelf import Shelf
from hansa.common.torch.readers import Readers
from hansa.common.values.errors import Stale
from hansa.common.values.tasks import Evaluate, Task
from hansa.evaluator.measurer import Measurer
from hansa.protos import fleet_pb2 as fleet


class Evaluator(SiteDaemon):
    """A site's evaluator."""

    def __init__(self, options: SiteOptions, shelf: Shelf) -> None:
        super().__init__(options, shelf)
        self.measurer = Measurer(options, shelf, readers=Readers())

    async def perform(self, task: Task, cancelled: Event) -> None:
        """Evaluate a model and report the result."""
        if not isinstance(task.work, Evaluate):
            raise Stale("this is not an evaluation, and an evaluator does nothing else")
        app = self.shelf.get(task.app).app
        _, arrays = await self.fetcher.fetch(task.work.model, task.work.base)
        evaluation = await self.compute(self.measurer.evaluate, app, task, arrays)
        faults.reach("evaluation-done")
        request = fleet.TaskReport(site=self.options.identity.site, task=task.id)
        request.evaluation.MergeFrom(codec.evaluation_to_wire(evaluation))
        await self.attendance.insist(lambda: self.attendance.stub.Report(request))
        faults.reach("evaluation-reported")
