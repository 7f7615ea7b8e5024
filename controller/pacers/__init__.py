"""Pacers: when to ask, when to merge, when to stop."""
