"""Real learners and evaluators in the process of a test; they talk to a controller over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from hansa.common.site.connection import Identity
from hansa.common.site.daemon import SiteDaemon, SiteOptions
from hansa.common.site.shelf import Shelf
from hansa.common.values.ids import SiteName
from hansa.evaluator.daemon import Evaluator
from hansa.learner.daemon import Learner


def daemon(address: str, folder: Path, app: str, name: str, role: str) -> SiteDaemon:
    """Return a site's daemon. Its data are the file `name` in the folder, and its states are beside it."""
    state = folder / f"{name}-{role}"
    state.mkdir(exist_ok=True)
    options = SiteOptions(
        identity=Identity(address, SiteName(name), role, None),
        data=folder / name,
        apps=(app,),
        state=state,
        split="train" if role == "learner" else "validation",
        personal=folder / f"{name}-personal",
    )
    shelf = Shelf(options.apps, options.data, "train")
    return Learner(options, shelf) if role == "learner" else Evaluator(options, shelf)


@asynccontextmanager
async def attending(daemons: Sequence[SiteDaemon]) -> AsyncIterator[None]:
    """Keep daemons connected until the block ends."""
    ready = {each: asyncio.Event() for each in daemons}
    running = [asyncio.create_task(each.run(partial(_set, ready[each]))) for each in daemons]
    here = asyncio.create_task(_all(ready.values()))
    try:
        await asyncio.wait((*running, here), return_when=asyncio.FIRST_COMPLETED)
        for ended in running:
            if ended.done():
                ended.result()
        yield
    finally:
        for task in (here, *running):
            task.cancel()
        await asyncio.gather(here, *running, return_exceptions=True)


def _set(event: asyncio.Event, text: str) -> None:
    event.set()


async def _all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()
