"""Training: batches, optimizers, the loop, and what is kept from task to task."""
