"""Which tensors of a model sites train and return (`layers` in a job file)."""
