"""gRPC as Hansa uses it: methods from descriptors, raw frames, one table of errors, one guard."""
