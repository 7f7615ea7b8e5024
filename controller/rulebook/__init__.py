"""The rulebook: from a job's words to the plugins that carry it out."""
