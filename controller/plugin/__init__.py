"""The contract of the controller's plugins: what they are given and return, and how that is checked."""
