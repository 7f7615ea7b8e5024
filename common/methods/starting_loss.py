"""The loss that a model has before a task changes it: the learner plugin that reports it."""

from hansa.common.values.bounds import Value

STARTING_LOSS = "starting_loss"  # the plugin, and the metric that it reports


class StartingLoss(Value):
    """Arguments: what the loss must be."""

    least: float | None = None  # a site with a smaller loss cannot take part
