"""Worker threads, and what they compute for jobs."""
