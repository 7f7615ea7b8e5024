"""The daemons of all sites: which are connected, and which are away."""
