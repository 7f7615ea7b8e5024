"""Journals: what happened, in order, durably."""

from hansa.controller.journal.base import Entry, JobRecord, Journal, fault
from hansa.controller.journal.redis import RedisJournal
from hansa.controller.journal.sqlite import SqliteJournal

__all__ = ["Entry", "JobRecord", "Journal", "RedisJournal", "SqliteJournal", "fault"]
