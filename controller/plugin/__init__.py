"""The contract of plugins: what they are given, what they return, and how it is checked."""
