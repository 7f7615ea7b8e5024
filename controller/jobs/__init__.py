"""Jobs, from submission to archive.

submission, admission       a job file and its models become a job
runner                      one job: events come in, are journaled, and have effects
delivery, chores            effects for daemons; effects for worker threads, clock and store
invitations, attendance     daemons that come and go, and which of them take part in a job
launcher                    runs jobs and records how they end
records, reading, resuming  jobs on their way to the journal and back
archive, directory, views   ended jobs; all jobs; a job as operators see it
"""
