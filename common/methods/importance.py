"""RADFed's importance at the learner: the plugin that measures how large gradients are."""

from hansa.common.values.bounds import Value

IMPORTANCE = "importance"  # the plugin of learners that measures how large gradients are, and what it found


class Importance(Value):
    """Its arguments: which gradients, and when (radfed §2)."""

    per_example: bool = False  # of each example, not of each batch
    online: bool = False  # those of the last epoch of training, as they come, instead of a pass after it
    layers: tuple[str, ...] = ()  # only of parameters below these modules; none: all
