"""The shell around the engine of a simulated job: a virtual clock, or a journal that is replayed."""
