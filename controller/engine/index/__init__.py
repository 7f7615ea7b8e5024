"""Indices over a job's state, so that an event costs no more than what it changes."""
