"""Names of a sweep's runs: of their folders, and of their jobs."""

import re

from hansa.simulation.sweep.axes import Combination

LONGEST, DIGITS = 120, 10  # characters of a folder's name, and of the digest in it
JOB = 64  # characters of a job's name


def folder_name(points: Combination, digest: str) -> str:
    """Return the name of a run's folder; with another job it is another folder."""
    words = ",".join(f"{name}={point.label}" for name, point in points.items()) or "job"
    return f"{simple(words, '._=,-')[:LONGEST]}-{digest[:DIGITS]}"


def job_name(sweep: str, points: Combination) -> str:
    """Return the name of a run's job, as operators see it."""
    return simple("-".join([sweep, *(point.label for point in points.values())]))[:JOB]


def simple(text: str, also: str = "._-") -> str:
    """Replace everything in a text that is awkward in a name."""
    return re.sub(f"[^A-Za-z0-9{re.escape(also)}]+", "-", text)
