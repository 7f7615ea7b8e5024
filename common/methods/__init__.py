"""Learner plugins that rules ask for: their names and arguments, which both sides know."""
