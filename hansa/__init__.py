"""Hansa: federated learning for sites whose data and machines are not alike.

Users write an `App` (their model and, if they wish, their data and training); everything else is configuration.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["App", "Evaluation", "Examples", "TrainingRun", "__version__"]

if TYPE_CHECKING:
    from hansa.common.app import App, Examples, TrainingRun
    from hansa.common.tasks import Evaluation


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that `import hansa` costs nothing."""
    if name in ("App", "Evaluation", "Examples", "TrainingRun"):
        from hansa.common import app

        return getattr(app, name)
    raise AttributeError(f"module 'hansa' has no attribute {name!r}")
