"""Federations from a script: run a job file on this machine and summarise its report."""

from hansa.common.run.trial import Outcome, Report, outcome, run_trial

__all__ = ["Outcome", "Report", "outcome", "run_trial"]
