"""The plugins of learners."""
