"""Readers of published data sets. They neither use the network nor run code from the files."""
