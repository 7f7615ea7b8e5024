"""RADFed's importance: the learner plugin that reports how large gradients are."""

from hansa.common.values.bounds import Value

IMPORTANCE = "importance"  # the plugin, and the metric that it reports


class Importance(Value):
    """Arguments: which gradients, and when (radfed §2)."""

    per_example: bool = False  # gradients of each example instead of each batch
    online: bool = False  # gradients of the last epoch of training instead of a separate pass after it
    layers: tuple[str, ...] = ()  # only for parameters below these modules; empty: all
