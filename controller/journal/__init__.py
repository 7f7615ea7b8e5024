"""Journals: what happened, in order, durably."""

from hansa.controller.journal.base import JobRecord, Journal
from hansa.controller.journal.sqlite import SqliteJournal

__all__ = ["JobRecord", "Journal", "SqliteJournal"]
