"""Pacers: they decide when to ask sites, when to merge and when to stop."""
