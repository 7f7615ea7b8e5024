"""`hansa.simulate()`: a simulation from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.common.client.rows import Rows, version_rows
from hansa.common.job.file import load_job
from hansa.common.run.folder import MODEL
from hansa.common.run.site_data import located
from hansa.common.torch.installed import require_torch
from hansa.common.ui.layers import require_fitting_layers
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView
from hansa.simulation.folders import new_folder, require_new


class Simulated:
    """How a simulated job ended. `folder` has its report, its model and the job with every default."""

    def __init__(self, view: JobView, folder: Path) -> None:
        self.view, self.folder = view, folder

    @property
    def status(self) -> str:
        """`completed`, `failed` or `cancelled`; `reason` says why."""
        return self.view.status

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self.view.reason

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Of the last version that was evaluated."""
        return self.view.metrics

    @property
    def history(self) -> Sequence[VersionView]:
        """Every version, with its updates and metrics."""
        return self.view.history

    @property
    def rows(self) -> Rows:
        """A flat row for each version; `to_pandas()` makes a DataFrame of them."""
        return version_rows(self.view)

    def state_dict(self) -> dict[str, Any]:
        """Return the last model, for a network's `load_state_dict`."""
        from safetensors.torch import load_file

        tensors: dict[str, Any] = load_file(self.folder / MODEL)
        return tensors

    def __repr__(self) -> str:
        numbers = ", ".join(
            f"{name} {value:.4f}" for name, value in self.metrics.items() if value is not None
        )
        return f"<{self.view.name}: {self.status}, {self.view.rounds} {self.view.unit}s, {numbers}>"


def simulate(
    job: str | Path,
    *,
    sites: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option of the command is called
    workers: int = 0,
    ray: str | None = None,
    batched: bool = True,
    out: str | Path | None = None,
) -> Simulated:
    """Simulate a job file, like `hansa simulate`; `set` changes fields by dotted path.

    With `workers`, call it below `if __name__ == "__main__":`, because they import the script again. `ray` is
    HOST:PORT of a Ray cluster's head, or "auto" for a cluster on this machine. Unless `batched` is False,
    small clients are trained in blocks where that gives the same bits.
    """
    require_torch("hansa.simulate()")
    from hansa.simulation.run import simulate as run  # loads PyTorch

    file = Path(job)
    spec = load_job(file, set or {}, here=True)
    folder = (Path(out) if out else new_folder(spec.name)).absolute()
    require_new(folder)
    require_fitting_layers(spec, file)
    view = run(located(spec, file), folder, sites=sites, workers=workers, ray=ray, batched=batched)
    return Simulated(view, folder)
