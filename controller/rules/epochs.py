"""Tasks of a fixed number of epochs: how long sites train unless a rule or a job says otherwise."""

from pydantic import Field

from hansa.common.plugins.registry import TRAIN, register
from hansa.common.values.bounds import EPOCHS
from hansa.controller.plugin.policies import Duration


@register(TRAIN, "epochs")
class Epochs(Duration):
    """Every task makes a fixed number of passes over the site's data."""

    epochs: int = Field(1, ge=1, le=EPOCHS, strict=True, description="of each task")

    @property
    def usual_epochs(self) -> int:
        """Return the epochs of a task."""
        return self.epochs
