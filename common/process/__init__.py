"""The basics of a process: settings, logs, state directory, terminal, clock."""
