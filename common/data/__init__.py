"""Data sets and how they are parted among sites, for federations that are played on one machine."""
