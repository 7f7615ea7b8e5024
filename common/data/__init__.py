"""Data sets, how they are split across sites, and how sites read and prepare their data."""
