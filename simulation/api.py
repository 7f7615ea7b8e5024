"""`hansa.simulate()`: a simulation from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.common.job.file import load_job
from hansa.common.run.finished import Finished
from hansa.common.run.site_data import located
from hansa.common.torch.installed import require_torch
from hansa.common.ui.job.layers import require_fitting_layers
from hansa.simulation.folders import new_folder, require_new


def simulate(
    job: str | Path,
    *,
    sites: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option of the command is called
    workers: int = 0,
    ray: str | None = None,
    batched: bool = True,
    out: str | Path | None = None,
) -> Finished:
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
    return Finished(view, folder)
