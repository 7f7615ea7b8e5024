"""The methods that everybody compares with, beside the five papers' own: one file for each."""
