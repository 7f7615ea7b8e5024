"""Readers of the files in which data sets are published. None of them uses the network or runs what it reads."""
