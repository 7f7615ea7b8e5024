"""A job on a controller, as a handle: what people ask of it, without naming it again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hansa.common.client.display import job_html
from hansa.common.client.download import Downloaded
from hansa.common.client.following import Following
from hansa.common.client.rows import Rows, version_rows
from hansa.common.models.checkpoints import save_checkpoint
from hansa.common.models.frames import Layout, views
from hansa.common.torch.installed import require_torch
from hansa.common.values.errors import JobCancelled, JobFailed
from hansa.common.values.history import VersionView
from hansa.common.values.views import EventView, JobView

if TYPE_CHECKING:
    import numpy as np

    from hansa.common.client.asynchronous import AsyncClient


class AsyncJob:
    """A job on a controller. `view` is what was last seen of it; `show` asks again."""

    def __init__(self, client: "AsyncClient", view: JobView) -> None:
        self._client = client
        self.view = view

    @property
    def id(self) -> str:
        """The job's id."""
        return self.view.job

    @property
    def name(self) -> str:
        """The name that the job file gave it."""
        return self.view.name

    async def show(self) -> JobView:
        """Ask the controller for the job with its history."""
        self.view = await self._client.show(self.id)
        return self.view

    async def watch(self, after: int = 0) -> AsyncIterator[VersionView]:
        """Yield every version above `after` once, in order, as soon as its metrics are complete.

        Version 0, which no site has trained, comes with `after=-1`. If the controller restarts meanwhile,
        this waits and goes on where it stopped.
        """
        async for version in self._following().versions(after):
            yield version

    async def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """Yield what happens in the job in plain words, after an event, until the job ends."""
        async for event in self._following().events(after):
            yield event

    async def result(self, timeout: float | None = None) -> JobView:  # noqa: ASYNC109 - as elsewhere in Python
        """Wait for the job's end and return it with its history; raise JobFailed unless it completed.

        TimeoutError is raised after `timeout` seconds; the job itself continues.
        """
        try:
            async with asyncio.timeout(timeout) as limit:
                async for _ in self._following().views():
                    pass
                view = await self.show()
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(
                    f"job {self.id} has not ended within {timeout:g} s; it continues"
                ) from None
            raise
        if view.status == "cancelled":
            raise JobCancelled(view.reason)
        if view.status == "failed":
            raise JobFailed(view.reason, view.site)
        return view

    async def cancel(self) -> JobView:
        """Cancel the job; its last community model is kept."""
        self.view = await self._client.cancel(self.id)
        return self.view

    async def delete(self) -> None:
        """Delete the job, which must have ended, with its models and its journal."""
        await self._client.delete(self.id)

    async def model(self, version: int | str = "last") -> Downloaded:
        """Download a community model: `best`, `last` or a number."""
        return await self._client.model(self.id, version)

    async def state_dict(self, version: int | str = "last") -> dict[str, Any]:
        """Download a community model for a PyTorch network's `load_state_dict`."""
        arrays = await self.arrays(version)
        require_torch("state_dict (arrays does not)")
        from hansa.common.torch.model import as_tensor

        return {name: as_tensor(array) for name, array in arrays.items()}

    async def arrays(self, version: int | str = "last") -> "dict[str, np.ndarray]":
        """Download a community model as numpy arrays."""
        model = await self.model(version)
        return views(Layout(model.manifest.spec), model.payload)

    async def save(self, path: str | Path, version: int | str = "last") -> Path:
        """Download a community model into a safetensors file."""
        model = await self.model(version)
        save_checkpoint(Path(path), model.manifest, model.payload, model.origin)
        return Path(path)

    async def rows(self) -> Rows:
        """Return a flat row for each version, with its metrics."""
        return version_rows(await self.show())

    async def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each version."""
        return (await self.rows()).to_pandas()

    def _following(self) -> Following:
        return Following(self._client.endpoint, self.id, known=True)

    def _repr_html_(self) -> str:
        return job_html(self.view)

    def __repr__(self) -> str:
        return f"<job {self.id} ({self.name}): {self.view.status}>"
