"""The learner daemon: receives tasks, has them computed, and hands the results in."""

import asyncio
import importlib
import logging
from dataclasses import replace
from threading import Event
from typing import assert_never

from hansa.common.process import faults
from hansa.common.rpc import codec
from hansa.common.site.daemon import SiteDaemon, SiteOptions
from hansa.common.site.shelf import Shelf
from hansa.common.site.transfer import hand_in
from hansa.common.torch.readers import Readers
from hansa.common.values.errors import Stale
from hansa.common.values.results import Progress
from hansa.common.values.tasks import Evaluate, Init, Probe, Survey, Task, Train
from hansa.learner.launching.launcher import Launcher
from hansa.learner.trainer import Trainer
from hansa.learner.training.slow import Cancelled
from hansa.protos import fleet_pb2 as fleet

log = logging.getLogger(__name__)


class Learner(SiteDaemon):
    """Does survey, init, probe and train tasks."""

    def __init__(self, options: SiteOptions, shelf: Shelf) -> None:
        super().__init__(options, shelf)
        near = replace(options, device=options.own_device)
        self.trainer = Trainer(near, shelf, self.attendance.pulse, self.policy.current, readers=Readers())
        self._train = self.trainer.train
        if options.launcher:
            self._train = Launcher(options, self.trainer.jobs, self.attendance.pulse).train
        if any(app.train is None for app in shelf.apps):
            # The first optimizer of a process imports this, which takes seconds.
            self.thread.submit(importlib.import_module, "torch._dynamo")

    async def perform(self, task: Task, cancelled: Event) -> None:
        """Do a task; keep the result until the controller's receipt has arrived."""
        faults.reach("task-taken")
        app = self.shelf.get(task.app).app
        loop = asyncio.get_running_loop()

        def report(progress: Progress) -> None:
            loop.call_soon_threadsafe(self.attendance.report_progress, progress)

        match task.work:
            case Survey() as work:
                profile = await self.compute(self.trainer.survey, app, task, work)
                request = fleet.TaskReport(site=self.options.identity.site, task=task.id)
                request.profile.MergeFrom(codec.profile_to_wire(profile))
                await self.attendance.insist(lambda: self.attendance.stub.Report(request))
                return
            case Probe() as work:
                _, arrays = await self.fetcher.fetch(work.model)
                try:
                    result = await self.compute(self.trainer.probe, app, task, work, arrays, cancelled)
                except Cancelled as error:
                    raise Stale(str(error)) from None
                request = fleet.TaskReport(site=self.options.identity.site, task=task.id, probed=result)
                await self.attendance.insist(lambda: self.attendance.stub.Report(request))
                return
            case Init():
                update = await self.compute(self.trainer.initialise, app, task)
            case Train() as work:
                beside = [each.name for each in work.auxiliary if each.down and not each.reset]
                base, arrays = await self.fetcher.fetch(work.model, work.base, beside)
                try:
                    update = await self.compute(self._train, app, task, work, base, arrays, cancelled, report)
                except Cancelled as error:
                    raise Stale(str(error)) from None
            case Evaluate():
                raise Stale("a learner does not evaluate")
            case _:
                assert_never(task.work)
        faults.reach("task-trained")
        receipt = await hand_in(self.attendance, task.id, *update)
        faults.reach("task-uploaded")
        log.info("receipt %d for task %s: %s", receipt.sequence, task.id, receipt.hash)
        if isinstance(task.work, Train):
            await loop.run_in_executor(self.thread, self.trainer.commit, task)
