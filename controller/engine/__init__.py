"""The engine of a job: a pure state machine. Events in, effects out; no clock, socket, store or global randomness."""
