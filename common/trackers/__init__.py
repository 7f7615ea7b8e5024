"""Where a job's results can be exported to: tables, and the trackers that people already have."""
