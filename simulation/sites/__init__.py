"""Virtual sites: their data, their daemons, and the one place in a process where their tasks are done."""
