"""`hansa.run()`: a federation on this machine from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hansa.common.job.file import load_job
from hansa.common.report.material import read_material
from hansa.common.run.finished import Finished
from hansa.common.run.folder import new_run
from hansa.common.run.trial import run_process
from hansa.common.torch.installed import require_torch


def run(
    job: str | Path,
    *,
    sites: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option of the command is called
    slow: Mapping[str, float] | None = None,
    threads: int = 1,
    device: str = "cpu",
    central: bool = False,
    out: str | Path | None = None,
) -> Finished:
    """Run a job file as real processes on this machine, like `hansa run`.

    `set` changes fields by dotted path, and `slow` says by which factor the training of some sites is slowed
    down. A job that fails is returned, too: see its `status` and `reason`.
    """
    require_torch("hansa.run()")
    file = Path(job)
    folder = (Path(out) if out else new_run(load_job(file, set or {}, here=True).name)).absolute()
    more = ["--threads", str(threads), "--device", device, *["--central"] * central]
    if sites is not None:
        more += ["--sites", str(sites)]
    run_process(file, folder, set, slow, more)
    return Finished(read_material(folder).view, folder)
