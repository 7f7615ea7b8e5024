"""The wire: protobuf definitions and the modules generated from them by compile.py."""
