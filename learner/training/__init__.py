"""Training: batches, optimizers, the loop, and what learners keep from task to task."""
