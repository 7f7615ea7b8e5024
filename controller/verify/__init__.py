"""Offline verification of jobs: the checks, and the command that reports on them."""
