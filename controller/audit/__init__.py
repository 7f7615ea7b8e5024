"""The audit log: its records, the object that writes it, its checks, and the command that shows it."""
