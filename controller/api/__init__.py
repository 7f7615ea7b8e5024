"""The services that sites and operators call.

fleet, operator     the RPCs of protos/fleet.proto and protos/operator.proto
enrolment           a daemon's first message becomes a session
messages            decoding, with a one-line error if a message is invalid
limits, health      limits for callers; the standard health service
"""
