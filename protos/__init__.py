"""The wire format: protobuf definitions, and the modules that compile.py generates from them."""
