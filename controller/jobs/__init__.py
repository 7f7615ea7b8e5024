"""Running jobs: the federation, a runner for each job, their records and worker threads."""
