"""Indices over a job's state: they keep the cost of an event proportional to what it changes."""
