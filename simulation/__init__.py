"""Simulation: a job with thousands of virtual sites, without their processes and network."""
