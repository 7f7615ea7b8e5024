"""Offline verification of jobs."""
