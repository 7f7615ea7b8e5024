"""Journals: durable records of everything that happened, in order."""

from hansa.controller.storage.journal.base import Entry, JobRecord, Journal, fault
from hansa.controller.storage.journal.redis import RedisJournal
from hansa.controller.storage.journal.sqlite import SqliteJournal

__all__ = ["Entry", "JobRecord", "Journal", "RedisJournal", "SqliteJournal", "fault"]
