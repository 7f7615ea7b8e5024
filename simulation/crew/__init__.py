"""Who does the tasks of virtual sites: this process, worker processes, or actors on a Ray cluster."""
