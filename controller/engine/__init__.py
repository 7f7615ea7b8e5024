"""The engine of a job: a pure state machine that takes events and returns effects.

It has no clock, no socket, no store and no global randomness.
"""
