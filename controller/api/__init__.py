"""The services that sites and operators call.

fleet, operator     the RPCs of protos/fleet.proto and protos/operator.proto
enrolment           a daemon's first message becomes a session
messages            decoding, with one line about what is wrong
limits, health      what one caller may ask for; the standard health service
"""
