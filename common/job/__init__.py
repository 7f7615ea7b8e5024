"""The job file: read, checked, resolved."""
