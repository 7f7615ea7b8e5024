"""Trains many small clients at once, where that gives the bits of training them one by one."""
