"""Jobs, from submission to archive.

submission, admission       a job file and its models become a job
runner                      one job: events in, journaled, effects out
delivery, chores            effects for daemons; effects for worker threads, clock and store
invitations, attendance     daemons that come and go, and which of them take part
launcher                    runs runners and records how they end
records, reading, resuming  to the journal and back
archive, directory, views   ended jobs; all jobs; what operators see of one
"""
