"""Logging as the daemons use it: one line per event, on standard error."""

import logging
import os


def set_up(level: str = "") -> None:
    """Send log records to standard error; HANSA_LOG or `level` says from which level on."""
    wanted = (level or os.environ.get("HANSA_LOG") or "info").upper()
    logging.basicConfig(
        level=getattr(logging, wanted, logging.INFO),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        force=True,
    )
    logging.getLogger("grpc").setLevel(logging.WARNING)
