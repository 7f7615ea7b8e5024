"""A task's plugins at work in training, without a learner around them."""

from hansa.learner.plugins.testing import SEED, run_of, trained_by

__all__ = ["SEED", "run_of", "trained_by"]
