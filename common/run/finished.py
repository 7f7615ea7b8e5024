"""What `hansa.run()` and `hansa.simulate()` return."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.common.client.rows import Rows, version_rows
from hansa.common.run.folder import MODEL
from hansa.common.values.history import VersionView
from hansa.common.values.views import JobView


class Finished:
    """How a job ended. `folder` has its report, its model and the job with every default."""

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
