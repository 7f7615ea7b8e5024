"""`hansa learner task FOLDER`: does one training task for a learner on this or another machine."""

import os
import signal
import threading
from pathlib import Path
from threading import Event

from hansa.common.data.site_files import loaded_split
from hansa.common.site.connection import Identity
from hansa.common.site.daemon import SiteOptions
from hansa.common.site.failures import failure_of
from hansa.common.site.policy import PolicyFile
from hansa.common.site.shelf import Shelf
from hansa.common.torch.readers import Readers
from hansa.common.values.ids import SiteName
from hansa.common.values.results import Progress
from hansa.common.values.tasks import Train
from hansa.learner.launching.parcel import Parcel
from hansa.learner.trainer import Trainer
from hansa.learner.training.slow import Cancelled

LOOK = 0.5  # seconds between two looks at whether the learner still wants the result


def train_parcel(folder: Path) -> None:
    """Train and leave the result, or the reason why there is none, in the folder."""
    parcel = Parcel(folder)
    os.umask(0o077)  # what it writes into the state directory is for the owner only
    cancelled = Event()
    signal.signal(signal.SIGTERM, lambda *_: cancelled.set())
    threading.Thread(target=_watch, args=(parcel, cancelled), daemon=True).start()
    try:
        _train(parcel, cancelled)
    except Cancelled:
        return
    except (Exception, SystemExit) as error:  # an app or a plugin may raise anything
        if parcel.is_there:
            parcel.put_failure(failure_of(error))
        raise


def _watch(parcel: Parcel, cancelled: Event) -> None:
    """Note when the learner wants the result no longer; a loop of the app's own may never ask."""
    while not cancelled.wait(LOOK):
        if not parcel.is_there:
            cancelled.set()
    if not parcel.folder.exists():
        os._exit(1)  # the learner is gone, or does the task anew: nothing may be written for it now


def _train(parcel: Parcel, cancelled: Event) -> None:
    order, task, base, arrays, memory = parcel.order()
    options = SiteOptions(
        identity=Identity("", SiteName(order.site), "learner"),
        data=order.data,
        apps=(task.app,),
        state=order.state,
        split=order.split,
        device=order.device,
        threads=order.threads,
        policy=order.policy,
        slow=order.slow,
        personal=order.personal,
    )
    shelf = Shelf(options.apps, options.data, loaded_split(options.split), options.device)
    policy = PolicyFile(options.policy)
    trainer = Trainer(options, shelf, lambda _: parcel.pulse(), policy.current, readers=Readers())
    trainer.jobs.put_memory(task.job, memory)
    work = task.work
    assert isinstance(work, Train)
    app = shelf.get(task.app).app

    def report(progress: Progress) -> None:
        if parcel.is_there:
            parcel.put_progress(progress)

    update = trainer.train(app, task, work, base, arrays, cancelled, report)
    if not parcel.is_there:
        raise Cancelled("nobody waits for the result")
    parcel.put_update(update, trainer.jobs.memory(task.job))
