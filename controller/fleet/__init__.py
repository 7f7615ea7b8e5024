"""The daemons of all sites: their sessions, comings and goings."""
